//! The files under /run/onload-ctk while containers live: a directory for each container, the
//! records in it, and their removal; and which process a container's first one is.

pub(crate) mod files;
pub(crate) mod init;
pub mod lease;
pub mod made_by;
pub(crate) mod maker;
pub(crate) mod own_dir;
mod pod;
pub(crate) mod sweep;
pub(crate) mod targets;
