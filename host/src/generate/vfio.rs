//! The class vfio: the PCI functions of a viable IOMMU group, and the right to lock memory.

use onload_cdi::{ContainerEdits, DeviceNode};
use onload_core::class::Class;
use onload_core::expect::{Expect, Expected};

use super::edits::{READ_WRITE, Writer, nodes_only};
use super::offer::{Entry, Offer};
use crate::discover::inventory::Inventory;
use crate::discover::node::Node;
use crate::discover::vfio::VfioDevice;

pub(super) fn offer(inventory: &Inventory, writer: &Writer<'_>) -> Offer {
    let devices: Vec<&VfioDevice> = inventory
        .vfio
        .iter()
        .filter(|device| device.viable)
        .collect();
    // The nodes that exist once per host, which every device has.
    let first = devices.iter().take(1);
    let shared: Vec<&str> = first
        .flat_map(|device| &device.shared_nodes)
        .map(|node| node.path.as_str())
        .filter(|path| devices.iter().all(|device| has(device, path)))
        .collect();
    let beside = &inventory.vhost_net;
    let common = shared
        .iter()
        .copied()
        .chain(beside.iter().map(|node| node.path.as_str()))
        .map(|path| writer.node(path, READ_WRITE))
        .collect();
    Offer {
        common: nodes_only(common),
        devices: devices
            .iter()
            .map(|device| entry(device, &shared, beside, writer))
            .collect(),
        all: None,
    }
}

fn has(device: &VfioDevice, path: &str) -> bool {
    device.nodes.iter().any(|node| node == path)
}

fn entry(device: &VfioDevice, shared: &[&str], beside: &[Node], writer: &Writer<'_>) -> Entry {
    let own = device
        .nodes
        .iter()
        .filter(|path| !shared.contains(&path.as_str()));
    let nodes: Vec<DeviceNode> = own.map(|path| writer.node(path, READ_WRITE)).collect();
    let name = device.pci_address.to_string();
    let expect = expectations(device, beside, writer);
    // One container has a group at a time: the kernel lets one process open it.
    let lease = writer.leased(Class::Vfio, [name.as_str()].into_iter());
    let hooks = writer.memlock_hook(expect, lease);
    let edits = ContainerEdits {
        hooks,
        ..nodes_only(nodes)
    };
    (name, edits)
}

/// Every function on the group's node, each on its own node, and the host's nodes.
fn expectations<'d>(
    device: &'d VfioDevice,
    beside: &'d [Node],
    writer: &'d Writer<'_>,
) -> impl Iterator<Item = Expect> + 'd {
    let group = device.group_node.iter().flat_map(move |node| {
        device
            .functions
            .iter()
            .map(move |(address, _)| (node, address))
    });
    let own = device
        .functions
        .iter()
        .filter_map(|(address, node)| Some((node.as_ref()?, address)));
    let functions = group.chain(own);
    let functions =
        functions.map(|(node, pci)| writer.expectation(node, Expected::Vfio { pci: *pci }));
    let shared = device.shared_nodes.iter().chain(beside);
    let shared = shared.filter_map(|node| writer.driver_expectation(node));
    functions.chain(shared)
}
