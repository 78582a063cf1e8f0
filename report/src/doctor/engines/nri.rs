//! The NRI plugin: whether a runtime asks it. Otherwise pods silently start without the devices in their annotations.

use std::path::{Path, PathBuf};

use onload_engines::daemon::find_processes;
use onload_engines::kind::EngineKind;
use onload_engines::settings::EngineSettings;
use onload_engines::version::EngineVersion;

use super::daemon;
use super::installed::InstalledEngine;
use crate::doctor::check::{Finding, Remedy};
use crate::doctor::context::{CheckContext, Findings, HostResult};

const PROGRAM: &str = "/usr/bin/onload-nri";
const PROCESS: &str = "onload-nri";
/// TASK_COMM_LEN of include/linux/sched.h without the zero at its end, in bytes.
const MAX_NAME_BYTES: usize = 15;
const UNIT: &str = "onload-nri.service";
const CONFIGURED: &str = "/etc/systemd/system/onload-nri.service";
const ENABLED_UNIT: &str = "/etc/systemd/system/multi-user.target.wants/onload-nri.service";
/// The directory of plugins that runtimes launch themselves (nri, pkg/adaptation/adaptation.go).
const PLUGINS: &str = "/opt/nri/plugins";
/// The first containerd version with NRI enabled by default.
const CONTAINERD_NRI: EngineVersion = EngineVersion(2, 0, 0);
/// The first CRI-O that has.
const CRIO_NRI: EngineVersion = EngineVersion(1, 30, 0);
/// The least number of a descriptor that is not one of the three that every process is started with.
const FIRST_OWN: u32 = 3;

const EFFECT_OF_ABSENCE: &str = "pods start without the devices that their annotations request";

#[derive(Clone, Debug, PartialEq, Eq)]
enum PluginStart {
    ByUnit,
    /// By this link in the runtime's directory of plugins.
    ByRuntime(PathBuf),
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PluginState {
    Connected,
    Waits,
    Gone,
    /// Nothing runs in this tree.
    Unknown,
}

pub(crate) fn check_plugin(context: &CheckContext<'_>, engines: &[InstalledEngine]) -> Findings {
    let start = start(context)?;
    let state = plugin_state(context, &start)?;
    let is_idle = matches!(state, PluginState::Gone | PluginState::Unknown);
    if start == PluginStart::Never && is_idle && !is_announced(context, engines) {
        return Ok(Vec::new());
    }
    let finding = match (&start, state) {
        (PluginStart::Never, PluginState::Connected) => {
            let text = "a runtime uses it now, but it is not enabled at boot";
            not_enabled_finding(context, text)?
        }
        (_, PluginState::Connected) => Finding::pass("a runtime uses it"),
        (PluginStart::Never, PluginState::Gone | PluginState::Unknown) => {
            let text =
                format!("NRI is enabled, but the plugin is not started: {EFFECT_OF_ABSENCE}");
            not_enabled_finding(context, &text)?
        }
        (PluginStart::ByUnit, _) if !context.is_file(PROGRAM)? => {
            let text = format!("{PROGRAM} does not exist: {EFFECT_OF_ABSENCE}");
            Finding::fail(text, context.reinstall_remedy())
        }
        (_, state) => match find_switched_off(engines) {
            Some(engine) => {
                let name = engine.kind.name();
                let text = format!("NRI is disabled in {name}: {EFFECT_OF_ABSENCE}");
                let configure =
                    format!("onload-ctk runtime configure --runtime {name} --nri --restart");
                Finding::fail(text, Remedy::run(configure))
            }
            None => not_connected_finding(&start, state, engines),
        },
    };
    let path = match &start {
        PluginStart::ByRuntime(link) => link.as_path(),
        _ => Path::new(ENABLED_UNIT),
    };
    Ok(vec![finding.with_path(path).with_subject(PROCESS)])
}

fn not_connected_finding(
    start: &PluginStart,
    state: PluginState,
    engines: &[InstalledEngine],
) -> Finding {
    match (state, start) {
        (PluginState::Unknown, _) => Finding::pass("it is enabled at boot"),
        (PluginState::Waits, _) => Finding::fail(
            format!("it is running, but no runtime has accepted it: {EFFECT_OF_ABSENCE}"),
            Remedy::run(format!("journalctl -u {UNIT}")),
        ),
        (_, PluginStart::ByRuntime(_)) => {
            let kind = engines
                .iter()
                .map(|engine| engine.kind)
                .find(|kind| matches!(kind, EngineKind::Containerd | EngineKind::Crio));
            let name = kind.unwrap_or(EngineKind::Containerd).name();
            Finding::fail(
                format!(
                    "the runtime has not started it, or lost its connection: {EFFECT_OF_ABSENCE}"
                ),
                Remedy::run(format!("systemctl restart {name}")),
            )
        }
        _ => Finding::fail(
            format!("it is not running: {EFFECT_OF_ABSENCE}"),
            Remedy::run(format!("systemctl start {UNIT}")),
        ),
    }
}

fn not_enabled_finding(context: &CheckContext<'_>, text: &str) -> HostResult<Finding> {
    let enable = Remedy::run(format!("systemctl enable --now {UNIT}"));
    let is_masked = context.is_masked(CONFIGURED)?;
    let unmask = is_masked.then(|| Remedy::run(format!("systemctl unmask {UNIT}")));
    Ok(Finding::warn(text, enable).with_first_remedy(unmask))
}

fn start(context: &CheckContext<'_>) -> HostResult<PluginStart> {
    if !context.is_masked(CONFIGURED)? && context.host.link(Path::new(ENABLED_UNIT))?.is_some() {
        return Ok(PluginStart::ByUnit);
    }
    for name in context.host.list(Path::new(PLUGINS))?.names {
        let path = Path::new(PLUGINS).join(name);
        let target = context.host.link(&path)?;
        if target.is_some_and(|target| target.ends_with(PROCESS)) {
            return Ok(PluginStart::ByRuntime(path));
        }
    }
    Ok(PluginStart::Never)
}

/// A plugin's only socket is the one to its runtime.
fn plugin_state(context: &CheckContext<'_>, start: &PluginStart) -> HostResult<PluginState> {
    if !daemon::is_running(context)? {
        return Ok(PluginState::Unknown);
    }
    let mut state = PluginState::Gone;
    for process in find_processes(context.host, &[PROCESS, &name_as_launched(start)])? {
        if !process.cgroup.lines().any(is_of_service) {
            continue;
        }
        state = PluginState::Waits;
        let descriptors = process.directory.join("fd");
        for name in context.host.list(&descriptors)?.names {
            let is_own = name.parse::<u32>().is_ok_and(|number| number >= FIRST_OWN);
            let target = context.host.link(&descriptors.join(&name))?;
            if is_own && target.is_some_and(|target| is_socket(&target)) {
                return Ok(PluginState::Connected);
            }
        }
    }
    Ok(state)
}

fn is_socket(target: &Path) -> bool {
    target.to_string_lossy().starts_with("socket:")
}

/// The kernel's name for a process started through a link: the link's name, truncated to 15 bytes (begin_new_exec in
/// fs/exec.c).
fn name_as_launched(start: &PluginStart) -> String {
    let PluginStart::ByRuntime(link) = start else { return PROCESS.to_owned() };
    let name = link.file_name().unwrap_or_default().as_encoded_bytes();
    String::from_utf8_lossy(&name[..name.len().min(MAX_NAME_BYTES)]).into_owned()
}

/// Whether a line of a process's cgroups says that it is of a service of the host: its own, or that of the
/// runtime that launched it. A container can call its program as it likes, and is never there.
fn is_of_service(line: &str) -> bool {
    let path = line.rsplit(':').next().unwrap_or_default();
    let unit = path.strip_prefix("/system.slice/");
    unit.is_some_and(|unit| unit.ends_with(".service") && !unit.contains('/'))
}

/// Whether a file of an engine turns NRI on in so many words, and pods may ask for something.
fn is_announced(context: &CheckContext<'_>, engines: &[InstalledEngine]) -> bool {
    let allows = !context.config.annotations.allow.is_empty();
    allows && readable_settings(engines).any(|(_, settings)| settings.nri == Some(true))
}

fn find_switched_off(engines: &[InstalledEngine]) -> Option<&InstalledEngine> {
    let mut off = None;
    for (engine, settings) in readable_settings(engines) {
        match is_nri_on(engine, settings) {
            Some(false) => off = off.or(Some(engine)),
            _ => return None,
        }
    }
    off
}

/// Returns whether NRI is enabled in an engine that supports plugins, or `None` if unknown.
fn is_nri_on(engine: &InstalledEngine, settings: &EngineSettings) -> Option<bool> {
    let by_version = |first| engine.version.map(|version| version >= first);
    let default = match engine.kind {
        EngineKind::Containerd => by_version(CONTAINERD_NRI),
        _ => by_version(CRIO_NRI),
    };
    settings.nri.or(default)
}

/// Whether the plugin gives the pods of an engine what their annotations ask for. Its socket does not say which
/// runtime has it: it may be any in which NRI is not off.
pub(super) fn answers_annotations(
    context: &CheckContext<'_>,
    engine: &InstalledEngine,
) -> HostResult<bool> {
    let mut settings = readable_settings(std::slice::from_ref(engine));
    if !settings.any(|(engine, settings)| is_nri_on(engine, settings) != Some(false)) {
        return Ok(false);
    }
    let start = start(context)?;
    Ok(match plugin_state(context, &start)? {
        PluginState::Connected => true,
        PluginState::Unknown => start != PluginStart::Never,
        PluginState::Waits | PluginState::Gone => false,
    })
}

fn readable_settings(
    engines: &[InstalledEngine],
) -> impl Iterator<Item = (&InstalledEngine, &EngineSettings)> {
    engines.iter().filter_map(|engine| {
        let settings = engine.settings.as_ref().ok()?;
        let has_plugins = match engine.kind {
            EngineKind::Containerd => !settings.is_off,
            EngineKind::Crio => true,
            _ => false,
        };
        has_plugins.then_some((engine, settings))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_a_container_is_no_service_of_the_host() {
        assert!(is_of_service("0::/system.slice/containerd.service"));
        assert!(is_of_service("1:name=systemd:/system.slice/onload-nri.service"));
        for line in [
            "",
            "0::/",
            "0::/kubepods.slice/cri-containerd-01.scope",
            "0::/system.slice/docker-01.scope",
            "0::/system.slice/docker-01.scope/system.slice/onload-nri.service",
            "0::/system.slice/containerd.service/kubepods/onload-nri.service",
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/onload-nri.service",
        ] {
            assert!(!is_of_service(line), "{line}");
        }
    }
}
