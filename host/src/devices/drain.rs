//! Drained devices. No further container gets one, so most code treats them as absent. Cluster engines and pictures of
//! the host still show them.

use std::collections::BTreeMap;

use onload_core::class::Class;
use onload_lease::drain::{DRAIN_PATH, DrainList};

use super::device::{Health, HostDevice};
use super::inventory::Inventory;
use crate::discover::exclusion::Exclusion;

/// Removes drained devices from the offered ones.
pub(super) fn apply_drain(drain: anyhow::Result<DrainList>, inventory: &mut Inventory) {
    let drain = match drain {
        Ok(drain) if drain.is_empty() => return,
        Ok(drain) => drain,
        Err(error) => return leave_unread(&error, inventory),
    };
    let devices = std::mem::take(&mut inventory.devices);
    let drain_reason =
        |device: &HostDevice| Some(drain.find(device.class, device.name.as_str())?.to_string());
    // If functions have their own nodes, one container has the whole group.
    let groups: BTreeMap<(Class, u32), String> = devices
        .iter()
        .filter_map(|device| {
            let key = (device.class, device.group?);
            Some((key, drain_reason(device)?))
        })
        .collect();
    for device in devices {
        let reason =
            drain_reason(&device).or_else(|| groups.get(&(device.class, device.group?)).cloned());
        match reason {
            Some(reason) => mark_drained(device, reason, inventory),
            None => inventory.devices.push(device),
        }
    }
    inventory.drain = drain;
}

fn mark_drained(device: HostDevice, reason: String, inventory: &mut Inventory) {
    // One line suffices for the classes of an interface that differ only in their extras.
    if !matches!(device.class, Class::NicPlain | Class::NicNodes) {
        let exclusion = Exclusion::new(device.class, device.name.as_str(), reason.as_str());
        inventory.not_offered.push(exclusion.with_pci(device.pci));
    }
    inventory.drained.push(HostDevice {
        is_drained: true,
        health: Health::Unhealthy(reason),
        ..device
    });
}

/// Any device may be drained: specifications are kept, and nothing new is offered.
fn leave_unread(error: &anyhow::Error, inventory: &mut Inventory) {
    for device in std::mem::take(&mut inventory.devices) {
        let reason = format!("could not determine whether it is drained: {error:#}");
        mark_drained(device, reason, inventory);
    }
    inventory.add_unread(DRAIN_PATH, &Class::ALL, "what is drained", error);
}
