//! Hosts for tests: made up in a temporary directory, or one of those in `tests/hosts`.

#![allow(clippy::panic, clippy::unwrap_used)]

mod agent;
pub mod case;
pub mod elf;
mod files;
pub mod golden;
mod log;
mod machine;
pub mod netlink;
pub mod network;
mod onload;
pub mod sample;
mod script;
mod sysfs;
mod tree;

pub use agent::AgentHost;
pub use files::names_in;
pub use log::{Log, PATIENCE};
pub use onload::{CHECKSUM, MULTIARCH};
pub use script::split_commands;
pub use sysfs::Pci;
pub use tree::{Tree, copy_program, scratch};
