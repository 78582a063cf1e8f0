//! Devices for the tests of this directory.

use onload_core::class::Class;
use onload_core::kubernetes_settings::ResourceName;
use onload_host::offers::Health;

use super::id::assign_ids;
use super::resource::{PluginDevice, Resource};

pub(crate) fn exclusive(name: &str, pci: Option<&str>) -> PluginDevice {
    PluginDevice {
        class: Class::Vfio,
        name: name.to_owned(),
        cdi: vec![format!("onload.dev/vfio={name}")],
        pci: pci.map(|address| address.parse().unwrap()),
        pcie_root: None,
        numa_node: None,
        nodes: vec!["/dev/vfio/vfio".to_owned(), "/dev/vfio/15".to_owned()],
        slots: None,
        health: Health::Healthy,
        remaining: None,
    }
}

pub(crate) fn shared(name: &str, slots: u32) -> PluginDevice {
    PluginDevice {
        class: Class::Nic,
        cdi: vec![format!("onload.dev/nic={name}")],
        nodes: vec!["/dev/onload".to_owned()],
        slots: Some(slots),
        ..exclusive(name, None)
    }
}

pub(crate) fn at(device: PluginDevice, numa_node: u32, pcie_root: &str) -> PluginDevice {
    PluginDevice { numa_node: Some(numa_node), pcie_root: Some(pcie_root.to_owned()), ..device }
}

pub(crate) fn resource(name: &str, devices: Vec<PluginDevice>) -> Resource {
    let (ids, without) = assign_ids(&devices);
    assert!(without.is_empty());
    Resource { name: ResourceName::onload_dev(name).unwrap(), devices, ids }
}
