//! Metrics of offered devices by class: number, health and use.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use onload_core::class::Class;
use onload_host::devices::inventory::Inventory;
use onload_host::offers::{Health, HostDevice};
use onload_lease::LeaseEntry;

use super::family::MetricKind::{Count, Timestamp};
use super::family::{MetricFamily, count};
use crate::status::{ContainerGrants, ContainerStatus, VerdictState};

/// Devices whose reason is printed. A broken card may take thousands of functions with it.
const MAX_REASONS: usize = 64;

type ClassCounts = BTreeMap<(Class, &'static str), usize>;

pub(super) fn device_families(inventory: &Inventory, devices: &[HostDevice]) -> [MetricFamily; 3] {
    let found: BTreeMap<_, &HostDevice> =
        inventory.with_drained().map(|device| ((device.class, &device.name), device)).collect();
    let mut counts = ClassCounts::new();
    let mut reasons = Vec::new();
    for device in devices {
        for health in ["healthy", "unhealthy"] {
            counts.entry((device.class, health)).or_default();
        }
        let health = match &device.health {
            Health::Healthy => "healthy",
            Health::Unhealthy(_) => {
                let found = found.get(&(device.class, &device.name)).copied();
                let labels = vec![
                    ("class", device.class.to_string()),
                    ("device", device.name.as_str().to_owned()),
                    ("reason", unhealthy_code(device, found).to_owned()),
                ];
                reasons.push((labels, 1.0));
                "unhealthy"
            }
        };
        *counts.entry((device.class, health)).or_default() += 1;
    }
    reasons.truncate(MAX_REASONS);
    let held = devices.iter().map(|device| (device.class, usize::from(!device.leases.is_empty())));
    let counts = counts.into_iter().map(|((class, health), number)| {
        let labels = vec![("class", class.to_string()), ("health", health.to_owned())];
        (labels, count(number))
    });
    [
        MetricFamily::new("devices", "Offered devices, by health", Count, counts),
        class_family("devices_held", "Offered devices that a container has leased", held),
        MetricFamily::new(
            "device_unhealthy",
            "A device that no container can use, with a code for the reason; at most 64 are shown",
            Count,
            reasons,
        ),
    ]
}

/// Returns a code for why no container can use a device. `found` is the device as discovery found it.
fn unhealthy_code(device: &HostDevice, found: Option<&HostDevice>) -> &'static str {
    match found {
        _ if device.is_drained => "drained",
        None => "not-offered",
        Some(found) if found.health != Health::Healthy => "not-ready",
        Some(_) if device.cdi.is_empty() => "not-in-specification",
        Some(_) => "specification-stale",
    }
}

pub(super) fn drained_family(devices: &[HostDevice]) -> MetricFamily {
    let devices = devices.iter();
    class_family(
        "devices_drained",
        "Drained devices",
        devices.map(|device| (device.class, usize::from(device.is_drained))),
    )
}

/// The earliest drained device of each class.
pub(super) fn drained_since_family(inventory: &Inventory) -> MetricFamily {
    let mut since: BTreeMap<Class, u64> = BTreeMap::new();
    for entry in inventory.drain.iter() {
        let first = since.entry(entry.target.class()).or_insert(u64::MAX);
        *first = entry.since.min(*first);
    }
    let since = since.into_iter().map(|(class, since)| {
        // Exact until long after the year 9999.
        (vec![("class", class.to_string())], since as f64)
    });
    MetricFamily::new(
        "drained_since_timestamp",
        "Time since which devices of a class are drained",
        Timestamp,
        since,
    )
}

pub(super) fn lease_family(leases: &[LeaseEntry]) -> MetricFamily {
    let classes =
        leases.iter().filter(|lease| !lease.has_ended).map(|lease| (lease.device.class, 1));
    class_family("leases", "Leases of running containers", classes)
}

/// The containers that were made with a device, by class: a lease is nothing that every class has.
pub(super) fn container_family(grantees: &[ContainerGrants]) -> MetricFamily {
    let classes = grantees.iter().flat_map(|grantee| {
        grantee
            .devices
            .iter()
            .filter_map(|device| Some(device.split_once('=')?.0))
            .collect::<BTreeSet<&str>>()
    });
    class_family(
        "containers",
        "Containers that were created with a device, by the configurations of root's engines",
        classes.map(|class| (class, 1)),
    )
}

/// Every state has a series, so that a graph shows when the last container leaves it.
pub(super) fn state_family(containers: &[ContainerStatus]) -> MetricFamily {
    let samples = VerdictState::ALL.into_iter().filter_map(|state| {
        let in_state = containers.iter().filter(|container| container.state() == state);
        let label = serde_json::to_value(state).ok()?.as_str()?.to_owned();
        Some((vec![("state", label)], count(in_state.count())))
    });
    MetricFamily::new(
        "container_states",
        "Containers that onload-ctk status lists, by the worst of their verdicts",
        Count,
        samples,
    )
}

pub(super) fn exclusion_family(inventory: &Inventory) -> MetricFamily {
    let entries = inventory.not_offered.iter();
    class_family(
        "not_offered",
        "Devices that are not offered; onload-ctk discover --explain says why",
        entries.map(|entry| (entry.kind, 1)),
    )
}

/// The sum of each class.
pub(super) fn class_family<C: fmt::Display + Ord>(
    name: &'static str,
    help: &'static str,
    numbers: impl Iterator<Item = (C, usize)>,
) -> MetricFamily {
    let mut sums: BTreeMap<C, usize> = BTreeMap::new();
    for (class, number) in numbers {
        *sums.entry(class).or_default() += number;
    }
    let sums =
        sums.into_iter().map(|(class, sum)| (vec![("class", class.to_string())], count(sum)));
    MetricFamily::new(name, help, Count, sums)
}
