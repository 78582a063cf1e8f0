//! `topology`: where everything of a host is, and who holds what.

use std::fs;

use anyhow::Result;
use onload_core::timestamp;
use onload_host::devices::inventory::Inventory;
use onload_host::host::Host;
use onload_host::leases;
use onload_host::pools::discover_with_pools;
use onload_report::status::list_grants;
use onload_report::topology::{
    LineKind, TextLine, Topology, TopologyInput, build_matrix, draw, read, render_lines, render_svg,
};
use serde::Serialize;

use super::{open_host_of_incident, warn_of_unread};
use crate::cli::{self, GlobalArgs, PictureFormat};
use crate::exit::{CommandResult, ExitAnswer};
use crate::layout::{format_paragraph, to_one_line};
use crate::printer::{DIM, HEADING, Printer};

pub fn run(global: &GlobalArgs, args: &cli::TopologyArgs, printer: &mut Printer) -> CommandResult {
    let (host, config) = open_host_of_incident(global, printer)?;
    printer.progress("reading this host");
    let (inventory, pools) = discover_with_pools(&host, &config);
    let leases = leases::list(&host);
    let grantees = list_grants(&host).unwrap_or_default();
    let topology = read(TopologyInput {
        host: &host,
        inventory: &inventory,
        pools: &pools,
        leases: leases.as_deref().ok(),
        grantees: &grantees,
    });
    printer.end_progress();
    if let Err(error) = &leases {
        printer.warning(format_args!("could not determine who holds devices: {error:#}"));
    }
    warn_of_unread(&inventory, printer);
    let topology = topology?;
    if args.matrix {
        print_matrix(&inventory, &topology, printer)?;
        return Ok(ExitAnswer::Yes);
    }
    match args.format {
        PictureFormat::Text => print(&topology, printer)?,
        PictureFormat::Svg => printer.print(render_svg(&draw(&topology, &title(&host))))?,
        PictureFormat::Json => print_json(&topology, printer)?,
    }
    Ok(ExitAnswer::Yes)
}

/// The title of the picture: of the running host with its name and the time.
fn title(host: &Host) -> String {
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname");
    match hostname {
        Ok(hostname) if host.is_running() => {
            let time = timestamp::format_rfc3339(timestamp::unix_seconds());
            format!("Devices of {}, {time}", hostname.trim_end())
        }
        _ => "Devices of this host".to_owned(),
    }
}

fn print_json(topology: &Topology, printer: &mut Printer) -> Result<()> {
    #[derive(Serialize)]
    struct TopologyOutput<'a> {
        version: &'static str,
        #[serde(flatten)]
        topology: &'a Topology,
    }
    let version = env!("CARGO_PKG_VERSION");
    printer.print_json(&TopologyOutput { version, topology })?;
    Ok(())
}

fn print_matrix(inventory: &Inventory, topology: &Topology, printer: &mut Printer) -> Result<()> {
    let Some(matrix) = build_matrix(inventory, topology) else {
        printer.note("nothing to show: this host has no GPU and no NIC on PCI");
        return Ok(());
    };
    if let Some(obstacle) = &matrix.obstacle {
        printer.warning(format_args!("could not determine what is near a GPU: {obstacle}"));
    }
    for line in &matrix.lines {
        let cells: Vec<String> = line.split('\t').map(to_one_line).collect();
        printer.print(format_args!("{}\n", cells.join("\t")))?;
    }
    Ok(())
}

fn print(topology: &Topology, printer: &mut Printer) -> Result<()> {
    if topology.nodes.is_empty() {
        printer.note("nothing to show: this host has no NUMA nodes, interfaces or devices");
    }
    for (index, line) in render_lines(topology).iter().enumerate() {
        let text = format_line(line, printer.columns());
        if line.kind == LineKind::Heading && index > 0 {
            printer.print("\n")?;
        }
        printer.print(text)?;
    }
    Ok(())
}

/// Names of the host may hold anything.
fn format_line(line: &TextLine, columns: Option<usize>) -> String {
    let text = to_one_line(&line.text);
    let text = match line.kind {
        LineKind::Heading => format!("{HEADING}{text}{HEADING:#}"),
        LineKind::Part => text,
        LineKind::Detail => format!("{DIM}{text}{DIM:#}"),
    };
    format_paragraph(&line.first, &line.rest, &text, columns)
}
