//! A device that a container may get: the record that discovery makes, and that all else reads.

use std::collections::BTreeMap;
use std::sync::Arc;

use onload_cdi::DeviceName;
use onload_core::class::Class;
use onload_core::lease::{Lease, in_use_error};
use onload_core::select::LinkLayer;
use onload_core::vf_config::VfConfig;
use onload_sys::pci::PciAddress;
use onload_sys::text::ShortList;
use serde::Serialize;

use super::attributes::Attributes;
use crate::discover::node::OfferedNode;

/// Onload without an interface: it still accelerates loopback, pipes and epoll. No interface goes by that name.
pub const LOOPBACK: &str = "loopback";

/// What is read of the host comes first; what specifications, pools and leases say of it
/// ([`crate::offers`]) after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDevice {
    pub class: Class,
    /// Its name as a CDI device.
    pub name: DeviceName,
    /// The other functions that come with it, by whose addresses it may be leased.
    pub aliases: Vec<PciAddress>,
    pub pci: Option<PciAddress>,
    pub pcie_root: Option<String>,
    pub numa_node: Option<u32>,
    /// Its IOMMU group, if one container has that whole.
    pub group: Option<u32>,
    pub interfaces: Vec<String>,
    pub link_layers: Vec<LinkLayer>,
    /// What its virtual function is set up to be while a container has it.
    pub vf: Option<VfConfig>,
    /// Empty in an offer: what a container gets stands in the specification.
    pub nodes: Vec<Arc<OfferedNode>>,
    /// Where it stands in the array of its family in the inventory; none for one that the host does not have.
    pub read: Option<usize>,
    /// Whether a container can use it. Leases do not change it: an engine's own containers have them too.
    pub health: Health,
    /// Whether nobody new gets it; its health says since when and why.
    pub is_drained: bool,
    /// Made for offers alone: a host may have thousands of devices, and most commands ask for none of them.
    pub attributes: Attributes,
    /// The CDI devices that a container of it gets, such as `onload.dev/nic=ens1`. Empty if no
    /// specification has it; then it is not healthy.
    pub cdi: Vec<String>,
    pub pools: Vec<String>,
    /// Whether one container has it at a time.
    pub sharing: Sharing,
    /// How many containers may have it at once, if the operator said so; otherwise the engine's
    /// configuration says it.
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
    /// It cannot, and why; if `discover` gives a reason, it is that one.
    Unhealthy(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLease {
    /// The slot, from 0.
    pub slot: u32,
    /// The lease; `None` if its file is not understood. It counts all the same.
    pub lease: Option<Lease>,
    pub text: String,
}

/// A name that stands for the RDMA devices nearest to a GPU.
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
    /// A device of which only the name is known; none where that is not legal, which no name is that is offered.
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

    /// Onload without an interface.
    pub fn is_loopback(&self) -> bool {
        self.class.is_onload() && self.name.as_str() == LOOPBACK
    }

    /// The functions that it is made of.
    pub(crate) fn functions(&self) -> impl Iterator<Item = PciAddress> {
        self.pci.into_iter().chain(self.aliases.iter().copied())
    }

    /// How many containers may have it at once; `None` if nobody counts them on this host.
    pub fn max_holders(&self) -> Option<u32> {
        match self.sharing {
            Sharing::Exclusive => Some(1),
            Sharing::Shared => self.slots,
        }
    }

    /// Its health to an engine that knows the leases of its own containers: not healthy either if
    /// containers of others have all of it.
    pub fn health_excluding(&self, is_own: impl Fn(&Lease) -> bool) -> Health {
        match (&self.health, self.free_slots_excluding(is_own)) {
            (Health::Healthy, Some((0, reason))) => Health::Unhealthy(reason),
            (health, _) => health.clone(),
        }
    }

    /// How many containers can have it at once beside those of others, and who those are; `None` if no other has it,
    /// or nobody counts.
    pub fn free_slots_excluding(&self, is_own: impl Fn(&Lease) -> bool) -> Option<(u32, String)> {
        let max = self.max_holders()?;
        let leases = self.leases.iter();
        let other_leases = leases.filter(|lease| !lease.lease.as_ref().is_some_and(&is_own));
        let other_holders: Vec<String> = other_leases.map(|lease| lease.text.clone()).collect();
        if other_holders.is_empty() {
            return None;
        }
        let number = u32::try_from(other_holders.len()).unwrap_or(u32::MAX);
        let reason = in_use_error(&[ShortList(&other_holders).to_string()]).to_string();
        Some((max.saturating_sub(number), reason))
    }
}

/// The devices that are made of a family's array, each with its place there.
pub(super) fn build_devices<T>(
    array: &[T],
    make: impl Fn(&T) -> Option<HostDevice>,
) -> Vec<HostDevice> {
    let devices = array
        .iter()
        .enumerate()
        .filter_map(|(index, item)| Some(HostDevice { read: Some(index), ..make(item)? }));
    devices.collect()
}

/// The devices that a container gets only together, by the first of them: where functions have nodes of their own, an
/// IOMMU group has more than one, and still one container has it.
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
