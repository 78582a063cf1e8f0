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

pub use hook::{HookCdiConfig, HookConfig};
pub use read::MAX_FDTABLE_SIZE;
pub use sections::{
    AnnotationsConfig, CONFIG_PATH, CdiConfig, Config, DiscoverConfig, EnvironmentConfig,
    LeasesConfig, LogConfig, LogLevel, Mover, PoolConfig, RuntimeConfig,
};
pub use toml_error::describe_toml_error;
pub use values::{
    Memlock, OnIncompatible, Preload, RdmaLibraries, RootWithOnload, Share, parse_kinds,
};
