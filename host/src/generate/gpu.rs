//! Other names for RDMA devices, by the GPU that they are nearest to.

use std::collections::BTreeMap;

use onload_cdi::{ContainerEdits, Device, DeviceName};
use onload_core::class::Class;

use super::edit_builder::new_device;
use crate::devices::GpuAlias;
use crate::pools::NamedPool;

/// Each with the edits of its devices and nothing of its own, so that a lease is the same by either name. A pool or
/// a device of that name takes precedence.
pub(super) fn add(
    devices: &mut BTreeMap<DeviceName, Device>,
    aliases: &[GpuAlias],
    pools: &[NamedPool],
) {
    for alias in aliases {
        let Ok(name) = DeviceName::try_from(alias.name.as_str()) else {
            continue;
        };
        let mut pools = pools.iter().filter(|pool| pool.class == Class::Rdma);
        if pools.any(|pool| pool.name == name) || devices.contains_key(&name) {
            continue;
        }
        let edits = merge_device_edits(devices, &alias.rdma);
        devices.extend(edits.map(|edits| new_device(name, edits)));
    }
}

/// None where one of them is not in the specification.
fn merge_device_edits(
    devices: &BTreeMap<DeviceName, Device>,
    names: &[String],
) -> Option<ContainerEdits> {
    let mut all = ContainerEdits::default();
    for name in names {
        let mut device_edits =
            devices.get(&DeviceName::try_from(name.as_str()).ok()?)?.container_edits.clone();
        device_edits.device_nodes.retain(|node| !all.device_nodes.contains(node));
        all.append(&device_edits);
    }
    (!names.is_empty()).then_some(all)
}
