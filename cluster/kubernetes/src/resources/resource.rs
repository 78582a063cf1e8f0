//! A resource: devices of which containers ask for a number.

use std::collections::{BTreeMap, BTreeSet};

use onload_core::class::Class;
use onload_core::kubernetes_settings::ResourceName;
use onload_host::offers::Health;
use onload_sys::pci::PciAddress;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    pub name: ResourceName,
    pub devices: Vec<PluginDevice>,
    /// The ids that kubelet knows it by, each with the index of its device. A device that containers share
    /// has several.
    pub ids: BTreeMap<String, usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginDevice {
    pub class: Class,
    /// Its name in that class.
    pub name: String,
    pub cdi: Vec<String>,
    pub pci: Option<PciAddress>,
    /// The root of the PCIe tree that it is in.
    pub pcie_root: Option<String>,
    pub numa_node: Option<u32>,
    /// The device nodes that a container gets with it, by their paths there.
    pub nodes: Vec<String>,
    /// How many containers may have it; `None` if it is one at a time.
    pub slots: Option<u32>,
    pub health: Health,
    /// How many of its slots containers of others leave, and who those are, where they have some.
    pub remaining: Option<(u32, String)>,
}

impl Resource {
    /// A resource without devices, as one that lost them has.
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

    /// How many ids are healthy, and how many are not.
    pub fn count(&self) -> (usize, usize) {
        let ids = self.ids.iter();
        let unhealthy = ids.filter(|(id, index)| self.slot_reason(id, **index).is_some());
        let unhealthy = unhealthy.count();
        (self.ids.len() - unhealthy, unhealthy)
    }

    /// Why no container can have that id now; `None` if one can, or there is no such id.
    pub fn unhealthy_reason(&self, id: &str) -> Option<&str> {
        self.slot_reason(id, *self.ids.get(id)?)
    }

    /// The last slots are those that others have: kubelet is told to give the first ones first, so pods have those.
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

/// Which slot of a shared device an id is.
pub(super) fn parse_slot(id: &str) -> Option<u32> {
    id.rsplit_once('-')?.1.parse().ok()
}
