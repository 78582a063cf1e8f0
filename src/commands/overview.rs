//! `onload-ctk` alone: what is here, what is offered, and what to do next.

use onload_core::class::Class;
use onload_core::timestamp;
use onload_host::devices::HostDevice;
use onload_host::devices::inventory::Inventory;
use onload_report::doctor::{Check, CheckVerdict, Remedy};
use onload_sys::text::{ShortList, format_count, quote_for_shell};

use super::doctor::{check_host, checks_named, find_obstacle, format_finding};
use super::warn_of_unread;
use crate::cli::{GlobalArgs, TryEngine};
use crate::exit::ExitAnswer;
use crate::layout::{format_labelled, to_one_line};
use crate::printer::Printer;

/// A device of each stands for all others.
const EXAMPLE_CLASSES: [Class; 6] =
    [Class::Nic, Class::Zf, Class::Rdma, Class::Vfio, Class::Netdev, Class::Hugepages];

pub fn run(global: &GlobalArgs, printer: &mut Printer) -> anyhow::Result<ExitAnswer> {
    let (inventory, checks) = check_host(global, printer)?;
    let lines = [
        ("here", describe_host(&inventory)),
        (
            "offered",
            describe_devices(&inventory)
                + &describe_drained(&inventory)
                + &describe_returning(&checks),
        ),
        ("written", describe_specs(&checks)),
        ("engines", describe_engines(&checks)),
        ("next", next(&inventory, &checks)),
    ];
    for (label, text) in lines {
        let line = format_labelled(label, &to_one_line(&text), printer.columns());
        printer.print(line)?;
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
    let tcpdirect = inventory.tcpdirect.as_ref().map(|_| "TCPDirect".to_owned());
    let families = [
        (inventory.nics.len(), "accelerated interface", "accelerated interfaces"),
        (inventory.rdma.len(), "RDMA device", "RDMA devices"),
        (inventory.vfio.len(), "vfio function", "vfio functions"),
    ];
    let families = families.into_iter().filter(|(number, ..)| *number > 0);
    let families =
        families.map(|(number, singular, plural)| format_count(number, singular, plural));
    let all = [onload].into_iter().chain(tcpdirect).chain(families);
    all.collect::<Vec<_>>().join(", ")
}

fn describe_devices(inventory: &Inventory) -> String {
    if inventory.devices.is_empty() {
        return "nothing".to_owned();
    }
    // As discover lists them: an interface is one, however it is asked for.
    let is_listed = |device: &&HostDevice| match device.class {
        Class::NicPlain | Class::NicNodes | Class::Profile => false,
        _ => !device.is_loopback(),
    };
    let number = inventory.devices.iter().filter(is_listed).count();
    let examples = EXAMPLE_CLASSES.into_iter().filter_map(|class| first_device(inventory, class));
    let examples: Vec<String> = examples.map(name).collect();
    let number = format_count(number, "device", "devices");
    if examples.is_empty() {
        return number;
    }
    format!("{number}, such as {}", examples.join(", "))
}

/// Behind what is offered, so that nobody forgets it.
fn describe_drained(inventory: &Inventory) -> String {
    let targets = inventory.drain.iter().map(|entry| entry.target.to_string());
    let targets: Vec<String> = targets.collect();
    let first = inventory.drain.iter().map(|entry| entry.since).min();
    first.map_or_else(String::new, |since| {
        let (targets, since) = (ShortList(&targets), timestamp::format_rfc3339(since));
        format!("; drained since {since}: {targets}")
    })
}

/// The devices that ended containers have left otherwise than they were, with what restores them.
fn describe_returning(checks: &[Check]) -> String {
    let findings = checks_named(checks, "returning").map(|check| &check.finding);
    let devices: Vec<String> = findings.filter_map(|finding| finding.subject.clone()).collect();
    match devices.as_slice() {
        [] => String::new(),
        devices => format!("; not restored: {}, run: onload-ctk lease restore", ShortList(devices)),
    }
}

fn first_device(inventory: &Inventory, class: Class) -> Option<&HostDevice> {
    let mut devices = inventory.devices.iter();
    devices.find(|device| device.class == class && !device.is_loopback())
}

fn name(device: &HostDevice) -> String {
    format!("{}={}", device.class.as_str(), device.name)
}

/// With what keeps them from being written anew.
fn describe_specs(checks: &[Check]) -> String {
    let findings = checks_named(checks, "specs-fresh").chain(checks_named(checks, "config"));
    let findings = findings.map(|check| check.finding.finding.as_str());
    findings.collect::<Vec<_>>().join("; ")
}

fn describe_engines(checks: &[Check]) -> String {
    let engines = checks_named(checks, "engine").map(|engine| {
        let finding = &engine.finding;
        let Some(name) = &finding.subject else {
            return finding.finding.clone();
        };
        let broken = (finding.verdict != CheckVerdict::Pass).then_some(engine);
        find_obstacle(checks, engine)
            .or(broken)
            .map_or_else(|| name.clone(), |check| format!("{name} ({})", format_finding(check)))
    });
    engines.collect::<Vec<_>>().join(", ")
}

fn next(inventory: &Inventory, checks: &[Check]) -> String {
    if inventory.devices.is_empty() && !inventory.drained.is_empty() {
        return "onload-ctk drain shows who holds what is drained".to_owned();
    }
    if inventory.devices.is_empty() {
        return "onload-ctk discover --explain says why".to_owned();
    }
    let mut spec_checks = checks_named(checks, "config").chain(checks_named(checks, "specs-fresh"));
    let remedy = spec_checks.find_map(|check| check.finding.remedy.first());
    if let Some(remedy) = remedy {
        return remedy.to_string();
    }
    if first_device(inventory, Class::Nic).is_none()
        && let Some(remedy) = onload_remedy(checks)
    {
        return remedy;
    }
    let engine = TryEngine::usable_engines(checks).next();
    let candidates = EXAMPLE_CLASSES.into_iter().filter(|class| *class != Class::Zf);
    let mut candidates = candidates.filter_map(|class| first_device(inventory, class));
    match (engine, candidates.next()) {
        (Some(engine), Some(device)) => {
            let device = quote_for_shell(name(device));
            format!("run: onload-ctk try {device} --engine {}", engine.name())
        }
        _ => engine_remedy(checks)
            .map_or_else(|| "run: onload-ctk doctor".to_owned(), ToString::to_string),
    }
}

/// What to do so that Onload works here, if a check of it did not pass. The steps to one build of driver and library are only
/// complete in doctor.
fn onload_remedy(checks: &[Check]) -> Option<String> {
    if checks_named(checks, "onload-library")
        .any(|check| check.finding.verdict != CheckVerdict::Pass)
    {
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
