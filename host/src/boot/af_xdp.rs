//! Interfaces that are registered with Onload for AF_XDP (Onload, `src/driver/linux_resource/sysfs.c`).
//! The file that registers them lists none; debugfs does (`src/lib/efhw/debugfs_nic.c`).

use std::collections::BTreeSet;
use std::path::Path;

use onload_core::host_settings::Interface;

use super::step::{Action, Effect, Plan, Step, Subject};
use crate::discover::netdev::CLASS;
use crate::discover::nic::{AF_XDP_REGISTER, DEBUGFS_NICS, RESOURCE_MODULE, interface_of};
use crate::host::{Host, HostError};

/// The module that brings sfc_resource with it, and /dev/onload.
const MODULE: &str = "onload";

/// What Onload knows of interfaces.
#[derive(Debug, Default)]
pub(super) struct State {
    is_loaded: bool,
    has_af_xdp: bool,
    /// None where nothing tells.
    registered: Option<BTreeSet<String>>,
    interfaces: BTreeSet<String>,
}

/// Reads what is registered.
pub(super) fn read(host: &Host) -> Result<State, HostError> {
    let is_there = |path: &str| Ok(host.entry(Path::new(path))?.is_some());
    let listed = host.list(Path::new(DEBUGFS_NICS))?.names;
    let listed = listed.iter().filter_map(|entry| interface_of(entry));
    // A tree of files has no empty directories.
    let tells = !host.is_running() || is_there(DEBUGFS_NICS)?;
    Ok(State {
        is_loaded: is_there(RESOURCE_MODULE)?,
        has_af_xdp: is_there(AF_XDP_REGISTER)?,
        registered: tells.then(|| listed.map(str::to_owned).collect()),
        interfaces: host.list(Path::new(CLASS))?.names.into_iter().collect(),
    })
}

/// Registers what is not registered yet.
pub(super) fn decide(state: &State, wanted: &[Interface], plan: &mut Plan) {
    let wanted: BTreeSet<&str> = wanted.iter().map(Interface::as_str).collect();
    for name in wanted {
        let subject = Subject::new("af-xdp", name);
        let registered = state.registered.as_ref();
        if !state.interfaces.contains(name) {
            plan.refuse(&subject, "this host has no interface of that name");
        } else if !state.is_loaded {
            plan.steps.push(step(subject, true));
        } else if !state.has_af_xdp {
            plan.refuse(
                &subject,
                "the loaded sfc_resource has no AF_XDP; install an Onload that has it",
            );
        } else if registered.is_none() {
            plan.refuse(
                &subject,
                format!(
                    "what is registered is not known, since {DEBUGFS_NICS} is not there; mount debugfs"
                ),
            );
        } else if registered.is_some_and(|names| !names.contains(name)) {
            plan.steps.push(step(subject, false));
        }
    }
}

fn step(subject: Subject, load: bool) -> Step {
    let module = load.then(|| Action::Load {
        module: MODULE.to_owned(),
    });
    let register = Action::write(AF_XDP_REGISTER, &subject.name);
    Step {
        setting: "registered with Onload".to_owned(),
        now: if load { "no, module not loaded" } else { "no" }.to_owned(),
        wanted: "yes".to_owned(),
        actions: module.into_iter().chain([register]).collect(),
        frees: Vec::new(),
        effect: Effect::Listed {
            directory: DEBUGFS_NICS.into(),
            ending: format!("_{}", subject.name),
        },
        subject,
    }
}
