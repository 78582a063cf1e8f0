//! `status`: how containers do with what they were given.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use anstyle::Style;
use anyhow::{Result, bail};
use onload_core::config::Config;
use onload_core::container_id;
use onload_core::timestamp;
use onload_host::devices::inventory::Inventory;
use onload_host::host::Host;
use onload_host::leases;
use onload_host::pools::discover_with_pools;
use onload_lease::drain::DrainEntry;
use onload_report::status::{
    ContainerStatus, Evidence, StatusInput, StatusReport, VerdictState, read_network, read_status,
};
use onload_sys::bpf::interface::has_program;
use onload_sys::text::{format_count, join_first};
use rustix::process::geteuid;
use serde_json::json;

use super::{open_host_of_incident, open_traced_host, process};
use crate::cli::{self, GlobalArgs, ListFormat};
use crate::exit::{CommandResult, ExitAnswer};
use crate::layout::{format_paragraph, to_one_line};
use crate::printer::{DIM, ERROR, GOOD, HEADING, Printer, WARNING};

const INDENT: &str = "  ";
const HANGING: &str = "      ";
const MAX_SHOWN: usize = 5;

pub fn run(global: &GlobalArgs, args: &cli::StatusArgs, printer: &mut Printer) -> CommandResult {
    let (host, config) = open_host_of_incident(global, printer)?;
    if let Some(seconds) = args.watch {
        return watch(global, &config, args, seconds, printer);
    }
    let (inventory, mut report) = read_report(&host, &config, printer)?;
    if report.unseen > 0 {
        let advice = if geteuid().is_root() {
            "run as root on the host itself, with all capabilities"
        } else {
            "run sudo onload-ctk status to see those of other users"
        };
        printer.warning(format_args!(
            "{} could not be inspected; {advice}",
            format_count(report.unseen, "process", "processes")
        ));
    }
    if let Some(word) = &args.container {
        let container = choose(std::mem::take(&mut report.containers), word)?;
        report.containers = vec![container];
    }
    match args.format {
        ListFormat::Json => {
            let drained: Vec<_> = inventory.drain.iter().map(drained_json).collect();
            let object = to_json(&report, &drained);
            printer.print_json(&object)?;
        }
        ListFormat::Table => {
            print(&report, printer)?;
            if args.container.is_none() {
                print_drained(&inventory, printer)?;
            }
        }
    }
    Ok(match (&args.container, report.containers.first()) {
        (Some(_), Some(container)) if container.state() == VerdictState::Unknown => {
            ExitAnswer::Unknown
        }
        (Some(_), Some(container)) if !container.state().is_good() => ExitAnswer::No,
        _ => ExitAnswer::Yes,
    })
}

fn read_report(
    host: &Host,
    config: &Config,
    printer: &mut Printer,
) -> Result<(Inventory, StatusReport)> {
    printer.progress("reading this host");
    let (inventory, _) = discover_with_pools(host, config);
    let report = inspect_containers(host, &inventory, printer)?;
    Ok((inventory, report))
}

/// Reads the status again and again until a signal ends the process or the reader of stdout is
/// gone. Redraws a terminal; otherwise prints a line for each change.
fn watch(
    global: &GlobalArgs,
    config: &Config,
    args: &cli::StatusArgs,
    seconds: u64,
    printer: &mut Printer,
) -> CommandResult {
    let mut known = BTreeMap::new();
    let mut is_first = true;
    while !printer.is_closed() {
        let host = open_traced_host(global)?;
        let (inventory, mut report) = read_report(&host, config, printer)?;
        if let Some(word) = &args.container {
            report.containers.retain(|container| container.matches_name(word));
        }
        let time = timestamp::format_rfc3339(timestamp::unix_seconds());
        if printer.is_terminal() {
            printer.clear_screen()?;
            printer.print(format_args!("{DIM}{time}, every {seconds} s{DIM:#}\n\n"))?;
            print(&report, printer)?;
            if args.container.is_none() {
                print_drained(&inventory, printer)?;
            }
        } else {
            if let Some(word) = &args.container
                && is_first
                && report.containers.is_empty()
            {
                printer.note(format_args!("{}; waiting for it", missing_container_message(word)));
            }
            for line in take_changes(&mut known, &report.containers) {
                printer.print(format_args!("{time} {}\n", to_one_line(&line)))?;
            }
        }
        is_first = false;
        printer.flush()?;
        thread::sleep(Duration::from_secs(seconds));
    }
    Ok(ExitAnswer::Yes)
}

/// The containers of the last look by their display names, which contain engine and id.
type KnownContainers = BTreeMap<String, Vec<VerdictState>>;

/// Returns a line for each container that is new, has other verdicts or has ended. Ignores a change
/// of only the reason, since reasons contain counters.
fn take_changes(known: &mut KnownContainers, containers: &[ContainerStatus]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut now = KnownContainers::new();
    for container in containers {
        let name = display_name(container);
        let states: Vec<VerdictState> =
            container.verdicts.iter().map(|verdict| verdict.state).collect();
        if known.get(&name) != Some(&states) {
            let reason = container.verdicts.first().map(|verdict| format!(": {}", verdict.reason));
            let state = container.state().as_str();
            lines.push(format!("{name}: {state}{}", reason.unwrap_or_default()));
        }
        now.insert(name, states);
    }
    let ended = known.keys().filter(|name| !now.contains_key(*name));
    lines.extend(ended.map(|name| format!("{name}: ended")));
    *known = now;
    lines
}

/// How every container of the host does.
pub(super) fn inspect_containers(
    host: &Host,
    inventory: &Inventory,
    printer: &mut Printer,
) -> Result<StatusReport> {
    let leases = leases::list(host);
    printer.progress("looking at containers");
    let networks = |pid| read_network(host, pid);
    let input = StatusInput {
        host,
        inventory,
        leases: leases.as_ref().ok().map(Vec::as_slice),
        networks: &networks,
        has_program: &|id| host.is_running().then(|| has_program(id)).flatten(),
    };
    let mut examiner = process::Examiner::new(host);
    let report = read_status(input, &mut |container, examine| examiner.run(container, examine));
    printer.end_progress();
    if let Err(error) = &leases {
        printer.warning(format_args!("could not determine which devices are leased: {error:#}"));
    }
    Ok(report?)
}

/// Returns the container that a word refers to: by name, or else by the beginning of the id.
fn choose(mut containers: Vec<ContainerStatus>, word: &str) -> Result<ContainerStatus> {
    let is_exact = |container: &ContainerStatus| {
        container.name.as_deref() == Some(word) || container.id == word
    };
    if containers.iter().any(is_exact) {
        containers.retain(is_exact);
    } else {
        containers.retain(|container| !word.is_empty() && container.matches_name(word));
    }
    let mut chosen = containers.into_iter();
    match (chosen.next(), chosen.next()) {
        (Some(container), None) => Ok(container),
        (None, _) => bail!(missing_container_message(word)),
        (Some(first), Some(second)) => bail!(
            "looking for container {word:?}: it means {} and {}; use more of the id",
            display_name(&first),
            display_name(&second)
        ),
    }
}

fn missing_container_message(word: &str) -> String {
    format!(
        "looking for container {word:?}: no running container of that name uses an onload.dev \
         device, loads libonload.so or requests a device; \"onload-ctk status\" lists those that do"
    )
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

fn drained_json(entry: &DrainEntry) -> serde_json::Value {
    json!({
        "device": entry.target.to_string(),
        "since": entry.since,
        "reason": entry.reason,
    })
}

/// Drained devices, after the containers that have them.
fn print_drained(inventory: &Inventory, printer: &mut Printer) -> Result<()> {
    let all: Vec<&DrainEntry> = inventory.drain.iter().collect();
    for entry in all.iter().take(MAX_SHOWN) {
        let description = to_one_line(&format!("{}: {}", entry.target, entry.describe()));
        let text = format!("{WARNING}drained{WARNING:#} {description}");
        printer.print(format_paragraph("", INDENT, &text, printer.columns()))?;
    }
    if all.len() > MAX_SHOWN {
        let more = all.len() - MAX_SHOWN;
        printer.print(format_args!("and {more} more; \"onload-ctk drain\" shows all\n"))?;
    }
    Ok(())
}

fn to_json(status: &StatusReport, drained: &[serde_json::Value]) -> serde_json::Value {
    let containers: Vec<_> = status
        .containers
        .iter()
        .map(|container| {
            let mut object = json!(container);
            object["state"] = json!(container.state());
            let processes =
                container.processes.iter().map(|(pid, name)| json!({"pid": pid, "name": name}));
            object["processes"] = processes.collect();
            object
        })
        .collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "containers": containers,
        "drained": drained,
        "unseen_processes": status.unseen,
    })
}

fn print(status: &StatusReport, printer: &mut Printer) -> Result<()> {
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

fn print_container(container: &ContainerStatus, printer: &mut Printer) -> Result<()> {
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
    let processes: Vec<String> = container
        .processes
        .iter()
        .map(|(pid, name)| format!("{pid} {}", name.escape_debug()))
        .collect();
    let by_environment = container.devices.iter().any(|grant| grant.by == Evidence::Environment);
    let devices: Vec<String> = container.devices.iter().map(|grant| grant.device.clone()).collect();
    let devices_label =
        if by_environment { "devices, as its environment says:" } else { "devices" };
    for (label, names) in [
        ("nodes", &container.nodes),
        ("leases", &container.leases),
        (devices_label, &devices),
        ("processes", &processes),
    ] {
        if !names.is_empty() {
            let text =
                format!("{DIM}{label} {}{DIM:#}", to_one_line(&join_first(names, MAX_SHOWN)));
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
