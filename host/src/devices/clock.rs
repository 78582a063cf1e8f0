//! The classes ptp and pps.

use onload_core::class::Class;
use onload_core::expectation::ExpectedDevice;

use super::attributes::{Attributes, text};
use super::device::{HostDevice, build_devices};
use super::function_index::FunctionIndex;
use crate::discover::clock::Clock;
use crate::discover::node::OfferedNode;

fn clocks<'i>(class: Class, places: &FunctionIndex<'i>) -> &'i [Clock] {
    match class {
        Class::Ptp => &places.inventory.ptp,
        _ => &places.inventory.pps,
    }
}

pub(super) fn devices(class: Class, places: &FunctionIndex<'_>) -> Vec<HostDevice> {
    build_devices(clocks(class, places), |clock| {
        let expected = ExpectedDevice::for_clock(class.as_str(), &clock.name, clock.pci_address);
        let link_layer = clock.nic.iter().filter_map(|nic| places.link_layer(nic));
        let device = HostDevice {
            interfaces: clock.nic.iter().cloned().collect(),
            link_layers: link_layer.collect(),
            nodes: vec![OfferedNode::exclusive(clock.node.clone(), expected.into_iter().collect())],
            ..HostDevice::new(class, &clock.name)?
        };
        Some(places.place_device(device, clock.pci_address))
    })
}

pub(super) fn attributes(device: &HostDevice, places: &FunctionIndex<'_>) -> Attributes {
    let clock = device.read.and_then(|at| clocks(device.class, places).get(at));
    let clock_name = clock.and_then(|clock| clock.clock_name.as_deref());
    let interface = clock.and_then(|clock| clock.nic.as_deref());
    let mut attributes = places.attributes(device.pci);
    attributes.extend([("clockName", text(clock_name)), ("interface", text(interface))]);
    attributes
}
