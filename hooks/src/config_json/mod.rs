//! `config.json` of a bundle: found, searched for annotations of ours, read in part, replaced.

pub(crate) mod bundle;
pub(crate) mod devices;
pub mod scan;
