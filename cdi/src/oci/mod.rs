//! Edits an OCI `config.json`, keeping unknown fields, and applies CDI edits to it.
//!
//! Only `process`, `mounts`, `linux`, `hooks`, `annotations` and `root` are interpreted, with
//! [`crate::json`]. All other text is copied, including unknown fields and the spelling of numbers.
//! Functions named `each_…` read a long list element by element, and functions that take a slice
//! change it in one pass. Functions that return a list fail if it has more than
//! [`MAX_VALUES`](crate::json::MAX_VALUES) elements.
//!
//! [`apply`] behaves like the engines' own library, with one deliberate difference: the released
//! library (up to 1.1.0) appends the variable `K=V` after an existing `K=W`, and runc and crun then
//! keep the last one. Here the new entry replaces the old one. The process sees the same value either
//! way, and a reader that keeps the first entry sees it too.
//!
//! [`map_ids`] implements a change of the library that no release up to 1.1.0 contains.

mod config;
mod inject;

pub use config::{
    CapabilitySet, Cpuset, DeviceRule, HugepageLimit, MountEntry, OciConfig, OciConfigError,
    OciDevice, OciHook, OciUser, Rlimit,
};
pub use inject::{
    HostNode, HostNodes, InjectError, NodeKind, NodeLookup, apply, map_ids, mount_depth,
};
