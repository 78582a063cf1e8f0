//! The commands that reload Onload's driver and apply its configuration again, and devices that have left their containers
//! and are not what they were on the host.

use onload_lease::run_dir::RUN_DIR;
use onload_lease::{LeaseEntry, MoveRecord, ONLOAD_REGISTRATION, SavedState};
use onload_sys::text::ShortList;

use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings, HostResult};
use crate::status::{StackUser, list_stack_users};

/// Returns a finding with the commands to reload the driver, and one to run after that. `onload_tool reload` fails while
/// a stack lives, so what has one is stopped before. It ends the registrations for AF_XDP.
pub(super) fn reload_finding(
    context: &CheckContext<'_>,
    text: &str,
    new_finding: fn(String, Remedy) -> Finding,
    then: Option<Remedy>,
) -> HostResult<Finding> {
    let users = list_stack_users(context.host)?;
    let mut text = text.to_owned();
    if !users.is_empty() {
        let names: Vec<String> = users.iter().map(ToString::to_string).collect();
        text += &format!("; first stop the holders of Onload stacks: {}", ShortList(&names));
    }
    let reapply = reapply_remedy(context)?;
    if reapply.is_some() || then.is_some() {
        text += "; a reload drops the registrations for AF_XDP";
    }
    let steps = users
        .iter()
        .filter_map(StackUser::stop_command)
        .map(Remedy::run)
        .chain([Remedy::run("onload_tool reload")])
        .chain(reapply)
        .chain(then)
        .chain([Remedy::run("onload-ctk undrain nic")]);
    let drain = Remedy::run("onload-ctk drain nic");
    Ok(steps.fold(new_finding(text, drain), Finding::with_remedy))
}

/// Returns the command that applies the configuration to reloaded modules, if it has settings for them: starting the
/// unit that does so at boot.
pub(super) fn reapply_remedy(context: &CheckContext<'_>) -> HostResult<Option<Remedy>> {
    let host = &context.config.host;
    if host.af_xdp.is_empty() && host.af_xdp_flow_filters.is_none() {
        return Ok(None);
    }
    Ok(Some(Remedy::run(if context.has_units()? {
        "systemctl restart onload-host.service"
    } else {
        "onload-ctk host apply"
    })))
}

pub(super) fn check_returning(context: &CheckContext<'_>) -> Findings {
    let moved: Vec<(&LeaseEntry, &MoveRecord)> = moved_devices(context).collect();
    let mut findings = Vec::new();
    for (entry, record) in moved.iter().filter(|(entry, _)| entry.is_returning()) {
        let restore = Remedy::run("onload-ctk lease restore");
        let reason = record.left.as_ref().map(|left| format!(": {left} is not restored"));
        let text = format!(
            "its container has ended, but it is not restored{}; no other container gets it",
            reason.unwrap_or_default()
        );
        let finding = if has_lost_registration(record) {
            let text = format!("{text}, and Onload does not reach it");
            reload_finding(context, &text, Finding::warn, Some(restore))?
        } else {
            Finding::warn(text, restore)
        };
        let device = &entry.device;
        findings.push(finding.with_subject(format!("{}={}", device.class.as_str(), device.name)));
    }
    if findings.is_empty() && !moved.is_empty() {
        findings.push(Finding::pass("no device waits to be restored"));
    }
    Ok(findings.into_iter().map(|finding| finding.with_path(RUN_DIR)).collect())
}

/// Returns the interfaces of the host that are registered with Onload and that a container's XDP program took from it.
pub(super) fn lost_registrations(context: &CheckContext<'_>) -> Vec<String> {
    let lost = moved_devices(context).filter(|(_, record)| has_lost_registration(record));
    lost.filter_map(|(_, record)| match &record.saved {
        SavedState::Interface(interface) => Some(interface.name.clone()),
        SavedState::Rdma(_) | SavedState::Function(_) => None,
    })
    .collect()
}

fn moved_devices<'e>(
    context: &CheckContext<'e>,
) -> impl Iterator<Item = (&'e LeaseEntry, &'e MoveRecord)> + use<'e> {
    let entries = context.leases.iter().filter(|entry| !entry.has_ended());
    entries.filter_map(|entry| Some((entry, entry.lease.as_ref().ok()?.moved.as_ref()?)))
}

fn has_lost_registration(record: &MoveRecord) -> bool {
    record.left.as_deref() == Some(ONLOAD_REGISTRATION)
}
