//! The Container Device Interface (CDI): what a container gets, written down.
//!
//! This crate owns the data model, its names and versions, the registry of specification
//! directories, and the one function that applies container edits to an OCI `config.json`.
//! It knows no hardware and touches the file system only in [`registry::Registry::scan`],
//! [`inject::HostNodes`] and [`write`].

pub mod config;
pub mod inject;
pub mod name;
pub mod parse;
pub mod raw;
pub mod registry;
pub mod spec;
pub mod validate;
pub mod version;
pub mod write;

pub use spec::Spec;
