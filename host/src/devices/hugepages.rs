//! The class hugepages.

use onload_core::class::Class;

use super::attributes::int;
use super::device::Device;
use super::places::Places;
use crate::discover::hugepages::Hugepages;

pub(super) fn devices(places: &Places<'_>) -> Vec<Device> {
    let sizes = places.inventory.hugepages.iter();
    sizes
        .filter_map(|size| made(&size.name, Some(size)))
        .collect()
}

pub(super) fn gone(name: &str) -> Option<Device> {
    made(name, None)
}

fn made(name: &str, size: Option<&Hugepages>) -> Option<Device> {
    let number = |of: fn(&Hugepages) -> u64| int(size.map(of));
    Some(Device::new(Class::Hugepages, name)?.with([
        ("pageKib", number(|size| size.size_kib)),
        ("pages", number(|size| size.total)),
        ("freePages", number(|size| size.free)),
        ("overcommitPages", number(|size| size.overcommit)),
    ]))
}
