//! The class vfio: an IOMMU group, which one container has at a time.

use onload_core::class::Class;

use super::attributes::{Attribute, Attributes, count, int};
use super::device::{HostDevice, build_devices};
use super::function_index::FunctionIndex;

pub(super) fn devices(class: Class, function_index: &FunctionIndex<'_>) -> Vec<HostDevice> {
    let inventory = function_index.inventory;
    build_devices(&inventory.vfio, |device| {
        if !device.viable {
            return None;
        }
        let nodes = device.nodes.iter().chain(&inventory.vhost_net);
        let host_device = HostDevice {
            aliases: device.aliases.clone(),
            group: Some(device.iommu_group),
            nodes: nodes.cloned().collect(),
            ..HostDevice::new(class, &device.pci_address.to_string())?
        };
        Some(function_index.place_device(host_device, Some(device.pci_address)))
    })
}

/// Returns the attributes. Also used for functions of groups that are not viable.
pub(super) fn attributes(device: &HostDevice, function_index: &FunctionIndex<'_>) -> Attributes {
    let all = &function_index.inventory.vfio;
    let read = all
        .binary_search_by_key(&device.pci, |read| Some(read.pci_address))
        .ok()
        .and_then(|index| all.get(index));
    let group = read.map(|read| u64::from(read.iommu_group));
    let functions = device.group.map_or(0, |group| function_index.group_size(group));
    let mut attributes = function_index.attributes(device.pci);
    attributes.extend([
        ("iommuGroup", int(group)),
        ("functions", count(functions)),
        ("noIommu", Attribute::Bool(read.is_some_and(|read| read.noiommu))),
    ]);
    attributes
}
