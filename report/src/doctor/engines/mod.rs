//! Container engines, told by their own files and programs: whether each is new enough, reads the
//! specifications, knows the wrapper, and has read its configuration since it changed.

mod daemon;
mod default_runtime;
mod hooks;
mod installed;
mod nri;
mod restarts;
mod spec_dirs;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use onload_core::onload::RUNTIMES;
use onload_engines::installed::DOCKER_SNAP;
use onload_engines::kind::EngineKind;
use onload_engines::kubernetes::editable_files;
use onload_engines::oci_runtime::find_runtime_behind;
use onload_engines::our_runtime::RUNTIME_PATH;
use onload_engines::settings::{CONTAINERD_2, EngineSettings};
use onload_engines::template;
use onload_engines::version::{self, EngineVersion};
use onload_host::specdir::OUTPUT_DIR;
use onload_sys::text::quote_for_shell;

use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings, HostResult};
use super::distribution::Distribution;
pub use daemon::is_cdi_on_in_docker;
pub(super) use default_runtime::default_runtime;
pub(super) use hooks::check_hook_dirs;
use installed::check_each;
pub(super) use installed::{InstalledEngine, find_engines};
pub(super) use nri::check_plugin;
pub(super) use restarts::check_restarts;
pub(super) use spec_dirs::check_spec_dirs;

/// The first Kubernetes whose kubelet has.
const KUBELET_CDI: EngineVersion = EngineVersion(1, 29, 0);

pub(super) fn check_installed(context: &CheckContext<'_>, engines: &[InstalledEngine]) -> Findings {
    let findings: Vec<Finding> = engines.iter().map(installed_finding).collect();
    if findings.is_empty() {
        let finding = "no container engine is installed";
        let install = Distribution::detect(context.host)?.install("podman");
        let finding = Finding::warn(finding, Remedy::run(install));
        return Ok(vec![finding.with_path("/usr/bin")]);
    }
    Ok(findings)
}

fn installed_finding(engine: &InstalledEngine) -> Finding {
    let (name, program) = (engine.kind.name(), engine.program.display());
    let settings = match &engine.settings {
        Ok(settings) => settings,
        Err(error) => {
            let text = format!("{} cannot be parsed: {}", error.file.display(), error.reason);
            let validate = Remedy::run(engine.kind.validate());
            return Finding::fail(text, validate).with_path(&error.file).with_subject(name);
        }
    };
    let finding = if engine.program == Path::new(DOCKER_SNAP) {
        let text = format!(
            "{program} is a snap, which cannot execute {RUNTIME_PATH} of the host: containers get no devices by annotation"
        );
        Finding::warn(text, Remedy::install("docker from a package", engine.kind.release_page()))
    } else if !settings.collisions.is_empty() {
        return collision_finding(settings).with_subject(name);
    } else if let Some(service) = engine.stopped_service {
        let text = format!("{program} is installed, but {service}.service does not run");
        Finding::warn(text, Remedy::run(format!("systemctl start {service}")))
    } else {
        let unused = match engine.is_used {
            true => "",
            false => ", but neither running nor enabled: it is not inspected further",
        };
        Finding::pass(format!("{program} is installed{unused}"))
    };
    let finding = finding.with_path(&engine.program);
    settings.files.iter().fold(finding, Finding::with_path).with_subject(name)
}

/// dockerd refuses a directive that is a flag and in its file.
fn collision_finding(settings: &EngineSettings) -> Finding {
    let collisions = settings.collisions.iter().map(|(flag, key)| {
        let dashes = if flag.name.len() == 1 { "-" } else { "--" };
        format!("{key:?} and {dashes}{}={} of {}", flag.name, flag.value, flag.source)
    });
    let file = settings.first_file();
    let text = format!(
        "dockerd cannot start: {} sets a key that is also a flag; remove one of them: {}",
        file.display(),
        collisions.collect::<Vec<_>>().join(", ")
    );
    Finding::fail(text, Remedy::Edit { edit: file.to_owned() }).with_path(file)
}

pub(super) fn check_versions(_: &CheckContext<'_>, engines: &[InstalledEngine]) -> Findings {
    let findings = engines.iter().filter_map(|engine| {
        let (kind, name) = (engine.kind, engine.kind.name());
        let (oldest, feature) = kind.oldest_supported()?;
        let version_command = format!("{} --version", engine.program.display());
        let finding = match engine.version {
            None => Finding::unknown("its version is unknown", Remedy::run(version_command)),
            // A distribution keeps to a version, so its own archive may have no newer one.
            Some(version) => match kind.too_old_reason(version) {
                Some(text) => {
                    let requirement = format!("{name} {oldest} or later");
                    Finding::fail(text, Remedy::install(requirement, kind.release_page()))
                }
                None => Finding::pass(format!("{version} knows {feature}")),
            },
        };
        Some(finding.with_path(&engine.program).with_subject(name))
    });
    Ok(findings.collect())
}

pub(super) fn check_cdi(context: &CheckContext<'_>, engines: &[InstalledEngine]) -> Findings {
    let mut kinds = engines.iter().map(|engine| engine.kind);
    let has_kubelet = kinds.any(|kind| kind == EngineKind::Kubelet);
    check_each(engines, |engine, settings| {
        // A version without CDI support is reported by another check.
        let too_old = engine.version.and_then(|version| engine.kind.too_old_reason(version));
        let is_on = is_cdi_on(engine, settings).filter(|_| too_old.is_none());
        let Some(is_on) = is_on else { return Ok(None) };
        Ok(Some(match is_on {
            Some(true) => Finding::pass("CDI is on"),
            // docker includes containerd, in which only the CRI plugin for Kubernetes handles devices.
            Some(false) if engine.kind == EngineKind::Containerd && !has_kubelet => Finding::pass(
                "CDI is disabled in its plugin for Kubernetes, but no kubelet uses it",
            ),
            Some(false)
                if engine.kind == EngineKind::Docker
                    && is_cdi_on_in_docker(context.host) == Some(true) =>
            {
                Finding::warn(
                    "CDI is on until dockerd restarts, but disabled in its configuration",
                    Remedy::run("onload-ctk runtime configure --runtime docker"),
                )
            }
            Some(false) => cdi_off_finding(context, engine, settings)?,
            None => Finding::unknown(
                "whether CDI is on by default depends on its version, which is unknown",
                Remedy::run(format!("{} --version", engine.program.display())),
            ),
        }))
    })
}

/// Whether CDI is enabled: `None` if it cannot be disabled, `Some(None)` if it is unknown.
fn is_cdi_on(engine: &InstalledEngine, settings: &EngineSettings) -> Option<Option<bool>> {
    let by_version = |first: EngineVersion| engine.version.map(|version| version >= first);
    let default = match engine.kind {
        EngineKind::Crio | EngineKind::Podman | EngineKind::Nomad => return None,
        _ if settings.is_off => return None,
        EngineKind::Docker => by_version(version::DOCKER_CDI),
        EngineKind::Containerd => by_version(version::CONTAINERD_CDI),
        // Its own number says nothing of the containerd in it; the file that it writes does.
        EngineKind::K3s | EngineKind::Rke2 | EngineKind::K0s | EngineKind::MicroK8s => {
            settings.format.map(|format| format >= CONTAINERD_2)
        }
        EngineKind::Kubelet => by_version(KUBELET_CDI),
    };
    let by_format = settings.format.filter(|format| *format >= CONTAINERD_2);
    Some(settings.cdi.or(default).or(by_format.map(|_| true)))
}

fn cdi_off_finding(
    context: &CheckContext<'_>,
    engine: &InstalledEngine,
    settings: &EngineSettings,
) -> HostResult<Finding> {
    let text = "CDI is disabled: containers that request onload.dev/… do not start";
    Ok(match engine.kind {
        kind @ (EngineKind::K3s | EngineKind::Rke2) => {
            let text = format!(
                "{text}; where its template has {{{{ template \"base\" . }}}}, replace that by its \
                 contents first"
            );
            let file = settings.k3s_template();
            let section = format!("[plugins.\"{}\"]", template::plugin_name(&file));
            let switch_on = Remedy::write_under(file, section, "enable_cdi = true");
            let service = daemon::daemon_start(context, engine.kind)?;
            let usual = kind.services().first().copied().unwrap_or_default();
            let service = service.map_or(usual, |(_, service)| service);
            let restart = Distribution::detect(context.host)?.restart_remedy(service);
            Finding::fail(text, switch_on).with_remedy(restart)
        }
        EngineKind::Kubelet => {
            let file = "/var/lib/kubelet/config.yaml";
            let line = "DevicePluginCDIDevices: true";
            Finding::fail(text, Remedy::write_under(file, "featureGates:", line))
        }
        kind @ (EngineKind::K0s | EngineKind::MicroK8s) => {
            let file = editable_files(kind, settings.first_file()).swap_remove(0);
            let configure = format!(
                "onload-ctk runtime configure --runtime containerd --file {}",
                quote_for_shell(&file)
            );
            Finding::fail(text, Remedy::run(configure))
        }
        kind => {
            let name = kind.name();
            let configure = format!("onload-ctk runtime configure --runtime {name} --restart");
            Finding::fail(text, Remedy::run(configure))
        }
    })
}

pub(super) fn check_readers(context: &CheckContext<'_>, engines: &[InstalledEngine]) -> Findings {
    let files = our_spec_files(context);
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let mut findings = Vec::new();
    for engine in engines {
        let newest = engine.version.and_then(|version| engine.kind.newest_cdi(version));
        let Some(newest) = newest else { continue };
        let too_new: Vec<&str> = files
            .iter()
            .filter(|(_, version)| *version > newest)
            .map(|(file, _)| file.as_str())
            .collect();
        let text = || format!("supports CDI {newest}, which is too old for {}", too_new.join(", "));
        let finding = if too_new.is_empty() {
            Finding::pass(format!("supports CDI {newest}; all specification files are compatible"))
        } else if too_new.iter().all(|file| file.contains("-pools.")) {
            older_spec_finding(context, Finding::warn, text(), newest)?
        } else {
            older_spec_finding(context, Finding::fail, text(), newest)?
        };
        findings.push(finding.with_path(OUTPUT_DIR).with_subject(engine.kind.name()));
    }
    Ok(findings)
}

/// How specifications are written that an engine reads. Only the package's unit reads the file with its options.
fn older_spec_finding(
    context: &CheckContext<'_>,
    new_finding: fn(String, Remedy) -> Finding,
    text: String,
    newest: onload_cdi::CdiVersion,
) -> HostResult<Finding> {
    if !context.has_units()? {
        let command = format!("onload-ctk cdi generate --max-cdi-version {newest}");
        return Ok(new_finding(text, Remedy::run(command)));
    }
    let line = format!("ONLOAD_CTK_CDI_GENERATE_MAX_CDI_VERSION={newest}");
    let finding = new_finding(text, Remedy::write("/etc/default/onload-ctk", line));
    Ok(finding.with_remedy(Remedy::run("systemctl start onload-cdi.service")))
}

/// Our files with the CDI version of each.
fn our_spec_files(context: &CheckContext<'_>) -> Vec<(String, onload_cdi::CdiVersion)> {
    let devices = context.specs.devices();
    let file = devices
        .filter(|device| device.name.kind.to_string().starts_with("onload.dev/"))
        .filter_map(|device| {
            let name = device.path.file_name()?.to_str()?;
            Some((name.to_owned(), device.spec.cdi_version.parse().ok()?))
        });
    let mut files: Vec<_> = file.collect();
    files.sort();
    files.dedup();
    files
}

/// Whether engines know the wrapper, where annotations may ask for something and nothing else answers them.
pub(super) fn check_runtime(context: &CheckContext<'_>, engines: &[InstalledEngine]) -> Findings {
    let is_installed = context.is_file(RUNTIME_PATH)?;
    let named = &context.config.runtime.path;
    let behind = find_runtime_behind(context.host, named)?;
    check_each(engines, |engine, settings| {
        let finding = if settings.has_runtime && !is_installed && engine.kind != EngineKind::Nomad {
            let text =
                format!("the runtime \"onload\" is registered, but {RUNTIME_PATH} does not exist");
            Finding::fail(text, context.reinstall_remedy())
        } else if settings.has_runtime && behind.is_none() && engine.kind != EngineKind::Nomad {
            missing_runtime_finding(context, named)?
        } else if settings.has_runtime {
            Finding::pass("the runtime \"onload\" is registered")
        } else if is_wrapper_wanted(context, engine, engines)? {
            let text = "the runtime \"onload\" is not registered: annotations are ignored";
            let name = engine.kind.name();
            let configure = format!("onload-ctk runtime configure --runtime {name}");
            Finding::warn(text, Remedy::run(configure))
        } else {
            return Ok(None);
        };
        Ok(Some(finding.with_path(context.config_file)))
    })
}

/// The runtime that ours starts is missing.
fn missing_runtime_finding(context: &CheckContext<'_>, named: &Path) -> HostResult<Finding> {
    let registered =
        "the runtime \"onload\" is registered, but the OCI runtime behind it was not found at";
    if named.as_os_str().is_empty() {
        let install = Distribution::detect(context.host)?.install("runc");
        let places = RUNTIMES.join(", ");
        return Ok(Finding::fail(format!("{registered} {places}"), Remedy::run(install)));
    }
    let text = format!("{registered} {}", named.display());
    let name_it = Remedy::write_under(context.config_file, "[runtime]", "path = \"/usr/bin/runc\"");
    Ok(Finding::fail(text, name_it))
}

fn is_wrapper_wanted(
    context: &CheckContext<'_>,
    engine: &InstalledEngine,
    engines: &[InstalledEngine],
) -> HostResult<bool> {
    let allows = !context.config.annotations.allow.is_empty();
    let is_off = engine.settings.as_ref().is_ok_and(|settings| settings.is_off);
    Ok(match engine.kind {
        EngineKind::Kubelet
        | EngineKind::K3s
        | EngineKind::Rke2
        | EngineKind::K0s
        | EngineKind::MicroK8s => false,
        EngineKind::Containerd if is_off => false,
        EngineKind::Containerd | EngineKind::Crio => {
            allows && !nri::answers_annotations(context, engine)?
        }
        EngineKind::Podman => allows && !hooks::answers_annotations(context, engine)?,
        EngineKind::Docker => allows,
        // Its docker driver asks docker for it.
        EngineKind::Nomad => {
            let docker = engines
                .iter()
                .find(|engine| engine.kind == EngineKind::Docker)
                .and_then(|docker| docker.settings.as_ref().ok());
            docker.is_some_and(|docker| docker.has_runtime)
        }
    })
}

/// Whether daemons were started since their files changed: they read these once.
pub(super) fn check_restarted(context: &CheckContext<'_>, engines: &[InstalledEngine]) -> Findings {
    check_each(engines, |engine, settings| {
        let Some((start_time, service)) = daemon::daemon_start(context, engine.kind)? else {
            return Ok(None);
        };
        // k0s restarts its containerd itself when a drop-in changes.
        if engine.kind == EngineKind::K0s {
            return Ok(None);
        }
        let files = start_files(engine.kind, settings);
        let mut newest = None;
        for file in &files {
            let changed = context.host.modified(file)?;
            newest = newest.max(changed.map(|changed| (changed, file)));
        }
        let newer = newest.filter(|(changed, _)| *changed > start_time);
        let reload = match (newer, engine.kind) {
            (Some(_), EngineKind::Docker) => daemon::needs_docker_reload(context, settings),
            _ => None,
        };
        let finding = match (newer, reload) {
            (Some((changed, file)), None) if changed > SystemTime::now() => Finding::unknown(
                format!(
                    "could not determine whether it has read {}: the file's time is in the future",
                    file.display()
                ),
                Remedy::run(format!("touch {}", quote_for_shell(file))),
            ),
            (Some((_, file)), None) => Finding::warn(
                format!("{} changed after it was started", file.display()),
                Remedy::run(format!("systemctl restart {service}")),
            ),
            (Some((_, file)), Some(true)) => Finding::warn(
                format!("{} changed after it was read", file.display()),
                Remedy::run(format!("systemctl reload {service}")),
            ),
            (Some(_), Some(false)) => Finding::pass("has read the current file"),
            (None, _) => Finding::pass("has started since its files changed"),
        };
        let other_files = files.iter().filter(|file| !settings.files.contains(file));
        Ok(Some(other_files.fold(finding, Finding::with_path)))
    })
}

/// k3s and its like write their containerd's file from their templates at each start, so that file is always newer than they.
fn start_files(kind: EngineKind, settings: &EngineSettings) -> Vec<PathBuf> {
    let files = settings.files.iter().cloned();
    match kind {
        kind if kind.brings_containerd() => {
            files.skip(1).chain(editable_files(kind, settings.first_file())).collect()
        }
        _ => files.collect(),
    }
}
