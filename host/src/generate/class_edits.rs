//! What a class offers, before it becomes a specification.

use onload_cdi::{ContainerEdits, DeviceName};

/// A device with its edits, without its variable.
pub(super) type DeviceEdits = (DeviceName, ContainerEdits);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClassEdits {
    pub(super) common: ContainerEdits,
    /// Each by name, including `loopback` if the class has it.
    pub(super) devices: Vec<DeviceEdits>,
    /// Edits of the device `all` in addition to its members' variables; `None` if there is no such
    /// device.
    pub(super) all: Option<ContainerEdits>,
}
