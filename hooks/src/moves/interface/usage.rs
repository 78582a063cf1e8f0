//! Checks whether the host uses an interface, right before it moves.

use std::fs::canonicalize;
use std::path::{Path, PathBuf};
use std::time::Instant;

use onload_core::netdev::usage::{ExtraUses, LinkRoute, NetworkState, describe_kind, is_below};
use onload_sys::error::Result;
use onload_sys::netlink::link::Link;
use onload_sys::pci::PciAddress;
use onload_sys::processes::Processes;
use onload_sys::{bail, bpf};

use super::uppers;
use crate::decide::sysfs::list_names;
use crate::moves::netns::{FoundNetns, Netns, SearchDepth};
use crate::record::lease::START_SEARCH_TIMEOUT;
use onload_lease::users::{PCI_FUNCTIONS, describe_process};

/// RDMA devices. A software device names its interface here.
const RDMA: &str = "/sys/class/infiniband";
/// The directory of their nodes.
const INFINIBAND: &str = "/dev/infiniband";
const VDPA: &str = "/sys/bus/vdpa";

/// Fails if the host uses an interface, or the other devices of its function if these go with it. Returns a warning if
/// not all network namespaces of other user namespaces could be searched: any user can create so many that the search
/// times out, which must not prevent containers from starting.
pub(in crate::moves) fn check(
    netns: &Netns,
    link: &Link,
    function: Option<PciAddress>,
    depth: SearchDepth,
) -> Result<Option<String>> {
    let name = link.display_name();
    let soft_rdma = find_soft_rdma(&name);
    let vdpa = function.and_then(|function| find_vdpa(Path::new(VDPA), function));
    let extra_uses = ExtraUses {
        soft_rdma: soft_rdma.as_deref(),
        vdpa: vdpa.as_deref(),
        has_tcx: bpf::interface::has_tcx_programs(link),
        ..ExtraUses::default()
    };
    let mut uses = read_network_state(netns)?.describe_uses(link, extra_uses);
    let verbs = function.and_then(|function| find_opener(netns, &verbs_nodes(function)));
    uses.extend(verbs.map(|opener| {
        format!("{opener}, through which it may receive its packets; stop that process")
    }));
    let mut visit = |namespace: &FoundNetns, uppers: &[Link]| {
        uses.extend(uppers.iter().map(|upper| {
            let kind = describe_kind(&String::from_utf8_lossy(&upper.kind));
            let keeper = &namespace.keeper;
            format!("a {kind} in a network namespace of {keeper} is on it; stop that first")
        }));
        Ok(())
    };
    let unseen = uppers::visit_uppers(netns, link, depth, uppers::SHORT, &mut visit)?;
    if !uses.is_empty() {
        bail!("interface {name} is in use on this host: {}", uses.join("; "));
    }
    Ok(unseen.map(|unseen| {
        format!(
            "interface {name} is provided although another user namespace may have an interface on \
             it: {unseen:#}"
        )
    }))
}

fn read_network_state(netns: &Netns) -> Result<NetworkState> {
    let links = netns.links()?;
    let addresses = netns.addresses()?;
    let routes = netns.routes()?;
    Ok(NetworkState {
        links,
        addresses,
        routes: routes.into_iter().flat_map(LinkRoute::from_route).collect(),
    })
}

fn find_soft_rdma(name: &str) -> Option<String> {
    list_names(Path::new(RDMA)).find(|device| {
        let parent = std::fs::read_to_string(Path::new(RDMA).join(device).join("parent"));
        parent.is_ok_and(|parent| parent.trim_end() == name)
    })
}

/// Returns the vDPA device of a function, which a virtual machine may use.
pub(super) fn find_vdpa(bus: &Path, function: PciAddress) -> Option<String> {
    let devices = bus.join("devices");
    list_names(&devices)
        .find(|name| canonicalize(devices.join(name)).is_ok_and(|path| is_below(&path, function)))
}

/// Returns the nodes through which programs such as DPDK use a function in addition to its driver.
fn verbs_nodes(function: PciAddress) -> Vec<PathBuf> {
    let function_dir = Path::new(PCI_FUNCTIONS).join(function.to_string());
    let names = list_names(&function_dir.join("infiniband_verbs"));
    names.map(|name| Path::new(INFINIBAND).join(name)).collect()
}

/// Returns a process of the namespace that has one of these nodes open. Returns `None` if the search timed out.
///
/// A program of another network namespace has no interface of this one to work with, and where RDMA devices move, it
/// cannot open theirs here (drivers/infiniband/core/uverbs_main.c, `ib_uverbs_open`). Such a process still has a
/// useless descriptor from before the last move, and the kernel reuses the node's number at once
/// (`ib_uverbs_remove_one`).
pub(in crate::moves) fn find_opener(netns: &Netns, nodes: &[PathBuf]) -> Option<String> {
    let deadline = Instant::now() + START_SEARCH_TIMEOUT;
    nodes.iter().find_map(|node| {
        let opener = Processes::default()
            .find_opener_among(&|directory| netns.contains_process(directory), node, deadline)
            .ok()??;
        Some(format!("{} has {node:?} open", describe_process(opener)))
    })
}
