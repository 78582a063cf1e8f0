//! How containers do with the devices that they were given. They are found without asking an engine: by the
//! cgroups of processes, by their namespaces, and by leases. What a container, or a user's engine, says of
//! itself is shown and decides nothing.

mod cgroup;
mod container;
mod inside;
mod names;
mod process;
mod verdict;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use onload_core::lease::{Holder, Lease, Listed};
use serde::Serialize;

use crate::discover::inventory::Inventory;
use crate::discover::rdma::NetnsMode;
use crate::host::{Host, HostError};
pub use cgroup::Engine;
pub use container::Guarded;
use container::{Environment, Facts, Program};
use names::Names;
use process::Process;
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
#[derive(Clone, Debug, Default)]
struct Group {
    engine: Option<Engine>,
    user: Option<u32>,
    pids: Vec<u32>,
}

/// Looks at every container.
///
/// # Errors
/// The processes cannot be listed.
pub fn status(looked: Looked<'_>) -> Result<Status, HostError> {
    let host = looked.host;
    let (groups, mut unseen) = groups(&looked)?;
    let host_facts = host_facts(&looked);
    let own_network = process::own_namespace(host, "net");
    let mut names = Names::new(host);
    let mut containers = Vec::new();
    for (id, group) in groups {
        let (facts, missed) = facts(&looked, &mut names, id, &group, own_network.as_deref());
        unseen += missed;
        let Some(facts) = facts.filter(Facts::is_of_interest) else {
            continue;
        };
        containers.push(container(&facts, host_facts));
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
        nodes: facts.nodes.iter().map(|node| node.path.clone()).collect(),
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
fn groups(looked: &Looked<'_>) -> Result<(BTreeMap<String, Group>, usize), HostError> {
    let host = looked.host;
    let names = host.list(Path::new("/proc"))?.names;
    let pids = names.iter().filter_map(|name| name.parse::<u32>().ok());
    let own = process::own_namespace(host, "pid");
    let holders = holders(looked.leases.unwrap_or_default());
    let (mut groups, mut unseen) = (BTreeMap::<String, Group>::new(), 0);
    for pid in pids {
        let Some(table) = process::cgroup(host, pid) else {
            continue;
        };
        if let Some(named) = cgroup::named(&table) {
            let group = groups.entry(named.id).or_default();
            group.engine = Some(named.engine);
            group.user = named.user;
            group.pids.push(pid);
            continue;
        }
        match (process::namespace(host, pid, "pid"), &own) {
            (Some(namespace), Some(own)) if namespace != *own => {
                let id = holders.get(&pid).cloned();
                let id = id.unwrap_or_else(|| namespace_id(&namespace));
                groups.entry(id).or_default().pids.push(pid);
            }
            (None, _) | (_, None) => unseen += 1,
            _ => {}
        }
    }
    merge(&mut groups, host, &holders);
    Ok((groups, unseen))
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
            groups.entry(id.clone()).or_default().pids.extend(rest.pids);
        }
    }
}

/// What is known of a container: none where all its processes have ended, and how many are not ours to see.
fn facts(
    looked: &Looked<'_>,
    names: &mut Names<'_>,
    id: String,
    group: &Group,
    own_network: Option<&Path>,
) -> (Option<Facts>, usize) {
    let host = looked.host;
    let pids: BTreeSet<u32> = group.pids.iter().copied().collect();
    let read = pids.iter().filter_map(|pid| process::read(host, *pid));
    let processes: Vec<Process> = read.collect();
    let unseen = processes
        .iter()
        .filter(|process| process.open.is_none())
        .count();
    let first = processes.iter().find(|process| process.is_init);
    let Some(first) = first.or(processes.first()) else {
        return (None, 0);
    };
    let (pid, network) = (first.pid, first.network.clone());
    let root = container::root(host, pid);
    let engine = group.engine.unwrap_or(Engine::Unknown);
    let has_host_network = network.as_deref().zip(own_network);
    let has_host_network = has_host_network.map(|(network, own)| network == own);
    let leases = leases_of(looked.leases.unwrap_or_default(), &id, &pids);
    let name = match engine {
        Engine::Unknown => process::cgroup(host, pid).and_then(|table| cgroup::leaf(&table)),
        engine => names.of(engine, &id, group.user),
    };
    let mut facts = Facts {
        engine,
        name,
        id,
        user: group.user,
        nodes: root
            .as_ref()
            .map(|root| container::nodes(host, root))
            .unwrap_or_default(),
        is_seen: root.is_some(),
        has_host_network,
        interfaces: root
            .as_ref()
            .and_then(|root| container::interfaces(host, looked.inventory, root)),
        program: Program::Unknown,
        environment: Environment::Unknown,
        was_given: None,
        has_preload_file: false,
        leases,
        has_rdma_in_namespace: root.as_ref().filter(|root| root.has_sysfs()).map(|root| {
            !root
                .names(Path::new("/sys/class/infiniband"), 16)
                .is_empty()
        }),
        processes,
    };
    // What may make us wait is asked for where it decides.
    if facts.has_node("/dev/onload") && !facts.maps() {
        facts.program = container::program(host, pid, looked.guarded);
        facts.environment = container::environment(host, pid, looked.guarded);
        facts.was_given = names.preload(engine, &facts.id);
        facts.has_preload_file = container::has_preload_file(host, pid);
    }
    (Some(facts), unseen)
}

/// The leases of a container: by its name, or by one of its processes.
fn leases_of(
    leases: &[Listed],
    id: &str,
    pids: &BTreeSet<u32>,
) -> Vec<(onload_core::class::Class, String)> {
    let live = leases.iter().filter(|listed| !listed.is_over);
    let own = live.filter(|listed| {
        let lease = listed.lease.as_ref().ok();
        lease.is_some_and(|lease| match &lease.holder {
            Holder::Init { process, .. } => pids.contains(&process.pid),
            Holder::Reservation { .. } => lease.container.as_str() == id,
        })
    });
    let names = own.map(|listed| (listed.device.class, listed.device.name.as_str().to_owned()));
    let mut names: Vec<_> = names.collect();
    names.sort();
    names.dedup();
    names
}
