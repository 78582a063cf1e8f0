//! How containers do with the devices that they were given. They are found without asking an engine: by the
//! cgroups of processes, by their namespaces, and by leases. What a container, or a user's engine, says of
//! itself is shown and decides nothing.

mod cgroup;
mod container;
mod groups;
mod inside;
mod look;
mod looked;
mod names;
mod patience;
mod process;
mod tasks;
mod verdict;

#[cfg(test)]
mod test_host;
#[cfg(test)]
mod test_strangers;
#[cfg(test)]
mod tests;

use std::path::Path;

use serde::Serialize;

use crate::discover::rdma::NetnsMode;
use crate::host::HostError;
pub use cgroup::Engine;
use container::Facts;
use groups::groups;
use look::Look;
pub use looked::{Guarded, Looked};
use process::Budget;
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
