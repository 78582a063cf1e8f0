//! The class profile: the settings of an installed Onload profile.

use onload_cdi::ContainerEdits;

use super::offer::{Entry, Offer};
use crate::discover::inventory::Inventory;
use crate::discover::profile::Profile;

pub(super) fn offer(inventory: &Inventory) -> Offer {
    let onload = inventory
        .onload
        .iter()
        .filter(|onload| onload.obstacle.is_none());
    let profiles = onload.flat_map(|onload| &onload.profiles);
    Offer {
        devices: profiles.map(entry).collect(),
        ..Offer::default()
    }
}

fn entry(profile: &Profile) -> Entry {
    let settings = profile.settings.iter();
    let edits = ContainerEdits {
        env: settings
            .map(|(name, value)| format!("{name}={value}"))
            .collect(),
        ..ContainerEdits::default()
    };
    (profile.name.clone(), edits)
}
