//! The class profile: the settings of an installed Onload profile.

use onload_cdi::ContainerEdits;

use super::edits::Writer;
use super::offer::Offer;
use crate::devices::Device;
use crate::devices::inventory::Inventory;

pub(super) fn offer(inventory: &Inventory, devices: &[&Device], writer: &Writer<'_>) -> Offer {
    let onload = inventory.usable_onload();
    let entries = devices.iter().filter_map(|device| {
        let profile = onload?.profiles.get(device.read?)?;
        let settings = profile.settings.iter();
        let settings = settings.map(|(name, value)| format!("{name}={value}"));
        let edits = ContainerEdits { env: settings.collect(), ..writer.leasing_edits(&[device]) };
        Some((device.name.clone(), edits))
    });
    Offer { devices: entries.collect(), ..Offer::default() }
}
