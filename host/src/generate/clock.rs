//! The classes ptp and pps: clocks for reading.

use onload_cdi::ContainerEdits;
use onload_core::class::Class;
use onload_core::expect::Expected;

use super::edits::{READ, READ_WRITE, Writer, nodes_only};
use super::offer::{Entry, Offer};
use crate::discover::clock::Clock;

pub(super) fn offer(class: Class, clocks: &[Clock], writer: &Writer<'_>) -> Offer {
    let devices = clocks.iter().map(|clock| entry(class, clock, writer));
    Offer {
        devices: devices.collect(),
        ..Offer::default()
    }
}

fn entry(class: Class, clock: &Clock, writer: &Writer<'_>) -> Entry {
    let permissions = if writer.config.ptp_write {
        READ_WRITE
    } else {
        READ
    };
    let node = writer.node(&clock.node.path, permissions);
    let expected = Expected::clock(class.as_str(), &clock.name, clock.pci_address);
    let expectation = expected.map(|expected| writer.expectation(&clock.node, expected));
    let lease = writer.leased(class, [clock.name.as_str()].into_iter());
    let edits = ContainerEdits {
        hooks: writer.checking_hook(expectation.into_iter(), lease),
        ..nodes_only(vec![node])
    };
    (clock.name.clone(), edits)
}
