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
use onload_report::status::{
    ContainerStatus, Evidence, StatusInput, StatusReport, VerdictState, read_network, read_status,
};
use onload_sys::text::{format_count, join_first};
use rustix::process::geteuid;
use serde_json::json;

use super::{open_host_of_incident, process};
use crate::cli::{self, GlobalArgs, ListFormat};
use crate::exit::ExitAnswer;
use crate::layout::{format_paragraph, to_one_line};
use crate::printer::{DIM, ERROR, GOOD, HEADING, Printer, WARNING};

const INDENT: &str = "  ";
const HANGING: &str = "      ";
const PATIENCE: Duration = Duration::from_secs(1);
const SHOWN: usize = 5;

pub fn run(
    global: &GlobalArgs,
    args: &cli::StatusArgs,
    printer: &mut Printer,
) -> anyhow::Result<ExitAnswer> {
    let (host, config) = open_host_of_incident(global, printer)?;
    printer.progress("looking at this host");
    let (inventory, _) = discover_with_pools(&host, &config);
    let mut found = inspect_containers(&host, &inventory, printer)?;
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
        ListFormat::Json => {
            let drained: Vec<_> = inventory.drain.iter().map(drained_json).collect();
            let object = to_json(&found, &drained);
            printer.print_json(&object)?;
        }
        ListFormat::Table => {
            print(&found, printer)?;
            if args.container.is_none() {
                print_drained(&inventory, printer)?;
            }
        }
    }
    Ok(match (&args.container, found.containers.first()) {
        (Some(_), Some(one)) if one.state() == VerdictState::Unknown => ExitAnswer::Unknown,
        (Some(_), Some(one)) if !one.state().is_good() => ExitAnswer::No,
        _ => ExitAnswer::Yes,
    })
}

/// How every container of the host does.
pub(super) fn inspect_containers(
    host: &Host,
    inventory: &Inventory,
    printer: &mut Printer,
) -> anyhow::Result<StatusReport> {
    let listed = leases::list(host);
    printer.progress("looking at containers");
    let guarded = |path: &Path, bytes: usize| process::read(path, bytes as u64, PATIENCE).ok();
    let networks = |pid| read_network(host, pid);
    let found = read_status(StatusInput {
        host,
        inventory,
        leases: listed.as_ref().ok().map(Vec::as_slice),
        read_guarded: &guarded,
        networks: &networks,
    });
    printer.end_progress();
    if let Err(error) = &listed {
        printer.warning(format_args!("which devices are leased is not known: {error:#}"));
    }
    Ok(found?)
}

/// The container that a word means: one of that name before those whose id begins so.
fn choose(mut containers: Vec<ContainerStatus>, word: &str) -> anyhow::Result<ContainerStatus> {
    let is_it = |one: &ContainerStatus| one.name.as_deref() == Some(word) || one.id == word;
    if containers.iter().any(is_it) {
        containers.retain(is_it);
    } else {
        containers.retain(|one| !word.is_empty() && one.matches_name(word));
    }
    let mut chosen = containers.into_iter();
    match (chosen.next(), chosen.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => bail!(
            "looking for container {word:?}: none that runs is called so and holds an onload.dev device, loads libonload.so or requests a device; \"onload-ctk status\" lists those that do, and the engine those that have ended"
        ),
        (Some(one), Some(other)) => bail!(
            "looking for container {word:?}: it means {} and {}; type more of the id",
            display_name(&one),
            display_name(&other)
        ),
    }
}

fn display_name(container: &ContainerStatus) -> String {
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

fn drained_json(drained: &DrainEntry) -> serde_json::Value {
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
        let what = to_one_line(&format!("{}: {}", one.target, one.describe()));
        let text = format!("{WARNING}drained{WARNING:#} {what}");
        printer.print(format_paragraph("", INDENT, &text, printer.columns()))?;
    }
    if all.len() > SHOWN {
        let more = all.len() - SHOWN;
        printer.print(format_args!("and {more} more; \"onload-ctk drain\" shows all\n"))?;
    }
    Ok(())
}

fn to_json(status: &StatusReport, drained: &[serde_json::Value]) -> serde_json::Value {
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

fn print(status: &StatusReport, printer: &mut Printer) -> anyhow::Result<()> {
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

fn print_container(container: &ContainerStatus, printer: &mut Printer) -> anyhow::Result<()> {
    let columns = printer.columns();
    let head = format!("{HEADING}{}{HEADING:#}", to_one_line(&display_name(container)));
    printer.print(format_paragraph("", INDENT, &head, columns))?;
    for verdict in &container.verdicts {
        let style = state_style(verdict.state);
        let text =
            format!("{style}{}{style:#}: {}", verdict.state.as_str(), to_one_line(&verdict.reason));
        printer.print(format_paragraph(INDENT, HANGING, &text, columns))?;
        if let Some(remedy) = &verdict.remedy {
            printer.print(format_paragraph(HANGING, HANGING, &to_one_line(remedy), columns))?;
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
            let text = format!("{DIM}{label} {}{DIM:#}", to_one_line(&join_first(names, SHOWN)));
            printer.print(format_paragraph(INDENT, HANGING, &text, columns))?;
        }
    }
    Ok(())
}

fn state_style(state: VerdictState) -> Style {
    match state {
        state if state.is_good() => GOOD,
        VerdictState::Unknown | VerdictState::Unused => WARNING,
        _ => ERROR,
    }
}
