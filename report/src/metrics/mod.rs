//! Metrics of a host. The number of series does not grow with the number of virtual functions.

mod family;
mod kernel;
mod offers;

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use onload_core::lease::LeaseEntry;
use onload_host::devices::inventory::Inventory;
use onload_host::host::{Host, HostError};
use onload_host::offers::Offer;
use onload_host::specdir::{FILE_PREFIX, OUTPUT_DIR};

use crate::status::Grantee;
use family::{Family, Kind, text};

#[derive(Clone, Copy, Debug)]
pub struct Measured<'m> {
    pub host: &'m Host,
    pub inventory: &'m Inventory,
    pub offers: &'m [Offer],
    /// Its leases; none where they are not known, as to everybody but root.
    pub leases: Option<&'m [LeaseEntry]>,
    pub grantees: Option<&'m [Grantee]>,
    pub now: SystemTime,
}

/// In the text format of OpenMetrics 1.0, which readers of Prometheus's older text format take too.
pub fn openmetrics(measured: Measured<'_>) -> Result<String, HostError> {
    let (host, inventory) = (measured.host, measured.inventory);
    let [devices, held, unhealthy] = offers::devices(measured.offers);
    let [up, statistics] = kernel::interfaces(host, inventory);
    let version = vec![("version", inventory.version.to_owned())];
    let mut families = vec![
        Family::new(
            "build_info",
            "The version of onload-ctk that wrote this",
            Kind::Count,
            [(version, 1.0)],
        ),
        devices,
        unhealthy,
        offers::not_offered(inventory),
        undecided(inventory),
    ];
    if !inventory.drain.is_empty() {
        families.extend([offers::drained(measured.offers), offers::drained_since(inventory)]);
    }
    families.extend(hugepages(inventory));
    families.extend([
        up,
        statistics,
        kernel::rdma(host, inventory),
        kernel::stacks(host),
        specifications(host)?,
        Family::new(
            "last_run_timestamp",
            "When this was written",
            Kind::Timestamp,
            [(Vec::new(), seconds(measured.now))],
        ),
    ]);
    families.extend(measured.grantees.map(offers::containers));
    if let Some(leases) = measured.leases {
        families.extend([held, offers::leases(leases)]);
    }
    Ok(text(families))
}

fn seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs_f64().floor()
}

fn undecided(inventory: &Inventory) -> Family {
    let classes = inventory.undecided_classes().into_iter();
    offers::by_class(
        "undecided",
        "A class of which something decisive could not be read",
        classes.map(|class| (class, 1)),
    )
}

fn hugepages(inventory: &Inventory) -> [Family; 2] {
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
        Family::new(
            "hugepages",
            "Memory reserved in huge pages, by NUMA node and size of a page",
            Kind::Bytes,
            total,
        ),
        Family::new(
            "hugepages_free",
            "Memory in huge pages that nobody uses, by NUMA node and size of a page",
            Kind::Bytes,
            free,
        ),
    ]
}

fn specifications(host: &Host) -> Result<Family, HostError> {
    let directory = Path::new(OUTPUT_DIR);
    let names = host.list(directory)?.names;
    let mut samples = Vec::new();
    for name in names.into_iter().filter(|name| name.starts_with(FILE_PREFIX)) {
        if let Some(written) = host.modified(&directory.join(&name))? {
            samples.push((vec![("file", name)], seconds(written)));
        }
    }
    Ok(Family::new(
        "specification_written_timestamp",
        "When a specification was last written",
        Kind::Timestamp,
        samples,
    ))
}
