//! The class profile: the settings of an installed Onload profile.

use onload_cdi::ContainerEdits;
use onload_core::class::Class;

use super::edits::Writer;
use super::offer::{Entry, Offer};
use crate::devices::Device;
use crate::devices::inventory::Inventory;
use crate::discover::profile::Profile;

pub(super) fn offer(inventory: &Inventory, devices: &[&Device], writer: &Writer<'_>) -> Offer {
    let onload = inventory.usable_onload();
    let profiles = onload.map_or(&[][..], |onload| &onload.profiles);
    let entries = devices.iter().filter_map(|device| {
        let mut profiles = profiles.iter();
        let profile = profiles.find(|profile| profile.name == device.name.as_str())?;
        Some(entry(profile, writer))
    });
    Offer {
        devices: entries.collect(),
        ..Offer::default()
    }
}

fn entry(profile: &Profile, writer: &Writer<'_>) -> Entry {
    let settings = profile.settings.iter();
    let edits = ContainerEdits {
        env: settings
            .map(|(name, value)| format!("{name}={value}"))
            .collect(),
        ..writer.leasing_edits(Class::Profile, [profile.name.as_str()].into_iter())
    };
    (profile.name.clone(), edits)
}
