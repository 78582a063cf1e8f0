//! The Container Device Interface (CDI).
//!
//! A CDI specification names devices, and lists for each the changes that an engine makes to a
//! container's configuration. This crate provides
//!
//! - the data model of version 1.1.0: [`Spec`] and its parts, its names ([`Kind`], [`DeviceName`],
//!   [`QualifiedName`], [`HookName`]) and versions ([`CdiVersion`], [`minimum_version`]);
//! - reading and writing ([`from_json`], [`to_json`]), and checks ([`validate`](validate()),
//!   [`lint`]) that report every problem with its location;
//! - the [`Registry`] of the directories that engines read;
//! - [`oci::apply`], which applies edits to an OCI `config.json` and preserves all other bytes
//!   ([`json`]).
//!
//! It accesses the file system only in [`Registry::scan`] and [`oci::HostNodes`], and does not depend
//! on any hardware.
//!
//! # Example
//!
//! ```
//! use onload_cdi::oci::{HostNodes, OciConfig, apply};
//! use onload_cdi::{QualifiedName, Registry, SpecSource, from_json, minimum_version};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let spec = from_json(br#"{
//!     "cdiVersion": "0.3.0",
//!     "kind": "vendor.com/nic",
//!     "containerEdits": {"deviceNodes": [{"path": "/dev/null", "permissions": "rw"}]},
//!     "devices": [{"name": "ens1", "containerEdits": {"env": ["NIC=ens1"]}}]
//! }"#)?;
//! assert_eq!(minimum_version(&spec).version.as_str(), "0.3.0");
//!
//! let registry = Registry::from_sources(vec![SpecSource {
//!     path: "/var/run/cdi/vendor.com-nic.json".into(),
//!     priority: 1,
//!     content: Ok(spec),
//! }]);
//! let requested: QualifiedName = "vendor.com/nic=ens1".parse()?;
//! let edits = registry.edits_for(&[requested])?;
//!
//! let mut config = OciConfig::parse(br#"{"ociVersion": "1.2.0", "x": 1e3}"#)?;
//! apply(&mut config, &edits, &HostNodes)?;
//! assert_eq!(config.env_value("NIC")?.as_deref(), Some("ens1"));
//! config.each_device(|device| assert_eq!(device.path, "/dev/null"))?;
//! assert!(config.to_bytes().starts_with(br#"{"ociVersion":"1.2.0","x":1e3,"process":"#));
//! # Ok(())
//! # }
//! ```
//!
//! # Errors
//!
//! An error names the failed operation, and its [`source`](std::error::Error::source) is the cause:
//! print the whole chain.
//!
//! # Features
//!
//! `yaml`: reading and writing specifications as YAML. Without it, the registry reports an error for
//! each `.yaml` file, and the crate needs only serde, `serde_json`, memchr, rustix and thiserror. A `.yml`
//! file is never read, since engines do not read it.

#![warn(missing_docs)]

pub mod json;
mod messages;
mod name;
pub mod oci;
mod parse;
mod registry;
mod spec;
mod validate;
mod version;
#[cfg(feature = "yaml")]
mod yaml;

pub use name::{DeviceName, HookName, Kind, NameError, QualifiedName};
pub use parse::{JsonError, ParseError, from_json, to_json};
#[cfg(feature = "yaml")]
pub use parse::{YamlError, from_yaml, to_yaml};
pub use registry::{
    Conflict, DEFAULT_DIRS, LoadError, MAX_FILE_BYTES, Registry, RegistryError, ResolvedDevice,
    ShadowedDevice, SpecSource, UnresolvableError,
};
pub use spec::{
    ContainerEdits, Device, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec, deduplicate,
    variable_name,
};
pub use validate::{Problem, Problems, lint, validate, validate_edits};
pub use version::{CdiVersion, Requirement, UnknownVersion, minimum_version};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
