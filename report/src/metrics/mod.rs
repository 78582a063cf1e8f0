//! Metrics of a host. The number of series does not grow with the number of virtual functions.

mod families;
mod family;

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use onload_host::devices::inventory::Inventory;
use onload_host::host::{Host, HostError};
use onload_host::offers::HostDevice;
use onload_host::specdir::{FILE_PREFIX, OUTPUT_DIR};
use onload_lease::LeaseEntry;

use crate::status::{ContainerGrants, ContainerStatus};
use family::MetricFamily;
use family::MetricKind::{Bytes, Count, Timestamp};
use family::render;

#[derive(Clone, Copy, Debug)]
pub struct MetricsInput<'m> {
    pub host: &'m Host,
    pub inventory: &'m Inventory,
    pub devices: &'m [HostDevice],
    /// Its leases; `None` if they are unknown, as for users other than root.
    pub leases: Option<&'m [LeaseEntry]>,
    pub grantees: Option<&'m [ContainerGrants]>,
    /// The containers that `status` lists; `None` if they cannot be examined.
    pub containers: Option<&'m [ContainerStatus]>,
    pub now: SystemTime,
}

/// In the text format of OpenMetrics 1.0, which readers of Prometheus's older text format take too.
pub fn render_openmetrics(input: MetricsInput<'_>) -> Result<String, HostError> {
    let (host, inventory) = (input.host, input.inventory);
    let [devices, held, unhealthy] = families::device_families(inventory, input.devices);
    let [up, statistics] = families::interface_families(host, inventory);
    let version = vec![("version", inventory.version.to_owned())];
    let mut families = vec![
        MetricFamily::new("build_info", "Version of onload-ctk", Count, [(version, 1.0)]),
        devices,
        unhealthy,
        families::class_family(
            "not_offered",
            "Devices that are not offered; onload-ctk discover --explain says why",
            inventory.not_offered.iter().map(|entry| (entry.kind, 1)),
        ),
        families::class_family(
            "undecided",
            "Class whose devices could not be fully read",
            inventory.undecided_classes().into_iter().map(|class| (class, 1)),
        ),
    ];
    if !inventory.drain.is_empty() {
        families.extend([
            families::class_family(
                "devices_drained",
                "Drained devices",
                input.devices.iter().map(|one| (one.class, usize::from(one.is_drained))),
            ),
            families::drained_since_family(inventory),
        ]);
    }
    families.extend(hugepage_families(inventory));
    families.extend([
        up,
        statistics,
        families::rdma_family(host, inventory),
        families::stack_family(host),
        spec_family(host)?,
        MetricFamily::new(
            "last_run_timestamp",
            "Time at which the metrics were written",
            Timestamp,
            [(Vec::new(), seconds(input.now))],
        ),
    ]);
    families.extend(input.grantees.map(families::container_family));
    families.extend(input.containers.map(families::state_family));
    if let Some(leases) = input.leases {
        let running = leases.iter().filter(|lease| !lease.has_ended());
        let classes = running.map(|lease| (lease.device.class, 1));
        let help = "Leases of running containers";
        families.extend([held, families::class_family("leases", help, classes)]);
    }
    Ok(render(families))
}

fn seconds(time: SystemTime) -> f64 {
    let elapsed = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    elapsed.as_secs_f64().floor()
}

fn hugepage_families(inventory: &Inventory) -> [MetricFamily; 2] {
    let (mut total, mut free) = (Vec::new(), Vec::new());
    for size in &inventory.hugepages {
        for node in &size.nodes {
            let labels = vec![("node", node.node.to_string()), ("size", size.name.clone())];
            let bytes = |pages: u64| {
                let bytes = pages.saturating_mul(size.size_kib).saturating_mul(1024);
                // Exact up to 2^53, which is 8 PiB.
                bytes as f64
            };
            total.push((labels.clone(), bytes(node.total)));
            free.push((labels, bytes(node.free)));
        }
    }
    [
        MetricFamily::new(
            "hugepages",
            "Memory reserved in huge pages, by NUMA node and page size",
            Bytes,
            total,
        ),
        MetricFamily::new(
            "hugepages_free",
            "Free memory in huge pages, by NUMA node and page size",
            Bytes,
            free,
        ),
    ]
}

fn spec_family(host: &Host) -> Result<MetricFamily, HostError> {
    let directory = Path::new(OUTPUT_DIR);
    let names = host.list(directory)?.names;
    let mut samples = Vec::new();
    for name in names.into_iter().filter(|name| name.starts_with(FILE_PREFIX)) {
        if let Some(modified) = host.modified(&directory.join(&name))? {
            samples.push((vec![("file", name)], seconds(modified)));
        }
    }
    Ok(MetricFamily::new(
        "specification_written_timestamp",
        "Time at which a specification was last written",
        Timestamp,
        samples,
    ))
}
