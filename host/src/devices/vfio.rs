//! The class vfio: an IOMMU group, which one container has at a time.

use std::collections::BTreeMap;

use onload_core::class::Class;
use onload_core::expect::Expected;
use onload_core::pci::PciAddress;

use super::attributes::{Attribute, count, int};
use super::device::{Device, DeviceNode};
use super::places::Places;
use crate::discover::vfio::VfioDevice;

pub(super) fn devices(places: &Places<'_>) -> Vec<Device> {
    let devices = places.inventory.vfio.iter();
    let offered = devices.filter(|device| device.viable);
    // Where functions have nodes of their own, a group has several devices.
    let mut functions: BTreeMap<u32, usize> = BTreeMap::new();
    for device in offered.clone() {
        *functions.entry(device.iommu_group).or_default() += device.functions.len();
    }
    let device = |device: &VfioDevice| {
        let pci = Some(device.pci_address);
        let functions = functions.get(&device.iommu_group).copied();
        let name = device.pci_address.to_string();
        let made = made(&name, pci, Some(device), functions.unwrap_or(0), places)?;
        Some(Device {
            aliases: device.aliases.clone(),
            group: Some(device.iommu_group),
            nodes: nodes(device, places),
            ..made
        })
    };
    offered.filter_map(device).collect()
}

pub(super) fn gone(name: &str, places: &Places<'_>) -> Option<Device> {
    let pci: Option<PciAddress> = name.parse().ok();
    let devices = &places.inventory.vfio;
    let place = pci.map(|pci| devices.binary_search_by_key(&pci, |device| device.pci_address));
    let device = place.and_then(|place| devices.get(place.ok()?));
    made(name, pci, device, 0, places)
}

fn made(
    name: &str,
    pci: Option<PciAddress>,
    device: Option<&VfioDevice>,
    functions: usize,
    places: &Places<'_>,
) -> Option<Device> {
    let group = device.map(|device| u64::from(device.iommu_group));
    let has_none = device.is_some_and(|device| device.noiommu);
    let made = places.put(Device::new(Class::Vfio, name)?, pci);
    Some(made.with(places.attributes(pci)).with([
        ("iommuGroup", int(group)),
        ("functions", count(functions)),
        ("noIommu", Attribute::Bool(has_none)),
    ]))
}

/// That of the group has each of its functions behind it, and a function's own that function.
fn nodes(device: &VfioDevice, places: &Places<'_>) -> Vec<DeviceNode> {
    let all = device.functions.iter();
    let expected = all.clone().map(|(pci, _)| Expected::Vfio { pci: *pci });
    let of_group = device.group_node.iter();
    let of_group = of_group.map(|node| DeviceNode::own(node, expected.clone().collect()));
    let own = all.filter_map(|(pci, node)| {
        let expected = vec![Expected::Vfio { pci: *pci }];
        Some(DeviceNode::own(node.as_ref()?, expected))
    });
    let shared = device
        .shared_nodes
        .iter()
        .chain(&places.inventory.vhost_net);
    of_group
        .chain(own)
        .chain(shared.map(DeviceNode::shared))
        .collect()
}
