//! Indexes the data of discovery and leases by PCI function.

use std::collections::{BTreeMap, BTreeSet};

use onload_core::class::Class;
use onload_core::gpu_name;
use onload_core::pool::ANY;
use onload_host::devices::gpu_nics::GpuNicMap;
use onload_host::devices::inventory::Inventory;
use onload_host::devices::{Health, HostDevice};
use onload_host::discover::exclusion::ExclusionSubject;
use onload_host::discover::gpu::Distance;
use onload_host::discover::pci::PciFunction;
use onload_host::host::Host;
use onload_host::pools::PoolSet;
use onload_lease::LeaseEntry;
use onload_sys::pci::PciAddress;

use super::model::{
    NearestNics, Occupancy, TopologyDevice, TopologyFunction, TopologyGpu, TopologyInterface,
};
use crate::status::ContainerGrants;

/// The input of a topology.
#[derive(Clone, Copy, Debug)]
pub struct TopologyInput<'s> {
    pub host: &'s Host,
    pub inventory: &'s Inventory,
    pub pools: &'s PoolSet,
    /// Its leases; `None` if unknown, as for users other than root.
    pub leases: Option<&'s [LeaseEntry]>,
    pub grantees: &'s [ContainerGrants],
}

pub(super) struct DeviceIndex<'s> {
    inventory: &'s Inventory,
    interfaces: BTreeMap<PciAddress, Vec<TopologyInterface>>,
    devices: BTreeMap<PciAddress, Vec<TopologyDevice>>,
    indexes: BTreeMap<PciAddress, u32>,
    gpu_nics: GpuNicMap<'s>,
    /// Devices on no function, with their nodes.
    pub(super) off_pci: Vec<(Option<u32>, TopologyDevice)>,
}

impl<'s> DeviceIndex<'s> {
    pub(super) fn new(input: &TopologyInput<'s>) -> DeviceIndex<'s> {
        let inventory = input.inventory;
        let indexes = inventory.functions.iter().flat_map(|parent| {
            parent.virtual_functions.iter().map(|(index, child)| (*child, *index))
        });
        let mut index = DeviceIndex {
            inventory,
            interfaces: interfaces_by_function(inventory),
            devices: BTreeMap::new(),
            indexes: indexes.collect(),
            gpu_nics: GpuNicMap::from_inventory(inventory),
            off_pci: Vec::new(),
        };
        let mut holders = DeviceHolders::new(input);
        for host_device in inventory.with_drained().filter(|device| is_shown(device, inventory)) {
            let device = holders.build_device(host_device);
            let numa_node = host_device.numa_node;
            host_device
                .aliases
                .iter()
                .for_each(|alias| index.add_device(Some(*alias), numa_node, device.clone()));
            index.add_device(host_device.pci, numa_node, device);
        }
        // Devices that are held and were not asked for: their holders took them away.
        for ((class, name), holders) in holders.by_device {
            let address = name.parse().ok();
            let device =
                TopologyDevice { state: Occupancy::Held, holders, ..new_device(class, name) };
            let known = address.filter(|address| inventory.functions.get(*address).is_some());
            index.add_device(known, None, device);
        }
        index.add_excluded();
        index
    }

    fn add_device(
        &mut self,
        pci: Option<PciAddress>,
        numa_node: Option<u32>,
        device: TopologyDevice,
    ) {
        match pci {
            Some(pci) => self.devices.entry(pci).or_default().push(device),
            None => self.off_pci.push((numa_node, device)),
        }
    }

    /// Adds devices that are not offered: on their function if it is known, or else outside of any node.
    fn add_excluded(&mut self) {
        let mut by_name: BTreeMap<&str, PciAddress> = BTreeMap::new();
        for interface in &self.inventory.interfaces {
            by_name.extend(interface.pci().map(|pci| (interface.name.as_str(), pci)));
        }
        let drained: BTreeSet<(Class, &str)> = self
            .inventory
            .drained
            .iter()
            .map(|device| (device.class, device.name.as_str()))
            .collect();
        for entry in &self.inventory.not_offered {
            let ExclusionSubject::Device(class) = entry.kind else { continue };
            let name = entry.name.as_str();
            let is_gpus = class == Class::Rdma && gpu_name::is_gpu_name(name);
            if is_gpus || drained.contains(&(class, name)) {
                continue;
            }
            // An RDMA device or a clock may be called like an interface of another function.
            let is_interface = matches!(
                class,
                Class::Nic | Class::NicPlain | Class::NicNodes | Class::Zf | Class::Netdev
            );
            let by_name = by_name.get(name).copied().filter(|_| is_interface);
            let name_address = name.parse().ok().or(by_name);
            let address = entry
                .pci
                .or(name_address)
                .filter(|pci| self.inventory.functions.get(*pci).is_some());
            // An unreadable entry is named by its path.
            let is_device = match class {
                Class::Rdma => !name.starts_with("umad") && !name.starts_with("issm"),
                Class::Ptp | Class::Pps | Class::Hugepages => true,
                _ => false,
            };
            if address.is_some() || (is_device && !name.starts_with('/')) {
                let device = TopologyDevice {
                    state: Occupancy::NotOffered,
                    reason: Some(entry.reason.clone()),
                    ..new_device(class, name.to_owned())
                };
                self.add_device(address, None, device);
            }
        }
    }

    /// Returns whether a function is shown: a network function, a GPU, or one with devices.
    pub(super) fn is_shown(&self, function: &PciFunction) -> bool {
        function.is_network()
            || self.interfaces.contains_key(&function.address)
            || self.devices.contains_key(&function.address)
            || self.gpu_nics.gpus.iter().any(|(gpu, _)| *gpu == function.address)
    }

    /// A function without its link and its virtual functions.
    pub(super) fn build_function(&self, function: &PciFunction) -> TopologyFunction {
        let address = function.address;
        let mut devices = self.devices.get(&address).cloned().unwrap_or_default();
        devices.sort_by(|one, other| (one.class, &one.name).cmp(&(other.class, &other.name)));
        TopologyFunction {
            address,
            id: function.id.to_string(),
            driver: function.driver.clone(),
            link: None,
            index: self.indexes.get(&address).copied(),
            gpu: build_gpu(&self.gpu_nics, address),
            interfaces: self.interfaces.get(&address).cloned().unwrap_or_default(),
            devices,
            virtual_functions: Vec::new(),
        }
    }

    pub(super) fn parent(&self, function: &PciFunction) -> Option<PciAddress> {
        let parent = self.inventory.functions.get(function.physical_function?)?;
        Some(parent.address)
    }
}

fn interfaces_by_function(inventory: &Inventory) -> BTreeMap<PciAddress, Vec<TopologyInterface>> {
    let mut by_function: BTreeMap<PciAddress, Vec<(u32, TopologyInterface)>> = BTreeMap::new();
    for interface in &inventory.interfaces {
        let Some(pci) = interface.pci() else { continue };
        let topology_interface = TopologyInterface {
            name: interface.name.clone(),
            state: interface.operstate.clone(),
            speed_mbps: interface.speed_mbps,
        };
        let entries = by_function.entry(pci).or_default();
        entries.push((interface.port.unwrap_or(0), topology_interface));
    }
    let sorted = by_function.into_iter().map(|(pci, mut interfaces)| {
        interfaces.sort_by_key(|(port, _)| *port);
        let interfaces = interfaces.into_iter().map(|(_, interface)| interface);
        (pci, interfaces.collect())
    });
    sorted.collect()
}

fn is_shown(device: &HostDevice, inventory: &Inventory) -> bool {
    // Reserved pages are shown on their nodes.
    let is_overcommit = device.class == Class::Hugepages
        && inventory
            .hugepages
            .iter()
            .any(|size| size.total == 0 && size.name == device.name.as_str());
    (device.class.is_in_topology() && !device.is_loopback()) || is_overcommit
}

fn new_device(class: Class, name: String) -> TopologyDevice {
    TopologyDevice { class, name, state: Occupancy::Free, reason: None, holders: Vec::new() }
}

/// The containers of leases that are not over, by device, and how many may have each.
struct DeviceHolders<'s> {
    by_device: BTreeMap<(Class, String), Vec<String>>,
    input: TopologyInput<'s>,
}

impl<'s> DeviceHolders<'s> {
    fn new(input: &TopologyInput<'s>) -> DeviceHolders<'s> {
        let mut by_device: BTreeMap<(Class, String), Vec<String>> = BTreeMap::new();
        let leases = input.leases.unwrap_or_default().iter();
        for entry in leases.filter(|entry| !entry.has_ended) {
            let key = (entry.device.class, entry.device.name.to_string());
            by_device.entry(key).or_default().push(holder_name(entry));
        }
        DeviceHolders { by_device, input: *input }
    }

    /// Takes its holders out.
    fn build_device(&mut self, device: &HostDevice) -> TopologyDevice {
        let (class, name) = (device.class, device.name.to_string());
        let holders = self
            .by_device
            .remove(&(class, name.clone()))
            .unwrap_or_else(|| self.list_grantees(class, &name));
        let max = self.max_holders(class, &name).and_then(|max| usize::try_from(max).ok());
        let is_held = !holders.is_empty() && max.is_some_and(|max| holders.len() >= max);
        let reason = match &device.health {
            Health::Unhealthy(reason) if device.is_drained => Some(reason.clone()),
            _ => None,
        };
        let state = match (&reason, is_held) {
            (Some(_), _) => Occupancy::Drained,
            (None, true) => Occupancy::Held,
            (None, false) => Occupancy::Free,
        };
        TopologyDevice { state, reason, holders, ..new_device(class, name) }
    }

    /// Returns the containers with a device that has no lease, since shared classes are not counted.
    fn list_grantees(&self, class: Class, name: &str) -> Vec<String> {
        let names = [name, "all"].map(|name| format!("{}={name}", class.as_str()));
        self.input
            .grantees
            .iter()
            .filter(|grantee| grantee.devices.iter().any(|device| names.contains(device)))
            .map(|grantee| grantee.container.clone())
            .collect()
    }

    /// Returns the number of containers that may have a device at once; `None` if they are not counted.
    fn max_holders(&self, class: Class, name: &str) -> Option<u32> {
        let pools = self.input.pools;
        let class_share = pools.shares.share(class);
        let is_alone = class == Class::Rdma && self.input.inventory.is_rdma_exclusive();
        let matching = pools.offered.iter().filter(|pool| {
            let mut members = pool.pool.members.iter();
            pool.class == class
                && pool.name.as_str() != ANY
                && members.any(|member| member.name.as_str() == name)
        });
        let shares = matching.map(|pool| pool.pool.share);
        let all = shares.chain(class_share).chain(is_alone.then_some(1));
        all.min()
    }
}

fn holder_name(entry: &LeaseEntry) -> String {
    match &entry.lease {
        Ok(lease) => lease.container.to_string(),
        Err(_) => "an unknown container".to_owned(),
    }
}

/// A GPU and its nearest NICs, as shown.
fn build_gpu(gpu_nics: &GpuNicMap<'_>, address: PciAddress) -> Option<TopologyGpu> {
    let number = gpu_nics.gpus.iter().position(|(gpu, _)| *gpu == address)?;
    let (_, vendor) = gpu_nics.gpus.get(number)?;
    let alias = gpu_nics.gpu_alias(address);
    Some(TopologyGpu {
        number,
        vendor,
        nearest: find_nearest(gpu_nics, address),
        rdma_name: alias.map(|alias| alias.name.clone()),
        rdma: alias.map(|alias| alias.rdma.clone()).unwrap_or_default(),
    })
}

/// Considers only NICs with RDMA if there are any, since a GPU cannot use others directly.
fn find_nearest(gpu_nics: &GpuNicMap<'_>, gpu: PciAddress) -> NearestNics {
    let has_rdma = gpu_nics.nics.iter().any(|nic| nic.is_rdma);
    let candidates: Vec<_> = gpu_nics
        .nics
        .iter()
        .filter(|nic| nic.is_rdma || !has_rdma)
        .map(|nic| (gpu_nics.distance(gpu, nic.address), nic))
        .collect();
    let least = candidates.iter().filter_map(|(distance, _)| *distance).min();
    // A NIC at an unknown distance is below another root: it may be as near as any that is.
    let is_open = candidates.iter().any(|(distance, _)| distance.is_none());
    let Some(distance) = least.filter(|least| *least <= Distance::Phb || !is_open) else {
        return NearestNics {
            distance: None,
            nearest: Vec::new(),
            reason: is_open.then(|| gpu_nics.unknown_reason().to_owned()),
        };
    };
    let nearest = candidates.iter().filter(|(candidate, _)| *candidate == Some(distance));
    NearestNics {
        distance: Some(distance),
        nearest: nearest.map(|(_, nic)| nic.name.clone()).collect(),
        reason: None,
    }
}
