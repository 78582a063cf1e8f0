//! Counters of the kernel for interfaces and RDMA devices, and of Onload. Virtual functions are left out: a host may
//! have thousands, and each series has a storage cost.

use std::collections::BTreeSet;
use std::path::Path;

use onload_host::devices::inventory::Inventory;
use onload_host::discover::netdev::SYS_CLASS_NET;
use onload_host::host::Host;
use onload_sys::pci::PciAddress;

use super::family::MetricKind::{Count, Kernels};
use super::family::{Labels, MetricFamily, count};

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
