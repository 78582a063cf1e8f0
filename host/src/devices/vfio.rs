//! The class vfio: an IOMMU group, which one container has at a time.

use onload_core::class::Class;

use super::attributes::{Attribute, Attributes, count, int};
use super::device::{HostDevice, build_devices};
use super::function_index::FunctionIndex;

pub(super) fn devices(class: Class, places: &FunctionIndex<'_>) -> Vec<HostDevice> {
    let inventory = places.inventory;
    build_devices(&inventory.vfio, |device| {
        if !device.viable {
            return None;
        }
        let nodes = device.nodes.iter().chain(&inventory.vhost_net);
        let made = HostDevice {
            aliases: device.aliases.clone(),
            group: Some(device.iommu_group),
            nodes: nodes.cloned().collect(),
            ..HostDevice::new(class, &device.pci_address.to_string())?
        };
        Some(places.place_device(made, Some(device.pci_address)))
    })
}

/// Of a function whose group is not viable, which is no device, too.
pub(super) fn attributes(device: &HostDevice, places: &FunctionIndex<'_>) -> Attributes {
    let all = &places.inventory.vfio;
    let at = |pci| all.binary_search_by_key(&pci, |read| read.pci_address);
    let read = device.pci.and_then(|pci| all.get(at(pci).ok()?));
    let group = read.map(|read| u64::from(read.iommu_group));
    let functions = device.group.map_or(0, |group| places.group_size(group));
    let mut attributes = places.attributes(device.pci);
    attributes.extend([
        ("iommuGroup", int(group)),
        ("functions", count(functions)),
        ("noIommu", Attribute::Bool(read.is_some_and(|read| read.noiommu))),
    ]);
    attributes
}
