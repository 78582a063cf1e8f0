//! Virtual pairs (veth(4)) that stand in for RDMA devices: one end of each has the device's name and moves, and the other
//! stays where it is.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use onload_hooks::moves::stand_ins::RdmaAccess;
use onload_hooks::moves::{Netns, NetnsRdmaDevice};
use onload_sys::device_number::DeviceNumber;
use onload_sys::error::Result;
use onload_sys::netlink::link::{self, Link, LinkChange};
use onload_sys::netlink::nldev::{RdmaChardev, RdmaNetnsMode};
use onload_sys::netlink::socket::NetlinkSocket;
use onload_sys::pci::PciAddress;
use rustix::io::Errno;

const NODES: &str = "/dev/infiniband";
/// The modules of the kernel that use the devices, one a line.
const KERNEL_USERS: &str = "/tmp/kernel-users";

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
        self.0.iter().find(|pair| pair.end == index).ok_or_else(|| Errno::INVAL.into())
    }
}

impl RdmaAccess for Pairs {
    fn netns_mode(&self, _: &Netns) -> io::Result<Option<RdmaNetnsMode>> {
        Ok(Some(RdmaNetnsMode::Exclusive))
    }

    fn list_devices(&self, netns: &Netns) -> io::Result<Vec<NetnsRdmaDevice>> {
        let links = netns.links().map_err(io::Error::other)?;
        let found = links.iter().filter_map(|link| {
            let end = link.lower.filter(|_| link.kind == b"veth")?;
            Some(NetnsRdmaDevice {
                index: end,
                name: link.display_name(),
                pci: Some(self.pair(end).ok()?.pci),
            })
        });
        Ok(found.collect())
    }

    /// rtnetlink's messages count where their socket was opened, whoever sends them. Those that move an RDMA device count
    /// where the sender is (`rdma_dev_change_netns`, drivers/infiniband/core/device.c), so the socket is opened there.
    fn move_device(&self, index: u32, to: BorrowedFd<'_>) -> io::Result<()> {
        if self.pair(index)?.is_fixed {
            return Err(Errno::OPNOTSUPP.into());
        }
        let here = NetlinkSocket::open(None)?;
        let links = here.list(link::GET, &link::dump_payload(), &link::parse)?;
        let moving = link_of(&links, index).ok_or(Errno::NODEV)?;
        here.execute(link::SET, 0, &link::to_namespace(moving, to, None))
    }

    fn rename(&self, netns: &Netns, index: u32, name: &str) -> io::Result<()> {
        let links = netns.links().map_err(io::Error::other)?;
        let renamed = link_of(&links, index).ok_or(Errno::INVAL)?;
        netns.change_link(renamed, &LinkChange::Name(name.as_bytes()))
    }

    fn nodes(&self, _: &Netns, index: u32) -> io::Result<Vec<RdmaChardev>> {
        let name = self.pair(index)?.node.clone();
        let stat = rustix::fs::stat(Path::new(NODES).join(&name))?;
        let number = DeviceNumber {
            major: rustix::fs::major(stat.st_rdev),
            minor: rustix::fs::minor(stat.st_rdev),
        };
        Ok(vec![RdmaChardev { name, number }])
    }

    /// One that is called `ib` and the device's number.
    fn interfaces(&self, netns: &Netns, device: &NetnsRdmaDevice) -> Result<Vec<Link>> {
        let name = format!("ib{}", device.index);
        let links = netns.links()?.into_iter();
        Ok(links.filter(|link| link.has_name(name.as_bytes())).collect())
    }

    fn kernel_users(&self, _: &Netns, _: u32) -> io::Result<BTreeSet<String>> {
        let users = std::fs::read_to_string(KERNEL_USERS).unwrap_or_default();
        Ok(users.lines().map(str::to_owned).collect())
    }

    /// One that is called `umad` and the device's number: who has a node open is looked for on the whole machine.
    fn host_nodes(&self, name: &str) -> Vec<PathBuf> {
        let device = name.strip_prefix("mlx5_").and_then(|number| number.parse::<usize>().ok());
        let pair = device.and_then(|number| self.0.get(number));
        pair.map(|pair| Path::new(NODES).join(format!("umad{}", pair.end))).into_iter().collect()
    }
}

/// The number that a stand-in has as an interface.
fn link_of(links: &[Link], index: u32) -> Option<u32> {
    let is_it = |link: &&Link| link.kind == b"veth" && link.lower == Some(index);
    links.iter().find(is_it).map(|link| link.index)
}
