//! The RDMA devices of a network namespace, identified by their PCI functions. Only sysfs shows the function of a
//! device, and /sys shows the devices of the namespace in which it was mounted. For another namespace this creates a
//! detached mount of sysfs.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use onload_sys::error::Result;
use onload_sys::fs::detached;
use onload_sys::netlink::link::Link;
use onload_sys::netlink::nldev::{RdmaChardev, RdmaNetnsMode};
use onload_sys::netlink::socket::NetlinkSocket;
use onload_sys::pci::PciAddress;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::net::netlink::RDMA;

use super::kernel;
use crate::moves::netns::Netns;

/// The class directory of RDMA devices in sysfs.
const CLASS: &str = "class/infiniband";
const NODES: &str = "/dev/infiniband";
/// Classes of nodes that belong to a single device.
const OWN_CLASSES: [&str; 2] = ["infiniband_verbs", "infiniband_mad"];
/// Types of nodes: one per device, and the connection manager's, which all devices share.
const VERBS: &str = "uverbs";
const CONNECTION_MANAGER: &str = "rdma_cm";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetnsRdmaDevice {
    pub index: u32,
    /// The name, with invalid UTF-8 replaced: a container can choose any bytes.
    pub name: String,
    pub pci: Option<PciAddress>,
}

/// Returns whether namespaces share the devices, or `None` without RDMA in the kernel.
pub(in crate::moves) fn netns_mode(netns: &Netns) -> io::Result<Option<RdmaNetnsMode>> {
    kernel::netns_mode(&open_socket(netns)?)
}

pub(in crate::moves) fn list_devices(netns: &Netns) -> io::Result<Vec<NetnsRdmaDevice>> {
    let links = kernel::list_links(&open_socket(netns)?)?;
    if links.is_empty() {
        return Ok(Vec::new());
    }
    let sysfs = open_sysfs(netns)?;
    let found = links.into_iter().map(|link| NetnsRdmaDevice {
        index: link.index,
        pci: pci_function(&sysfs, &link.name),
        name: String::from_utf8_lossy(&link.name).into_owned(),
    });
    Ok(found.collect())
}

/// Moves a device. The kernel compares the sender's namespace with the device's, regardless of where the socket was
/// opened (`ib_device_set_netns_put`, drivers/infiniband/core/device.c).
pub(in crate::moves) fn move_device(from: &Netns, index: u32, to: &Netns) -> io::Result<()> {
    let to = to.fd();
    from.run_inside(|| kernel::move_device(&NetlinkSocket::open(Some(RDMA))?, index, to))
}

pub(in crate::moves) fn rename(netns: &Netns, index: u32, name: &str) -> io::Result<()> {
    kernel::rename(&open_socket(netns)?, index, name)
}

/// Returns the nodes of a device, or nothing if ib_uverbs provides none.
pub(in crate::moves) fn nodes(netns: &Netns, index: u32) -> io::Result<Vec<RdmaChardev>> {
    let socket = open_socket(netns)?;
    let Some(verbs) = kernel::find_chardev(&socket, Some(index), VERBS)? else {
        return Ok(Vec::new());
    };
    // Programs that connect in other ways do not need this node.
    let manager = kernel::find_chardev(&socket, None, CONNECTION_MANAGER)?;
    Ok([Some(verbs), manager].into_iter().flatten().collect())
}

/// Returns the interfaces that a move deletes.
pub(in crate::moves) fn interfaces(netns: &Netns, device: &NetnsRdmaDevice) -> Result<Vec<Link>> {
    let links = netns.links()?.into_iter();
    Ok(links.filter(|link| is_ipoib_of(link, device)).collect())
}

/// Returns the kernel modules that use a device.
pub(in crate::moves) fn kernel_users(netns: &Netns, index: u32) -> io::Result<BTreeSet<String>> {
    kernel::kernel_users(&open_socket(netns)?, index)
}

/// Returns the nodes that belong only to a device on the host, including those for management.
pub(in crate::moves) fn host_nodes(name: &str) -> Vec<PathBuf> {
    find_host_nodes(Path::new("/sys/class"), name)
}

/// Returns whether an interface is an IPoIB interface of a device, which is created and deleted with the device
/// (drivers/infiniband/ulp/ipoib/ipoib_main.c, `ipoib_remove_one`).
fn is_ipoib_of(link: &Link, device: &NetnsRdmaDevice) -> bool {
    link.kind == b"ipoib" && link.function.is_some() && link.function == device.pci
}

fn find_host_nodes(classes: &Path, name: &str) -> Vec<PathBuf> {
    let mut nodes = Vec::new();
    for class in OWN_CLASSES {
        for entry in std::fs::read_dir(classes.join(class)).into_iter().flatten().flatten() {
            let owner = std::fs::read_to_string(entry.path().join("ibdev")).unwrap_or_default();
            if owner.trim_end() == name {
                nodes.push(Path::new(NODES).join(entry.file_name()));
            }
        }
    }
    nodes
}

fn open_socket(netns: &Netns) -> io::Result<NetlinkSocket> {
    netns.run_inside(|| NetlinkSocket::open(Some(RDMA)))
}

/// Opens the root of sysfs as seen from a namespace.
fn open_sysfs(netns: &Netns) -> io::Result<OwnedFd> {
    if netns.is_own() {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        return Ok(rustix::fs::openat(CWD, "/sys", flags, Mode::empty())?);
    }
    netns.run_inside(|| detached::mount("sysfs"))
}

/// Returns the closest PCI function above a device in sysfs. The class entry is a link to the device's directory.
fn pci_function(sysfs: &OwnedFd, name: &[u8]) -> Option<PciAddress> {
    let name = std::str::from_utf8(name).ok()?;
    if name.contains('/') || name.starts_with('.') {
        return None;
    }
    let link = rustix::fs::readlinkat(sysfs, Path::new(CLASS).join(name), Vec::new()).ok()?;
    link.to_str().ok()?.rsplit('/').find_map(|part| part.parse().ok())
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
        let find_function =
            |name: &str| pci_function(&sysfs, name.as_bytes()).map(|pci| pci.to_string());
        assert_eq!(find_function("mlx5_3").as_deref(), Some("0000:3b:00.3"));
        assert_eq!(find_function("sf1").as_deref(), Some("0000:3b:00.3"));
        for none in ["rxe0", "gone", "..", "../infiniband/mlx5_3", ""] {
            assert_eq!(find_function(none), None, "{none}");
        }
        assert_eq!(pci_function(&sysfs, b"\xff"), None);
    }

    #[test]
    fn interfaces_of_ip_over_infiniband_on_its_function_go_with_a_device() {
        let device = |pci: Option<&str>| NetnsRdmaDevice {
            index: 3,
            name: "mlx5_3".to_owned(),
            pci: pci.map(|pci| pci.parse().unwrap()),
        };
        let link = |kind: &str, pci: Option<&str>| Link {
            kind: kind.into(),
            function: pci.map(|pci| pci.parse().unwrap()),
            ..Link::default()
        };
        let (own, other) = (Some("0000:3b:00.3"), Some("0000:3b:00.4"));
        assert!(is_ipoib_of(&link("ipoib", own), &device(own)));
        for (link, device) in [
            (link("ipoib", other), device(own)),
            (link("ipoib", None), device(None)),
            (link("", own), device(own)),
        ] {
            assert!(!is_ipoib_of(&link, &device), "{link:?}");
        }
    }

    #[test]
    fn nodes_of_a_device_are_found_by_its_name() {
        let tree = tempfile::tempdir().unwrap();
        let nodes = [
            ("infiniband_verbs/uverbs0", "mlx5_0"),
            ("infiniband_verbs/uverbs1", "mlx5_1"),
            ("infiniband_mad/umad1", "mlx5_1"),
            ("infiniband_mad/issm1", "mlx5_1"),
        ];
        for (node, owner) in nodes {
            let node = tree.path().join(node);
            std::fs::create_dir_all(&node).unwrap();
            std::fs::write(node.join("ibdev"), format!("{owner}\n")).unwrap();
        }
        let mut found = find_host_nodes(tree.path(), "mlx5_1");
        found.sort();
        let wanted = ["issm1", "umad1", "uverbs1"].map(|name| Path::new(NODES).join(name));
        assert_eq!(found, wanted);
        assert_eq!(find_host_nodes(tree.path(), "mlx5_10"), [""; 0].map(PathBuf::from));
    }
}
