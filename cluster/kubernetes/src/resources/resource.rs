//! A resource: devices that containers request by number.

use std::collections::{BTreeMap, BTreeSet};

use onload_core::class::Class;
use onload_core::kubernetes_settings::ResourceName;
use onload_host::offers::Health;
use onload_sys::pci::PciAddress;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    pub name: ResourceName,
    pub devices: Vec<PluginDevice>,
    /// The ids at kubelet, each with the index of its device. A shared device has several.
    pub ids: BTreeMap<String, usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginDevice {
    pub class: Class,
    /// Its name in that class.
    pub name: String,
    pub cdi: Vec<String>,
    pub pci: Option<PciAddress>,
    /// Its PCIe root.
    pub pcie_root: Option<String>,
    pub numa_node: Option<u32>,
    /// The paths of its device nodes in a container.
    pub nodes: Vec<String>,
    /// The number of containers that may have it; `None` if it is exclusive.
    pub slots: Option<u32>,
    pub health: Health,
    /// The number of slots that other engines' containers leave free, and their names, if they have any.
    pub remaining: Option<(u32, String)>,
}

impl Resource {
    /// Creates a resource without devices, for one that has lost them.
    pub fn empty(name: ResourceName) -> Self {
        Resource { name, devices: Vec::new(), ids: BTreeMap::new() }
    }

    pub fn has_class(&self, classes: &BTreeSet<Class>) -> bool {
        let mut devices = self.devices.iter();
        devices.all(|device| classes.contains(&device.class))
    }

    pub fn device(&self, id: &str) -> Option<&PluginDevice> {
        self.devices.get(*self.ids.get(id)?)
    }

    /// Returns the numbers of healthy and unhealthy ids.
    pub fn count(&self) -> (usize, usize) {
        let unhealthy =
            self.ids.iter().filter(|(id, index)| self.slot_reason(id, **index).is_some()).count();
        (self.ids.len() - unhealthy, unhealthy)
    }

    /// Returns why an id cannot be allocated now. `None` if it can, or does not exist.
    pub fn unhealthy_reason(&self, id: &str) -> Option<&str> {
        self.slot_reason(id, *self.ids.get(id)?)
    }

    /// The last slots count as those of other engines' containers, since pods get the first ones.
    fn slot_reason(&self, id: &str, index: usize) -> Option<&str> {
        let device = self.devices.get(index)?;
        if let Health::Unhealthy(reason) = &device.health {
            return Some(reason);
        }
        let (remaining, reason) = device.remaining.as_ref()?;
        let slot: u32 = match device.slots {
            Some(_) => parse_slot(id)?,
            None => 0,
        };
        (slot >= *remaining).then_some(reason)
    }
}

/// Returns the slot of a shared device's id.
pub(super) fn parse_slot(id: &str) -> Option<u32> {
    id.rsplit_once('-')?.1.parse().ok()
}
