//! Counters of the kernel for interfaces and RDMA devices, and of Onload; offered devices by class: number, health and
//! use. Virtual functions have no counters: a host may have thousands, and each series has a storage cost.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use onload_core::class::Class;
use onload_host::devices::inventory::Inventory;
use onload_host::discover::netdev::SYS_CLASS_NET;
use onload_host::host::Host;
use onload_host::offers::{Health, HostDevice};
use onload_sys::pci::PciAddress;
use strum::VariantArray;

use super::family::MetricKind::{Count, Kernels, Timestamp};
use super::family::{Labels, MetricFamily, count};
use crate::status::{ContainerGrants, ContainerStatus, VerdictState};

const MAX_INTERFACES: usize = 64;
const MAX_RDMA: usize = 32;
/// Counters of one port that are shown; drivers have about thirty.
const MAX_COUNTERS: usize = 96;
/// The counters of an interface (`Documentation/ABI/testing/sysfs-class-net-statistics`).
const STATISTICS: [&str; 6] =
    ["rx_dropped", "rx_errors", "rx_missed_errors", "rx_over_errors", "tx_dropped", "tx_errors"];
const STACKS: &str = "/proc/driver/onload/stacks_ul";

fn is_virtual(inventory: &Inventory, address: Option<PciAddress>) -> bool {
    let function = address.and_then(|address| inventory.functions.get(address));
    function.is_some_and(|function| function.physical_function.is_some())
}

/// A metric that is not known is not there.
fn read_number(host: &Host, path: &Path) -> Option<f64> {
    host.attribute(path).ok().flatten()?.parse::<f64>().ok()
}

pub(super) fn interface_families(host: &Host, inventory: &Inventory) -> [MetricFamily; 2] {
    let mut names: BTreeSet<&str> = inventory
        .nics
        .iter()
        .filter(|nic| !is_virtual(inventory, nic.pci_address))
        .map(|nic| nic.name.as_str())
        .collect();
    for device in &inventory.rdma {
        if !is_virtual(inventory, device.pci_address) {
            names.extend(device.netdevs.iter().map(String::as_str));
        }
    }
    let (mut up, mut counted) = (Vec::new(), Vec::new());
    for name in names.into_iter().take(MAX_INTERFACES) {
        let directory = Path::new(SYS_CLASS_NET).join(name);
        if let Ok(Some(state)) = host.attribute(&directory.join("operstate")) {
            // Many drivers never leave unknown, which is usable (`Documentation/networking/operstates.rst`).
            let is_up = matches!(state.as_str(), "up" | "unknown");
            let is_up = if is_up { 1.0 } else { 0.0 };
            up.push((vec![("interface", name.to_owned())], is_up));
        }
        for counter in STATISTICS {
            let value = read_number(host, &directory.join("statistics").join(counter));
            let labels = || vec![("interface", name.to_owned()), ("counter", counter.to_owned())];
            counted.extend(value.map(|value| (labels(), value)));
        }
    }
    [
        MetricFamily::new("interface_up", "Whether the interface's operstate is up", Count, up),
        MetricFamily::new(
            "interface_statistics",
            "Counters of an interface since its driver was loaded, by the kernel's name",
            Kernels,
            counted,
        ),
    ]
}

pub(super) fn rdma_family(host: &Host, inventory: &Inventory) -> MetricFamily {
    let devices = inventory.rdma.iter().filter(|device| !is_virtual(inventory, device.pci_address));
    let mut samples = Vec::new();
    for device in devices.take(MAX_RDMA) {
        for port in &device.ports {
            let port_dir = Path::new("/sys/class/infiniband")
                .join(&device.name)
                .join("ports")
                .join(port.port.to_string());
            samples.extend(port_counters(host, &port_dir, &device.name, port.port));
        }
    }
    MetricFamily::new(
        "rdma_counters",
        "Counters of an RDMA device, by port and the driver's name",
        Kernels,
        samples,
    )
}

fn port_counters(host: &Host, port_dir: &Path, device: &str, port: u32) -> Vec<(Labels, f64)> {
    let mut samples = Vec::new();
    for source in ["counters", "hw_counters"] {
        let directory = port_dir.join(source);
        let mut names = host.list(&directory).unwrap_or_default().names;
        // Not a counter but a setting in milliseconds.
        names.retain(|name| name != "lifespan");
        for name in names.into_iter().take(MAX_COUNTERS) {
            let Some(value) = read_number(host, &directory.join(&name)) else { continue };
            let labels = vec![
                ("device", device.to_owned()),
                ("port", port.to_string()),
                ("source", source.to_owned()),
                ("counter", name),
            ];
            samples.push((labels, value));
        }
    }
    samples
}

pub(super) fn stack_family(host: &Host) -> MetricFamily {
    let lines = host.lines(Path::new(STACKS), &|line| !line.trim_ascii().is_empty());
    let count = lines.ok().flatten().map(|lines| {
        let lines = lines.iter().filter(|byte| **byte == b'\n');
        count(lines.count())
    });
    MetricFamily::new(
        "onload_stacks",
        "Onload stacks in use, in containers and on the host",
        Count,
        count.map(|count| (Vec::new(), count)),
    )
}

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

/// The earliest drained device of each class.
pub(super) fn drained_since_family(inventory: &Inventory) -> MetricFamily {
    let mut since: BTreeMap<Class, u64> = BTreeMap::new();
    for entry in inventory.drain.iter() {
        let first = since.entry(entry.target.class).or_insert(u64::MAX);
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
    let samples = VerdictState::VARIANTS.iter().filter_map(|state| {
        let in_state = containers.iter().filter(|container| container.state() == *state);
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
