//! An OCI `config.json` of which only the changed parts differ, and the edits that CDI applies to
//! it.
//!
//! Only `process`, `mounts`, `linux`, `hooks` and `annotations` of a configuration are opened, on
//! top of [`crate::json`], so number spelling and unknown fields survive. Long lists are read
//! element by element and changed in one pass (`each_…`, and the functions that take a slice). The
//! functions that return a list refuse more than [`MAX_VALUES`](crate::json::MAX_VALUES).
//!
//! [`apply`] does what the engines' own library does, except for one deliberate difference: a
//! variable is set, not repeated. The released library (up to 1.1.0) appends `K=V` after an
//! existing `K=W`, and runc and crun then keep the last one. Here the entry replaces the old one.
//! The process sees the same value either way, and a reader that keeps the first one sees no other.
//!
//! What the library has done since its last release is separate: [`map_ids`].

mod config;
mod inject;

pub use config::{
    CapabilitySet, Cpuset, DeviceRule, HugepageLimit, MountEntry, OciConfig, OciConfigError,
    OciDevice, OciHook, OciUser, Rlimit,
};
pub use inject::{
    HostNode, HostNodes, InjectError, NodeKind, NodeLookup, apply, map_ids, mount_depth,
};
