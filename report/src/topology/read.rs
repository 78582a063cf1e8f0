//! Puts together what discovery, the leases and sysfs say.

use std::collections::BTreeMap;
use std::path::Path;

use onload_host::discover::link;
use onload_host::discover::pci::{DEVICES, PciFunction};
use onload_host::host::{Host, HostError};
use onload_sys::pci::PciAddress;

use super::model::{Bridge, Bus, Function, NumaNode, Root, Topology};
use super::node_facts;
use super::places::{Places, Seen};

pub fn read(seen: Seen<'_>) -> Result<Topology, HostError> {
    let mut places = Places::of(&seen);
    let mut nodes = node_facts::read(seen.host, seen.inventory)?;
    let mut children: BTreeMap<PciAddress, Vec<Function>> = BTreeMap::new();
    let mut parents = Vec::new();
    for function in seen.inventory.functions.iter() {
        match places.parent(function) {
            Some(parent) => {
                let shown = children.entry(parent).or_default();
                shown.push(places.function(function));
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
        let shown = Function {
            link: link(seen.host, function.address)?,
            virtual_functions: below,
            ..places.function(function)
        };
        put(&seen, node(&mut nodes, function.numa_node), function, shown)?;
    }
    for pages in node_facts::without_node(seen.inventory) {
        node(&mut nodes, None).hugepages.push(pages);
    }
    for (number, device) in std::mem::take(&mut places.elsewhere) {
        node(&mut nodes, number).devices.push(device);
    }
    nodes.sort_by_key(|node| (node.number.is_none(), node.number));
    Ok(Topology { holders_known: seen.leases.is_some(), nodes, containers: seen.grantees.to_vec() })
}

fn node(nodes: &mut Vec<NumaNode>, number: Option<u32>) -> &mut NumaNode {
    let at = nodes.iter().position(|node| node.number == number);
    let at = at.unwrap_or(nodes.len());
    if at == nodes.len() {
        nodes.push(NumaNode { number, ..NumaNode::default() });
    }
    &mut nodes[at]
}

fn link(host: &Host, address: PciAddress) -> Result<Option<String>, HostError> {
    let directory = Path::new(DEVICES).join(address.to_string());
    let link = link::read(host, &directory, "current")?;
    Ok(link.map(|link| link.to_string()))
}

/// Puts a function to its place below the roots of its node.
fn put(
    seen: &Seen<'_>,
    node: &mut NumaNode,
    function: &PciFunction,
    shown: Function,
) -> Result<(), HostError> {
    let functions = &seen.inventory.functions;
    let root = functions.root(function.address).unwrap_or("PCI");
    let at = node.roots.iter().position(|known| known.name == root);
    let at = at.unwrap_or(node.roots.len());
    if at == node.roots.len() {
        node.roots.push(Root { name: root.to_owned(), ..Root::default() });
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
