//! The class profile: the settings of an installed Onload profile.

use onload_cdi::ContainerEdits;
use onload_core::class::Class;

use super::edits::Writer;
use super::offer::{Entry, Offer};
use crate::discover::inventory::Inventory;
use crate::discover::profile::Profile;

pub(super) fn offer(inventory: &Inventory, writer: &Writer<'_>) -> Offer {
    let onload = inventory
        .onload
        .iter()
        .filter(|onload| onload.obstacle.is_none());
    let profiles = onload.flat_map(|onload| &onload.profiles);
    Offer {
        devices: profiles.map(|profile| entry(profile, writer)).collect(),
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
