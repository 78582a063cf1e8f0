//! `drain`: withdraws devices from new containers, and lists the present holders. `undrain` offers them again.

mod holders;
pub(super) mod targets;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use onload_core::config::Config;
use onload_core::timestamp;
use onload_host::drift::{Drift, find_drift};
use onload_host::generate::InstalledFiles;
use onload_host::host::Host;
use onload_host::pools::discover_with_pools;
use onload_host::specdir::{SpecDir, is_daemon_writer};
use onload_host::{drain, leases};
use onload_lease::drain::{DrainEntry, DrainList, DrainTarget, MAX_REASON};
use onload_sys::fs::lock::COMMAND_TIMEOUT;
use onload_sys::text::{ShortList, format_count, quote_for_shell};
use serde_json::{Value, json};

use super::generate::{directory_path, find_directory, report};
use super::interrupt::Interrupt;
use super::{discover_host, open_host};
use crate::cli::{DrainArgs, GlobalArgs, ListFormat, UndrainArgs};
use crate::exit::{CommandResult, ExitAnswer};
use crate::layout::format_table;
use crate::printer::{Printer, escape_controls};
use holders::{DrainHolder, HolderSearch};

/// Between two looks at who holds what.
const PAUSE: Duration = Duration::from_millis(500);

pub fn run(global: &GlobalArgs, args: &DrainArgs, printer: &mut Printer) -> CommandResult {
    check(args.reason.as_deref())?;
    let (host, config) = open_host(global)?;
    let before = drain::read(&host)?;
    let targets = if args.all {
        targets::all_classes()
    } else {
        let (inventory, pools) = discover_host(&host, &config, printer);
        targets::resolve_targets(&args.names, &inventory, &pools, printer)?
    };
    let is_asked = !targets.is_empty();
    let entries: Vec<DrainEntry> =
        targets.iter().map(|target| new_entry(target, args, &host)).collect::<Result<_>>()?;
    let now = if args.dry_run || !is_asked {
        let mut now = before;
        add(&mut now, entries);
        now
    } else {
        let now = update_drain(&host, |drain| add(drain, entries))?;
        printer.note(format_args!("drained {}", format_targets(&targets)));
        rewrite_specs(&host, &config, printer)?;
        now
    };
    let mut selected = DrainList::default();
    now.iter()
        .filter(|entry| !is_asked || targets.contains(&entry.target))
        .cloned()
        .for_each(|entry| selected.add(entry));
    let holders = remaining_holders(&host, &config, &selected, args, printer)?;
    match args.format {
        ListFormat::Json => printer.print_json(&to_json(&selected, &holders))?,
        ListFormat::Table => print(&selected, &holders, printer)?,
    }
    Ok(match args.dry_run || holders.is_empty() {
        true => ExitAnswer::Yes,
        false => ExitAnswer::No,
    })
}

fn check(reason: Option<&str>) -> Result<()> {
    let Some(reason) = reason else { return Ok(()) };
    if reason.trim().is_empty()
        || reason.chars().count() > MAX_REASON
        || reason.contains(char::is_control)
    {
        bail!(
            "reading --reason: expected one line of up to {MAX_REASON} characters, which everybody \
             is told who asks for the device"
        );
    }
    Ok(())
}

fn new_entry(target: &DrainTarget, args: &DrainArgs, host: &Host) -> Result<DrainEntry> {
    let boot = args.until_reboot.then(|| drain::boot_id(host)).transpose()?;
    Ok(DrainEntry {
        target: target.clone(),
        since: timestamp::unix_seconds(),
        reason: args.reason.clone(),
        boot,
    })
}

/// Devices that are already drained keep their time. Other data is that of the last command.
fn add(drain: &mut DrainList, entries: Vec<DrainEntry>) {
    for mut entry in entries {
        if let Some(before) = drain.get(&entry.target) {
            entry.since = before.since;
            entry.reason = entry.reason.or_else(|| before.reason.clone());
        }
        drain.add(entry);
    }
}

/// Changes the file while no container can lease a device, so that earlier containers are seen as holders.
fn update_drain(host: &Host, change: impl FnOnce(&mut DrainList)) -> Result<DrainList> {
    let mut leases = leases::open_or_create(host)?;
    leases.timeout = COMMAND_TIMEOUT;
    let lock = leases.lock();
    let _lock = lock.context("locking the leases")?;
    let mut now = drain::read(host)?;
    change(&mut now);
    drain::write(host, &now)?;
    Ok(now)
}

/// Returns the holders, once there are none or the waiting time is over.
fn remaining_holders(
    host: &Host,
    config: &Config,
    drain: &DrainList,
    args: &DrainArgs,
    printer: &mut Printer,
) -> Result<Vec<DrainHolder>> {
    if drain.is_empty() {
        return Ok(Vec::new());
    }
    let (inventory, _) = discover_with_pools(host, config);
    let search = HolderSearch::new(host, &inventory, drain);
    let mut holders = search.find_holders(printer)?;
    if !args.wait || args.dry_run || holders.is_empty() {
        return Ok(holders);
    }
    let stop = Interrupt::watch()?;
    let deadline = args
        .timeout
        .map(Duration::from_secs)
        .and_then(|timeout| Instant::now().checked_add(timeout));
    print_progress(&[], &holders, printer);
    while !holders.is_empty() && deadline.is_none_or(|deadline| Instant::now() < deadline) {
        thread::sleep(PAUSE);
        stop.refuse().context(
            "waiting for containers; the devices stay drained, and \"onload-ctk drain\" shows it",
        )?;
        let now = search.find_holders(printer)?;
        print_progress(&holders, &now, printer);
        holders = now;
    }
    if !holders.is_empty() {
        printer.note("they did not end in time; the devices stay drained");
    }
    Ok(holders)
}

/// Reports holders that are gone and new ones.
fn print_progress(before: &[DrainHolder], now: &[DrainHolder], printer: &mut Printer) {
    let is_in =
        |list: &[DrainHolder], holder: &DrainHolder| list.iter().any(|other| other.id == holder.id);
    for holder in before.iter().filter(|holder| !is_in(now, holder)) {
        let remaining = format_count(now.len(), "container is", "containers are");
        printer.note(format_args!("{holder} has ended; {remaining} left"));
    }
    for holder in now.iter().filter(|holder| !is_in(before, holder)) {
        printer.note(format_args!("waiting for {holder}"));
    }
}

fn format_targets(targets: &[DrainTarget]) -> String {
    let names: Vec<String> = targets.iter().map(ToString::to_string).collect();
    ShortList(&names).to_string()
}

fn print(drain: &DrainList, holders: &[DrainHolder], printer: &mut Printer) -> Result<()> {
    if drain.is_empty() {
        printer.note("nothing is drained");
        return Ok(());
    }
    let columns = printer.columns();
    let rows = drain.iter().map(|entry| {
        let end = if entry.boot.is_some() { "reboot" } else { "-" };
        let reason = entry.reason.as_deref().unwrap_or("-");
        [
            escape_controls(&entry.target),
            timestamp::format_rfc3339(entry.since),
            end.to_owned(),
            escape_controls(reason),
        ]
    });
    let header = ["DRAINED", "SINCE", "UNTIL", "REASON"];
    printer.print(format_table(header, rows, columns))?;
    if holders.is_empty() {
        printer.note("no container uses it");
        return Ok(());
    }
    let rows = holders.iter().map(|holder| {
        [
            escape_controls(holder.display_name()),
            holder.engine.to_owned(),
            escape_controls(match &holder.unknown {
                Some(reason) => format!("not known: {reason}"),
                None => holder.device_list(),
            }),
        ]
    });
    let header = ["HELD BY", "ENGINE", "DEVICES"];
    printer.print("\n")?;
    printer.print(format_table(header, rows, columns))?;
    Ok(())
}

fn to_json(drain: &DrainList, holders: &[DrainHolder]) -> Value {
    let drained: Vec<Value> = drain
        .iter()
        .map(|entry| {
            json!({
                "device": entry.target.to_string(),
                "class": entry.target.class.as_str(),
                "name": entry.target.name,
                "since": entry.since,
                "reason": entry.reason,
                "until_reboot": entry.boot.is_some(),
            })
        })
        .collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "drained": drained,
        "holders": holders,
    })
}

/// Writes the specifications with the kinds, the format and the version that they were written with.
fn rewrite_specs(host: &Host, config: &Config, printer: &mut Printer) -> Result<()> {
    if is_daemon_writer(host)? {
        printer.note("the daemon for Kubernetes updates the specifications");
        return Ok(());
    }
    let path = directory_path(host, None);
    let Some(directory) = find_directory(host, None)? else { return Ok(()) };
    let _lock = SpecDir::lock(&directory)?;
    let manifest = directory.read_manifest()?.map_err(anyhow::Error::msg)?;
    // If none were written, there is nothing to withdraw.
    let Some(manifest) = manifest else { return Ok(()) };
    let (inventory, pools) = discover_host(host, config, printer);
    let Drift { plan, .. } = find_drift(
        &directory.read_files()?,
        Some(&manifest),
        &inventory,
        &pools,
        config,
        InstalledFiles::read(host, config)?,
    )?;
    directory.apply(&plan)?;
    report(&plan, &path, printer);
    for name in plan.left_files().chain(plan.undecided_files()) {
        printer.warning(format_args!(
            "{} was not changed, and may offer drained devices; \"onload-ctk cdi generate\" says \
             why",
            path.join(name).display()
        ));
    }
    Ok(())
}

pub fn undrain(global: &GlobalArgs, args: &UndrainArgs, printer: &mut Printer) -> CommandResult {
    let (host, config) = open_host(global)?;
    let before = drain::read(&host)?;
    let targets = if args.all {
        before.iter().map(|entry| entry.target.clone()).collect()
    } else {
        targets::resolve_drained(&args.names, &before, || discover_host(&host, &config, printer))?
    };
    let is_json = args.format == ListFormat::Json;
    if is_json {
        let names: Vec<String> = targets.iter().map(ToString::to_string).collect();
        printer.print_json(&json!({
            "version": env!("CARGO_PKG_VERSION"),
            "undrained": names,
            "dry_run": args.dry_run,
        }))?;
    }
    if targets.is_empty() {
        let subject = if args.all {
            "nothing".to_owned()
        } else {
            format!("nothing of {}", args.names.join(", "))
        };
        printer.note(format_args!("{subject} is drained"));
        return Ok(ExitAnswer::Yes);
    }
    let names = format_targets(&targets);
    if args.dry_run {
        if !is_json {
            printer.print(format_args!("would undrain {names}\n"))?;
        }
        return Ok(ExitAnswer::Yes);
    }
    update_drain(&host, |drain| {
        for target in &targets {
            drain.remove(target);
        }
    })?;
    printer.note(format_args!("{names}: no longer drained"));
    for ended in targets.iter().filter(|target| target.name.is_none()) {
        let left = before.for_class(ended.class).map(|entry| &entry.target);
        for target in left.filter(|target| !targets.contains(target)) {
            let word = quote_for_shell(target.to_string());
            printer.note(format_args!(
                "{target} is still drained separately; run: onload-ctk undrain {word}"
            ));
        }
    }
    rewrite_specs(&host, &config, printer)?;
    Ok(ExitAnswer::Yes)
}
