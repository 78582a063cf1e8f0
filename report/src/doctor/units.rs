//! The package's units and rules, which write the specifications at boot and after changes.

use std::path::Path;

use onload_core::host_settings::HostSettings;

use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings, HostResult};

const INSTALLED: &str = "/usr/lib/systemd/system";
const CONFIGURED: &str = "/etc/systemd/system";
const RULES: &str = "90-onload-ctk.rules";

const UNITS: [(&str, &str); 3] = [
    ("onload-cdi.service", "multi-user.target.wants"),
    ("onload-cdi.path", "multi-user.target.wants"),
    ("onload-cdi.timer", "timers.target.wants"),
];
const HOST_UNIT: (&str, &str) = ("onload-host.service", "multi-user.target.wants");

pub(super) fn check_enabled(context: &CheckContext<'_>) -> Findings {
    if !context.has_units()? {
        return Ok(Vec::new());
    }
    let config = context.config;
    let is_configured = !config.sriov.is_empty() || config.host != HostSettings::default();
    let host_unit = is_configured.then_some(HOST_UNIT);
    let mut findings = Vec::new();
    for (unit, target) in UNITS.into_iter().chain(host_unit) {
        if context.is_file(Path::new(INSTALLED).join(unit))? {
            findings.push(unit_finding(context, unit, target)?);
        }
    }
    Ok(findings)
}

fn unit_finding(context: &CheckContext<'_>, unit: &str, target: &str) -> HostResult<Finding> {
    let configured = Path::new(CONFIGURED).join(unit);
    let link = Path::new(CONFIGURED).join(target).join(unit);
    let enable = Remedy::run(format!("systemctl enable --now {unit}"));
    let finding = if context.is_masked(&configured)? {
        Finding::fail("masked: it cannot start", enable)
            .with_first_remedy(Some(Remedy::run(format!("systemctl unmask {unit}"))))
    } else if context.host.link(&link)?.is_some() {
        Finding::pass("starts at boot")
    } else {
        Finding::fail("not enabled at boot", enable)
    };
    Ok(finding.with_path(link).with_subject(unit))
}

/// Whether udev's rules are there, which tell of devices that come and go.
pub(super) fn check_udev_rules(context: &CheckContext<'_>) -> Findings {
    if !context.has_units()? {
        return Ok(Vec::new());
    }
    let installed = format!("/usr/lib/udev/rules.d/{RULES}");
    let override_path = format!("/etc/udev/rules.d/{RULES}");
    let reload = Remedy::run("udevadm control --reload");
    let finding = if context.host.link(Path::new(&override_path))?.is_some()
        || context.exists(&override_path)?
    {
        let remove = Remedy::run(format!("rm {override_path}"));
        let text = format!("{override_path} replaces the package's rules");
        Finding::warn(text, remove).with_remedy(reload)
    } else if context.is_file(&installed)? {
        Finding::pass("specifications follow device changes")
    } else {
        let text = format!("{installed} does not exist");
        Finding::fail(text, context.reinstall_remedy()).with_remedy(reload)
    };
    Ok(vec![finding.with_path(installed)])
}
