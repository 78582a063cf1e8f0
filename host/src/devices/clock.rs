//! The classes ptp and pps.

use onload_core::class::Class;
use onload_core::expect::Expected;

use super::attributes::text;
use super::device::{Device, DeviceNode};
use super::places::Places;
use crate::discover::clock::Clock;

pub(super) fn devices(class: Class, places: &Places<'_>) -> Vec<Device> {
    let clocks = match class {
        Class::Ptp => &places.inventory.ptp,
        _ => &places.inventory.pps,
    };
    let device = |clock: &Clock| {
        let expected = Expected::clock(class.as_str(), &clock.name, clock.pci_address);
        let link_layer = clock.nic.iter().filter_map(|nic| places.link_layer(nic));
        Some(Device {
            interfaces: clock.nic.iter().cloned().collect(),
            link_layers: link_layer.collect(),
            nodes: vec![DeviceNode::own(&clock.node, expected.into_iter().collect())],
            ..made(class, &clock.name, Some(clock), places)?
        })
    };
    clocks.iter().filter_map(device).collect()
}

pub(super) fn gone(class: Class, name: &str, places: &Places<'_>) -> Option<Device> {
    made(class, name, None, places)
}

fn made(class: Class, name: &str, clock: Option<&Clock>, places: &Places<'_>) -> Option<Device> {
    let pci = clock.and_then(|clock| clock.pci_address);
    let clock_name = clock.and_then(|clock| clock.clock_name.as_deref());
    let interface = clock.and_then(|clock| clock.nic.as_deref());
    let made = places.put(Device::new(class, name)?, pci);
    Some(made.with(places.attributes(pci)).with([
        ("clockName", text(clock_name)),
        ("interface", text(interface)),
    ]))
}
