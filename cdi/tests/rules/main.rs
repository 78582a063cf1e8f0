//! The rules of CDI as data: the cases of the engines' library, hostile input and typing errors.

// Test helpers may panic, as tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod errors;
mod injection;
mod lossless;
mod names;
mod parsing;
mod registry;
mod validation;
mod versions;

use std::error::Error;

use onload_cdi::{ContainerEdits, Device, Spec};

/// Returns a specification whose only device has these edits. All else in it is valid.
fn spec_with(edits: ContainerEdits) -> Spec {
    Spec {
        cdi_version: "1.1.0".to_owned(),
        kind: "vendor.com/device".into(),
        devices: vec![Device { name: "dev1".into(), container_edits: edits, ..Device::default() }],
        ..Spec::default()
    }
}

/// Formats an error with its causes.
fn error_chain(error: &dyn Error) -> String {
    std::iter::successors(Some(error), |error| (*error).source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

/// Parses container edits from JSON.
fn edits(json: &str) -> ContainerEdits {
    serde_json::from_str(json).expect("edits of a test")
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}
