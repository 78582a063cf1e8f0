//! The class rdma: the nodes of each RDMA device, and the right to lock memory.

use std::collections::BTreeSet;

use onload_cdi::{ContainerEdits, DeviceName, DeviceNode};
use onload_core::class::Class;
use onload_core::expect::{Expect, Expected};
use onload_core::hook_arguments::{HookArguments, MovedRdma};
use onload_core::lease::Device;

use super::edits::{READ_WRITE, Writer, nodes_only};
use super::offer::{Entry, Offer};
use crate::discover::inventory::Inventory;
use crate::discover::node::Node;
use crate::discover::rdma::{NetnsMode, RdmaDevice};

pub(super) fn offer(inventory: &Inventory, writer: &Writer<'_>) -> Offer {
    let devices = &inventory.rdma;
    if inventory.rdma_netns_mode == Some(NetnsMode::Exclusive) {
        return moving_offer(devices, writer);
    }
    let manager = devices
        .iter()
        .find_map(|device| device.connection_manager.as_ref());
    let common = manager.map(|node| writer.node(&node.path, READ_WRITE));
    Offer {
        common: nodes_only(common.into_iter().collect()),
        devices: devices.iter().map(|device| entry(device, writer)).collect(),
        all: Some(edits(devices, writer)),
    }
}

/// In mode exclusive a specification has no node of a device: a move makes them anew. The hook that moves it gives them,
/// so there is no device without the hook.
fn moving_offer(devices: &[RdmaDevice], writer: &Writer<'_>) -> Offer {
    let entries = devices.iter().filter_map(|device| {
        let edits = moving_edits(std::slice::from_ref(device), writer);
        (!edits.hooks.is_empty()).then(|| (device.device.clone(), edits))
    });
    Offer {
        common: ContainerEdits::default(),
        devices: entries.collect(),
        all: Some(moving_edits(devices, writer)),
    }
}

fn moving_edits(devices: &[RdmaDevice], writer: &Writer<'_>) -> ContainerEdits {
    let both = devices.iter().filter_map(|device| {
        let name = DeviceName::try_from(device.device.as_str()).ok()?;
        let class = Class::Rdma;
        let moved: MovedRdma = format!("{}@{}", device.name, device.pci_address?)
            .parse()
            .ok()?;
        Some((Device { class, name }, moved))
    });
    let (lease, rdma_netns): (Vec<Device>, Vec<MovedRdma>) = both.unzip();
    if lease.is_empty() {
        return ContainerEdits::default();
    }
    ContainerEdits {
        hooks: writer.moving_hooks(&HookArguments {
            memlock: Some(writer.config.memlock),
            lease,
            rdma_netns,
            ..HookArguments::default()
        }),
        ..ContainerEdits::default()
    }
}

fn entry(device: &RdmaDevice, writer: &Writer<'_>) -> Entry {
    (
        device.device.clone(),
        edits(std::slice::from_ref(device), writer),
    )
}

fn edits(devices: &[RdmaDevice], writer: &Writer<'_>) -> ContainerEdits {
    // Two devices on one function have the same companions.
    let mut given = BTreeSet::new();
    let nodes: Vec<DeviceNode> = devices
        .iter()
        .flat_map(own_nodes)
        .map(|(_, node)| node.path.as_str())
        .filter(|path| given.insert(*path))
        .map(|path| writer.node(path, READ_WRITE))
        .collect();
    // The expectation is in the devices' hook, although the node is in the common edits: one hook
    // per container.
    let manager = devices
        .iter()
        .find_map(|device| device.connection_manager.as_ref());
    let mut expected = BTreeSet::new();
    let of_device = |device| own_nodes(device).map(move |(name, node)| (name, node, device));
    let expectations = devices
        .iter()
        .flat_map(of_device)
        .filter(|(_, node, _)| expected.insert(&node.path))
        .map(|(name, node, device)| expectation(name, node, device, writer))
        .chain(manager.and_then(|node| writer.driver_expectation(node)));
    let names = devices.iter().map(|device| device.device.as_str());
    ContainerEdits {
        hooks: writer.memlock_hook(expectations, writer.leased(Class::Rdma, names)),
        ..nodes_only(nodes)
    }
}

fn own_nodes(device: &RdmaDevice) -> impl Iterator<Item = (&String, &Node)> {
    let own = device.verbs.iter().chain(&device.umad).chain(&device.issm);
    let companions = device.companions.iter().map(|(name, node)| (name, node));
    own.map(|node| (&device.name, node)).chain(companions)
}

fn expectation(name: &str, node: &Node, device: &RdmaDevice, writer: &Writer<'_>) -> Expect {
    let expected = Expected::Rdma {
        ibdev: name.to_owned(),
        pci: device.pci_address,
    };
    writer.expectation(node, expected)
}
