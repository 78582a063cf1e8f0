//! Finds the holders of Onload stacks on this host.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use onload_core::onload::STACKS;
use onload_engines::container_dirs::ContainerDirs;
use onload_host::host::{Host, HostError};
use onload_sys::text::quote_for_shell;

use super::cgroup::ContainerEngine;
use super::groups::group_processes;
use super::names::ContainerNames;

/// A holder of an Onload stack, which keeps the driver loaded.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StackUser {
    Container {
        engine: ContainerEngine,
        /// Its name or, without one, its id.
        name: String,
    },
    /// A process of the host itself.
    Process(u32),
    /// Connections of programs that have ended, which the driver lists with process 0.
    Orphans,
}

impl fmt::Display for StackUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StackUser::Container { engine, name } => write!(f, "{name} ({})", engine.as_str()),
            StackUser::Process(pid) => write!(f, "process {pid}"),
            StackUser::Orphans => f.write_str(
                "connections of ended programs, until they are closed (onload_stackdump -z)",
            ),
        }
    }
}

impl StackUser {
    pub(crate) fn stop_command(&self) -> Option<String> {
        match self {
            StackUser::Container {
                engine: engine @ (ContainerEngine::Docker | ContainerEngine::Podman),
                name,
            } => Some(format!("{} stop {}", engine.as_str(), quote_for_shell(name))),
            _ => None,
        }
    }
}

/// As the driver lists its stacks, sorted.
pub(crate) fn list_stack_users(host: &Host) -> Result<Vec<StackUser>, HostError> {
    let mut pids = pids_with_stacks(host);
    if pids.is_empty() {
        return Ok(Vec::new());
    }
    let dirs = ContainerDirs::read(host);
    let (groups, _) = group_processes(host, &dirs, &[])?;
    let mut names = ContainerNames::new(host, dirs);
    let mut users = Vec::new();
    for group in groups {
        let count = pids.len();
        pids.retain(|pid| !group.pids.contains(pid));
        if pids.len() < count {
            let config = names.read_config(group.engine, &group.id);
            // A user's home may never answer.
            let name = match group.user {
                None => names.find(group.engine, &group.id, None, config.as_ref()),
                Some(_) => None,
            };
            users.push(StackUser::Container {
                engine: group.engine,
                name: name.unwrap_or(group.id),
            });
        }
    }
    users.extend(pids.into_iter().map(|pid| match pid {
        0 => StackUser::Orphans,
        pid => StackUser::Process(pid),
    }));
    users.sort();
    Ok(users)
}

pub(super) fn pids_with_stacks(host: &Host) -> BTreeSet<u32> {
    let lines = host.lines(Path::new(STACKS), &|_| true).ok().flatten().unwrap_or_default();
    let text = String::from_utf8_lossy(&lines);
    let pids = text.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.split_whitespace().next()?.parse().ok()
    });
    pids.collect()
}
