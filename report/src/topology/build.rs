//! Puts together what discovery, the leases and sysfs say.

use std::collections::BTreeMap;
use std::path::Path;

use onload_host::discover::pci::{DEVICES, PciFunction};
use onload_host::discover::pcie_link;
use onload_host::host::{Host, HostError};
use onload_sys::pci::PciAddress;

use super::device_index::{DeviceIndex, TopologyInput};
use super::model::{Bridge, Bus, PcieRoot, Topology, TopologyFunction, TopologyNumaNode};
use super::numa_facts;

pub fn read(seen: TopologyInput<'_>) -> Result<Topology, HostError> {
    let mut places = DeviceIndex::new(&seen);
    let mut nodes = numa_facts::read(seen.host, seen.inventory)?;
    let mut children: BTreeMap<PciAddress, Vec<TopologyFunction>> = BTreeMap::new();
    let mut parents = Vec::new();
    for function in seen.inventory.functions.iter() {
        match places.parent(function) {
            Some(parent) => {
                let shown = children.entry(parent).or_default();
                shown.push(places.build_function(function));
            }
            None => parents.push(function),
        }
    }
    for function in parents {
        let mut below = children.remove(&function.address).unwrap_or_default();
        if below.is_empty() && !places.is_shown(function) {
            continue;
        }
        below.sort_by_key(|child| (child.index, child.address));
        let shown = TopologyFunction {
            link: link(seen.host, function.address)?,
            virtual_functions: below,
            ..places.build_function(function)
        };
        place_function(&seen, node_entry(&mut nodes, function.numa_node), function, shown)?;
    }
    for pages in numa_facts::pages_without_node(seen.inventory) {
        node_entry(&mut nodes, None).hugepages.push(pages);
    }
    for (number, device) in std::mem::take(&mut places.elsewhere) {
        node_entry(&mut nodes, number).devices.push(device);
    }
    nodes.sort_by_key(|node| (node.number.is_none(), node.number));
    Ok(Topology { holders_known: seen.leases.is_some(), nodes, containers: seen.grantees.to_vec() })
}

fn node_entry(nodes: &mut Vec<TopologyNumaNode>, number: Option<u32>) -> &mut TopologyNumaNode {
    let at = nodes.iter().position(|node| node.number == number);
    let at = at.unwrap_or(nodes.len());
    if at == nodes.len() {
        nodes.push(TopologyNumaNode { number, ..TopologyNumaNode::default() });
    }
    &mut nodes[at]
}

fn link(host: &Host, address: PciAddress) -> Result<Option<String>, HostError> {
    let directory = Path::new(DEVICES).join(address.to_string());
    let link = pcie_link::read(host, &directory, "current")?;
    Ok(link.map(|link| link.to_string()))
}

/// Puts a function to its place below the roots of its node.
fn place_function(
    seen: &TopologyInput<'_>,
    node: &mut TopologyNumaNode,
    function: &PciFunction,
    shown: TopologyFunction,
) -> Result<(), HostError> {
    let functions = &seen.inventory.functions;
    let root = functions.root(function.address).unwrap_or("PCI");
    let at = node.roots.iter().position(|known| known.name == root);
    let at = at.unwrap_or(node.roots.len());
    if at == node.roots.len() {
        node.roots.push(PcieRoot { name: root.to_owned(), ..PcieRoot::default() });
    }
    let mut bus = &mut node.roots[at].bus;
    for &bridge in functions.bridges(function.address) {
        let at = bus.bridges.iter().position(|known| known.address == bridge);
        let at = at.unwrap_or(bus.bridges.len());
        if at == bus.bridges.len() {
            bus.bridges.push(Bridge {
                address: bridge,
                link: link(seen.host, bridge)?,
                bus: Bus::default(),
            });
        }
        bus = &mut bus.bridges[at].bus;
    }
    bus.functions.push(shown);
    Ok(())
}
