//! Whether SELinux and AppArmor keep containers from using devices or from starting, and whether only root can change
//! what root's programs read.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use onload_cdi::DEFAULT_DIRS;
use onload_core::config::Preload;
use onload_core::onload::{PRELOAD_FILE, RUNTIMES};
use onload_host::specdir::FILE_PREFIX;
use onload_sys::fs::trust::TrustError;
use onload_sys::text::{ErrorChain, format_count, quote_for_shell};

use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings, HostResult};

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

const WRAPPER: &str = "/usr/bin/onload-container-runtime";

/// Checks that only root can have changed each file that the hook and the wrapper read, and every directory above it: they
/// run as root, and reject others.
pub(super) fn check_files(context: &CheckContext<'_>) -> Findings {
    let paths = trusted_paths(context)?;
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let trusted = match context.host.trusted() {
        Ok(trusted) => trusted,
        Err(error) => {
            let reason = ErrorChain(&error).to_string();
            let retry = Remedy::run("sudo onload-ctk doctor");
            return Ok(vec![Finding::unknown(reason, retry).with_path("/")]);
        }
    };
    let mut wrong = BTreeSet::new();
    let results = paths.iter().filter_map(|path| {
        let error = trusted.check(path).err()?;
        trust_finding(&error, path, &mut wrong)
    });
    let mut findings: Vec<Finding> = results.collect();
    if findings.is_empty() {
        let text = format!(
            "only root can change {}",
            format_count(paths.len(), "security-relevant file", "security-relevant files")
        );
        let finding = Finding::pass(text);
        findings.push(paths.iter().fold(finding, Finding::with_path));
    }
    Ok(findings)
}

fn trust_finding(
    error: &TrustError,
    path: &Path,
    wrong: &mut BTreeSet<PathBuf>,
) -> Option<Finding> {
    let text = ErrorChain(error).to_string();
    let fails = |command: &str, target: &Path| {
        let run = Remedy::run(format!("{command} {}", quote_for_shell(target)));
        Finding::fail(text.clone(), run)
    };
    let (target, finding) = match error {
        TrustError::Owner { path: target, .. } => (target, fails("chown root:root", target)),
        TrustError::Writable { path: target, .. } => (target, fails("chmod go-w", target)),
        TrustError::Open { path: target, source }
            if source.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            let retry = Remedy::run("sudo onload-ctk doctor");
            (target, Finding::unknown(text, retry))
        }
        _ => return None,
    };
    let is_new = wrong.insert(target.clone());
    is_new.then(|| finding.with_path(path).with_subject(target.display().to_string()))
}

fn trusted_paths(context: &CheckContext<'_>) -> HostResult<Vec<PathBuf>> {
    let config = context.config;
    let mut paths: Vec<PathBuf> =
        vec![context.config_file.to_owned(), config.cdi.hook_path.clone()];
    if config.runtime.path.as_os_str().is_empty() {
        paths.push(WRAPPER.into());
        paths.extend(RUNTIMES.map(PathBuf::from));
    } else {
        paths.extend([WRAPPER.into(), config.runtime.path.clone()]);
    }
    if config.cdi.preload == Preload::File {
        paths.push(PRELOAD_FILE.into());
    }
    for directory in DEFAULT_DIRS.map(Path::new) {
        let names = context
            .host
            .list(directory)?
            .names
            .into_iter()
            .filter(|name| name.starts_with(FILE_PREFIX));
        paths.extend(names.map(|name| directory.join(name)));
    }
    let mut existing = Vec::new();
    for path in paths {
        if context.is_file(&path)? {
            existing.push(path);
        }
    }
    Ok(existing)
}
