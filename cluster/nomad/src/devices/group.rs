//! A Nomad device group: devices that a job requests by one name, with a slot for each task that may have one.

use std::collections::{BTreeMap, BTreeSet};

use onload_cdi::QualifiedName;
use onload_core::class::Class;
use onload_host::offers::Health;
use onload_sys::pci::PciAddress;

use super::attributes::NomadAttributes;
use super::id::{self, DeviceType, slot_id};
use crate::wire::device::{DetectedDevice, DeviceGroup, DeviceLocality};

/// The CDI devices that a task gets, by class, in the order in which their edits are applied.
pub type CdiDevices = Vec<(Class, Vec<QualifiedName>)>;

/// The ids of slots that were reserved for a Nomad task, and whether its container exists.
pub type OwnSlots = BTreeMap<String, bool>;

#[derive(Clone, Debug, PartialEq)]
pub struct NomadGroup {
    pub r#type: DeviceType,
    pub vendor: &'static str,
    /// Their name in jobs, which is `${device.model}` in constraints.
    pub name: String,
    pub attributes: NomadAttributes,
    /// Whether a device can be used by one task at a time.
    pub is_exclusive: bool,
    pub devices: Vec<NomadDevice>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NomadDevice {
    pub key: String,
    /// The number of tasks that may have it at once.
    pub slots: u32,
    pub pci: Option<PciAddress>,
    pub health: Health,
    /// The number of slots that other containers leave free, and their names.
    pub remaining: Option<(u32, String)>,
    pub is_drained: bool,
    pub cdi_devices: CdiDevices,
    pub statistics: StatisticsSource,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatisticsSource {
    pub interface: Option<String>,
    pub rdma: Option<String>,
    /// Size of its huge pages in KiB.
    pub page_kib: Option<u64>,
    /// Whether its statistics include Onload's stacks.
    pub stacks: bool,
}

impl NomadGroup {
    pub fn ids<'g>(&self, device: &'g NomadDevice) -> impl Iterator<Item = String> + use<'g> {
        let r#type = self.r#type;
        (0..device.slots).map(move |slot| slot_id(r#type, &device.key, slot))
    }

    pub fn to_wire(&self, own_slots: &OwnSlots) -> DeviceGroup {
        let devices = self.devices.iter().flat_map(|device| self.to_detected(device, own_slots));
        DeviceGroup {
            vendor: self.vendor.to_owned(),
            device_type: self.r#type.to_string(),
            device_name: self.name.clone(),
            devices: devices.collect(),
            attributes: self.attributes.clone(),
        }
    }

    fn to_detected<'g>(
        &self,
        device: &'g NomadDevice,
        own_slots: &OwnSlots,
    ) -> impl Iterator<Item = DetectedDevice> + use<'g> {
        let unhealthy = self.unhealthy_slots(device, own_slots);
        let reason = match (&device.health, &device.remaining) {
            (Health::Unhealthy(reason), _) => reason.as_str(),
            (Health::Healthy, remaining) => remaining.as_ref().map_or("", |(_, holders)| holders),
        };
        let locality =
            device.pci.as_ref().map(|pci| DeviceLocality { pci_bus_id: pci.to_string() });
        self.ids(device).map(move |id| {
            let healthy = !unhealthy.contains(&id);
            DetectedDevice {
                id,
                healthy,
                health_description: if healthy { "" } else { reason }.to_owned(),
                hw_locality: locality.clone(),
            }
        })
    }

    /// Returns the slots that are reported as unhealthy: as many as containers outside of Nomad use. Nomad chooses any
    /// slot and does not count tasks on unhealthy ones, so these are the last slots without a task.
    fn unhealthy_slots(&self, device: &NomadDevice, own_slots: &OwnSlots) -> BTreeSet<String> {
        let mut ids: Vec<String> = self.ids(device).collect();
        ids.reverse();
        ids.sort_by_key(|id| own_slots.get(id));
        ids.into_iter().take(device.unhealthy_count()).collect()
    }
}

impl NomadDevice {
    /// Returns the number of its slots that no task can get.
    pub fn unhealthy_count(&self) -> usize {
        let remaining = match (&self.health, &self.remaining) {
            (Health::Unhealthy(_), _) => 0,
            (Health::Healthy, Some((remaining, _))) => *remaining,
            (Health::Healthy, None) => self.slots,
        };
        usize::try_from(self.slots.saturating_sub(remaining)).unwrap_or(usize::MAX)
    }
}

/// Finds the device with a slot that has this id. Returns the index of its group, and its index in the group.
pub fn find_position(groups: &[NomadGroup], id: &str) -> Option<(usize, usize)> {
    let (r#type, key, slot) = id::parse(id)?;
    groups.iter().enumerate().filter(|(_, group)| group.r#type == r#type).find_map(
        |(group_index, group)| {
            let mut devices = group.devices.iter();
            let index = devices.position(|device| device.key == key && slot < device.slots)?;
            Some((group_index, index))
        },
    )
}
