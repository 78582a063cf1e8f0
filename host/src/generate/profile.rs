//! The class profile: the settings of an installed Onload profile.

use onload_cdi::ContainerEdits;

use super::class_edits::ClassEdits;
use super::edit_builder::EditBuilder;
use crate::devices::HostDevice;
use crate::devices::inventory::Inventory;

pub(super) fn class_edits(
    inventory: &Inventory,
    devices: &[&HostDevice],
    builder: &EditBuilder<'_>,
) -> ClassEdits {
    let onload = inventory.usable_onload();
    let entries = devices.iter().filter_map(|device| {
        let profile = onload?.profiles.get(device.read?)?;
        let settings = profile.settings.iter().map(|(name, value)| format!("{name}={value}"));
        let edits = ContainerEdits { env: settings.collect(), ..builder.leasing_edits(&[device]) };
        Some((device.name.clone(), edits))
    });
    ClassEdits { devices: entries.collect(), ..ClassEdits::default() }
}
