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
            attributes: attributes(&netdev.name, Some(netdev.pci_address), Some(netdev), places),
            ..Found::default()
        })
        .collect()
}

/// An interface that is offered no longer, or is in a container.
pub(super) fn gone(name: &str, places: &Places<'_>) -> Found {
    let pci = places.named(name).and_then(|interface| interface.pci);
    let pci = pci.or_else(|| name.parse().ok());
    Found {
        names: vec![name.to_owned()],
        pci,
        numa_node: places.numa_node(pci),
        attributes: attributes(name, pci, None, places),
        ..Found::default()
    }
}

fn attributes(
    name: &str,
    pci: Option<PciAddress>,
    netdev: Option<&Netdev>,
    places: &Places<'_>,
) -> Attributes {
    let mut attributes = places.attributes(pci);
    attributes.extend([
        ("kind", text(Some(Class::Netdev.as_str()))),
        ("name", text(Some(name))),
        ("interface", text(Some(name))),
        ("linkMbps", int(netdev.and_then(|netdev| netdev.speed_mbps))),
        (
            "linkState",
            text(netdev.and_then(|netdev| netdev.state.as_deref())),
        ),
    ]);
    attributes
}
