//! Interfaces that are registered with Onload for AF_XDP (Onload, `src/driver/linux_resource/sysfs.c`).
//! The file that registers them lists none; debugfs does (`src/lib/efhw/debugfs_nic.c`).

use std::collections::BTreeSet;
use std::path::Path;

use onload_core::host_settings::{HostSettings, InterfaceName};
use onload_core::onload::AF_XDP_FLOW_FILTERS;
use onload_sys::text::quote_for_shell;

use super::step::{Effect, HostPlan, HostStep, StepAction, StepSubject};
use crate::discover::af_xdp::{AfXdpTrouble, Registration};
use crate::discover::netdev::SYS_CLASS_NET;
use crate::discover::nic::{AF_XDP_REGISTER, DEBUGFS_NICS, DebugfsNic, RESOURCE_MODULE};
use crate::host::{Host, HostError};

/// The module that brings sfc_resource with it, and /dev/onload.
const MODULE: &str = "onload";

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
pub(super) fn plan_af_xdp(
    host: &Host,
    settings: &HostSettings,
    plan: &mut HostPlan,
) -> Result<(), HostError> {
    let is_there = |path: &str| Ok(host.entry(Path::new(path))?.is_some());
    let (is_loaded, has_af_xdp) = (is_there(RESOURCE_MODULE)?, is_there(AF_XDP_REGISTER)?);
    // A captured host has no empty directories.
    let is_known = !host.is_running() || is_there(DEBUGFS_NICS)?;
    let registered = is_known.then(|| read_registered(host)).transpose()?;
    let existing: BTreeSet<String> =
        host.list(Path::new(SYS_CLASS_NET))?.names.into_iter().collect();
    let all_features = host.interface_features()?;
    let flow_filters = host.attribute(Path::new(AF_XDP_FLOW_FILTERS))?;
    let interfaces: BTreeSet<&str> = settings.af_xdp.iter().map(InterfaceName::as_str).collect();
    if let Some(with_filters) = settings.af_xdp_flow_filters {
        plan_flow_filters(flow_filters.as_deref(), is_loaded, with_filters, plan);
    }
    for name in &interfaces {
        let features = all_features.get(*name).copied();
        match settings.af_xdp_flow_filters {
            None => {
                let trouble = features
                    .and_then(|features| AfXdpTrouble::find(features, flow_filters.as_deref()));
                let is_registered = match &registered {
                    Some(names) => names.contains(*name),
                    None => is_loaded,
                };
                let registration =
                    if is_registered { Registration::Made } else { Registration::NotMade };
                plan.warnings.extend(trouble.map(|trouble| trouble.describe(name, registration)));
            }
            // Without flow filters, interfaces get one channel.
            Some(false) if existing.contains(*name) => {
                match features.and_then(|features| features.channels) {
                    Some(..2) => {}
                    Some(channels) => plan.steps.push(one_channel_step(name, channels)),
                    None => plan.warnings.push(format!(
                        "could not determine how many channels {name} has: run \"ethtool -l {}\"; \
                         it should have one",
                        quote_for_shell(name)
                    )),
                }
            }
            Some(_) => {}
        }
    }
    for name in interfaces {
        let subject = StepSubject::new("af-xdp", name);
        if !existing.contains(name) {
            plan.refuse(&subject, "interface not found");
        } else if !is_loaded {
            plan.steps.push(register_step(&subject, true));
        } else if !has_af_xdp {
            plan.refuse(
                &subject,
                "the loaded sfc_resource does not support AF_XDP; install an Onload that does",
            );
        } else {
            match &registered {
                None => plan.refuse(
                    &subject,
                    format!(
                        "could not determine which interfaces are registered, since {DEBUGFS_NICS} does not exist; mount debugfs"
                    ),
                ),
                Some(names) if names.contains(name) => {}
                Some(_) => plan.steps.push(register_step(&subject, false)),
            }
        }
    }
    Ok(())
}

fn plan_flow_filters(now: Option<&str>, is_loaded: bool, with_filters: bool, plan: &mut HostPlan) {
    let subject = StepSubject::new("af-xdp-flow-filters", "");
    let value = u8::from(with_filters).to_string();
    match now {
        None if !is_loaded => {}
        None => plan.refuse(
            &subject,
            format!(
                "the loaded sfc_resource does not support {AF_XDP_FLOW_FILTERS}; install an Onload \
                 that does"
            ),
        ),
        Some(now) if now == value => {}
        Some(now) => plan.steps.push(HostStep {
            actions: vec![StepAction::write(AF_XDP_FLOW_FILTERS, &value)],
            effect: Effect::Is { path: AF_XDP_FLOW_FILTERS.into(), text: value.clone() },
            ..HostStep::new(&subject, "enable_af_xdp_flow_filters", now, value)
        }),
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
