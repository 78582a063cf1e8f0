//! The counters of devices from sysfs and procfs. Counters that the host does not have are left out.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use onload_host::host::Host;
use prost_types::Timestamp;

use crate::devices::group::{NomadGroup, StatisticsSource};
use crate::wire::device::{DeviceGroupStats, DeviceStats};
use crate::wire::structs::{StatObject, StatValue};

/// Directories with a subdirectory for each device, which contains a file for each counter.
const NET: &str = "/sys/class/net";
const RDMA: &str = "/sys/class/infiniband";
const HUGEPAGES: &str = "/sys/kernel/mm/hugepages";
/// The list of Onload's stacks, with lines `ID: PID UID …` (Onload, src/driver/linux_onload/linux_stats.c).
const STACKS: &str = "/proc/driver/onload/stacks";

/// Reads the statistics of all groups with counters. All slots of a device have the same ones.
pub fn read(host: &Host, groups: &[NomadGroup]) -> Vec<DeviceGroupStats> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let timestamp = Timestamp {
        seconds: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(now.subsec_nanos()).unwrap_or(0),
    };
    let mut all = Vec::new();
    for group in groups {
        let mut instance_stats = BTreeMap::new();
        for device in &group.devices {
            let Some((summary, stats)) = read_statistics(host, &device.statistics) else {
                continue;
            };
            let stats = DeviceStats {
                summary: Some(summary),
                stats: Some(stats),
                timestamp: Some(timestamp),
            };
            instance_stats.extend(group.ids(device).map(|id| (id, stats.clone())));
        }
        if !instance_stats.is_empty() {
            all.push(DeviceGroupStats {
                vendor: group.vendor.to_owned(),
                r#type: group.r#type.to_string(),
                name: group.name.clone(),
                instance_stats,
            });
        }
    }
    all
}

/// Reads the statistics of a device, and selects its summary value. Returns `None` if there is no summary value.
fn read_statistics(host: &Host, source: &StatisticsSource) -> Option<(StatValue, StatObject)> {
    let mut stats = StatObject::default();
    let mut summaries = Vec::new();
    if let Some(pages) = source.page_kib.and_then(|kib| page_usage(host, kib)) {
        summaries.push(pages.clone());
        stats.attributes.insert("free".to_owned(), pages);
    }
    if let Some(rdma) = &source.rdma {
        stats.nested = read_rdma_ports(host, rdma);
        let first = stats.nested.values().next();
        summaries
            .extend(first.and_then(|port| traffic_value(port, "port_rcv_data", "port_xmit_data")));
    }
    if let Some(interface) = &source.interface {
        let dir = Path::new(NET).join(interface).join("statistics");
        let counters =
            StatObject { attributes: read_counters(host, &dir), ..StatObject::default() };
        summaries.extend(traffic_value(&counters, "rx_bytes", "tx_bytes"));
        if !counters.attributes.is_empty() {
            stats.nested.insert("interface".to_owned(), counters);
        }
    }
    if source.stacks
        && let Some(stacks) = stack_count(host)
    {
        summaries.push(stacks.clone());
        stats.attributes.insert("onload_stacks".to_owned(), stacks);
    }
    Some((summaries.into_iter().next()?, stats))
}

/// Reads the counters of a directory by file name. Files without a number are skipped.
fn read_counters(host: &Host, dir: &Path) -> BTreeMap<String, StatValue> {
    let Ok(listing) = host.list(dir) else {
        return BTreeMap::new();
    };
    let mut counters = BTreeMap::new();
    for name in listing.names {
        if let Some(value) = read_number(host, &dir.join(&name)) {
            let value = count(value, unit_of(&name), &name);
            counters.insert(name, value);
        }
    }
    counters
}

fn read_number(host: &Host, path: &Path) -> Option<u64> {
    host.text(path).ok()??.trim().parse().ok()
}

/// Returns the unit of a counter of an interface (Documentation/ABI/testing/sysfs-class-net-statistics) or an RDMA port,
/// whose data is counted in words of four bytes (Documentation/ABI/stable/sysfs-class-infiniband).
fn unit_of(name: &str) -> &'static str {
    match name {
        _ if name.ends_with("_bytes") => "B",
        _ if name.ends_with("_data") => "4 B",
        _ if name.ends_with("_packets") => "packets",
        _ => "",
    }
}

/// Returns the sum of two counters, or `None` if one of them is missing.
fn traffic_value(counters: &StatObject, received: &str, sent: &str) -> Option<StatValue> {
    let value = |name: &str| counters.attributes.get(name)?.int_numerator_val;
    let sum = value(received)?.saturating_add(value(sent)?);
    let unit = counters.attributes.get(received)?.unit.as_str();
    let sum = u64::try_from(sum).unwrap_or(0);
    Some(count(sum, unit, "received and sent"))
}

fn read_rdma_ports(host: &Host, device: &str) -> BTreeMap<String, StatObject> {
    let dir = Path::new(RDMA).join(device).join("ports");
    let Ok(listing) = host.list(&dir) else {
        return BTreeMap::new();
    };
    let mut ports = BTreeMap::new();
    for port in &listing.names {
        let mut values = BTreeMap::new();
        for kind in ["hw_counters", "counters"] {
            values.extend(read_counters(host, &dir.join(port).join(kind)));
        }
        // Not a counter, but how often counters are read from the hardware.
        values.remove("lifespan");
        if !values.is_empty() {
            let object = StatObject { attributes: values, ..StatObject::default() };
            ports.insert(format!("port_{port}"), object);
        }
    }
    ports
}

fn page_usage(host: &Host, kib: u64) -> Option<StatValue> {
    let dir = Path::new(HUGEPAGES).join(format!("hugepages-{kib}kB"));
    let free = read_number(host, &dir.join("free_hugepages"))?;
    let all = read_number(host, &dir.join("nr_hugepages"))?;
    Some(StatValue {
        int_denominator_val: Some(i64::try_from(all).unwrap_or(i64::MAX)),
        ..count(free, "pages", "free pages of this size")
    })
}

fn stack_count(host: &Host) -> Option<StatValue> {
    let text = host.text(Path::new(STACKS)).ok()??;
    let ids = text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
    let stacks =
        ids.filter(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit())).count();
    let stacks = u64::try_from(stacks).unwrap_or(u64::MAX);
    Some(count(stacks, "", "Onload stacks on this host"))
}

fn count(number: u64, unit: &str, desc: &str) -> StatValue {
    StatValue {
        int_numerator_val: Some(i64::try_from(number).unwrap_or(i64::MAX)),
        unit: unit.to_owned(),
        desc: desc.to_owned(),
        ..StatValue::default()
    }
}

#[cfg(test)]
mod tests {
    use onload_test_tree::Tree;

    use super::*;

    fn host(files: &[(&str, &str)]) -> (Tree, Host) {
        let tree = Tree::with(files);
        let host = Host::open(tree.root()).unwrap();
        (tree, host)
    }

    #[test]
    fn an_interface_has_its_counters_and_the_stacks_of_onload() {
        let (_root, host) = host(&[
            ("sys/class/net/ens1/statistics/rx_bytes", "100\n"),
            ("sys/class/net/ens1/statistics/tx_bytes", "20\n"),
            ("sys/class/net/ens1/statistics/rx_errors", "3\n"),
            ("sys/class/net/ens1/statistics/odd", "x\n"),
            ("proc/driver/onload/stacks", "0: 17 0 1 2\n12: 18 999 1 2\nodd\n"),
        ]);
        let counted = StatisticsSource {
            interface: Some("ens1".to_owned()),
            stacks: true,
            ..StatisticsSource::default()
        };
        let (summary, stats) = read_statistics(&host, &counted).unwrap();
        assert_eq!((summary.int_numerator_val, summary.unit.as_str()), (Some(120), "B"));
        let interface = &stats.nested["interface"].attributes;
        let names: Vec<&str> = interface.keys().map(String::as_str).collect();
        assert_eq!(names, ["rx_bytes", "rx_errors", "tx_bytes"]);
        assert_eq!(stats.attributes["onload_stacks"].int_numerator_val, Some(2));
    }

    #[test]
    fn an_rdma_device_has_the_counters_of_its_ports() {
        let port = "sys/class/infiniband/mlx5_0/ports/1";
        let files = [
            (format!("{port}/counters/port_rcv_data"), "8"),
            (format!("{port}/counters/port_xmit_data"), "2"),
            (format!("{port}/hw_counters/out_of_buffer"), "7"),
            (format!("{port}/hw_counters/lifespan"), "10"),
        ];
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let (_root, host) = host(&files);
        let counted =
            StatisticsSource { rdma: Some("mlx5_0".to_owned()), ..StatisticsSource::default() };
        let (summary, stats) = read_statistics(&host, &counted).unwrap();
        assert_eq!((summary.int_numerator_val, summary.unit.as_str()), (Some(10), "4 B"));
        let names: Vec<&str> =
            stats.nested["port_1"].attributes.keys().map(String::as_str).collect();
        assert_eq!(names, ["out_of_buffer", "port_rcv_data", "port_xmit_data"]);
    }

    #[test]
    fn huge_pages_are_free_ones_of_all() {
        let dir = "sys/kernel/mm/hugepages/hugepages-2048kB";
        let files =
            [(format!("{dir}/free_hugepages"), "3\n"), (format!("{dir}/nr_hugepages"), "64\n")];
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let (_root, host) = host(&files);
        let counted = StatisticsSource { page_kib: Some(2048), ..StatisticsSource::default() };
        let (summary, _) = read_statistics(&host, &counted).unwrap();
        assert_eq!((summary.int_numerator_val, summary.int_denominator_val), (Some(3), Some(64)));
    }

    #[test]
    fn what_cannot_be_counted_has_no_statistics() {
        let (_root, host) = host(&[]);
        let counted = StatisticsSource {
            interface: Some("ens1".to_owned()),
            rdma: Some("mlx5_0".to_owned()),
            page_kib: Some(4),
            stacks: true,
        };
        assert_eq!(read_statistics(&host, &counted), None);
        assert_eq!(read_statistics(&host, &StatisticsSource::default()), None);
    }
}
