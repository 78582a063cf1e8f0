//! The programs of a container that use the kernel's sockets although others, or they themselves, have the library; and
//! why, as far as that can be found out.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::path::Path;

use onload_host::host::Host;

use super::facts::{
    ContainerFacts, KernelSocketCause, KernelSocketProgram, find_variable, start_environment,
};
use super::input::StatusInput;
use super::kernel_log::{StackError, StackFailure, read_failures};
use super::link_judge::PortId;
use super::names::ContainerConfig;
use super::network::{AcceleratedInterfaces, ContainerInterface};
use super::patience::{PATIENCE, patiently};
use super::process::{
    Budget, ContainerProcess, LibraryMapping, parse_column, proc_dir, socket_inode,
};
use super::stack::logs_by_driver;

const MOST: usize = 8;
const SHOWN: usize = 64;
const TABLES: [&str; 4] = ["tcp", "tcp6", "udp", "udp6"];
/// The column of a socket's inode (proc_pid_net(5)).
const INODE: usize = 9;

pub(super) struct KernelSocketReader<'l> {
    looked: StatusInput<'l>,
    failures: OnceCell<Vec<StackFailure>>,
}

impl<'l> KernelSocketReader<'l> {
    pub(super) fn new(looked: StatusInput<'l>) -> Self {
        KernelSocketReader { looked, failures: OnceCell::new() }
    }

    pub(super) fn read(
        &self,
        facts: &mut ContainerFacts,
        config: Option<&ContainerConfig>,
        accelerators: &AcceleratedInterfaces<'_>,
        budget: &mut Budget,
    ) {
        self.find_sockets(&mut facts.processes, budget);
        let interfaces = match facts.has_host_network {
            Some(true) => Some(&accelerators.hosts),
            _ => facts.interfaces.as_ref(),
        };
        let interfaces = interfaces.map_or(&[][..], Vec::as_slice);
        let network = (interfaces, facts.has_host_network == Some(false));
        let found = facts.processes.iter();
        let found = found.filter(|one| one.has_kernel_socket == Some(true) && !one.has_stack);
        let mut by_kernel = Vec::new();
        for (at, process) in found.enumerate() {
            let has_library = process.preload.is_some_and(|preload| preload != LibraryMapping::No);
            let is_asked = has_library && at < MOST;
            let (cause, logged) = if is_asked {
                let variables = start_environment(&self.looked, process, config, budget);
                self.find_cause(process, &variables, network)
            } else {
                (KernelSocketCause::Unknown, None)
            };
            by_kernel.push(KernelSocketProgram {
                pid: process.pid,
                name: process.name.clone(),
                has_library,
                cause,
                logged,
            });
        }
        facts.by_kernel = by_kernel;
    }

    fn find_sockets(&self, processes: &mut [ContainerProcess], budget: &mut Budget) {
        let networks: BTreeSet<_> = processes.iter().map(|one| one.network.clone()).collect();
        for network in networks {
            let own = processes.iter_mut();
            let mut own: Vec<_> = own
                .filter(|one| one.network == network && !one.has_stack && !one.sockets.is_empty())
                .collect();
            let Some(pid) = own.first().map(|process| process.pid) else {
                continue;
            };
            let sockets = own.iter().flat_map(|process| process.sockets.iter().copied());
            let sockets: BTreeSet<u64> = sockets.collect();
            let look = move |host: &Host| kernel_sockets(host, pid, &sockets);
            let found = budget.wait(|left| patiently(self.looked.host, PATIENCE.min(left), look));
            let found = found.flatten().flatten();
            for process in &mut own {
                let has =
                    |found: &BTreeSet<u64>| process.sockets.iter().any(|one| found.contains(one));
                process.has_kernel_socket = found.as_ref().map(has);
            }
        }
    }

    /// Where a line of the kernel's log can be of no other program without a stack, it says why that one has none: programs of
    /// several containers may be called the same, and have the same number in each.
    pub(super) fn assign_logged_causes(&self, all: &mut [ContainerFacts]) {
        let programs = all.iter().flat_map(|facts| &facts.processes);
        let programs =
            programs.filter(|one| one.preload != Some(LibraryMapping::No) && !one.has_stack);
        let programs: Vec<_> = programs.map(|one| (one, self.program_file(one))).collect();
        let is_of_one = |failure: &StackFailure| {
            let mut all = programs.iter();
            let mut next = || all.find(|(one, file)| failure.matches_process(one, file.as_deref()));
            next().and_then(|_| next()).is_none()
        };
        let lines = all.iter().flat_map(|facts| &facts.by_kernel);
        let lines = lines.filter_map(|one| Some(one.logged.as_ref()?.0));
        let mut lines: BTreeSet<usize> = lines.collect();
        lines.retain(|line| self.failures().get(*line).is_some_and(is_of_one));
        for program in all.iter_mut().flat_map(|facts| &mut facts.by_kernel) {
            if let Some((line, cause)) = program.logged.take()
                && lines.contains(&line)
            {
                program.cause = cause;
            }
        }
    }

    fn failures(&self) -> &[StackFailure] {
        self.failures.get_or_init(|| read_failures(self.looked.host))
    }

    /// The name of the file that it runs.
    fn program_file(&self, process: &ContainerProcess) -> Option<String> {
        let file = self.looked.host.link(&proc_dir(process.pid).join("exe"));
        let file = file.ok()??;
        Some(file.file_name()?.to_string_lossy().into_owned())
    }

    /// The cause as far as it is of no line of the kernel's log, and the last such line that may be of the program.
    fn find_cause(
        &self,
        process: &ContainerProcess,
        variables: &[u8],
        network: (&[ContainerInterface], bool),
    ) -> (KernelSocketCause, Option<(usize, KernelSocketCause)>) {
        let value = find_variable(variables, "EF_DONT_ACCELERATE").unwrap_or_default();
        if !value.is_empty() && value != b"0" {
            return (KernelSocketCause::Forbidden, None);
        }
        let file = self.program_file(process);
        let mut failures = self.failures().iter().enumerate();
        let failure = failures.rfind(|(_, one)| one.matches_process(process, file.as_deref()));
        let failure = failure.map(|(line, one)| (line, one.error));
        match (failure, allowed_interfaces(variables, network)) {
            (Some((line, error @ StackError::Refused(_))), AllowedInterfaces::Nothing(cause)) => {
                (cause, Some((line, KernelSocketCause::Failed(error))))
            }
            (_, AllowedInterfaces::Nothing(cause)) => (cause, None),
            (failure, left) => {
                let logged = failure.map(|(line, error)| match (error, left) {
                    (StackError::NoInterface, AllowedInterfaces::NotKnown(cause)) => (line, cause),
                    _ => (line, KernelSocketCause::Failed(error)),
                });
                (cause_without_log(process, variables), logged)
            }
        }
    }
}

fn cause_without_log(process: &ContainerProcess, variables: &[u8]) -> KernelSocketCause {
    let is_refused = process.preload == Some(LibraryMapping::Foreign)
        && process.open.is_some()
        && !process.has_driver()
        && logs_by_driver(process, variables);
    if is_refused { KernelSocketCause::OtherBuild } else { KernelSocketCause::Unknown }
}

/// What the lists of a program's variables leave it of the accelerated interfaces.
enum AllowedInterfaces {
    Something,
    Nothing(KernelSocketCause),
    /// Names that are not known may be other names of these.
    NotKnown(KernelSocketCause),
}

/// Onload takes from a list the ports that its names lead to (`oo_get_listed_hwports`), and uses those of the one list and not
/// of the other. With the interfaces comes whether these are all of their names: then any other is that of none.
fn allowed_interfaces(
    variables: &[u8],
    (interfaces, are_all_names): (&[ContainerInterface], bool),
) -> AllowedInterfaces {
    let list = |name: &'static str| {
        let text = String::from_utf8_lossy(find_variable(variables, name)?).into_owned();
        (!text.trim().is_empty()).then_some((name, text))
    };
    let listed = |text: &str| {
        let (mut ports, mut is_known) = (BTreeSet::new(), true);
        for name in text.split_ascii_whitespace() {
            let mut all = interfaces.iter();
            let found = all
                .find(|one| one.name == name || one.other_names.iter().any(|other| other == name));
            is_known &= found.map_or(are_all_names, |found| found.is_accelerated.is_some());
            ports.extend(found.into_iter().flat_map(|found| found.ports.iter().copied()));
        }
        (ports, is_known)
    };
    let mut left: BTreeSet<PortId> =
        interfaces.iter().flat_map(|one| one.ports.iter().copied()).collect();
    if left.is_empty() {
        return AllowedInterfaces::Something;
    }
    let mut is_known = interfaces.iter().all(|one| one.is_accelerated.is_some());
    for (list, is_left) in
        [(list("EF_INTERFACE_WHITELIST"), true), (list("EF_INTERFACE_BLACKLIST"), false)]
    {
        let Some((variable, text)) = list else {
            continue;
        };
        let (ports, are_known) = listed(&text);
        left.retain(|port| ports.contains(port) == is_left);
        let value = text.chars().take(SHOWN).collect();
        let cause = KernelSocketCause::Interfaces { variable, value };
        // Names that are not known may leave more by the one list, and less by the other.
        match (left.is_empty(), are_known) {
            (true, _) if is_known && (are_known || !is_left) => {
                return AllowedInterfaces::Nothing(cause);
            }
            (true, _) => return AllowedInterfaces::NotKnown(cause),
            (false, false) if !is_left => return AllowedInterfaces::NotKnown(cause),
            (false, _) => is_known &= are_known,
        }
    }
    AllowedInterfaces::Something
}

/// Whether a process has a socket of the kernel's TCP or UDP; none where that is not known.
pub fn has_kernel_socket(host: &Host, pid: u32) -> Option<bool> {
    let directory = proc_dir(pid).join("fd");
    let mut sockets = BTreeSet::new();
    for name in host.list(&directory).ok()?.names {
        let target = host.link(&directory.join(name)).ok().flatten();
        sockets.extend(target.as_deref().and_then(Path::to_str).and_then(socket_inode));
    }
    Some(!kernel_sockets(host, pid, &sockets)?.is_empty())
}

/// Which of these sockets are of the kernel's TCP and UDP, in the network of a process; none where a table cannot be
/// read. Those that Onload has taken over are in no table under a descriptor of the program.
fn kernel_sockets(host: &Host, pid: u32, inodes: &BTreeSet<u64>) -> Option<BTreeSet<u64>> {
    let inode = |line: &[u8]| parse_column(line, INODE);
    let mut found = BTreeSet::new();
    for table in TABLES {
        let wanted = |line: &[u8]| inode(line).is_some_and(|inode| inodes.contains(&inode));
        let path = proc_dir(pid).join("net").join(table);
        // A kernel without IPv6 has no tables of it.
        let lines = host.lines(&path, &wanted).ok()?.unwrap_or_default();
        found.extend(lines.split(|byte| *byte == b'\n').filter_map(inode));
    }
    Some(found)
}
