//! `onload-ctk` without a command: five lines about this host, the last of which is the next step.

use std::collections::BTreeMap;

use onload_core::class::Class;
use onload_core::timestamp;
use onload_host::devices::HostDevice;
use onload_host::devices::inventory::Inventory;
use onload_report::doctor::{Check, CheckVerdict, Remedy};
use onload_sys::text::quote_for_shell;
use serde_json::json;

use super::doctor::{check_host, checks_named, find_obstacle, format_finding};
use super::warn_of_unread;
use crate::cli::{GlobalArgs, ListFormat, TryEngine};
use crate::exit::{CommandResult, ExitAnswer};
use crate::layout::{format_labelled, to_one_line};
use crate::printer::Printer;

/// The classes that the next step may try a device of, in this order.
const TRIED_CLASSES: [Class; 5] =
    [Class::Nic, Class::Rdma, Class::Vfio, Class::Netdev, Class::Hugepages];

pub fn run(global: &GlobalArgs, format: ListFormat, printer: &mut Printer) -> CommandResult {
    let (inventory, checks) = check_host(global, printer)?;
    let host = describe_host(&inventory) + &describe_interfaces(&checks);
    let specs = describe_specs(&checks);
    let next_step = describe_next_step(&inventory, &checks);
    if format == ListFormat::Json {
        let engines = checks_named(&checks, "engine").filter_map(|engine| {
            let obstacle = find_engine_obstacle(&checks, engine).map(format_finding);
            Some(json!({"name": engine.finding.subject.as_ref()?, "obstacle": obstacle}))
        });
        printer.print_json(&json!({
            "version": env!("CARGO_PKG_VERSION"),
            "host": host,
            "devices": count_devices(&inventory),
            "drained": inventory.drain.iter().count(),
            "not_restored": returning_checks(&checks).count(),
            "cdi_specs": specs,
            "engines": engines.collect::<Vec<_>>(),
            "next_step": next_step,
        }))?;
    } else {
        let lines = [
            ("Host", host),
            ("Devices", describe_devices(&inventory, &checks)),
            ("CDI specs", specs),
            ("Engines", describe_engines(&checks)),
            ("Next step", next_step),
        ];
        for (label, text) in lines {
            let line = format_labelled(label, &to_one_line(&text), printer.columns());
            printer.print(line)?;
        }
    }
    warn_of_unread(&inventory, printer);
    Ok(ExitAnswer::Yes)
}

fn describe_host(inventory: &Inventory) -> String {
    let onload = inventory.onload.as_ref().map_or_else(
        || "no Onload".to_owned(),
        |onload| match (&onload.obstacle, &onload.version) {
            (Some(reason), _) => format!("Onload, not offered: {reason}"),
            (None, Some(version)) => format!("Onload {version}"),
            (None, None) => "Onload".to_owned(),
        },
    );
    match &inventory.tcpdirect {
        Some(_) => onload + ", TCPDirect",
        None => onload,
    }
}

/// Describes faults that keep interfaces from being accelerated.
fn describe_interfaces(checks: &[Check]) -> String {
    checks_named(checks, "onload-interface")
        .filter(|check| check.finding.verdict == CheckVerdict::Warn)
        .map(|check| format!("; {}", check.finding.finding))
        .collect()
}

/// Counts devices by class as discover does: other names of an interface are not counted.
fn count_devices(inventory: &Inventory) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for device in inventory.devices.iter().filter(|device| !device.is_loopback()) {
        if is_counted(device.class) {
            *counts.entry(device.class.as_str()).or_default() += 1;
        }
    }
    counts
}

/// Whether a class has devices of its own: nic-plain and nic-nodes are other names of interfaces.
fn is_counted(class: Class) -> bool {
    !matches!(class, Class::NicPlain | Class::NicNodes | Class::Profile)
}

/// Lists the numbers of devices by class, then of those that no container gets.
fn describe_devices(inventory: &Inventory, checks: &[Check]) -> String {
    let counts = count_devices(inventory);
    let mut parts: Vec<String> = Class::ALL
        .into_iter()
        .map(Class::as_str)
        .filter_map(|class| counts.get(class).map(|number| format!("{number} {class}")))
        .collect();
    if parts.is_empty() {
        parts.push("none".to_owned());
    }
    let undecided = inventory.undecided_classes();
    let undecided: Vec<&str> = undecided
        .iter()
        .filter(|class| is_counted(**class) && !counts.contains_key(class.as_str()))
        .map(|class| class.as_str())
        .collect();
    if !undecided.is_empty() {
        parts.push(format!("unknown: {}", undecided.join(" ")));
    }
    let drained = inventory.drain.iter().count();
    if let Some(since) = inventory.drain.iter().map(|entry| entry.since).min() {
        let since = timestamp::format_rfc3339(since);
        parts.push(format!("{drained} drained since {since} (onload-ctk drain lists them)"));
    }
    let returning: Vec<&Check> = returning_checks(checks).collect();
    if !returning.is_empty() {
        // The steps of a longer remedy are only complete in doctor.
        let has_one_step = returning.iter().all(|check| check.finding.remedy.len() == 1);
        let command = if has_one_step { "lease restore" } else { "doctor" };
        parts.push(format!("{} not restored (run: onload-ctk {command})", returning.len()));
    }
    parts.join(", ")
}

/// Returns a check for each device that exited containers left unrestored.
fn returning_checks(checks: &[Check]) -> impl Iterator<Item = &Check> {
    checks_named(checks, "returning").filter(|check| check.finding.subject.is_some())
}

fn first_device(inventory: &Inventory, class: Class) -> Option<&HostDevice> {
    let mut devices = inventory.devices.iter();
    devices.find(|device| device.class == class && !device.is_loopback())
}

/// Includes what keeps the specifications from being written.
fn describe_specs(checks: &[Check]) -> String {
    let config = checks_named(checks, "config").filter(|check| check.finding.verdict.is_problem());
    checks_named(checks, "specs-fresh")
        .chain(config)
        .map(|check| check.finding.finding.as_str())
        .collect::<Vec<_>>()
        .join("; ")
}

fn describe_engines(checks: &[Check]) -> String {
    let engines = checks_named(checks, "engine").map(|engine| {
        let Some(name) = &engine.finding.subject else { return engine.finding.finding.clone() };
        find_engine_obstacle(checks, engine)
            .map_or_else(|| name.clone(), |check| format!("{name} ({})", format_finding(check)))
    });
    engines.collect::<Vec<_>>().join(", ")
}

fn find_engine_obstacle<'c>(checks: &'c [Check], engine: &'c Check) -> Option<&'c Check> {
    let broken = engine.finding.verdict.is_problem().then_some(engine);
    find_obstacle(checks, engine).or(broken)
}

fn describe_next_step(inventory: &Inventory, checks: &[Check]) -> String {
    if inventory.devices.is_empty() && !inventory.drained.is_empty() {
        return "run: onload-ctk drain".to_owned();
    }
    if inventory.devices.is_empty() {
        return "run: onload-ctk discover --explain".to_owned();
    }
    let mut spec_checks = checks_named(checks, "config").chain(checks_named(checks, "specs-fresh"));
    let remedy = spec_checks.find_map(|check| check.finding.remedy.first());
    if let Some(remedy) = remedy {
        return remedy.to_string();
    }
    if let Some(remedy) = onload_remedy(checks) {
        return remedy;
    }
    let engine = TryEngine::usable_engines(checks).next();
    let device = TRIED_CLASSES.into_iter().find_map(|class| first_device(inventory, class));
    match (engine, device) {
        (Some(engine), Some(device)) => {
            if let Some(command) = undrain_command(inventory, device.class) {
                return format!("run: {command}");
            }
            if let Some(remedy) = link_remedy(device, checks) {
                return remedy.to_string();
            }
            let device = quote_for_shell(format!("{}={}", device.class.as_str(), device.name));
            format!("run: onload-ctk try {device} --engine {}", engine.name())
        }
        _ => engine_remedy(checks)
            .map_or_else(|| "run: onload-ctk doctor".to_owned(), ToString::to_string),
    }
}

/// Returns what offers a class again of which all devices are drained, if one of them would be tried before `class`.
fn undrain_command(inventory: &Inventory, class: Class) -> Option<String> {
    let mut earlier = TRIED_CLASSES.into_iter().take_while(|earlier| *earlier != class);
    earlier.find_map(|earlier| {
        inventory.drained.iter().find(|device| device.class == earlier)?;
        let entry = inventory.drain.iter().find(|entry| entry.target.class == earlier)?;
        Some(format!("onload-ctk undrain {}", quote_for_shell(entry.target.to_string())))
    })
}

/// Returns what sets up the interface of a device that is down.
fn link_remedy<'c>(device: &HostDevice, checks: &'c [Check]) -> Option<&'c Remedy> {
    let mut down = checks_named(checks, "interface-up")
        .filter(|check| check.finding.verdict == CheckVerdict::Warn)
        .filter(|_| device.class == Class::Nic);
    let check =
        down.find(|check| check.finding.subject.as_deref() == Some(device.name.as_str()))?;
    check.finding.remedy.first()
}

/// Returns the remedy of a failed check of Onload. The steps to one build of driver and library are only complete in
/// doctor.
fn onload_remedy(checks: &[Check]) -> Option<String> {
    if checks_named(checks, "onload-library").any(|check| check.finding.verdict.is_problem()) {
        return Some("run: onload-ctk doctor".to_owned());
    }
    let names = ["onload-modules", "onload-interface"];
    let mut checks = names.into_iter().flat_map(|name| checks_named(checks, name));
    checks.find_map(|check| check.finding.remedy.first()).map(ToString::to_string)
}

fn engine_remedy(checks: &[Check]) -> Option<&Remedy> {
    let mut engines = checks_named(checks, "engine");
    engines.find_map(|engine| {
        let obstacle_remedy =
            find_obstacle(checks, engine).and_then(|check| check.finding.remedy.first());
        obstacle_remedy.or_else(|| engine.finding.remedy.first())
    })
}
