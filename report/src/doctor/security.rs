//! Checks whether SELinux and AppArmor keep containers from using devices or from starting.

use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings};

const ENFORCE: &str = "/sys/fs/selinux/enforce";
/// The boolean that allows containers to use device nodes of the host. If it is off, the SELinux domain of containers
/// may only use nodes that the runtime creates in the container's /dev, which have the container's own label
/// (container-selinux, `container.te`).
const USE_DEVICES: &str = "/sys/fs/selinux/booleans/container_use_devices";
const RESTRICT: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
const PODMAN: &str = "/usr/bin/podman";
const PODMAN_PROFILE: &str = "/etc/apparmor.d/podman";

pub(super) fn check_selinux(context: &CheckContext<'_>) -> Findings {
    if context.attribute(ENFORCE)?.as_deref() != Some("1") {
        return Ok(Vec::new());
    }
    // The boolean does not exist if no policy for containers is loaded.
    let Some(value) = context.attribute(USE_DEVICES)? else { return Ok(Vec::new()) };
    let finding = if value.starts_with('1') {
        Finding::pass("SELinux is enforcing and lets containers use devices")
    } else {
        Finding::warn(
            "SELinux is enforcing and denies containers the device nodes that rootless engines \
             mount from the host",
            Remedy::run("setsebool -P container_use_devices=true"),
        )
    };
    Ok(vec![finding.with_path(USE_DEVICES)])
}

pub(super) fn check_apparmor(context: &CheckContext<'_>) -> Findings {
    let Some(restricts) = context.attribute(RESTRICT)? else { return Ok(Vec::new()) };
    if !context.is_file(PODMAN)? {
        return Ok(Vec::new());
    }
    let has_profile = context.is_file(PODMAN_PROFILE)?;
    let finding = if restricts == "1" && !has_profile {
        Finding::warn(
            format!(
                "AppArmor keeps rootless podman from creating namespaces: missing {PODMAN_PROFILE}"
            ),
            Remedy::write(
                "/etc/sysctl.d/60-onload-ctk.conf",
                "kernel.apparmor_restrict_unprivileged_userns = 0",
            ),
        )
        .with_remedy(Remedy::run("sysctl --system"))
    } else {
        Finding::pass("AppArmor lets rootless podman create namespaces")
    };
    Ok(vec![finding.with_path(RESTRICT)])
}
