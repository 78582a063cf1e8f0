//! The rules of CDI as data: the cases with which the engines' library is tested, and what an
//! attacker or a typing error would add.

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

/// A specification that is valid whatever the `edits` of its only device.
fn spec_with(edits: ContainerEdits) -> Spec {
    Spec {
        cdi_version: "1.1.0".to_owned(),
        kind: "vendor.com/device".into(),
        devices: vec![Device { name: "dev1".into(), container_edits: edits, ..Device::default() }],
        ..Spec::default()
    }
}

/// What a program prints if it reports an error with its causes.
fn told(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    let texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}

/// Container edits from JSON.
fn edits(json: &str) -> ContainerEdits {
    serde_json::from_str(json).expect("edits of a test")
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}
