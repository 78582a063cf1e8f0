//! The devices of each class and their attributes. Classes of accelerated interfaces and RDMA devices have their own
//! files.

use onload_core::class::Class;
use onload_core::expectation::ExpectedDevice;
use onload_core::select::LinkLayer;
use onload_sys::pci::PciAddress;

use super::attributes::{Attribute, Attributes, count, int, text, version};
use super::device::{Health, HostDevice, build_devices};
use super::function_index::FunctionIndex;
use super::{nic, rdma};
use crate::discover::clock::Clock;
use crate::discover::gdrcopy::Gdrcopy;
use crate::discover::hugepages::Hugepages;
use crate::discover::movable_interface::Netdev;
use crate::discover::netdev::NetworkInterface;
use crate::discover::node::OfferedNode;
use crate::discover::vfio::VfioDevice;

/// Returns the devices that a host offers of a class.
pub(super) fn devices(class: Class, function_index: &FunctionIndex<'_>) -> Vec<HostDevice> {
    let inventory = function_index.inventory;
    match class {
        Class::Nic | Class::NicPlain | Class::NicNodes | Class::Zf => {
            nic::devices(class, function_index)
        }
        Class::Profile => {
            let onload = inventory.usable_onload();
            let profiles = onload.map_or(&[][..], |onload| &onload.profiles);
            build_devices(profiles, |profile| HostDevice::new(class, &profile.name))
        }
        Class::Rdma => rdma::devices(function_index),
        Class::Vfio => build_devices(&inventory.vfio, |device| vfio_device(device, function_index)),
        Class::Hugepages => {
            build_devices(&inventory.hugepages, |size| HostDevice::new(class, &size.name))
        }
        Class::Netdev => {
            build_devices(&inventory.netdevs, |netdev| netdev_device(netdev, function_index))
        }
        Class::Ptp | Class::Pps => build_devices(clocks(class, function_index), |clock| {
            clock_device(class, clock, function_index)
        }),
        Class::Gdrcopy => build_devices(&inventory.gdrcopy, |gdrcopy| {
            let expected = Gdrcopy::expected().into_iter().collect();
            Some(HostDevice {
                nodes: vec![OfferedNode::exclusive(gdrcopy.node.clone(), expected)],
                ..HostDevice::new(class, gdrcopy.name)?
            })
        }),
        // Its devices belong to other classes.
        Class::Bundle => Vec::new(),
    }
}

/// Returns the device of an IOMMU group, which one container has at a time.
fn vfio_device(device: &VfioDevice, function_index: &FunctionIndex<'_>) -> Option<HostDevice> {
    if !device.viable {
        return None;
    }
    let nodes = device.nodes.iter().chain(&function_index.inventory.vhost_net);
    let host_device = HostDevice {
        aliases: device.aliases.clone(),
        group: Some(device.iommu_group),
        nodes: nodes.cloned().collect(),
        ..HostDevice::new(Class::Vfio, &device.pci_address.to_string())?
    };
    Some(function_index.place_device(host_device, Some(device.pci_address)))
}

/// Returns the device of an interface. A device whose link is down is still healthy, since the interface is set up in
/// the container.
pub(super) fn netdev_device(
    netdev: &Netdev,
    function_index: &FunctionIndex<'_>,
) -> Option<HostDevice> {
    let device = HostDevice {
        interfaces: vec![netdev.name.clone()],
        // Interfaces with other link layers are not offered.
        link_layers: vec![LinkLayer::Ethernet],
        health: Health::from_trouble(netdev.trouble.clone()),
        ..HostDevice::new(Class::Netdev, &netdev.device)?
    };
    Some(function_index.place_device(device, Some(netdev.pci_address)))
}

fn clocks<'i>(class: Class, function_index: &FunctionIndex<'i>) -> &'i [Clock] {
    match class {
        Class::Ptp => &function_index.inventory.ptp,
        _ => &function_index.inventory.pps,
    }
}

fn clock_device(
    class: Class,
    clock: &Clock,
    function_index: &FunctionIndex<'_>,
) -> Option<HostDevice> {
    let expected = ExpectedDevice::for_clock(class.as_str(), &clock.name, clock.pci_address);
    let link_layers = clock.nic.iter().filter_map(|nic| function_index.link_layer(nic));
    let device = HostDevice {
        interfaces: clock.nic.iter().cloned().collect(),
        link_layers: link_layers.collect(),
        nodes: vec![OfferedNode::exclusive(clock.node.clone(), expected.into_iter().collect())],
        ..HostDevice::new(class, &clock.name)?
    };
    Some(function_index.place_device(device, clock.pci_address))
}

/// Returns a device that is in a specification but not offered by the host, with the data in its name.
pub(crate) fn missing_device(
    class: Class,
    name: &str,
    function_index: &FunctionIndex<'_>,
) -> Option<HostDevice> {
    let device = HostDevice::new(class, name).filter(|_| class != Class::Bundle)?;
    if !class.has_function_name() || device.is_loopback() {
        return Some(device);
    }
    let pci = function_index.interface(name).and_then(NetworkInterface::pci);
    Some(function_index.place_device(device, pci.or_else(|| name.parse().ok())))
}

/// Returns the attributes of a device, with unknown values for one that is gone.
pub(crate) fn attributes(device: &HostDevice, function_index: &FunctionIndex<'_>) -> Attributes {
    let mut attributes = Attributes::from([
        ("kind", text(Some(device.class.as_str()))),
        ("name", text(Some(device.name.as_str()))),
    ]);
    attributes.extend(match device.class {
        Class::Nic | Class::NicPlain | Class::NicNodes | Class::Zf => {
            nic::attributes(device, function_index)
        }
        Class::Profile => profile_attributes(device, function_index),
        Class::Rdma => rdma::attributes(device, function_index),
        Class::Vfio => vfio_attributes(device, function_index),
        Class::Hugepages => hugepages_attributes(device, function_index),
        Class::Netdev => netdev_attributes(device, function_index),
        Class::Ptp | Class::Pps => clock_attributes(device, function_index),
        Class::Gdrcopy => {
            let gdrcopy = function_index.inventory.gdrcopy.first();
            let version = gdrcopy.and_then(|gdrcopy| gdrcopy.version.as_deref());
            Attributes::from([("driverVersion", text(version))])
        }
        Class::Bundle => Attributes::new(),
    });
    attributes
}

fn profile_attributes(device: &HostDevice, function_index: &FunctionIndex<'_>) -> Attributes {
    let onload = function_index.inventory.onload.as_ref();
    let profile = device.read.and_then(|index| onload?.profiles.get(index));
    let settings = profile.map_or(0, |profile| profile.settings.len());
    let onload = onload.and_then(|onload| onload.version.as_deref());
    Attributes::from([
        ("settings", count(settings)),
        ("onloadVersion", version(onload)),
        ("onload", text(onload)),
    ])
}

/// Also used for functions of groups that are not viable.
fn vfio_attributes(device: &HostDevice, function_index: &FunctionIndex<'_>) -> Attributes {
    let all = &function_index.inventory.vfio;
    let read = all
        .binary_search_by_key(&device.pci, |read| Some(read.pci_address))
        .ok()
        .and_then(|index| all.get(index));
    let group = read.map(|read| u64::from(read.iommu_group));
    let functions = device.group.map_or(0, |group| function_index.group_size(group));
    let mut attributes = function_index.attributes(device.pci);
    attributes.extend([
        ("iommuGroup", int(group)),
        ("functions", count(functions)),
        ("noIommu", Attribute::Bool(read.is_some_and(|read| read.noiommu))),
    ]);
    attributes
}

fn hugepages_attributes(device: &HostDevice, function_index: &FunctionIndex<'_>) -> Attributes {
    let size = device.read.and_then(|index| function_index.inventory.hugepages.get(index));
    let number = |field: fn(&Hugepages) -> u64| int(size.map(field));
    Attributes::from([
        ("pageKib", number(|size| size.size_kib)),
        ("pages", number(|size| size.total)),
        ("freePages", number(|size| size.free)),
        ("overcommitPages", number(|size| size.overcommit)),
    ])
}

/// `interface` is empty if its name is unknown, for example while a CNI plugin has moved the interface. For a device
/// that the host does not have, it is the device's name unless that is a PCI address.
fn netdev_attributes(device: &HostDevice, function_index: &FunctionIndex<'_>) -> Attributes {
    let name = device.name.as_str();
    let netdev = device.read.and_then(|index| function_index.inventory.netdevs.get(index));
    let interface = match netdev {
        Some(netdev) => netdev.interface(),
        None => name.parse::<PciAddress>().is_err().then_some(name),
    };
    let state = netdev.and_then(|netdev| netdev.state.as_deref());
    let mut attributes = function_index.attributes(device.pci);
    attributes.extend([
        ("interface", text(interface)),
        ("linkMbps", int(netdev.and_then(|netdev| netdev.speed_mbps))),
        ("linkState", text(state)),
    ]);
    attributes
}

fn clock_attributes(device: &HostDevice, function_index: &FunctionIndex<'_>) -> Attributes {
    let clock = device.read.and_then(|index| clocks(device.class, function_index).get(index));
    let clock_name = clock.and_then(|clock| clock.clock_name.as_deref());
    let interface = clock.and_then(|clock| clock.nic.as_deref());
    let mut attributes = function_index.attributes(device.pci);
    attributes.extend([("clockName", text(clock_name)), ("interface", text(interface))]);
    attributes
}
