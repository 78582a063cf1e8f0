//! `status`: how containers do with what they were given.

use std::path::Path;
use std::time::Duration;

use anstyle::Style;
use anyhow::bail;
use onload_core::container_id;
use onload_core::drain::DrainEntry;
use onload_host::devices::inventory::Inventory;
use onload_host::host::Host;
use onload_host::leases;
use onload_host::pools::discover_with_pools;
use onload_report::status::{Container, Evidence, Looked, State, Status, network, status};
use onload_sys::text::{format_count, join_first};
use rustix::process::geteuid;
use serde_json::json;

use super::{open_host_of_incident, process};
use crate::cli::{self, Global, Listing};
use crate::exit::Answer;
use crate::layout::{in_a_line, paragraph};
use crate::printer::{DIM, ERROR, GOOD, HEADING, Printer, WARNING};

const INDENT: &str = "  ";
const HANGING: &str = "      ";
const PATIENCE: Duration = Duration::from_secs(1);
const SHOWN: usize = 5;

pub fn run(global: &Global, args: &cli::Status, printer: &mut Printer) -> anyhow::Result<Answer> {
    let (host, config) = open_host_of_incident(global, printer)?;
    printer.progress("looking at this host");
    let (inventory, _) = discover_with_pools(&host, &config);
    let mut found = look(&host, &inventory, printer)?;
    if found.unseen > 0 {
        let advice = if geteuid().is_root() {
            "run as root on the host itself, with all capabilities"
        } else {
            "run sudo onload-ctk status to see those of other users"
        };
        printer.warning(format_args!(
            "{} could not be inspected; {advice}",
            format_count(found.unseen, "process", "processes")
        ));
    }
    if let Some(word) = &args.container {
        let one = choose(std::mem::take(&mut found.containers), word)?;
        found.containers = vec![one];
    }
    match args.format {
        Listing::Json => {
            let drained: Vec<_> = inventory.drain.iter().map(drained).collect();
            let object = object(&found, &drained);
            printer.print_json(&object)?;
        }
        Listing::Table => {
            print(&found, printer)?;
            if args.container.is_none() {
                print_drained(&inventory, printer)?;
            }
        }
    }
    Ok(match (&args.container, found.containers.first()) {
        (Some(_), Some(one)) if one.state() == State::Unknown => Answer::Unknown,
        (Some(_), Some(one)) if !one.state().is_good() => Answer::No,
        _ => Answer::Yes,
    })
}

/// How every container of the host does.
pub(super) fn look(
    host: &Host,
    inventory: &Inventory,
    printer: &mut Printer,
) -> anyhow::Result<Status> {
    let listed = leases::list(host);
    printer.progress("looking at containers");
    let guarded = |path: &Path, bytes: usize| process::read(path, bytes as u64, PATIENCE).ok();
    let networks = |pid| network(host, pid);
    let found = status(Looked {
        host,
        inventory,
        leases: listed.as_ref().ok().map(Vec::as_slice),
        guarded: &guarded,
        networks: &networks,
    });
    printer.end_progress();
    if let Err(error) = &listed {
        printer.warning(format_args!("which devices are leased is not known: {error:#}"));
    }
    Ok(found?)
}

/// The container that a word means: one of that name before those whose id begins so.
fn choose(mut containers: Vec<Container>, word: &str) -> anyhow::Result<Container> {
    let is_it = |one: &Container| one.name.as_deref() == Some(word) || one.id == word;
    if containers.iter().any(is_it) {
        containers.retain(is_it);
    } else {
        containers.retain(|one| !word.is_empty() && one.is_called(word));
    }
    let mut chosen = containers.into_iter();
    match (chosen.next(), chosen.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => bail!(
            "looking for container {word:?}: none that runs is called so and holds an onload.dev device, loads libonload.so or requests a device; \"onload-ctk status\" lists those that do, and the engine those that have ended"
        ),
        (Some(one), Some(other)) => bail!(
            "looking for container {word:?}: it means {} and {}; type more of the id",
            called(&one),
            called(&other)
        ),
    }
}

fn called(container: &Container) -> String {
    let id = container_id::short_id(&container.id);
    let name = container.name.as_deref().map(|name| format!("{} ", name.escape_debug()));
    let user = container.user.map(|user| format!(" of user {user}"));
    let engine = container.engine.as_str();
    format!(
        "{}{} ({engine}{})",
        name.unwrap_or_default(),
        id.escape_debug(),
        user.unwrap_or_default()
    )
}

fn drained(drained: &DrainEntry) -> serde_json::Value {
    json!({
        "device": drained.target.to_string(),
        "since": drained.describe,
        "reason": drained.reason,
    })
}

/// What no container gets any more, behind those that have it.
fn print_drained(inventory: &Inventory, printer: &mut Printer) -> anyhow::Result<()> {
    let all: Vec<&DrainEntry> = inventory.drain.iter().collect();
    for one in all.iter().take(SHOWN) {
        let what = in_a_line(&format!("{}: {}", one.target, one.describe()));
        let text = format!("{WARNING}drained{WARNING:#} {what}");
        printer.print(paragraph("", INDENT, &text, printer.columns()))?;
    }
    if all.len() > SHOWN {
        let more = all.len() - SHOWN;
        printer.print(format_args!("and {more} more; \"onload-ctk drain\" shows all\n"))?;
    }
    Ok(())
}

fn object(status: &Status, drained: &[serde_json::Value]) -> serde_json::Value {
    let containers = status.containers.iter().map(|container| {
        let mut object = json!(container);
        object["state"] = json!(container.state());
        let processes = container.processes.iter();
        let processes = processes.map(|(pid, name)| json!({"pid": pid, "name": name}));
        object["processes"] = processes.collect();
        object
    });
    let containers: Vec<_> = containers.collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "containers": containers,
        "drained": drained,
        "unseen_processes": status.unseen,
    })
}

fn print(status: &Status, printer: &mut Printer) -> anyhow::Result<()> {
    if status.containers.is_empty() {
        printer.note(
            "no container holds an onload.dev device, loads libonload.so or requests a device",
        );
        return Ok(());
    }
    for (index, container) in status.containers.iter().enumerate() {
        if index > 0 {
            printer.print("\n")?;
        }
        print_container(container, printer)?;
    }
    Ok(())
}

fn print_container(container: &Container, printer: &mut Printer) -> anyhow::Result<()> {
    let columns = printer.columns();
    let head = format!("{HEADING}{}{HEADING:#}", in_a_line(&called(container)));
    printer.print(paragraph("", INDENT, &head, columns))?;
    for verdict in &container.verdicts {
        let style = style(verdict.state);
        let text =
            format!("{style}{}{style:#}: {}", verdict.state.as_str(), in_a_line(&verdict.reason));
        printer.print(paragraph(INDENT, HANGING, &text, columns))?;
        if let Some(remedy) = &verdict.remedy {
            printer.print(paragraph(HANGING, HANGING, &in_a_line(remedy), columns))?;
        }
    }
    let processes = container.processes.iter();
    let processes: Vec<String> =
        processes.map(|(pid, name)| format!("{pid} {}", name.escape_debug())).collect();
    let devices = container.devices.iter();
    let by_environment = devices.clone().any(|grant| grant.by == Evidence::Environment);
    let devices: Vec<String> = devices.map(|grant| grant.device.clone()).collect();
    let devices_label =
        if by_environment { "devices, as its environment says:" } else { "devices" };
    for (label, names) in [
        ("nodes", &container.nodes),
        ("leases", &container.leases),
        (devices_label, &devices),
        ("processes", &processes),
    ] {
        if !names.is_empty() {
            let text = format!("{DIM}{label} {}{DIM:#}", in_a_line(&join_first(names, SHOWN)));
            printer.print(paragraph(INDENT, HANGING, &text, columns))?;
        }
    }
    Ok(())
}

fn style(state: State) -> Style {
    match state {
        state if state.is_good() => GOOD,
        State::Unknown | State::Unused => WARNING,
        _ => ERROR,
    }
}
