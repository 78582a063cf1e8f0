//! The classes profile and hugepages: no hardware of their own.

use onload_core::class::Class;

use super::attributes::{count, int, text, version};
use super::found::Found;
use super::offer::Attributes;
use crate::discover::hugepages::Hugepages;
use crate::discover::inventory::Inventory;
use crate::discover::profile::Profile;

pub(super) fn profiles(inventory: &Inventory) -> Vec<Found> {
    let onload = inventory.onload.iter();
    let onload = onload.filter(|onload| onload.obstacle.is_none());
    let profiles = onload.flat_map(|onload| &onload.profiles);
    let found = profiles.map(|profile| profile_of(&profile.name, Some(profile), inventory));
    found.collect()
}

pub(super) fn gone_profile(name: &str, inventory: &Inventory) -> Found {
    profile_of(name, None, inventory)
}

fn profile_of(name: &str, profile: Option<&Profile>, inventory: &Inventory) -> Found {
    let onload = inventory.onload.as_ref();
    let onload_version = onload.and_then(|onload| onload.version.as_deref());
    let settings = profile.map_or(0, |profile| profile.settings.len());
    let attributes = Attributes::from([
        ("kind", text(Some(Class::Profile.as_str()))),
        ("name", text(Some(name))),
        ("settings", count(settings)),
        ("onloadVersion", version(onload_version)),
        ("onload", text(onload_version)),
    ]);
    Found {
        names: vec![name.to_owned()],
        attributes,
        ..Found::default()
    }
}

pub(super) fn hugepages(inventory: &Inventory) -> Vec<Found> {
    let sizes = inventory.hugepages.iter();
    sizes.map(|size| pages_of(&size.name, Some(size))).collect()
}

pub(super) fn gone_hugepages(name: &str) -> Found {
    pages_of(name, None)
}

fn pages_of(name: &str, size: Option<&Hugepages>) -> Found {
    let attributes = Attributes::from([
        ("kind", text(Some(Class::Hugepages.as_str()))),
        ("name", text(Some(name))),
        ("pageKib", int(size.map(|size| size.size_kib))),
        ("pages", int(size.map(|size| size.total))),
        ("freePages", int(size.map(|size| size.free))),
        ("overcommitPages", int(size.map(|size| size.overcommit))),
    ]);
    Found {
        names: vec![name.to_owned()],
        attributes,
        ..Found::default()
    }
}
