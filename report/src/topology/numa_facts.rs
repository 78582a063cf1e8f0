//! The sysfs data of a NUMA node (`Documentation/ABI/stable/sysfs-devices-node`).

use std::collections::BTreeSet;
use std::path::Path;

use onload_host::devices::inventory::Inventory;
use onload_host::discover::hugepages::NODES;
use onload_host::host::{Host, HostError};

use super::model::{NumaMemory, PageTotals, TopologyNumaNode};
use onload_sys::cpu_list;

const ISOLATED: &str = "/sys/devices/system/cpu/isolated";

pub(super) fn read(host: &Host, inventory: &Inventory) -> Result<Vec<TopologyNumaNode>, HostError> {
    let names = host.list(Path::new(NODES))?.names;
    let mut numbers: Vec<u32> = names
        .iter()
        .filter_map(|name| name.strip_prefix("node"))
        .filter_map(|number| number.parse().ok())
        .collect();
    numbers.sort_unstable();
    let isolated = read_cpus(host, Path::new(ISOLATED))?.unwrap_or_default();
    let nodes = numbers.into_iter().map(|number| {
        let directory = Path::new(NODES).join(format!("node{number}"));
        let cpus = read_cpus(host, &directory.join("cpulist"))?.unwrap_or_default();
        let isolated: BTreeSet<u32> = cpus.intersection(&isolated).copied().collect();
        let text = |cpus: &BTreeSet<u32>| (!cpus.is_empty()).then(|| cpu_list::format_list(cpus));
        let memory = host.lines(&directory.join("meminfo"), &|line| {
            parse_value(line, "MemTotal").or(parse_value(line, "MemFree")).is_some()
        })?;
        Ok(TopologyNumaNode {
            number: Some(number),
            cpus: text(&cpus),
            isolated_cpus: text(&isolated),
            memory: memory.as_deref().and_then(parse_memory),
            hugepages: node_pages(inventory, number),
            ..TopologyNumaNode::default()
        })
    });
    nodes.collect()
}

/// Reads a file with a list of CPUs. Returns `None` if the file does not exist or cannot be parsed.
fn read_cpus(host: &Host, path: &Path) -> Result<Option<BTreeSet<u32>>, HostError> {
    let list = host.attribute(path)?;
    Ok(list.and_then(|list| cpu_list::parse_kernel_list(&list).ok()))
}

fn node_pages(inventory: &Inventory, number: u32) -> Vec<PageTotals> {
    let sizes = inventory.hugepages.iter().filter_map(|size| {
        let node = size.nodes.iter().find(|node| node.node == number && node.total > 0)?;
        Some(PageTotals { name: size.name.clone(), total: node.total, free: node.free })
    });
    sizes.collect()
}

/// Returns the reserved huge pages of each size for which the kernel lists no node, as a kernel without NUMA does.
pub(super) fn pages_without_node(inventory: &Inventory) -> impl Iterator<Item = PageTotals> {
    inventory
        .hugepages
        .iter()
        .filter(|size| size.nodes.is_empty() && size.total > 0)
        .map(|size| PageTotals { name: size.name.clone(), total: size.total, free: size.free })
}

/// Parses lines such as `Node 0 MemTotal:       32789440 kB`. Returns `None` unless the total and the free memory are
/// among them.
fn parse_memory(lines: &[u8]) -> Option<NumaMemory> {
    let find = |name| {
        let mut lines = lines.split(|byte| *byte == b'\n');
        lines.find_map(|line| parse_value(line, name))
    };
    Some(NumaMemory { total_kib: find("MemTotal")?, free_kib: find("MemFree")? })
}

fn parse_value(line: &[u8], name: &str) -> Option<u64> {
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_ascii_whitespace().skip(2);
    let key = words.next()?.strip_suffix(':')?;
    words.next().filter(|_| key == name)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_node_is_read_and_half_of_it_is_none() {
        let text = b"Node 0 MemTotal:       32789440 kB\nNode 0 MemFree:         1024 kB\n";
        let memory = parse_memory(text).unwrap();
        assert_eq!((memory.total_kib, memory.free_kib), (32_789_440, 1024));
        for text in [
            "",
            "Node 0 MemTotal: 1 kB\n",
            "Node 0 MemTotal: x kB\nNode 0 MemFree: 1 kB\n",
            "MemTotal: 1 kB\nMemFree: 1 kB\n",
        ] {
            assert_eq!(parse_memory(text.as_bytes()), None, "{text}");
        }
    }
}
