//! Indexes PCI functions: their physical functions and interfaces.

use std::collections::BTreeMap;

use onload_core::select::LinkLayer;
use onload_sys::pci::PciAddress;

use super::attributes::{Attribute, Attributes, int, text};
use super::device::HostDevice;
use super::inventory::Inventory;
use crate::discover::netdev::{NetworkInterface, find_by_name, group_without_representors};
use crate::discover::pci::PciFunction;

pub(crate) struct FunctionIndex<'i> {
    pub(super) inventory: &'i Inventory,
    interfaces: BTreeMap<PciAddress, Vec<&'i NetworkInterface>>,
    /// The number of functions in each offered IOMMU group: with their own nodes, these are several devices.
    groups: BTreeMap<u32, usize>,
}

impl<'i> FunctionIndex<'i> {
    pub(crate) fn from_inventory(inventory: &'i Inventory) -> FunctionIndex<'i> {
        let mut groups: BTreeMap<u32, usize> = BTreeMap::new();
        for device in inventory.vfio.iter().filter(|device| device.viable) {
            *groups.entry(device.iommu_group).or_default() += 1 + device.aliases.len();
        }
        FunctionIndex {
            inventory,
            interfaces: group_without_representors(&inventory.interfaces),
            groups,
        }
    }

    pub(super) fn interface(&self, name: &str) -> Option<&'i NetworkInterface> {
        find_by_name(&self.inventory.interfaces, name)
    }

    pub(super) fn link_layer(&self, interface: &str) -> Option<LinkLayer> {
        Some(link_layer(self.interface(interface)?))
    }

    pub(super) fn group_size(&self, group: u32) -> usize {
        self.groups.get(&group).copied().unwrap_or_default()
    }

    pub(super) fn find(&self, pci: Option<PciAddress>) -> Option<&'i PciFunction> {
        self.inventory.functions.get(pci?)
    }

    /// Adds the data of a PCI function to a device.
    pub(super) fn place_device(&self, device: HostDevice, pci: Option<PciAddress>) -> HostDevice {
        let functions = &self.inventory.functions;
        let root = pci.and_then(|pci| functions.pcie_root(pci));
        HostDevice {
            pci,
            pcie_root: root.map(str::to_owned),
            numa_node: pci.and_then(|pci| functions.get(pci)?.numa_node),
            ..device
        }
    }

    pub(super) fn attributes(&self, pci: Option<PciAddress>) -> Attributes {
        let function = self.find(pci);
        let physical_function = function.and_then(|function| function.physical_function);
        let pf_interface =
            physical_function.and_then(|parent| self.interfaces.get(&parent)?.first());
        let id = |number: u16| format!("{number:04x}");
        let vendor = function.map(|function| id(function.id.vendor));
        let device = function.map(|function| id(function.id.device));
        let driver = function.and_then(|function| function.driver.as_deref());
        let parent = physical_function.map(|parent| parent.to_string());
        let mut attributes = Attributes::from([
            ("vendor", text(vendor.as_deref())),
            ("deviceId", text(device.as_deref())),
            ("driver", text(driver)),
            ("pf", text(parent.as_deref())),
            ("pfInterface", text(pf_interface.map(|pf_interface| pf_interface.name.as_str()))),
            ("virtualFunction", Attribute::Bool(parent.is_some())),
            ("vfIndex", int(function.and_then(|function| function.vf_index).map(u64::from))),
        ]);
        let data_direct = &self.inventory.data_direct;
        if data_direct.iter().next().is_some() {
            let data_function =
                physical_function.or(pci).and_then(|nic| data_direct.function_for(nic));
            let root =
                data_function.and_then(|address| self.inventory.functions.pcie_root(address));
            attributes.insert("dataDirectRoot", text(root));
        }
        attributes
    }
}

/// Returns the link layer of an interface.
pub(super) fn link_layer(interface: &NetworkInterface) -> LinkLayer {
    if interface.is_ipoib() { LinkLayer::InfiniBand } else { LinkLayer::Ethernet }
}
