//! The look at one container. What it has mounted, and what its programs are, may make who looks wait: each such
//! thing is asked for by itself, no longer than a moment, and only where it decides.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use onload_core::run_dir::RUN_DIR;
use onload_engines::container_dirs::ContainerDirs;
use onload_host::devices;
use onload_host::host::Host;

use super::cgroup::{self, ContainerEngine};
use super::facts::{
    self, ContainerFacts, PreloadEnvironment, ProgramLinkage, ProgramStart, RootFacts,
};
use super::groups::{ContainerGroup, container_leases};
use super::input::StatusInput;
use super::kernel_sockets::KernelSocketReader;
use super::mounts::Mounts;
use super::names::{ContainerConfig, ContainerNames};
use super::network::{AcceleratedInterfaces, ContainerInterface};
use super::patience::{PATIENCE, patiently};
use super::process::{self, Budget, ContainerProcess, ProcessReader};
use super::rdma::{self, LibraryUse};
use super::requests::{Evidence, Grant, parse_grants, unanswered_verdict};
use super::stack;
use super::state::{HostFacts, Verdict};

const LIBRARY: &str = "libonload.so";
/// The stacks that programs have, and who made each (Onload, `efab_stacks_seq_show`).
const STACKS: &str = "/proc/driver/onload/stacks";

pub(super) struct ContainerReader<'l> {
    input: StatusInput<'l>,
    reader: ProcessReader<'l>,
    names: ContainerNames<'l>,
    mounts: Mounts<'l>,
    own_network: Option<PathBuf>,
    accelerators: AcceleratedInterfaces<'l>,
    /// The interfaces of a network namespace; none where they are not known. A pod has one for its containers.
    networks: BTreeMap<PathBuf, Option<Vec<ContainerInterface>>>,
    /// The processes that have made a stack of Onload. A stack may have none left, and another process its number.
    stack_pids: BTreeSet<u32>,
    kernel_sockets: KernelSocketReader<'l>,
}

impl<'l> ContainerReader<'l> {
    pub(super) fn new(input: StatusInput<'l>, host_facts: HostFacts, dirs: ContainerDirs) -> Self {
        let host = input.host;
        let onload = input.inventory.onload.as_ref();
        let library = onload.and_then(|onload| onload.library_dir());
        let library = library.map(|directory| host.outside_path(&directory.join(LIBRARY)));
        let library = library.and_then(|path| rustix::fs::stat(path).ok());
        ContainerReader {
            input,
            reader: ProcessReader::new(host, library.map(|stat| stat.st_ino)),
            names: ContainerNames::new(host, dirs),
            mounts: Mounts::of(host),
            own_network: process::host_namespace(host, "net"),
            accelerators: AcceleratedInterfaces::new(
                &input,
                host_facts.accelerates_veth == Some(true),
            ),
            networks: BTreeMap::new(),
            stack_pids: pids_with_stacks(host),
            kernel_sockets: KernelSocketReader::new(input),
        }
    }

    /// What is known of a container, and how many of its processes are not ours to see. None where all of them have
    /// ended.
    pub(super) fn read_facts(
        &mut self,
        group: ContainerGroup,
        budget: &mut Budget,
    ) -> (Option<ContainerFacts>, usize) {
        let mut processes = self.read_processes(&group, budget);
        // The first of its pid namespace comes first.
        processes.sort_by_key(|process| !process.is_init);
        let unseen = processes.iter().filter(|process| process.open.is_none()).count();
        let Some(first) = processes.first() else {
            return (None, 0);
        };
        let network = processes.iter().find_map(|process| process.network.clone());
        let has_host_network = network.zip(self.own_network.as_ref());
        let has_host_network = has_host_network.map(|(container, host)| container == *host);
        let leases = container_leases(self.input.leases.unwrap_or_default(), &group);
        let leased = leases.iter().map(|entry| &entry.device);
        let names = leased.map(|device| (device.class, device.name.to_string()));
        let lost = leases.iter().filter(|_| has_host_network == Some(false));
        let lost = lost.filter_map(|entry| {
            let reason = devices::lost_reason(entry, self.input.inventory)?;
            Some((entry.device.name.to_string(), reason))
        });
        let (root, is_stuck) = self.read_root(&processes, budget);
        // Below their own slice users call cgroups after containers of root.
        let config = || self.names.read_config(group.engine, &group.id);
        let config = group.is_of_root().then(config).flatten();
        let grants = self.read_grants(&group, config.as_ref(), first, budget);
        let name = match group.engine {
            ContainerEngine::Unknown => process::read_cgroup(self.input.host, first.pid)
                .and_then(|table| cgroup::last_part(&table)),
            engine => {
                let config = config.as_ref();
                self.names.find(engine, &group.id, group.user, config)
            }
        };
        let mut facts = ContainerFacts {
            group,
            name,
            processes,
            is_seen: root.is_some(),
            // Without patience its environment was not asked for.
            is_stuck: is_stuck || budget.waiting.is_zero(),
            is_configured: config.is_some(),
            root: root.unwrap_or_default(),
            has_host_network,
            lost: lost.collect(),
            leases: names.collect(),
            grants,
            ..ContainerFacts::default()
        };
        facts.forget_static_node();
        if !facts.is_relevant() {
            // What a sandbox of some program shows is the host's.
            facts.root.nodes.clear();
            facts.unanswered = config.and_then(|config| self.unanswered_verdict(&facts, &config));
            return (Some(facts), unseen);
        }
        if facts.has_host_network == Some(false) {
            facts.interfaces = self.read_interfaces(&facts.processes, budget);
        }
        facts.accelerated = self.accelerated_interfaces(&facts);
        if facts.has_node(rdma::NODES) {
            facts.rdma = self.read_rdma_libraries(&facts, budget);
        }
        if facts.maps_library() {
            for process in &mut facts.processes {
                process.has_stack = self.has_stack(process, config.as_ref(), budget);
            }
            self.kernel_sockets.read(&mut facts, config.as_ref(), &self.accelerators, budget);
        } else if facts.has_node("/dev/onload") {
            facts.start = self.start(&facts, config.as_ref(), budget);
        }
        (Some(facts), unseen)
    }

    /// Decides what only all of them together tell.
    pub(super) fn decide_shared_causes(&self, all: &mut [ContainerFacts]) {
        self.kernel_sockets.assign_logged_causes(all);
    }

    /// The devices that it was given: as its bundle says or, where nobody but its user has that, its environment.
    fn read_grants(
        &self,
        group: &ContainerGroup,
        config: Option<&ContainerConfig>,
        first: &ContainerProcess,
        budget: &mut Budget,
    ) -> Vec<Grant> {
        if let Some(config) = config {
            let variables = config.process.env.iter().map(String::as_str);
            return parse_grants(variables, Evidence::Configuration);
        }
        if !group.is_named || first.open.is_none() {
            return Vec::new();
        }
        let read = budget.wait(|_| facts::read_environment(&self.input, first.pid));
        let bytes = read.flatten().unwrap_or_default();
        let variables = bytes.split(|byte| *byte == 0);
        let variables = variables.filter_map(|variable| std::str::from_utf8(variable).ok());
        parse_grants(variables, Evidence::Environment)
    }

    /// Why a container that has nothing of ours asks for something. What was given to a running container is in no
    /// configuration, and its directory is there.
    fn unanswered_verdict(
        &self,
        facts: &ContainerFacts,
        config: &ContainerConfig,
    ) -> Option<Verdict> {
        let ContainerGroup { engine, id, .. } = &facts.group;
        let container_dir = Path::new(RUN_DIR).join(id);
        if !matches!(self.input.host.entry(&container_dir), Ok(None)) {
            return None;
        }
        let labels = self.names.labels(*engine, id);
        let runtime = self.names.runtime(*engine, id, config);
        let bundle = self.names.bundle_dir(*engine, id);
        unanswered_verdict(config, &labels, runtime.as_deref(), *engine, bundle.as_deref())
    }

    fn read_processes(&self, group: &ContainerGroup, budget: &mut Budget) -> Vec<ContainerProcess> {
        let pids: BTreeSet<u32> = group.pids.iter().copied().collect();
        let read = pids.iter().filter_map(|pid| self.reader.read(*pid, budget));
        read.collect()
    }

    fn has_stack(
        &self,
        process: &ContainerProcess,
        config: Option<&ContainerConfig>,
        budget: &mut Budget,
    ) -> bool {
        let is_listed = self.stack_pids.contains(&process.pid);
        let variables = || facts::start_environment(&self.input, process, config, budget);
        stack::has_stack(process, is_listed, variables)
    }

    /// The interfaces of the network that the processes are in.
    fn read_interfaces(
        &mut self,
        processes: &[ContainerProcess],
        budget: &mut Budget,
    ) -> Option<Vec<ContainerInterface>> {
        let mut found = processes.iter();
        let (pid, namespace) =
            found.find_map(|process| Some((process.pid, process.network.clone()?)))?;
        if let Some(known) = self.networks.get(&namespace) {
            return known.clone();
        }
        let network = budget.wait(|_| (self.input.networks)(pid)).flatten();
        let interfaces = network.and_then(|network| self.accelerators.interfaces(&network));
        self.networks.insert(namespace, interfaces.clone());
        interfaces
    }

    fn accelerated_interfaces(&self, facts: &ContainerFacts) -> Vec<String> {
        let accelerated = facts.interfaces.iter().flatten();
        let accelerated = accelerated.filter(|interface| interface.is_accelerated == Some(true));
        match facts.has_host_network {
            Some(true) => self.input.inventory.attached.clone(),
            _ => accelerated.map(|interface| interface.name.clone()).collect(),
        }
    }

    /// What is in the root of a container, as the first of its processes sees it that lives; and whether that does not
    /// answer.
    fn read_root(
        &mut self,
        processes: &[ContainerProcess],
        budget: &mut Budget,
    ) -> (Option<RootFacts>, bool) {
        for process in processes {
            let mounted = budget.wait(|_| self.mounts.of_process(process));
            match mounted {
                // It has ended, or it is not ours to see.
                Some(None) => continue,
                Some(Some(mounted)) if mounted.may_look => {}
                _ => return (None, true),
            }
            let pid = process.pid;
            let read = move |host: &Host| facts::read_root(host, pid);
            let result =
                budget.wait(|remaining| patiently(self.input.host, PATIENCE.min(remaining), read));
            match result.flatten() {
                Some(Some(root)) => return (Some(root), false),
                Some(None) => {}
                None => return (None, true),
            }
        }
        (None, false)
    }

    /// By what its programs use the RDMA devices whose nodes it has.
    fn read_rdma_libraries(&self, facts: &ContainerFacts, budget: &mut Budget) -> LibraryUse {
        let users = facts.processes.iter();
        let mut users = users.filter(|process| process.has_open(rdma::NODES));
        if let Some(user) = users.next() {
            return rdma::loaded_libraries(self.input.host, user.pid, budget);
        }
        let Some(first) = facts.processes.first().filter(|_| !facts.is_stuck) else {
            return LibraryUse::default();
        };
        let host = self.input.host;
        let variables = budget.wait(|_| facts::read_environment(&self.input, first.pid));
        let variables = variables.flatten().unwrap_or_default();
        let path = facts::find_variable(&variables, "LD_LIBRARY_PATH");
        let path = path.map(|path| String::from_utf8_lossy(path).into_owned());
        let nodes = facts.root.nodes.iter();
        let nodes = nodes.filter(|node| node.path.starts_with(rdma::NODES));
        let nodes: Vec<String> = nodes.map(|node| node.path.clone()).collect();
        let pid = first.pid;
        let judge = move |host: &Host| rdma::judge_libraries(host, pid, path.as_deref(), &nodes);
        let library_use = budget.wait(|remaining| patiently(host, PATIENCE.min(remaining), judge));
        let library_use = library_use.flatten().unwrap_or_default();
        if facts.group.user.is_some() {
            return library_use;
        }
        rdma::prefer_recorded(library_use, host, &facts.group.id, &facts.processes)
    }

    fn start(
        &mut self,
        facts: &ContainerFacts,
        config: Option<&ContainerConfig>,
        budget: &mut Budget,
    ) -> ProgramStart {
        let mut processes = facts.processes.iter();
        let mut has_file = |process| {
            let mounted = budget.wait(|_| self.mounts.of_process(process));
            mounted.flatten().is_some_and(|mounted| mounted.has_preload_file)
        };
        let has_preload_file = processes.any(&mut has_file);
        ProgramStart {
            is_preload_configured: config.map(ContainerConfig::has_preload),
            has_preload_file,
            ..self.preload_start(&facts.processes, budget)
        }
    }

    /// The program that was to have the library: the first one, but for a static one that starts others
    /// (`docker run --init`).
    fn preload_start(&self, processes: &[ContainerProcess], budget: &mut Budget) -> ProgramStart {
        let mut static_start: Option<ProgramStart> = None;
        for process in processes {
            let Some(start) = budget.wait(|_| self.start_of(process)) else {
                break;
            };
            let had_variables = static_start.is_some_and(|before| before.has_our_variables);
            match (start.program, static_start) {
                (ProgramLinkage::Static, None) => static_start = Some(start),
                (ProgramLinkage::Static, Some(_)) => {}
                _ => {
                    let has_our_variables = had_variables || start.has_our_variables;
                    return ProgramStart { has_our_variables, ..start };
                }
            }
        }
        static_start.unwrap_or_default()
    }

    fn start_of(&self, process: &ContainerProcess) -> ProgramStart {
        let variables = facts::read_environment(&self.input, process.pid);
        let variables = variables.as_deref();
        let environment =
            variables.map_or(PreloadEnvironment::Unknown, PreloadEnvironment::from_variables);
        ProgramStart {
            program: facts::read_linkage(&self.input, process.pid),
            environment,
            is_secure: process.is_secure,
            has_our_variables: environment == PreloadEnvironment::Ours
                || variables.is_some_and(facts::has_nic_variable),
            ..ProgramStart::default()
        }
    }
}

pub(super) fn pids_with_stacks(host: &Host) -> BTreeSet<u32> {
    let lines = host.lines(Path::new(STACKS), &|_| true).ok().flatten();
    let lines = lines.unwrap_or_default();
    let text = String::from_utf8_lossy(&lines);
    let pids = text.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.split_whitespace().next()?.parse().ok()
    });
    pids.collect()
}
