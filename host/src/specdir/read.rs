//! A file of ours, read back as the specification that it is.

use std::collections::BTreeSet;

use onload_cdi::{Spec, from_json, from_yaml};

use super::manifest::Format;

/// The specification; none where the bytes are none.
pub(super) fn read(format: Format, bytes: &[u8]) -> Option<Spec> {
    match format {
        Format::Json => from_json(bytes).ok(),
        Format::Yaml => from_yaml(bytes).ok(),
    }
}

/// Whether the old file has a device that the new one lacks; no new file lacks them all. An old file
/// that is no specification has none.
pub(super) fn loses_devices(old: (Format, &[u8]), new: Option<(Format, &[u8])>) -> bool {
    let names = |(format, bytes)| -> BTreeSet<String> {
        let devices = read(format, bytes).map(|spec| spec.devices);
        let devices = devices.into_iter().flatten();
        devices.map(|device| device.name.to_string()).collect()
    };
    let kept = new.map(names).unwrap_or_default();
    !names(old).is_subset(&kept)
}
