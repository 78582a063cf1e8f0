//! Virtual pairs (veth(4)) that stand in for RDMA devices: one end of each has the device's name and moves, and the other
//! stays where it is.

use std::io;
use std::path::Path;

use onload_hooks::moves::{Netns, Node, RdmaAccess, RdmaDevice};
use onload_sys::netlink::link::{Change, Link};
use onload_sys::netlink::nldev::NetnsMode;
use onload_sys::numbers::Numbers;
use onload_sys::pci::PciAddress;
use rustix::io::Errno;

const NODES: &str = "/dev/infiniband";

#[derive(Debug)]
pub(crate) struct Pair {
    /// The index of the end that stays.
    pub(crate) end: u32,
    pub(crate) pci: PciAddress,
    /// The name of its node below /dev/infiniband.
    pub(crate) node: String,
    /// Its driver cannot move it.
    pub(crate) is_fixed: bool,
}

#[derive(Debug)]
pub(crate) struct Pairs(pub(crate) Vec<Pair>);

impl Pairs {
    fn pair(&self, index: u32) -> io::Result<&Pair> {
        let found = self.0.iter().find(|pair| pair.end == index);
        found.ok_or_else(|| Errno::INVAL.into())
    }
}

impl RdmaAccess for Pairs {
    fn mode(&self, _: &Netns) -> io::Result<Option<NetnsMode>> {
        Ok(Some(NetnsMode::Exclusive))
    }

    fn of(&self, netns: &Netns) -> io::Result<Vec<RdmaDevice>> {
        let links = netns.links().map_err(io::Error::other)?;
        let found = links.iter().filter_map(|link| {
            let end = link.lower.filter(|_| link.kind == b"veth")?;
            Some(RdmaDevice {
                index: end,
                name: link.shown(),
                pci: Some(self.pair(end).ok()?.pci),
            })
        });
        Ok(found.collect())
    }

    fn give(&self, from: &Netns, index: u32, to: &Netns) -> io::Result<()> {
        if self.pair(index)?.is_fixed {
            return Err(Errno::OPNOTSUPP.into());
        }
        from.give(link_of(from, index)?, to, None)
    }

    fn rename(&self, netns: &Netns, index: u32, name: &str) -> io::Result<()> {
        let change = Change::Name(name.as_bytes());
        netns.change(link_of(netns, index)?, &change)
    }

    fn nodes(&self, _: &Netns, index: u32) -> io::Result<Vec<Node>> {
        let path = Path::new(NODES).join(&self.pair(index)?.node);
        let stat = rustix::fs::stat(&path)?;
        let numbers = Numbers {
            major: rustix::fs::major(stat.st_rdev),
            minor: rustix::fs::minor(stat.st_rdev),
        };
        Ok(vec![Node { path, numbers }])
    }
}

/// The number that a stand-in has as an interface.
fn link_of(netns: &Netns, index: u32) -> io::Result<u32> {
    let links = netns.links().map_err(io::Error::other)?;
    let is_it = |link: &&Link| link.kind == b"veth" && link.lower == Some(index);
    let found = links.iter().find(is_it).map(|link| link.index);
    found.ok_or_else(|| Errno::INVAL.into())
}
