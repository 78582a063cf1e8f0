//! `cdi check`: do the written specifications still describe this host?

use std::path::Path;

use anyhow::{Result, bail};
use onload_core::class::Class;
use onload_host::devices::inventory::Inventory;
use onload_host::drift::{Drift, find_drift};
use onload_host::generate::InstalledFiles;
use onload_host::specdir::{FileAction, RenumberedNode, SpecFormat, SpecPlan, find_renumbered};
use onload_sys::device_number::DeviceNumber;
use serde_json::json;

use super::generate::{directory_path, find_directory, read_existing};
use super::{discover_host, open_host, unread_reasons};
use crate::cli::{CheckArgs, GlobalArgs, ListFormat};
use crate::exit::{CommandResult, ExitAnswer};
use crate::layout::format_paragraph;
use crate::printer::Printer;

pub fn run(global: &GlobalArgs, args: &CheckArgs, printer: &mut Printer) -> CommandResult {
    let (host, config) = open_host(global)?;
    let directory = find_directory(&host, args.output_dir.as_deref())?;
    let path = directory_path(&host, args.output_dir.as_deref());
    let (existing, manifest) = read_existing(directory.as_ref(), &path, printer)?;
    let manifest = manifest.map_err(anyhow::Error::msg)?;
    let (inventory, pools) = discover_host(&host, &config, printer);
    let Drift { plan, manifest: asked, warnings } = find_drift(
        &existing,
        manifest.as_ref(),
        &inventory,
        &pools,
        &config,
        InstalledFiles::read(&host, &config)?,
    )?;
    printer.warnings(&warnings);
    let mut differences = Vec::new();
    for step in &plan.steps {
        let (state, text) = match (&step.action, &step.old) {
            (FileAction::Keep | FileAction::Undecided, _) => continue,
            (FileAction::Write(_), None) => ("missing", "missing".to_owned()),
            (FileAction::Write(new), Some(old)) => describe_difference(asked.format, old, new),
            (FileAction::Remove, _) => ("superfluous", "to be removed".to_owned()),
            (FileAction::Leave, _) => ("foreign", "changed by another program".to_owned()),
        };
        differences.push((path.join(&step.name), state, text));
    }
    let is_fresh = differences.is_empty();
    if is_fresh {
        refuse_undecided(&inventory, &plan, &asked.kinds, &path)?;
    }
    if args.format == ListFormat::Json {
        let files = differences
            .iter()
            .map(|(file, state, text)| json!({"file": file.display().to_string(), "state": state, "finding": text}));
        printer.print_json(&json!({
            "version": env!("CARGO_PKG_VERSION"),
            "directory": path.display().to_string(),
            "up_to_date": is_fresh,
            "files": files.collect::<Vec<_>>(),
        }))?;
    } else {
        for (file, _, text) in &differences {
            let line = format!("{}: {text}", file.display());
            printer.print(format_paragraph("", "    ", &line, printer.columns()))?;
        }
        let path = path.display();
        match directory {
            _ if !is_fresh => {}
            Some(_) => printer.note(format_args!("{path} describes this host")),
            None => printer
                .note(format_args!("no devices, no CDI specifications: {path} does not exist")),
        }
    }
    Ok(if is_fresh { ExitAnswer::Yes } else { ExitAnswer::No })
}

/// If no problem was found, the paths that could not be read may still have one.
fn refuse_undecided(
    inventory: &Inventory,
    plan: &SpecPlan,
    kinds: &[Class],
    directory: &Path,
) -> Result<()> {
    let reasons = unread_reasons(inventory, |class| kinds.contains(class));
    if reasons.is_empty() {
        return Ok(());
    }
    let files: Vec<&str> = plan.undecided_files().collect();
    let doubtful = if files.is_empty() {
        String::new()
    } else {
        format!(" ({} may be incorrect)", files.join(", "))
    };
    bail!(
        "comparing {} with this host: could not determine the result{doubtful}: {reasons}",
        directory.display()
    );
}

/// Returns the state of a file and its description.
fn describe_difference(format: SpecFormat, old: &[u8], new: &[u8]) -> (&'static str, String) {
    let nodes = find_renumbered(format, old, new).unwrap_or_default();
    if nodes.is_empty() {
        return ("different", "different".to_owned());
    }
    let changes: Vec<String> = nodes.iter().map(describe_change).collect();
    let text = format!(
        "renumbered: {}; engines keep the old numbers until you run `systemctl start onload-cdi.service`",
        changes.join(", ")
    );
    ("renumbered", text)
}

fn describe_change(node: &RenumberedNode) -> String {
    let number = |numbers: Option<DeviceNumber>| match numbers {
        Some(numbers) => numbers.to_string(),
        None => "without a number".to_owned(),
    };
    let (before, now) = (number(node.before), number(node.now));
    format!("{} was {before} and is {now}", node.node)
}
