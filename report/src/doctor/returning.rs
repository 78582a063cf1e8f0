//! Devices that have left their containers and are not what they were on the host.

use onload_host::leases;
use onload_lease::run_dir::RUN_DIR;
use onload_lease::{LeaseEntry, MoveRecord};

use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings};

pub(super) fn check_returning(context: &CheckContext<'_>) -> Findings {
    // Without the right to read leases nothing is known of them, as `discovery` says.
    let entries = leases::list(context.host).unwrap_or_default();
    let moved: Vec<(&LeaseEntry, &MoveRecord)> = entries
        .iter()
        .filter(|entry| !entry.has_ended)
        .filter_map(|entry| Some((entry, entry.lease.as_ref().ok()?.moved.as_ref()?)))
        .collect();
    let findings: Vec<Finding> = moved
        .iter()
        .filter(|(entry, _)| entry.is_returning)
        .map(|(entry, record)| {
            let reason = record.left.as_ref().map(|left| format!(": {left} is not as it was"));
            let text = format!(
                "its container has ended, and it is not restored{}; no other container gets it",
                reason.unwrap_or_default()
            );
            let device = &entry.device;
            Finding::warn(text, Remedy::run("onload-ctk lease restore")).with_subject(format!(
                "{}={}",
                device.class.as_str(),
                device.name
            ))
        })
        .collect();
    let findings = match (findings.is_empty(), moved.is_empty()) {
        (true, false) => vec![Finding::pass("no device is left behind by an ended container")],
        _ => findings,
    };
    Ok(findings.into_iter().map(|finding| finding.with_path(RUN_DIR)).collect())
}
