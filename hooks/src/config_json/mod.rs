//! A bundle's `config.json`: finding it, searching it for onload.dev annotations, reading parts of
//! it, replacing it.

pub(crate) mod bundle;
pub(crate) mod devices;
pub(crate) mod namespace;
pub mod scan;
