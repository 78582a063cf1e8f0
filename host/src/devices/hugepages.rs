//! The class hugepages.

use onload_core::class::Class;

use super::attributes::{Attributes, int};
use super::device::{HostDevice, build_devices};
use super::function_index::FunctionIndex;
use crate::discover::hugepages::Hugepages;

pub(super) fn devices(class: Class, places: &FunctionIndex<'_>) -> Vec<HostDevice> {
    build_devices(&places.inventory.hugepages, |size| HostDevice::new(class, &size.name))
}

pub(super) fn attributes(device: &HostDevice, places: &FunctionIndex<'_>) -> Attributes {
    let size = device.read.and_then(|at| places.inventory.hugepages.get(at));
    let number = |of: fn(&Hugepages) -> u64| int(size.map(of));
    Attributes::from([
        ("pageKib", number(|size| size.size_kib)),
        ("pages", number(|size| size.total)),
        ("freePages", number(|size| size.free)),
        ("overcommitPages", number(|size| size.overcommit)),
    ])
}
