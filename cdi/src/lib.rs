//! The Container Device Interface (CDI): what a container gets, written down.
//!
//! A CDI specification offers devices by name, and says for each what an engine has to change in the
//! container's configuration. This crate owns the data model of version 1.1.0 ([`spec`]), its names
//! ([`name`]), versions ([`version`]) and rules ([`validate`]), reading and writing it ([`parse`]), the
//! registry of the directories that engines read ([`registry`]), and the one function that applies edits to
//! an OCI `config.json` ([`inject::apply`]) while every byte that is not ours stays as it was ([`raw`],
//! [`config`]). It knows no hardware, and touches the file system only in
//! [`registry::Registry::scan`], [`inject::HostNodes`] and [`write`](mod@write).
//!
//! # Example
//!
//! ```
//! use onload_cdi::config::OciConfig;
//! use onload_cdi::inject::{HostNodes, apply};
//! use onload_cdi::name::QualifiedName;
//! use onload_cdi::registry::{Registry, SpecSource};
//! use onload_cdi::{parse, version};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let spec = parse::from_json(br#"{
//!     "cdiVersion": "0.3.0",
//!     "kind": "onload.dev/nic",
//!     "containerEdits": {"deviceNodes": [{"path": "/dev/null", "permissions": "rw"}]},
//!     "devices": [{"name": "ens1", "containerEdits": {"env": ["LD_PRELOAD=libonload.so"]}}]
//! }"#)?;
//! assert_eq!(version::minimum(&spec).version.as_str(), "0.3.0");
//!
//! let registry = Registry::from_sources(vec![SpecSource {
//!     path: "/var/run/cdi/onload.dev-nic.json".into(),
//!     priority: 1,
//!     content: Ok(spec),
//! }]);
//! let asked: QualifiedName = "onload.dev/nic=ens1".parse()?;
//! let edits = registry.edits_for(&[asked])?;
//!
//! let mut config = OciConfig::parse(br#"{"ociVersion": "1.2.0", "x": 1e3}"#)?;
//! apply(&mut config, &edits, &HostNodes)?;
//! assert_eq!(config.env_get("LD_PRELOAD")?.as_deref(), Some("libonload.so"));
//! assert_eq!(config.devices()?[0].path, "/dev/null");
//! assert!(config.to_bytes().starts_with(br#"{"ociVersion":"1.2.0","x":1e3,"process":"#));
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! `yaml`: reading and writing specifications as YAML. Without it a `.yaml` file is an error of that
//! file, and the crate needs serde, `serde_json`, rustix and thiserror alone. A `.yml` file is never
//! read, since engines do not read it.

pub mod annotations;
pub mod config;
pub mod inject;
pub mod name;
pub mod parse;
pub mod raw;
pub mod registry;
pub mod spec;
mod text;
pub mod validate;
pub mod version;

pub use spec::Spec;
