//! `drain`: what nobody new gets, and who still has it.

mod holders;
pub(super) mod specs;
pub(super) mod targets;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use onload_core::config::Config;
use onload_core::drain::{DrainEntry, DrainList, DrainTarget, MAX_REASON};
use onload_core::timestamp;
use onload_host::host::Host;
use onload_host::pools::discover_with_pools;
use onload_host::{drain, leases};
use onload_sys::fs::lock::COMMAND_PATIENCE;
use onload_sys::text::{ShortList, format_count};
use serde_json::{Value, json};

use super::interrupt::Interrupt;
use super::{discover_host, open_host};
use crate::cli::{self, GlobalArgs, ListFormat};
use crate::exit::ExitAnswer;
use crate::layout::format_table;
use crate::printer::{Printer, escape_controls};
use holders::{DrainHolder, HolderSearch};

/// Between two looks at who holds what.
const PAUSE: Duration = Duration::from_millis(500);

pub fn run(
    global: &GlobalArgs,
    args: &cli::DrainArgs,
    printer: &mut Printer,
) -> anyhow::Result<ExitAnswer> {
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
    let entries = targets.iter().map(|target| new_entry(target, args, &host));
    let entries: Vec<DrainEntry> = entries.collect::<anyhow::Result<_>>()?;
    let now = if args.dry_run || !is_asked {
        let mut now = before;
        add(&mut now, entries);
        now
    } else {
        let now = update_drain(&host, |drain| add(drain, entries))?;
        printer.note(format_args!("drained {}", format_targets(&targets)));
        specs::make(&host, &config, printer)?;
        now
    };
    let mut shown = DrainList::default();
    let is_shown = |one: &&DrainEntry| !is_asked || targets.contains(&one.target);
    let shown_entries = now.iter().filter(is_shown).cloned();
    shown_entries.for_each(|entry| shown.add(entry));
    let holders = remaining_holders(&host, &config, &shown, args, printer)?;
    match args.format {
        ListFormat::Json => printer.print_json(&to_json(&shown, &holders))?,
        ListFormat::Table => print(&shown, &holders, printer)?,
    }
    Ok(match args.dry_run || holders.is_empty() {
        true => ExitAnswer::Yes,
        false => ExitAnswer::No,
    })
}

fn check(reason: Option<&str>) -> anyhow::Result<()> {
    let Some(reason) = reason else { return Ok(()) };
    if reason.trim().is_empty()
        || reason.chars().count() > MAX_REASON
        || reason.contains(char::is_control)
    {
        bail!(
            "reading --reason: want one line of up to {MAX_REASON} characters, which everybody is told who asks for the device"
        );
    }
    Ok(())
}

fn new_entry(
    target: &DrainTarget,
    args: &cli::DrainArgs,
    host: &Host,
) -> anyhow::Result<DrainEntry> {
    let boot = args.until_reboot.then(|| drain::boot_id(host)).transpose()?;
    Ok(DrainEntry {
        target: target.clone(),
        describe: timestamp::now(),
        reason: args.reason.clone(),
        boot,
    })
}

/// What is drained already stays so since when it was; the rest is as it was said last.
fn add(drain: &mut DrainList, entries: Vec<DrainEntry>) {
    for mut entry in entries {
        if let Some(before) = drain.get(&entry.target) {
            entry.describe = before.describe;
            entry.reason = entry.reason.or_else(|| before.reason.clone());
        }
        drain.add(entry);
    }
}

/// Changes the file while no container can lease anything: whoever was faster has its lease, and is seen to hold it.
pub(super) fn update_drain(
    host: &Host,
    change: impl FnOnce(&mut DrainList),
) -> anyhow::Result<DrainList> {
    let mut leases = leases::open_or_create(host)?;
    leases.patience = COMMAND_PATIENCE;
    let lock = leases.lock();
    let _lock = lock.context("keeping containers from leasing meanwhile")?;
    let mut now = drain::read(host)?;
    change(&mut now);
    drain::write(host, &now)?;
    Ok(now)
}

/// Who holds what, when that is nobody or it has been waited for long enough.
fn remaining_holders(
    host: &Host,
    config: &Config,
    shown: &DrainList,
    args: &cli::DrainArgs,
    printer: &mut Printer,
) -> anyhow::Result<Vec<DrainHolder>> {
    if shown.is_empty() {
        return Ok(Vec::new());
    }
    let (inventory, _) = discover_with_pools(host, config);
    let searched = HolderSearch::new(host, &inventory, shown);
    let mut holders = searched.find_holders(printer)?;
    if !args.wait || args.dry_run || holders.is_empty() {
        return Ok(holders);
    }
    let stop = Interrupt::watch()?;
    let until = args.timeout.map(Duration::from_secs);
    let until = until.and_then(|timeout| Instant::now().checked_add(timeout));
    print_progress(&[], &holders, printer);
    while !holders.is_empty() && until.is_none_or(|until| Instant::now() < until) {
        thread::sleep(PAUSE);
        stop.refuse().context(
            "waiting for containers; what is drained stays drained, and \"onload-ctk drain\" shows it",
        )?;
        let now = searched.find_holders(printer)?;
        print_progress(&holders, &now, printer);
        holders = now;
    }
    if !holders.is_empty() {
        printer.note("they did not end in time; what is drained stays drained");
    }
    Ok(holders)
}

/// Who is gone, and who is waited for from now on.
fn print_progress(before: &[DrainHolder], now: &[DrainHolder], printer: &mut Printer) {
    let is_in =
        |list: &[DrainHolder], one: &DrainHolder| list.iter().any(|other| other.id == one.id);
    for holder in before.iter().filter(|one| !is_in(now, one)) {
        let left = format_count(now.len(), "container is", "containers are");
        printer.note(format_args!("{holder} is gone; {left} left"));
    }
    for holder in now.iter().filter(|one| !is_in(before, one)) {
        printer.note(format_args!("waiting for {holder}"));
    }
}

pub(super) fn format_targets(targets: &[DrainTarget]) -> String {
    let names: Vec<String> = targets.iter().map(ToString::to_string).collect();
    ShortList(&names).to_string()
}

fn print(shown: &DrainList, holders: &[DrainHolder], printer: &mut Printer) -> anyhow::Result<()> {
    if shown.is_empty() {
        printer.note("nothing is drained");
        return Ok(());
    }
    let columns = printer.columns();
    let rows = shown.iter().map(|one| {
        let until = if one.boot.is_some() { "reboot" } else { "-" };
        let reason = one.reason.as_deref().unwrap_or("-");
        [
            escape_controls(&one.target),
            timestamp::format_rfc3339(one.describe),
            until.to_owned(),
            escape_controls(reason),
        ]
    });
    let header = ["DRAINED", "SINCE", "UNTIL", "REASON"];
    printer.print(format_table(header, rows, columns))?;
    if holders.is_empty() {
        printer.note("no container holds any of it");
        return Ok(());
    }
    let rows = holders.iter().map(|holder| {
        [
            escape_controls(holder.display_name()),
            holder.engine.to_owned(),
            escape_controls(match &holder.unknown {
                Some(why) => format!("not known: {why}"),
                None => holder.devices.join(", "),
            }),
        ]
    });
    let header = ["HELD BY", "ENGINE", "DEVICES"];
    printer.print("\n")?;
    printer.print(format_table(header, rows, columns))?;
    Ok(())
}

fn to_json(shown: &DrainList, holders: &[DrainHolder]) -> Value {
    let drained = shown.iter().map(|one| {
        json!({
            "device": one.target.to_string(),
            "class": one.target.class().as_str(),
            "name": one.target.name(),
            "since": one.describe,
            "reason": one.reason,
            "until_reboot": one.boot.is_some(),
        })
    });
    let drained: Vec<Value> = drained.collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "drained": drained,
        "holders": holders,
    })
}
