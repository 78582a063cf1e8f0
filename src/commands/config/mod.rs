//! `config`: the configuration file of onload-ctk.

pub mod schema;
pub mod show;
pub mod validate;

use std::path::Path;

use anyhow::Result;
use onload_host::host::ReadAccess;
use onload_host::settings;

use super::open_traced_host;
use crate::cli::GlobalArgs;
use crate::printer::log_access;

/// Reads a configuration file as strictly as every command that uses it. Returns its path, and its text if it exists.
fn read_valid(global: &GlobalArgs, config_file: Option<&Path>) -> Result<(String, Option<String>)> {
    let host = open_traced_host(global)?;
    if let Some(path) = config_file.filter(|_| global.verbose) {
        log_access(path, ReadAccess::Read);
    }
    let path = settings::config_path(&host, config_file);
    let text = settings::read(&host, config_file)?;
    settings::parse(text.as_deref().unwrap_or_default(), &path)?;
    Ok((path.display().to_string(), text))
}
