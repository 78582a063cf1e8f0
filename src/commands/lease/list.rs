//! `lease list`: who holds what.

use std::time::{Duration, SystemTime};

use onload_core::claim_uid::ClaimUid;
use onload_host::{drain, leases};
use onload_lease::drain::DrainList;
use onload_lease::tickets::short_id;
use onload_lease::{Holder, Lease, LeaseEntry, MoveRecord, SavedState};
use onload_sys::processes::{Cgroup, ProcessId};
use serde_json::{Value, json};

use super::format_device;
use crate::cli::{GlobalArgs, LeaseListArgs, ListFormat};
use crate::commands::pools::{PoolHolders, PoolView, print_pools, read_pools};
use crate::commands::{open_host_of_incident, resolve_spec_dirs, scan};
use crate::exit::{CommandResult, ExitAnswer};
use crate::layout::format_table;
use crate::printer::{Printer, escape_controls};

pub fn run(global: &GlobalArgs, args: &LeaseListArgs, printer: &mut Printer) -> CommandResult {
    let (host, _) = open_host_of_incident(global, printer)?;
    let entries = leases::list(&host)?;
    let drain = drain::read(&host).unwrap_or_else(|error| {
        printer.warning(format_args!("could not determine what is drained: {error:#}"));
        DrainList::default()
    });
    let registry = scan(&resolve_spec_dirs(&host, &[])?, printer);
    let (pools, holders) = (read_pools(&registry, printer), PoolHolders::new(&entries));
    let pools: Vec<PoolView<'_>> = pools.iter().map(|pool| PoolView::new(pool, &holders)).collect();
    match args.format {
        ListFormat::Table if entries.is_empty() => printer.note("no device is leased"),
        ListFormat::Table => {
            let header = ["DEVICE", "STATE", "CONTAINER", "SINCE", "PROCESS", "CGROUP", "TICKET"];
            let columns = printer.columns();
            printer.print(format_table(
                header,
                entries.iter().map(|entry| entry_row(entry, &drain)),
                columns,
            ))?;
        }
        ListFormat::Json => {
            let leases: Vec<Value> = entries.iter().map(|entry| to_json(entry, &drain)).collect();
            let pools: Vec<Value> = pools.iter().map(PoolView::to_json).collect();
            let object = json!({ "leases": leases, "pools": pools });
            printer.print_json(&object)?;
        }
    }
    if args.format == ListFormat::Table {
        let gap = if entries.is_empty() { "" } else { "\n" };
        print_pools(gap, &pools, printer)?;
    }
    for (device, reason) in unreadable_entries(&entries) {
        printer.warning(format_args!(
            "{device} counts as held, because its lease cannot be parsed ({reason}); \"onload-ctk \
             lease release {device} --force\" ends it"
        ));
    }
    for (device, notice) in entries.iter().filter_map(entry_warning) {
        printer.warning(format_args!("{device} {notice}"));
    }
    Ok(ExitAnswer::Yes)
}

fn entry_warning(entry: &LeaseEntry) -> Option<(String, String)> {
    let record = entry.lease.as_ref().ok()?.moved.as_ref()?;
    let notice = match (&record.left, unkept_settings(record)) {
        (Some(reason), _) => {
            format!("is back, but not restored: {reason}; run \"onload-ctk lease restore\"")
        }
        (None, []) => return None,
        (None, unkept) => {
            format!("cannot be fully restored: it has too much of {}", unkept.join(", of "))
        }
    };
    Some((format_device(&entry.device), notice))
}

fn unkept_settings(record: &MoveRecord) -> &[String] {
    match &record.saved {
        SavedState::Interface(saved) => {
            let queues = saved.queues.as_ref();
            queues.map(|queues| queues.unkept.as_slice()).unwrap_or_default()
        }
        SavedState::Rdma(_) | SavedState::Function(_) => &[],
    }
}

fn unreadable_entries(entries: &[LeaseEntry]) -> impl Iterator<Item = (String, &str)> {
    entries.iter().filter_map(|entry| match &entry.lease {
        Ok(_) => None,
        Err(reason) => Some((format_device(&entry.device), reason.as_str())),
    })
}

fn state_name(entry: &LeaseEntry) -> &'static str {
    match &entry.lease {
        _ if entry.has_ended => "ended",
        _ if entry.is_returning => "returning",
        Ok(Lease { holder: Holder::Reservation { .. }, .. }) => "reserved",
        Ok(_) => "held",
        Err(_) => "unknown",
    }
}

fn entry_row(entry: &LeaseEntry, drain: &DrainList) -> [String; 7] {
    let device = format_device(&entry.device);
    let mut state = state_name(entry).to_owned();
    if is_drained(entry, drain) {
        state.push_str(", drained");
    }
    let lease = entry.lease.as_ref().ok();
    let (process, cgroup) = lease.map_or((None, None), holder_process);
    let cells = [
        lease.map(|lease| lease.container.to_string()),
        lease.map(|lease| format_age(lease.since)),
        process.map(|process| process.pid.to_string()),
        cgroup.map(|cgroup| escape_controls(cgroup.path.to_string_lossy())),
        lease.and_then(short_ticket).map(str::to_owned),
    ];
    let [container, since, process, cgroup, ticket] =
        cells.map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
    [device, state, container, since, process, cgroup, ticket]
}

/// The process that holds it, with its cgroup.
fn holder_process(lease: &Lease) -> (Option<&ProcessId>, Option<&Cgroup>) {
    match &lease.holder {
        Holder::Init { process, cgroup } => (Some(process), cgroup.as_ref()),
        Holder::Reservation { .. } => (None, None),
    }
}

/// The beginning of the ticket that the container was started with: who knows all of it could start another one.
fn short_ticket(lease: &Lease) -> Option<&str> {
    lease.ticket.as_ref().map(short_id)
}

fn format_age(since: u64) -> String {
    let since = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(since));
    let passed = since.and_then(|since| SystemTime::now().duration_since(since).ok());
    let seconds = passed.map_or(0, |passed| passed.as_secs());
    let units = [(86_400, "d"), (3_600, "h"), (60, "min")];
    let unit = units.into_iter().find(|(size, _)| seconds >= *size);
    let (size, unit) = unit.unwrap_or((1, "s"));
    format!("{} {unit} ago", seconds / size)
}

fn is_drained(entry: &LeaseEntry, drain: &DrainList) -> bool {
    let device = &entry.device;
    drain.find(device.class, device.name.as_str()).is_some()
}

fn to_json(entry: &LeaseEntry, drain: &DrainList) -> Value {
    let mut object = json!({
        "device": format_device(&entry.device),
        "class": entry.device.class.as_str(),
        "name": entry.device.name.as_str(),
        "slot": entry.slot,
        "state": state_name(entry),
    });
    if is_drained(entry, drain) {
        object["drained"] = json!(true);
    }
    match &entry.lease {
        Ok(lease) => {
            let (process, cgroup) = holder_process(lease);
            object["container"] = json!(lease.container.as_str());
            object["bundle"] = json!(lease.bundle);
            object["pid"] = json!(process.map(|process| process.pid));
            object["cgroup"] = json!(cgroup.map(|cgroup| &cgroup.path));
            object["entry_point"] = json!(lease.entry_point);
            object["since"] = json!(lease.since);
            object["ticket"] = json!(short_ticket(lease));
            object["claim"] = json!(lease.claim.as_ref().map(ClaimUid::as_str));
            if let Some(record) = &lease.moved {
                object["not_restored"] = json!(record.left);
                object["not_kept"] = json!(unkept_settings(record));
                if let Some(vf) = record.saved.vf() {
                    object["vf"] = json!(vf);
                }
            }
        }
        Err(reason) => object["error"] = json!(reason),
    }
    object
}
