//! The configuration file of a host, or the one named on the command line.

use std::path::Path;

use anyhow::Context;
use onload_core::config::{CONFIG_PATH, Config};
use onload_core::fs::regular;

use crate::host::{Host, TEXT_LIMIT, not_text};

/// Reads the named file, which must exist, or else the host's own, which need not.
pub fn load(host: &Host, named: Option<&Path>) -> anyhow::Result<Config> {
    let text = read(host, named)?.unwrap_or_default();
    Config::parse(&text).with_context(|| {
        let path = named.map_or_else(|| host.outside_path(Path::new(CONFIG_PATH)), Path::to_owned);
        reading(&path)
    })
}

/// The text of the named file, which must exist, or else of the host's own; `None` if the host has none.
pub fn read(host: &Host, named: Option<&Path>) -> anyhow::Result<Option<String>> {
    let Some(path) = named else {
        return Ok(host.text(Path::new(CONFIG_PATH))?);
    };
    let bytes = regular::read(path, TEXT_LIMIT).with_context(|| reading(path))?;
    let text = String::from_utf8(bytes).map_err(|_| not_text(path))?;
    Ok(Some(text))
}

fn reading(path: &Path) -> String {
    format!("reading configuration {}", path.display())
}
