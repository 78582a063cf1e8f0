//! The class profile: the settings of an installed Onload profile.

use onload_core::class::Class;

use super::attributes::{Attributes, count, text, version};
use super::device::{Device, made_of};
use super::places::Places;

pub(super) fn devices(class: Class, places: &Places<'_>) -> Vec<Device> {
    let onload = places.inventory.usable_onload();
    let profiles = onload.map_or(&[][..], |onload| &onload.profiles);
    made_of(profiles, |profile| Device::new(class, &profile.name))
}

pub(super) fn attributes(device: &Device, places: &Places<'_>) -> Attributes {
    let onload = places.inventory.onload.as_ref();
    let profile = device.read.and_then(|at| onload?.profiles.get(at));
    let settings = profile.map_or(0, |profile| profile.settings.len());
    let onload = onload.and_then(|onload| onload.version.as_deref());
    Attributes::from([
        ("settings", count(settings)),
        ("onloadVersion", version(onload)),
        ("onload", text(onload)),
    ])
}
