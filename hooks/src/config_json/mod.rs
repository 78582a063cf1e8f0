//! `config.json` of a bundle: found, searched for annotations of ours, read in part, replaced.

pub mod bundle;
pub mod devices;
pub mod scan;
