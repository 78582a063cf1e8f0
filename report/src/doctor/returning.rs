//! Devices that have left their containers and are not what they were on the host.

use onload_lease::run_dir::RUN_DIR;
use onload_lease::{LeaseEntry, MoveRecord, ONLOAD_REGISTRATION, SavedState};

use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings};
use super::reload::reload_finding;

pub(super) fn check_returning(context: &CheckContext<'_>) -> Findings {
    let moved: Vec<(&LeaseEntry, &MoveRecord)> = moved_devices(context).collect();
    let mut findings = Vec::new();
    for (entry, record) in moved.iter().filter(|(entry, _)| entry.is_returning) {
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
    let entries = context.leases.iter().filter(|entry| !entry.has_ended);
    entries.filter_map(|entry| Some((entry, entry.lease.as_ref().ok()?.moved.as_ref()?)))
}

fn has_lost_registration(record: &MoveRecord) -> bool {
    record.left.as_deref() == Some(ONLOAD_REGISTRATION)
}
