//! `cdi list`: every device that an engine would see, by file, with conflicts and shadowing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use onload_cdi::Registry;
use onload_sys::text::ErrorChain;
use serde_json::json;

use super::pools::{PoolHolders, PoolView, read_pools};
use super::{join_paths, open_host, resolve_spec_dirs, scan, warn_of_files};
use crate::cli::{GlobalArgs, ListArgs, ListFormat};
use crate::exit::{CommandResult, ExitAnswer};
use crate::layout::format_paragraph;
use crate::printer::{DIM, HEADING, Printer, escape_controls};

pub fn run(global: &GlobalArgs, args: &ListArgs, printer: &mut Printer) -> CommandResult {
    let (host, _) = open_host(global)?;
    let dirs = resolve_spec_dirs(&host, &args.from.spec_dir)?;
    let registry = scan(&dirs, printer);
    let pools = read_pools(&registry, printer);
    let holders = PoolHolders::read(&host, &pools, printer);
    let views = pools.iter().map(|pool| {
        let name = format!("{}={}", pool.class.cdi_kind(), pool.name);
        (name, PoolView::new(pool, &holders))
    });
    let pools: BTreeMap<String, PoolView<'_>> = views.collect();
    match args.format {
        ListFormat::Table => print_table(&registry, &pools, &dirs, printer)?,
        ListFormat::Json => print_json(&registry, &pools, printer)?,
    }
    warn_of_files(&registry, printer);
    Ok(ExitAnswer::Yes)
}

fn print_table(
    registry: &Registry,
    pools: &BTreeMap<String, PoolView<'_>>,
    dirs: &[PathBuf],
    printer: &mut Printer,
) -> Result<()> {
    let mut devices: Vec<_> = registry.devices().collect();
    devices.sort_by_key(|device| (device.path, device.name));
    let mut file: Option<&Path> = None;
    for device in &devices {
        if file != Some(device.path) {
            let gap = if file.is_some() { "\n" } else { "" };
            let path = escape_controls(device.path.display());
            printer.print(format_args!("{gap}{HEADING}{path}{HEADING:#}\n"))?;
            file = Some(device.path);
        }
        let name = device.name.to_string();
        match pools.get(&name) {
            Some(pool) => {
                let text = format!("{name}  {DIM}{}{DIM:#}", pool.to_text());
                printer.print(format_paragraph("  ", "    ", &text, printer.columns()))?;
            }
            None => printer.print(format_args!("  {name}\n"))?,
        }
    }
    for shadowed in registry.shadowed() {
        let (name, path, by) = (
            &shadowed.name,
            escape_controls(shadowed.path.display()),
            escape_controls(shadowed.by.display()),
        );
        let text = format!("{DIM}{name} of {path} is hidden by {by}{DIM:#}");
        printer.print(format_paragraph("", "    ", &text, printer.columns()))?;
    }
    for conflict in registry.conflicts() {
        let (name, paths) = (&conflict.name, escape_controls(join_paths(&conflict.paths)));
        let text =
            format!("{name} is not offered, because it is in {paths}; remove it from all but one");
        printer.print(format_paragraph("", "    ", &text, printer.columns()))?;
    }
    if devices.is_empty() {
        printer.note(format_args!(
            "no CDI devices in {}; \"onload-ctk cdi generate\" writes those of this host",
            join_paths(dirs)
        ));
    }
    Ok(())
}

fn print_json(
    registry: &Registry,
    pools: &BTreeMap<String, PoolView<'_>>,
    printer: &mut Printer,
) -> Result<()> {
    let devices = registry.devices().map(|device| {
        let name = device.name.to_string();
        let pool = pools.get(&name).map(PoolView::to_json);
        json!({ "name": name, "file": device.path, "cdi_version": device.spec.cdi_version, "pool": pool })
    });
    let shadowed = registry.shadowed().iter().map(|shadowed| {
        json!({ "name": shadowed.name.to_string(), "file": shadowed.path, "by": shadowed.by })
    });
    let conflicts = registry
        .conflicts()
        .iter()
        .map(|conflict| json!({ "name": conflict.name.to_string(), "files": conflict.paths }));
    let errors = registry.errors().iter().flat_map(|(path, errors)| {
        errors
            .iter()
            .map(move |error| json!({ "file": path, "error": ErrorChain(error).to_string() }))
    });
    let object = json!({
        "devices": devices.collect::<Vec<_>>(),
        "shadowed": shadowed.collect::<Vec<_>>(),
        "conflicts": conflicts.collect::<Vec<_>>(),
        "errors": errors.collect::<Vec<_>>(),
    });
    printer.print_json(&object)?;
    Ok(())
}
