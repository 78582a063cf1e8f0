//! The class netdev: interfaces that move into a container.

use onload_core::class::Class;
use onload_core::pci::PciAddress;
use onload_core::select::LinkLayer;

use super::attributes::{int, text};
use super::device::Device;
use super::places::Places;
use crate::discover::movable::Netdev;

pub(super) fn devices(places: &Places<'_>) -> Vec<Device> {
    let netdevs = places.inventory.netdevs.iter();
    netdevs
        .filter_map(|netdev| device(netdev, places))
        .collect()
}

/// That the link of one is down is no trouble: it is set up where it goes.
pub(super) fn device(netdev: &Netdev, places: &Places<'_>) -> Option<Device> {
    let pci = Some(netdev.pci_address);
    Some(Device {
        interfaces: vec![netdev.name.clone()],
        // What carries anything else is not offered.
        link_layers: vec![LinkLayer::Ethernet],
        ..made(
            &netdev.device,
            netdev.interface(),
            pci,
            Some(netdev),
            places,
        )?
    })
}

pub(super) fn gone(name: &str, places: &Places<'_>) -> Option<Device> {
    let address: Option<PciAddress> = name.parse().ok();
    let pci = places.interface(name).and_then(|interface| interface.pci);
    let interface = address.is_none().then_some(name);
    made(name, interface, pci.or(address), None, places)
}

/// The name is that of the device: the interface's own goes away with it where a CNI plugin moves it.
fn made(
    name: &str,
    interface: Option<&str>,
    pci: Option<PciAddress>,
    netdev: Option<&Netdev>,
    places: &Places<'_>,
) -> Option<Device> {
    let state = netdev.and_then(|netdev| netdev.state.as_deref());
    let made = places.put(Device::new(Class::Netdev, name)?, pci);
    Some(made.with(places.attributes(pci)).with([
        ("interface", text(interface)),
        ("linkMbps", int(netdev.and_then(|netdev| netdev.speed_mbps))),
        ("linkState", text(state)),
    ]))
}
