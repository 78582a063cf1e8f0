//! Virtual pairs (veth(4)) that stand in for RDMA devices: one end of each has the device's name and moves, and the other
//! stays where it is.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use onload_hooks::moves::{Netns, Node, RdmaAccess, RdmaDevice};
use onload_sys::netlink::link::{self, Change, Link};
use onload_sys::netlink::nldev::NetnsMode;
use onload_sys::netlink::socket::Socket;
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

    /// rtnetlink's messages count where their socket was opened, whoever sends them. Those that move an RDMA device count
    /// where the sender is (`rdma_dev_change_netns`, drivers/infiniband/core/device.c), so the socket is opened there.
    fn give(&self, index: u32, to: BorrowedFd<'_>) -> io::Result<()> {
        if self.pair(index)?.is_fixed {
            return Err(Errno::OPNOTSUPP.into());
        }
        let here = Socket::open(None)?;
        let links = here.list(link::GET, &link::all(), &link::parse)?;
        let moving = link_of(&links, index).ok_or(Errno::NODEV)?;
        here.tell(link::SET, 0, &link::to_namespace(moving, to, None))
    }

    fn rename(&self, netns: &Netns, index: u32, name: &str) -> io::Result<()> {
        let links = netns.links().map_err(io::Error::other)?;
        let renamed = link_of(&links, index).ok_or(Errno::INVAL)?;
        netns.change(renamed, &Change::Name(name.as_bytes()))
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
fn link_of(links: &[Link], index: u32) -> Option<u32> {
    let is_it = |link: &&Link| link.kind == b"veth" && link.lower == Some(index);
    links.iter().find(is_it).map(|link| link.index)
}
