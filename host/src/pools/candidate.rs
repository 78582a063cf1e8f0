//! The devices of a class, with what a selector asks of them.

use std::collections::BTreeMap;

use onload_cdi::DeviceName;
use onload_core::class::Class;
use onload_core::pci::PciAddress;
use onload_core::pool::Member;
use onload_core::select::LinkLayer;

use crate::discover::clock::Clock;
use crate::discover::inventory::Inventory;
use crate::discover::movable::Netdev;
use crate::discover::nic::Nic;
use crate::discover::pci::PciFunction;
use crate::discover::rdma::RdmaDevice;
use crate::discover::tcpdirect;
use crate::discover::vfio::VfioDevice;

pub(super) struct Candidate<'i> {
    pub(super) member: Member,
    /// Its IOMMU group, if it is a vfio device: one container has it whole.
    pub(super) iommu_group: Option<u32>,
    /// What it is made of: a function each, or one thing without a function. It belongs to a pool where
    /// one of them does.
    pub(super) parts: Vec<Part<'i>>,
}

pub(super) struct Part<'i> {
    pub(super) function: Option<&'i PciFunction>,
    /// The physical function that it is a virtual one of.
    pub(super) physical_function: Option<PciAddress>,
    pub(super) index: Option<u32>,
    pub(super) interfaces: Vec<&'i str>,
    pub(super) link_layers: Vec<LinkLayer>,
}

pub(super) struct Places<'i> {
    inventory: &'i Inventory,
    functions: BTreeMap<&'i str, PciAddress>,
    link_layers: BTreeMap<&'i str, LinkLayer>,
    /// The physical function of each virtual one, and its index there.
    indexes: BTreeMap<PciAddress, (PciAddress, u32)>,
}

impl<'i> Places<'i> {
    pub(super) fn of(inventory: &'i Inventory) -> Places<'i> {
        let interfaces = &inventory.interfaces;
        let link_layer = |is_ipoib| {
            if is_ipoib {
                LinkLayer::InfiniBand
            } else {
                LinkLayer::Ethernet
            }
        };
        let indexes = inventory.functions.iter().flat_map(|parent| {
            let children = parent.virtual_functions.iter();
            children.map(|(index, child)| (*child, (parent.address, *index)))
        });
        Places {
            inventory,
            functions: interfaces
                .iter()
                .filter_map(|interface| Some((interface.name.as_str(), interface.pci?)))
                .collect(),
            link_layers: interfaces
                .iter()
                .map(|interface| (interface.name.as_str(), link_layer(interface.is_ipoib())))
                .collect(),
            indexes: indexes.collect(),
        }
    }

    pub(super) fn below(&self, interface: &str) -> Option<PciAddress> {
        self.functions.get(interface).copied()
    }

    pub(super) fn candidates(&self, class: Class) -> Vec<Candidate<'i>> {
        let inventory = self.inventory;
        let onload = inventory.onload.iter();
        let onload = onload.filter(|onload| onload.obstacle.is_none());
        let found = match class {
            Class::Nic | Class::NicPlain | Class::NicNodes => onload
                .flat_map(|_| &inventory.nics)
                .filter_map(|nic| self.nic(nic))
                .collect(),
            Class::Zf => inventory
                .tcpdirect
                .iter()
                .flat_map(|_| tcpdirect::interfaces(&inventory.nics))
                .filter_map(|nic| self.nic(nic))
                .collect(),
            Class::Profile => onload
                .flat_map(|onload| &onload.profiles)
                .filter_map(|profile| plain(&profile.name))
                .collect(),
            Class::Rdma => inventory
                .rdma
                .iter()
                .filter_map(|device| self.rdma(device))
                .collect(),
            Class::Vfio => inventory
                .vfio
                .iter()
                .filter(|device| device.viable)
                .filter_map(|device| self.vfio(device))
                .collect(),
            Class::Hugepages => inventory
                .hugepages
                .iter()
                .filter_map(|size| plain(&size.name))
                .collect(),
            Class::Netdev => inventory
                .netdevs
                .iter()
                .filter_map(|netdev| self.netdev(netdev))
                .collect(),
            Class::Ptp => inventory
                .ptp
                .iter()
                .filter_map(|clock| self.clock(clock))
                .collect(),
            Class::Pps => inventory
                .pps
                .iter()
                .filter_map(|clock| self.clock(clock))
                .collect(),
            Class::Bundle => Vec::new(),
        };
        one_a_group(found)
    }

    fn nic(&self, nic: &'i Nic) -> Option<Candidate<'i>> {
        let link_layer = self.link_layers.get(nic.name.as_str());
        let part = Part {
            interfaces: vec![&nic.name],
            link_layers: link_layer.copied().into_iter().collect(),
            ..self.part(nic.pci_address)
        };
        candidate(&nic.device, nic.numa_node, part)
    }

    fn rdma(&self, device: &'i RdmaDevice) -> Option<Candidate<'i>> {
        let layers = device
            .ports
            .iter()
            .filter_map(|port| port.link_layer.as_ref());
        let part = Part {
            interfaces: device.netdevs.iter().map(String::as_str).collect(),
            link_layers: layers.filter_map(|layer| layer.parse().ok()).collect(),
            ..self.part(device.pci_address)
        };
        candidate(&device.device, device.numa_node, part)
    }

    pub(super) fn netdev(&self, netdev: &'i Netdev) -> Option<Candidate<'i>> {
        let part = Part {
            interfaces: vec![&netdev.name],
            // What carries anything else is not offered.
            link_layers: vec![LinkLayer::Ethernet],
            ..self.part(Some(netdev.pci_address))
        };
        candidate(&netdev.device, netdev.numa_node, part)
    }

    fn clock(&self, clock: &'i Clock) -> Option<Candidate<'i>> {
        let link_layer = clock.nic.iter();
        let link_layer = link_layer.filter_map(|nic| self.link_layers.get(nic.as_str()));
        let part = Part {
            interfaces: clock.nic.iter().map(String::as_str).collect(),
            link_layers: link_layer.copied().collect(),
            ..self.part(clock.pci_address)
        };
        candidate(&clock.name, clock.numa_node, part)
    }

    fn vfio(&self, device: &VfioDevice) -> Option<Candidate<'i>> {
        let name = device.pci_address.to_string();
        let functions = device.functions.iter();
        Some(Candidate {
            iommu_group: Some(device.iommu_group),
            parts: functions
                .map(|(address, _)| self.part(Some(*address)))
                .collect(),
            ..candidate(&name, device.numa_node, self.part(None))?
        })
    }

    fn part(&self, address: Option<PciAddress>) -> Part<'i> {
        let function = address.and_then(|address| self.inventory.functions.get(address));
        let place = address.and_then(|address| self.indexes.get(&address));
        let linked = function.and_then(|function| function.physical_function);
        Part {
            function,
            physical_function: linked.or(place.map(|(parent, _)| *parent)),
            index: place.map(|(_, index)| *index),
            interfaces: Vec::new(),
            link_layers: Vec::new(),
        }
    }
}

/// A device that is neither on a function nor has interfaces.
fn plain<'i>(name: &str) -> Option<Candidate<'i>> {
    let part = Part {
        function: None,
        physical_function: None,
        index: None,
        interfaces: Vec::new(),
        link_layers: Vec::new(),
    };
    candidate(name, None, part)
}

/// None where the name is not legal, which no name is that is offered.
fn candidate<'i>(name: &str, numa_node: Option<u32>, part: Part<'i>) -> Option<Candidate<'i>> {
    let name = DeviceName::try_from(name).ok()?;
    Some(Candidate {
        member: Member { name, numa_node },
        iommu_group: None,
        parts: vec![part],
    })
}

/// The first device of each IOMMU group: where functions have nodes of their own, a group has more than
/// one, and still one container has it.
fn one_a_group(candidates: Vec<Candidate<'_>>) -> Vec<Candidate<'_>> {
    let mut places: BTreeMap<u32, usize> = BTreeMap::new();
    let mut kept: Vec<Candidate<'_>> = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        let place = candidate
            .iommu_group
            .map(|group| *places.entry(group).or_insert(kept.len()));
        match place.and_then(|place| kept.get_mut(place)) {
            Some(first) => first.parts.extend(candidate.parts),
            None => kept.push(candidate),
        }
    }
    kept
}
