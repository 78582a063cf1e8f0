//! `cdi validate`: strict reading of specification files, with every problem named.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use onload_cdi::{
    MAX_FILE_BYTES, ParseError, Problem, Registry, Spec, from_json, from_yaml, lint, validate,
};
use onload_sys::fs::regular;
use onload_sys::text::ErrorChain;
use serde_json::json;

use super::{open_host, resolve_spec_dirs};
use crate::cli::{GlobalArgs, ListFormat, ValidateArgs};
use crate::exit::{CommandResult, ExitAnswer};
use crate::printer::Printer;

pub fn run(global: &GlobalArgs, args: &ValidateArgs, printer: &mut Printer) -> CommandResult {
    let files =
        if args.files.is_empty() { default_files(global, printer)? } else { args.files.clone() };
    if files.is_empty() {
        printer.note("no CDI specifications to validate");
    }
    let is_table = args.format == ListFormat::Table;
    let mut answer = ExitAnswer::Yes;
    let mut results = Vec::new();
    for path in &files {
        let bytes = regular::read(path, MAX_FILE_BYTES)
            .with_context(|| format!("reading {}", path.display()))?;
        printer.log_read(path);
        let spec = read(path, &bytes);
        let problems: Vec<String> = match &spec {
            Err(error) => vec![ErrorChain(error).to_string()],
            Ok(spec) => validate(spec)
                .err()
                .map(Vec::from)
                .unwrap_or_default()
                .iter()
                .map(Problem::to_string)
                .collect(),
        };
        if !problems.is_empty() {
            answer = ExitAnswer::No;
        }
        if is_table {
            for problem in &problems {
                printer.print(format_args!("{}: {problem}\n", path.display()))?;
            }
            if problems.is_empty() {
                printer.note(format_args!("{} is valid", path.display()));
            }
        }
        let mut warnings: Vec<String> =
            spec.iter().flat_map(lint).map(|warning| warning.to_string()).collect();
        if !is_specification(path) {
            warnings.push("engines read only files that end in .json or .yaml".to_owned());
        }
        for warning in &warnings {
            printer.warning(format_args!("{}: {warning}", path.display()));
        }
        results.push(json!({
            "file": path.display().to_string(),
            "valid": problems.is_empty(),
            "problems": problems,
            "warnings": warnings,
        }));
    }
    if !is_table {
        printer.print_json(&json!({
            "version": env!("CARGO_PKG_VERSION"),
            "valid": answer == ExitAnswer::Yes,
            "files": results,
        }))?;
    }
    Ok(answer)
}

fn default_files(global: &GlobalArgs, printer: &mut Printer) -> Result<Vec<PathBuf>> {
    let (host, _) = open_host(global)?;
    let dirs = resolve_spec_dirs(&host, &[])?;
    for dir in &dirs {
        printer.log_lookup(dir, dir.is_dir());
    }
    Ok(Registry::scan(&dirs).paths().into_iter().map(Path::to_owned).collect())
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

/// Engines read these two and pass everything else by, `.yml` too.
fn is_specification(path: &Path) -> bool {
    matches!(extension(path), "json" | "yaml")
}

fn read(path: &Path, bytes: &[u8]) -> Result<Spec, ParseError> {
    match extension(path) {
        "yaml" | "yml" => from_yaml(bytes),
        _ => from_json(bytes),
    }
}
