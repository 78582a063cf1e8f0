//! `cdi list`: every device that an engine would see, by file, with conflicts and shadowing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use onload_cdi::Registry;
use onload_sys::text::ErrorChain;
use serde_json::json;

use super::pools::{Holders, Shown, of_specs};
use super::{joined, open_host, scan, spec_dirs, warn_of_files};
use crate::cli::{Global, List, Listing};
use crate::exit::Answer;
use crate::layout::paragraph;
use crate::printer::{DIM, HEADING, Printer, harmless};

pub fn run(global: &Global, args: &List, printer: &mut Printer) -> anyhow::Result<Answer> {
    let (host, _) = open_host(global)?;
    let dirs = spec_dirs(&host, &args.from.spec_dir)?;
    let registry = scan(&dirs, printer);
    let pools = of_specs(&registry, printer);
    let holders = Holders::read(&host, &pools, printer);
    let shown = pools.iter().map(|pool| {
        let name = format!("{}={}", pool.class.cdi_kind(), pool.name);
        (name, Shown::new(pool, &holders))
    });
    let pools: BTreeMap<String, Shown<'_>> = shown.collect();
    match args.format {
        Listing::Table => print_table(&registry, &pools, &dirs, printer)?,
        Listing::Json => print_json(&registry, &pools, printer)?,
    }
    warn_of_files(&registry, printer);
    Ok(Answer::Yes)
}

fn print_table(
    registry: &Registry,
    pools: &BTreeMap<String, Shown<'_>>,
    dirs: &[PathBuf],
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let mut devices: Vec<_> = registry.devices().collect();
    devices.sort_by_key(|device| (device.path, device.name));
    let mut file: Option<&Path> = None;
    for device in &devices {
        if file != Some(device.path) {
            let gap = if file.is_some() { "\n" } else { "" };
            let path = harmless(device.path.display());
            printer.print(format_args!("{gap}{HEADING}{path}{HEADING:#}\n"))?;
            file = Some(device.path);
        }
        let name = device.name.to_string();
        match pools.get(&name) {
            Some(pool) => {
                let text = format!("{name}  {DIM}{}{DIM:#}", pool.text());
                printer.print(paragraph("  ", "    ", &text, printer.columns()))?;
            }
            None => printer.print(format_args!("  {name}\n"))?,
        }
    }
    for shadowed in registry.shadowed() {
        let (name, path, by) =
            (&shadowed.name, harmless(shadowed.path.display()), harmless(shadowed.by.display()));
        let text = format!("{DIM}{name} of {path} is hidden by {by}{DIM:#}");
        printer.print(paragraph("", "    ", &text, printer.columns()))?;
    }
    for conflict in registry.conflicts() {
        let (name, paths) = (&conflict.name, harmless(joined(&conflict.paths)));
        let text =
            format!("{name} is not offered, because it is in {paths}; remove it from all but one");
        printer.print(paragraph("", "    ", &text, printer.columns()))?;
    }
    if devices.is_empty() {
        printer.note(format_args!(
            "no CDI devices in {}; \"onload-ctk cdi generate\" writes those of this host",
            joined(dirs)
        ));
    }
    Ok(())
}

fn print_json(
    registry: &Registry,
    pools: &BTreeMap<String, Shown<'_>>,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let devices = registry.devices().map(|device| {
        let name = device.name.to_string();
        let pool = pools.get(&name).map(Shown::object);
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
