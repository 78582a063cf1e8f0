//! A device that a container may get, as discovery records it for all other code.

use std::collections::BTreeMap;
use std::sync::Arc;

use onload_cdi::DeviceName;
use onload_core::class::Class;
use onload_core::select::LinkLayer;
use onload_core::vf_config::VfConfig;
use onload_lease::{Lease, in_use_error};
use onload_sys::pci::PciAddress;
use onload_sys::text::ShortList;
use serde::Serialize;

use super::attributes::Attributes;
use crate::discover::node::OfferedNode;

/// Onload without an interface: it still accelerates loopback, pipes and epoll. No interface can have this name.
pub const LOOPBACK: &str = "loopback";
/// The state of an interface in a container, and of one whose container has exited.
pub const STATE_HELD: &str = "held";
pub const RETURNING: &str = "returning";

/// The first fields are read from the host, the others come from specifications, pools and leases ([`crate::offers`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDevice {
    pub class: Class,
    /// The name of the CDI device.
    pub name: DeviceName,
    /// Other PCI functions that belong to it. It may be leased by their addresses.
    pub aliases: Vec<PciAddress>,
    pub pci: Option<PciAddress>,
    pub pcie_root: Option<String>,
    pub numa_node: Option<u32>,
    /// Its IOMMU group, if a container gets the whole group.
    pub group: Option<u32>,
    pub interfaces: Vec<String>,
    pub link_layers: Vec<LinkLayer>,
    /// Settings of its virtual function while a container has it.
    pub vf: Option<VfConfig>,
    /// Empty in an offer, since the specification has the nodes.
    pub nodes: Vec<Arc<OfferedNode>>,
    /// Its index in the family's array of the inventory. `None` for a device that the host does not have.
    pub read: Option<usize>,
    /// Whether a container can use it, regardless of leases, since an engine's own containers have leases too.
    pub health: Health,
    /// Whether it is drained: no further container gets it. Its health has the time and reason.
    pub is_drained: bool,
    /// Filled only for offers, since a host may have thousands of devices and most commands need no attributes.
    pub attributes: Attributes,
    /// The CDI devices that a container gets, such as `onload.dev/nic=ens1`. Empty if no specification has it, in which
    /// case it is unhealthy.
    pub cdi: Vec<String>,
    pub pools: Vec<String>,
    /// Whether a single container can have it at a time.
    pub sharing: Sharing,
    /// The number of containers that may have it at once, if config.toml sets it. Otherwise the engine's configuration
    /// decides.
    pub slots: Option<u32>,
    pub leases: Vec<DeviceLease>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sharing {
    Exclusive,
    Shared,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Healthy,
    /// It cannot be used, with the reason that `discover` shows.
    Unhealthy(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLease {
    /// The slot, from 0.
    pub slot: u32,
    /// The lease; `None` if its file cannot be parsed, in which case it still counts.
    pub lease: Option<Lease>,
    pub text: String,
}

/// A name for the RDMA devices nearest to a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuAlias {
    pub name: String,
    pub gpu: PciAddress,
    /// At least one.
    pub rdma: Vec<String>,
}

impl Health {
    pub(crate) fn from_trouble(trouble: Option<String>) -> Self {
        trouble.map_or(Health::Healthy, Health::Unhealthy)
    }
}

impl HostDevice {
    /// Creates a device of which only the name is known. Returns `None` if the name is invalid.
    pub fn new(class: Class, name: &str) -> Option<Self> {
        Some(HostDevice {
            class,
            name: DeviceName::try_from(name).ok()?,
            aliases: Vec::new(),
            pci: None,
            pcie_root: None,
            numa_node: None,
            group: None,
            interfaces: Vec::new(),
            link_layers: Vec::new(),
            vf: None,
            nodes: Vec::new(),
            read: None,
            attributes: Attributes::new(),
            health: Health::Healthy,
            is_drained: false,
            cdi: Vec::new(),
            pools: Vec::new(),
            sharing: Sharing::Shared,
            slots: None,
            leases: Vec::new(),
        })
    }

    /// Returns whether the device is Onload without an interface.
    pub fn is_loopback(&self) -> bool {
        self.class.is_onload() && self.name.as_str() == LOOPBACK
    }

    /// Iterates over its PCI functions.
    pub(crate) fn functions(&self) -> impl Iterator<Item = PciAddress> {
        self.pci.into_iter().chain(self.aliases.iter().copied())
    }

    /// Returns the number of containers that may have it at once; `None` if this host does not count them.
    pub fn max_holders(&self) -> Option<u32> {
        match self.sharing {
            Sharing::Exclusive => Some(1),
            Sharing::Shared => self.slots,
        }
    }

    /// Returns its health for an engine that accounts for its own containers: also unhealthy if other engines'
    /// containers use it up.
    pub fn health_excluding(&self, is_own: impl Fn(&Lease) -> bool) -> Health {
        match (&self.health, self.free_slots_excluding(is_own)) {
            (Health::Healthy, Some((0, reason))) => Health::Unhealthy(reason),
            (health, _) => health.clone(),
        }
    }

    /// Returns the number of containers that can have it in addition to other engines' containers, and names these.
    /// `None` if no other engine's container has it, or if they are not counted.
    pub fn free_slots_excluding(&self, is_own: impl Fn(&Lease) -> bool) -> Option<(u32, String)> {
        let max = self.max_holders()?;
        let other_holders: Vec<String> = self
            .leases
            .iter()
            .filter(|lease| !lease.lease.as_ref().is_some_and(&is_own))
            .map(|lease| lease.text.clone())
            .collect();
        if other_holders.is_empty() {
            return None;
        }
        let number = u32::try_from(other_holders.len()).unwrap_or(u32::MAX);
        let reason = in_use_error(&[ShortList(&other_holders).to_string()]).to_string();
        Some((max.saturating_sub(number), reason))
    }
}

/// Creates devices from a family's array, each with its index there.
pub(super) fn build_devices<T>(
    array: &[T],
    make: impl Fn(&T) -> Option<HostDevice>,
) -> Vec<HostDevice> {
    array
        .iter()
        .enumerate()
        .filter_map(|(index, item)| Some(HostDevice { read: Some(index), ..make(item)? }))
        .collect()
}

/// Groups the devices that a container gets only together: if functions have their own nodes, an IOMMU group consists
/// of several devices but still belongs to one container.
pub(crate) fn group_inseparable<'d>(
    devices: impl Iterator<Item = &'d HostDevice>,
) -> Vec<Vec<&'d HostDevice>> {
    let mut indexes: BTreeMap<u32, usize> = BTreeMap::new();
    let mut all: Vec<Vec<&HostDevice>> = Vec::new();
    for device in devices {
        let index = device.group.map(|group| *indexes.entry(group).or_insert(all.len()));
        match index.and_then(|index| all.get_mut(index)) {
            Some(group) => group.push(device),
            None => all.push(vec![device]),
        }
    }
    all
}
