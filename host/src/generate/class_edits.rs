//! The edits of a class before they become a specification.

use onload_cdi::{ContainerEdits, DeviceName};

/// A device with its edits, without its variable.
pub(super) type DeviceEdits = (DeviceName, ContainerEdits);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClassEdits {
    pub(super) common: ContainerEdits,
    /// The devices, including `loopback` if the class has it.
    pub(super) devices: Vec<DeviceEdits>,
    /// Edits of the device `all` in addition to its members' variables. `None` if the class has no such device.
    pub(super) all: Option<ContainerEdits>,
}
