//! The links of /dev/char. udev creates one for each device of sysfs, so a node that a script made by mknod, for a driver
//! that creates no device, has none.

use std::path::Path;

use onload_core::expectation::{ExpectedDevice, NumberSource};
use onload_engines::installed::PROGRAM_DIRS;
use onload_engines::version::EngineVersion;

use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings, HostResult};
use super::distribution::Distribution;

const LINKS: &str = "/dev/char";
/// The first runc that allows a device without a link (issue 48 of NVIDIA/nvidia-container-toolkit).
const NEEDS_NO_LINK: EngineVersion = EngineVersion(1, 2, 0);

pub(super) fn check_links(context: &CheckContext<'_>) -> Findings {
    if !Distribution::detect(context.host)?.has_systemd() || needs_no_link(context)? {
        return Ok(Vec::new());
    }
    let devices = context.inventory.with_drained();
    let mut findings = Vec::new();
    for offered in devices.flat_map(|device| &device.nodes) {
        if !is_made_by_mknod(&offered.expected) {
            continue;
        }
        let path = &offered.node.path;
        let link = format!("{LINKS}/{}", offered.node.number);
        let finding = if context.host.link(link.as_ref())?.is_some() {
            Finding::pass(format!("{link} leads to {path}"))
        } else {
            let text = format!(
                "{link}, the link to {path}, is missing: with systemd's cgroups, runc before 1.2 \
                 denies the device to containers after a daemon-reload or earlier"
            );
            Finding::warn(text, Remedy::run(format!("ln -s {path} {link}")))
        };
        findings.push(finding.with_subject(offered.node.name()).with_path(link));
    }
    Ok(findings)
}

fn is_made_by_mknod(expected: &[ExpectedDevice]) -> bool {
    expected.iter().any(|device| match device {
        ExpectedDevice::Driver(driver) => driver.source == NumberSource::ProcDevices,
        _ => false,
    })
}

/// Returns whether each runc is known to be new enough. Engines may bring one that is not found here.
fn needs_no_link(context: &CheckContext<'_>) -> HostResult<bool> {
    let mut versions = Vec::new();
    for directory in PROGRAM_DIRS {
        let program = Path::new(directory).join("runc");
        if context.is_file(&program)? {
            let version = (context.version_of)(&program);
            versions.push(version.as_deref().and_then(EngineVersion::parse));
        }
    }
    Ok(!versions.is_empty()
        && versions.iter().all(|version| version.is_some_and(|v| v >= NEEDS_NO_LINK)))
}
