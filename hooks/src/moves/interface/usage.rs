//! Whether the host uses an interface, looked at right before it moves.

use std::path::Path;

use onload_core::netdev::usage::{Beside, Link as Used, LinkRoute, Namespace, shown_kind};
use onload_sys::error::Result;
use onload_sys::netlink::link::Link;
use onload_sys::{bail, bpf};

use super::leftovers;
use crate::moves::netns::{Depth, Found, Netns};

/// RDMA devices; one in software names the interface below it.
const RDMA: &str = "/sys/class/infiniband";

/// Refuses an interface that the host uses, as far as its own user namespace goes. In another one anybody may make so many
/// network namespaces that there is no time for all of them, which must keep no container from starting: that is a warning.
pub(in crate::moves) fn check(netns: &Netns, link: &Link, depth: Depth) -> Result<Option<String>> {
    let name = link.shown();
    let soft_rdma = soft_rdma_on(&name);
    let beside = Beside {
        soft_rdma: soft_rdma.as_deref(),
        has_tcx: bpf::interface::has_tcx(link),
        ..Beside::default()
    };
    let mut uses = namespace(netns)?.uses(&Used::from(link), beside);
    let mut say = |place: &Found, uppers: &[Link]| {
        uses.extend(uppers.iter().map(|upper| {
            let kind = shown_kind(&String::from_utf8_lossy(&upper.kind));
            let keeper = &place.keeper;
            format!("a {kind} in a network namespace that {keeper} keeps is on it; stop that first")
        }));
        Ok(())
    };
    let unseen = leftovers::uppers_elsewhere(netns, link, depth, leftovers::SHORT, &mut say)?;
    if !uses.is_empty() {
        bail!(
            "interface {name} is in use on this host: {}",
            uses.join("; ")
        );
    }
    Ok(unseen.map(|unseen| {
        format!(
            "interface {name} is given though something in a network namespace of another user namespace may stand on it: {unseen:#}"
        )
    }))
}

fn namespace(netns: &Netns) -> Result<Namespace> {
    let links = netns.links()?;
    let addresses = netns.addresses()?;
    let routes = netns.routes()?;
    Ok(Namespace {
        links: links.iter().map(Used::from).collect(),
        addresses,
        routes: routes.into_iter().flat_map(LinkRoute::each).collect(),
    })
}

fn soft_rdma_on(name: &str) -> Option<String> {
    let stands_on = |device: &String| {
        let parent = std::fs::read_to_string(Path::new(RDMA).join(device).join("parent"));
        parent.is_ok_and(|parent| parent.trim_end() == name)
    };
    names(Path::new(RDMA)).into_iter().find(stands_on)
}

pub(super) fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect()
}
