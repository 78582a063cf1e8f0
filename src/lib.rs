//! The command line: what the operator types, the files of engines, and captures for bug reports.
//!
//! One file per command is in [`commands`]; all that is known of a host comes from `onload_host`.

pub(crate) mod capture;
pub mod cli;
pub mod commands;
pub(crate) mod config_file;
pub(crate) mod engine;
pub mod exit;
pub(crate) mod layout;
pub mod printer;
pub mod rights;
