//! A resource: devices of which containers ask for a number.

use std::collections::BTreeMap;

use onload_core::class::Class;
use onload_core::kubernetes_settings::ResourceName;
use onload_core::pci::PciAddress;
use onload_host::offers::Health;

/// A resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Its name.
    pub name: ResourceName,
    /// Its devices, by class and name.
    pub devices: Vec<Device>,
    /// The ids that kubelet knows it by, each with the index of its device. A device that containers share
    /// has several.
    pub ids: BTreeMap<String, usize>,
}

/// A device of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its class.
    pub class: Class,
    /// Its name in that class.
    pub name: String,
    /// The CDI devices of it.
    pub cdi: Vec<String>,
    /// Its PCI function.
    pub pci: Option<PciAddress>,
    /// The root of the PCIe tree that it is in.
    pub pcie_root: Option<String>,
    /// Its NUMA node.
    pub numa_node: Option<u32>,
    /// The device nodes that a container gets with it, by their paths there.
    pub nodes: Vec<String>,
    /// How many containers may have it; `None` if it is one at a time.
    pub slots: Option<u32>,
    /// Whether one can have it now.
    pub health: Health,
}

impl Resource {
    /// A resource without devices, as one that lost them has.
    #[must_use]
    pub fn empty(name: ResourceName) -> Self {
        Resource {
            name,
            devices: Vec::new(),
            ids: BTreeMap::new(),
        }
    }

    /// The device with that id.
    #[must_use]
    pub fn device(&self, id: &str) -> Option<&Device> {
        self.devices.get(*self.ids.get(id)?)
    }

    /// How many ids are healthy, and how many are not.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        let devices = self.ids.values().filter_map(|at| self.devices.get(*at));
        let healthy = devices.filter(|device| device.health == Health::Healthy);
        let healthy = healthy.count();
        (healthy, self.ids.len() - healthy)
    }
}
