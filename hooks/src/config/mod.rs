//! A bundle's `config.json`: searched for requests, read in parts, changed as it was decided, replaced; and the state that
//! a runtime gives to its hooks.

pub mod adjust;
pub(crate) mod config_file;
pub(crate) mod decision_input;
pub mod filter;
mod net_devices;
pub(crate) mod node_entries;
pub mod scan;
pub mod state;
