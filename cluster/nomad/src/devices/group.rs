//! A group of Nomad: one device, with a slot for each task that may have it.

use std::collections::BTreeMap;

use onload_cdi::QualifiedName;
use onload_core::class::Class;
use onload_core::pci::PciAddress;
use onload_host::offers::Health;

use super::attributes::Attributes;
use super::id::{Type, id};
use crate::wire::device::{DetectedDevice, DeviceGroup, DeviceLocality};

/// The CDI devices that a task gets, by class, in the order in which their edits are applied.
pub type Members = Vec<(Class, Vec<QualifiedName>)>;

/// A device as it is published.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its type.
    pub r#type: Type,
    /// Its vendor.
    pub vendor: &'static str,
    /// Its name in jobs, by which it is also known in constraints as `${device.model}`.
    pub name: String,
    /// Its name in ids.
    pub key: String,
    /// How many tasks may have it at once.
    pub slots: u32,
    /// Its PCI function.
    pub pci: Option<PciAddress>,
    /// Whether a task can be given it.
    pub health: Health,
    /// What it is selected by.
    pub attributes: Attributes,
    /// What a task gets of it.
    pub members: Members,
    /// Whether one task has it at a time.
    pub is_exclusive: bool,
    /// What can be counted of it.
    pub counted: Counted,
}

/// What can be counted of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Its network interface.
    pub interface: Option<String>,
    /// Its RDMA device.
    pub rdma: Option<String>,
    /// The size of its pages in KiB.
    pub page_kib: Option<u64>,
    /// Whether Onload's stacks are counted with it.
    pub stacks: bool,
}

impl Group {
    /// The ids of its slots.
    pub fn ids(&self) -> impl Iterator<Item = String> + '_ {
        (0..self.slots).map(|slot| id(self.r#type, &self.key, slot))
    }

    /// As Nomad reads it.
    #[must_use]
    pub fn to_wire(&self) -> DeviceGroup {
        let reason = match &self.health {
            Health::Healthy => None,
            Health::Unhealthy(reason) => Some(reason.as_str()),
        };
        let locality = self.pci.as_ref().map(|pci| DeviceLocality {
            pci_bus_id: pci.to_string(),
        });
        let devices = self.ids().map(|id| DetectedDevice {
            id,
            healthy: reason.is_none(),
            health_description: reason.unwrap_or_default().to_owned(),
            hw_locality: locality.clone(),
        });
        DeviceGroup {
            vendor: self.vendor.to_owned(),
            device_type: self.r#type.to_string(),
            device_name: self.name.clone(),
            devices: devices.collect(),
            attributes: self.attributes.clone(),
        }
    }
}

/// Groups by the ids of their slots.
#[must_use]
pub fn by_id(groups: &[Group]) -> BTreeMap<String, usize> {
    let groups = groups.iter().enumerate();
    groups
        .flat_map(|(index, group)| group.ids().map(move |id| (id, index)))
        .collect()
}
