//! Compares the nodes of a device with those in its specification. If they differ, the hook rejects each container with
//! the device.

use std::collections::BTreeMap;

use onload_core::expectation::{Expectation, ExpectedDevice};

use super::spec_devices::GENERATE;
use crate::devices::inventory::Inventory;

/// A kernel device and the prefix of its nodes: `uverbs`, `umad`. Nodes of IOMMU groups are only numbers.
type NodeKey = (&'static str, String, String);

pub(super) struct CurrentNodes {
    by_device: BTreeMap<NodeKey, Vec<Expectation>>,
}

impl CurrentNodes {
    pub(super) fn new(inventory: &Inventory) -> CurrentNodes {
        let mut by_device: BTreeMap<NodeKey, Vec<Expectation>> = BTreeMap::new();
        for offered in inventory.with_drained().flat_map(|device| &device.nodes) {
            let name = offered.node.name();
            for device in &offered.expected {
                let (device, number) = (device.clone(), Some(offered.node.number));
                let device_nodes = by_device.entry(node_key(&device, name)).or_default();
                let current = Expectation { node: name.to_owned(), device, number };
                // Devices may share nodes.
                if !device_nodes.contains(&current) {
                    device_nodes.push(current);
                }
            }
        }
        CurrentNodes { by_device }
    }

    /// Returns why the hook would reject a container. Ignores devices without nodes of that kind, since the
    /// configuration may have changed.
    pub(super) fn stale_reason(&self, expected: &[Expectation]) -> Option<String> {
        let stale = expected.iter().find(|expectation| {
            let name = file_name(&expectation.node);
            let now = self.by_device.get(&node_key(&expectation.device, name));
            let is_current = |current: &Expectation| {
                current.node == name
                    && current.device == expectation.device
                    && (expectation.number.is_none() || current.number == expectation.number)
            };
            now.is_some_and(|now| !now.iter().any(is_current))
        })?;
        Some(format!(
            "its specification was written for another {}: devices have been renumbered since; {GENERATE}",
            stale.node
        ))
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
