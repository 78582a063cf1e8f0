//! The look at one container. The data of engines and leases is read by this process. Data that the container can
//! influence is read in a child process, since its file systems and the memory of its programs may never answer.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use onload_engines::container_dirs::ContainerDirs;
use onload_host::devices;
use onload_host::host::HostError;
use onload_lease::run_dir::RUN_DIR;
use onload_sys::text::quote_for_shell;

use super::cgroup::{self, ContainerEngine};
use super::facts::{self, ContainerFacts, PreloadEnvironment, ProgramLinkage, ProgramStart};
use super::groups::{ContainerGroup, container_leases};
use super::input::{ExaminationDepth, ExaminedContainer, RunExamination, StatusInput};
use super::kernel_sockets::KernelSocketReader;
use super::names::{ContainerConfig, ContainerNames};
use super::network::AcceleratedInterfaces;
use super::process::{self, ContainerProcess, ProcessReader};
use super::rdma::{self, LibraryUse};
use super::requests::{Evidence, Grant, parse_grants, unanswered_verdict};
use super::stack;
use super::stack_users::{list_stack_users, pids_with_stacks};
use super::state::{HostFacts, Verdict};

const LIBRARY: &str = "libonload.so";

pub(super) struct ContainerReader<'l> {
    input: StatusInput<'l>,
    reader: ProcessReader<'l>,
    names: ContainerNames<'l>,
    own_network: Option<PathBuf>,
    accelerators: AcceleratedInterfaces<'l>,
    /// The processes that have made a stack of Onload. A stack may have none left, and another process its number.
    stack_pids: BTreeSet<u32>,
    kernel_sockets: KernelSocketReader<'l>,
}

impl<'l> ContainerReader<'l> {
    pub(super) fn new(input: StatusInput<'l>, host_facts: HostFacts, dirs: ContainerDirs) -> Self {
        let host = input.host;
        let onload = input.inventory.onload.as_ref();
        let library = onload
            .and_then(|onload| onload.library_dir())
            .and_then(|dir| rustix::fs::stat(host.outside_path(&dir.join(LIBRARY))).ok());
        ContainerReader {
            input,
            reader: ProcessReader::new(host, library.map(|stat| stat.st_ino)),
            names: ContainerNames::new(host, dirs),
            own_network: process::host_namespace(host, "net"),
            accelerators: AcceleratedInterfaces::new(
                &input,
                host_facts.accelerates_veth == Some(true),
            ),
            stack_pids: pids_with_stacks(host),
            kernel_sockets: KernelSocketReader::new(host),
        }
    }

    /// Returns what is known of a container; `None` if all of its processes have ended.
    pub(super) fn read_facts(
        &mut self,
        group: ContainerGroup,
        run: RunExamination<'_>,
    ) -> Option<ContainerFacts> {
        // Below their own slice users call cgroups after containers of root.
        let config = || self.names.read_config(group.engine, &group.id);
        let config = group.is_of_root().then(config).flatten();
        let known = self.known_facts(group, config.as_ref());
        let container =
            ExaminedContainer { key: &known.group.key, is_of_root: known.group.is_of_root() };
        let written = run(container, &mut |depth, answer| {
            self.examine(known.clone(), config.as_ref(), depth, answer);
        });
        // The last line may be cut.
        let found = written
            .rsplit(|byte| *byte == b'\n')
            .skip(1)
            .filter(|line| !line.is_empty())
            .find_map(|line| serde_json::from_slice::<Option<ContainerFacts>>(line).ok());
        let mut facts = match found {
            Some(facts) => ContainerFacts { leases: known.leases, ..facts? },
            None => ContainerFacts { is_stuck: true, ..known },
        };
        if !facts.is_stuck && !facts.is_relevant() {
            facts.unanswered = config.and_then(|config| self.unanswered_verdict(&facts, &config));
        }
        Some(facts)
    }

    /// Reads data of engines, leases and the kernel, which the container cannot delay.
    fn known_facts(
        &mut self,
        group: ContainerGroup,
        config: Option<&ContainerConfig>,
    ) -> ContainerFacts {
        let leases = container_leases(self.input.leases.unwrap_or_default(), &group);
        let name = match (group.engine, group.user) {
            (ContainerEngine::Unknown, _) => group
                .pids
                .iter()
                .find_map(|pid| cgroup::last_part(&process::read_cgroup(self.input.host, *pid)?)),
            (engine, None) => self.names.find(engine, &group.id, None, config),
            (_, Some(_)) => None,
        };
        let grants = config.map(|config| {
            let variables = config.process.env.iter().map(String::as_str);
            parse_grants(variables, Evidence::Configuration)
        });
        let leased = leases.iter().map(|entry| &entry.device);
        ContainerFacts {
            name,
            is_configured: config.is_some(),
            leases: leased.map(|device| (device.class, device.name.to_string())).collect(),
            grants: grants.unwrap_or_default(),
            group,
            ..ContainerFacts::default()
        }
    }

    /// Writes what is known of a container, a line for each stage: its processes, the rest, its name in a user's engine. Reads what the container can
    /// delay forever.
    fn examine(
        &mut self,
        mut facts: ContainerFacts,
        config: Option<&ContainerConfig>,
        depth: ExaminationDepth,
        answer: &mut dyn Write,
    ) {
        let mut write = |facts: Option<&ContainerFacts>| {
            // A line at once, since each write to the pipe wakes the parent.
            if let Ok(mut line) = serde_json::to_vec(&facts) {
                line.push(b'\n');
                // The parent may have gone.
                let _ = answer.write_all(&line);
            }
        };
        let pids: BTreeSet<u32> = facts.group.pids.iter().copied().collect();
        facts.processes = pids.into_iter().filter_map(|pid| self.reader.read(pid)).collect();
        // The first of its pid namespace comes first.
        facts.processes.sort_by_key(|process| !process.is_init);
        if facts.processes.is_empty() {
            return write(None);
        }
        let network = facts.processes.iter().find_map(|process| process.network.clone());
        let networks = network.zip(self.own_network.as_ref());
        facts.has_host_network = networks.map(|(container, host)| container == *host);
        if facts.has_host_network == Some(false) {
            for entry in container_leases(self.input.leases.unwrap_or_default(), &facts.group) {
                if let Some(reason) = devices::lost_reason(entry, self.input.inventory) {
                    facts.lost.push((entry.device.name.to_string(), reason));
                }
            }
        }
        facts.is_stuck = true;
        write(Some(&facts));
        if depth == ExaminationDepth::Processes {
            return;
        }
        facts.is_stuck = false;
        self.read_rest(&mut facts, config);
        write(Some(&facts));
        // The home of its user may be what never answers.
        let ContainerGroup { engine, id, user, .. } = &facts.group;
        if user.is_some() {
            facts.name = self.names.find(*engine, id, *user, None);
            write(Some(&facts));
        }
    }

    fn read_rest(&mut self, facts: &mut ContainerFacts, config: Option<&ContainerConfig>) {
        let host = self.input.host;
        // None for a process that has exited or that this user may not inspect.
        let root = facts.processes.iter().find_map(|process| facts::read_root(host, process.pid));
        facts.is_seen = root.is_some();
        facts.root = root.unwrap_or_default();
        if !facts.is_configured {
            facts.grants = self.read_grants(facts);
        }
        facts.forget_static_node();
        if !facts.is_relevant() {
            // A program's own sandbox shows the host's files.
            facts.root.nodes.clear();
            return;
        }
        if facts.has_host_network == Some(false) {
            let process = facts.processes.iter().find(|process| process.network.is_some());
            let network = process.and_then(|process| (self.input.networks)(process.pid));
            facts.interfaces = network.and_then(|network| self.accelerators.interfaces(&network));
            let leases = facts.leases.iter();
            facts.without_program = leases
                .filter(|lease| self.accelerators.without_program.contains(lease))
                .map(|(_, name)| name.clone())
                .collect();
        }
        facts.accelerated = match facts.has_host_network {
            Some(true) => self.input.inventory.attached.clone(),
            _ => facts.own_accelerated().map(|interface| interface.name.clone()).collect(),
        };
        facts.channel_commands = self.channel_commands(facts);
        if facts.has_node(rdma::NODES) {
            facts.rdma = self.read_rdma_libraries(facts);
        }
        if facts.maps_library() {
            for process in &mut facts.processes {
                let is_listed = self.stack_pids.contains(&process.pid);
                process.has_stack = stack::has_stack(process, is_listed, || {
                    facts::start_environment(host, process, config)
                });
            }
            self.kernel_sockets.read(facts, config, &self.accelerators);
        } else if facts.has_node("/dev/onload") {
            facts.start = self.start(facts, config);
        }
    }

    /// Decides what only all of them together tell.
    pub(super) fn decide_shared_causes(&self, all: &mut [ContainerFacts]) -> Result<(), HostError> {
        self.kernel_sockets.assign_logged_causes(all);
        let mut users = None;
        for facts in all.iter_mut().filter(|facts| facts.lacks_free_stack()) {
            if users.is_none() {
                users = Some(list_stack_users(self.input.host)?);
            }
            facts.stack_users = users.clone().unwrap_or_default();
        }
        Ok(())
    }

    /// The devices that a container was given whose configuration only its user has, as its environment says.
    fn read_grants(&self, facts: &ContainerFacts) -> Vec<Grant> {
        let first = facts.processes.first();
        let Some(first) = first.filter(|process| facts.group.is_named && process.open.is_some())
        else {
            return Vec::new();
        };
        let bytes = facts::read_environment(self.input.host, first.pid).unwrap_or_default();
        let variables = bytes
            .split(|byte| *byte == 0)
            .filter_map(|variable| std::str::from_utf8(variable).ok());
        parse_grants(variables, Evidence::Environment)
    }

    /// Returns the request of a container without any of our devices. Devices injected into a running container are not
    /// in its configuration, but its record exists.
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
        let bundle = self.names.bundle_dir(*engine, id)?;
        unanswered_verdict(config, &labels, runtime.as_deref(), *engine, &bundle)
    }

    /// Returns one command per interface, since ethtool accepts only one.
    fn channel_commands(&self, facts: &ContainerFacts) -> Vec<String> {
        let show = |name: &String| format!("ethtool -l {}", quote_for_shell(name));
        if facts.has_host_network == Some(true) {
            return facts.accelerated.iter().map(show).collect();
        }
        let pid = facts.processes.first().map_or(0, |process| process.pid);
        let mut commands = BTreeSet::new();
        for interface in facts.own_accelerated() {
            if interface.is_physical {
                commands.insert(format!("nsenter --target {pid} --net {}", show(&interface.name)));
            }
            let lower =
                interface.ports.iter().filter_map(|port| self.accelerators.host_ports.get(port));
            commands.extend(lower.map(show));
        }
        commands.into_iter().collect()
    }

    /// By what its programs use the RDMA devices whose nodes it has.
    fn read_rdma_libraries(&self, facts: &ContainerFacts) -> LibraryUse {
        let host = self.input.host;
        if let Some(user) = facts.processes.iter().find(|process| process.has_open(rdma::NODES)) {
            return rdma::loaded_libraries(host, user.pid);
        }
        let Some(first) = facts.processes.first() else { return LibraryUse::default() };
        let variables = facts::read_environment(host, first.pid).unwrap_or_default();
        let path = facts::find_variable(&variables, "LD_LIBRARY_PATH")
            .map(|path| String::from_utf8_lossy(path).into_owned());
        let nodes: Vec<String> = facts
            .root
            .nodes
            .iter()
            .filter(|node| node.path.starts_with(rdma::NODES))
            .map(|node| node.path.clone())
            .collect();
        let library_use = rdma::judge_libraries(host, first.pid, path.as_deref(), &nodes);
        if facts.group.user.is_some() {
            return library_use;
        }
        rdma::prefer_recorded(library_use, host, &facts.group.id, &facts.processes)
    }

    fn start(&self, facts: &ContainerFacts, config: Option<&ContainerConfig>) -> ProgramStart {
        let has_preload_file = facts
            .processes
            .iter()
            .any(|process| process::has_preload_file(self.input.host, process.pid));
        ProgramStart {
            is_preload_configured: config.map(ContainerConfig::has_preload),
            has_preload_file,
            ..self.preload_start(&facts.processes)
        }
    }

    /// Returns the program that should have the library: the first one, unless it is static and starts others (`docker
    /// run --init`).
    fn preload_start(&self, processes: &[ContainerProcess]) -> ProgramStart {
        let mut starts = processes.iter().map(|process| self.start_of(process));
        let first = starts.next().unwrap_or_default();
        if first.program != ProgramLinkage::Static {
            return first;
        }
        let Some(start) = starts.find(|start| start.program != ProgramLinkage::Static) else {
            return first;
        };
        let has_our_variables = first.has_our_variables || start.has_our_variables;
        ProgramStart { has_our_variables, ..start }
    }

    fn start_of(&self, process: &ContainerProcess) -> ProgramStart {
        let bytes = facts::read_environment(self.input.host, process.pid);
        let variables = bytes.as_deref();
        let environment =
            variables.map_or(PreloadEnvironment::Unknown, PreloadEnvironment::from_variables);
        ProgramStart {
            program: facts::read_linkage(self.input.host, process.pid),
            environment,
            is_secure: process.is_secure,
            is_runtime: facts::is_runtime(self.input.host, process.pid),
            has_our_variables: environment == PreloadEnvironment::Ours
                || variables.is_some_and(facts::has_nic_variable),
            ..ProgramStart::default()
        }
    }
}
