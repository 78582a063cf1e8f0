//! The host: what it has, and the CDI specifications that say so.
//!
//! Discovery reads one [`host::Host`] and gives an [`inventory::Inventory`]; [`generate`] turns that
//! into specifications without looking at the host again; [`specdir`] puts them where engines
//! read them. One file per command is in [`commands`], one per resource in [`discover`].

pub mod capture;
pub mod cli;
pub mod commands;
pub mod config_file;
pub mod discover;
pub mod engine;
pub mod exit;
pub mod generate;
pub mod host;
pub mod inventory;
pub mod pci_address;
pub mod printer;
pub mod recording;
pub mod settings;
pub mod specdir;
