//! `config`: the configuration file of onload-ctk.

use std::path::Path;

use anyhow::{Result, bail};
use onload_core::config::{Config, Setting, SettingOrigin, config_schema, list_settings};
use onload_host::discover::taken_names::check_name;
use onload_host::settings;
use serde::Serialize;
use serde_json::{Value, json};
use toml_edit::ser::ValueSerializer;

use super::open_traced_host;
use crate::cli::{ConfigValidateArgs, FormatArgs, GlobalArgs, ListFormat};
use crate::exit::{CommandResult, ExitAnswer};
use crate::layout::format_table;
use crate::printer::{Printer, log_read};

/// Reads a configuration file as strictly as every command that uses it. Returns its path, its text if it exists, and the
/// configuration.
fn read_valid(
    global: &GlobalArgs,
    config_file: Option<&Path>,
) -> Result<(String, Option<String>, Config)> {
    let host = open_traced_host(global)?;
    if let Some(path) = config_file.filter(|_| global.verbose) {
        log_read(path);
    }
    let path = settings::config_path(&host, config_file);
    let text = settings::read(&host, config_file)?;
    let config = settings::parse(text.as_deref().unwrap_or_default(), &path)?;
    Ok((path.display().to_string(), text, config))
}

/// Settings, and the environment variables that take precedence over them.
const VARIABLES: [(&str, &str); 2] = [
    ("cdi.kinds", "ONLOAD_CTK_CDI_GENERATE_KIND"),
    ("kubernetes.listen", "ONLOAD_KUBERNETES_LISTEN"),
];

pub fn show(global: &GlobalArgs, args: &FormatArgs, printer: &mut Printer) -> CommandResult {
    let (path, text, _) = read_valid(global, global.config.as_deref())?;
    let mut settings = list_settings(text.as_deref().unwrap_or_default())?;
    for setting in &mut settings {
        let variable = VARIABLES.iter().find(|(name, _)| *name == setting.name);
        let Some(text) = variable.and_then(|(_, variable)| std::env::var(variable).ok()) else {
            continue;
        };
        setting.value = Some(match setting.value {
            Some(Value::Array(_)) => text.split(',').collect(),
            _ => text.into(),
        });
        setting.origin = SettingOrigin::Variable;
    }
    if args.format == ListFormat::Json {
        printer.print_json(&json!({
            "version": env!("CARGO_PKG_VERSION"),
            "file": text.map(|_| path),
            "settings": settings,
        }))?;
        return Ok(ExitAnswer::Yes);
    }
    let mut rows = Vec::new();
    for Setting { name, value, origin } in &settings {
        let value = match value {
            Some(value) => value.serialize(ValueSerializer::new())?.to_string(),
            None => "not set".to_owned(),
        };
        rows.push([name.clone(), origin.to_string(), value]);
    }
    printer.print(format_table(["SETTING", "ORIGIN", "VALUE"], rows, printer.columns()))?;
    if text.is_none() {
        printer.note(format_args!("{path} does not exist"));
    }
    Ok(ExitAnswer::Yes)
}

pub fn validate(
    global: &GlobalArgs,
    args: &ConfigValidateArgs,
    printer: &mut Printer,
) -> CommandResult {
    let config_file = args.file.as_deref().or(global.config.as_deref());
    let (path, text, config) = read_valid(global, config_file)?;
    if text.is_none() {
        printer.note(format_args!("{path} does not exist"));
        return Ok(ExitAnswer::Yes);
    }
    let pools = config.pools.keys().map(|name| ("pools", name));
    for (section, name) in pools.chain(config.bundles.keys().map(|name| ("bundles", name))) {
        if let Err(problem) = check_name(name) {
            bail!("{path}: [{section}.{name}]: {problem}; choose another name");
        }
    }
    printer.note(format_args!("{path} is valid"));
    Ok(ExitAnswer::Yes)
}

pub fn print_schema(printer: &mut Printer) -> CommandResult {
    printer.print(serde_json::to_string_pretty(&config_schema())? + "\n")?;
    Ok(ExitAnswer::Yes)
}
