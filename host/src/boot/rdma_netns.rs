//! The RDMA netns mode: whether all network namespaces share the devices (rdma-system(8)).

use std::path::Path;

use onload_core::host_settings::RdmaNetns;

use super::step::{Effect, HostPlan, HostStep, StepAction, StepSubject};
use crate::discover::rdma::{NETNS_MODE, parse_netns_mode};
use crate::host::{Host, HostError};

/// Returns the present mode, or `None` without the module.
pub(super) fn read(host: &Host) -> Result<Option<RdmaNetns>, HostError> {
    let mode = host.attribute(Path::new(NETNS_MODE))?;
    Ok(mode.as_deref().and_then(parse_netns_mode))
}

pub(super) fn decide(now: Option<RdmaNetns>, target: RdmaNetns, plan: &mut HostPlan) {
    if now == Some(target) {
        return;
    }
    let module = now.is_none().then(|| StepAction::Load("ib_core".to_owned()));
    let letter = match target {
        RdmaNetns::Shared => "Y",
        RdmaNetns::Exclusive => "N",
    };
    let now = now.map(|mode| mode.to_string()).unwrap_or_else(|| "module not loaded".to_owned());
    let subject = StepSubject::new("rdma-netns", "");
    plan.steps.push(HostStep {
        actions: module.into_iter().chain([StepAction::SetRdmaNetns(target)]).collect(),
        effect: Effect::Is { path: NETNS_MODE.into(), text: letter.to_owned() },
        ..HostStep::new(&subject, "mode", now, target.to_string())
    });
}
