//! A bundle's `config.json`: searched for requests, read in parts, changed as it was decided, replaced; and the state that
//! a runtime gives to its hooks.

pub mod adjust;
pub(crate) mod bundle;
pub(crate) mod devices;
pub mod filter;
pub(crate) mod input;
mod net_devices;
pub mod scan;
pub mod state;
