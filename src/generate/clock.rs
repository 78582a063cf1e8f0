//! The classes ptp and pps: clocks to read.

use super::edits::{READ, READ_WRITE, Writer, nodes_only};
use super::{Entry, Offer};
use crate::discover::clock::Clock;

pub(super) fn offer(clocks: &[Clock], writer: &Writer<'_>) -> Offer {
    Offer {
        devices: clocks.iter().map(|clock| entry(clock, writer)).collect(),
        ..Offer::default()
    }
}

fn entry(clock: &Clock, writer: &Writer<'_>) -> Entry {
    let permissions = if writer.config.ptp_write {
        READ_WRITE
    } else {
        READ
    };
    let node = writer.node(&clock.node.path, permissions);
    (clock.name.clone(), nodes_only(vec![node]))
}
