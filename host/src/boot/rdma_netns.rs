//! In which network namespaces RDMA devices are seen (rdma-system(8); `ib_devices_shared_netns` in
//! drivers/infiniband/core/device.c).

use std::path::Path;

use onload_core::host_settings::RdmaNetns;

use super::step::{Action, Effect, Plan, Step, Subject};
use crate::host::{Host, HostError};

/// `Y` while all namespaces see all devices. It follows what netlink sets.
const MODE: &str = "/sys/module/ib_core/parameters/netns_mode";

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State(Option<RdmaNetns>);

pub(super) fn read(host: &Host) -> Result<State, HostError> {
    let mode = host.attribute(Path::new(MODE))?;
    Ok(State(mode.and_then(|text| match text.as_str() {
        "Y" => Some(RdmaNetns::Shared),
        "N" => Some(RdmaNetns::Exclusive),
        _ => None,
    })))
}

pub(super) fn decide(state: State, wanted: Option<RdmaNetns>, plan: &mut Plan) {
    let Some(wanted) = wanted.filter(|wanted| state.0 != Some(*wanted)) else {
        return;
    };
    let module = state.0.is_none().then(|| Action::Load {
        module: "ib_core".to_owned(),
    });
    let letter = match wanted {
        RdmaNetns::Shared => "Y",
        RdmaNetns::Exclusive => "N",
    };
    let now = state.0.map(|mode| mode.to_string());
    plan.steps.push(Step {
        subject: Subject::new("rdma-netns", ""),
        setting: "mode".to_owned(),
        now: now.unwrap_or_else(|| "module not loaded".to_owned()),
        wanted: wanted.to_string(),
        actions: module
            .into_iter()
            .chain([Action::SetRdmaNetns(wanted)])
            .collect(),
        frees: Vec::new(),
        effect: Effect::Is {
            path: MODE.into(),
            text: letter.to_owned(),
        },
    });
}
