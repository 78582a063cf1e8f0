//! A bundle's `config.json`: searching it for requests, parsing parts of it, changing and replacing it. Also the state
//! that a runtime passes to its hooks.

pub mod adjust;
pub(crate) mod config_file;
pub(crate) mod decision_input;
pub mod filter;
mod net_devices;
pub mod scan;
pub mod state;
