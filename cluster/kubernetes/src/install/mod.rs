//! `install` and `uninstall`: this version's hook on the host, at a path of its version.
//!
//! Specifications name the hook by its path, and so does the configuration of every container created from them. For
//! this reason each version has its own directory, which is kept until nothing names it.

mod apply;
mod commands;
mod directory;
mod hook_users;
mod plan;
mod record;

pub use commands::{InstallSite, install, refuse_user_namespace, uninstall};
pub use plan::InstallReport;
