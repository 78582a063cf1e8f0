//! The look at one container. What it has mounted, and what its programs are, may make who looks wait: each such
//! thing is asked for by itself, no longer than a moment, and only where it decides.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use onload_core::run_dir::RUN_DIR;
use onload_host::devices;
use onload_host::host::Host;

use super::asks::{Evidence, Grant, grants, unanswered};
use super::by_kernel::ByKernelReader;
use super::cgroup::{self, Engine};
use super::container::{self, Environment, Facts, Program, Start, Within};
use super::groups::{Group, leases_of};
use super::looked::Looked;
use super::mounts::Mounts;
use super::names::{Names, OciConfig};
use super::network::{Accelerators, Interface};
use super::patience::{PATIENCE, patiently};
use super::process::{self, Budget, Process, Reader};
use super::rdma::{self, Libraries};
use super::stack;
use super::state::{HostFacts, Verdict};

const LIBRARY: &str = "libonload.so";
/// The stacks that programs have, and who made each (Onload, `efab_stacks_seq_show`).
const STACKS: &str = "/proc/driver/onload/stacks";

pub(super) struct Look<'l> {
    looked: Looked<'l>,
    reader: Reader<'l>,
    names: Names<'l>,
    mounts: Mounts<'l>,
    own_network: Option<PathBuf>,
    accelerators: Accelerators<'l>,
    /// The interfaces of a network namespace; none where they are not known. A pod has one for its containers.
    networks: BTreeMap<PathBuf, Option<Vec<Interface>>>,
    /// The processes that have made a stack of Onload. A stack may have none left, and another process its number.
    with_stacks: BTreeSet<u32>,
    by_kernel: ByKernelReader<'l>,
}

impl<'l> Look<'l> {
    pub(super) fn new(looked: Looked<'l>, host_facts: HostFacts) -> Self {
        let host = looked.host;
        let onload = looked.inventory.onload.as_ref();
        let library = onload.and_then(|onload| onload.library_dir());
        let library = library.map(|directory| host.outside_path(&directory.join(LIBRARY)));
        let library = library.and_then(|path| rustix::fs::stat(path).ok());
        Look {
            looked,
            reader: Reader::new(host, library.map(|stat| stat.st_ino)),
            names: Names::new(host),
            mounts: Mounts::of(host),
            own_network: process::own_namespace(host, "net"),
            accelerators: Accelerators::of(&looked, host_facts.accelerates_veth == Some(true)),
            networks: BTreeMap::new(),
            with_stacks: with_stacks(host),
            by_kernel: ByKernelReader::new(looked),
        }
    }

    /// What is known of a container, and how many of its processes are not ours to see. None where all of them have
    /// ended.
    pub(super) fn facts(&mut self, group: Group, budget: &mut Budget) -> (Option<Facts>, usize) {
        let mut processes = self.processes(&group, budget);
        // The first of its pid namespace comes first.
        processes.sort_by_key(|process| !process.is_init);
        let unseen = processes.iter().filter(|one| one.open.is_none()).count();
        let Some(first) = processes.first() else {
            return (None, 0);
        };
        let network = processes.iter().find_map(|process| process.network.clone());
        let has_host_network = network.zip(self.own_network.as_ref());
        let has_host_network = has_host_network.map(|(its, own)| its == *own);
        let leases = leases_of(self.looked.leases.unwrap_or_default(), &group);
        let leased = leases.iter().map(|listed| &listed.device);
        let names = leased.map(|device| (device.class, device.name.to_string()));
        let lost = leases.iter().filter(|_| has_host_network == Some(false));
        let lost = lost.filter_map(|listed| {
            let why = devices::lost_reason(listed, self.looked.inventory)?;
            Some((listed.device.name.to_string(), why))
        });
        let (within, is_stuck) = self.within(&processes, budget);
        // Below their own slice users call cgroups after containers of root.
        let config = || self.names.config(group.engine, &group.id);
        let config = group.is_of_root().then(config).flatten();
        let grants = self.grants(&group, config.as_ref(), first, budget);
        let name = match group.engine {
            Engine::Unknown => {
                process::cgroup(self.looked.host, first.pid).and_then(|table| cgroup::leaf(&table))
            }
            engine => {
                let config = config.as_ref();
                self.names.of(engine, &group.id, group.user, config)
            }
        };
        let mut facts = Facts {
            group,
            name,
            processes,
            is_seen: within.is_some(),
            // Without patience its environment was not asked for.
            is_stuck: is_stuck || budget.waiting.is_zero(),
            is_configured: config.is_some(),
            within: within.unwrap_or_default(),
            has_host_network,
            lost: lost.collect(),
            leases: names.collect(),
            grants,
            ..Facts::default()
        };
        if !facts.is_of_interest() {
            // What a sandbox of some program shows is the host's.
            facts.within.nodes.clear();
            facts.unanswered = config.and_then(|config| self.unanswered(&facts, &config));
            return (Some(facts), unseen);
        }
        if facts.has_host_network == Some(false) {
            facts.interfaces = self.interfaces(&facts.processes, budget);
        }
        facts.accelerated = self.accelerated(&facts);
        if facts.has_node(rdma::NODES) {
            facts.rdma = self.rdma_libraries(&facts, budget);
        }
        if facts.maps() {
            for process in &mut facts.processes {
                process.has_stack = self.has_stack(process, config.as_ref(), budget);
            }
            self.by_kernel.read(&mut facts, config.as_ref(), &self.accelerators, budget);
        } else if facts.has_node("/dev/onload") {
            facts.start = self.start(&facts, config.as_ref(), budget);
        }
        (Some(facts), unseen)
    }

    /// Decides what only all of them together tell.
    pub(super) fn settle(&self, all: &mut [Facts]) {
        self.by_kernel.settle(all);
    }

    /// The devices that it was given: as its bundle says or, where nobody but its user has that, its environment.
    fn grants(
        &self,
        group: &Group,
        config: Option<&OciConfig>,
        first: &Process,
        budget: &mut Budget,
    ) -> Vec<Grant> {
        if let Some(config) = config {
            let variables = config.process.env.iter().map(String::as_str);
            return grants(variables, Evidence::Configuration);
        }
        if !group.is_named || first.open.is_none() {
            return Vec::new();
        }
        let read = budget.wait(|_| container::variables(&self.looked, first.pid));
        let bytes = read.flatten().unwrap_or_default();
        let variables = bytes.split(|byte| *byte == 0);
        let variables = variables.filter_map(|variable| std::str::from_utf8(variable).ok());
        grants(variables, Evidence::Environment)
    }

    /// Why a container that has nothing of ours asks for something. What was given to a running container is in no
    /// configuration, and its directory is there.
    fn unanswered(&self, facts: &Facts, config: &OciConfig) -> Option<Verdict> {
        let Group { engine, id, .. } = &facts.group;
        let given = Path::new(RUN_DIR).join(id);
        if !matches!(self.looked.host.entry(&given), Ok(None)) {
            return None;
        }
        let labels = self.names.labels(*engine, id);
        let runtime = self.names.runtime(*engine, id, config);
        unanswered(config, &labels, runtime.as_deref())
    }

    fn processes(&self, group: &Group, budget: &mut Budget) -> Vec<Process> {
        let pids: BTreeSet<u32> = group.pids.iter().copied().collect();
        let read = pids.iter().filter_map(|pid| self.reader.read(*pid, budget));
        read.collect()
    }

    fn has_stack(
        &self,
        process: &Process,
        config: Option<&OciConfig>,
        budget: &mut Budget,
    ) -> bool {
        let is_listed = self.with_stacks.contains(&process.pid);
        let variables = || container::started_with(&self.looked, process, config, budget);
        stack::has_stack(process, is_listed, variables)
    }

    /// The interfaces of the network that the processes are in.
    fn interfaces(&mut self, processes: &[Process], budget: &mut Budget) -> Option<Vec<Interface>> {
        let mut found = processes.iter();
        let (pid, namespace) = found.find_map(|one| Some((one.pid, one.network.clone()?)))?;
        if let Some(known) = self.networks.get(&namespace) {
            return known.clone();
        }
        let network = budget.wait(|_| (self.looked.networks)(pid)).flatten();
        let interfaces = network.and_then(|network| self.accelerators.interfaces(&network));
        self.networks.insert(namespace, interfaces.clone());
        interfaces
    }

    fn accelerated(&self, facts: &Facts) -> Vec<String> {
        let own = facts.interfaces.iter().flatten();
        let own = own.filter(|interface| interface.is_accelerated == Some(true));
        match facts.has_host_network {
            Some(true) => self.looked.inventory.attached.clone(),
            _ => own.map(|interface| interface.name.clone()).collect(),
        }
    }

    /// What is in the root of a container, as the first of its processes sees it that lives; and whether that does not
    /// answer.
    fn within(&mut self, processes: &[Process], budget: &mut Budget) -> (Option<Within>, bool) {
        for process in processes {
            let mounted = budget.wait(|_| self.mounts.of_process(process));
            match mounted {
                // It has ended, or it is not ours to see.
                Some(None) => continue,
                Some(Some(mounted)) if mounted.may_look => {}
                _ => return (None, true),
            }
            let pid = process.pid;
            let look = move |host: &Host| container::within(host, pid);
            let found = budget.wait(|left| patiently(self.looked.host, PATIENCE.min(left), look));
            match found.flatten() {
                Some(Some(within)) => return (Some(within), false),
                Some(None) => {}
                None => return (None, true),
            }
        }
        (None, false)
    }

    /// By what its programs use the RDMA devices whose nodes it has.
    fn rdma_libraries(&self, facts: &Facts, budget: &mut Budget) -> Libraries {
        let users = facts.processes.iter();
        let mut users = users.filter(|process| process.has_open(rdma::NODES));
        if let Some(user) = users.next() {
            return rdma::loaded(self.looked.host, user.pid, budget);
        }
        let Some(first) = facts.processes.first().filter(|_| !facts.is_stuck) else {
            return Libraries::default();
        };
        let host = self.looked.host;
        let variables = budget.wait(|_| container::variables(&self.looked, first.pid));
        let variables = variables.flatten().unwrap_or_default();
        let path = container::variable(&variables, "LD_LIBRARY_PATH");
        let path = path.map(|path| String::from_utf8_lossy(path).into_owned());
        let nodes = facts.within.nodes.iter();
        let nodes = nodes.filter(|node| node.path.starts_with(rdma::NODES));
        let nodes: Vec<String> = nodes.map(|node| node.path.clone()).collect();
        let pid = first.pid;
        let look = move |host: &Host| rdma::judged(host, pid, path.as_deref(), &nodes);
        let judged = budget.wait(|left| patiently(host, PATIENCE.min(left), look));
        let judged = judged.flatten().unwrap_or_default();
        if facts.group.user.is_some() {
            return judged;
        }
        rdma::or_recorded(judged, host, &facts.group.id, &facts.processes)
    }

    fn start(&mut self, facts: &Facts, config: Option<&OciConfig>, budget: &mut Budget) -> Start {
        let mut processes = facts.processes.iter();
        let mut has_file = |process| {
            let mounted = budget.wait(|_| self.mounts.of_process(process));
            mounted.flatten().is_some_and(|mounted| mounted.has_preload_file)
        };
        let has_preload_file = processes.any(&mut has_file);
        Start {
            was_given: config.map(OciConfig::preloads),
            has_preload_file,
            ..self.judged(&facts.processes, budget)
        }
    }

    /// The program that was to have the library: the first one, but for a static one that starts others
    /// (`docker run --init`).
    fn judged(&self, processes: &[Process], budget: &mut Budget) -> Start {
        let mut found: Option<Start> = None;
        for process in processes {
            let Some(start) = budget.wait(|_| self.start_of(process)) else {
                break;
            };
            let was_told = found.is_some_and(|before| before.is_told);
            match (start.program, found) {
                (Program::Static, None) => found = Some(start),
                (Program::Static, Some(_)) => {}
                _ => {
                    let is_told = was_told || start.is_told;
                    return Start { is_told, ..start };
                }
            }
        }
        found.unwrap_or_default()
    }

    fn start_of(&self, process: &Process) -> Start {
        let variables = container::variables(&self.looked, process.pid);
        let variables = variables.as_deref();
        let environment = variables.map_or(Environment::Unknown, Environment::of);
        Start {
            program: container::program(&self.looked, process.pid),
            environment,
            is_secure: process.is_secure,
            is_told: environment == Environment::Ours || variables.is_some_and(container::name_nic),
            ..Start::default()
        }
    }
}

fn with_stacks(host: &Host) -> BTreeSet<u32> {
    let lines = host.lines(Path::new(STACKS), &|_| true).ok().flatten();
    let lines = lines.unwrap_or_default();
    let text = String::from_utf8_lossy(&lines);
    let pids = text.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.split_whitespace().next()?.parse().ok()
    });
    pids.collect()
}
