//! `topology`: where everything of a host is, and who holds what.

use onload_host::devices::inventory::Inventory;
use onload_host::leases;
use onload_host::pools::discover_with_pools;
use onload_report::status::grantees;
use onload_report::topology::{Kind, Line, Seen, Topology, draw, lines, matrix, read, svg};
use serde::Serialize;

use super::{advise, open_host_of_incident};
use crate::cli::{self, Global, Picture};
use crate::exit::Answer;
use crate::layout::{in_a_line, paragraph};
use crate::printer::{DIM, HEADING, Printer};

pub fn run(global: &Global, args: &cli::Topology, printer: &mut Printer) -> anyhow::Result<Answer> {
    let (host, config) = open_host_of_incident(global, printer)?;
    printer.progress("looking at this host");
    let (inventory, pools) = discover_with_pools(&host, &config);
    let listed = leases::list(&host);
    let grantees = grantees(&host).unwrap_or_default();
    let topology = read(Seen {
        host: &host,
        inventory: &inventory,
        pools: &pools,
        leases: listed.as_deref().ok(),
        grantees: &grantees,
    });
    printer.end_progress();
    if let Err(error) = &listed {
        printer.warning(format_args!("who holds devices is not known: {error:#}"));
    }
    advise(&inventory, printer);
    let topology = topology?;
    if args.matrix {
        print_matrix(&inventory, &topology, printer)?;
        return Ok(Answer::Yes);
    }
    match args.format {
        Picture::Text => print(&topology, printer)?,
        Picture::Svg => printer.print(svg(&draw(&topology)))?,
        Picture::Json => print_json(&topology, printer)?,
    }
    Ok(Answer::Yes)
}

fn print_json(topology: &Topology, printer: &mut Printer) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct Whole<'a> {
        version: &'static str,
        #[serde(flatten)]
        topology: &'a Topology,
    }
    let version = env!("CARGO_PKG_VERSION");
    printer.print_json(&Whole { version, topology })?;
    Ok(())
}

fn print_matrix(
    inventory: &Inventory,
    topology: &Topology,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let Some(matrix) = matrix(inventory, topology) else {
        printer.note("nothing to show: this host has no GPU and no NIC on PCI");
        return Ok(());
    };
    if let Some(why) = &matrix.obstacle {
        printer.warning(format_args!("what is near a GPU is not known: {why}"));
    }
    for line in &matrix.lines {
        let cells: Vec<String> = line.split('\t').map(in_a_line).collect();
        printer.print(format_args!("{}\n", cells.join("\t")))?;
    }
    Ok(())
}

fn print(topology: &Topology, printer: &mut Printer) -> anyhow::Result<()> {
    if topology.nodes.is_empty() {
        printer.note("nothing to show: this host lists no NUMA node, no network and no device");
    }
    for (at, line) in lines(topology).iter().enumerate() {
        let text = shown(line, printer.columns());
        if line.kind == Kind::Heading && at > 0 {
            printer.print("\n")?;
        }
        printer.print(text)?;
    }
    Ok(())
}

/// Names of the host may hold anything.
fn shown(line: &Line, columns: Option<usize>) -> String {
    let text = in_a_line(&line.text);
    let text = match line.kind {
        Kind::Heading => format!("{HEADING}{text}{HEADING:#}"),
        Kind::Part => text,
        Kind::Detail => format!("{DIM}{text}{DIM:#}"),
    };
    paragraph(&line.first, &line.rest, &text, columns)
}
