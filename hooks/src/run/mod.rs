//! The files under /run/onload-ctk while containers live: a directory for each container, the
//! records in it, and their removal.

pub mod lease;
pub mod made_by;
pub(crate) mod maker;
pub(crate) mod own_dir;
mod pod;
pub(crate) mod record;
pub(crate) mod sweep;
pub(crate) mod targets;
