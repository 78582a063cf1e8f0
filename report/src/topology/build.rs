//! Builds the topology of a host from its inventory, its leases and sysfs.

use std::collections::BTreeMap;
use std::path::Path;

use onload_host::discover::pci::{DEVICES, PciFunction};
use onload_host::discover::pcie_link::{self, PcieLink};
use onload_host::host::{Host, HostError};
use onload_sys::pci::PciAddress;

use super::device_index::{DeviceIndex, TopologyInput};
use super::model::{Bridge, Bus, PcieRoot, Topology, TopologyFunction, TopologyNumaNode};
use super::numa_facts;

pub fn read(input: TopologyInput<'_>) -> Result<Topology, HostError> {
    let mut index = DeviceIndex::new(&input);
    let mut nodes = numa_facts::read(input.host, input.inventory)?;
    let mut children: BTreeMap<PciAddress, Vec<TopologyFunction>> = BTreeMap::new();
    let mut parents = Vec::new();
    for function in input.inventory.functions.iter() {
        match index.parent(function) {
            Some(parent) => {
                let siblings = children.entry(parent).or_default();
                siblings.push(index.build_function(function));
            }
            None => parents.push(function),
        }
    }
    for function in parents {
        let mut virtual_functions = children.remove(&function.address).unwrap_or_default();
        if virtual_functions.is_empty() && !index.is_shown(function) {
            continue;
        }
        virtual_functions.sort_by_key(|child| (child.index, child.address));
        let topology_function = TopologyFunction {
            link: read_link(input.host, function.address)?,
            virtual_functions,
            ..index.build_function(function)
        };
        place_function(
            &input,
            node_entry(&mut nodes, function.numa_node),
            function,
            topology_function,
        )?;
    }
    for pages in numa_facts::pages_without_node(input.inventory) {
        node_entry(&mut nodes, None).hugepages.push(pages);
    }
    for (number, device) in std::mem::take(&mut index.off_pci) {
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
    let index = nodes.iter().position(|node| node.number == number).unwrap_or(nodes.len());
    if index == nodes.len() {
        nodes.push(TopologyNumaNode { number, ..TopologyNumaNode::default() });
    }
    &mut nodes[index]
}

fn read_link(host: &Host, address: PciAddress) -> Result<Option<PcieLink>, HostError> {
    pcie_link::read(host, &Path::new(DEVICES).join(address.to_string()), "current")
}

/// Adds a function to its NUMA node, below its PCIe root and bridges.
fn place_function(
    input: &TopologyInput<'_>,
    node: &mut TopologyNumaNode,
    function: &PciFunction,
    topology_function: TopologyFunction,
) -> Result<(), HostError> {
    let functions = &input.inventory.functions;
    let root = functions.root(function.address).unwrap_or("PCI");
    let index = node.roots.iter().position(|known| known.name == root).unwrap_or(node.roots.len());
    if index == node.roots.len() {
        node.roots.push(PcieRoot { name: root.to_owned(), ..PcieRoot::default() });
    }
    let mut bus = &mut node.roots[index].bus;
    for &bridge in functions.bridges(function.address) {
        let index = bus
            .bridges
            .iter()
            .position(|known| known.address == bridge)
            .unwrap_or(bus.bridges.len());
        if index == bus.bridges.len() {
            bus.bridges.push(Bridge {
                address: bridge,
                link: read_link(input.host, bridge)?,
                bus: Bus::default(),
            });
        }
        bus = &mut bus.bridges[index].bus;
    }
    bus.functions.push(topology_function);
    Ok(())
}
