//! How containers do with the devices that they were given. They are found without asking an engine: by the
//! cgroups of processes, by their namespaces, and by leases. What a container, or a user's engine, says of
//! itself is shown and decides nothing.

mod cgroup;
mod container;
mod inside;
mod look;
mod names;
mod process;
mod tasks;
mod verdict;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use onload_core::class::Class;
use onload_core::lease::{Holder, Lease, Listed};
use serde::Serialize;

use crate::discover::inventory::Inventory;
use crate::discover::rdma::NetnsMode;
use crate::host::{Host, HostError};
pub use cgroup::Engine;
use container::Facts;
pub use container::Guarded;
use look::Look;
use process::Budget;
use tasks::Tasks;
use verdict::{HostFacts, decide};
pub use verdict::{State, Verdict};

const VETH: &str = "/sys/module/onload/parameters/oo_accelerate_veth";

/// The containers of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Those that hold a device of ours or map the library, sorted by engine and name.
    pub containers: Vec<Container>,
    /// Processes that are not ours to see, each of which may be in one more.
    pub unseen: usize,
}

/// A container that has something of ours.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Container {
    /// Who made it.
    pub engine: Engine,
    /// Its name, if its engine's files say.
    pub name: Option<String>,
    /// Its id; of a container that no engine names, that of its lease or its pid namespace.
    pub id: String,
    /// The user whose engine made it, where that is not root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// What is so of it, the worst first.
    pub verdicts: Vec<Verdict>,
    /// The nodes of ours in it.
    pub nodes: Vec<String>,
    /// The devices that it has by lease, as CLASS=NAME.
    pub leases: Vec<String>,
    /// Its processes: number and name.
    pub processes: Vec<(u32, String)>,
}

impl Container {
    /// How it does: the worst that is so of it.
    #[must_use]
    pub fn state(&self) -> State {
        self.verdicts
            .first()
            .map_or(State::Ready, |verdict| verdict.state)
    }

    /// Whether people may mean it by that word: its name, or the beginning of its id.
    #[must_use]
    pub fn is_called(&self, word: &str) -> bool {
        self.name.as_deref() == Some(word) || self.id.starts_with(word)
    }
}

/// What a look at a host is made with.
#[derive(Clone, Copy)]
pub struct Looked<'l> {
    /// The host.
    pub host: &'l Host,
    /// What discovery found.
    pub inventory: &'l Inventory,
    /// Its leases; none where they are not ours to see.
    pub leases: Option<&'l [Listed]>,
    /// Reads files of processes, which may make their reader wait.
    pub guarded: Guarded<'l>,
}

/// The processes of one container, as they are found.
#[derive(Clone, Debug)]
struct Group {
    engine: Engine,
    id: String,
    user: Option<u32>,
    /// Whether its cgroup names it, or a lease does.
    is_named: bool,
    pids: Vec<u32>,
}

impl Group {
    /// Whether root's engines made it, or root leased a device to it: others may make as many as they like.
    fn is_of_root(&self) -> bool {
        self.is_named && self.user.is_none()
    }
}

/// Looks at every container.
///
/// # Errors
/// The processes cannot be listed.
pub fn status(looked: Looked<'_>) -> Result<Status, HostError> {
    let (groups, mut unseen) = groups(&looked)?;
    let host_facts = host_facts(&looked);
    let mut look = Look::new(looked);
    let mut of_strangers = Budget::WHOLE;
    let mut containers = Vec::new();
    for group in groups {
        let mut own = Budget::WHOLE;
        let budget = match group.is_of_root() {
            true => &mut own,
            false => &mut of_strangers,
        };
        let (facts, missed) = look.facts(group, budget);
        unseen += missed;
        if let Some(facts) = facts {
            containers.push(container(&facts, host_facts));
        }
    }
    containers.sort();
    Ok(Status { containers, unseen })
}

fn container(facts: &Facts, host: HostFacts) -> Container {
    Container {
        engine: facts.engine,
        name: facts.name.clone(),
        id: facts.id.clone(),
        user: facts.user,
        verdicts: decide(facts, host),
        nodes: facts
            .within
            .nodes
            .iter()
            .map(|node| node.path.clone())
            .collect(),
        leases: facts
            .leases
            .iter()
            .map(|(class, name)| format!("{class}={name}"))
            .collect(),
        processes: facts
            .processes
            .iter()
            .map(|process| (process.pid, process.name.clone()))
            .collect(),
    }
}

fn host_facts(looked: &Looked<'_>) -> HostFacts {
    let inventory = looked.inventory;
    let veth = looked.host.attribute(Path::new(VETH)).ok().flatten();
    HostFacts {
        has_nic: !inventory.nics.is_empty(),
        library_matches: inventory
            .onload
            .as_ref()
            .and_then(|onload| onload.library_matches),
        is_rdma_exclusive: inventory.rdma_netns_mode == Some(NetnsMode::Exclusive),
        accelerates_veth: matches!(veth.as_deref(), Some("Y" | "1")),
    }
}

/// The processes by container, and how many could not be told.
fn groups(looked: &Looked<'_>) -> Result<(Vec<Group>, usize), HostError> {
    let host = looked.host;
    let names = host.list(Path::new("/proc"))?.names;
    let pids = names.iter().filter_map(|name| name.parse::<u32>().ok());
    let own = process::own_namespace(host, "pid");
    let holders = holders(looked.leases.unwrap_or_default());
    let tasks = Tasks::of(host);
    let (mut groups, mut unseen) = (BTreeMap::<String, Group>::new(), 0);
    for pid in pids {
        let Some(table) = process::cgroup(host, pid) else {
            continue;
        };
        if let Some(named) = cgroup::named(&table, &|namespace, id| tasks.has(namespace, id)) {
            let group = groups.entry(named.path).or_insert_with(|| Group {
                engine: named.engine,
                id: named.id,
                user: named.user,
                is_named: true,
                pids: Vec::new(),
            });
            group.pids.push(pid);
            continue;
        }
        match (process::namespace(host, pid, "pid"), &own) {
            (Some(namespace), Some(own)) if namespace != *own => {
                let lease = holders.get(&pid);
                let id = lease.cloned().unwrap_or_else(|| namespace_id(&namespace));
                unnamed(&mut groups, id, lease.is_some()).pids.push(pid);
            }
            // It may have ended since it was listed.
            (None, _) | (_, None) if process::cgroup(host, pid).is_some() => unseen += 1,
            _ => {}
        }
    }
    merge(&mut groups, host, &holders);
    Ok((groups.into_values().collect(), unseen))
}

/// The group of a container that no cgroup names. No path is called as an id is.
fn unnamed(groups: &mut BTreeMap<String, Group>, id: String, is_leased: bool) -> &mut Group {
    groups.entry(id.clone()).or_insert_with(|| Group {
        engine: Engine::Unknown,
        id,
        user: None,
        is_named: is_leased,
        pids: Vec::new(),
    })
}

/// `pid:[4026532222]` as a word that people can type.
fn namespace_id(namespace: &Path) -> String {
    let digits = namespace.to_string_lossy();
    let digits = digits.chars().filter(char::is_ascii_digit);
    format!("pidns-{}", digits.collect::<String>())
}

/// The containers of leases, by their first process.
fn holders(leases: &[Listed]) -> BTreeMap<u32, String> {
    let live = leases.iter().filter(|listed| !listed.is_over);
    let live = live.filter_map(|listed| listed.lease.as_ref().ok());
    let holder = |lease: &Lease| match &lease.holder {
        Holder::Init { process, .. } => Some((process.pid, lease.container.to_string())),
        Holder::Reservation { .. } => None,
    };
    live.filter_map(holder).collect()
}

/// Puts the other processes of a pid namespace to its first one, which has the name of a lease.
fn merge(groups: &mut BTreeMap<String, Group>, host: &Host, holders: &BTreeMap<u32, String>) {
    for (pid, id) in holders {
        let Some(namespace) = process::namespace(host, *pid, "pid") else {
            continue;
        };
        if let Some(rest) = groups.remove(&namespace_id(&namespace)) {
            unnamed(groups, id.clone(), true).pids.extend(rest.pids);
        }
    }
}

/// The leases of a container: by one of its processes, or by the id of one that root's engines make.
fn leases_of(leases: &[Listed], group: &Group) -> Vec<(Class, String)> {
    let live = leases.iter().filter(|listed| !listed.is_over);
    let own = live.filter(|listed| {
        let lease = listed.lease.as_ref().ok();
        lease.is_some_and(|lease| match &lease.holder {
            Holder::Init { process, .. } => group.pids.contains(&process.pid),
            Holder::Reservation { .. } => {
                group.is_of_root() && lease.container.as_str() == group.id
            }
        })
    });
    let names = own.map(|listed| (listed.device.class, listed.device.name.as_str().to_owned()));
    let mut names: Vec<_> = names.collect();
    names.sort();
    names.dedup();
    names
}
