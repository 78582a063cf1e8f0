//! The class vfio: an IOMMU group, which one container has at a time.

use std::sync::Arc;

use onload_core::class::Class;
use onload_core::expect::Expected;

use super::attributes::{Attribute, Attributes, count, int};
use super::device::{Device, DeviceNode};
use super::places::Places;
use crate::discover::node::Node;
use crate::discover::vfio::VfioDevice;

pub(super) fn devices(class: Class, places: &Places<'_>) -> Vec<Device> {
    let devices = places.inventory.vfio.iter();
    let offered = devices.filter(|device| device.viable);
    let mut shared = Vec::new();
    let made = offered.filter_map(|device| {
        let made = Device {
            aliases: device.aliases.clone(),
            group: Some(device.iommu_group),
            nodes: nodes(device, places, &mut shared),
            ..Device::new(class, &device.pci_address.to_string())?
        };
        Some(places.put(made, Some(device.pci_address)))
    });
    made.collect()
}

/// Of a function whose group is not viable, which is no device, too.
pub(super) fn attributes(device: &Device, places: &Places<'_>) -> Attributes {
    let all = &places.inventory.vfio;
    let at = |pci| all.binary_search_by_key(&pci, |read| read.pci_address);
    let read = device.pci.and_then(|pci| all.get(at(pci).ok()?));
    let group = read.map(|read| u64::from(read.iommu_group));
    let functions = device.group.map_or(0, |group| places.functions_of(group));
    let mut attributes = places.attributes(device.pci);
    attributes.extend([
        ("iommuGroup", int(group)),
        ("functions", count(functions)),
        (
            "noIommu",
            Attribute::Bool(read.is_some_and(|read| read.noiommu)),
        ),
    ]);
    attributes
}

/// That of the group has each of its functions behind it, and a function's own that function.
fn nodes(
    device: &VfioDevice,
    places: &Places<'_>,
    known: &mut Vec<Arc<DeviceNode>>,
) -> Vec<Arc<DeviceNode>> {
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
    let shared = shared.map(|node| one_for_all(node, known));
    of_group.chain(own).chain(shared).collect()
}

fn one_for_all(node: &Node, known: &mut Vec<Arc<DeviceNode>>) -> Arc<DeviceNode> {
    if let Some(known) = known.iter().find(|known| known.node == *node) {
        return Arc::clone(known);
    }
    let new = DeviceNode::shared(node);
    known.push(Arc::clone(&new));
    new
}
