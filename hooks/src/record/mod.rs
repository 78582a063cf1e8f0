//! The files under /run/onload-ctk while containers live: a directory for each container, the
//! records in it, and their removal; and which process a container's first one is.

pub(crate) mod container_dir;
pub(crate) mod container_record;
pub(crate) mod creator;
pub(crate) mod init;
pub mod lease;
pub(crate) mod listing;
mod pod;
pub mod runtime_record;
pub(crate) mod sweep;
pub(crate) mod targets;
