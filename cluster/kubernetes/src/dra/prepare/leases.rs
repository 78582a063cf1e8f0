//! Who else has what a claim is to have.

use std::path::Path;

use anyhow::{Context, Error, Result};
use onload_core::lease::{ClaimUid, Leases};
use onload_core::run_dir::{RUN_DIR, RunDir};
use onload_sys::processes::Processes;

use super::own_spec::Leased;

/// Refuses what others than a claim have: its containers would not start. They lease it when they do.
pub(crate) fn refuse_held(host_root: &Path, leased: &Leased, uid: &ClaimUid) -> Result<()> {
    let reading = || format!("reading who has {}", leased.device);
    let run = host_root.join(RUN_DIR.trim_start_matches('/'));
    // Without it there has been no lease since the boot.
    let Some(run) = RunDir::find(&run).with_context(reading)? else {
        return Ok(());
    };
    let leases = Leases::find(&run, Processes::at(host_root));
    let Some(leases) = leases.with_context(reading)? else {
        return Ok(());
    };
    let names = [leased.device.clone()];
    let held = leases.held_beside(&names, leased.most, uid);
    match held.with_context(reading)? {
        None => Ok(()),
        Some(held) => Err(Error::new(held).context(leased.device.to_string())),
    }
}
