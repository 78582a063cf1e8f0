//! Classes whose devices are nodes. Nodes that all devices share are in the common edits.

use std::collections::BTreeSet;
use std::sync::Arc;

use onload_cdi::{ContainerEdits, DeviceNode};
use onload_core::class::Class;
use onload_core::hook_arguments::HookArguments;

use super::edit_builder::{ClassEdits, EditBuilder, nodes_only};
use crate::devices::HostDevice;
use crate::discover::node::OfferedNode;

pub(super) fn class_edits(
    class: Class,
    devices: &[&HostDevice],
    builder: &EditBuilder<'_>,
) -> ClassEdits {
    let common: Vec<&str> = devices
        .iter()
        .take(1)
        .flat_map(|device| &device.nodes)
        .filter(|node| node.is_shared)
        .map(|node| node.node.path.as_str())
        .filter(|path| devices.iter().all(|device| has_node(device, path)))
        .collect();
    let device_nodes =
        common.iter().map(|path| builder.device_node(path, builder.permissions(class)));
    let device_edits = devices
        .iter()
        .map(|device| (device.name.clone(), edits(class, &[device], &common, builder)));
    ClassEdits {
        common: nodes_only(device_nodes.collect()),
        devices: device_edits.collect(),
        all: class.has_all_name().then(|| edits(class, devices, &common, builder)),
    }
}

fn has_node(device: &HostDevice, path: &str) -> bool {
    device.nodes.iter().any(|node| node.node.path == path)
}

/// Returns the edits. Expectations for nodes in the common edits are part of the devices' hook, so that a container
/// gets one hook.
fn edits(
    class: Class,
    devices: &[&HostDevice],
    common: &[&str],
    builder: &EditBuilder<'_>,
) -> ContainerEdits {
    // Devices on one function may share nodes.
    let mut visited = BTreeSet::new();
    let nodes: Vec<&OfferedNode> = devices
        .iter()
        .flat_map(|device| &device.nodes)
        .filter(|node| visited.insert(node.node.path.as_str()))
        .map(Arc::as_ref)
        .collect();
    let device_nodes: Vec<DeviceNode> = nodes
        .iter()
        .map(|node| node.node.path.as_str())
        .filter(|path| !common.contains(path))
        .map(|path| builder.device_node(path, builder.permissions(class)))
        .collect();
    let (shared, own): (Vec<&OfferedNode>, Vec<&OfferedNode>) =
        nodes.into_iter().partition(|node| node.is_shared);
    let expectations = own.into_iter().chain(shared).flat_map(|node| builder.expectations(node));
    let libraries = (class == Class::Rdma).then(|| builder.rdma_libraries());
    ContainerEdits {
        hooks: builder.hooks(&HookArguments {
            memlock: class.pins_memory().then_some(builder.config.memlock),
            rdma_libraries: libraries.flatten(),
            expect: expectations.collect(),
            ..builder.lease_arguments(devices)
        }),
        ..nodes_only(device_nodes)
    }
}
