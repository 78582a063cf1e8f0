//! What is known of one container: its processes, the devices in it, its network, and what it was told.

use std::path::{Path, PathBuf};

use onload_core::class::Class;

use super::cgroup::Engine;
use super::inside::{self, Inside};
use super::process::{self, Limit, Preload, Process};
use crate::discover::inventory::Inventory;
use crate::host::Host;

/// Names in a directory of a container that are looked at.
const MOST_NAMES: usize = 4096;
/// Bytes of a program's head, behind whose headers the path of its loader stands.
const HEAD: usize = 4096;
/// Bytes of an environment; the kernel bounds it by the stack's limit, 8 MiB as a rule.
const ENVIRONMENT: usize = 1024 * 1024;
const VARIABLE: &str = "ONLOAD_CTK_NIC_";

/// Reads so many bytes of a file of a process, which may make its reader wait for good: such a file is not
/// known.
pub type Guarded<'g> = &'g dyn Fn(&Path, usize) -> Option<Vec<u8>>;

/// What is known of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) engine: Engine,
    pub(super) id: String,
    pub(super) name: Option<String>,
    pub(super) user: Option<u32>,
    pub(super) processes: Vec<Process>,
    /// The devices of ours in it, sorted by path.
    pub(super) nodes: Vec<NodeFact>,
    /// Whether its root could be looked into.
    pub(super) is_seen: bool,
    /// Whether it has the host's network; none where that is not known.
    pub(super) has_host_network: Option<bool>,
    /// The interfaces of its network; none where they are not known.
    pub(super) interfaces: Option<Vec<Interface>>,
    pub(super) program: Program,
    pub(super) environment: Environment,
    /// Whether its bundle has the library in LD_PRELOAD; none where that is not known.
    pub(super) was_given: Option<bool>,
    /// Whether /etc/ld.so.preload names the library for it.
    pub(super) has_preload_file: bool,
    /// The devices that it has by lease, as CLASS=NAME.
    pub(super) leases: Vec<(Class, String)>,
    /// Whether RDMA devices are seen in its network namespace.
    pub(super) has_rdma_in_namespace: Option<bool>,
}

/// A device node in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeFact {
    pub(super) path: String,
    pub(super) state: NodeState,
}

/// Whether a node leads to the device that its name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeState {
    Good,
    /// The host has no such device now.
    Gone,
    /// The device has this number now, and the node another.
    Renumbered {
        was: (u32, u32),
        now: (u32, u32),
    },
}

/// A network interface in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    /// Whether Onload accelerates it, itself or the one below it.
    pub(super) is_accelerated: bool,
    /// Whether it is one of a PCI function, and not one of software.
    pub(super) is_physical: bool,
    pub(super) is_up: bool,
}

/// The first program of a container, as its loader goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Glibc,
    Musl,
    Static,
    Unknown,
}

/// What the first process was started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Environment {
    /// LD_PRELOAD names the library.
    Ours,
    /// LD_PRELOAD is there and does not name it.
    Other {
        is_nic: bool,
    },
    /// There is no LD_PRELOAD.
    None {
        is_nic: bool,
    },
    Unknown,
}

/// Where a device of ours is in a container, and where the kernel says its number.
fn number_of(path: &str) -> Option<PathBuf> {
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

/// Whether a name is a device's: a prefix with a number behind it.
fn is_numbered(name: &str, prefix: &str) -> bool {
    let number = name.strip_prefix(prefix);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// The devices of ours in a container.
pub(super) fn nodes(host: &Host, inside: &Inside<'_>) -> Vec<NodeFact> {
    let listed = |directory: &str, is_ours: &dyn Fn(&str) -> bool| -> Vec<String> {
        let names = inside.names(Path::new(directory), MOST_NAMES).into_iter();
        let names = names.filter(|name| is_ours(name));
        names.map(|name| format!("{directory}/{name}")).collect()
    };
    let mut paths = listed("/dev", &|name| {
        ["onload", "onload_epoll", "sfc_char"].contains(&name)
            || is_numbered(name, "ptp")
            || is_numbered(name, "pps")
    });
    paths.extend(listed("/dev/infiniband", &|name| {
        let is_one = |prefix| is_numbered(name, prefix);
        name == "rdma_cm" || ["uverbs", "umad", "issm"].into_iter().any(is_one)
    }));
    paths.extend(listed("/dev/vfio", &|name| {
        name == "vfio" || is_numbered(name, "") || is_numbered(name, "noiommu-")
    }));
    let facts = paths.into_iter().filter_map(|path| {
        let was = inside.node(Path::new(&path))?;
        let state = state(host, &path, was)?;
        Some(NodeFact { path, state })
    });
    facts.collect()
}

/// Compares a node with what the kernel says; none where that cannot be read.
fn state(host: &Host, path: &str, was: (u32, u32)) -> Option<NodeState> {
    let text = host.attribute(&number_of(path)?).ok()?;
    let Some(text) = text else {
        return Some(NodeState::Gone);
    };
    let (major, minor) = text.split_once(':')?;
    let now = (major.parse().ok()?, minor.parse().ok()?);
    Some(match now == was {
        true => NodeState::Good,
        false => NodeState::Renumbered { was, now },
    })
}

/// The interfaces of a container with a network of its own; none where its sysfs cannot be read.
pub(super) fn interfaces(
    host: &Host,
    inventory: &Inventory,
    inside: &Inside<'_>,
) -> Option<Vec<Interface>> {
    let class = Path::new("/sys/class/net");
    if !inside.has_sysfs() {
        return None;
    }
    let accelerated: Vec<String> = inventory
        .nics
        .iter()
        .filter_map(|nic| {
            let index = class.join(&nic.name).join("ifindex");
            host.attribute(&index).ok()?
        })
        .collect();
    let names = inside.names(class, MOST_NAMES).into_iter();
    let names = names.filter(|name| name != "lo" && name != "bonding_masters");
    let interface = |name: String| {
        let directory = class.join(&name);
        let attribute = |attribute: &str| inside.attribute(&directory.join(attribute));
        let is_physical = inside.exists(&directory.join("device"));
        let uevent = attribute("uevent").unwrap_or_default();
        // veth has the number of its other end there, which says nothing of acceleration.
        let is_above = ["DEVTYPE=macvlan", "DEVTYPE=ipvlan"]
            .into_iter()
            .any(|word| uevent.lines().any(|line| line == word));
        let link = attribute("iflink");
        let is_over_ours = is_above && link.is_some_and(|link| accelerated.contains(&link));
        let vendor = attribute("device/vendor");
        Interface {
            is_accelerated: is_over_ours || is_physical && vendor.as_deref() == Some("0x1924"),
            is_physical,
            is_up: attribute("operstate").is_none_or(|state| state != "down"),
            name,
        }
    };
    Some(names.map(interface).collect())
}

/// How the first program of a container is loaded.
pub(super) fn program(host: &Host, pid: u32, guarded: Guarded<'_>) -> Program {
    let path = process::directory(pid).join("exe");
    let Some(head) = guarded(&host.outside_path(&path), HEAD) else {
        return Program::Unknown;
    };
    let has = |text: &[u8]| memchr::memmem::find(&head, text).is_some();
    if !head.starts_with(b"\x7fELF") {
        Program::Unknown
    } else if has(b"/ld-musl-") {
        Program::Musl
    } else if has(b"/ld-linux") || has(b"/ld64.so") || has(b"/ld.so") {
        Program::Glibc
    } else {
        Program::Static
    }
}

/// What the first process of a container was started with.
pub(super) fn environment(host: &Host, pid: u32, guarded: Guarded<'_>) -> Environment {
    let path = process::directory(pid).join("environ");
    let Some(bytes) = guarded(&host.outside_path(&path), ENVIRONMENT) else {
        return Environment::Unknown;
    };
    let variables = || bytes.split(|byte| *byte == 0);
    let is_nic = variables().any(|variable| {
        let name = variable.strip_prefix(VARIABLE.as_bytes());
        name.is_some_and(|name| !name.starts_with(b"PLAIN_") && !name.starts_with(b"NODES_"))
    });
    let preload = variables().find_map(|variable| variable.strip_prefix(b"LD_PRELOAD="));
    match preload {
        Some(value) if memchr::memmem::find(value, b"libonload.so").is_some() => Environment::Ours,
        Some(_) => Environment::Other { is_nic },
        None => Environment::None { is_nic },
    }
}

impl Facts {
    /// Whether anything of it is ours, so that it is shown.
    pub(super) fn is_of_interest(&self) -> bool {
        let is_in_use = self.maps() || self.has_open("/dev/onload") || !self.leases.is_empty();
        match self.engine {
            // A sandbox of some program has a /dev too.
            Engine::Unknown => {
                is_in_use || self.has_open("/dev/infiniband") || self.has_open("/dev/vfio")
            }
            _ => is_in_use || !self.nodes.is_empty(),
        }
    }

    /// Whether a process maps the library.
    pub(super) fn maps(&self) -> bool {
        let preloads = self.processes.iter().filter_map(|process| process.preload);
        preloads.into_iter().any(|preload| preload != Preload::No)
    }

    /// Descriptors of all processes that lead below a path.
    pub(super) fn descriptors(&self, path: &str) -> usize {
        let open = self
            .processes
            .iter()
            .filter_map(|process| process.open.as_ref());
        let open = open.flatten();
        open.filter(|target| {
            let below = target.strip_prefix(path);
            below.is_some_and(|below| below.is_empty() || below.starts_with(['/', '_']))
        })
        .count()
    }

    fn has_open(&self, path: &str) -> bool {
        self.descriptors(path) > 0
    }

    pub(super) fn has_node(&self, start: &str) -> bool {
        self.nodes.iter().any(|node| node.path.starts_with(start))
    }

    /// The smallest limit of its processes.
    pub(super) fn memlock(&self) -> Option<Limit> {
        let limits = self.processes.iter().filter_map(|process| process.memlock);
        limits.min_by_key(|limit| match limit {
            Limit::Bytes(bytes) => *bytes,
            Limit::Unlimited => u64::MAX,
        })
    }

    /// Whether something of its processes is not ours to see.
    pub(super) fn is_partly_unseen(&self) -> bool {
        let unseen = |process: &Process| process.open.is_none() || process.preload.is_none();
        !self.is_seen || self.processes.iter().any(unseen)
    }
}

/// Opens the root of a container's process.
pub(super) fn root(host: &Host, pid: u32) -> Option<Inside<'_>> {
    inside::open(host, process::directory(pid).join("root"))
}

/// Whether the library is preloaded by a file of ours that is mounted over the container's own.
pub(super) fn has_preload_file(host: &Host, pid: u32) -> bool {
    let wanted = |line: &[u8]| memchr::memmem::find(line, b" /etc/ld.so.preload ").is_some();
    let path = process::directory(pid).join("mountinfo");
    host.lines(&path, &wanted)
        .ok()
        .flatten()
        .is_some_and(|lines| !lines.is_empty())
}
