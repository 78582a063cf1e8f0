//! What follows from what is known of a container, with the reason and the remedy. Nothing here looks at
//! anything, and what is not known never becomes a bad verdict.

use onload_core::class::Class;
use onload_core::text::shell_word;
use serde::Serialize;

use super::container::{Environment, Facts, NodeState, Program};
use super::process::{Limit, Preload};

/// Below this, not even the queues of one small program can be registered.
const LEAST_MEMLOCK: u64 = 64 * 1024 * 1024;

/// How a container does with what it was given; the worse, the later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Programs use Onload.
    Accelerated,
    /// It has what it needs.
    Ready,
    /// It has the nodes of Onload and was not given the preload.
    Plain,
    /// Not enough of it can be seen.
    Unknown,
    /// It has a device to itself that none of its programs uses.
    Unused,
    /// It may lock too little memory.
    Memlock,
    /// An interface that is in its network is down.
    InterfaceDown,
    /// No interface in its network is accelerated.
    NoInterface,
    /// Its RDMA device is in another network namespace.
    RdmaNamespace,
    /// The library was given, and no program has it.
    PreloadLost,
    /// The library was built for another driver than the loaded one.
    OtherLibrary,
    /// A device has another number than the container's node.
    DeviceRenumbered,
    /// A device is no more.
    DeviceGone,
}

impl State {
    /// The words that people read.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            State::Accelerated => "accelerated",
            State::Ready => "ready",
            State::Plain => "without preload",
            State::Unknown => "not known",
            State::Unused => "held and unused",
            State::Memlock => "memlock too small",
            State::InterfaceDown => "interface down",
            State::NoInterface => "no accelerated interface",
            State::RdmaNamespace => "RDMA device in another namespace",
            State::PreloadLost => "preload lost",
            State::OtherLibrary => "library of another build",
            State::DeviceRenumbered => "device renumbered",
            State::DeviceGone => "device gone",
        }
    }

    /// Whether all is well, as far as can be seen.
    #[must_use]
    pub fn is_good(self) -> bool {
        self < State::Unknown
    }
}

/// One thing that is so of a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Verdict {
    /// How it does.
    pub state: State,
    /// Why it is said to.
    pub reason: String,
    /// What to do; none where nothing is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Verdict {
    fn good(state: State, reason: impl Into<String>) -> Verdict {
        Verdict {
            state,
            reason: reason.into(),
            remedy: None,
        }
    }

    fn bad(state: State, reason: impl Into<String>, remedy: impl Into<String>) -> Verdict {
        Verdict {
            remedy: Some(remedy.into()),
            ..Verdict::good(state, reason)
        }
    }
}

/// What is so of the host, for every container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostFacts {
    /// Whether the host has an accelerated interface.
    pub(super) has_nic: bool,
    /// Whether its library was built for the loaded driver.
    pub(super) library_matches: Option<bool>,
    /// Whether RDMA devices are in one network namespace each.
    pub(super) is_rdma_exclusive: bool,
    /// Whether Onload is told to accelerate veth (`oo_accelerate_veth`).
    pub(super) accelerates_veth: bool,
}

/// All that is so of a container, the worst first.
pub(super) fn decide(facts: &Facts, host: HostFacts) -> Vec<Verdict> {
    let mut verdicts = devices(facts, host);
    verdicts.extend(onload(facts, host));
    verdicts.extend(rdma(facts, host));
    verdicts.extend(vfio(facts));
    verdicts.extend(memlock(facts));
    verdicts.extend(down(facts));
    if facts.is_stuck {
        let pid = facts.processes.first().map_or(0, |process| process.pid);
        verdicts.push(Verdict::bad(
            State::Unknown,
            "a file system in it did not answer within a second, or is one that may never (FUSE)",
            format!("look at what it has mounted: findmnt --task {pid}"),
        ));
    } else if facts.is_partly_unseen() {
        verdicts.push(Verdict::bad(
            State::Unknown,
            "not all of its processes could be looked into",
            "run as root: sudo onload-ctk status",
        ));
    }
    verdicts.sort_by(|a, b| b.cmp(a));
    verdicts.dedup();
    verdicts
}

/// More is open in its processes than was looked at, so that what was not found may be there.
fn not_all(facts: &Facts, what: &str) -> Verdict {
    let cut = facts.processes.iter().find(|process| process.is_cut);
    let pid = cut.map_or(0, |process| process.pid);
    Verdict::bad(
        State::Unknown,
        format!("{what}: its processes have more files open or mapped than are looked at"),
        format!("look for it: ls -l /proc/{pid}/fd | grep /dev/; grep libonload /proc/{pid}/maps"),
    )
}

/// Devices that are gone or have another number.
fn devices(facts: &Facts, host: HostFacts) -> Vec<Verdict> {
    let verdicts = facts.within.nodes.iter().filter_map(|node| {
        let path = &node.path;
        // In mode exclusive a device that is in the container's namespace is not on the host.
        let is_away = host.is_rdma_exclusive && path.starts_with("/dev/infiniband/");
        match node.state {
            NodeState::Good => None,
            NodeState::Gone if is_away => None,
            NodeState::Gone => Some(Verdict::bad(
                State::DeviceGone,
                format!("{path} leads to a device that the host no longer has"),
                "load its driver again, and start a new container",
            )),
            NodeState::Renumbered { was, now } => Some(Verdict::bad(
                State::DeviceRenumbered,
                format!(
                    "{path} is {}:{}, and the device is {}:{} now",
                    was.0, was.1, now.0, now.1
                ),
                "run systemctl start onload-cdi.service, and start a new container",
            )),
        }
    });
    verdicts.collect()
}

/// Onload: the library in its programs, and an interface that is accelerated.
fn onload(facts: &Facts, host: HostFacts) -> Option<Verdict> {
    let has_onload = facts.has_node("/dev/onload") || facts.maps();
    let is_broken = |node: &super::container::NodeFact| {
        node.path.starts_with("/dev/onload") && node.state != NodeState::Good
    };
    if !has_onload || facts.within.nodes.iter().any(is_broken) {
        return None;
    }
    if !facts.maps() {
        return Some(without_library(facts));
    }
    if facts.mapping(Preload::Replaced) > 0 {
        return Some(Verdict::bad(
            State::OtherLibrary,
            "it maps a libonload.so that was removed or replaced since: Onload was upgraded",
            "start the container again",
        ));
    }
    if host.library_matches == Some(false) && facts.mapping(Preload::Yes) > 0 {
        return Some(Verdict::bad(
            State::OtherLibrary,
            "the host's libonload.so was built for another driver than the loaded one: programs get no socket",
            "run onload_tool reload, and start the container again",
        ));
    }
    Some(with_library(facts, host))
}

fn with_library(facts: &Facts, host: HostFacts) -> Verdict {
    let foreign = facts.mapping(Preload::Foreign);
    let programs = facts.mapping(Preload::Yes) + foreign;
    let all = facts.processes.len();
    let descriptors = facts.descriptors("/dev/onload");
    let has_interface = match facts.has_host_network {
        Some(true) => Some(host.has_nic),
        Some(false) => facts
            .within
            .interfaces
            .as_ref()
            .map(|all| all.iter().any(|interface| interface.is_accelerated)),
        None => None,
    };
    match (has_interface, descriptors) {
        (Some(false), _) => no_interface(facts, host),
        (None, _) => Verdict::bad(
            State::Unknown,
            "it preloads the library, and its interfaces could not be looked at",
            "run as root: sudo onload-ctk status",
        ),
        (Some(true), 0) if facts.is_cut() => not_all(
            facts,
            "whether a program has a socket of Onload is not known",
        ),
        // The driver refuses every other build than its own, and a program then goes on without it.
        (Some(true), 0) if foreign > 0 => Verdict::bad(
            State::Unknown,
            "it preloads a libonload.so that is not this host's, and none of its programs has a descriptor of Onload: the library may be of another build than the driver",
            "leave out the image's own library and LD_PRELOAD, so that it has the host's",
        ),
        (Some(true), 0) => Verdict::good(
            State::Ready,
            format!(
                "{programs} of {all} processes preload the library; none has opened a socket yet"
            ),
        ),
        (Some(true), _) => Verdict::good(
            State::Accelerated,
            format!(
                "{programs} of {all} processes preload the library and have {descriptors} descriptors of Onload"
            ),
        ),
    }
}

fn no_interface(facts: &Facts, host: HostFacts) -> Verdict {
    if facts.has_host_network == Some(true) {
        let reason = "it preloads the library, and the host has no accelerated interface";
        return Verdict::bad(
            State::NoInterface,
            reason,
            "run onload-ctk discover --explain",
        );
    }
    let names = facts.within.interfaces.iter().flatten();
    let names: Vec<&str> = names.map(|interface| interface.name.as_str()).collect();
    let seen = match names.is_empty() {
        true => "none but lo".to_owned(),
        false => names.join(", "),
    };
    let veth = match host.accelerates_veth {
        true => "",
        false => {
            "; or set oo_accelerate_veth: echo 1 > /sys/module/onload/parameters/oo_accelerate_veth, for packets between containers of this host and its own network"
        }
    };
    Verdict::bad(
        State::NoInterface,
        format!("it preloads the library, and no interface in its network is accelerated ({seen})"),
        format!(
            "start it with --network host, or a macvlan network on an accelerated interface{veth}"
        ),
    )
}

/// Why no program has the library.
fn without_library(facts: &Facts) -> Verdict {
    let lost = |reason: &str, remedy: &str| Verdict::bad(State::PreloadLost, reason, remedy);
    if facts.is_cut() {
        return not_all(facts, "whether a program has the library is not known");
    }
    let is_wanted =
        facts.start.has_preload_file || facts.start.was_given.unwrap_or(facts.start.is_told);
    if !is_wanted {
        return match facts.start.environment {
            Environment::Unknown => Verdict::bad(
                State::Unknown,
                "whether it was given the preload cannot be told",
                "run as root: sudo onload-ctk status",
            ),
            _ => Verdict::good(
                State::Plain,
                "it has the nodes of Onload and no preload, or its first program cleared its environment",
            ),
        };
    }
    let reads_environment = matches!(facts.start.program, Program::Glibc | Program::Unknown);
    if facts.start.is_secure && reads_environment && !facts.start.has_preload_file {
        return lost(
            "its program has more rights than who started it (set-user-ID, set-group-ID, file capabilities), and the loader ignores LD_PRELOAD then",
            "start the program as the user that it is to run as, without the set-user-ID bit or setcap, or set preload = \"file\" in /etc/onload-ctk/config.toml",
        );
    }
    match (facts.start.program, facts.start.environment) {
        (Program::Static, _) => lost(
            "its program is static, and nothing can be preloaded into it",
            "use a build of it that is linked with glibc",
        ),
        (Program::Musl, _) => lost(
            "its program is linked with musl, and libonload.so needs glibc",
            "use an image with glibc",
        ),
        (_, Environment::Other { .. }) => lost(
            "LD_PRELOAD was set to something else by the user or the image",
            "leave LD_PRELOAD out, or set LD_PRELOAD=libonload.so",
        ),
        (_, Environment::None { .. }) if !facts.start.has_preload_file => lost(
            "LD_PRELOAD was taken out of its environment, or all of that was cleared",
            "leave the environment as the engine sets it, or set preload = \"file\" in /etc/onload-ctk/config.toml",
        ),
        (Program::Unknown, _) => Verdict::bad(
            State::Unknown,
            "it was given the preload, no process maps the library, and its program cannot be read",
            "run as root: sudo onload-ctk status",
        ),
        _ => lost(
            "the loader could not load libonload.so",
            "look for \"cannot be preloaded\" in the log of the container; its glibc may be too old",
        ),
    }
}

/// RDMA devices of another network namespace.
fn rdma(facts: &Facts, host: HostFacts) -> Option<Verdict> {
    if !facts.has_node("/dev/infiniband/uverbs") {
        return None;
    }
    let is_elsewhere = host.is_rdma_exclusive
        && facts.has_host_network == Some(false)
        && facts.within.has_rdma == Some(false);
    if is_elsewhere {
        return Some(Verdict::bad(
            State::RdmaNamespace,
            "RDMA devices belong to one network namespace each, and none is in the container's: opening one gives EPERM",
            "run rdma system set netns shared, or start it with --network host",
        ));
    }
    let count = facts.descriptors("/dev/infiniband");
    let reason = match count {
        0 => "it has RDMA devices, and no program has opened one".to_owned(),
        count => format!("its programs have {count} descriptors of RDMA devices"),
    };
    Some(Verdict::good(State::Ready, reason))
}

/// A function that it holds and does not use.
fn vfio(facts: &Facts) -> Option<Verdict> {
    let mut held = facts
        .leases
        .iter()
        .filter(|(class, _)| *class == Class::Vfio);
    let (_, name) = held.next()?;
    let more = held.count();
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    let groups = facts
        .processes
        .iter()
        .filter_map(|process| process.open.as_ref());
    let is_used = groups.flatten().any(|target| {
        let group = target.strip_prefix("/dev/vfio/");
        group.is_some_and(|group| group != "vfio") || target.starts_with("anon_inode:[vfio")
    });
    if is_used {
        let reason = format!("its programs use vfio {name}{more}");
        return Some(Verdict::good(State::Ready, reason));
    }
    // Descriptors that are not ours to see may be among them.
    if facts.is_partly_unseen() {
        return None;
    }
    if facts.is_cut() {
        let what = format!("whether its programs use vfio {name}{more} is not known");
        return Some(not_all(facts, &what));
    }
    Some(Verdict::bad(
        State::Unused,
        format!("it holds vfio {name}{more}, and no program has a group open"),
        "stop the container, or start the program that is to use it",
    ))
}

/// A limit that is too small for what it was given.
fn memlock(facts: &Facts) -> Option<Verdict> {
    let pins = facts.has_node("/dev/infiniband/uverbs") || facts.has_node("/dev/vfio/");
    match facts.memlock() {
        Some(Limit::Bytes(bytes)) if pins && bytes < LEAST_MEMLOCK => Some(Verdict::bad(
            State::Memlock,
            format!("a process may lock {bytes} bytes, and RDMA and vfio pin what they use"),
            "start it with --ulimit memlock=-1, or install onload-hook and run onload-ctk cdi generate",
        )),
        _ => None,
    }
}

/// An interface of a function that was moved into its network, and is down or has no link.
fn down(facts: &Facts) -> Option<Verdict> {
    if facts.has_host_network != Some(false) {
        return None;
    }
    let interfaces = facts.within.interfaces.iter().flatten();
    let physical = interfaces.filter(|interface| interface.is_physical);
    let idle: Vec<_> = physical.filter(|one| !one.is_up || !one.has_link).collect();
    let pid = facts.processes.first().map_or(0, |process| process.pid);
    // One that can be set up from here comes first.
    if let Some(down) = idle.iter().find(|one| !one.is_up) {
        let name = &down.name;
        let word = shell_word(name);
        return Some(Verdict::bad(
            State::InterfaceDown,
            format!("{name} is in its network and down"),
            format!("run nsenter --net=/proc/{pid}/ns/net ip link set dev {word} up"),
        ));
    }
    let name = &idle.first()?.name;
    Some(Verdict::bad(
        State::InterfaceDown,
        format!("{name} is in its network and set up, and has no link"),
        "look at its cable and at the port at the other end; a virtual function needs its physical function up",
    ))
}
