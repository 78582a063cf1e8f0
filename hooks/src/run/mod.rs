//! What is kept under /run/onload-ctk while containers live: a directory for each container, the records
//! in it, and their cleaning.

pub mod made_by;
pub mod maker;
pub mod own_dir;
pub mod record;
pub mod sweep;
pub mod targets;
