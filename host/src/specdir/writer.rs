//! Who writes a host's specifications: the package while its service runs each minute, else the daemon for Kubernetes,
//! where there is one. Two writers of two versions would undo each other's work at every change.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use onload_core::run_dir::{LOCKS, RUN_DIR};
use onload_sys::fs::lock::Lock;

use crate::host::Host;

/// The lock of the daemon that writes, in the directory of locks, as long as it runs.
pub const WRITER_LOCK: &str = "spec-writer";
/// The package's onload-cdi.service touches it at each run. It goes with the package, and at a boot.
pub const LAST_RUN: &str = "/run/onload-cdi/last-run";
/// Longer than from one run to the next: onload-cdi.timer waits a minute, and a run may take two.
const MAX_RUN_INTERVAL: Duration = Duration::from_secs(4 * 60);

/// Whether the package writes the specifications of a host. That changes when the package comes or goes, so ask before
/// each write.
pub fn is_package_writer(host: &Host) -> anyhow::Result<bool> {
    let last = host.modified(Path::new(LAST_RUN))?;
    // A clock that was set back makes a run of the future: it was lately.
    Ok(last.is_some_and(|last| last.elapsed().unwrap_or_default() < MAX_RUN_INTERVAL))
}

/// Whether the daemon for Kubernetes writes them now.
pub fn is_daemon_writer(host: &Host) -> anyhow::Result<bool> {
    let locks = Path::new(RUN_DIR).join(LOCKS);
    if host.entry(&locks.join(WRITER_LOCK))?.is_none() || is_package_writer(host)? {
        return Ok(false);
    }
    let path = host.outside_path(&locks);
    let Some(directory) = host.directory(&locks)? else {
        return Ok(false);
    };
    let lock = Lock::try_acquire(directory, &path, WRITER_LOCK);
    let lock = lock.context("asking who writes the specifications")?;
    Ok(lock.is_none())
}
