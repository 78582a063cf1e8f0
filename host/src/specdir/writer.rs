//! Determines which program writes a host's specifications: the package's service while it runs each minute, or else
//! the Kubernetes daemon if there is one. Two writers of different versions would undo each other's changes.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use onload_lease::run_dir::{LOCKS, RUN_DIR};
use onload_sys::fs::lock::Lock;

use crate::host::Host;

/// The lock of the daemon that writes specifications, held while it runs.
pub const WRITER_LOCK: &str = "spec-writer";
/// A file that the package's onload-cdi.service touches at each run. It is removed with the package and at boot.
pub const LAST_RUN: &str = "/run/onload-cdi/last-run";
/// Longer than the time between two runs: onload-cdi.timer waits a minute, and a run may take two.
const MAX_RUN_INTERVAL: Duration = Duration::from_secs(4 * 60);

/// Returns whether the package writes the specifications of a host. This changes when the package is installed or
/// removed, so call it before each write.
pub fn is_package_writer(host: &Host) -> anyhow::Result<bool> {
    let last = host.modified(Path::new(LAST_RUN))?;
    // If the clock was set back, a run in the future counts as recent.
    Ok(last.is_some_and(|last| last.elapsed().unwrap_or_default() < MAX_RUN_INTERVAL))
}

/// Returns whether the Kubernetes daemon writes them now.
pub fn is_daemon_writer(host: &Host) -> anyhow::Result<bool> {
    let locks = Path::new(RUN_DIR).join(LOCKS);
    if host.entry(&locks.join(WRITER_LOCK))?.is_none() || is_package_writer(host)? {
        return Ok(false);
    }
    let path = host.outside_path(&locks);
    let Some(directory) = host.directory(&locks)? else {
        return Ok(false);
    };
    let lock = Lock::try_acquire(directory, &path, WRITER_LOCK)
        .context("reading which program writes the specifications")?;
    Ok(lock.is_none())
}
