//! The host: what it has, and the CDI specifications that say so.
//!
//! Discovery reads one [`host::Host`] and gives an [`inventory::Inventory`]; generation turns that
//! into specifications without looking at the host again.

pub mod discover;
pub mod host;
pub mod inventory;
pub mod pci_address;
