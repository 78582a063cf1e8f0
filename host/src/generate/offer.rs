//! What a class offers, before it is a specification.

use onload_cdi::ContainerEdits;

/// A device with its edits, before it is given its variable.
pub(super) type Entry = (String, ContainerEdits);

/// The devices of one class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Offer {
    /// What all of them share.
    pub(super) common: ContainerEdits,
    /// Each by its name; `loopback` is among them where the class has it.
    pub(super) devices: Vec<Entry>,
    /// Edits of the device `all` beyond the variables of its members; none where there is no such.
    pub(super) all: Option<ContainerEdits>,
}
