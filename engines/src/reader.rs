//! Reads what an engine's own configuration says, file by file as the engine reads them.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use onload_host::host::{EntryKind, Host, HostError};

use crate::daemon::DaemonFlags;
use crate::files::RelatedFiles;
use crate::kind::EngineKind;
use crate::settings::EngineSettings;
use crate::{containerd, crio, docker, kubernetes, nomad, podman};

const KUBELET: &str = "/var/lib/kubelet/config.yaml";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError {
    pub file: PathBuf,
    pub reason: String,
}

/// Reads the files that an engine with these flags reads. The outer error: a file cannot be read; the inner one: a file is
/// not understood.
pub fn read(
    host: &Host,
    kind: EngineKind,
    flags: &DaemonFlags,
) -> Result<Result<EngineSettings, SettingsError>, HostError> {
    let mut settings = EngineSettings::default();
    let mut queue = VecDeque::new();
    for files in config_files(host, kind, flags)? {
        queue.extend(files.paths(host)?);
    }
    while let Some(file) = queue.pop_front() {
        if !matches!(host.entry(&file)?, Some(EntryKind::File { .. })) {
            continue;
        }
        let Some(text) = host.text(&file)? else { continue };
        let imports = match read_settings(&mut settings, kind, &file, &text) {
            Ok(imports) => imports,
            Err(reason) => return Ok(Err(SettingsError { file, reason })),
        };
        // The imports of an imported file are not followed: one may import itself.
        if settings.files.is_empty() {
            for import in imports {
                queue.extend(import.paths(host)?);
            }
        }
        settings.files.push(file);
    }
    match kind {
        EngineKind::Docker => docker::read_flags(&mut settings, flags),
        EngineKind::Containerd => {
            settings.state_dir = flags.path(&["state"]).or(settings.state_dir);
        }
        EngineKind::Crio => crio::read_flags(&mut settings, flags),
        EngineKind::Kubelet => {
            let gates = flags
                .find(&["feature-gates"])
                .map(|flag| flag.value)
                .unwrap_or_default()
                .replace(',', "\n")
                .replace('=', ":");
            settings.cdi = is_kubelet_cdi_enabled(&gates).or(settings.cdi);
        }
        _ => {}
    }
    Ok(Ok(settings))
}

fn config_files(
    host: &Host,
    kind: EngineKind,
    flags: &DaemonFlags,
) -> Result<Vec<RelatedFiles>, HostError> {
    let named = |names: &[&str], usual: &str| {
        vec![RelatedFiles::File(flags.path(names).unwrap_or_else(|| usual.into()))]
    };
    Ok(match kind {
        EngineKind::Docker => named(&["config-file"], docker::FILE),
        EngineKind::Containerd => named(&["config", "c"], containerd::FILE),
        EngineKind::K3s | EngineKind::Rke2 | EngineKind::K0s | EngineKind::MicroK8s => {
            let (config_file, _) = kubernetes::find_paths(host, kind, flags)?;
            vec![RelatedFiles::File(config_file)]
        }
        EngineKind::Kubelet => named(&["config"], KUBELET),
        EngineKind::Nomad => nomad::related_files(Path::new(nomad::FILE)),
        EngineKind::Crio => crio::related_files(&crio::drop_in_file(flags), flags),
        EngineKind::Podman => podman::related_files(Path::new(podman::FILE)),
    })
}

/// Gives the files that it imports, and the reason where it is not understood.
fn read_settings(
    settings: &mut EngineSettings,
    kind: EngineKind,
    file: &Path,
    text: &str,
) -> Result<Vec<RelatedFiles>, String> {
    match kind {
        EngineKind::Docker => docker::read_settings(settings, file, text)?,
        kind if kind == EngineKind::Containerd || kind.brings_containerd() => {
            return containerd::read_settings(settings, file, text);
        }
        EngineKind::Crio => crio::read_settings(settings, file, text)?,
        EngineKind::Podman => podman::read_settings(settings, file, text)?,
        EngineKind::Kubelet => settings.cdi = is_kubelet_cdi_enabled(text),
        _ => {
            let allows = nomad::allows_runtime(file, text).map_err(|error| error.to_string())?;
            settings.has_runtime |= allows == Some(true);
        }
    }
    Ok(Vec::new())
}

/// The feature gate by which kubelet hands CDI names on (`KubeletConfiguration`, `featureGates`). It is on a separate
/// line in every file that kubeadm or an administrator writes.
fn is_kubelet_cdi_enabled(text: &str) -> Option<bool> {
    let mut values = text.lines().filter_map(|line| {
        let (key, value) = line.split_once(':')?;
        let [key, value] = [key, value].map(|text| text.trim().trim_matches(['"', '\'', ',']));
        value.parse::<bool>().ok().filter(|_| key == "DevicePluginCDIDevices")
    });
    values.next_back()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::files::{EngineFileAction, EngineFiles};
    use crate::our_runtime::HOOKS_DIR;
    use crate::setup::EngineSetup;

    fn heard(kind: EngineKind, file: &str, text: &str) -> Result<EngineSettings, String> {
        let mut settings = EngineSettings::default();
        read_settings(&mut settings, kind, Path::new(file), text)?;
        Ok(settings)
    }

    #[test]
    fn what_configure_writes_is_read() {
        for engine in Engine::ALL {
            let setup = EngineSetup::for_file(engine, engine.file().to_owned());
            let decision = setup.configure(&EngineFiles::default()).unwrap();
            let EngineFileAction::Write(text) = decision.file else {
                panic!("{engine:?}: {:?}", decision.file);
            };
            let file = engine.file().to_str().unwrap();
            let settings = heard(engine.kind(), file, &text).unwrap();
            assert!(settings.has_runtime, "{engine:?}: {text}");
            let turns_on = matches!(engine, Engine::Docker | Engine::Containerd);
            assert_eq!(settings.cdi, turns_on.then_some(true), "{engine:?}: {text}");
            let has_hooks = settings.hook_dirs.iter().any(|dir| dir == HOOKS_DIR);
            assert_eq!(has_hooks, engine == Engine::Podman, "{engine:?}: {text}");
        }
    }

    #[test]
    fn a_runtime_is_allowed_in_the_plugin_of_docker_alone() {
        let hcl = |text: &str| heard(EngineKind::Nomad, "/etc/nomad.d/a.hcl", text).unwrap();
        let list = "config { allow_runtimes = [\"runc\", \"onload\"] }";
        assert!(hcl(&format!("plugin \"docker\" {{ {list} }}")).has_runtime);
        for text in [
            format!("plugin \"podman\" {{ {list} }}"),
            format!("/* plugin \"docker\" {{ {list} }} */"),
            "plugin \"docker\" { config { allow_runtimes = [\"runc\"] } }".to_owned(),
        ] {
            assert!(!hcl(&text).has_runtime, "{text}");
        }
        let json = |text: &str| heard(EngineKind::Nomad, "/etc/nomad.d/a.json", text);
        let text = r#"{"plugin": {"docker": {"config": {"allow_runtimes": ["onload"]}}}}"#;
        assert!(json(text).unwrap().has_runtime);
        assert!(!json("{}").unwrap().has_runtime);
        assert!(json("{").is_err());
    }

    #[test]
    fn a_file_that_is_no_json_or_toml_is_not_understood() {
        for kind in
            [EngineKind::Docker, EngineKind::Containerd, EngineKind::Crio, EngineKind::Podman]
        {
            assert!(heard(kind, "/etc/file", "[[").is_err(), "{kind:?}");
            assert_eq!(heard(kind, "/etc/file", "").unwrap().cdi, None, "{kind:?}");
        }
        let twice = "[engine]\nruntime = \"a\"\nruntime = \"b\"\n";
        let why = heard(EngineKind::Podman, "/etc/file", twice).unwrap_err();
        assert_eq!(why, "duplicate key");
    }
}
