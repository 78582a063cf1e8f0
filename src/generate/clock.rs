//! The classes ptp and pps: clocks to read.

use onload_cdi::spec::ContainerEdits;
use onload_hooks::class::Class;

use super::edits::{READ, READ_WRITE, Writer, nodes_only};
use super::{Entry, Offer};
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
    let function = clock
        .pci_address
        .map(|address| format!("@{address}"))
        .unwrap_or_default();
    let device = format!("{class}:{}{function}", clock.name);
    let expectation = writer.expectation(&clock.node, &device);
    let edits = ContainerEdits {
        hooks: writer
            .checking_hook(std::iter::once(expectation))
            .into_iter()
            .collect(),
        ..nodes_only(vec![node])
    };
    (clock.name.clone(), edits)
}
