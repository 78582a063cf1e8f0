//! How far GPUs and NICs are from each other, in the form of `nvidia-smi topo -m`.

use onload_host::devices::gpu_nics::GpuNicMap;
use onload_host::devices::inventory::Inventory;
use onload_sys::pci::PciAddress;

use super::model::Topology;

const UNKNOWN: &str = "N/A";

const LEGEND: &str = "
Legend:

  X    = Self
  SYS  = Connection traversing PCIe and the interconnect between NUMA nodes
  NODE = Connection traversing PCIe and the interconnect between PCIe host bridges of a NUMA node
  PHB  = Connection traversing PCIe and a PCIe host bridge
  PXB  = Connection traversing several PCIe bridges, without a PCIe host bridge
  PIX  = Connection traversing at most one PCIe bridge
  N/A  = Unknown
";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Cells are separated by tabs.
    pub lines: Vec<String>,
    /// Why nothing of it is known.
    pub obstacle: Option<String>,
}

/// None of a host without GPUs and NICs.
pub fn build_matrix(inventory: &Inventory, topology: &Topology) -> Option<Matrix> {
    let gpu_nics = GpuNicMap::from_inventory(inventory);
    let gpus = gpu_nics
        .gpus
        .iter()
        .enumerate()
        .map(|(index, (address, _))| (format!("GPU{index}"), *address));
    let nics =
        gpu_nics.nics.iter().enumerate().map(|(index, nic)| (format!("NIC{index}"), nic.address));
    let all: Vec<(String, PciAddress)> = gpus.chain(nics).collect();
    if all.is_empty() {
        return None;
    }
    let names = all.iter().map(|(name, _)| format!("\t{name}"));
    let mut header: String = names.collect();
    if !gpu_nics.gpus.is_empty() {
        header += "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID";
    }
    let mut lines = vec![header];
    for (name, address) in &all {
        let mut line = name.clone();
        for (_, other) in &all {
            line += &match gpu_nics.distance(*address, *other) {
                _ if address == other => "\t X ".to_owned(),
                Some(distance) => format!("\t{distance}"),
                None => format!("\t{UNKNOWN}"),
            };
        }
        if gpu_nics.gpus.iter().any(|(gpu, _)| gpu == address) {
            line += &describe_affinity(inventory, topology, *address);
        }
        lines.push(line);
    }
    lines.extend(LEGEND.lines().map(str::to_owned));
    lines.push(String::new());
    let gpus = gpu_nics.gpus.iter().map(|(address, vendor)| format!("{address} {vendor}"));
    let nics = gpu_nics.nics.iter().map(|nic| nic.name.clone());
    for (title, names) in [("GPU", gpus.collect::<Vec<_>>()), ("NIC", nics.collect())] {
        if !names.is_empty() {
            lines.extend([format!("{title} Legend:"), String::new()]);
            let names = names.iter().enumerate();
            lines.extend(names.map(|(index, name)| format!("  {title}{index}: {name}")));
            lines.push(String::new());
        }
    }
    Some(Matrix { lines, obstacle: gpu_nics.obstacle.map(str::to_owned) })
}

/// CPUs and number of the node of a GPU, and that its memory is no node.
fn describe_affinity(inventory: &Inventory, topology: &Topology, gpu: PciAddress) -> String {
    let function = inventory.functions.get(gpu);
    let number = function.and_then(|function| function.numa_node);
    let cpus = topology
        .nodes
        .iter()
        .find(|node| number.is_some() && node.number == number)
        .and_then(|node| node.cpus.as_deref());
    let number = number.map_or(UNKNOWN.to_owned(), |number| number.to_string());
    format!("\t{}\t{number}\t{UNKNOWN}", cpus.unwrap_or(UNKNOWN))
}
