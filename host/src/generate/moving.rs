//! Devices that move into the container's network namespace: the class netdev, and in netns mode exclusive the class
//! rdma. A specification contains only a hook that moves the device, and the same hook at the end to return it.

use onload_cdi::ContainerEdits;
use onload_core::class::Class;
use onload_core::config::{Config, Mover};
use onload_core::device_id::DeviceId;
use onload_core::hook_arguments::{HookArguments, InterfaceValue, NetdevArgument, RdmaArgument};
use onload_core::host_settings::InterfaceName;

use super::edit_builder::{ClassEdits, DeviceEdits, EditBuilder};
use crate::devices::HostDevice;
use crate::devices::inventory::Inventory;
use crate::pools::NamedPool;

/// Returns the edits of the class netdev. Empty without the hook, which moves the interfaces.
pub(super) fn netdev_class_edits(
    devices: &[&HostDevice],
    pools: &[NamedPool],
    config: &Config,
    builder: &EditBuilder<'_>,
) -> ClassEdits {
    let entries = devices.iter().filter_map(|netdev| {
        if is_left_to_cni(netdev, pools, config) {
            Some((netdev.name.clone(), ContainerEdits::default()))
        } else {
            device_edits(netdev, config, builder)
        }
    });
    ClassEdits { devices: entries.collect(), ..ClassEdits::default() }
}

/// Returns whether one of its pools leaves the move to a CNI plugin.
fn is_left_to_cni(netdev: &HostDevice, pools: &[NamedPool], config: &Config) -> bool {
    let pools = pools.iter().filter(|pool| pool.class == Class::Netdev);
    let mut cni_pools = pools.filter(|pool| {
        let settings = config.pools.get(pool.name.as_str());
        settings.is_some_and(|settings| settings.mover == Mover::Cni)
    });
    cni_pools.any(|pool| {
        let mut members = pool.pool.members.iter();
        members.any(|member| member.name == netdev.name)
    })
}

fn device_edits(
    netdev: &HostDevice,
    config: &Config,
    builder: &EditBuilder<'_>,
) -> Option<DeviceEdits> {
    let interface = InterfaceName::try_from(netdev.interfaces.first()?.clone()).ok()?;
    let settings = config.netdev.get(netdev.name.as_str());
    let address = settings
        .into_iter()
        .flat_map(|settings| &settings.addresses)
        .map(|address| InterfaceValue { interface: interface.clone(), value: *address });
    let hooks = builder.hooks(&HookArguments {
        address: address.collect(),
        netdev: vec![NetdevArgument { name: interface, pci: netdev.pci? }],
        ..builder.lease_arguments(&[netdev])
    });
    let edits = ContainerEdits { hooks, ..ContainerEdits::default() };
    (!edits.hooks.is_empty()).then(|| (netdev.name.clone(), edits))
}

/// Returns the edits of the class rdma, without nodes, since a move recreates them. The hook that moves a device provides its
/// nodes, so there are no devices without the hook.
pub(super) fn rdma_class_edits(
    inventory: &Inventory,
    devices: &[&HostDevice],
    builder: &EditBuilder<'_>,
) -> ClassEdits {
    let entries = devices.iter().filter_map(|device| {
        let edits = rdma_edits(inventory, &[device], builder);
        (!edits.hooks.is_empty()).then(|| (device.name.clone(), edits))
    });
    ClassEdits {
        common: ContainerEdits::default(),
        devices: entries.collect(),
        all: Some(rdma_edits(inventory, devices, builder)),
    }
}

fn rdma_edits(
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
