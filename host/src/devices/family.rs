//! The family that a class is of.

use onload_core::class::Class;

use super::attributes::{Attributes, text};
use super::device::Device;
use super::places::Places;
use super::{clock, gdrcopy, hugepages, netdev, nic, profile, rdma, vfio};
use crate::discover::netdev::NetworkInterface;

struct Family {
    /// The devices that a host offers of a class.
    devices: fn(Class, &Places<'_>) -> Vec<Device>,
    /// Beside its class and its name; of a device that is gone what is not known.
    attributes: fn(&Device, &Places<'_>) -> Attributes,
}

/// None for a bundle: its devices are those of other classes.
fn family(class: Class) -> Option<Family> {
    macro_rules! family {
        ($module:ident) => {
            Family { devices: $module::devices, attributes: $module::attributes }
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

pub(super) fn devices(class: Class, places: &Places<'_>) -> Vec<Device> {
    let family = family(class);
    family.map_or_else(Vec::new, |family| (family.devices)(class, places))
}

/// A device that a specification has and the host does not offer, with what its name says.
pub(crate) fn gone(class: Class, name: &str, places: &Places<'_>) -> Option<Device> {
    family(class)?;
    let device = Device::new(class, name)?;
    if !class.is_named_after_function() || device.is_loopback() {
        return Some(device);
    }
    let pci = places.interface(name).and_then(NetworkInterface::pci);
    Some(places.put(device, pci.or_else(|| name.parse().ok())))
}

pub(crate) fn attributes(device: &Device, places: &Places<'_>) -> Attributes {
    let mut attributes = Attributes::from([
        ("kind", text(Some(device.class.as_str()))),
        ("name", text(Some(device.name.as_str()))),
    ]);
    let family = family(device.class);
    attributes
        .extend(family.map_or_else(Attributes::new, |family| (family.attributes)(device, places)));
    attributes
}
