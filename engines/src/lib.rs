//! The configuration files of container engines, and edits to them. [`reader`] says what those of a host say, [`setup`]
//! makes of the old text of a file the new one and back, [`runtime_containers`] knows the containers that have recorded
//! our runtime, and [`allow`] edits our own `config.toml`. Nothing here writes a file.

pub mod allow;
pub mod container_dirs;
mod containerd;
mod containerd_drop_in;
mod crio;
pub mod daemon;
mod default_runtime;
mod docker;
pub mod engine;
pub mod files;
mod hcl;
pub mod installed;
mod json;
pub mod kind;
pub mod kubernetes;
mod nomad;
mod nri;
pub mod oci_runtime;
pub mod our_runtime;
mod podman;
pub mod reader;
pub mod runtime_containers;
pub mod settings;
pub mod setup;
pub mod template;
mod toml;
mod variant;
pub mod version;
