//! `drain`: what nobody new gets, and who still has it.

mod holders;
pub(super) mod specs;
pub(super) mod words;

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
use super::{look, open_host};
use crate::cli::{self, Global, Listing};
use crate::exit::Answer;
use crate::layout::table;
use crate::printer::{Printer, harmless};
use holders::{Holder, Searched};

/// Between two looks at who holds what.
const PAUSE: Duration = Duration::from_millis(500);

pub fn run(global: &Global, args: &cli::Drain, printer: &mut Printer) -> anyhow::Result<Answer> {
    check(args.reason.as_deref())?;
    let (host, config) = open_host(global)?;
    let before = drain::read(&host)?;
    let targets = if args.all {
        words::all()
    } else {
        let (inventory, pools) = look(&host, &config, printer);
        words::targets(&args.names, &inventory, &pools, printer)?
    };
    let is_asked = !targets.is_empty();
    let entries = targets.iter().map(|target| drained(target, args, &host));
    let entries: Vec<DrainEntry> = entries.collect::<anyhow::Result<_>>()?;
    let now = if args.dry_run || !is_asked {
        let mut now = before;
        add(&mut now, entries);
        now
    } else {
        let now = change(&host, |drain| add(drain, entries))?;
        printer.note(format_args!("drained {}", names(&targets)));
        specs::make(&host, &config, printer)?;
        now
    };
    let mut shown = DrainList::default();
    let is_shown = |one: &&DrainEntry| !is_asked || targets.contains(&one.target);
    let shown_entries = now.iter().filter(is_shown).cloned();
    shown_entries.for_each(|entry| shown.add(entry));
    let holders = held(&host, &config, &shown, args, printer)?;
    match args.format {
        Listing::Json => printer.print_json(&object(&shown, &holders))?,
        Listing::Table => print(&shown, &holders, printer)?,
    }
    Ok(match args.dry_run || holders.is_empty() {
        true => Answer::Yes,
        false => Answer::No,
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

fn drained(target: &DrainTarget, args: &cli::Drain, host: &Host) -> anyhow::Result<DrainEntry> {
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
pub(super) fn change(
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
fn held(
    host: &Host,
    config: &Config,
    shown: &DrainList,
    args: &cli::Drain,
    printer: &mut Printer,
) -> anyhow::Result<Vec<Holder>> {
    if shown.is_empty() {
        return Ok(Vec::new());
    }
    let (inventory, _) = discover_with_pools(host, config);
    let searched = Searched::new(host, &inventory, shown);
    let mut holders = searched.holders(printer)?;
    if !args.wait || args.dry_run || holders.is_empty() {
        return Ok(holders);
    }
    let stop = Interrupt::watch()?;
    let until = args.timeout.map(Duration::from_secs);
    let until = until.and_then(|timeout| Instant::now().checked_add(timeout));
    tell(&[], &holders, printer);
    while !holders.is_empty() && until.is_none_or(|until| Instant::now() < until) {
        thread::sleep(PAUSE);
        stop.refuse().context(
            "waiting for containers; what is drained stays drained, and \"onload-ctk drain\" shows it",
        )?;
        let now = searched.holders(printer)?;
        tell(&holders, &now, printer);
        holders = now;
    }
    if !holders.is_empty() {
        printer.note("they did not end in time; what is drained stays drained");
    }
    Ok(holders)
}

/// Who is gone, and who is waited for from now on.
fn tell(before: &[Holder], now: &[Holder], printer: &mut Printer) {
    let is_in = |list: &[Holder], one: &Holder| list.iter().any(|other| other.id == one.id);
    for holder in before.iter().filter(|one| !is_in(now, one)) {
        let left = format_count(now.len(), "container is", "containers are");
        printer.note(format_args!("{holder} is gone; {left} left"));
    }
    for holder in now.iter().filter(|one| !is_in(before, one)) {
        printer.note(format_args!("waiting for {holder}"));
    }
}

pub(super) fn names(targets: &[DrainTarget]) -> String {
    let names: Vec<String> = targets.iter().map(ToString::to_string).collect();
    ShortList(&names).to_string()
}

fn print(shown: &DrainList, holders: &[Holder], printer: &mut Printer) -> anyhow::Result<()> {
    if shown.is_empty() {
        printer.note("nothing is drained");
        return Ok(());
    }
    let columns = printer.columns();
    let rows = shown.iter().map(|one| {
        let until = if one.boot.is_some() { "reboot" } else { "-" };
        let reason = one.reason.as_deref().unwrap_or("-");
        [
            harmless(&one.target),
            timestamp::format_rfc3339(one.describe),
            until.to_owned(),
            harmless(reason),
        ]
    });
    let header = ["DRAINED", "SINCE", "UNTIL", "REASON"];
    printer.print(table(header, rows, columns))?;
    if holders.is_empty() {
        printer.note("no container holds any of it");
        return Ok(());
    }
    let rows = holders.iter().map(|holder| {
        [
            harmless(holder.called()),
            holder.engine.to_owned(),
            harmless(match &holder.unknown {
                Some(why) => format!("not known: {why}"),
                None => holder.devices.join(", "),
            }),
        ]
    });
    let header = ["HELD BY", "ENGINE", "DEVICES"];
    printer.print("\n")?;
    printer.print(table(header, rows, columns))?;
    Ok(())
}

fn object(shown: &DrainList, holders: &[Holder]) -> Value {
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
