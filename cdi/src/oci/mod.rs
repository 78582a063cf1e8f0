//! Lossless editing of an OCI `config.json`, and CDI edits applied to it.
//!
//! Only `process`, `mounts`, `linux`, `hooks` and `annotations` of a configuration are opened, with
//! [`crate::json`], so the spelling of numbers and unknown fields survive. Long lists are read
//! element by element and changed in one pass (`each_…`, and the functions that take a slice). The
//! functions that return a list reject more than [`MAX_VALUES`](crate::json::MAX_VALUES).
//!
//! [`apply`] behaves like the engines' own library, with one deliberate difference: the released
//! library (up to 1.1.0) appends the variable `K=V` after an existing `K=W`, and runc and crun then
//! keep the last one. Here the new entry replaces the old one. The process sees the same value either
//! way, and so does a reader that keeps the first entry.
//!
//! [`map_ids`] implements a change that the library has not released yet.

mod config;
mod inject;

pub use config::{
    CapabilitySet, Cpuset, DeviceRule, HugepageLimit, MountEntry, OciConfig, OciConfigError,
    OciDevice, OciHook, OciUser, Rlimit,
};
pub use inject::{
    HostNode, HostNodes, InjectError, NodeKind, NodeLookup, apply, map_ids, mount_depth,
};
