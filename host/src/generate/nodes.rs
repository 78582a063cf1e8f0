//! A class whose devices are nodes: what all of them have stands in the common edits.

use std::collections::BTreeSet;
use std::sync::Arc;

use onload_cdi::{ContainerEdits, DeviceNode as Given};
use onload_core::class::Class;
use onload_core::hook_arguments::HookArguments;

use super::class_edits::{ClassEdits, DeviceEdits};
use super::edit_builder::{EditBuilder, nodes_only};
use crate::devices::HostDevice;
use crate::discover::node::OfferedNode;

pub(super) fn class_edits(
    class: Class,
    devices: &[&HostDevice],
    writer: &EditBuilder<'_>,
) -> ClassEdits {
    let has =
        |device: &HostDevice, path: &str| device.nodes.iter().any(|node| node.node.path == path);
    let of_first = devices.iter().take(1).flat_map(|device| &device.nodes);
    let shared = of_first.filter(|node| node.is_shared).map(|node| node.node.path.as_str());
    let common = shared.filter(|path| devices.iter().all(|device| has(device, path)));
    let common: Vec<&str> = common.collect();
    let given = common.iter().map(|path| writer.device_node(path, writer.permissions(class)));
    let entries = devices.iter().map(|device| device_edits(device, &common, writer));
    ClassEdits {
        common: nodes_only(given.collect()),
        devices: entries.collect(),
        all: class.has_all_name().then(|| edits(class, devices, &common, writer)),
    }
}

fn device_edits(device: &HostDevice, common: &[&str], writer: &EditBuilder<'_>) -> DeviceEdits {
    let edits = edits(device.class, &[device], common, writer);
    (device.name.clone(), edits)
}

/// The expectations of a node in the common edits are in the devices' hook: one hook per container.
fn edits(
    class: Class,
    devices: &[&HostDevice],
    common: &[&str],
    writer: &EditBuilder<'_>,
) -> ContainerEdits {
    // Devices on one function may have the same nodes.
    let mut seen = BTreeSet::new();
    let nodes = devices.iter().flat_map(|device| &device.nodes);
    let nodes = nodes.filter(|node| seen.insert(node.node.path.as_str()));
    let nodes: Vec<&OfferedNode> = nodes.map(Arc::as_ref).collect();
    let given = nodes.iter().map(|node| node.node.path.as_str());
    let given = given.filter(|path| !common.contains(path));
    let given: Vec<Given> =
        given.map(|path| writer.device_node(path, writer.permissions(class))).collect();
    let (shared, own): (Vec<&OfferedNode>, Vec<&OfferedNode>) =
        nodes.into_iter().partition(|node| node.is_shared);
    let expectations = own.into_iter().chain(shared);
    let expectations = expectations.flat_map(|of| writer.expectations(of));
    let libraries = (class == Class::Rdma).then(|| writer.rdma_libraries());
    ContainerEdits {
        hooks: writer.hooks(&HookArguments {
            memlock: class.pins_memory().then_some(writer.config.memlock),
            rdma_libraries: libraries.flatten(),
            expect: expectations.collect(),
            ..writer.lease_arguments(devices)
        }),
        ..nodes_only(given)
    }
}
