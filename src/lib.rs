//! The command line: what the operator types, and captures for bug reports.
//!
//! Each command has a file in [`commands`]. All facts about a host come from `onload_host`.

pub(crate) mod capture;
pub mod cli;
pub mod commands;
pub(crate) mod config_file;
pub mod exit;
pub(crate) mod files;
pub(crate) mod help;
pub(crate) mod layout;
pub mod permissions;
pub mod printer;
pub(crate) mod progress;
