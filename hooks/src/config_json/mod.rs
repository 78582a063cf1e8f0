//! A bundle's `config.json`: searched for requests, read in parts, replaced.

pub(crate) mod bundle;
pub(crate) mod devices;
pub(crate) mod namespace;
pub mod scan;
