//! The class netdev: interfaces that move into a container.

use onload_core::class::Class;
use onload_core::select::LinkLayer;
use onload_sys::pci::PciAddress;

use super::attributes::{Attributes, int, text};
use super::device::{Health, HostDevice, build_devices};
use super::function_index::FunctionIndex;
use crate::discover::movable_interface::Netdev;

pub(super) fn devices(_: Class, function_index: &FunctionIndex<'_>) -> Vec<HostDevice> {
    build_devices(&function_index.inventory.netdevs, |netdev| device(netdev, function_index))
}

/// Returns the device of an interface. A device whose link is down is still healthy, since the interface is set up in
/// the container.
pub(super) fn device(netdev: &Netdev, function_index: &FunctionIndex<'_>) -> Option<HostDevice> {
    let device = HostDevice {
        interfaces: vec![netdev.name.clone()],
        // Interfaces with other link layers are not offered.
        link_layers: vec![LinkLayer::Ethernet],
        health: Health::from_trouble(netdev.trouble.clone()),
        ..HostDevice::new(Class::Netdev, &netdev.device)?
    };
    Some(function_index.place_device(device, Some(netdev.pci_address)))
}

/// Returns the attributes of a device. `interface` is empty if its name is unknown, for example while a CNI plugin has
/// moved the interface. For a device that the host does not have, it is the device's name unless that is a PCI address.
pub(super) fn attributes(device: &HostDevice, function_index: &FunctionIndex<'_>) -> Attributes {
    let name = device.name.as_str();
    let netdev = device.read.and_then(|index| function_index.inventory.netdevs.get(index));
    let interface = match netdev {
        Some(netdev) => netdev.interface(),
        None => name.parse::<PciAddress>().is_err().then_some(name),
    };
    let state = netdev.and_then(|netdev| netdev.state.as_deref());
    let mut attributes = function_index.attributes(device.pci);
    attributes.extend([
        ("interface", text(interface)),
        ("linkMbps", int(netdev.and_then(|netdev| netdev.speed_mbps))),
        ("linkState", text(state)),
    ]);
    attributes
}
