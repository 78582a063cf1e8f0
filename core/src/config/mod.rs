//! The configuration file, `/etc/onload-ctk/config.toml`: what is discovered, written, and allowed.
//!
//! These modules only parse. The callers open the file and check who may change it.

mod hook;
mod read;
#[cfg(feature = "schema")]
mod schema;
mod sections;
#[cfg(test)]
mod tests;
mod toml_error;
mod values;

pub use hook::{HookCdiConfig, HookConfig};
pub use read::MAX_FDTABLE_SIZE;
#[cfg(feature = "schema")]
pub use schema::{Setting, SettingOrigin, config_schema, list_settings};
pub use sections::{
    AnnotationsConfig, CONFIG_PATH, CdiConfig, Config, DiscoverConfig, EnvironmentConfig,
    LeasesConfig, LogConfig, LogLevel, Mover, PoolConfig, RuntimeConfig,
};
pub use toml_error::describe_toml_error;
pub use values::{
    Memlock, OnIncompatible, Preload, RdmaLibraries, RootWithOnload, Share, parse_kinds,
};
