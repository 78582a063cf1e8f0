//! Interfaces that are registered with Onload for AF_XDP (Onload, `src/driver/linux_resource/sysfs.c`).
//! The file that registers them lists none; debugfs does (`src/lib/efhw/debugfs_nic.c`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use onload_core::host_settings::{HostSettings, InterfaceName};
use onload_core::onload::AF_XDP_FLOW_FILTERS;
use onload_sys::text::quote_for_shell;

use super::step::{Effect, HostPlan, HostStep, StepAction, StepSubject};
use crate::discover::af_xdp::AfXdpTrouble;
use crate::discover::netdev::SYS_CLASS_NET;
use crate::discover::nic::{AF_XDP_REGISTER, DEBUGFS_NICS, DebugfsNic, RESOURCE_MODULE};
use crate::host::{Host, HostError};
use crate::netlink::features::InterfaceFeatures;

/// The module that brings sfc_resource with it, and /dev/onload.
const MODULE: &str = "onload";

#[derive(Debug, Default)]
pub(super) struct AfXdpState {
    is_loaded: bool,
    has_af_xdp: bool,
    /// `None` if it is unknown.
    registered: Option<BTreeSet<String>>,
    interfaces: BTreeSet<String>,
    features: BTreeMap<String, InterfaceFeatures>,
    /// The module's parameter, or `None` if it does not exist.
    flow_filters: Option<String>,
}

pub(super) fn read(host: &Host) -> Result<AfXdpState, HostError> {
    let is_there = |path: &str| Ok(host.entry(Path::new(path))?.is_some());
    // A captured host has no empty directories.
    let is_known = !host.is_running() || is_there(DEBUGFS_NICS)?;
    Ok(AfXdpState {
        is_loaded: is_there(RESOURCE_MODULE)?,
        has_af_xdp: is_there(AF_XDP_REGISTER)?,
        registered: is_known.then(|| read_registered(host)).transpose()?,
        interfaces: host.list(Path::new(SYS_CLASS_NET))?.names.into_iter().collect(),
        features: host.interface_features()?,
        flow_filters: host.attribute(Path::new(AF_XDP_FLOW_FILTERS))?,
    })
}

/// Returns the present names of the interfaces in this network namespace that are registered with Onload.
pub(super) fn read_registered(host: &Host) -> Result<BTreeSet<String>, HostError> {
    let attribute = |path: &Path| host.attribute(path).ok().flatten();
    let own_nics = host
        .list(Path::new(DEBUGFS_NICS))?
        .names
        .into_iter()
        .filter_map(|entry| DebugfsNic::read(&entry, attribute))
        .filter(|nic| {
            let address = attribute(&Path::new(SYS_CLASS_NET).join(&nic.name).join("address"));
            nic.matches_identity(&nic.name, address.as_deref())
        });
    Ok(own_nics.map(|nic| nic.name).collect())
}

/// Plans settings that cannot change while Onload uses an interface before its registration.
pub(super) fn decide(state: &AfXdpState, settings: &HostSettings, plan: &mut HostPlan) {
    let interfaces: BTreeSet<&str> = settings.af_xdp.iter().map(InterfaceName::as_str).collect();
    match settings.af_xdp_flow_filters {
        Some(with_filters) => plan_flow_filters(state, with_filters, &interfaces, plan),
        None => {
            let warnings = interfaces.iter().filter_map(|name| {
                let features = state.features.get(*name).copied()?;
                let trouble = AfXdpTrouble::find(features, state.flow_filters.as_deref())?;
                Some(trouble.describe(name))
            });
            plan.warnings.extend(warnings);
        }
    }
    for name in interfaces {
        let subject = StepSubject::new("af-xdp", name);
        let registered = state.registered.as_ref();
        if !state.interfaces.contains(name) {
            plan.refuse(&subject, "interface not found");
        } else if !state.is_loaded {
            plan.steps.push(register_step(&subject, true));
        } else if !state.has_af_xdp {
            plan.refuse(
                &subject,
                "the loaded sfc_resource does not support AF_XDP; install an Onload that does",
            );
        } else if registered.is_none() {
            plan.refuse(
                &subject,
                format!(
                    "could not determine which interfaces are registered, since {DEBUGFS_NICS} does not exist; mount debugfs"
                ),
            );
        } else if registered.is_some_and(|names| !names.contains(name)) {
            plan.steps.push(register_step(&subject, false));
        }
    }
}

/// Sets whether Onload uses flow filters. Without them, interfaces get one channel.
fn plan_flow_filters(
    state: &AfXdpState,
    with_filters: bool,
    interfaces: &BTreeSet<&str>,
    plan: &mut HostPlan,
) {
    let subject = StepSubject::new("af-xdp-flow-filters", "");
    let value = u8::from(with_filters).to_string();
    match &state.flow_filters {
        None if !state.is_loaded => {}
        None => plan.refuse(
            &subject,
            format!(
                "the loaded sfc_resource does not support {AF_XDP_FLOW_FILTERS}; install an Onload \
                 that does"
            ),
        ),
        Some(now) if *now == value => {}
        Some(now) => plan.steps.push(HostStep {
            actions: vec![StepAction::write(AF_XDP_FLOW_FILTERS, &value)],
            effect: Effect::Is { path: AF_XDP_FLOW_FILTERS.into(), text: value.clone() },
            ..HostStep::new(&subject, "enable_af_xdp_flow_filters", now, value)
        }),
    }
    if with_filters {
        return;
    }
    for name in interfaces.iter().filter(|name| state.interfaces.contains(**name)) {
        let features = state.features.get(*name);
        let channels = features.and_then(|features| features.channels);
        match channels {
            Some(..2) => {}
            Some(channels) => plan.steps.push(one_channel_step(name, channels)),
            None => plan.warnings.push(format!(
                "could not determine how many channels {name} has: run \"ethtool -l {}\"; it \
                 should have one",
                quote_for_shell(name)
            )),
        }
    }
}

fn one_channel_step(name: &str, channels: u32) -> HostStep {
    let subject = StepSubject::new("af-xdp", name);
    HostStep {
        actions: vec![StepAction::OneChannel(name.to_owned())],
        effect: Effect::OneChannel(name.to_owned()),
        ..HostStep::new(&subject, "channels", channels.to_string(), "1")
    }
}

fn register_step(subject: &StepSubject, load: bool) -> HostStep {
    let module = load.then(|| StepAction::Load(MODULE.to_owned()));
    let now = if load { "no, module not loaded" } else { "no" };
    let register = StepAction::write(AF_XDP_REGISTER, &subject.name);
    HostStep {
        actions: module.into_iter().chain([register]).collect(),
        effect: Effect::Registered(subject.name.clone()),
        ..HostStep::new(subject, "registered with Onload", now, "yes")
    }
}
