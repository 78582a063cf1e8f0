//! Devices that stand in for those of this machine, thread by thread: a part of the crate, with its feature `stand-ins`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use onload_sys::error::Result;
use onload_sys::netlink::link::Link;
use onload_sys::netlink::nldev::{RdmaChardev, RdmaNetnsMode};
use onload_sys::netlink::vf::{VfChange, VfSettings};
use onload_sys::pci::PciAddress;

use super::netns::Netns;
use super::rdma::NetnsRdmaDevice;

/// Virtual functions and their files in sysfs and /dev.
pub trait VfStandIns: Debug {
    fn root(&self) -> &Path;
    /// Returns the interface of the physical function and the present settings.
    fn find(&self, pci: PciAddress) -> Result<Option<(String, VfSettings)>>;
    fn apply_change(&self, pci: PciAddress, change: VfChange) -> io::Result<()>;
}

/// RDMA devices. Each function answers as the one of the same name in the crate.
pub trait RdmaAccess: Debug + Sync {
    fn netns_mode(&self, netns: &Netns) -> io::Result<Option<RdmaNetnsMode>>;
    fn list_devices(&self, netns: &Netns) -> io::Result<Vec<NetnsRdmaDevice>>;
    /// Moves a device out of the calling thread's namespace.
    fn move_device(&self, index: u32, to: BorrowedFd<'_>) -> io::Result<()>;
    fn rename(&self, netns: &Netns, index: u32, name: &str) -> io::Result<()>;
    fn nodes(&self, netns: &Netns, index: u32) -> io::Result<Vec<RdmaChardev>>;
    fn interfaces(&self, netns: &Netns, device: &NetnsRdmaDevice) -> Result<Vec<Link>>;
    fn kernel_users(&self, netns: &Netns, index: u32) -> io::Result<BTreeSet<String>>;
    fn host_nodes(&self, name: &str) -> Vec<PathBuf>;
}

thread_local! {
    static INTERFACES: RefCell<BTreeMap<u32, PciAddress>> = RefCell::default();
    static FUNCTIONS: RefCell<Option<Rc<dyn VfStandIns>>> = RefCell::default();
    static RDMA: RefCell<Option<Rc<dyn RdmaAccess>>> = RefCell::default();
}

/// Installs the functions that veth(4) pairs represent, by the index of the peer, which does not move.
pub fn install_interfaces(functions: BTreeMap<u32, PciAddress>) {
    INTERFACES.set(functions);
}

pub fn install_functions(functions: Rc<dyn VfStandIns>) {
    FUNCTIONS.set(Some(functions));
}

pub fn install_rdma(devices: Rc<dyn RdmaAccess>) {
    RDMA.set(Some(devices));
}

pub(super) fn pci_function(link: &Link) -> Option<PciAddress> {
    link.function.or_else(|| {
        let peer = link.lower.filter(|_| link.kind == b"veth")?;
        INTERFACES.with_borrow(|functions| functions.get(&peer).copied())
    })
}

pub(super) mod vf {
    use super::*;
    use crate::moves::vf::kernel;
    pub(in crate::moves) use crate::moves::vf::kernel::VirtualFunction;

    pub(in crate::moves) fn find(
        host_netns: &Netns,
        pci: PciAddress,
    ) -> Result<Option<VirtualFunction>> {
        let Some(functions) = FUNCTIONS.with_borrow(Clone::clone) else {
            return kernel::find(host_netns, pci);
        };
        Ok(functions.find(pci)?.map(|(pf_name, settings)| VirtualFunction {
            pf_name,
            pf_index: 0,
            number: 0,
            settings,
        }))
    }

    pub(in crate::moves) fn apply_change(
        host_netns: &Netns,
        pci: PciAddress,
        vf: &VirtualFunction,
        change: VfChange,
    ) -> io::Result<()> {
        match FUNCTIONS.with_borrow(Clone::clone) {
            Some(functions) => functions.apply_change(pci, change),
            None => kernel::apply_change(host_netns, pci, vf, change),
        }
    }

    pub(in crate::moves) fn host_path(path: &str) -> PathBuf {
        match FUNCTIONS.with_borrow(Clone::clone) {
            Some(functions) => functions.root().join(path.trim_start_matches('/')),
            None => kernel::host_path(path),
        }
    }
}

pub(super) mod rdma {
    use super::*;
    use crate::moves::rdma::ops;

    fn installed() -> Option<Rc<dyn RdmaAccess>> {
        RDMA.with_borrow(Clone::clone)
    }

    pub(in crate::moves) fn netns_mode(netns: &Netns) -> io::Result<Option<RdmaNetnsMode>> {
        installed().map_or_else(|| ops::netns_mode(netns), |devices| devices.netns_mode(netns))
    }

    pub(in crate::moves) fn list_devices(netns: &Netns) -> io::Result<Vec<NetnsRdmaDevice>> {
        installed().map_or_else(|| ops::list_devices(netns), |devices| devices.list_devices(netns))
    }

    pub(in crate::moves) fn move_device(from: &Netns, index: u32, to: &Netns) -> io::Result<()> {
        let Some(devices) = installed() else {
            return ops::move_device(from, index, to);
        };
        let (devices, to) = (&*devices, to.fd());
        from.run_inside(|| devices.move_device(index, to))
    }

    pub(in crate::moves) fn rename(netns: &Netns, index: u32, name: &str) -> io::Result<()> {
        match installed() {
            Some(devices) => devices.rename(netns, index, name),
            None => ops::rename(netns, index, name),
        }
    }

    pub(in crate::moves) fn nodes(netns: &Netns, index: u32) -> io::Result<Vec<RdmaChardev>> {
        installed().map_or_else(|| ops::nodes(netns, index), |devices| devices.nodes(netns, index))
    }

    pub(in crate::moves) fn interfaces(
        netns: &Netns,
        device: &NetnsRdmaDevice,
    ) -> Result<Vec<Link>> {
        match installed() {
            Some(devices) => devices.interfaces(netns, device),
            None => ops::interfaces(netns, device),
        }
    }

    pub(in crate::moves) fn kernel_users(
        netns: &Netns,
        index: u32,
    ) -> io::Result<BTreeSet<String>> {
        match installed() {
            Some(devices) => devices.kernel_users(netns, index),
            None => ops::kernel_users(netns, index),
        }
    }

    pub(in crate::moves) fn host_nodes(name: &str) -> Vec<PathBuf> {
        installed().map_or_else(|| ops::host_nodes(name), |devices| devices.host_nodes(name))
    }
}
