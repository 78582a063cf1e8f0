//! The classes nic, nic-plain, nic-nodes and zf: interfaces that Onload or TCPDirect accelerates.

use onload_core::class::Class;
use onload_core::select::LinkLayer;

use super::attributes::{Attribute, count, int, text, version};
use super::device::{Device, DeviceNode, Health};
use super::moving::{HELD, RETURNING};
use super::places::{Places, link_layer};
use crate::discover::netdev::NetDevice;
use crate::discover::nic::Nic;
use crate::discover::node::Node;
use crate::discover::tcpdirect;

/// Onload without an interface: it still accelerates loopback, pipes and epoll.
pub const LOOPBACK: &str = "loopback";

pub(super) fn devices(class: Class, places: &Places<'_>) -> Vec<Device> {
    let inventory = places.inventory;
    if class == Class::Zf {
        let Some(tcpdirect) = &inventory.tcpdirect else {
            return Vec::new();
        };
        let nics = tcpdirect::interfaces(&inventory.nics);
        let nics = nics.filter_map(|nic| interface(class, nic, &tcpdirect.nodes, places));
        return nics.collect();
    }
    let Some(onload) = inventory.usable_onload() else {
        return Vec::new();
    };
    let nics = inventory.nics.iter();
    let nics = nics.filter_map(|nic| interface(class, nic, &onload.nodes, places));
    let loopback = made(class, LOOPBACK, LOOPBACK, (None, None), places);
    let loopback = loopback.map(|device| Device {
        nodes: onload.nodes.iter().map(DeviceNode::shared).collect(),
        ..device
    });
    nics.chain(loopback).collect()
}

pub(super) fn gone(class: Class, name: &str, places: &Places<'_>) -> Option<Device> {
    if name == LOOPBACK {
        return made(class, name, name, (None, None), places);
    }
    // An interface of that name is offered by its PCI address.
    let interface = places.interface(name);
    let pci = interface.and_then(|interface| interface.pci);
    let pci = pci.or_else(|| name.parse().ok());
    let made = made(class, name, name, (None, interface), places)?;
    Some(places.put(made, pci))
}

fn interface(class: Class, nic: &Nic, nodes: &[Node], places: &Places<'_>) -> Option<Device> {
    let interface = places.interface(&nic.name);
    let made = made(
        class,
        &nic.device,
        &nic.name,
        (Some(nic), interface),
        places,
    )?;
    let device = Device {
        interfaces: vec![nic.name.clone()],
        link_layers: interface.map(link_layer).into_iter().collect(),
        nodes: nodes.iter().map(DeviceNode::shared).collect(),
        health: Health::of(link_trouble(nic.state.as_deref())),
        ..made
    };
    Some(places.put(device, nic.pci_address))
}

fn made(
    class: Class,
    device: &str,
    name: &str,
    (nic, interface): (Option<&Nic>, Option<&NetDevice>),
    places: &Places<'_>,
) -> Option<Device> {
    let onload = places.inventory.onload.as_ref();
    let onload = onload.and_then(|onload| onload.version.as_deref());
    let functions = nic.map_or(0, |nic| nic.virtual_functions.len());
    let speed = interface.and_then(|interface| interface.speed_mbps);
    let state = interface.and_then(|interface| interface.state.as_deref());
    let driver = interface.and_then(|interface| interface.driver.as_deref());
    let pci = interface.and_then(|interface| interface.pci);
    let layer = interface.map(|interface| match link_layer(interface) {
        // As the RDMA stack has it.
        LinkLayer::InfiniBand => "InfiniBand",
        LinkLayer::Ethernet => "Ethernet",
    });
    let made = Device::new(class, device)?.with(places.attributes(pci));
    Some(made.with([
        ("name", text(Some(name))),
        (
            "interface",
            text(interface.map(|interface| interface.name.as_str())),
        ),
        ("driver", text(driver)),
        ("datapath", text(nic.map(|nic| nic.datapath.as_str()))),
        ("accelerated", Attribute::Bool(nic.is_some())),
        ("linkMbps", int(speed)),
        ("linkState", text(state)),
        ("linkLayer", text(layer)),
        ("virtualFunctions", count(functions)),
        ("onloadVersion", version(onload)),
        ("onload", text(onload)),
    ]))
}

/// Why nothing can be sent, by `operstate` (RFC 2863, `Documentation/networking/operstates.rst`). Many
/// drivers never leave `unknown`, which is no trouble.
fn link_trouble(state: Option<&str>) -> Option<String> {
    let advice = match state? {
        "down" => "set the interface up, or look at its cable and the port at the other end",
        "lowerlayerdown" => "set the interface below it up",
        "notpresent" => "look at the kernel's log for what its driver says",
        "dormant" => "look at what has to authenticate it",
        HELD | RETURNING => {
            return Some("a container has it in its own network; wait until that ends".to_owned());
        }
        _ => return None,
    };
    let state = state?;
    Some(format!("its link is down (operstate {state}); {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_is_down_is_trouble_with_its_remedy() {
        for state in ["down", "lowerlayerdown", "notpresent", "dormant"] {
            let said = link_trouble(Some(state)).unwrap();
            let begins = format!("its link is down (operstate {state}); ");
            assert!(said.starts_with(&begins), "{said}");
        }
        let held = link_trouble(Some(HELD)).unwrap();
        assert!(held.starts_with("a container has it"), "{held}");
        for state in [None, Some("up"), Some("unknown"), Some("testing")] {
            assert_eq!(link_trouble(state), None, "{state:?}");
        }
    }
}
