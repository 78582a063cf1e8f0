//! What an engine's own configuration says: the files are read as the engine reads them, the last one that
//! says something wins, and nothing in them is trusted to be of any form.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use onload_host::host::HostError;
use onload_sys::text::Chain;
use toml::{Table, Value};

use super::kind::Kind;
use crate::doctor::examined::Examined;

pub(super) const RUNTIME: &str = "onload";
const DOCKER: &str = "/etc/docker/daemon.json";
const CONTAINERD: &str = "/etc/containerd/config.toml";
/// What k3s makes its containerd read, written anew at each start (k3s, `pkg/agent/containerd`).
pub(super) const K3S: &str = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml";
pub(super) const CONTAINERD_2: i64 = 3;
/// containerd's plugin for NRI, in every format of its file.
const CONTAINERD_NRI: &str = "io.containerd.nri.v1.nri";
const KUBELET: &str = "/var/lib/kubelet/config.yaml";
const NOMAD: &str = "/etc/nomad.d";
const CRIO: &str = "/etc/crio/crio.conf";
const CRIO_DROP_INS: &str = "/etc/crio/crio.conf.d";
const PODMAN: [&str; 2] = [
    "/usr/share/containers/containers.conf",
    "/etc/containers/containers.conf",
];
const PODMAN_DROP_INS: &str = "/etc/containers/containers.conf.d";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) files: Vec<PathBuf>,
    /// None where no file says so.
    pub(super) cdi: Option<bool>,
    pub(super) spec_dirs: Option<SpecDirs>,
    pub(super) has_runtime: bool,
    pub(super) hook_dirs: Vec<String>,
    /// The format of containerd's file; none for others, and where there is no file.
    pub(super) format: Option<i64>,
    pub(super) is_off: bool,
    pub(super) nri: Option<bool>,
    pub(super) runtimes: Vec<Runtimes>,
    pub(super) is_default: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Runtimes {
    pub(super) file: PathBuf,
    /// The plugin as it is called there.
    pub(super) plugin: &'static str,
    /// The names that it registers; none where it leaves the list alone.
    pub(super) names: Option<Vec<String>>,
    pub(super) default: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SpecDirs {
    pub(super) dirs: Vec<String>,
    /// The file that says so, which is the one to change.
    pub(super) file: PathBuf,
    /// Its section; none where files have none.
    pub(super) section: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NotUnderstood {
    pub(super) file: PathBuf,
    pub(super) why: String,
}

/// The outer error: a file cannot be read; the inner one: a file is not understood.
pub(super) fn read(
    examined: &Examined<'_>,
    kind: Kind,
) -> Result<Result<Settings, NotUnderstood>, HostError> {
    let mut settings = Settings::default();
    let mut queue = VecDeque::from(files_of(examined, kind)?);
    while let Some(file) = queue.pop_front() {
        if !examined.is_file(&file)? {
            continue;
        }
        let Some(text) = examined.host.text(&file)? else {
            continue;
        };
        let imports = match settings.hear(kind, &file, &text) {
            Ok(imports) => imports,
            Err(why) => return Ok(Err(NotUnderstood { file, why })),
        };
        // The imports of an imported file are not followed: one may import itself.
        if settings.files.is_empty() {
            queue.extend(expand(examined, &imports)?);
        }
        settings.files.push(file);
    }
    Ok(Ok(settings))
}

fn files_of(examined: &Examined<'_>, kind: Kind) -> Result<Vec<PathBuf>, HostError> {
    let (files, drop_ins): (&[&str], _) = match kind {
        Kind::Docker => (&[DOCKER], None),
        Kind::Containerd => (&[CONTAINERD], None),
        Kind::K3s => (&[K3S], None),
        Kind::Kubelet => (&[KUBELET], None),
        Kind::Nomad => (&[], Some((NOMAD, ".hcl"))),
        Kind::Crio => (&[CRIO], Some((CRIO_DROP_INS, ""))),
        Kind::Podman => (&PODMAN, Some((PODMAN_DROP_INS, ".conf"))),
    };
    let mut files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
    if let Some((directory, ending)) = drop_ins {
        let names = examined.host.list(Path::new(directory))?.names;
        let names = names.into_iter().filter(|name| name.ends_with(ending));
        files.extend(names.map(|name| Path::new(directory).join(name)));
    }
    Ok(files)
}

/// The files behind patterns whose last part may hold a `*`.
fn expand(examined: &Examined<'_>, patterns: &[PathBuf]) -> Result<Vec<PathBuf>, HostError> {
    let mut files = Vec::new();
    for pattern in patterns {
        let name = pattern.file_name().unwrap_or_default().to_string_lossy();
        match (name.split_once('*'), pattern.parent()) {
            (Some((start, end)), Some(parent)) => {
                let names = examined.host.list(parent)?.names;
                let fits = |name: &String| {
                    name.len() >= start.len() + end.len()
                        && name.starts_with(start)
                        && name.ends_with(end)
                };
                let names = names.into_iter().filter(fits);
                files.extend(names.map(|name| parent.join(name)));
            }
            _ => files.push(pattern.clone()),
        }
    }
    Ok(files)
}

impl Settings {
    /// What k3s makes containerd's file from, whenever it starts.
    pub(super) fn k3s_template(&self) -> &'static str {
        match self.format {
            Some(CONTAINERD_2..) => "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl",
            _ => "/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl",
        }
    }

    /// Hears what a file says; gives the files that it imports, and the reason where it is not understood.
    fn hear(&mut self, kind: Kind, file: &Path, text: &str) -> Result<Vec<PathBuf>, String> {
        match kind {
            Kind::Docker => self.hear_docker(file, text)?,
            Kind::Containerd | Kind::K3s => return self.hear_containerd(file, text),
            Kind::Crio => self.hear_crio(file, text)?,
            Kind::Podman => self.hear_podman(file, text)?,
            Kind::Kubelet => self.hear_kubelet(text),
            Kind::Nomad => self.hear_nomad(text),
        }
        Ok(Vec::new())
    }

    fn hear_dirs(&mut self, dirs: Option<Vec<String>>, file: &Path, section: Option<String>) {
        let said = dirs.map(|dirs| SpecDirs {
            dirs,
            file: file.to_owned(),
            section,
        });
        self.spec_dirs = said.or(self.spec_dirs.take());
    }

    fn hear_docker(&mut self, file: &Path, text: &str) -> Result<(), String> {
        if text.trim().is_empty() {
            return Ok(());
        }
        let object: serde_json::Value =
            serde_json::from_str(text).map_err(|error| Chain(&error).to_string())?;
        self.cdi = object
            .pointer("/features/cdi")
            .and_then(serde_json::Value::as_bool);
        let dirs = object.get("cdi-spec-dirs");
        let dirs = dirs.and_then(serde_json::Value::as_array);
        let texts = |dirs: &Vec<serde_json::Value>| {
            let dirs = dirs.iter().filter_map(serde_json::Value::as_str);
            dirs.map(str::to_owned).collect()
        };
        self.hear_dirs(dirs.map(texts), file, None);
        self.has_runtime = object.pointer(&format!("/runtimes/{RUNTIME}")).is_some();
        let default = object.get("default-runtime");
        self.is_default = default.and_then(serde_json::Value::as_str) == Some(RUNTIME);
        Ok(())
    }

    /// containerd-config.toml(5); gives the files that it imports.
    fn hear_containerd(&mut self, file: &Path, text: &str) -> Result<Vec<PathBuf>, String> {
        let table = parse(text)?;
        let format = table.get("version").and_then(Value::as_integer);
        self.format = self.format.or(Some(format.unwrap_or(1)));
        let plugins = table.get("plugins");
        let disabled = texts(table.get("disabled_plugins")).unwrap_or_default();
        let is_cri =
            |id: &String| id == "cri" || id.starts_with("io.containerd.") && id.contains(".cri");
        self.is_off |= disabled.iter().any(is_cri);
        let nri = plugins.and_then(|plugins| plugins.get(CONTAINERD_NRI));
        let is_disabled = nri.and_then(|nri| nri.get("disable")?.as_bool());
        self.nri = is_disabled.map(|is_disabled| !is_disabled).or(self.nri);
        if disabled.iter().any(|id| id == CONTAINERD_NRI) {
            self.nri = Some(false);
        }
        for name in [
            "cri",
            "io.containerd.grpc.v1.cri",
            "io.containerd.cri.v1.runtime",
        ] {
            let Some(plugin) = plugins.and_then(|plugins| plugins.get(name)) else {
                continue;
            };
            let cdi = plugin.get("enable_cdi").and_then(Value::as_bool);
            self.cdi = cdi.or(self.cdi);
            let section = format!("[plugins.\"{name}\"]");
            self.hear_dirs(texts(plugin.get("cdi_spec_dirs")), file, Some(section));
            let containerd = plugin.get("containerd");
            let list = containerd.and_then(|c| c.get("runtimes")?.as_table());
            self.has_runtime |= list.is_some_and(|list| list.contains_key(RUNTIME));
            let default = containerd.and_then(|c| c.get("default_runtime_name")?.as_str());
            self.runtimes.push(Runtimes {
                file: file.to_owned(),
                plugin: name,
                names: list.map(|list| list.keys().cloned().collect()),
                default: default.map(str::to_owned),
            });
        }
        let base = Path::new(CONTAINERD).parent().unwrap_or(Path::new("/"));
        let imports = texts(table.get("imports")).unwrap_or_default();
        Ok(imports.iter().map(|import| base.join(import)).collect())
    }

    fn hear_crio(&mut self, file: &Path, text: &str) -> Result<(), String> {
        let table = parse(text)?;
        let Some(crio) = table.get("crio") else {
            return Ok(());
        };
        let nri = crio.get("nri").and_then(|nri| nri.get("enable_nri"));
        self.nri = nri.and_then(Value::as_bool).or(self.nri);
        let Some(runtime) = crio.get("runtime") else {
            return Ok(());
        };
        let dirs = texts(runtime.get("cdi_spec_dirs"));
        self.hear_dirs(dirs, file, Some("[crio.runtime]".to_owned()));
        self.hook_dirs
            .extend(texts(runtime.get("hooks_dir")).unwrap_or_default());
        self.has_runtime |= runtime
            .get("runtimes")
            .and_then(|runtimes| runtimes.get(RUNTIME))
            .is_some();
        Ok(())
    }

    fn hear_podman(&mut self, file: &Path, text: &str) -> Result<(), String> {
        let table = parse(text)?;
        let Some(engine) = table.get("engine") else {
            return Ok(());
        };
        let dirs = texts(engine.get("cdi_spec_dirs"));
        self.hear_dirs(dirs, file, Some("[engine]".to_owned()));
        self.hook_dirs
            .extend(texts(engine.get("hooks_dir")).unwrap_or_default());
        self.has_runtime |= engine
            .get("runtimes")
            .and_then(|runtimes| runtimes.get(RUNTIME))
            .is_some();
        Ok(())
    }

    /// The feature gate by which kubelet hands CDI names on (`KubeletConfiguration`, `featureGates`). It is
    /// a line of its own in every file that kubeadm or a person writes.
    fn hear_kubelet(&mut self, text: &str) {
        let mut values = text.lines().filter_map(|line| {
            let value = line.trim().strip_prefix("DevicePluginCDIDevices:")?;
            value.trim().trim_matches(['"', '\'']).parse::<bool>().ok()
        });
        self.cdi = values.next_back();
    }

    /// Whether docker's plugin may use the wrapper (`plugin "docker"`, `allow_runtimes`).
    fn hear_nomad(&mut self, text: &str) {
        let lines = text.lines().map(|line| {
            let end = line.find('#').or(line.find("//"));
            line.get(..end.unwrap_or(line.len())).unwrap_or_default()
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        let list = text
            .split_once("allow_runtimes")
            .and_then(|(_, rest)| rest.split_once('['))
            .and_then(|(_, rest)| rest.split_once(']'));
        let named = format!("\"{RUNTIME}\"");
        self.has_runtime |= list.is_some_and(|(list, _)| list.contains(&named));
    }
}

fn parse(text: &str) -> Result<Table, String> {
    // The error shows lines of the file; people have those.
    text.parse::<Table>()
        .map_err(|error| error.message().to_owned())
}

fn texts(value: Option<&Value>) -> Option<Vec<String>> {
    let values = value?.as_array()?.iter();
    Some(
        values
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
    )
}
