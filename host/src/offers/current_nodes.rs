//! Whether the nodes of a device are those that its specification was written for. If not, the hook refuses
//! each container of it.

use std::collections::BTreeMap;

use onload_core::expectation::{Expectation, ExpectedDevice};
use onload_sys::device_number::DeviceNumber;

use super::spec_devices::GENERATE;
use crate::devices::inventory::Inventory;
use crate::discover::node::OfferedNode;

/// A device of the kernel and what its nodes are called before their number: `uverbs`, `umad`. Those of
/// IOMMU groups are numbers alone.
type NodeKey = (&'static str, String, String);

pub(super) struct CurrentNodes {
    by_device: BTreeMap<NodeKey, Vec<CurrentNode>>,
}

struct CurrentNode {
    device: ExpectedDevice,
    name: String,
    numbers: DeviceNumber,
}

impl CurrentNodes {
    pub(super) fn new(inventory: &Inventory) -> CurrentNodes {
        let mut nodes = CurrentNodes { by_device: BTreeMap::new() };
        let all = inventory.with_drained().flat_map(|device| &device.nodes);
        all.for_each(|node| nodes.add(node));
        nodes
    }

    fn add(&mut self, of: &OfferedNode) {
        let (name, node) = (file_name(&of.node.path), &of.node);
        for device in &of.expected {
            let of_device = self.by_device.entry(node_key(device, name)).or_default();
            // Devices share nodes.
            if of_device.iter().all(|seen| seen.name != name) {
                of_device.push(CurrentNode {
                    name: name.to_owned(),
                    numbers: node.numbers,
                    device: device.clone(),
                });
            }
        }
    }

    /// Why the hook would refuse a container, if it would. A device without nodes of that kind is not
    /// judged: the configuration may have changed what is offered of it.
    pub(super) fn stale_reason(&self, expected: &[Expectation]) -> Option<String> {
        let wrong = expected.iter().find(|expect| {
            let name = file_name(&expect.node);
            let now = self.by_device.get(&node_key(&expect.device, name));
            now.is_some_and(|now| !now.iter().any(|seen| seen.matches(expect, name)))
        })?;
        Some(format!(
            "its specification was written for another {}: devices have been renumbered since; {GENERATE}",
            wrong.node
        ))
    }
}

impl CurrentNode {
    fn matches(&self, expect: &Expectation, name: &str) -> bool {
        let is_numbered = expect.written.is_none_or(|written| written == self.numbers);
        self.device == expect.device && self.name == name && is_numbered
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
