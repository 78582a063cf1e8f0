//! The leases of a host, as commands read them.

use std::path::Path;

use anyhow::{Context, bail};
use onload_core::lease::Leases;
use onload_core::processes::Processes;
use onload_core::run_dir::{RUN_DIR, RunDir};
use onload_host::host::Host;

use super::AS_ROOT;

/// The leases of a host; none where it has had no container of ours since its boot.
///
/// # Errors
/// They cannot be read, as by everybody but root.
pub(super) fn open(host: &Host) -> anyhow::Result<Option<Leases>> {
    let path = host.outside_path(Path::new(RUN_DIR));
    let processes = match host.is_running() {
        true => Processes::default(),
        false => Processes::at(&host.outside_path(Path::new("/"))),
    };
    let run = RunDir::find(&path).with_context(|| format!("opening {}", path.display()))?;
    if run.is_none() && path.exists() {
        bail!(
            "reading leases: {} is for root alone; {AS_ROOT}",
            path.display()
        );
    }
    let leases = run.map(|run| Leases::find(&run, processes)).transpose();
    Ok(leases
        .with_context(|| format!("reading leases; {AS_ROOT}"))?
        .flatten())
}
