//! The classes ptp and pps.

use onload_core::class::Class;
use onload_core::expect::Expected;

use super::attributes::{Attributes, text};
use super::device::{Device, made_of};
use super::places::Places;
use crate::discover::clock::Clock;
use crate::discover::node::DeviceNode;

fn clocks<'i>(class: Class, places: &Places<'i>) -> &'i [Clock] {
    match class {
        Class::Ptp => &places.inventory.ptp,
        _ => &places.inventory.pps,
    }
}

pub(super) fn devices(class: Class, places: &Places<'_>) -> Vec<Device> {
    made_of(clocks(class, places), |clock| {
        let expected = Expected::clock(class.as_str(), &clock.name, clock.pci_address);
        let link_layer = clock.nic.iter().filter_map(|nic| places.link_layer(nic));
        let device = Device {
            interfaces: clock.nic.iter().cloned().collect(),
            link_layers: link_layer.collect(),
            nodes: vec![DeviceNode::own(clock.node.clone(), expected.into_iter().collect())],
            ..Device::new(class, &clock.name)?
        };
        Some(places.put(device, clock.pci_address))
    })
}

pub(super) fn attributes(device: &Device, places: &Places<'_>) -> Attributes {
    let clock = device.read.and_then(|at| clocks(device.class, places).get(at));
    let clock_name = clock.and_then(|clock| clock.clock_name.as_deref());
    let interface = clock.and_then(|clock| clock.nic.as_deref());
    let mut attributes = places.attributes(device.pci);
    attributes.extend([("clockName", text(clock_name)), ("interface", text(interface))]);
    attributes
}
