//! The class vfio: one offer an IOMMU group, since one container has a group at a time.

use std::collections::BTreeMap;

use onload_core::class::Class;
use onload_core::pci::PciAddress;

use super::attributes::{count, int, text};
use super::found::Found;
use super::offer::{Attribute, Attributes};
use super::places::Places;
use crate::discover::vfio::VfioDevice;

/// The groups. Where functions have nodes of their own, a group has several devices, and a container gets
/// all of them.
pub(super) fn found(places: &Places<'_>) -> Vec<Found> {
    let mut groups: BTreeMap<u32, Vec<&VfioDevice>> = BTreeMap::new();
    let devices = places.inventory.vfio.iter();
    for device in devices.filter(|device| device.viable) {
        groups.entry(device.iommu_group).or_default().push(device);
    }
    let found = groups.values().filter_map(|devices| group(devices, places));
    found.collect()
}

pub(super) fn gone(name: &str, places: &Places<'_>) -> Found {
    let pci: Option<PciAddress> = name.parse().ok();
    let devices = &places.inventory.vfio;
    let place = pci.map(|pci| devices.binary_search_by_key(&pci, |device| device.pci_address));
    let device = place.and_then(|place| devices.get(place.ok()?));
    Found {
        names: vec![name.to_owned()],
        pci,
        numa_node: places.numa_node(pci),
        attributes: attributes(name, pci, device, 0, places),
        ..Found::default()
    }
}

fn group(devices: &[&VfioDevice], places: &Places<'_>) -> Option<Found> {
    let first = devices.first()?;
    let names: Vec<String> = devices
        .iter()
        .map(|device| device.pci_address.to_string())
        .collect();
    let functions = devices.iter().map(|device| device.functions.len()).sum();
    let aliases = devices.iter().flat_map(|device| &device.aliases);
    let name = first.pci_address.to_string();
    Some(Found {
        names,
        aliases: aliases.map(ToString::to_string).collect(),
        pci: Some(first.pci_address),
        numa_node: first.numa_node,
        attributes: attributes(
            &name,
            Some(first.pci_address),
            Some(first),
            functions,
            places,
        ),
        trouble: None,
    })
}

fn attributes(
    name: &str,
    pci: Option<PciAddress>,
    device: Option<&VfioDevice>,
    functions: usize,
    places: &Places<'_>,
) -> Attributes {
    let group = device.map(|device| u64::from(device.iommu_group));
    let mut attributes = places.attributes(pci);
    attributes.extend([
        ("kind", text(Some(Class::Vfio.as_str()))),
        ("name", text(Some(name))),
        ("iommuGroup", int(group)),
        ("functions", count(functions)),
        (
            "noIommu",
            Attribute::Bool(device.is_some_and(|device| device.noiommu)),
        ),
    ]);
    attributes
}
