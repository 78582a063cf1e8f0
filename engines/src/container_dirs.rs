//! The directories in which root's engines keep their containers, and OCI runtimes their state. An engine that cannot
//! be read has the usual directories.

use std::path::{Path, PathBuf};

use onload_cdi::deduplicate;
use onload_host::host::{EntryKind, Host, HostError};
use toml_edit::Item;

use crate::daemon::{DaemonFlags, find_processes};
use crate::installed::DOCKER_SNAP;
use crate::kind::EngineKind;
use crate::reader;
use crate::settings::{CONTAINERD_STATES, EngineSettings};
use crate::toml::{get, read};

pub const TASKS: &str = "io.containerd.runtime.v2.task";
/// The directories of bundles of podman and CRI-O, by storage driver and id (containers-storage.conf(5)). CRI-O's are
/// in `/run`; in `/var/lib` it has a copy of each configuration, from before its runtime changed it.
const RUN_ROOT: &str = "/run/containers/storage";
const GRAPH_ROOT: &str = "/var/lib/containers/storage";
/// Podman and CRI-O read the first that exists.
const STORAGE_FILES: [&str; 2] =
    ["/etc/containers/storage.conf", "/usr/share/containers/storage.conf"];
const DRIVER: &str = "-containers";
const DOCKER_DATA: &str = "/var/lib/docker";
const DOCKER_STATE: &str = "/run/docker";
/// The state directories of runc and crun, by id.
const RUNTIMES: [&str; 3] = ["/run/runc", "/run/crun", "/run/user/0/crun"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerDirs {
    /// dockerd's directory of containers, by id.
    pub docker: Vec<PathBuf>,
    /// The directories of podman and CRI-O, those in `/run` first.
    pub storage: Vec<PathBuf>,
    containerd: Vec<PathBuf>,
    docker_states: Vec<PathBuf>,
}

impl ContainerDirs {
    pub fn read(host: &Host) -> ContainerDirs {
        let names = [EngineKind::Docker, EngineKind::Containerd, EngineKind::Crio];
        let processes = find_processes(host, &names.map(EngineKind::program)).unwrap_or_default();
        let settings = |kind| {
            let flags = DaemonFlags::read_running(host, kind, &processes).ok()?;
            reader::read(host, kind, &flags).ok()?.ok()
        };
        let [docker, containerd, crio] = names.map(|kind| settings(kind).unwrap_or_default());
        let mut dockers = vec![docker];
        if matches!(host.entry(Path::new(DOCKER_SNAP)), Ok(Some(EntryKind::File { .. }))) {
            let mut settings = EngineSettings::default();
            crate::docker::read_flags(&mut settings, &DaemonFlags::of_snap());
            dockers.push(settings);
        }
        let mut dirs = ContainerDirs {
            docker: Vec::new(),
            docker_states: Vec::new(),
            containerd: CONTAINERD_STATES.map(PathBuf::from).to_vec(),
            storage: storage_dirs(host),
        };
        dirs.containerd.extend(containerd.state_dir);
        for docker in dockers {
            let data = docker.data_dir.unwrap_or_else(|| DOCKER_DATA.into());
            let state = docker.state_dir.unwrap_or_else(|| DOCKER_STATE.into());
            dirs.docker.extend(docker_dirs(host, &data));
            dirs.containerd.push(state.join("containerd/daemon"));
            dirs.docker_states.push(state);
        }
        dirs.storage.splice(0..0, crio.state_dir);
        dirs.storage.extend(crio.data_dir);
        for all in [&mut dirs.docker, &mut dirs.containerd, &mut dirs.storage] {
            *all = deduplicate(std::mem::take(all));
        }
        dirs
    }

    /// The directories of containerd's tasks, by namespace. `list` decides what becomes of a directory that cannot be read.
    pub fn list_tasks(&self, mut list: impl FnMut(&Path) -> Vec<PathBuf>) -> Vec<PathBuf> {
        self.containerd.iter().flat_map(|state| list(&state.join(TASKS))).collect()
    }

    /// The directories of podman's and CRI-O's containers, by storage driver. Below the container's id the bundle is
    /// `userdata`.
    pub fn list_storage(&self, list: impl FnMut(&Path) -> Vec<PathBuf>) -> Vec<PathBuf> {
        self.storage
            .iter()
            .map(PathBuf::as_path)
            .flat_map(list)
            .filter(|path| path.to_string_lossy().ends_with(DRIVER))
            .collect()
    }

    /// The directories of OCI runtimes, in which there is one of each container.
    pub fn list_runtimes(&self, mut list: impl FnMut(&Path) -> Vec<PathBuf>) -> Vec<PathBuf> {
        let containerd = self.containerd.iter().map(|state| state.join("runc"));
        let docker = self.docker_states.iter().map(|state| state.join("runtime-runc"));
        let namespaces = containerd.chain(docker).flat_map(|dir| list(&dir));
        RUNTIMES.map(PathBuf::from).into_iter().chain(namespaces.collect::<Vec<_>>()).collect()
    }
}

/// The `containers` directories of dockerd. With user namespaces (`userns-remap`) a directory `UID.GID` lies between (moby,
/// `daemon/daemon_unix.go`).
pub fn docker_dirs(host: &Host, data: &Path) -> Vec<PathBuf> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let mut dirs = Vec::new();
    for name in host.list(data).unwrap_or_default().names {
        if name.split_once('.').is_some_and(|(uid, gid)| is_number(uid) && is_number(gid)) {
            dirs.push(data.join(name).join("containers"));
        }
    }
    dirs.push(data.join("containers"));
    dirs
}

/// The settings of `storage.conf`, which podman and CRI-O read.
fn storage_dirs(host: &Host) -> Vec<PathBuf> {
    let mut texts = STORAGE_FILES.iter().filter_map(|file| host.text(Path::new(file)).ok()?);
    let document = texts.next().and_then(|text| read(&text).ok()).unwrap_or_default();
    [("runroot", RUN_ROOT), ("graphroot", GRAPH_ROOT)]
        .map(|(key, default)| {
            let dir = get(&document, &["storage", key]).and_then(Item::as_str);
            PathBuf::from(dir.filter(|dir| !dir.is_empty()).unwrap_or(default))
        })
        .to_vec()
}

/// The paths in a directory.
pub fn list(host: &Host, path: &Path) -> Result<Vec<PathBuf>, HostError> {
    let names = host.list(path)?.names;
    Ok(names.iter().map(|name| path.join(name)).collect())
}

#[cfg(test)]
mod tests {
    use onload_test_tree::Tree;

    use super::*;

    fn dirs_of(tree: &Tree) -> ContainerDirs {
        ContainerDirs::read(&Host::open(tree.root()).unwrap())
    }

    #[test]
    fn the_usual_directories_are_read_without_any_file() {
        let dirs = dirs_of(&Tree::new());
        assert_eq!(dirs.docker, [Path::new("/var/lib/docker/containers")]);
        assert_eq!(dirs.storage, [Path::new(RUN_ROOT), Path::new(GRAPH_ROOT)]);
        let last = dirs.containerd.last().unwrap();
        assert_eq!(last, Path::new("/run/docker/containerd/daemon"));
    }

    #[test]
    fn directories_that_files_and_flags_name_are_read() {
        let tree = Tree::new();
        tree.file("/etc/docker/daemon.json", r#"{"data-root": "/srv/d", "exec-root": "/srv/x"}"#);
        tree.file("/srv/d/100000.100000/containers/a", "");
        tree.file("/srv/d/overlay2/a", "");
        tree.file("/etc/containerd/config.toml", "version = 2\nstate = \"/srv/c\"\n");
        tree.file("/etc/containers/storage.conf", "[storage]\ngraphroot = \"/srv/p\"\n");
        tree.file("/etc/crio/crio.conf", "[crio]\nrunroot = \"/srv/r\"\n");
        let unit = "[Service]\nExecStart=crio --root /srv/k\n";
        tree.file("/usr/lib/systemd/system/crio.service", unit);
        let dirs = dirs_of(&tree);
        let docker = ["/srv/d/100000.100000/containers", "/srv/d/containers"];
        assert_eq!(dirs.docker, docker.map(Path::new));
        assert!(dirs.containerd.contains(&"/srv/c".into()));
        assert!(dirs.containerd.contains(&"/srv/x/containerd/daemon".into()));
        assert_eq!(dirs.storage, ["/srv/r", RUN_ROOT, "/srv/p", "/srv/k"].map(Path::new));
        // dockerd does not start with a directive in both.
        let unit = "[Service]\nExecStart=dockerd --config-file=/srv/e.json --data-root=/srv/e\n";
        tree.file("/etc/systemd/system/docker.service", unit);
        assert_eq!(dirs_of(&tree).docker, [Path::new("/srv/e/containers")]);
    }
}
