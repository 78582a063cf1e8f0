//! `cdi preview`: what the host has, the specifications generated from it, and what a container gets. Writes nothing.

use std::path::Path;

use anyhow::Result;
use onload_cdi::{Registry, Spec, SpecSource};
use onload_host::generate::{GeneratedSpecs, InstalledFiles};
use onload_host::spec_name::SpecName;
use onload_host::specdir::SpecFormat;

use super::device_name::parse_qualified_names;
use super::discover::print_devices;
use super::show::print_edits;
use super::{OUTPUT_DIR, discover_host, generate_specs, open_host, resolve_devices};
use crate::cli::{GlobalArgs, Preview};
use crate::exit::{CommandResult, ExitAnswer};
use crate::layout::{format_labelled, format_pairs};
use crate::printer::{HEADING, Printer};

pub fn run(global: &GlobalArgs, args: &Preview, printer: &mut Printer) -> CommandResult {
    let (host, config) = open_host(global)?;
    let (inventory, pools) = discover_host(&host, &config, printer);
    // The hook comes with the package, which a captured host need not have.
    let installed = InstalledFiles { hook: true, ..InstalledFiles::read(&host, &config)? };
    let (specs, _) =
        generate_specs(&inventory, pools, &config.cdi.kinds, None, &config, installed, printer)?;

    print_devices(&inventory.offered_only(), printer)?;
    print_specs(&specs, printer)?;
    let registry = Registry::from_sources(
        specs
            .into_iter()
            .map(|(name, spec)| SpecSource {
                path: Path::new(OUTPUT_DIR).join(SpecFormat::Json.file_name(name)),
                priority: 0,
                content: Ok(spec),
            })
            .collect(),
    );
    let names = parse_qualified_names(&args.devices, &registry)?;
    let devices = names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" --device ");
    printer.print(format_args!("\n{HEADING}Container with --device {devices}{HEADING:#}\n"))?;
    let edits = resolve_devices(&registry, &[Path::new(OUTPUT_DIR).to_owned()], &names)?;
    print_edits(&edits, printer)?;
    let next =
        "on a host with these devices, run: onload-ctk cdi generate; then name them with --device";
    printer.print(format_args!("\n{}", format_labelled("next", next, printer.columns())))?;
    Ok(ExitAnswer::Yes)
}

fn print_specs(specs: &GeneratedSpecs, printer: &mut Printer) -> Result<()> {
    printer.print(format_args!("\n{HEADING}CDI specifications in {OUTPUT_DIR}{HEADING:#}\n"))?;
    let lines: Vec<(String, String)> = specs.iter().map(describe_spec).collect();
    Ok(printer.print(format_pairs(&lines, printer.columns()))?)
}

fn describe_spec((name, spec): (&SpecName, &Spec)) -> (String, String) {
    let devices: Vec<&str> = spec.devices.iter().map(|device| device.name.as_str()).collect();
    (SpecFormat::Json.file_name(*name), format!("{}: {}", spec.kind, devices.join(" ")))
}
