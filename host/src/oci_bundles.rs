//! Where engines keep the bundles of their containers, and OCI runtimes what they know of these.

use std::path::{Path, PathBuf};

use crate::host::{Host, HostError};

/// Where containerd keeps its tasks (`state` in its config.toml): its own default, k3s and RKE2, k0s, MicroK8s, and
/// dockerd where it starts one of its own.
pub const CONTAINERD: [&str; 5] = [
    "/run/containerd",
    "/run/k3s/containerd",
    "/run/k0s/containerd",
    "/var/snap/microk8s/common/run/containerd",
    "/run/docker/containerd/daemon",
];
pub const TASKS: &str = "io.containerd.runtime.v2.task";
/// Where podman and CRI-O keep bundles, by storage driver and id (containers-storage.conf(5)). CRI-O's are in `/run`;
/// in `/var/lib` it has a copy of each configuration, from before its runtime changed it.
pub const STORAGE: [&str; 2] = ["/run/containers/storage", "/var/lib/containers/storage"];
/// Where dockerd keeps what it knows of containers, by id.
pub const DOCKER: &str = "/var/lib/docker/containers";
const DRIVER: &str = "-containers";
/// Where runc and crun keep what they know of containers, by id.
pub const RUNTIMES: [&str; 3] = ["/run/runc", "/run/crun", "/run/user/0/crun"];
/// The same below the directories of engines, by namespace and id.
pub const RUNTIMES_BY_NAMESPACE: [&str; 5] = [
    "/run/containerd/runc",
    "/run/k3s/containerd/runc",
    "/run/k0s/containerd/runc",
    "/var/snap/microk8s/common/run/containerd/runc",
    "/run/docker/runtime-runc",
];

/// Those that are there, by namespace; `list` says what becomes of a directory that cannot be read.
pub fn list_containerd(mut list: impl FnMut(&Path) -> Vec<PathBuf>) -> Vec<PathBuf> {
    let states = CONTAINERD.iter();
    states.flat_map(|state| list(&Path::new(state).join(TASKS))).collect()
}

/// By storage driver. Below the container's id the bundle is `userdata`.
pub fn list_storage(mut list: impl FnMut(&Path) -> Vec<PathBuf>) -> Vec<PathBuf> {
    let stores = STORAGE.iter();
    let drivers = stores.flat_map(|storage| list(Path::new(storage)));
    let is_driver = |path: &PathBuf| path.to_string_lossy().ends_with(DRIVER);
    drivers.filter(is_driver).collect()
}

pub fn list(host: &Host, path: &Path) -> Result<Vec<PathBuf>, HostError> {
    let names = host.list(path)?.names;
    Ok(names.iter().map(|name| path.join(name)).collect())
}
