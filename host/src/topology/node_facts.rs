//! What sysfs says of a NUMA node (`Documentation/ABI/stable/sysfs-devices-node`).

use std::path::Path;

use super::model::{Memory, NumaNode, Pages};
use crate::discover::hugepages::NODES;
use crate::discover::inventory::Inventory;
use crate::host::{Host, HostError};
use onload_core::cpu_list;

const ISOLATED: &str = "/sys/devices/system/cpu/isolated";

/// The nodes of a host, with nothing on them yet.
///
/// # Errors
/// One of the files is there and cannot be read.
pub(super) fn read(host: &Host, inventory: &Inventory) -> Result<Vec<NumaNode>, HostError> {
    let names = host.list(Path::new(NODES))?.names;
    let numbers = names.iter().filter_map(|name| name.strip_prefix("node"));
    let mut numbers: Vec<u32> = numbers.filter_map(|number| number.parse().ok()).collect();
    numbers.sort_unstable();
    let isolated = host.attribute(Path::new(ISOLATED))?.unwrap_or_default();
    let isolated = cpu_list::parse(&isolated);
    let nodes = numbers.into_iter().map(|number| {
        let directory = Path::new(NODES).join(format!("node{number}"));
        let cpus = host.attribute(&directory.join("cpulist"))?;
        let cpus = cpus.filter(|cpus| !cpus.is_empty());
        let own = cpu_list::parse(cpus.as_deref().unwrap_or_default());
        let isolated = own.intersection(&isolated).copied().collect();
        let isolated = cpu_list::text(&isolated);
        let wanted = |line: &[u8]| value(line, "MemTotal").or(value(line, "MemFree")).is_some();
        let memory = host.lines(&directory.join("meminfo"), &wanted)?;
        Ok(NumaNode {
            number: Some(number),
            cpus,
            isolated_cpus: (!isolated.is_empty()).then_some(isolated),
            memory: memory.as_deref().and_then(parse_memory),
            hugepages: pages(inventory, number),
            ..NumaNode::default()
        })
    });
    nodes.collect()
}

fn pages(inventory: &Inventory, number: u32) -> Vec<Pages> {
    let sizes = inventory.hugepages.iter().filter_map(|size| {
        let mut nodes = size.nodes.iter();
        let node = nodes.find(|node| node.node == number && node.total > 0)?;
        Some(Pages {
            name: size.name.clone(),
            total: node.total,
            free: node.free,
        })
    });
    sizes.collect()
}

/// Reads `Node 0 MemTotal:       32789440 kB` and its like.
fn parse_memory(lines: &[u8]) -> Option<Memory> {
    let find = |name| {
        let mut lines = lines.split(|byte| *byte == b'\n');
        lines.find_map(|line| value(line, name))
    };
    Some(Memory {
        total_kib: find("MemTotal")?,
        free_kib: find("MemFree")?,
    })
}

fn value(line: &[u8], name: &str) -> Option<u64> {
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_ascii_whitespace().skip(2);
    let found = words.next()?.strip_suffix(':')?;
    words.next().filter(|_| found == name)?.parse().ok()
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
