//! The RDMA devices of a network namespace, told apart by their PCI functions. Only sysfs says which function a device
//! belongs to, and /sys shows the devices of the namespace that it was mounted in. So for another namespace sysfs is
//! mounted again, for this process and nowhere in the tree of files.

use std::fmt::Debug;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use onload_sys::fs::detached;
use onload_sys::netlink::nldev::{Character, NetnsMode};
use onload_sys::netlink::socket::Socket;
use onload_sys::numbers::Numbers;
use onload_sys::pci::PciAddress;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::net::netlink::RDMA;

use super::kernel;
use crate::moves::netns::Netns;

/// Where the kernel lists the devices, below the root of sysfs.
const CLASS: &str = "class/infiniband";
const NODES: &str = "/dev/infiniband";
/// The types of nodes: a device's own, and that of the connection manager, which all devices share.
const VERBS: &str = "uverbs";
const CONNECTION_MANAGER: &str = "rdma_cm";

/// The RDMA devices of this host, by the kernel: tests on machines without one that can move have others.
#[derive(Clone, Debug)]
pub struct Devices(pub Rc<dyn RdmaAccess>);

impl Default for Devices {
    fn default() -> Self {
        Devices(Rc::new(Kernel))
    }
}

/// How devices are found and told.
pub trait RdmaAccess: Debug + Sync {
    /// Whether namespaces share the devices; none where the kernel knows none.
    fn mode(&self, netns: &Netns) -> io::Result<Option<NetnsMode>>;
    fn of(&self, netns: &Netns) -> io::Result<Vec<RdmaDevice>>;
    /// Moves a device out of the namespace of the thread that calls this. The kernel compares the sender's namespace with
    /// the device's, wherever the socket was opened (`ib_device_set_netns_put`, drivers/infiniband/core/device.c).
    fn give(&self, index: u32, to: BorrowedFd<'_>) -> io::Result<()>;
    fn rename(&self, netns: &Netns, index: u32, name: &str) -> io::Result<()>;
    /// The nodes of a device of a namespace; empty where ib_uverbs gives it none.
    fn nodes(&self, netns: &Netns, index: u32) -> io::Result<Vec<Node>>;
}

#[derive(Debug)]
struct Kernel;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaDevice {
    pub index: u32,
    /// Its name; what a container has called it need be no text.
    pub name: String,
    pub pci: Option<PciAddress>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its path, on the host and in the container.
    pub path: PathBuf,
    pub numbers: Numbers,
}

impl From<Character> for Node {
    fn from(character: Character) -> Self {
        Node {
            path: Path::new(NODES).join(character.name),
            numbers: character.numbers,
        }
    }
}

impl RdmaAccess for Kernel {
    fn mode(&self, netns: &Netns) -> io::Result<Option<NetnsMode>> {
        kernel::mode(&socket_in(netns)?)
    }

    fn of(&self, netns: &Netns) -> io::Result<Vec<RdmaDevice>> {
        let links = kernel::links(&socket_in(netns)?)?;
        if links.is_empty() {
            return Ok(Vec::new());
        }
        let sysfs = sysfs_of(netns)?;
        let found = links.into_iter().map(|link| RdmaDevice {
            index: link.index,
            pci: function(&sysfs, &link.name),
            name: String::from_utf8_lossy(&link.name).into_owned(),
        });
        Ok(found.collect())
    }

    fn give(&self, index: u32, to: BorrowedFd<'_>) -> io::Result<()> {
        kernel::give(&Socket::open(Some(RDMA))?, index, to)
    }

    fn rename(&self, netns: &Netns, index: u32, name: &str) -> io::Result<()> {
        kernel::rename(&socket_in(netns)?, index, name)
    }

    fn nodes(&self, netns: &Netns, index: u32) -> io::Result<Vec<Node>> {
        let socket = socket_in(netns)?;
        let Some(verbs) = kernel::character(&socket, Some(index), VERBS)? else {
            return Ok(Vec::new());
        };
        // Programs that connect in other ways need none.
        let manager = kernel::character(&socket, None, CONNECTION_MANAGER)?;
        Ok([Some(verbs), manager]
            .into_iter()
            .flatten()
            .map(Node::from)
            .collect())
    }
}

fn socket_in(netns: &Netns) -> io::Result<Socket> {
    netns.inside(|| Socket::open(Some(RDMA)))
}

/// The root of sysfs as a namespace sees it.
fn sysfs_of(netns: &Netns) -> io::Result<OwnedFd> {
    if netns.is_own() {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        return Ok(rustix::fs::openat(CWD, "/sys", flags, Mode::empty())?);
    }
    netns.inside(|| detached::mount("sysfs"))
}

/// The function nearest above a device: the entry of the class is a link to its directory, which is below it.
fn function(sysfs: &OwnedFd, name: &[u8]) -> Option<PciAddress> {
    let name = std::str::from_utf8(name).ok()?;
    if name.contains('/') || name.starts_with('.') {
        return None;
    }
    let link = rustix::fs::readlinkat(sysfs, Path::new(CLASS).join(name), Vec::new()).ok()?;
    let path = link.to_str().ok()?;
    path.rsplit('/').find_map(|part| part.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_of_the_nearest_function_above_it() {
        let tree = tempfile::tempdir().unwrap();
        let class = tree.path().join(CLASS);
        std::fs::create_dir_all(&class).unwrap();
        let link = |name: &str, to: &str| std::os::unix::fs::symlink(to, class.join(name)).unwrap();
        let below = "../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.3";
        link("mlx5_3", &format!("{below}/infiniband/mlx5_3"));
        link("sf1", &format!("{below}/mlx5_core.sf.4/infiniband/sf1"));
        link("rxe0", "../../devices/virtual/infiniband/rxe0");
        let sysfs = OwnedFd::from(std::fs::File::open(tree.path()).unwrap());
        let of = |name: &str| function(&sysfs, name.as_bytes()).map(|pci| pci.to_string());
        assert_eq!(of("mlx5_3").as_deref(), Some("0000:3b:00.3"));
        assert_eq!(of("sf1").as_deref(), Some("0000:3b:00.3"));
        for none in ["rxe0", "gone", "..", "../infiniband/mlx5_3", ""] {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(function(&sysfs, b"\xff"), None);
    }
}
