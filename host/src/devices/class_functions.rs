//! The functions for the devices of each class.

use onload_core::class::Class;

use super::attributes::{Attributes, text};
use super::device::HostDevice;
use super::function_index::FunctionIndex;
use super::{clock, gdrcopy, hugepages, netdev, nic, profile, rdma, vfio};
use crate::discover::netdev::NetworkInterface;

struct ClassFunctions {
    /// The devices that a host offers of a class.
    devices: fn(Class, &FunctionIndex<'_>) -> Vec<HostDevice>,
    /// Returns the attributes in addition to class and name. For a device that is gone, unknown values.
    attributes: fn(&HostDevice, &FunctionIndex<'_>) -> Attributes,
}

/// Returns `None` for a bundle, whose devices belong to other classes.
fn class_functions(class: Class) -> Option<ClassFunctions> {
    macro_rules! family {
        ($module:ident) => {
            ClassFunctions { devices: $module::devices, attributes: $module::attributes }
        };
    }
    Some(match class {
        Class::Nic | Class::NicPlain | Class::NicNodes | Class::Zf => family!(nic),
        Class::Profile => family!(profile),
        Class::Rdma => family!(rdma),
        Class::Vfio => family!(vfio),
        Class::Hugepages => family!(hugepages),
        Class::Netdev => family!(netdev),
        Class::Ptp | Class::Pps => family!(clock),
        Class::Gdrcopy => family!(gdrcopy),
        Class::Bundle => return None,
    })
}

pub(super) fn devices(class: Class, function_index: &FunctionIndex<'_>) -> Vec<HostDevice> {
    let functions = class_functions(class);
    functions.map_or_else(Vec::new, |functions| (functions.devices)(class, function_index))
}

/// Returns a device that is in a specification but not offered by the host, with the data in its name.
pub(crate) fn missing_device(
    class: Class,
    name: &str,
    function_index: &FunctionIndex<'_>,
) -> Option<HostDevice> {
    class_functions(class)?;
    let device = HostDevice::new(class, name)?;
    if !class.has_function_name() || device.is_loopback() {
        return Some(device);
    }
    let pci = function_index.interface(name).and_then(NetworkInterface::pci);
    Some(function_index.place_device(device, pci.or_else(|| name.parse().ok())))
}

pub(crate) fn attributes(device: &HostDevice, function_index: &FunctionIndex<'_>) -> Attributes {
    let mut attributes = Attributes::from([
        ("kind", text(Some(device.class.as_str()))),
        ("name", text(Some(device.name.as_str()))),
    ]);
    if let Some(functions) = class_functions(device.class) {
        attributes.extend((functions.attributes)(device, function_index));
    }
    attributes
}
