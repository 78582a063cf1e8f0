//! The classes ptp and pps.

use onload_core::class::Class;
use onload_core::expectation::ExpectedDevice;

use super::attributes::{Attributes, text};
use super::device::{HostDevice, build_devices};
use super::function_index::FunctionIndex;
use crate::discover::clock::Clock;
use crate::discover::node::OfferedNode;

fn clocks<'i>(class: Class, function_index: &FunctionIndex<'i>) -> &'i [Clock] {
    match class {
        Class::Ptp => &function_index.inventory.ptp,
        _ => &function_index.inventory.pps,
    }
}

pub(super) fn devices(class: Class, function_index: &FunctionIndex<'_>) -> Vec<HostDevice> {
    build_devices(clocks(class, function_index), |clock| {
        let expected = ExpectedDevice::for_clock(class.as_str(), &clock.name, clock.pci_address);
        let link_layer = clock.nic.iter().filter_map(|nic| function_index.link_layer(nic));
        let device = HostDevice {
            interfaces: clock.nic.iter().cloned().collect(),
            link_layers: link_layer.collect(),
            nodes: vec![OfferedNode::exclusive(clock.node.clone(), expected.into_iter().collect())],
            ..HostDevice::new(class, &clock.name)?
        };
        Some(function_index.place_device(device, clock.pci_address))
    })
}

pub(super) fn attributes(device: &HostDevice, function_index: &FunctionIndex<'_>) -> Attributes {
    let clock = device.read.and_then(|index| clocks(device.class, function_index).get(index));
    let clock_name = clock.and_then(|clock| clock.clock_name.as_deref());
    let interface = clock.and_then(|clock| clock.nic.as_deref());
    let mut attributes = function_index.attributes(device.pci);
    attributes.extend([("clockName", text(clock_name)), ("interface", text(interface))]);
    attributes
}
