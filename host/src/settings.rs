//! The configuration file of a host, or the one named on the command line.

use std::path::{Path, PathBuf};

use anyhow::Context;
use onload_core::config::{CONFIG_PATH, Config};
use onload_sys::fs::regular;

use crate::host::{Host, MAX_TEXT_BYTES, not_text_error};

/// Reads the named file, which must exist, or else the host's own, which need not.
pub fn load(host: &Host, config_file: Option<&Path>) -> anyhow::Result<Config> {
    let text = read(host, config_file)?.unwrap_or_default();
    parse(&text, &config_path(host, config_file))
}

/// Parses the text of the file at `path`.
pub fn parse(text: &str, path: &Path) -> anyhow::Result<Config> {
    Config::parse(text).with_context(|| read_context(path))
}

/// Like [`load`], for read-only commands: invalid parts of the host's own file are skipped with a warning.
pub fn load_leniently(
    host: &Host,
    config_file: Option<&Path>,
) -> anyhow::Result<(Config, Vec<anyhow::Error>)> {
    let text = match read(host, config_file) {
        Ok(text) => text.unwrap_or_default(),
        Err(error) if config_file.is_none() => return Ok((Config::default(), vec![error])),
        Err(error) => return Err(error),
    };
    let (config, problems) = Config::parse_leniently(&text);
    let context = read_context(&config_path(host, config_file));
    let problems =
        problems.into_iter().map(|problem| anyhow::Error::new(problem).context(context.clone()));
    Ok((config, problems.collect()))
}

/// Returns the path of the named file, or else of the host's own.
pub fn config_path(host: &Host, config_file: Option<&Path>) -> PathBuf {
    config_file.map_or_else(|| host.outside_path(Path::new(CONFIG_PATH)), Path::to_owned)
}

/// Reads the named file, which must exist, or else the host's own. `None` if the host has none.
pub fn read(host: &Host, config_file: Option<&Path>) -> anyhow::Result<Option<String>> {
    let Some(path) = config_file else {
        return Ok(host.text(Path::new(CONFIG_PATH))?);
    };
    let bytes = regular::read(path, MAX_TEXT_BYTES).with_context(|| read_context(path))?;
    let text = String::from_utf8(bytes).map_err(|_| not_text_error(path))?;
    Ok(Some(text))
}

fn read_context(path: &Path) -> String {
    format!("reading configuration {}", path.display())
}
