//! The class hugepages.

use onload_core::class::Class;

use super::attributes::{Attributes, int};
use super::device::{HostDevice, build_devices};
use super::function_index::FunctionIndex;
use crate::discover::hugepages::Hugepages;

pub(super) fn devices(class: Class, function_index: &FunctionIndex<'_>) -> Vec<HostDevice> {
    build_devices(&function_index.inventory.hugepages, |size| HostDevice::new(class, &size.name))
}

pub(super) fn attributes(device: &HostDevice, function_index: &FunctionIndex<'_>) -> Attributes {
    let size = device.read.and_then(|index| function_index.inventory.hugepages.get(index));
    let number = |field: fn(&Hugepages) -> u64| int(size.map(field));
    Attributes::from([
        ("pageKib", number(|size| size.size_kib)),
        ("pages", number(|size| size.total)),
        ("freePages", number(|size| size.free)),
        ("overcommitPages", number(|size| size.overcommit)),
    ])
}
