//! Builds the topology of a host from its inventory, its leases and sysfs
//! (`Documentation/ABI/stable/sysfs-devices-node`, `Documentation/ABI/testing/sysfs-bus-pci`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use onload_core::class::Class;
use onload_core::gpu_name;
use onload_core::pool::ANY;
use onload_host::devices::gpu_nics::GpuNicMap;
use onload_host::devices::inventory::Inventory;
use onload_host::devices::{Health, HostDevice};
use onload_host::discover::exclusion::ExclusionSubject;
use onload_host::discover::gpu::Distance;
use onload_host::discover::hugepages::NODES;
use onload_host::discover::pci::{DEVICES, PciFunction};
use onload_host::discover::pcie_link::{self, PcieLink};
use onload_host::host::{Host, HostError};
use onload_host::pools::PoolSet;
use onload_lease::LeaseEntry;
use onload_sys::cpu_list;
use onload_sys::pci::PciAddress;

use super::model::{
    Bridge, Bus, NearestNics, NumaMemory, Occupancy, PageTotals, PcieRoot, Topology,
    TopologyDevice, TopologyFunction, TopologyGpu, TopologyInterface, TopologyNumaNode,
};
use crate::status::ContainerGrants;

const ISOLATED: &str = "/sys/devices/system/cpu/isolated";

/// The input of a topology.
#[derive(Clone, Copy, Debug)]
pub struct TopologyInput<'s> {
    pub host: &'s Host,
    pub inventory: &'s Inventory,
    pub pools: &'s PoolSet,
    /// Its leases; `None` if unknown, as for users other than root.
    pub leases: Option<&'s [LeaseEntry]>,
    pub grantees: &'s [ContainerGrants],
}

pub fn read(input: TopologyInput<'_>) -> Result<Topology, HostError> {
    let functions = &input.inventory.functions;
    let index = DeviceIndex::new(&input);
    let mut nodes = read_nodes(input.host, input.inventory)?;
    let parent = |function: &PciFunction| {
        function.physical_function.filter(|parent| functions.get(*parent).is_some())
    };
    let mut children: BTreeMap<PciAddress, Vec<TopologyFunction>> = BTreeMap::new();
    for function in functions.iter() {
        if let Some(parent) = parent(function) {
            children.entry(parent).or_default().push(index.build_function(function));
        }
    }
    for function in functions.iter().filter(|function| parent(function).is_none()) {
        let mut virtual_functions = children.remove(&function.address).unwrap_or_default();
        if virtual_functions.is_empty() && !index.is_shown(function) {
            continue;
        }
        virtual_functions.sort_by_key(|child| (child.index, child.address));
        let link = read_link(input.host, function.address)?;
        let topology_function =
            TopologyFunction { link, virtual_functions, ..index.build_function(function) };
        let bus = find_bus(&input, node_entry(&mut nodes, function.numa_node), function)?;
        bus.functions.push(topology_function);
    }
    // A kernel without NUMA lists no node for its huge pages.
    for size in &input.inventory.hugepages {
        if size.nodes.is_empty() && size.total > 0 {
            let pages = PageTotals { name: size.name.clone(), total: size.total, free: size.free };
            node_entry(&mut nodes, None).hugepages.push(pages);
        }
    }
    for (number, device) in index.off_pci {
        node_entry(&mut nodes, number).devices.push(device);
    }
    nodes.sort_by_key(|node| (node.number.is_none(), node.number));
    Ok(Topology {
        holders_known: input.leases.is_some(),
        nodes,
        containers: input.grantees.to_vec(),
    })
}

fn node_entry(nodes: &mut Vec<TopologyNumaNode>, number: Option<u32>) -> &mut TopologyNumaNode {
    let position = nodes.iter().position(|node| node.number == number);
    entry(nodes, position, || TopologyNumaNode { number, ..TopologyNumaNode::default() })
}

/// Returns the entry at a position, or a new one at the end.
fn entry<T>(entries: &mut Vec<T>, position: Option<usize>, new: impl FnOnce() -> T) -> &mut T {
    let index = position.unwrap_or(entries.len());
    if position.is_none() {
        entries.push(new());
    }
    &mut entries[index]
}

fn read_link(host: &Host, address: PciAddress) -> Result<Option<PcieLink>, HostError> {
    pcie_link::read(host, &Path::new(DEVICES).join(address.to_string()), "current")
}

/// Finds the bus of a function on its NUMA node, below its PCIe root and bridges.
fn find_bus<'n>(
    input: &TopologyInput<'_>,
    node: &'n mut TopologyNumaNode,
    function: &PciFunction,
) -> Result<&'n mut Bus, HostError> {
    let functions = &input.inventory.functions;
    let name = functions.root(function.address).unwrap_or("PCI");
    let position = node.roots.iter().position(|known| known.name == name);
    let mut bus = &mut entry(&mut node.roots, position, || PcieRoot {
        name: name.to_owned(),
        ..PcieRoot::default()
    })
    .bus;
    for &address in functions.bridges(function.address) {
        let position = bus.bridges.iter().position(|known| known.address == address);
        let link = if position.is_none() { read_link(input.host, address)? } else { None };
        bus = &mut entry(&mut bus.bridges, position, || Bridge {
            address,
            link,
            bus: Bus::default(),
        })
        .bus;
    }
    Ok(bus)
}

/// The data of discovery and leases by PCI function.
struct DeviceIndex<'s> {
    inventory: &'s Inventory,
    interfaces: BTreeMap<PciAddress, Vec<TopologyInterface>>,
    devices: BTreeMap<PciAddress, Vec<TopologyDevice>>,
    indexes: BTreeMap<PciAddress, u32>,
    gpu_nics: GpuNicMap<'s>,
    /// Devices on no function, with their nodes.
    off_pci: Vec<(Option<u32>, TopologyDevice)>,
}

impl<'s> DeviceIndex<'s> {
    fn new(input: &TopologyInput<'s>) -> DeviceIndex<'s> {
        let inventory = input.inventory;
        let indexes = inventory.functions.iter().flat_map(|parent| {
            parent.virtual_functions.iter().map(|(index, child)| (*child, *index))
        });
        let mut index = DeviceIndex {
            inventory,
            interfaces: interfaces_by_function(inventory),
            devices: BTreeMap::new(),
            indexes: indexes.collect(),
            gpu_nics: GpuNicMap::from_inventory(inventory),
            off_pci: Vec::new(),
        };
        // The containers of leases that are not over, by device.
        let mut holders: BTreeMap<(Class, String), Vec<String>> = BTreeMap::new();
        for entry in input.leases.unwrap_or_default().iter().filter(|entry| !entry.has_ended()) {
            let holder = match &entry.lease {
                Ok(lease) => lease.container.to_string(),
                Err(_) => "an unknown container".to_owned(),
            };
            let key = (entry.device.class, entry.device.name.to_string());
            holders.entry(key).or_default().push(holder);
        }
        for host_device in inventory.with_drained().filter(|device| is_shown(device, inventory)) {
            let holders = holders.remove(&(host_device.class, host_device.name.to_string()));
            let device = build_device(input, host_device, holders);
            for alias in &host_device.aliases {
                index.add_device(Some(*alias), host_device.numa_node, device.clone());
            }
            index.add_device(host_device.pci, host_device.numa_node, device);
        }
        // Devices that are held and were not asked for: their holders took them away.
        for ((class, name), holders) in holders {
            let address = index.known_address(name.parse().ok());
            let device =
                TopologyDevice { state: Occupancy::Held, holders, ..new_device(class, name) };
            index.add_device(address, None, device);
        }
        index.add_excluded();
        index
    }

    fn known_address(&self, address: Option<PciAddress>) -> Option<PciAddress> {
        address.filter(|address| self.inventory.functions.get(*address).is_some())
    }

    fn add_device(
        &mut self,
        pci: Option<PciAddress>,
        numa_node: Option<u32>,
        device: TopologyDevice,
    ) {
        match pci {
            Some(pci) => self.devices.entry(pci).or_default().push(device),
            None => self.off_pci.push((numa_node, device)),
        }
    }

    /// Adds devices that are not offered: on their function if it is known, or else outside of any node.
    fn add_excluded(&mut self) {
        let by_name: BTreeMap<&str, PciAddress> = self
            .inventory
            .interfaces
            .iter()
            .filter_map(|interface| Some((interface.name.as_str(), interface.pci()?)))
            .collect();
        for entry in &self.inventory.not_offered {
            let ExclusionSubject::Device(class) = entry.kind else { continue };
            let name = entry.name.as_str();
            let is_gpus = class == Class::Rdma && gpu_name::is_gpu_name(name);
            let mut drained = self.inventory.drained.iter();
            if is_gpus || drained.any(|one| one.class == class && one.name.as_str() == name) {
                continue;
            }
            // An RDMA device or a clock may be called like an interface of another function.
            let is_interface = matches!(
                class,
                Class::Nic | Class::NicPlain | Class::NicNodes | Class::Zf | Class::Netdev
            );
            let by_name = by_name.get(name).copied().filter(|_| is_interface);
            let address = self.known_address(entry.pci.or(name.parse().ok()).or(by_name));
            // An unreadable entry is named by its path.
            let is_device = match class {
                Class::Rdma => !name.starts_with("umad") && !name.starts_with("issm"),
                Class::Ptp | Class::Pps | Class::Hugepages => true,
                _ => false,
            };
            if address.is_some() || (is_device && !name.starts_with('/')) {
                let device = TopologyDevice {
                    state: Occupancy::NotOffered,
                    reason: Some(entry.reason.clone()),
                    ..new_device(class, name.to_owned())
                };
                self.add_device(address, None, device);
            }
        }
    }

    /// Returns whether a function is shown: a network function, a GPU, or one with devices.
    fn is_shown(&self, function: &PciFunction) -> bool {
        function.is_network()
            || self.interfaces.contains_key(&function.address)
            || self.devices.contains_key(&function.address)
            || self.gpu_nics.gpus.iter().any(|(gpu, _)| *gpu == function.address)
    }

    /// A function without its link and its virtual functions.
    fn build_function(&self, function: &PciFunction) -> TopologyFunction {
        let address = function.address;
        let mut devices = self.devices.get(&address).cloned().unwrap_or_default();
        devices.sort_by(|one, other| (one.class, &one.name).cmp(&(other.class, &other.name)));
        TopologyFunction {
            address,
            id: function.id.to_string(),
            driver: function.driver.clone(),
            link: None,
            index: self.indexes.get(&address).copied(),
            gpu: build_gpu(&self.gpu_nics, address),
            interfaces: self.interfaces.get(&address).cloned().unwrap_or_default(),
            devices,
            virtual_functions: Vec::new(),
        }
    }
}

/// The interfaces of each function, in the order of its ports.
fn interfaces_by_function(inventory: &Inventory) -> BTreeMap<PciAddress, Vec<TopologyInterface>> {
    let mut interfaces: Vec<_> = inventory.interfaces.iter().collect();
    interfaces.sort_by_key(|interface| interface.port.unwrap_or(0));
    let mut by_function: BTreeMap<PciAddress, Vec<TopologyInterface>> = BTreeMap::new();
    for interface in interfaces {
        let Some(pci) = interface.pci() else { continue };
        by_function.entry(pci).or_default().push(TopologyInterface {
            name: interface.name.clone(),
            state: interface.operstate.clone(),
            speed_mbps: interface.speed_mbps,
        });
    }
    by_function
}

fn is_shown(device: &HostDevice, inventory: &Inventory) -> bool {
    // Reserved pages are shown on their nodes.
    let is_overcommit = device.class == Class::Hugepages
        && inventory
            .hugepages
            .iter()
            .any(|size| size.total == 0 && size.name == device.name.as_str());
    (device.class.is_in_topology() && !device.is_loopback()) || is_overcommit
}

fn new_device(class: Class, name: String) -> TopologyDevice {
    TopologyDevice { class, name, state: Occupancy::Free, reason: None, holders: Vec::new() }
}

/// Builds a device with the holders of its leases. A class without leases has those that were created with the device.
fn build_device(
    input: &TopologyInput<'_>,
    device: &HostDevice,
    holders: Option<Vec<String>>,
) -> TopologyDevice {
    let (class, name) = (device.class, device.name.as_str());
    let holders = holders.unwrap_or_else(|| list_grantees(input, class, name));
    let max = max_holders(input, class, name).and_then(|max| usize::try_from(max).ok());
    let is_held = !holders.is_empty() && max.is_some_and(|max| holders.len() >= max);
    let reason = match &device.health {
        Health::Unhealthy(reason) if device.is_drained => Some(reason.clone()),
        _ => None,
    };
    let state = match (&reason, is_held) {
        (Some(_), _) => Occupancy::Drained,
        (None, true) => Occupancy::Held,
        (None, false) => Occupancy::Free,
    };
    TopologyDevice { state, reason, holders, ..new_device(class, name.to_owned()) }
}

fn list_grantees(input: &TopologyInput<'_>, class: Class, name: &str) -> Vec<String> {
    let names = [name, "all"].map(|name| format!("{}={name}", class.as_str()));
    input
        .grantees
        .iter()
        .filter(|grantee| grantee.devices.iter().any(|device| names.contains(device)))
        .map(|grantee| grantee.container.clone())
        .collect()
}

/// Returns the number of containers that may have a device at once; `None` if they are not counted.
fn max_holders(input: &TopologyInput<'_>, class: Class, name: &str) -> Option<u32> {
    let is_alone = class == Class::Rdma && input.inventory.is_rdma_exclusive();
    let matching = input.pools.offered.iter().filter(|pool| {
        let mut members = pool.pool.members.iter();
        pool.class == class
            && pool.name.as_str() != ANY
            && members.any(|member| member.name.as_str() == name)
    });
    let shares = matching.map(|pool| pool.pool.share);
    shares.chain(input.pools.shares.share(class)).chain(is_alone.then_some(1)).min()
}

/// A GPU and its nearest NICs, as shown.
fn build_gpu(gpu_nics: &GpuNicMap<'_>, address: PciAddress) -> Option<TopologyGpu> {
    let number = gpu_nics.gpus.iter().position(|(gpu, _)| *gpu == address)?;
    let (_, vendor) = gpu_nics.gpus.get(number)?;
    let alias = gpu_nics.gpu_alias(address);
    Some(TopologyGpu {
        number,
        vendor,
        nearest: find_nearest(gpu_nics, address),
        rdma_name: alias.map(|alias| alias.name.clone()),
        rdma: alias.map(|alias| alias.rdma.clone()).unwrap_or_default(),
    })
}

/// Considers only NICs with RDMA if there are any, since a GPU cannot use others directly.
fn find_nearest(gpu_nics: &GpuNicMap<'_>, gpu: PciAddress) -> NearestNics {
    let has_rdma = gpu_nics.nics.iter().any(|nic| nic.is_rdma);
    let candidates: Vec<_> = gpu_nics
        .nics
        .iter()
        .filter(|nic| nic.is_rdma || !has_rdma)
        .map(|nic| (gpu_nics.distance(gpu, nic.address), nic))
        .collect();
    let least = candidates.iter().filter_map(|(distance, _)| *distance).min();
    // A NIC at an unknown distance is below another root: it may be as near as any that is.
    let is_open = candidates.iter().any(|(distance, _)| distance.is_none());
    let Some(distance) = least.filter(|least| *least <= Distance::Phb || !is_open) else {
        return NearestNics {
            distance: None,
            nearest: Vec::new(),
            reason: is_open.then(|| gpu_nics.unknown_reason().to_owned()),
        };
    };
    let nearest = candidates.iter().filter(|(candidate, _)| *candidate == Some(distance));
    NearestNics {
        distance: Some(distance),
        nearest: nearest.map(|(_, nic)| nic.name.clone()).collect(),
        reason: None,
    }
}

fn read_nodes(host: &Host, inventory: &Inventory) -> Result<Vec<TopologyNumaNode>, HostError> {
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
