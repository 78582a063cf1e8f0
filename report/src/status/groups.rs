//! Which processes are of one container.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use onload_engines::container_dirs::{ContainerDirs, list};
use onload_host::host::{Host, HostError};
use onload_lease::{Holder, LeaseEntry};
use serde::{Deserialize, Serialize};

use super::cgroup::{self, ContainerEngine};
use super::process;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ContainerGroup {
    pub(super) engine: ContainerEngine,
    pub(super) id: String,
    pub(super) user: Option<u32>,
    /// Its identity: the path of its cgroup, or its id if it was found by its namespace.
    pub(super) key: String,
    /// Whether its cgroup names it, or a lease does. Sandboxes of programs have no own cgroup.
    pub(super) is_named: bool,
    pub(super) pids: Vec<u32>,
}

impl ContainerGroup {
    /// Whether root's engines made it, or root leased a device to it: others may make as many as they like.
    pub(super) fn is_of_root(&self) -> bool {
        self.is_named && self.user.is_none()
    }
}

/// The tasks of containerd, of which people choose the ids where no cluster does (`ctr run`).
struct ContainerdTasks<'h> {
    host: &'h Host,
    /// The directories of tasks, each named after a namespace.
    directories: Vec<PathBuf>,
}

impl<'h> ContainerdTasks<'h> {
    fn new(host: &'h Host, dirs: &ContainerDirs) -> Self {
        // Unreadable data is unknown.
        let list = |path: &Path| list(host, path).unwrap_or_default();
        ContainerdTasks { host, directories: dirs.list_tasks(list) }
    }

    /// Whether a namespace has a task of that id. Both are parts of a cgroup's path, and neither is a path itself.
    fn has_task(&self, namespace: &str, id: &str) -> bool {
        self.directories
            .iter()
            .filter(|directory| directory.file_name() == Some(OsStr::new(namespace)))
            .any(|directory| matches!(self.host.entry(&directory.join(id)), Ok(Some(_))))
    }
}

/// With how many are unknown.
pub(super) fn group_processes(
    host: &Host,
    dirs: &ContainerDirs,
    leases: &[LeaseEntry],
) -> Result<(Vec<ContainerGroup>, usize), HostError> {
    let names = host.list(Path::new("/proc"))?.names;
    let pids = names.iter().filter_map(|name| name.parse::<u32>().ok());
    let host_namespace = process::host_namespace(host, "pid");
    let holders = containers_by_pid(leases);
    // The other processes of a pid namespace are of the container whose lease its first one has.
    let mut leased = BTreeMap::new();
    for (pid, id) in &holders {
        if let Some(namespace) = process::namespace_link(host, *pid, "pid") {
            leased.entry(namespace).or_insert(id);
        }
    }
    let tasks = ContainerdTasks::new(host, dirs);
    let (mut groups, mut unseen) = (BTreeMap::<String, ContainerGroup>::new(), 0);
    for pid in pids {
        let Some(table) = process::read_cgroup(host, pid) else { continue };
        if let Some(container) =
            cgroup::parse_container(&table, &|namespace, id| tasks.has_task(namespace, id))
        {
            let group = groups.entry(container.path.clone()).or_insert_with(|| ContainerGroup {
                engine: container.engine,
                key: container.path,
                id: container.id,
                user: container.user,
                is_named: true,
                pids: Vec::new(),
            });
            group.pids.push(pid);
            continue;
        }
        match (process::namespace_link(host, pid, "pid"), &host_namespace) {
            (Some(namespace), Some(host_namespace)) if namespace != *host_namespace => {
                let lease = holders.get(&pid).or(leased.get(&namespace).copied());
                // No path of a cgroup is called as an id is.
                let id = lease.cloned().unwrap_or_else(|| namespace_id(&namespace));
                let group = groups.entry(id.clone()).or_insert_with(|| ContainerGroup {
                    engine: ContainerEngine::Unknown,
                    key: id.clone(),
                    id,
                    user: None,
                    is_named: lease.is_some(),
                    pids: Vec::new(),
                });
                group.pids.push(pid);
            }
            // It may have ended since it was listed.
            (None, _) | (_, None) if process::read_cgroup(host, pid).is_some() => unseen += 1,
            _ => {}
        }
    }
    Ok((groups.into_values().collect(), unseen))
}

/// `pid:[4026532222]` as a word that people can type.
fn namespace_id(namespace: &Path) -> String {
    let digits: String = namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    format!("pidns-{digits}")
}

fn containers_by_pid(leases: &[LeaseEntry]) -> BTreeMap<u32, String> {
    let mut containers = BTreeMap::new();
    for entry in leases.iter().filter(|entry| !entry.has_ended) {
        if let Ok(lease) = &entry.lease
            && let Holder::Init { process, .. } = &lease.holder
        {
            containers.insert(process.pid, lease.container.to_string());
        }
    }
    containers
}

/// The leases of a container: by one of its processes, or by the id of one that root's engines make.
pub(super) fn container_leases<'l>(
    leases: &'l [LeaseEntry],
    group: &ContainerGroup,
) -> Vec<&'l LeaseEntry> {
    let mut group_leases: Vec<&LeaseEntry> = Vec::new();
    for entry in leases.iter().filter(|entry| !entry.has_ended) {
        let Ok(lease) = &entry.lease else { continue };
        let is_own = match &lease.holder {
            Holder::Init { process, .. } => group.pids.contains(&process.pid),
            Holder::Reservation { .. } => {
                group.is_of_root() && lease.container.as_str() == group.id
            }
        };
        if is_own {
            group_leases.push(entry);
        }
    }
    group_leases.sort_by(|one, other| one.device.cmp(&other.device));
    group_leases.dedup_by(|one, other| one.device == other.device);
    group_leases
}
