//! Compares the nodes of a device with those in its specification. If they differ, the hook rejects each container with
//! the device.

use std::collections::BTreeMap;

use onload_core::expectation::{Expectation, ExpectedDevice};
use onload_sys::device_number::DeviceNumber;

use super::spec_devices::GENERATE;
use crate::devices::inventory::Inventory;
use crate::discover::node::OfferedNode;

/// A kernel device and the prefix of its nodes: `uverbs`, `umad`. Nodes of IOMMU groups are only numbers.
type NodeKey = (&'static str, String, String);

pub(super) struct CurrentNodes {
    by_device: BTreeMap<NodeKey, Vec<CurrentNode>>,
}

struct CurrentNode {
    device: ExpectedDevice,
    name: String,
    number: DeviceNumber,
}

impl CurrentNodes {
    pub(super) fn new(inventory: &Inventory) -> CurrentNodes {
        let mut nodes = CurrentNodes { by_device: BTreeMap::new() };
        let all = inventory.with_drained().flat_map(|device| &device.nodes);
        all.for_each(|node| nodes.add(node));
        nodes
    }

    fn add(&mut self, offered: &OfferedNode) {
        let (name, node) = (file_name(&offered.node.path), &offered.node);
        for device in &offered.expected {
            let device_nodes = self.by_device.entry(node_key(device, name)).or_default();
            // Devices may share nodes.
            if device_nodes.iter().all(|current| current.name != name) {
                device_nodes.push(CurrentNode {
                    name: name.to_owned(),
                    number: node.number,
                    device: device.clone(),
                });
            }
        }
    }

    /// Returns why the hook would reject a container. Ignores devices without nodes of that kind, since the
    /// configuration may have changed.
    pub(super) fn stale_reason(&self, expected: &[Expectation]) -> Option<String> {
        let stale = expected.iter().find(|expectation| {
            let name = file_name(&expectation.node);
            let now = self.by_device.get(&node_key(&expectation.device, name));
            now.is_some_and(|now| !now.iter().any(|current| current.matches(expectation, name)))
        })?;
        Some(format!(
            "its specification was written for another {}: devices have been renumbered since; {GENERATE}",
            stale.node
        ))
    }
}

impl CurrentNode {
    fn matches(&self, expectation: &Expectation, name: &str) -> bool {
        let is_numbered = expectation.number.is_none_or(|written| written == self.number);
        self.device == expectation.device && self.name == name && is_numbered
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn node_key(device: &ExpectedDevice, node: &str) -> NodeKey {
    let kind = node.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
    match device {
        ExpectedDevice::Rdma { ibdev, .. } => ("rdma", ibdev.clone(), kind),
        ExpectedDevice::Vfio { pci } => ("vfio", pci.to_string(), kind),
        ExpectedDevice::Driver(node) => (node.class, node.name.to_owned(), kind),
        ExpectedDevice::Clock { class, name, .. } => (*class, name.clone(), kind),
    }
}
