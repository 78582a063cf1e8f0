//! `lease list`: who holds what.

use std::time::{Duration, SystemTime};

use onload_core::drain::DrainList;
use onload_core::lease::{ClaimUid, Holder, Lease, LeaseEntry, MoveRecord, SavedState};
use onload_core::ticket::short_id;
use onload_host::{drain, leases};
use onload_sys::processes::{Cgroup, ProcessId};
use serde_json::{Value, json};

use super::format_device;
use crate::cli::{GlobalArgs, LeaseListArgs, ListFormat};
use crate::commands::pools::{PoolHolders, PoolView, print_pools, read_pools};
use crate::commands::{open_host_of_incident, resolve_spec_dirs, scan};
use crate::exit::ExitAnswer;
use crate::layout::format_table;
use crate::printer::{Printer, escape_controls};

pub fn run(
    global: &GlobalArgs,
    args: &LeaseListArgs,
    printer: &mut Printer,
) -> anyhow::Result<ExitAnswer> {
    let (host, _) = open_host_of_incident(global, printer)?;
    let listed = leases::list(&host)?;
    let drain = drain::read(&host).unwrap_or_else(|error| {
        printer.warning(format_args!("what is drained is not known: {error:#}"));
        DrainList::default()
    });
    let registry = scan(&resolve_spec_dirs(&host, &[])?, printer);
    let (pools, holders) = (read_pools(&registry, printer), PoolHolders::new(&listed));
    let pools = pools.iter().map(|pool| PoolView::new(pool, &holders));
    let pools: Vec<PoolView<'_>> = pools.collect();
    match args.format {
        ListFormat::Table if listed.is_empty() => printer.note("no device is leased"),
        ListFormat::Table => {
            let header = ["DEVICE", "STATE", "CONTAINER", "SINCE", "PROCESS", "CGROUP", "TICKET"];
            let columns = printer.columns();
            printer.print(format_table(
                header,
                listed.iter().map(|one| entry_row(one, &drain)),
                columns,
            ))?;
        }
        ListFormat::Json => {
            let leases: Vec<Value> = listed.iter().map(|one| to_json(one, &drain)).collect();
            let pools: Vec<Value> = pools.iter().map(PoolView::to_json).collect();
            let object = json!({ "leases": leases, "pools": pools });
            printer.print_json(&object)?;
        }
    }
    if args.format == ListFormat::Table {
        let gap = if listed.is_empty() { "" } else { "\n" };
        print_pools(gap, &pools, printer)?;
    }
    for (device, why) in unreadable_entries(&listed) {
        printer.warning(format_args!(
            "{device} counts as held, since its lease cannot be understood ({why}); \"onload-ctk lease release {device} --force\" ends it"
        ));
    }
    for (device, notice) in listed.iter().filter_map(entry_warning) {
        printer.warning(format_args!("{device} {notice}"));
    }
    Ok(ExitAnswer::Yes)
}

fn entry_warning(listed: &LeaseEntry) -> Option<(String, String)> {
    let moved = listed.lease.as_ref().ok()?.moved.as_ref()?;
    let notice = match (&moved.left, unkept_settings(moved)) {
        (Some(left), _) => format!(
            "is back, and not as it was: {left}; \"onload-ctk lease restore\" tries again and says more"
        ),
        (None, []) => return None,
        (None, unkept) => format!(
            "will not be restored as a whole, since there is too much of {}",
            unkept.join(", of ")
        ),
    };
    Some((format_device(&listed.device), notice))
}

fn unkept_settings(moved: &MoveRecord) -> &[String] {
    match &moved.facts {
        SavedState::Interface(facts) => {
            let queues = facts.queues.as_ref();
            let unkept = queues.map(|queues| queues.unkept.as_slice());
            unkept.unwrap_or_default()
        }
        SavedState::Rdma(_) | SavedState::Function(_) => &[],
    }
}

fn unreadable_entries(listed: &[LeaseEntry]) -> impl Iterator<Item = (String, &str)> {
    listed.iter().filter_map(|each| match &each.lease {
        Ok(_) => None,
        Err(why) => Some((format_device(&each.device), why.as_str())),
    })
}

fn state_name(listed: &LeaseEntry) -> &'static str {
    match &listed.lease {
        _ if listed.is_over => "ended",
        _ if listed.is_returning => "returning",
        Ok(Lease { holder: Holder::Reservation { .. }, .. }) => "reserved",
        Ok(_) => "held",
        Err(_) => "unknown",
    }
}

fn entry_row(listed: &LeaseEntry, drain: &DrainList) -> [String; 7] {
    let device = format_device(&listed.device);
    let mut state = state_name(listed).to_owned();
    if is_drained(listed, drain) {
        state.push_str(", drained");
    }
    let lease = listed.lease.as_ref().ok();
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

fn is_drained(listed: &LeaseEntry, drain: &DrainList) -> bool {
    let device = &listed.device;
    drain.find(device.class, device.name.as_str()).is_some()
}

fn to_json(listed: &LeaseEntry, drain: &DrainList) -> Value {
    let mut object = json!({
        "device": format_device(&listed.device),
        "class": listed.device.class.as_str(),
        "name": listed.device.name.as_str(),
        "slot": listed.slot,
        "state": state_name(listed),
    });
    if is_drained(listed, drain) {
        object["drained"] = json!(true);
    }
    match &listed.lease {
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
            if let Some(moved) = &lease.moved {
                object["not_restored"] = json!(moved.left);
                object["not_kept"] = json!(unkept_settings(moved));
                if let Some(vf) = moved.facts.vf() {
                    object["vf"] = json!(vf);
                }
            }
        }
        Err(why) => object["error"] = json!(why),
    }
    object
}
