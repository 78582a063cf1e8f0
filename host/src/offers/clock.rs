//! The classes ptp and pps.

use onload_core::class::Class;

use super::attributes::text;
use super::found::Found;
use super::offer::Attributes;
use super::places::Places;
use crate::discover::clock::Clock;

pub(super) fn found(class: Class, places: &Places<'_>) -> Vec<Found> {
    let clocks = match class {
        Class::Ptp => &places.inventory.ptp,
        _ => &places.inventory.pps,
    };
    let found = clocks.iter().map(|clock| Found {
        pci: clock.pci_address,
        numa_node: clock.numa_node,
        attributes: attributes(class, &clock.name, Some(clock), places),
        ..gone(class, &clock.name, places)
    });
    found.collect()
}

pub(super) fn gone(class: Class, name: &str, places: &Places<'_>) -> Found {
    Found {
        names: vec![name.to_owned()],
        attributes: attributes(class, name, None, places),
        ..Found::default()
    }
}

fn attributes(class: Class, name: &str, clock: Option<&Clock>, places: &Places<'_>) -> Attributes {
    let mut attributes = places.attributes(clock.and_then(|clock| clock.pci_address));
    attributes.extend([
        ("kind", text(Some(class.as_str()))),
        ("name", text(Some(name))),
        (
            "clockName",
            text(clock.and_then(|clock| clock.clock_name.as_deref())),
        ),
        (
            "interface",
            text(clock.and_then(|clock| clock.nic.as_deref())),
        ),
    ]);
    attributes
}
