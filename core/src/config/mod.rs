//! `/etc/onload-ctk/config.toml`: the operator's word on what is discovered, written and allowed.
//!
//! Parsing only; who opens the file decides how far it is to be trusted.

mod hook;
mod read;
mod sections;
#[cfg(test)]
mod tests;
mod toml_error;
mod values;

pub use hook::{HookCdi, HookConfig};
pub use sections::{
    Annotations, CONFIG_PATH, Cdi, Config, Discover, Environment, Leases, Log, LogLevel, Mover,
    PoolConfig, Runtime,
};
pub use toml_error::of_toml;
pub use values::{Memlock, OnIncompatible, Preload, RdmaLibraries, RootWithOnload, Share, kinds};
