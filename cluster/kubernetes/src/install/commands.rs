//! The two commands: they read the host, make a plan, and carry it out under a lock.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use onload_core::config::{CONFIG_PATH, Config};
use onload_host::host::Host;
use onload_host::specdir::{FileAction, WRITER_LOCK, is_package_writer, sha256};
use onload_lease::drain::DRAIN_PATH;
use onload_sys::fs::regular;
use onload_sys::fs::trust::TrustedOwners;
use rustix::fs::StatVfsMountFlags;

use super::apply::{InstallTarget, remove_directory, try_hook};
use super::directory::{HookDirectory, MAX_HOOK_BYTES, TrustedRoot};
use super::hook_users;
use super::plan::{
    self, ConfigInput, InstallInput, InstallPlan, InstallReport, InstalledState, foreign_message,
};
use crate::spec_writer::{self, HOOK_NAME, VERSION};

/// Limit for a configuration in bytes.
const MAX_CONFIG_BYTES: u64 = 4 * 1024 * 1024;
/// The package's command.
const COMMAND: &str = "/usr/bin/onload-ctk";
/// The mapping of this process's users to those of the host.
const UID_MAP: &str = "/proc/self/uid_map";

/// The site of an installation.
#[derive(Clone, Debug)]
pub struct InstallSite<'p> {
    pub host: &'p Host,
    pub directory: &'p Path,
    /// The required owners of files there: root, except in tests.
    pub owners: TrustedOwners,
}

/// Installs this version's hook, and a configuration if the host has none, and removes older hooks that nothing names.
/// An error leaves the host unchanged, unless a step failed, for example because of a full disk. `force` replaces
/// another file in the place of the hook.
pub fn install(
    site: &InstallSite<'_>,
    hook: &Path,
    config: Option<&Path>,
    force: bool,
) -> Result<InstallReport> {
    let tree = TrustedRoot::for_host(site.host, site.owners.clone())?;
    let hook = read_hook(hook)?;
    let input = InstallInput {
        version: VERSION,
        hook_sha256: sha256(&hook),
        hook,
        config: config.map(read_config).transpose()?,
        force,
    };
    let mount_flags = tree.mount_flags(&site.directory.join(VERSION))?;
    if mount_flags.contains(StatVfsMountFlags::NOEXEC) {
        bail!(
            "installing the hook: {} is on a file system that is mounted noexec; use another \
             directory with --hook-dir",
            tree.outside_path(site.directory).display()
        );
    }
    let (state, plan) = decide(site, &tree, &input)?;
    let is_read_only = mount_flags.contains(StatVfsMountFlags::RDONLY);
    let is_baked_in = is_read_only && plan.steps.is_empty();
    if is_baked_in || plan.is_idle(&state.content.record) {
        return Ok(plan.report);
    }
    if is_read_only {
        bail!(
            "installing the hook: {} is on a file system that is mounted read-only; use another \
             directory with --hook-dir",
            tree.outside_path(site.directory).display()
        );
    }
    let directory = tree.create_dir(site.directory)?;
    let _lock = directory.lock()?;
    // Decides again under the lock, since another installer may have run.
    let (_, plan) = decide(site, &tree, &input)?;
    let target = InstallTarget { tree: &tree, path: site.directory, directory: &directory };
    target.apply(plan, &input)
}

fn decide(
    site: &InstallSite<'_>,
    tree: &TrustedRoot,
    input: &InstallInput,
) -> Result<(InstalledState, InstallPlan)> {
    let state = read_installed(site, tree)?;
    let hook = site.directory.join(VERSION).join(HOOK_NAME);
    let plan = plan::install(&state, input).with_context(|| {
        format!(
            "installing the hook: {} differs from this version's hook, and containers may use it; \
             remove it after they have ended, or replace it with --force",
            tree.outside_path(&hook).display()
        )
    })?;
    Ok((state, plan))
}

/// Removes everything that was installed, and the daemon's specifications. Files that something still names are kept.
pub fn uninstall(site: &InstallSite<'_>) -> Result<InstallReport> {
    let tree = TrustedRoot::for_host(site.host, site.owners.clone())?;
    // Fails before any change if the directory cannot be read.
    tree.read_content(site.directory)?;
    let Some(lock) = spec_writer::try_lock(site.host, WRITER_LOCK)? else {
        bail!(
            "removing what was installed: the daemon of this node is still running and would write \
             the specifications again; delete its DaemonSet first"
        );
    };
    let package_writes = is_package_writer(site.host)?;
    let mut report = InstallReport::default();
    if !package_writes {
        remove_specs(site.host, &mut report)?;
        if site.host.entry(Path::new(COMMAND))?.is_none() {
            remove_drain(site.host, &tree, &mut report)?;
        }
    }
    if tree.read_content(site.directory)?.record.is_empty() {
        let line = format!("nothing is installed at {}", site.directory.display());
        report.kept.push(line);
    } else if let Some(directory) = tree.open(site.directory)? {
        let hook_report = remove_installed(site, &tree, &directory)?;
        report.done.extend(hook_report.done);
        report.kept.extend(hook_report.kept);
        report.in_use = hook_report.in_use;
    }
    drop(lock);
    Ok(report)
}

/// Removes hooks and the configuration, and the directory itself when it is empty.
fn remove_installed(
    site: &InstallSite<'_>,
    tree: &TrustedRoot,
    directory: &HookDirectory,
) -> Result<InstallReport> {
    let lock = directory.lock()?;
    let plan = plan::uninstall(&read_installed(site, tree)?);
    let target = InstallTarget { tree, path: site.directory, directory };
    let is_all = plan.after.is_empty();
    let report = target.apply(plan, &InstallInput::default())?;
    if is_all {
        directory.remove_own()?;
        drop(lock);
        remove_directory(tree, site.directory)?;
    }
    Ok(report)
}

/// Fails if this process is root only in a user namespace, since its files would belong to another user of the host.
pub fn refuse_user_namespace() -> Result<()> {
    let map = fs::read_to_string(UID_MAP).context(format!("reading {UID_MAP}"))?;
    if !is_initial_user_namespace(&map) {
        bail!(
            "installing the hook: this runs as root of a user namespace, whose files no runtime \
             trusts; remove hostUsers from the pod, or set it to true"
        );
    }
    Ok(())
}

/// Returns whether all users have the same IDs as on the host (user_namespaces(7)).
fn is_initial_user_namespace(uid_map: &str) -> bool {
    let words: Vec<&str> = uid_map.split_whitespace().collect();
    words == ["0", "0", "4294967295"]
}

/// Returns the content of the hook to install, after checking its version.
fn read_hook(path: &Path) -> Result<Vec<u8>> {
    let shown = path.display();
    let content =
        regular::read(path, MAX_HOOK_BYTES).with_context(|| format!("reading {shown}"))?;
    let file = fs::File::open(path).with_context(|| format!("opening {shown}"))?;
    try_hook(&file, path)?;
    Ok(content)
}

fn read_config(path: &Path) -> Result<ConfigInput> {
    let reading = || format!("reading {}", path.display());
    let bytes = regular::read(path, MAX_CONFIG_BYTES).with_context(reading)?;
    let text =
        String::from_utf8(bytes).map_err(|error| error.utf8_error()).with_context(reading)?;
    let config = Config::parse(&text)
        .with_context(|| format!("reading the configuration {}", path.display()))?;
    Ok(ConfigInput {
        sha256: sha256(text.as_bytes()),
        sets_something: config != Config::default(),
        text,
    })
}

fn read_installed(site: &InstallSite<'_>, tree: &TrustedRoot) -> Result<InstalledState> {
    let content = tree.read_content(site.directory)?;
    let versions: Vec<&str> = content.record.hooks.keys().map(String::as_str).collect();
    let users = hook_users::find(site.host, site.directory, &versions);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(InstalledState {
        directory: site.directory.to_owned(),
        config: host_config_hash(site.host)?,
        users,
        now: now.map_or(0, |now| now.as_secs()),
        content,
    })
}

/// Returns the sha256 of the host's configuration. A link in its place counts as the operator's own.
fn host_config_hash(host: &Host) -> Result<Option<String>> {
    let path = Path::new(CONFIG_PATH);
    if let Some(target) = host.link(path)? {
        return Ok(Some(format!("link to {}", target.display())));
    }
    let bytes = host.bytes(path, MAX_CONFIG_BYTES)?;
    Ok(bytes.map(|bytes| sha256(&bytes)))
}

fn remove_specs(host: &Host, report: &mut InstallReport) -> Result<()> {
    let Some(plan) = spec_writer::remove(host)? else {
        return Ok(());
    };
    let dir = Path::new(spec_writer::SPEC_DIR);
    for step in &plan.steps {
        let path = dir.join(&step.name);
        match step.action {
            FileAction::Remove => report.done.push(format!("removed {}", path.display())),
            FileAction::Leave => report.kept.push(foreign_message(&path)),
            FileAction::Write(_) | FileAction::Keep | FileAction::Undecided => {}
        }
    }
    Ok(())
}

/// Removes the drain list of the pod's command, which later software would not know. Keeps that of the package's
/// command.
fn remove_drain(host: &Host, tree: &TrustedRoot, report: &mut InstallReport) -> Result<()> {
    let path = Path::new(DRAIN_PATH);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str))
    else {
        return Ok(());
    };
    if host.entry(path)?.is_some()
        && let Some(directory) = tree.open(parent)?
    {
        directory.remove(name)?;
        report.done.push(format!("removed {DRAIN_PATH}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_initial_user_namespace;

    #[test]
    fn root_of_a_user_namespace_is_told_from_root_of_the_host() {
        assert!(is_initial_user_namespace("         0          0 4294967295\n"));
        for other in [
            "         0       1000          1\n",
            "         0     231072      65536\n",
            "         0          0      65536\n",
            "         0          0 4294967295\n         1 1 1\n",
            "",
        ] {
            assert!(!is_initial_user_namespace(other), "{other:?}");
        }
    }
}
