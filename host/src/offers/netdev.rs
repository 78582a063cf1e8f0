//! The class netdev: interfaces that move into a container.

use onload_core::class::Class;
use onload_core::pci::PciAddress;

use super::attributes::{int, text};
use super::found::Found;
use super::offer::Attributes;
use super::places::Places;
use crate::discover::movable::Netdev;

/// The interfaces that are offered. That the link of one is down is no trouble: it is set up where it goes.
pub(super) fn found(places: &Places<'_>) -> Vec<Found> {
    let netdevs = places.inventory.netdevs.iter();
    netdevs
        .map(|netdev| Found {
            names: vec![netdev.device.clone()],
            pci: Some(netdev.pci_address),
            numa_node: netdev.numa_node,
            attributes: attributes(
                &netdev.device,
                netdev.interface(),
                Some(netdev.pci_address),
                Some(netdev),
                places,
            ),
            ..Found::default()
        })
        .collect()
}

pub(super) fn gone(name: &str, places: &Places<'_>) -> Found {
    let address: Option<PciAddress> = name.parse().ok();
    let pci = places.named(name).and_then(|interface| interface.pci);
    let pci = pci.or(address);
    let interface = address.is_none().then_some(name);
    Found {
        names: vec![name.to_owned()],
        pci,
        numa_node: places.numa_node(pci),
        attributes: attributes(name, interface, pci, None, places),
        ..Found::default()
    }
}

/// The name is that of the device: the interface's own goes away with it where a CNI plugin moves it.
fn attributes(
    name: &str,
    interface: Option<&str>,
    pci: Option<PciAddress>,
    netdev: Option<&Netdev>,
    places: &Places<'_>,
) -> Attributes {
    let mut attributes = places.attributes(pci);
    attributes.extend([
        ("kind", text(Some(Class::Netdev.as_str()))),
        ("name", text(Some(name))),
        ("interface", text(interface)),
        ("linkMbps", int(netdev.and_then(|netdev| netdev.speed_mbps))),
        (
            "linkState",
            text(netdev.and_then(|netdev| netdev.state.as_deref())),
        ),
    ]);
    attributes
}
