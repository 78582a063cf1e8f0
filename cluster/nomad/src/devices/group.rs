//! A group of Nomad: devices that a job asks for by one name, with a slot for each task that may have one of them.

use std::collections::BTreeMap;

use onload_cdi::QualifiedName;
use onload_core::class::Class;
use onload_host::offers::Health;
use onload_sys::pci::PciAddress;

use super::attributes::Attributes;
use super::id::{Type, id};
use crate::wire::device::{DetectedDevice, DeviceGroup, DeviceLocality};

/// The CDI devices that a task gets, by class, in the order in which their edits are applied.
pub type Members = Vec<(Class, Vec<QualifiedName>)>;

#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub r#type: Type,
    pub vendor: &'static str,
    /// Their name in jobs, which constraints know as `${device.model}`.
    pub name: String,
    pub attributes: Attributes,
    /// Whether one task has each of them at a time.
    pub is_exclusive: bool,
    pub devices: Vec<Device>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    pub key: String,
    /// How many tasks may have it at once.
    pub slots: u32,
    pub pci: Option<PciAddress>,
    pub health: Health,
    pub is_drained: bool,
    pub members: Members,
    pub counted: Counted,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub interface: Option<String>,
    pub rdma: Option<String>,
    /// The size of its pages in KiB.
    pub page_kib: Option<u64>,
    /// Whether Onload's stacks are counted with it.
    pub stacks: bool,
}

impl Group {
    pub fn ids<'g>(&self, device: &'g Device) -> impl Iterator<Item = String> + use<'g> {
        let r#type = self.r#type;
        (0..device.slots).map(move |slot| id(r#type, &device.key, slot))
    }

    pub fn to_wire(&self) -> DeviceGroup {
        let devices = self.devices.iter().flat_map(|device| self.detected(device));
        DeviceGroup {
            vendor: self.vendor.to_owned(),
            device_type: self.r#type.to_string(),
            device_name: self.name.clone(),
            devices: devices.collect(),
            attributes: self.attributes.clone(),
        }
    }

    fn detected<'g>(&self, device: &'g Device) -> impl Iterator<Item = DetectedDevice> + use<'g> {
        let reason = match &device.health {
            Health::Healthy => None,
            Health::Unhealthy(reason) => Some(reason.as_str()),
        };
        let locality = device.pci.as_ref().map(|pci| DeviceLocality {
            pci_bus_id: pci.to_string(),
        });
        self.ids(device).map(move |id| DetectedDevice {
            id,
            healthy: reason.is_none(),
            health_description: reason.unwrap_or_default().to_owned(),
            hw_locality: locality.clone(),
        })
    }
}

/// The place of a device: that of its group, and its own in the group.
pub type Place = (usize, usize);

/// The places of devices by the ids of their slots.
pub fn by_id(groups: &[Group]) -> BTreeMap<String, Place> {
    let mut places = BTreeMap::new();
    for (of, group) in groups.iter().enumerate() {
        for (index, device) in group.devices.iter().enumerate() {
            places.extend(group.ids(device).map(|id| (id, (of, index))));
        }
    }
    places
}
