//! Whether the nodes of a device are those that its specification was written for. If not, the hook refuses
//! each container of it.

use std::collections::BTreeMap;

use onload_core::expect::{Expect, Expected, Numbers};

use super::published::GENERATE;
use crate::discover::clock::Clock;
use crate::discover::inventory::Inventory;
use crate::discover::node::Node;
use crate::discover::rdma::RdmaDevice;
use crate::discover::vfio::VfioDevice;

/// A device of the kernel and what its nodes are called before their number: `uverbs`, `umad`. Those of
/// IOMMU groups are numbers alone.
type Key = (&'static str, String, String);

pub(super) struct Nodes {
    by_device: BTreeMap<Key, Vec<Seen>>,
}

struct Seen {
    device: Expected,
    name: String,
    numbers: Numbers,
}

impl Nodes {
    pub(super) fn of(inventory: &Inventory) -> Nodes {
        let mut nodes = Nodes {
            by_device: BTreeMap::new(),
        };
        let onload = inventory.onload.iter().flat_map(|onload| &onload.nodes);
        let tcpdirect = inventory.tcpdirect.iter();
        let tcpdirect = tcpdirect.flat_map(|tcpdirect| &tcpdirect.nodes);
        for node in onload.chain(tcpdirect).chain(&inventory.vhost_net) {
            nodes.add_driver_node(node);
        }
        inventory
            .rdma
            .iter()
            .for_each(|device| nodes.add_rdma(device));
        inventory
            .vfio
            .iter()
            .for_each(|device| nodes.add_vfio(device));
        for (class, clocks) in [("ptp", &inventory.ptp), ("pps", &inventory.pps)] {
            clocks
                .iter()
                .for_each(|clock| nodes.add_clock(class, clock));
        }
        nodes
    }

    fn add(&mut self, device: Expected, node: &Node) {
        let name = last(&node.path);
        let seen = Seen {
            name: name.to_owned(),
            numbers: Numbers {
                major: node.major,
                minor: node.minor,
            },
            device,
        };
        let of_device = self.by_device.entry(key(&seen.device, name)).or_default();
        of_device.push(seen);
    }

    fn add_driver_node(&mut self, node: &Node) {
        if let Some(device) = Expected::driver_node(last(&node.path)) {
            self.add(device, node);
        }
    }

    fn add_rdma(&mut self, device: &RdmaDevice) {
        let own = device.verbs.iter().chain(&device.umad).chain(&device.issm);
        let own = own.map(|node| (&device.name, node));
        let beside = device.companions.iter().map(|(name, node)| (name, node));
        for (name, node) in own.chain(beside) {
            let expected = Expected::Rdma {
                ibdev: name.clone(),
                pci: device.pci_address,
            };
            self.add(expected, node);
        }
        if let Some(node) = &device.connection_manager {
            self.add_driver_node(node);
        }
    }

    fn add_vfio(&mut self, device: &VfioDevice) {
        for (address, own) in &device.functions {
            for node in device.group_node.iter().chain(own) {
                self.add(Expected::Vfio { pci: *address }, node);
            }
        }
        device
            .shared_nodes
            .iter()
            .for_each(|node| self.add_driver_node(node));
    }

    fn add_clock(&mut self, class: &str, clock: &Clock) {
        if let Some(expected) = Expected::clock(class, &clock.name, clock.pci_address) {
            self.add(expected, &clock.node);
        }
    }

    /// Why the hook would refuse a container, if it would. A device without nodes of that kind is not
    /// judged: the configuration may have changed what is offered of it.
    pub(super) fn changed(&self, expected: &[Expect]) -> Option<String> {
        let wrong = expected.iter().find(|expect| {
            let name = last(&expect.node);
            let now = self.by_device.get(&key(&expect.device, name));
            now.is_some_and(|now| !now.iter().any(|seen| seen.is_as(expect, name)))
        })?;
        Some(format!(
            "its specification was written for another {}: devices have been renumbered since; {GENERATE}",
            wrong.node
        ))
    }
}

impl Seen {
    fn is_as(&self, expect: &Expect, name: &str) -> bool {
        let is_numbered = expect.written.is_none_or(|written| written == self.numbers);
        self.device == expect.device && self.name == name && is_numbered
    }
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn key(device: &Expected, node: &str) -> Key {
    let kind = node
        .trim_end_matches(|c: char| c.is_ascii_digit())
        .to_owned();
    match device {
        Expected::Rdma { ibdev, .. } => ("rdma", ibdev.clone(), kind),
        Expected::Vfio { pci } => ("vfio", pci.to_string(), kind),
        Expected::Driver(node) => (node.class, node.name.to_owned(), kind),
        Expected::Clock { class, name, .. } => (*class, name.clone(), kind),
    }
}
