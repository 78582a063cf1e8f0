//! The class rdma in netns mode exclusive, where a device moves into the container's network namespace.

use onload_cdi::ContainerEdits;
use onload_core::class::Class;
use onload_core::device_id::DeviceId;
use onload_core::hook_arguments::{HookArguments, RdmaArgument};

use super::class_edits::ClassEdits;
use super::edit_builder::EditBuilder;
use crate::devices::HostDevice;
use crate::devices::inventory::Inventory;

/// Returns the class's edits, without nodes, since a move recreates them. The hook that moves a device provides its
/// nodes, so there are no devices without the hook.
pub(super) fn moving_class_edits(
    inventory: &Inventory,
    devices: &[&HostDevice],
    builder: &EditBuilder<'_>,
) -> ClassEdits {
    let entries = devices.iter().filter_map(|device| {
        let edits = moving_edits(inventory, &[device], builder);
        (!edits.hooks.is_empty()).then(|| (device.name.clone(), edits))
    });
    ClassEdits {
        common: ContainerEdits::default(),
        devices: entries.collect(),
        all: Some(moving_edits(inventory, devices, builder)),
    }
}

fn moving_edits(
    inventory: &Inventory,
    devices: &[&HostDevice],
    builder: &EditBuilder<'_>,
) -> ContainerEdits {
    let arguments = devices.iter().filter_map(|device| {
        let (class, name) = (Class::Rdma, device.name.clone());
        let read = inventory.rdma.get(device.read?)?;
        let argument: RdmaArgument = format!("{}@{}", read.name, device.pci?).parse().ok()?;
        Some((DeviceId { class, name }, argument))
    });
    let (lease, rdma_netns): (Vec<DeviceId>, Vec<RdmaArgument>) = arguments.unzip();
    if lease.is_empty() {
        return ContainerEdits::default();
    }
    ContainerEdits {
        hooks: builder.hooks(&HookArguments {
            memlock: Some(builder.config.memlock),
            lease,
            rdma_netns,
            rdma_libraries: builder.rdma_libraries(),
            ..HookArguments::default()
        }),
        ..ContainerEdits::default()
    }
}
