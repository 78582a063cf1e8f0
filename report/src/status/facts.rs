//! The facts about one container: processes, devices, network and request.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};

use onload_core::class::Class;
use onload_host::host::Host;
use onload_sys::elf::parse_interpreter;
use serde::{Deserialize, Serialize};

use super::container_view::{self, ContainerView};
use super::groups::ContainerGroup;
use super::kernel_log::{self, StackError};
use super::names::ContainerConfig;
use super::network::{ContainerInterface, any_known};
use super::process::{self, ContainerProcess, LibraryMapping, MemlockLimit};
use super::rdma::LibraryUse;
use super::requests::Grant;
use super::stack_users::StackUser;
use super::state::Verdict;

const MAX_NAMES: usize = 4096;
/// Bytes read from the start of a program; its loader's path usually follows the headers.
const HEAD: u64 = 256 * 1024;
/// Bytes of the list of a process's interfaces; a line has about 120.
const TABLE: u64 = 1024 * 1024;
/// Bytes of an environment; the kernel bounds it by the stack's limit, 8 MiB as a rule.
const ENVIRONMENT: u64 = 1024 * 1024;
const VARIABLE: &str = "ONLOAD_CTK_NIC_";
const VFIO_CONTAINER: &str = "/dev/vfio/vfio";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ContainerFacts {
    pub(super) group: ContainerGroup,
    pub(super) name: Option<String>,
    /// The first of its pid namespace comes first.
    pub(super) processes: Vec<ContainerProcess>,
    pub(super) is_seen: bool,
    /// Whether its examination did not end in time, so that what is not here may be there.
    pub(super) is_stuck: bool,
    /// Whether the configuration is known that root's engine made it with.
    pub(super) is_configured: bool,
    pub(super) root: RootFacts,
    /// `None` if it is unknown.
    pub(super) has_host_network: Option<bool>,
    /// Interfaces except loopback; `None` if unknown.
    pub(super) interfaces: Option<Vec<ContainerInterface>>,
    /// The names of the accelerated interfaces that it has or, in the host's network, that the host has.
    pub(super) accelerated: Vec<String>,
    /// Commands that show the channels of the interfaces through which Onload sends.
    pub(super) channel_commands: Vec<String>,
    pub(super) kernel_socket_programs: Vec<KernelSocketProgram>,
    /// The holders of this host's stacks, if a program of this container got none because none was free.
    #[serde(skip)]
    pub(super) stack_users: Vec<StackUser>,
    pub(super) start: ProgramStart,
    pub(super) rdma: LibraryUse,
    #[serde(skip)]
    pub(super) leases: Vec<(Class, String)>,
    /// The devices of its leases that are in its network no more, and why.
    pub(super) lost: Vec<(String, String)>,
    /// The interfaces of its leases on which another XDP program has replaced Onload's.
    pub(super) without_program: Vec<String>,
    pub(super) grants: Vec<Grant>,
    pub(super) unanswered: Option<Verdict>,
}

/// A program that uses sockets of the kernel, and no socket of Onload; or sockets of both, and those of the kernel by an
/// interface that Onload has, or all of them by others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KernelSocketProgram {
    pub(super) pid: u32,
    pub(super) name: String,
    /// The addresses of its sockets, with their interfaces where these are known.
    pub(super) addresses: Vec<String>,
    pub(super) has_library: bool,
    pub(super) has_stack: bool,
    pub(super) is_accelerated: bool,
    pub(super) cause: KernelSocketCause,
    /// A line of the kernel's log that may be of it, and the cause if it is.
    pub(super) logged: Option<(kernel_log::StackFailure, KernelSocketCause)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum KernelSocketCause {
    Forbidden,
    /// It has a stack, and talks only by interfaces that Onload does not have.
    OtherInterface,
    /// It has a stack.
    LeftToKernel,
    /// The value of EF_INTERFACE_WHITELIST or EF_INTERFACE_BLACKLIST excludes all accelerated interfaces.
    Interfaces {
        variable: String,
        value: String,
    },
    /// The stack that EF_NAME names is of this user, who does not share it.
    SharedStack {
        name: String,
        owner: u32,
    },
    /// It makes its system calls itself.
    GoProgram,
    /// Onload failed, and said so in the kernel's log.
    Failed(StackError),
    /// Its library is not the host's, and the driver rejected it for its log.
    OtherBuild,
    /// It may have been started before Onload had an interface. The time of Onload's debugfs directory and the computed
    /// start time differ if the clock was set in between.
    #[default]
    Unknown,
}

/// How the program was started that was to have the library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProgramStart {
    pub(super) program: ProgramLinkage,
    pub(super) environment: PreloadEnvironment,
    pub(super) is_secure: bool,
    /// Whether its environment, or that of a program before it, has our variables.
    pub(super) has_our_variables: bool,
    /// Whether the runtime has not executed the container's program yet.
    pub(super) is_runtime: bool,
    /// `None` if it is unknown.
    pub(super) is_preload_configured: Option<bool>,
    /// Whether /etc/ld.so.preload names the library for it.
    pub(super) has_preload_file: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeFact {
    pub(super) path: String,
    pub(super) state: NodeState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum NodeState {
    Good,
    Gone,
    /// The device has this number now, and the node another.
    Renumbered {
        was: (u32, u32),
        now: (u32, u32),
    },
}

/// A program of a container, as its loader goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ProgramLinkage {
    Glibc,
    /// By Nix's glibc, which reads /etc/ld-nix.so.preload instead of /etc/ld.so.preload.
    NixGlibc,
    Musl,
    Static,
    #[default]
    Unknown,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum PreloadEnvironment {
    Ours,
    /// LD_PRELOAD is there and does not name it.
    Other,
    None,
    #[default]
    Unknown,
}

/// The path of a device in a container, and the sysfs file with its number.
fn number_path(path: &str) -> Option<PathBuf> {
    let name = path.strip_prefix("/dev/")?;
    let class = match name.split_once('/') {
        None => match name {
            "onload" | "onload_epoll" | "sfc_char" => name,
            _ if name.starts_with("ptp") => "ptp",
            _ => "pps",
        },
        Some(("infiniband", "rdma_cm")) => "misc",
        Some(("infiniband", name)) if name.starts_with("uverbs") => "infiniband_verbs",
        Some(("infiniband", _)) => "infiniband_mad",
        Some(("vfio", "vfio")) => "misc",
        Some(("vfio", _)) => "vfio",
        Some(_) => return None,
    };
    let entry = name.rsplit('/').next()?;
    Some(Path::new("/sys/class").join(class).join(entry).join("dev"))
}

fn is_numbered(name: &str, prefix: &str) -> bool {
    let number = name.strip_prefix(prefix);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

fn read_nodes(host: &Host, view: &ContainerView<'_>) -> Vec<NodeFact> {
    let list_paths = |directory: &str, is_ours: &dyn Fn(&str) -> bool| -> Vec<String> {
        view.list_names(Path::new(directory), MAX_NAMES)
            .into_iter()
            .filter(|name| is_ours(name))
            .map(|name| format!("{directory}/{name}"))
            .collect()
    };
    let mut paths = list_paths("/dev", &|name| {
        ["onload", "onload_epoll", "sfc_char"].contains(&name)
            || is_numbered(name, "ptp")
            || is_numbered(name, "pps")
    });
    paths.extend(list_paths("/dev/infiniband", &|name| {
        name == "rdma_cm"
            || ["uverbs", "umad", "issm"].into_iter().any(|prefix| is_numbered(name, prefix))
    }));
    paths.extend(list_paths("/dev/vfio", &|name| {
        name == "vfio" || is_numbered(name, "") || is_numbered(name, "noiommu-")
    }));
    let facts = paths.into_iter().filter_map(|path| {
        let was = view.node_number(Path::new(&path))?;
        let state = node_state(host, &path, was)?;
        Some(NodeFact { path, state })
    });
    facts.collect()
}

/// `None` if it cannot be read.
fn node_state(host: &Host, path: &str, was: (u32, u32)) -> Option<NodeState> {
    let text = host.attribute(&number_path(path)?).ok()?;
    let Some(text) = text else { return Some(NodeState::Gone) };
    let (major, minor) = text.split_once(':')?;
    let now = (major.parse().ok()?, minor.parse().ok()?);
    Some(if now == was { NodeState::Good } else { NodeState::Renumbered { was, now } })
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RootFacts {
    pub(super) nodes: Vec<NodeFact>,
    /// `None` if it is unknown.
    pub(super) has_rdma: Option<bool>,
    pub(super) has_own_devices: bool,
    /// Whether it has every node of the host, as with `--privileged` and `-v /dev:/dev`: by the node of the kernel's log.
    pub(super) has_every_node: bool,
}

/// Inspects the root directory of a process. `None` if it has exited or may not be inspected.
pub(super) fn read_root(host: &Host, pid: u32) -> Option<RootFacts> {
    let directory = process::proc_dir(pid);
    let view = container_view::open(host, directory.join("root"))?;
    let table = host.bytes(&directory.join("net/dev"), TABLE).ok().flatten();
    let shows_network = table.is_some_and(|table| view.shows_network(&table, MAX_NAMES));
    let rdma = Path::new("/sys/class/infiniband");
    Some(RootFacts {
        nodes: read_nodes(host, &view),
        has_rdma: shows_network.then(|| !view.list_names(rdma, MAX_NAMES).is_empty()),
        has_own_devices: view.has_own_devices(),
        has_every_node: view.node_number(Path::new("/dev/kmsg")).is_some(),
    })
}

/// Reads the beginning of a file of a process.
fn read_start(host: &Host, pid: u32, name: &str, max: u64) -> Option<Vec<u8>> {
    let file = host.file(&process::proc_dir(pid).join(name)).ok()??;
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Whether a program was built by Go, by the note that names its build (cmd/internal/buildid): size of the name, of the content,
/// kind 4, name.
pub(super) fn is_go_program(host: &Host, pid: u32) -> bool {
    let head = read_start(host, pid, "exe", HEAD);
    head.is_some_and(|head| memchr::memmem::find(&head, b"\x04\0\0\0Go\0\0").is_some())
}

pub(super) fn read_linkage(host: &Host, pid: u32) -> ProgramLinkage {
    let head = read_start(host, pid, "exe", HEAD);
    match head.as_deref().map(parse_interpreter) {
        Some(Ok(None)) => ProgramLinkage::Static,
        Some(Ok(Some(loader))) if loader.contains("/ld-musl-") => ProgramLinkage::Musl,
        Some(Ok(Some(loader))) if loader.starts_with("/nix/store/") => ProgramLinkage::NixGlibc,
        Some(Ok(Some(_))) => ProgramLinkage::Glibc,
        Some(Err(_)) | None => ProgramLinkage::Unknown,
    }
}

/// Returns whether a process still executes an OCI runtime, which has to become the container's program. Runtimes execute
/// a copy of themselves in memory, for example `/memfd:runc_cloned:/proc/self/exe` (CVE-2019-5736).
pub(super) fn is_runtime(host: &Host, pid: u32) -> bool {
    let program = host.link(Path::new(&format!("/proc/{pid}/exe"))).ok().flatten();
    program.as_deref().and_then(Path::to_str).is_some_and(|program| {
        ["runc", "crun", "youki"].iter().any(|runtime| {
            program.starts_with(&format!("/memfd:{runtime}_cloned:"))
                || Path::new(program).file_name() == Some(OsStr::new(runtime))
        })
    })
}

/// Returns the variables with which a program was started, or `None` if unknown. A program that sets its title
/// (setproctitle, as redis-server does) overwrites its variables with zeros or the title, and one started without
/// variables has no bytes.
pub(super) fn read_environment(host: &Host, pid: u32) -> Option<Vec<u8>> {
    let environment = read_start(host, pid, "environ", ENVIRONMENT)?;
    (environment.is_empty() || environment.contains(&b'=')).then_some(environment)
}

/// The same, or nothing. The variables of the container's first program are also in its configuration.
pub(super) fn start_environment(
    host: &Host,
    process: &ContainerProcess,
    config: Option<&ContainerConfig>,
) -> Vec<u8> {
    let environment = read_environment(host, process.pid);
    let configured = config.filter(|_| process.is_init);
    environment
        .or_else(|| configured.map(|config| config.process.env.join("\0").into_bytes()))
        .unwrap_or_default()
}

pub(super) fn find_variable<'v>(variables: &'v [u8], name: &str) -> Option<&'v [u8]> {
    let mut assignments = variables.split(|byte| *byte == 0);
    assignments.find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

impl PreloadEnvironment {
    pub(super) fn from_variables(variables: &[u8]) -> PreloadEnvironment {
        match find_variable(variables, "LD_PRELOAD") {
            Some(value) if memchr::memmem::find(value, b"libonload.so").is_some() => {
                PreloadEnvironment::Ours
            }
            Some(_) => PreloadEnvironment::Other,
            None => PreloadEnvironment::None,
        }
    }
}

/// Whether they name an interface that the library was given for.
pub(super) fn has_nic_variable(variables: &[u8]) -> bool {
    let mut assignments = variables.split(|byte| *byte == 0);
    assignments.any(|variable| {
        let name = variable.strip_prefix(VARIABLE.as_bytes());
        name.is_some_and(|name| !name.starts_with(b"PLAIN_") && !name.starts_with(b"NODES_"))
    })
}

impl ContainerFacts {
    pub(super) fn is_relevant(&self) -> bool {
        let is_in_use =
            self.maps_library() || self.has_open("/dev/onload") || !self.leases.is_empty();
        // A sandbox of some program shows the host's /dev.
        let is_container = self.group.is_named || self.root.has_own_devices;
        is_in_use
            || self.has_open("/dev/infiniband")
            || self.has_open("/dev/vfio")
            || is_container && !self.root.nodes.is_empty()
            || !self.grants.is_empty()
    }

    /// Whether it is listed. A container that did not answer may have any devices.
    pub(super) fn is_shown(&self) -> bool {
        self.is_relevant() || self.unanswered.is_some() || self.is_stuck
    }

    pub(super) fn maps_library(&self) -> bool {
        self.processes
            .iter()
            .filter_map(|process| process.preload)
            .any(|preload| preload != LibraryMapping::No)
    }

    /// How many processes map the library, of whatever build.
    pub(super) fn count_preloading(&self) -> usize {
        self.count_mapping(LibraryMapping::Yes) + self.count_mapping(LibraryMapping::Foreign)
    }

    /// How many processes map the library so.
    pub(super) fn count_mapping(&self, preload: LibraryMapping) -> usize {
        self.processes.iter().filter(|process| process.preload == Some(preload)).count()
    }

    /// Descriptors of all processes that lead below a path.
    pub(super) fn count_descriptors(&self, path: &str) -> usize {
        self.processes
            .iter()
            .filter_map(|process| process.open.as_ref())
            .flatten()
            .filter(|target| {
                let rest = target.strip_prefix(path);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '_']))
            })
            .count()
    }

    pub(super) fn count_stacks(&self) -> usize {
        self.processes.iter().filter(|process| process.has_stack).count()
    }

    /// Whether the driver refused a program a stack because none was free, or perhaps because of that.
    pub(super) fn lacks_free_stack(&self) -> bool {
        let errors =
            [StackError::NO_FREE_STACK, StackError::INVALID].map(KernelSocketCause::Failed);
        self.kernel_socket_programs.iter().any(|program| errors.contains(&program.cause))
    }

    pub(super) fn count_accelerated(&self) -> usize {
        self.processes.iter().filter(|process| process.is_accelerated()).count()
    }

    pub(super) fn has_accelerated(&self) -> Option<bool> {
        any_known(self.interfaces.as_ref()?.iter().map(|interface| interface.is_accelerated))
    }

    /// The accelerated interfaces of its own network.
    pub(super) fn own_accelerated(&self) -> impl Iterator<Item = &ContainerInterface> {
        self.interfaces.iter().flatten().filter(|interface| interface.is_accelerated == Some(true))
    }

    fn has_open(&self, path: &str) -> bool {
        self.count_descriptors(path) > 0
    }

    fn is_granted(&self, class: Class) -> bool {
        let prefix = format!("{}=", class.as_str());
        self.leases.iter().any(|(leased, _)| *leased == class)
            || self.grants.iter().any(|grant| grant.device.starts_with(&prefix))
    }

    /// Forgets the static node of kmod (`modules.devname`), which has no driver while vfio is not loaded, in a container that did
    /// not get it from us.
    pub(super) fn forget_static_node(&mut self) {
        if !self.is_granted(Class::Vfio) && !self.has_open(VFIO_CONTAINER) {
            let nodes = &mut self.root.nodes;
            nodes.retain(|node| node.path != VFIO_CONTAINER || node.state != NodeState::Gone);
        }
    }

    /// Whether it has devices that pin memory, and not only their nodes among all those of the host.
    pub(super) fn pins_memory(&self) -> bool {
        let was_given = self.is_granted(Class::Rdma) || self.is_granted(Class::Vfio);
        let is_used = self.has_open("/dev/infiniband") || self.has_open("/dev/vfio");
        let has_node = self.has_node("/dev/infiniband/uverbs") || self.has_node("/dev/vfio/");
        has_node && (!self.root.has_every_node || was_given || is_used)
    }

    pub(super) fn has_node(&self, start: &str) -> bool {
        self.root.nodes.iter().any(|node| node.path.starts_with(start))
    }

    /// The smallest limit of the processes that have a device open that pins memory, or else that of the first process.
    pub(super) fn memlock(&self) -> Option<MemlockLimit> {
        let pins = |process: &&ContainerProcess| {
            let mut open = process.open.iter().flatten();
            open.any(|path| {
                path.starts_with("/dev/infiniband/uverbs") || path.starts_with("/dev/vfio/")
            })
        };
        let first = self.processes.first();
        let pinning = self.processes.iter().filter(pins);
        let limit = |process: &ContainerProcess| process.memlock;
        pinning.filter_map(limit).min().or(first.and_then(limit))
    }

    pub(super) fn is_partly_unseen(&self) -> bool {
        !self.is_seen
            || self
                .processes
                .iter()
                .any(|process| process.open.is_none() || process.preload.is_none())
    }
}
