//! Into a container: what it requests, what the operator allows, and how it gets that.
//!
//! [`decision`] says what one container gets. Three appliers carry it out: [`filter`] in the configuration that the
//! runtime will read, [`adjust`] by telling an engine that asks before it creates the container, [`live`] in the
//! namespaces of a container that its runtime has already created.
//!
//! The binaries run as root while a container is created: the crate stays small and static, and takes no
//! instructions from an environment.

pub mod adjust;
pub(crate) mod bpf;
pub mod config_json;
pub(crate) mod cpuset;
pub mod decision;
pub mod device;
pub mod entry;
pub mod filter;
pub mod host;
pub mod live;
pub mod moves;
pub(crate) mod preload;
pub(crate) mod process;
pub(crate) mod rootfs;
pub mod run;
pub mod state;
