//! `lease restore`: brings interfaces and RDMA devices back that containers left, and makes them what they were.

use std::path::Path;

use anyhow::{Context, bail};
use onload_core::lease::{Device, Leases};
use onload_core::text::Chain;
use onload_hooks::netdev::{self, Identity};
use onload_hooks::rdma::{self, Devices};
use onload_host::leases;

use super::shown;
use crate::cli::{Global, LeaseRestore};
use crate::commands::open_host;
use crate::exit::Answer;
use crate::printer::Printer;

/// Runs `lease restore`.
///
/// # Errors
/// The leases cannot be read, or they are of another host.
pub fn run(global: &Global, _: &LeaseRestore, printer: &mut Printer) -> anyhow::Result<Answer> {
    if global.host_root != Path::new("/") {
        bail!(
            "restoring devices of {:?}: they can only be moved on the host itself; leave out --host-root",
            global.host_root
        );
    }
    let (host, _) = open_host(global)?;
    let restored = match leases::open(&host)? {
        Some(leases) => all(&leases)?,
        None => Vec::new(),
    };
    if restored.is_empty() {
        printer.note("nothing is to come back");
    }
    let mut answer = Answer::Yes;
    for (device, failed) in &restored {
        match failed {
            None => printer.note(format_args!("{} is back", shown(device))),
            Some(why) => {
                printer.error(format_args!("{}: {why}", shown(device)));
                answer = Answer::No;
            }
        }
    }
    Ok(answer)
}

/// Each device that was to come back, and why it did not. RDMA devices come first: one stands on an interface.
fn all(leases: &Leases) -> anyhow::Result<Vec<(Device, Option<String>)>> {
    let why = |error: &dyn std::error::Error| Chain(error).to_string();
    let devices = rdma::restore(leases, &Devices::default()).context("restoring RDMA devices")?;
    let devices = devices
        .into_iter()
        .map(|one| (one.device, one.result.err().map(|error| why(&error))));
    let interfaces =
        netdev::restore(leases, &Identity::default()).context("restoring interfaces")?;
    let interfaces = interfaces
        .into_iter()
        .map(|one| (one.device, one.result.err().map(|error| why(&error))));
    Ok(devices.chain(interfaces).collect())
}
