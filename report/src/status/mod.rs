//! How containers do with the devices that they were given. They are found without asking an engine: by the cgroups of
//! processes, by their namespaces, and by leases. Data from a container or a user's engine is shown but decides
//! nothing.

mod cgroup;
mod container_reader;
mod container_view;
mod facts;
mod groups;
mod input;
mod kernel_log;
mod kernel_sockets;
mod link_judge;
mod names;
mod network;
mod onload;
mod process;
mod rdma;
mod requests;
mod stack;
mod stack_users;
mod state;
mod verdict;

#[cfg(test)]
mod test_cases;
#[cfg(test)]
mod test_host;
#[cfg(test)]
mod test_hostile_containers;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use onload_core::class::Class;
use serde::Serialize;

pub use cgroup::ContainerEngine;
use container_reader::ContainerReader;
use facts::ContainerFacts;
use groups::{ContainerGroup, group_processes};
pub use input::{
    Examination, ExaminationDepth, ExaminedContainer, NetworkLookup, ProgramLookup, RunExamination,
    StatusInput,
};
use names::ContainerNames;
pub use network::read_network;
pub(crate) use onload::OTHER_BUILD_EFFECT;
pub use onload::RESTART_REMEDY;
use onload_engines::container_dirs::ContainerDirs;
use onload_host::host::{Host, HostError};
pub(crate) use process::boot_time;
use requests::parse_grants;
pub use requests::{Evidence, Grant};
pub(crate) use stack_users::{StackUser, list_stack_users};
use state::HostFacts;
pub use state::{Verdict, VerdictState};
use verdict::{decide, hidden_verdict};

pub use onload_host::netlink::netns_links::NetnsLinks;

const VETH: &str = "/sys/module/onload/parameters/oo_accelerate_veth";

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StatusReport {
    /// The containers that have an onload.dev device, map the library, or requested something and got nothing, sorted by
    /// engine and name.
    pub containers: Vec<ContainerStatus>,
    /// The others, of which nothing was found.
    #[serde(skip)]
    pub others: Vec<ContainerStatus>,
    pub unseen: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ContainerStatus {
    pub engine: ContainerEngine,
    pub name: Option<String>,
    /// Its id; of a container that no engine names, that of its lease or its pid namespace.
    pub id: String,
    /// None for root's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// The worst first.
    pub verdicts: Vec<Verdict>,
    pub nodes: Vec<String>,
    /// The paths below /dev that its processes have open, as the kernel names the devices.
    #[serde(skip)]
    pub open: BTreeSet<String>,
    /// Why it may have more than was found; `None` if it was examined sufficiently.
    #[serde(skip)]
    pub hidden: Option<Verdict>,
    /// As CLASS=NAME.
    pub leases: Vec<String>,
    pub devices: Vec<Grant>,
    pub processes: Vec<(u32, String)>,
}

impl ContainerStatus {
    pub fn state(&self) -> VerdictState {
        self.verdicts.first().map_or(VerdictState::Ready, |verdict| verdict.state)
    }

    /// Whether people may mean it by that word: its name, or the beginning of its id.
    pub fn matches_name(&self, word: &str) -> bool {
        self.name.as_deref() == Some(word) || self.id.starts_with(word)
    }
}

pub fn read_status(
    input: StatusInput<'_>,
    run: RunExamination<'_>,
) -> Result<StatusReport, HostError> {
    let dirs = ContainerDirs::read(input.host);
    let leases = input.leases.unwrap_or_default();
    let (mut groups, mut unseen) = group_processes(input.host, &dirs, leases)?;
    let host_facts = read_host_facts(&input);
    let mut reader = ContainerReader::new(input, host_facts, dirs);
    // Users may make any number of containers that take all the time that there is.
    groups.sort_by_key(|group| !group.is_of_root());
    let mut all = Vec::new();
    for group in groups {
        if let Some(facts) = reader.read_facts(group, run) {
            unseen += facts.processes.iter().filter(|process| process.open.is_none()).count();
            all.push(facts);
        }
    }
    reader.decide_shared_causes(&mut all)?;
    let (relevant, others): (Vec<ContainerFacts>, Vec<ContainerFacts>) =
        all.into_iter().partition(ContainerFacts::is_shown);
    let to_statuses = |facts: Vec<ContainerFacts>| {
        facts
            .into_iter()
            .map(|facts| container_status(facts, host_facts))
            .collect::<Vec<ContainerStatus>>()
    };
    let (mut containers, others) = (to_statuses(relevant), to_statuses(others));
    containers.sort();
    Ok(StatusReport { containers, others, unseen })
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ContainerGrants {
    /// Its name or, without one, its id.
    pub container: String,
    #[serde(skip)]
    pub engine: ContainerEngine,
    #[serde(skip)]
    pub id: String,
    /// The devices, as CLASS=NAME.
    pub devices: Vec<String>,
}

/// As their configurations say, so that those are among them that leave no node and no lease, such as huge pages. No
/// process is looked into.
pub fn list_grants(host: &Host) -> Result<Vec<ContainerGrants>, HostError> {
    let dirs = ContainerDirs::read(host);
    let (groups, _) = group_processes(host, &dirs, &[])?;
    let mut names = ContainerNames::new(host, dirs);
    let mut grantees = Vec::new();
    for group in groups.into_iter().filter(ContainerGroup::is_of_root) {
        let Some(config) = names.read_config(group.engine, &group.id) else { continue };
        let variables = config.process.env.iter().map(String::as_str);
        let devices = parse_grants(variables, Evidence::Configuration);
        if !devices.is_empty() {
            let name = names.find(group.engine, &group.id, None, Some(&config));
            grantees.push(ContainerGrants {
                container: name.unwrap_or_else(|| group.id.clone()),
                engine: group.engine,
                id: group.id,
                devices: devices.into_iter().map(|grant| grant.device).collect(),
            });
        }
    }
    grantees.sort();
    Ok(grantees)
}

/// Returns the names of root's running containers with these IDs, by ID. No process is looked into.
pub fn find_names(
    host: &Host,
    ids: &BTreeSet<&str>,
) -> Result<BTreeMap<String, String>, HostError> {
    let dirs = ContainerDirs::read(host);
    let (groups, _) = group_processes(host, &dirs, &[])?;
    let mut names = ContainerNames::new(host, dirs);
    let mut found = BTreeMap::new();
    for group in groups.into_iter().filter(ContainerGroup::is_of_root) {
        if !ids.contains(group.id.as_str()) {
            continue;
        }
        let config = names.read_config(group.engine, &group.id);
        if let Some(name) = names.find(group.engine, &group.id, None, config.as_ref()) {
            found.insert(group.id, name);
        }
    }
    Ok(found)
}

fn container_status(facts: ContainerFacts, host: HostFacts) -> ContainerStatus {
    let verdicts = decide(&facts, host);
    let hidden = hidden_verdict(&facts);
    let open = facts
        .processes
        .iter()
        .flat_map(|process| process.open.iter().flatten())
        .filter(|target| target.starts_with("/dev/"))
        .cloned()
        .collect();
    let nodes = facts.root.nodes.into_iter();
    let leases = facts.leases.iter();
    let processes = facts.processes.into_iter();
    ContainerStatus {
        engine: facts.group.engine,
        name: facts.name,
        id: facts.group.id,
        user: facts.group.user,
        verdicts,
        nodes: nodes.map(|node| node.path).collect(),
        open,
        hidden,
        leases: leases.map(|(class, name)| format!("{class}={name}")).collect(),
        devices: facts.grants,
        processes: processes.map(|process| (process.pid, process.name)).collect(),
    }
}

fn read_host_facts(input: &StatusInput<'_>) -> HostFacts {
    let inventory = input.inventory;
    let veth = input.host.attribute(Path::new(VETH)).ok().flatten();
    HostFacts {
        has_nic: match inventory.attached.is_empty() {
            true if inventory.undecided_classes().contains(&Class::Nic) => None,
            is_empty => Some(!is_empty),
        },
        library_matches: inventory.onload.as_ref().and_then(|onload| onload.library_matches),
        is_rdma_exclusive: inventory.is_rdma_exclusive(),
        accelerates_veth: veth.map(|veth| matches!(veth.as_str(), "Y" | "1")),
    }
}
