//! The annotations by which Kubernetes' engines request CDI devices: `cdi.k8s.io/<plugin>_<device>`
//! with a list of qualified names.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::name::{NameError, QualifiedName};

/// The prefix of these annotations' keys.
pub const PREFIX: &str = "cdi.k8s.io/";

const MAX_NAME_BYTES: usize = 63;

/// Why an annotation cannot be created or read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnnotationError {
    /// The plugin or the device has no name.
    #[error("making an annotation key: the {0} has no name")]
    Empty(&'static str),
    /// The name in the key breaks a rule.
    #[error(
        "making an annotation key: {0:?} is not 1 to 63 letters, digits, '_', '-' and '.', \
         a letter or digit at both ends"
    )]
    Name(String),
    /// The key already exists.
    #[error("adding the annotation {0:?}: it is there already")]
    Taken(String),
    /// A value contains something that is not a qualified name.
    #[error("reading the annotation {key:?}")]
    Value {
        /// The key.
        key: String,
        /// What is wrong with the name.
        source: NameError,
    },
}

/// The key for a device that `plugin` provides; each `/` of `device` becomes `_`.
///
/// # Errors
/// [`AnnotationError::Empty`] and [`AnnotationError::Name`].
pub fn key(plugin: &str, device: &str) -> Result<String, AnnotationError> {
    if plugin.is_empty() {
        return Err(AnnotationError::Empty("plugin"));
    }
    if device.is_empty() {
        return Err(AnnotationError::Empty("device"));
    }
    let name = format!("{plugin}_{}", device.replace('/', "_"));
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inside = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let fits = name.len() <= MAX_NAME_BYTES && name.chars().all(inside);
    if !fits || !edge(name.chars().next()) || !edge(name.chars().next_back()) {
        return Err(AnnotationError::Name(name));
    }
    Ok(format!("{PREFIX}{name}"))
}

/// The value that requests `devices`.
#[must_use]
pub fn value(devices: &[QualifiedName]) -> String {
    devices
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

/// Adds a request to `annotations`.
///
/// # Errors
/// The errors of [`key`], and [`AnnotationError::Taken`]; nothing is added then.
pub fn add(
    annotations: &mut BTreeMap<String, String>,
    plugin: &str,
    device: &str,
    devices: &[QualifiedName],
) -> Result<(), AnnotationError> {
    let key = key(plugin, device)?;
    if annotations.contains_key(&key) {
        return Err(AnnotationError::Taken(key));
    }
    annotations.insert(key, value(devices));
    Ok(())
}

/// The devices that `annotations` request, in key order. Other annotations are ignored.
///
/// # Errors
/// [`AnnotationError::Value`] for the first entry that is not a qualified name.
pub fn read(annotations: &BTreeMap<String, String>) -> Result<Vec<QualifiedName>, AnnotationError> {
    let ours = annotations
        .iter()
        .filter(|(key, _)| key.starts_with(PREFIX));
    let names = ours.flat_map(|(key, value)| value.split(',').map(move |name| (key, name)));
    names
        .map(|(key, name)| {
            let at = |source| AnnotationError::Value {
                key: key.clone(),
                source,
            };
            name.parse().map_err(at)
        })
        .collect()
}
