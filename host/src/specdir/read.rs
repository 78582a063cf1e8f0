//! Parses specifications that onload-ctk wrote.

use std::collections::BTreeSet;

use onload_cdi::{Spec, from_json, from_yaml};

use super::manifest::SpecFormat;

pub(super) fn read(format: SpecFormat, bytes: &[u8]) -> Option<Spec> {
    match format {
        SpecFormat::Json => from_json(bytes).ok(),
        SpecFormat::Yaml => from_yaml(bytes).ok(),
    }
}

/// Returns whether the old file has a device that the new one lacks. Without a new file, all are lacking. An old file
/// that is not a specification has no devices.
pub(super) fn loses_devices(old: (SpecFormat, &[u8]), new: Option<(SpecFormat, &[u8])>) -> bool {
    let names = |(format, bytes)| -> BTreeSet<String> {
        read(format, bytes)
            .map(|spec| spec.devices)
            .into_iter()
            .flatten()
            .map(|device| device.name.to_string())
            .collect()
    };
    let new_names = new.map(names).unwrap_or_default();
    !names(old).is_subset(&new_names)
}
