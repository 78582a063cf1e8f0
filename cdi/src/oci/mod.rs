//! An OCI `config.json`, kept as it was but for what is changed, and the edits that CDI applies to it.
//!
//! Of a configuration only `process`, `mounts`, `linux`, `hooks` and `annotations` are opened, on top of
//! [`crate::json`], so number spelling and unknown fields survive. What is long is read element by element
//! and changed in one pass (`each_…`, and the functions that take a slice); the functions that return a
//! list refuse more than [`MAX_VALUES`](crate::json::MAX_VALUES).
//!
//! [`apply`] does what the engines' own library does. One thing differs on purpose: a variable is set, not
//! repeated. The released library (up to 1.1.0) appends `K=V` behind an existing `K=W`, and runc and crun
//! then keep the last; here the entry takes the place of the old one. The process sees the same value
//! either way, and nobody who keeps the first sees another.
//!
//! What the library does since its last release is apart: [`map_ids`].

mod config;
mod inject;

pub use config::{
    CapabilitySet, ConfigError, DeviceRule, HugepageLimit, MountEntry, OciConfig, OciDevice,
    OciHook, Rlimit, User,
};
pub use inject::{HostNodes, InjectError, Node, NodeInfo, NodeKind, apply, depth, map_ids};
