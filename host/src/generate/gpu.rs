//! Names for RDMA devices by the nearest GPU.

use std::collections::BTreeMap;

use onload_cdi::{ContainerEdits, Device, DeviceName};
use onload_core::class::Class;

use super::edit_builder::new_device;
use crate::devices::GpuAlias;
use crate::pools::NamedPool;

/// Adds the names. Each has only the edits of its devices, so that leases are the same under either name. A pool or
/// device with the same name takes precedence.
pub(super) fn add(
    devices: &mut BTreeMap<DeviceName, Device>,
    aliases: &[GpuAlias],
    pools: &[NamedPool],
) {
    for alias in aliases {
        let Ok(name) = DeviceName::try_from(alias.name.as_str()) else {
            continue;
        };
        let is_pool = pools.iter().any(|pool| pool.class == Class::Rdma && pool.name == name);
        if is_pool || devices.contains_key(&name) {
            continue;
        }
        let edits = merge_device_edits(devices, &alias.rdma);
        devices.extend(edits.map(|edits| new_device(name, edits)));
    }
}

/// Returns the merged edits, or `None` if a device is not in the specification.
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
