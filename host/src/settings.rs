//! The configuration file of a host, or the one named on the command line.

use std::path::{Path, PathBuf};

use onload_core::config::{CONFIG_PATH, Config, ConfigError};
use onload_core::fs::regular;

use crate::host::{Host, HostError, TEXT_LIMIT};

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file of the host cannot be read.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The named file cannot be read.
    #[error("reading configuration {}", .path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("reading configuration {}", .path.display())]
    Parse {
        path: PathBuf,
        /// Where and why.
        source: ConfigError,
    },
}

/// Reads the named file, or else the host's own, which need not exist.
///
/// # Errors
/// The file cannot be read or parsed, or the named one does not exist.
pub fn load(host: &Host, named: Option<&Path>) -> Result<Config, SettingsError> {
    let text = read(host, named)?.unwrap_or_default();
    Config::parse(&text).map_err(|source| SettingsError::Parse {
        path: named.map_or_else(|| host.outside_path(Path::new(CONFIG_PATH)), Path::to_owned),
        source,
    })
}

/// The text of the named file, or else of the host's own; `None` if the host has none.
///
/// # Errors
/// The file cannot be read, or the named one does not exist.
pub fn read(host: &Host, named: Option<&Path>) -> Result<Option<String>, SettingsError> {
    let Some(path) = named else {
        return Ok(host.text(Path::new(CONFIG_PATH))?);
    };
    let bytes = regular::read(path, TEXT_LIMIT).map_err(|source| SettingsError::Read {
        path: path.to_owned(),
        source,
    })?;
    let text = String::from_utf8(bytes).map_err(|_| HostError::NotText {
        path: path.to_owned(),
    })?;
    Ok(Some(text))
}
