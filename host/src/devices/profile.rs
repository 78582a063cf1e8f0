//! The class profile: the settings of an installed Onload profile.

use onload_core::class::Class;

use super::attributes::{count, text, version};
use super::device::Device;
use super::places::Places;
use crate::discover::profile::Profile;

pub(super) fn devices(places: &Places<'_>) -> Vec<Device> {
    let profiles = places
        .inventory
        .usable_onload()
        .map(|onload| &onload.profiles);
    let profiles = profiles.into_iter().flatten();
    let made = profiles.filter_map(|profile| made(&profile.name, Some(profile), places));
    made.collect()
}

pub(super) fn gone(name: &str, places: &Places<'_>) -> Option<Device> {
    made(name, None, places)
}

fn made(name: &str, profile: Option<&Profile>, places: &Places<'_>) -> Option<Device> {
    let onload = places.inventory.onload.as_ref();
    let onload = onload.and_then(|onload| onload.version.as_deref());
    let settings = profile.map_or(0, |profile| profile.settings.len());
    Some(Device::new(Class::Profile, name)?.with([
        ("settings", count(settings)),
        ("onloadVersion", version(onload)),
        ("onload", text(onload)),
    ]))
}
