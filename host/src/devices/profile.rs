//! The class profile: the settings of an installed Onload profile.

use onload_core::class::Class;

use super::attributes::{Attributes, count, text, version};
use super::device::{HostDevice, build_devices};
use super::function_index::FunctionIndex;

pub(super) fn devices(class: Class, function_index: &FunctionIndex<'_>) -> Vec<HostDevice> {
    let onload = function_index.inventory.usable_onload();
    let profiles = onload.map_or(&[][..], |onload| &onload.profiles);
    build_devices(profiles, |profile| HostDevice::new(class, &profile.name))
}

pub(super) fn attributes(device: &HostDevice, function_index: &FunctionIndex<'_>) -> Attributes {
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
