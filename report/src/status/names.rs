//! Names of containers, from what their engines keep on disk. It is read and not trusted: a name is shown, and
//! decides nothing. Below the home of a user every file is the user's own, so no link in it is followed.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use onload_core::pod::pod_keys;
use onload_engines::container_dirs::{ContainerDirs, list};
use onload_host::host::Host;
use onload_sys::fs::open::open_in_root;
use rustix::fs::{FileType, OFlags, ResolveFlags};
use serde::Deserialize;
use serde_json::Value;

use super::cgroup::{ContainerEngine, is_id};

/// Bytes of a file that are read; podman has all containers of a user in one.
const MAX_BYTES: u64 = 16 * 1024 * 1024;
/// Characters of a name that are shown; engines allow fewer.
const NAME: usize = 128;
/// podman's files with containers, by storage driver. Since 4.4 those of `podman run --rm` are in the second of a
/// directory (containers/storage, `newContainerStore`).
const PODMAN_DRIVERS: [&str; 4] = ["overlay", "vfs", "btrfs", "zfs"];
const PODMAN_FILES: [&str; 2] = ["containers.json", "volatile-containers.json"];
const USER_STORAGE: &str = ".local/share/containers/storage";

pub(super) struct ContainerNames<'h> {
    host: &'h Host,
    dirs: ContainerDirs,
    podman: HashMap<Option<u32>, HashMap<String, String>>,
}

#[derive(Deserialize)]
struct StoredContainer {
    id: String,
    #[serde(default)]
    names: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct ContainerConfig {
    #[serde(default)]
    pub(super) annotations: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) process: OciProcess,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct OciProcess {
    #[serde(default)]
    pub(super) env: Vec<String>,
}

impl<'h> ContainerNames<'h> {
    pub(super) fn new(host: &'h Host, dirs: ContainerDirs) -> Self {
        ContainerNames { host, dirs, podman: HashMap::new() }
    }

    /// None where its engine's files do not say, or are not ours to read. With a user it reads that user's home, which may never
    /// answer.
    pub(super) fn find(
        &mut self,
        engine: ContainerEngine,
        id: &str,
        user: Option<u32>,
        config: Option<&ContainerConfig>,
    ) -> Option<String> {
        let name = match engine {
            ContainerEngine::Docker if user.is_none() => {
                let config = self.read_docker(id, "config.v2.json")?;
                let name = config.get("Name")?.as_str()?;
                name.trim_start_matches('/').to_owned()
            }
            ContainerEngine::Podman => {
                let (host, dirs) = (self.host, &self.dirs);
                let known = self
                    .podman
                    .entry(user)
                    .or_insert_with(|| read_podman_names(host, dirs, user).unwrap_or_default());
                known.get(id)?.clone()
            }
            ContainerEngine::Containerd => pod_name(config?, id)?,
            ContainerEngine::Crio => {
                let config = config?;
                let name = config.annotations.get("io.kubernetes.cri-o.Name");
                pod_name(config, id).or_else(|| name.cloned())?
            }
            ContainerEngine::Docker | ContainerEngine::Unknown => return None,
        };
        let name: String = name.chars().take(NAME).collect();
        (!name.is_empty()).then_some(name)
    }

    pub(super) fn labels(&self, engine: ContainerEngine, id: &str) -> BTreeMap<String, String> {
        let config = || self.read_docker(id, "config.v2.json");
        let config = (engine == ContainerEngine::Docker).then(config).flatten();
        let labels = config
            .and_then(|mut config| Some(config.pointer_mut("/Config/Labels")?.take()))
            .and_then(|labels| serde_json::from_value(labels).ok());
        labels.unwrap_or_default()
    }

    /// None where that is not known.
    pub(super) fn runtime(
        &self,
        engine: ContainerEngine,
        id: &str,
        config: &ContainerConfig,
    ) -> Option<String> {
        let runtime = match engine {
            ContainerEngine::Docker => {
                let config = self.read_docker(id, "hostconfig.json")?;
                let runtime = config.get("Runtime").and_then(Value::as_str);
                runtime.unwrap_or_default().to_owned()
            }
            // The shim writes its path there (containerd, `WriteRuntime`); without one it is its own default.
            ContainerEngine::Containerd => {
                let path = self
                    .bundle_dirs(engine, id)
                    .iter()
                    .find_map(|bundle| self.host.text(&bundle.join("runtime")).ok()?)?;
                let name = Path::new(path.trim()).file_name().unwrap_or_default();
                name.to_string_lossy().into_owned()
            }
            // For a pod's other containers, CRI-O has this only in the sandbox (`setupSandboxAnnotations`).
            ContainerEngine::Crio => {
                let sandbox = config.annotations.get("io.kubernetes.cri-o.SandboxID");
                self.read_config(engine, sandbox.filter(|id| is_id(id))?)?
                    .annotations
                    .get("io.kubernetes.cri-o.RuntimeHandler")
                    .cloned()
                    .unwrap_or_default()
            }
            ContainerEngine::Podman | ContainerEngine::Unknown => return None,
        };
        let runtime: String = runtime.chars().take(NAME).collect();
        Some(if runtime.is_empty() { "the engine's default".to_owned() } else { runtime })
    }

    fn bundle_dirs(&self, engine: ContainerEngine, id: &str) -> Vec<PathBuf> {
        // Unreadable data is unknown.
        let list = |path: &Path| list(self.host, path).unwrap_or_default();
        match engine {
            ContainerEngine::Docker | ContainerEngine::Containerd => {
                self.dirs.list_tasks(list).into_iter().map(|namespace| namespace.join(id)).collect()
            }
            ContainerEngine::Podman | ContainerEngine::Crio => self
                .dirs
                .list_storage(list)
                .into_iter()
                .map(|driver| driver.join(id).join("userdata"))
                .collect(),
            ContainerEngine::Unknown => Vec::new(),
        }
    }

    /// The directory that its runtime was given.
    pub(super) fn bundle_dir(&self, engine: ContainerEngine, id: &str) -> Option<PathBuf> {
        self.bundle_dirs(engine, id)
            .into_iter()
            .find(|bundle| matches!(self.host.entry(&bundle.join("config.json")), Ok(Some(_))))
    }

    pub(super) fn read_config(&self, engine: ContainerEngine, id: &str) -> Option<ContainerConfig> {
        self.bundle_dirs(engine, id)
            .iter()
            .find_map(|bundle| self.read_json(&bundle.join("config.json")))
    }

    fn read_docker(&self, id: &str, file: &str) -> Option<Value> {
        self.dirs.docker.iter().find_map(|dir| self.read_json(&dir.join(id).join(file)))
    }

    fn read_json<T: for<'d> Deserialize<'d>>(&self, path: &Path) -> Option<T> {
        let bytes = self.host.bytes(path, MAX_BYTES).ok()??;
        serde_json::from_slice(&bytes).ok()
    }
}

impl ContainerConfig {
    /// Whether it has the library in LD_PRELOAD. It tells an environment that was cleared from one that never had it.
    pub(super) fn has_preload(&self) -> bool {
        self.process
            .env
            .iter()
            .filter_map(|variable| variable.strip_prefix("LD_PRELOAD="))
            .any(|value| value.contains("libonload.so"))
    }
}

/// Pod and container, as engines of Kubernetes annotate them; nerdctl's own name.
fn pod_name(config: &ContainerConfig, id: &str) -> Option<String> {
    let annotations = &config.annotations;
    let keys = pod_keys(annotations, id);
    match (annotations.get(keys.pod), annotations.get(keys.container)) {
        (Some(pod), Some(container)) => Some(format!("{pod}/{container}")),
        (Some(pod), None) => Some(pod.clone()),
        (None, _) => annotations.get("nerdctl/name").cloned(),
    }
}

fn read_podman_names(
    host: &Host,
    dirs: &ContainerDirs,
    user: Option<u32>,
) -> Option<HashMap<String, String>> {
    let files = PODMAN_DRIVERS
        .iter()
        .flat_map(|driver| PODMAN_FILES.map(|file| format!("{driver}-containers/{file}")));
    let lists: Vec<Vec<u8>> = match user {
        None => {
            let files: Vec<String> = files.collect();
            let paths =
                dirs.storage.iter().flat_map(|dir| files.iter().map(move |file| dir.join(file)));
            paths.filter_map(|path| host.bytes(&path, MAX_BYTES).ok()?).collect()
        }
        Some(user) => {
            let home = host.resolve(&home_dir(host, user)?).ok()??;
            files.filter_map(|file| read_in_home(host, &home, &file)).collect()
        }
    };
    let names = lists
        .iter()
        .filter_map(|bytes| serde_json::from_slice::<Vec<StoredContainer>>(bytes).ok())
        .flatten()
        .filter_map(|stored| Some((stored.id, stored.names.into_iter().next()?)))
        .collect();
    Some(names)
}

fn home_dir(host: &Host, user: u32) -> Option<PathBuf> {
    let text = host.text(Path::new("/etc/passwd")).ok()??;
    text.lines().find_map(|line| match line.split(':').collect::<Vec<_>>()[..] {
        [_, _, id, _, _, home, ..] if id.parse() == Ok(user) => Some(PathBuf::from(home)),
        _ => None,
    })
}

fn read_in_home(host: &Host, home: &Path, list: &str) -> Option<Vec<u8>> {
    let directory = host.directory(home).ok()??;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let path = Path::new(USER_STORAGE).join(list);
    let descriptor = open_in_root(&directory, &path, flags, ResolveFlags::NO_SYMLINKS).ok()?;
    let stat = rustix::fs::fstat(&descriptor).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let mut bytes = Vec::new();
    let file = is_file.then(|| File::from(descriptor))?;
    file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}
