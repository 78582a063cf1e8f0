//! The verdicts about a container, with reason and remedy. Nothing here looks at anything, and what is not known never
//! becomes a bad verdict.

use onload_core::policy::MIN_MEMLOCK;
use onload_core::rdma_providers::LIBRDMACM;
use onload_host::devices::RETRIEVE_REMEDY;
use onload_sys::text::{join_first, quote_for_shell};

use super::facts::{ContainerFacts, NodeState};
use super::onload::onload_verdict;
use super::process::MemlockLimit;
use super::rdma::LibraryUse;
use super::state::{HostFacts, Verdict, VerdictState};

pub(super) fn decide(facts: &ContainerFacts, host: HostFacts) -> Vec<Verdict> {
    if let Some(unanswered) = &facts.unanswered {
        return vec![unanswered.clone()];
    }
    if facts.is_stuck {
        let mut verdicts: Vec<Verdict> = facts.lost.iter().map(lost_verdict).collect();
        verdicts.push(stuck_verdict(facts));
        return verdicts;
    }
    let mut verdicts = device_verdicts(facts, host);
    verdicts.extend(facts.lost.iter().map(lost_verdict));
    verdicts.extend(facts.without_program.iter().map(|name| without_program_verdict(name)));
    verdicts.extend(onload_verdict(facts, host));
    verdicts.extend(rdma_verdict(facts, host));
    verdicts.extend(vfio_verdict(facts));
    verdicts.extend(memlock_verdict(facts));
    verdicts.extend(down_verdict(facts));
    if facts.is_partly_unseen() {
        verdicts.push(Verdict::with_remedy(
            VerdictState::Unknown,
            "not all of its processes could be inspected",
            "run as root: sudo onload-ctk status",
        ));
    }
    if verdicts.is_empty() && !facts.grants.is_empty() {
        verdicts.push(Verdict::without_remedy(VerdictState::Ready, "it has its devices"));
    }
    verdicts.sort_by(|a, b| b.cmp(a));
    verdicts.dedup();
    verdicts
}

fn stuck_verdict(facts: &ContainerFacts) -> Verdict {
    let pid = facts.group.pids.first().copied().unwrap_or_default();
    Verdict::with_remedy(
        VerdictState::Unknown,
        "it did not answer in time: a file system in it may hang (FUSE, NFS), or its processes \
         have too many descriptors open",
        format!("check its mounts: findmnt --task {pid}"),
    )
}

/// Why a container may have more than was found of it. The configuration of one of root's says what it may open, and what a
/// sandbox of some program shows is the host's.
pub(super) fn hidden_verdict(facts: &ContainerFacts) -> Option<Verdict> {
    let is_hidden = facts.is_stuck && facts.group.is_named && !facts.is_configured;
    is_hidden.then(|| stuck_verdict(facts))
}

fn device_verdicts(facts: &ContainerFacts, host: HostFacts) -> Vec<Verdict> {
    let verdicts = facts.root.nodes.iter().filter_map(|node| {
        let path = &node.path;
        // In mode exclusive a device that is in the container's namespace is not on the host.
        let is_away = host.is_rdma_exclusive && path.starts_with("/dev/infiniband/");
        match node.state {
            NodeState::Good => None,
            NodeState::Gone if is_away => None,
            NodeState::Gone => Some(Verdict::with_remedy(
                VerdictState::DeviceGone,
                format!("{path} refers to a device that the host no longer has"),
                "load its driver again, and start a new container",
            )),
            NodeState::Renumbered { was, now } => Some(Verdict::with_remedy(
                VerdictState::DeviceRenumbered,
                format!("{path} is {}:{}, and the device is {}:{} now", was.0, was.1, now.0, now.1),
                "run systemctl start onload-cdi.service, and start a new container",
            )),
        }
    });
    verdicts.collect()
}

fn lost_verdict((name, why): &(String, String)) -> Verdict {
    let reason = format!("{name} has left its network: {why}");
    Verdict::with_remedy(VerdictState::DeviceGone, reason, RETRIEVE_REMEDY)
}

fn without_program_verdict(interface: &str) -> Verdict {
    Verdict::with_remedy(
        VerdictState::NoStack,
        format!(
            "another XDP program has replaced Onload's on {interface}, so packets do not reach \
             Onload"
        ),
        "stop the container, follow onload-ctk doctor on returning, and start it without that \
         program",
    )
}

fn rdma_verdict(facts: &ContainerFacts, host: HostFacts) -> Option<Verdict> {
    if !facts.has_node("/dev/infiniband/uverbs") {
        return None;
    }
    let is_elsewhere = host.is_rdma_exclusive
        && facts.has_host_network == Some(false)
        && facts.root.has_rdma == Some(false);
    if is_elsewhere {
        // A lost device has a separate verdict.
        return facts.lost.is_empty().then(|| Verdict::with_remedy(
            VerdictState::RdmaNamespace,
            "each RDMA device belongs to one network namespace, and none is in the container's: \
             opening one fails with EPERM",
            "run rdma system set netns shared, or start it with --network host",
        ));
    }
    if let LibraryUse::Misfit { effect, reason } = &facts.rdma {
        return Some(Verdict::with_remedy(
            VerdictState::NoProvider,
            format!("{reason}: {effect}"),
            "start a new container with rdma-libraries = \"auto\" in config.toml, or from an image \
             with rdma-core; if it is set already, run onload-ctk doctor",
        ));
    }
    if let LibraryUse::Recorded { effect, reason } = &facts.rdma {
        return Some(Verdict::with_remedy(
            VerdictState::NoProvider,
            format!("{effect}; when it started, {reason}"),
            "follow that message, and start a new container",
        ));
    }
    let count = facts.count_descriptors("/dev/infiniband");
    let library_note = match &facts.rdma {
        LibraryUse::Elsewhere(path) => format!(", by {path:?} (not checked)"),
        LibraryUse::BuiltIn => ", by their own libibverbs (not checked)".to_owned(),
        LibraryUse::WithoutRdmacm => {
            format!(
                "; it has no {LIBRDMACM}, without which programs that need it, such as rping, do \
                 not start"
            )
        }
        _ => String::new(),
    };
    let reason = match count {
        0 => format!("it has RDMA devices, but no program has opened one{library_note}"),
        count => format!("its programs have {count} RDMA devices open{library_note}"),
    };
    Some(Verdict::without_remedy(VerdictState::Ready, reason))
}

/// A function that it holds and does not use.
fn vfio_verdict(facts: &ContainerFacts) -> Option<Verdict> {
    let held: Vec<String> = facts
        .leases
        .iter()
        .filter(|(class, _)| class.is_iommu_group())
        .map(|(_, name)| name.clone())
        .collect();
    if held.is_empty() {
        return None;
    }
    let names = join_first(&held, 1);
    let is_used = facts.processes.iter().filter_map(|process| process.open.as_ref()).flatten().any(
        |target| {
            let group = target.strip_prefix("/dev/vfio/");
            group.is_some_and(|group| group != "vfio") || target.starts_with("anon_inode:[vfio")
        },
    );
    if is_used {
        let reason = format!("its programs use vfio {names}");
        return Some(Verdict::without_remedy(VerdictState::Ready, reason));
    }
    // Descriptors that are not ours to see may be among them.
    if facts.is_partly_unseen() {
        return None;
    }
    Some(Verdict::with_remedy(
        VerdictState::Unused,
        format!("it holds vfio {names}, but no program has a group open"),
        "stop the container, or start the program that uses it",
    ))
}

fn memlock_verdict(facts: &ContainerFacts) -> Option<Verdict> {
    match facts.memlock() {
        Some(MemlockLimit::Bytes(bytes)) if facts.pins_memory() && bytes < MIN_MEMLOCK => {
            Some(Verdict::with_remedy(
                VerdictState::Memlock,
                format!(
                    "a process may lock {bytes} bytes, and RDMA and vfio lock the memory that they \
                     use"
                ),
                "start it with --ulimit memlock=-1, or install onload-hook and run onload-ctk cdi generate",
            ))
        }
        _ => None,
    }
}

/// An interface of a function that was moved into its network, and is down or has no link.
fn down_verdict(facts: &ContainerFacts) -> Option<Verdict> {
    if facts.has_host_network != Some(false) {
        return None;
    }
    let idle: Vec<_> = facts
        .interfaces
        .iter()
        .flatten()
        .filter(|interface| interface.is_physical)
        .filter(|interface| !interface.is_up || !interface.has_link)
        .collect();
    let pid = facts.processes.first().map_or(0, |process| process.pid);
    // An interface that can be set up from here comes first.
    if let Some(down) = idle.iter().find(|interface| !interface.is_up) {
        let name = &down.name;
        let word = quote_for_shell(name);
        return Some(Verdict::with_remedy(
            VerdictState::InterfaceDown,
            format!("{name} is in its network but down"),
            format!("run nsenter --net=/proc/{pid}/ns/net ip link set dev {word} up"),
        ));
    }
    let name = &idle.first()?.name;
    Some(Verdict::with_remedy(
        VerdictState::InterfaceDown,
        format!("{name} is in its network but has no link"),
        "check its cable and the port at the other end; a virtual function needs its physical \
         function up",
    ))
}
