//! Where devices are: their PCI functions, what these are virtual functions of, and the interfaces of both.

use std::collections::BTreeMap;

use onload_core::pci::PciAddress;

use super::attributes::{int, text};
use super::offer::{Attribute, Attributes};
use crate::discover::inventory::Inventory;
use crate::discover::netdev::NetDevice;

pub(super) struct Places<'i> {
    pub(super) inventory: &'i Inventory,
    /// The physical function of each virtual one, and its index there.
    indexes: BTreeMap<PciAddress, (PciAddress, u32)>,
    interfaces: BTreeMap<PciAddress, Vec<&'i NetDevice>>,
}

impl<'i> Places<'i> {
    pub(super) fn of(inventory: &'i Inventory) -> Places<'i> {
        let mut interfaces: BTreeMap<PciAddress, Vec<&NetDevice>> = BTreeMap::new();
        for interface in &inventory.interfaces {
            if let Some(pci) = interface.pci {
                interfaces.entry(pci).or_default().push(interface);
            }
        }
        for of_function in interfaces.values_mut() {
            of_function.sort_by_key(|interface| interface.port.unwrap_or(0));
        }
        let indexes = inventory.functions.iter().flat_map(|parent| {
            let children = parent.virtual_functions.iter();
            children.map(|(index, child)| (*child, (parent.address, *index)))
        });
        Places {
            inventory,
            indexes: indexes.collect(),
            interfaces,
        }
    }

    pub(super) fn root(&self, pci: PciAddress) -> Option<String> {
        self.inventory.functions.root(pci).map(str::to_owned)
    }

    pub(super) fn numa_node(&self, pci: Option<PciAddress>) -> Option<u32> {
        self.inventory.functions.get(pci?)?.numa_node
    }

    pub(super) fn interface(&self, pci: PciAddress) -> Option<&'i NetDevice> {
        self.interfaces.get(&pci)?.first().copied()
    }

    pub(super) fn named(&self, name: &str) -> Option<&'i NetDevice> {
        let interfaces = &self.inventory.interfaces;
        let found = interfaces.binary_search_by(|interface| interface.name.as_str().cmp(name));
        interfaces.get(found.ok()?)
    }

    pub(super) fn attributes(&self, pci: Option<PciAddress>) -> Attributes {
        let function = pci.and_then(|pci| self.inventory.functions.get(pci));
        let place = pci.and_then(|pci| self.indexes.get(&pci));
        let linked = function.and_then(|function| function.physical_function);
        let parent = linked.or(place.map(|(parent, _)| *parent));
        let above = parent.and_then(|parent| self.interface(parent));
        let vendor = function.map(|function| format!("{:04x}", function.id.vendor));
        let device = function.map(|function| format!("{:04x}", function.id.device));
        let driver = function.and_then(|function| function.driver.as_deref());
        let parent_text = parent.map(|parent| parent.to_string());
        Attributes::from([
            ("vendor", text(vendor.as_deref())),
            ("deviceId", text(device.as_deref())),
            ("driver", text(driver)),
            ("pf", text(parent_text.as_deref())),
            ("pfInterface", text(above.map(|above| above.name.as_str()))),
            ("virtualFunction", Attribute::Bool(parent.is_some())),
            ("vfIndex", int(place.map(|(_, index)| u64::from(*index)))),
        ])
    }
}
