//! The programs of a container that use the kernel's sockets although others, or they themselves, have the library; and
//! why, as far as that can be found out.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use onload_host::host::Host;

use super::facts::{
    ContainerFacts, KernelSocketCause, KernelSocketProgram, find_variable, is_go_program,
    start_environment,
};
use super::kernel_log::{StackError, StackFailure, StackLog, read_log};
use super::link_judge::PortId;
use super::names::ContainerConfig;
use super::network::{AcceleratedInterfaces, ContainerInterface};
use super::process::{ContainerProcess, LibraryMapping, find_column, parse_column, proc_dir};
use super::stack::logs_by_driver;

const MAX_SOCKETS: usize = 8;
const MAX_SHOWN: usize = 64;
const TABLES: [&str; 4] = ["tcp", "tcp6", "udp", "udp6"];
/// The columns of a socket's local and remote address and of its inode (proc_pid_net(5)).
const LOCAL: usize = 1;
const REMOTE: usize = 2;
const INODE: usize = 9;
const DNS_PORT: u16 = 53;
/// Addresses of one process that are kept.
const MAX_ADDRESSES: usize = 64;

pub(super) struct KernelSocketReader<'l> {
    host: &'l Host,
    log: OnceCell<StackLog>,
}

impl<'l> KernelSocketReader<'l> {
    pub(super) fn new(host: &'l Host) -> Self {
        KernelSocketReader { host, log: OnceCell::new() }
    }

    pub(super) fn read(
        &self,
        facts: &mut ContainerFacts,
        config: Option<&ContainerConfig>,
        accelerators: &AcceleratedInterfaces<'_>,
    ) {
        self.find_sockets(&mut facts.processes, accelerators);
        let interfaces = match facts.has_host_network {
            Some(true) => Some(&accelerators.host_interfaces),
            _ => facts.interfaces.as_ref(),
        };
        let interfaces = interfaces.map_or(&[][..], Vec::as_slice);
        let network = (interfaces, facts.has_host_network == Some(false));
        // Which of a container's own interfaces has an address is unknown.
        let has_own_accelerated = facts.has_host_network != Some(true)
            && interfaces.iter().any(|interface| interface.is_accelerated == Some(true));
        let candidates = facts.processes.iter().filter(|process| {
            let addresses = || process.kernel_addresses.iter().flatten();
            let is_left = |address| is_for_onload(address, facts, accelerators);
            process.has_kernel_socket()
                && (!process.is_accelerated()
                    || addresses().any(|address| is_left(address) == Some(true))
                    || (!has_own_accelerated
                        && addresses().all(|address| is_left(address) == Some(false))))
        });
        let mut programs = Vec::new();
        for (index, process) in candidates.enumerate() {
            let has_library = process.preload.is_some_and(|preload| preload != LibraryMapping::No);
            let is_inspected = has_library && index < MAX_SOCKETS;
            let (cause, logged) = if process.has_stack {
                (cause_beside_stack(process, facts, accelerators), None)
            } else if is_inspected {
                let variables = start_environment(self.host, process, config);
                self.find_cause(process, &variables, network)
            } else {
                (KernelSocketCause::Unknown, None)
            };
            programs.push(KernelSocketProgram {
                pid: process.pid,
                name: process.name.clone(),
                addresses: describe_addresses(process, facts.has_host_network, accelerators),
                has_library,
                has_stack: process.has_stack,
                is_accelerated: process.is_accelerated(),
                cause,
                logged,
            });
        }
        facts.kernel_socket_programs = programs;
    }

    fn find_sockets(
        &self,
        processes: &mut [ContainerProcess],
        accelerators: &AcceleratedInterfaces<'_>,
    ) {
        let networks: BTreeSet<_> =
            processes.iter().map(|process| process.network.clone()).collect();
        for network in networks {
            let mut network_processes: Vec<_> = processes
                .iter_mut()
                .filter(|process| process.network == network && !process.sockets.is_empty())
                .collect();
            let Some(pid) = network_processes.first().map(|process| process.pid) else { continue };
            let sockets: BTreeSet<u64> = network_processes
                .iter()
                .flat_map(|process| process.sockets.iter().copied())
                .collect();
            let found = kernel_sockets(self.host, pid, &sockets, accelerators);
            for process in &mut network_processes {
                let own_sockets =
                    || process.sockets.iter().filter_map(|socket| found.as_ref()?.get(socket));
                let addresses = own_sockets().flatten().copied().take(MAX_ADDRESSES).collect();
                process.has_local_socket = own_sockets().any(Option::is_none);
                process.kernel_addresses = found.as_ref().map(|_| addresses);
            }
        }
    }

    /// Assigns lines of the kernel's log to programs without a stack. Programs of several containers may be called the same, and
    /// have the same number in each: a line is used only if it decides which program it is of, or if that makes no difference.
    pub(super) fn assign_logged_causes(&self, all: &mut [ContainerFacts]) {
        let programs: Vec<_> = all
            .iter()
            .flat_map(|facts| &facts.processes)
            .filter(|process| process.preload != Some(LibraryMapping::No) && !process.has_stack)
            .map(|process| (process, self.program_file(process)))
            .collect();
        let lines: BTreeSet<StackFailure> = all
            .iter()
            .flat_map(|facts| &facts.kernel_socket_programs)
            .filter_map(|program| Some(program.logged.as_ref()?.0.clone()))
            .filter(|line| self.is_decided(line, &programs))
            .collect();
        for program in all.iter_mut().flat_map(|facts| &mut facts.kernel_socket_programs) {
            if let Some((line, cause)) = program.logged.take()
                && lines.contains(&line)
            {
                program.cause = cause;
            }
        }
    }

    /// Returns whether a line of the log can be of only one of these programs, or if the lines of all
    /// its candidates have the same error.
    fn is_decided(
        &self,
        failure: &StackFailure,
        programs: &[(&ContainerProcess, Option<String>)],
    ) -> bool {
        let candidates: Vec<_> = programs
            .iter()
            .filter(|(process, file)| failure.matches_process(process, file.as_deref()))
            .collect();
        let is_of_candidate = |line: &&StackFailure| {
            candidates.iter().any(|(process, file)| line.matches_process(process, file.as_deref()))
        };
        let lines: Vec<_> = self.log().failures.iter().filter(is_of_candidate).collect();
        candidates.len() == 1
            || lines.len() >= candidates.len()
                && lines.iter().all(|line| line.error == failure.error)
    }

    fn log(&self) -> &StackLog {
        self.log.get_or_init(|| read_log(self.host))
    }

    /// The name of the file that it runs.
    fn program_file(&self, process: &ContainerProcess) -> Option<String> {
        let file = self.host.link(&proc_dir(process.pid).join("exe")).ok()??;
        Some(file.file_name()?.to_string_lossy().into_owned())
    }

    /// Returns the cause apart from the kernel log, and the last log line that may concern the program.
    fn find_cause(
        &self,
        process: &ContainerProcess,
        variables: &[u8],
        network: (&[ContainerInterface], bool),
    ) -> (KernelSocketCause, Option<(StackFailure, KernelSocketCause)>) {
        let value = find_variable(variables, "EF_DONT_ACCELERATE").unwrap_or_default();
        if !value.is_empty() && value != b"0" {
            return (KernelSocketCause::Forbidden, None);
        }
        let name = find_variable(variables, "EF_NAME").unwrap_or_default();
        let refusal =
            self.log().refusals.iter().rfind(|refusal| {
                refusal.stack.as_bytes() == name && refusal.is_since_start(process)
            });
        if let Some(refusal) = refusal {
            let (name, owner) = (refusal.stack.clone(), refusal.owner);
            return (KernelSocketCause::SharedStack { name, owner }, None);
        }
        let file = self.program_file(process);
        let failure =
            self.log().failures.iter().rfind(|line| line.matches_process(process, file.as_deref()));
        match (failure, allowed_interfaces(variables, network)) {
            (Some(line), AllowedInterfaces::Nothing(cause))
                if line.error != StackError::NoInterface =>
            {
                (cause, Some((line.clone(), KernelSocketCause::Failed(line.error))))
            }
            (_, AllowedInterfaces::Nothing(cause)) => (cause, None),
            (failure, allowed) => {
                let logged = failure.map(|line| match (line.error, allowed) {
                    (StackError::NoInterface, AllowedInterfaces::NotKnown(cause)) => {
                        (line.clone(), cause)
                    }
                    (error, _) => (line.clone(), KernelSocketCause::Failed(error)),
                });
                (self.cause_without_log(process, variables), logged)
            }
        }
    }

    fn cause_without_log(&self, process: &ContainerProcess, variables: &[u8]) -> KernelSocketCause {
        let is_refused = process.preload == Some(LibraryMapping::Foreign)
            && process.open.is_some()
            && !process.has_driver()
            && logs_by_driver(process, variables);
        if is_refused {
            KernelSocketCause::OtherBuild
        } else if is_go_program(self.host, process.pid) {
            KernelSocketCause::GoProgram
        } else {
            KernelSocketCause::Unknown
        }
    }
}

/// Why Onload left sockets of a program with a stack to the kernel.
fn cause_beside_stack(
    process: &ContainerProcess,
    facts: &ContainerFacts,
    accelerators: &AcceleratedInterfaces<'_>,
) -> KernelSocketCause {
    let mut addresses = process.kernel_addresses.iter().flatten();
    if addresses.all(|address| is_for_onload(address, facts, accelerators) == Some(false)) {
        KernelSocketCause::OtherInterface
    } else {
        KernelSocketCause::LeftToKernel
    }
}

/// Whether an address is of an interface that Onload has. Which of a container's own interfaces has it is not known.
fn is_for_onload(
    address: &IpAddr,
    facts: &ContainerFacts,
    accelerators: &AcceleratedInterfaces<'_>,
) -> Option<bool> {
    if facts.has_host_network == Some(true) {
        let name = accelerators.host_addresses.get(address)?;
        let mut interfaces = accelerators.host_interfaces.iter();
        return interfaces.find(|interface| &interface.name == name)?.is_accelerated;
    }
    let interfaces = facts.interfaces.as_ref().filter(|_| !address.is_unspecified())?;
    let has = |answer| interfaces.iter().any(|interface| interface.is_accelerated == answer);
    match (has(Some(false)), has(None)) {
        (true, _) => Some(false),
        (false, true) => None,
        (false, false) => (!interfaces.is_empty()).then_some(true),
    }
}

/// The accelerated interfaces that the lists in a program's variables allow.
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
    let mut allowed: BTreeSet<PortId> =
        interfaces.iter().flat_map(|interface| interface.ports.iter().copied()).collect();
    if allowed.is_empty() {
        return AllowedInterfaces::Something;
    }
    let mut is_known = interfaces.iter().all(|interface| interface.is_accelerated.is_some());
    for (list, is_allow_list) in
        [(list("EF_INTERFACE_WHITELIST"), true), (list("EF_INTERFACE_BLACKLIST"), false)]
    {
        let Some((variable, text)) = list else { continue };
        let (mut ports, mut are_known) = (BTreeSet::<PortId>::new(), true);
        for name in text.split_ascii_whitespace() {
            match interfaces.iter().find(|interface| interface.has_name(name)) {
                Some(interface) => {
                    are_known &= interface.is_accelerated.is_some();
                    ports.extend(&interface.ports);
                }
                None => are_known &= are_all_names,
            }
        }
        allowed.retain(|port| ports.contains(port) == is_allow_list);
        let value = text.chars().take(MAX_SHOWN).collect();
        let cause = KernelSocketCause::Interfaces { variable: variable.to_owned(), value };
        // Names that are not known may leave more by the one list, and less by the other.
        match (allowed.is_empty(), are_known) {
            (true, _) if is_known && (are_known || !is_allow_list) => {
                return AllowedInterfaces::Nothing(cause);
            }
            (true, _) => return AllowedInterfaces::NotKnown(cause),
            (false, false) if !is_allow_list => return AllowedInterfaces::NotKnown(cause),
            (false, _) => is_known &= are_known,
        }
    }
    AllowedInterfaces::Something
}

/// Returns those of these sockets that are of the kernel's TCP and UDP, in the network of a process, each with its local address
/// if it is for other machines; `None` if a table cannot be read. Sockets that Onload has taken over are in no table under a
/// descriptor of the program.
fn kernel_sockets(
    host: &Host,
    pid: u32,
    inodes: &BTreeSet<u64>,
    accelerators: &AcceleratedInterfaces<'_>,
) -> Option<BTreeMap<u64, Option<IpAddr>>> {
    let mut sockets = BTreeMap::new();
    for table in TABLES {
        let path = proc_dir(pid).join("net").join(table);
        let lines = host.lines(&path, &|line| {
            parse_column(line, INODE).is_some_and(|inode| inodes.contains(&inode))
        });
        // A kernel without IPv6 has no tables of it.
        let lines = lines.ok()?.unwrap_or_default();
        for line in lines.split(|byte| *byte == b'\n') {
            sockets.extend(parse_socket(line, accelerators));
        }
    }
    Some(sockets)
}

/// No address for a socket within the host, and for one that looks up names: Onload leaves these to the kernel.
fn parse_socket(
    line: &[u8],
    accelerators: &AcceleratedInterfaces<'_>,
) -> Option<(u64, Option<IpAddr>)> {
    let inode = parse_column(line, INODE)?;
    let local = find_column(line, LOCAL).and_then(parse_address);
    let remote = find_column(line, REMOTE).and_then(parse_address);
    let is_loopback = [local, remote].iter().flatten().any(|(address, _)| address.is_loopback());
    let is_left_to_kernel = remote.is_some_and(|(address, port)| {
        port == DNS_PORT || accelerators.host_addresses.contains_key(&address)
    });
    if is_loopback || is_left_to_kernel {
        return Some((inode, None));
    }
    let address = local.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |(address, _)| address);
    Some((inode, Some(address)))
}

/// `0100007F:1F90`: the address as words of this machine's byte order (net/ipv4/tcp_ipv4.c, `get_tcp4_sock`).
fn parse_address(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::new();
    for word in address.as_bytes().chunks(8) {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let address = match bytes.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        _ => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
    };
    Some((address.to_canonical(), port))
}

/// The addresses of a program's sockets, each with its interface on the host's network.
fn describe_addresses(
    process: &ContainerProcess,
    has_host_network: Option<bool>,
    accelerators: &AcceleratedInterfaces<'_>,
) -> Vec<String> {
    let mut descriptions = Vec::new();
    for address in process.kernel_addresses.iter().flatten() {
        if address.is_unspecified() {
            continue;
        }
        descriptions.push(match accelerators.host_addresses.get(address) {
            Some(interface) if has_host_network == Some(true) => {
                format!("{address} of {interface}")
            }
            _ => address.to_string(),
        });
    }
    descriptions
}
