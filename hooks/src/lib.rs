//! Into a container: what a container asks for, what the operator allows, and the edits that follow.
//!
//! The binaries of this crate run as root while a container is made, so it stays small, static and
//! free of everything that takes its orders from an environment.

pub mod bundle;
mod caller;
pub mod container_root;
pub mod cover;
pub mod create_runtime;
mod devices;
pub mod door;
pub mod filter;
pub mod hook;
pub mod host;
pub mod host_root;
pub mod libc_check;
pub mod limits;
pub mod live;
pub mod maker;
pub mod nodes;
pub mod poststop;
pub mod preload;
pub mod process;
pub mod runtime;
pub mod scan;
pub mod specs;
pub mod state;
pub mod sysfs;
pub mod system_log;
