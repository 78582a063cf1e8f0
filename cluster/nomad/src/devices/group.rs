//! A group of Nomad: devices that a job asks for by one name, with a slot for each task that may have one of them.

use std::collections::{BTreeMap, BTreeSet};

use onload_cdi::QualifiedName;
use onload_core::class::Class;
use onload_host::offers::Health;
use onload_sys::pci::PciAddress;

use super::attributes::NomadAttributes;
use super::id::{DeviceType, slot_id};
use crate::wire::device::{DetectedDevice, DeviceGroup, DeviceLocality};

/// The CDI devices that a task gets, by class, in the order in which their edits are applied.
pub type CdiDevices = Vec<(Class, Vec<QualifiedName>)>;

/// The ids of slots that were reserved for a task of Nomad's, and whether its container is there.
pub type OwnSlots = BTreeMap<String, bool>;

#[derive(Clone, Debug, PartialEq)]
pub struct NomadGroup {
    pub r#type: DeviceType,
    pub vendor: &'static str,
    /// Their name in jobs, which constraints know as `${device.model}`.
    pub name: String,
    pub attributes: NomadAttributes,
    /// Whether one task has each of them at a time.
    pub is_exclusive: bool,
    pub devices: Vec<NomadDevice>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NomadDevice {
    pub key: String,
    /// How many tasks may have it at once.
    pub slots: u32,
    pub pci: Option<PciAddress>,
    pub health: Health,
    /// How many slots others leave, and who those are.
    pub remaining: Option<(u32, String)>,
    pub is_drained: bool,
    pub cdi_devices: CdiDevices,
    pub statistics: StatisticsSource,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatisticsSource {
    pub interface: Option<String>,
    pub rdma: Option<String>,
    /// The size of its pages in KiB.
    pub page_kib: Option<u64>,
    /// Whether Onload's stacks are counted with it.
    pub stacks: bool,
}

impl NomadGroup {
    pub fn ids<'g>(&self, device: &'g NomadDevice) -> impl Iterator<Item = String> + use<'g> {
        let r#type = self.r#type;
        (0..device.slots).map(move |slot| slot_id(r#type, &device.key, slot))
    }

    pub fn to_wire(&self, own_slots: &OwnSlots) -> DeviceGroup {
        let devices = self.devices.iter();
        let devices = devices.flat_map(|device| self.to_detected(device, own_slots));
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

    /// The slots that no task can be given: as many as others have. Nomad takes any slot, and counts no task that has an
    /// unhealthy one, so these are the last that no task has.
    fn unhealthy_slots(&self, device: &NomadDevice, own_slots: &OwnSlots) -> BTreeSet<String> {
        let mut ids: Vec<String> = self.ids(device).collect();
        ids.reverse();
        ids.sort_by_key(|id| own_slots.get(id));
        ids.into_iter().take(device.unhealthy_count()).collect()
    }
}

impl NomadDevice {
    /// How many of its slots no task can be given.
    pub fn unhealthy_count(&self) -> usize {
        let remaining = match (&self.health, &self.remaining) {
            (Health::Unhealthy(_), _) => 0,
            (Health::Healthy, Some((remaining, _))) => *remaining,
            (Health::Healthy, None) => self.slots,
        };
        usize::try_from(self.slots.saturating_sub(remaining)).unwrap_or(usize::MAX)
    }
}

/// The place of a device: that of its group, and its own in the group.
pub type DevicePosition = (usize, usize);

/// The places of devices by the ids of their slots.
pub fn positions_by_id(groups: &[NomadGroup]) -> BTreeMap<String, DevicePosition> {
    let mut positions = BTreeMap::new();
    for (group_index, group) in groups.iter().enumerate() {
        for (device_index, device) in group.devices.iter().enumerate() {
            positions.extend(group.ids(device).map(|id| (id, (group_index, device_index))));
        }
    }
    positions
}
