//! The classes nic, nic-plain, nic-nodes and zf: interfaces that Onload or TCPDirect accelerates.

use onload_core::class::Class;

use super::attributes::{count, int, text, version};
use super::found::Found;
use super::offer::{Attribute, Attributes};
use super::places::Places;
use crate::discover::netdev::NetDevice;
use crate::discover::nic::Nic;
use crate::discover::tcpdirect;
use crate::generate::LOOPBACK;
use crate::pools::{HELD, RETURNING};

pub(super) fn found(class: Class, places: &Places<'_>) -> Vec<Found> {
    let inventory = places.inventory;
    let onload = inventory.onload.as_ref();
    match class {
        Class::Zf => {
            let tcpdirect = inventory.tcpdirect.iter();
            let nics = tcpdirect.flat_map(|_| tcpdirect::interfaces(&inventory.nics));
            nics.map(|nic| interface(class, nic, places)).collect()
        }
        _ if onload.is_some_and(|onload| onload.obstacle.is_none()) => {
            let nics = inventory.nics.iter();
            let mut found: Vec<Found> = nics.map(|nic| interface(class, nic, places)).collect();
            found.push(without_interface(class, LOOPBACK, places));
            found
        }
        _ => Vec::new(),
    }
}

pub(super) fn gone(class: Class, name: &str, places: &Places<'_>) -> Found {
    // An interface of that name is offered by its PCI address.
    if name == LOOPBACK {
        return without_interface(class, name, places);
    }
    let pci = places.named(name).and_then(|interface| interface.pci);
    let pci = pci.or_else(|| name.parse().ok());
    Found {
        pci,
        numa_node: places.numa_node(pci),
        attributes: attributes(class, name, None, places.named(name), places),
        ..without_interface(class, name, places)
    }
}

fn without_interface(class: Class, name: &str, places: &Places<'_>) -> Found {
    Found {
        names: vec![name.to_owned()],
        attributes: attributes(class, name, None, None, places),
        ..Found::default()
    }
}

fn interface(class: Class, nic: &Nic, places: &Places<'_>) -> Found {
    Found {
        names: vec![nic.device.clone()],
        aliases: Vec::new(),
        pci: nic.pci_address,
        numa_node: nic.numa_node,
        attributes: attributes(class, &nic.name, Some(nic), places.named(&nic.name), places),
        trouble: link_trouble(nic.state.as_deref()),
    }
}

fn attributes(
    class: Class,
    name: &str,
    nic: Option<&Nic>,
    interface: Option<&NetDevice>,
    places: &Places<'_>,
) -> Attributes {
    let onload = places.inventory.onload.as_ref();
    let onload_version = onload.and_then(|onload| onload.version.as_deref());
    let functions = nic.map_or(0, |nic| nic.virtual_functions.len());
    let speed = interface.and_then(|interface| interface.speed_mbps);
    let state = interface.and_then(|interface| interface.state.as_deref());
    let mut attributes = places.attributes(interface.and_then(|interface| interface.pci));
    let driver = interface.and_then(|interface| interface.driver.as_deref());
    attributes.extend([
        ("kind", text(Some(class.as_str()))),
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
        ("linkLayer", text(interface.map(link_layer))),
        ("virtualFunctions", count(functions)),
        ("onloadVersion", version(onload_version)),
        ("onload", text(onload_version)),
    ]);
    attributes
}

/// What the frames of an interface are, in the words of the RDMA stack.
pub(super) fn link_layer(interface: &NetDevice) -> &'static str {
    if interface.is_ipoib() {
        "InfiniBand"
    } else {
        "Ethernet"
    }
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
