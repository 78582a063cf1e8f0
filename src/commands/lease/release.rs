//! `lease release`: ends a lease at the operator's word.

use anyhow::{Context, anyhow, bail};
use onload_core::device_id::DeviceId;
use onload_host::leases;
use onload_lease::{LeaseError, Leases};
use onload_sys::fs::lock::COMMAND_TIMEOUT;

use crate::cli::{GlobalArgs, LeaseReleaseArgs};
use crate::commands::device_name::{complete_address, strip_vendor};
use crate::commands::open_host_of_incident;
use crate::exit::{CommandResult, ExitAnswer};
use crate::printer::Printer;

pub fn run(global: &GlobalArgs, args: &LeaseReleaseArgs, printer: &mut Printer) -> CommandResult {
    let name = &args.device;
    let read_error =
        || anyhow!("reading device {name:?}: expected CLASS=NAME, for example vfio=0000:81:10.0");
    let (class, device_name) = strip_vendor(name).split_once('=').ok_or_else(read_error)?;
    let (host, _) = open_host_of_incident(global, printer)?;
    let leases = leases::open(&host)?;
    let entries = leases.as_ref().map(Leases::list).transpose()?.unwrap_or_default();
    let known = entries
        .iter()
        .filter(|lease| lease.device.class.as_str() == class)
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
