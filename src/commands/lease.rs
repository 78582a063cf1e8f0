//! `lease`: who holds the devices that only so many containers may have.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use onload_core::claim_uid::ClaimUid;
use onload_core::class::Class;
use onload_core::device_id::DeviceId;
use onload_hooks::moves;
use onload_host::{drain, leases};
use onload_lease::drain::DrainList;
use onload_lease::tickets::short_id;
use onload_lease::{Holder, Lease, LeaseEntry, LeaseError, Leases, MoveRecord, SavedState};
use onload_sys::fs::lock::COMMAND_TIMEOUT;
use onload_sys::processes::{Cgroup, ProcessId};
use onload_sys::text::ErrorChain;
use serde_json::{Value, json};

use super::device_name::{complete_address, strip_vendor, suggest_device};
use super::pools::{
    HolderNames, PoolHolders, PoolView, print_pools, read_pools, shorten_engine_id,
};
use super::{open_host_of_incident, resolve_spec_dirs, scan};
use crate::cli::{FormatArgs, GlobalArgs, LeaseReleaseArgs, ListFormat};
use crate::exit::{CommandResult, ExitAnswer};
use crate::layout::format_table;
use crate::printer::{Printer, escape_controls};

fn format_device(device: &DeviceId) -> String {
    format!("{}={}", device.class, device.name)
}

pub fn list(global: &GlobalArgs, args: &FormatArgs, printer: &mut Printer) -> CommandResult {
    let (host, _) = open_host_of_incident(global, printer)?;
    let entries = leases::list(&host)?;
    let drain = drain::read(&host).unwrap_or_else(|error| {
        printer.warning(format_args!("could not determine what is drained: {error:#}"));
        DrainList::default()
    });
    let registry = scan(&resolve_spec_dirs(&host, &[])?, printer);
    let pools = read_pools(&registry, printer);
    let holders = PoolHolders::new(&entries, HolderNames::read(&host, &entries));
    let pools: Vec<PoolView<'_>> = pools.iter().map(|pool| PoolView::new(pool, &holders)).collect();
    match args.format {
        ListFormat::Table if entries.is_empty() => printer.note("no device is leased"),
        ListFormat::Table => {
            let header = ["DEVICE", "STATE", "CONTAINER", "SINCE", "PROCESS", "CGROUP", "TICKET"];
            let columns = printer.columns();
            printer.print(format_table(
                header,
                entries.iter().map(|entry| entry_row(entry, &drain, &holders.names)),
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
    for entry in &entries {
        let Err(reason) = &entry.lease else { continue };
        let device = format_device(&entry.device);
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

fn state_name(entry: &LeaseEntry) -> &'static str {
    match &entry.lease {
        _ if entry.has_ended() => "ended",
        _ if entry.is_returning() => "returning",
        Ok(Lease { holder: Holder::Reservation { .. }, .. }) => "reserved",
        Ok(_) => "held",
        Err(_) => "unknown",
    }
}

fn entry_row(entry: &LeaseEntry, drain: &DrainList, names: &HolderNames) -> [String; 7] {
    let device = format_device(&entry.device);
    let mut state = state_name(entry).to_owned();
    if is_drained(entry, drain) {
        state.push_str(", drained");
    }
    let lease = entry.lease.as_ref().ok();
    let (process, cgroup) = lease.map_or((None, None), holder_process);
    let cells = [
        lease.map(|lease| names.display_name(lease.container.as_str())),
        lease.map(|lease| format_age(lease.since)),
        process.map(|process| process.pid.to_string()),
        lease.zip(cgroup).map(|(lease, cgroup)| {
            let path = escape_controls(cgroup.path.to_string_lossy());
            shorten_engine_id(&path, lease.container.as_str())
        }),
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
        "slot": entry.number,
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

pub fn release(
    global: &GlobalArgs,
    args: &LeaseReleaseArgs,
    printer: &mut Printer,
) -> CommandResult {
    let name = &args.device;
    let (host, _) = open_host_of_incident(global, printer)?;
    let leases = leases::open(&host)?;
    let entries = leases.as_ref().map(Leases::list).transpose()?.unwrap_or_default();
    let read_error = || {
        let devices =
            entries.iter().map(|lease| (lease.device.class, lease.device.name.as_str(), None));
        let suggestion = suggest_device(name, devices);
        let example = suggestion.as_deref().unwrap_or("vfio=0000:81:10.0");
        anyhow!("reading device {name:?}: expected CLASS=NAME, for example {example}")
    };
    let (class, device_name) = strip_vendor(name).split_once('=').ok_or_else(read_error)?;
    let class: Class =
        class.parse().map_err(|error| anyhow!("reading device {name:?}: {error}"))?;
    let known = entries
        .iter()
        .filter(|lease| lease.device.class == class)
        .map(|lease| lease.device.name.as_str());
    let device_name = complete_address(device_name, known)?.unwrap_or(device_name);
    let device: DeviceId = format!("{class}:{device_name}").parse().map_err(|_| read_error())?;
    let is_leased = entries.iter().any(|lease| lease.device == device);
    let Some(mut leases) = leases.filter(|_| is_leased) else {
        printer
            .note(format_args!("{name} is not leased; \"onload-ctk lease list\" shows the leases"));
        return Ok(ExitAnswer::Yes);
    };
    if !args.force {
        bail!("releasing {name}: the lease ends with its container; use --force to release it now");
    }
    leases.timeout = COMMAND_TIMEOUT;
    match leases.release_all(&device) {
        Err(error @ LeaseError::InUse(_)) => {
            printer.error(error);
            Ok(ExitAnswer::No)
        }
        released => {
            released.with_context(|| format!("releasing {name}"))?;
            printer.note(format_args!("{name} is free"));
            Ok(ExitAnswer::Yes)
        }
    }
}

pub fn restore(global: &GlobalArgs, printer: &mut Printer) -> CommandResult {
    if global.host_root != Path::new("/") {
        bail!(
            "restoring devices of {:?}: devices can be moved only on the host itself; omit \
             --host-root",
            global.host_root
        );
    }
    let (host, _) = open_host_of_incident(global, printer)?;
    let restored = match leases::open(&host)? {
        Some(leases) => restore_until_stable(|| restore_once(&leases))?,
        None => Vec::new(),
    };
    if restored.is_empty() {
        printer.note("nothing to restore");
    }
    let mut answer = ExitAnswer::Yes;
    for (device, failure) in &restored {
        match failure {
            None => printer.note(format_args!("{} is back", format_device(device))),
            Some(reason) => {
                printer.error(format_args!("{}: {reason}", format_device(device)));
                answer = ExitAnswer::No;
            }
        }
    }
    Ok(answer)
}

type RestoreOutcome = (DeviceId, Option<String>);

/// Repeats while devices return: systemd does not start a running unit again, so a device that
/// returns during a pass would be missed. Reports each restored device, and the last error of the
/// others.
fn restore_until_stable(
    mut run_pass: impl FnMut() -> Result<Vec<RestoreOutcome>>,
) -> Result<Vec<RestoreOutcome>> {
    let mut outcomes = Vec::new();
    loop {
        let (returned, failed): (Vec<RestoreOutcome>, Vec<RestoreOutcome>) =
            run_pass()?.into_iter().partition(|(_, failure)| failure.is_none());
        if returned.is_empty() {
            outcomes.extend(failed);
            return Ok(outcomes);
        }
        outcomes.extend(returned);
    }
}

/// One look.
fn restore_once(leases: &Leases) -> Result<Vec<RestoreOutcome>> {
    let mut outcomes = Vec::new();
    for outcome in moves::restore(leases)? {
        let reason = outcome.result.err().map(|error| ErrorChain(&error).to_string());
        outcomes.push((outcome.device, reason));
    }
    Ok(outcomes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restored(name: &str, why: Option<&str>) -> RestoreOutcome {
        let device = format!("netdev:{name}").parse().unwrap();
        (device, why.map(str::to_owned))
    }

    fn looks(passes: Vec<Vec<RestoreOutcome>>) -> Result<Vec<RestoreOutcome>> {
        let mut passes = passes.into_iter();
        let results = restore_until_stable(|| Ok(passes.next().unwrap()))?;
        assert!(passes.next().is_none(), "looked too few times");
        Ok(results)
    }

    #[test]
    fn what_comes_back_while_another_one_is_restored_is_restored_too() {
        let results =
            looks(vec![vec![restored("ens1v0", None)], vec![restored("ens1v1", None)], vec![]]);
        let both = vec![restored("ens1v0", None), restored("ens1v1", None)];
        assert_eq!(results.unwrap(), both);
    }

    #[test]
    fn what_does_not_come_is_told_once_and_looked_for_again_only_when_another_one_came() {
        let away = || restored("ens1v1", Some("it is away"));
        let results = looks(vec![vec![away(), restored("ens1v0", None)], vec![away()]]);
        assert_eq!(results.unwrap(), vec![restored("ens1v0", None), away()]);
        assert_eq!(looks(vec![vec![away()]]).unwrap(), vec![away()]);
        assert!(looks(vec![vec![]]).unwrap().is_empty());
    }
}
