//! `install` and `uninstall`: the hook of this version on the host, at a path of its own.
//!
//! Specifications name the hook by its path, and so does the configuration of every container that was made by
//! them. So each version has its own directory, and an old one stays until nothing names it.

mod apply;
mod commands;
mod directory;
mod hook_users;
mod plan;
mod record;

pub use commands::{InstallSite, install, refuse_user_namespace, uninstall};
pub use plan::InstallReport;
