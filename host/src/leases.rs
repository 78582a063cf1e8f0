use std::path::Path;

use anyhow::{Context, anyhow};
use onload_lease::run_dir::{LEASES, RUN_DIR, RUN_DIR_MODE, RunDir, set_mode};
use onload_lease::{LeaseEntry, LeaseError, Leases};
use onload_sys::processes::Processes;

use crate::discover::unread::as_root;
use crate::host::Host;

/// Opens the leases of a host, which requires root. `None` if no container has used our devices since boot.
pub fn open(host: &Host) -> anyhow::Result<Option<Leases>> {
    let path = host.outside_path(Path::new(RUN_DIR));
    let processes = Processes::at_root(&host.outside_path(Path::new("/")));
    let run = RunDir::find(&path).with_context(|| format!("reading leases in {path:?}"))?;
    match run {
        Some(run) => match Leases::find(&run, processes) {
            Err(LeaseError::Denied(_)) => Err(not_permitted_error(&path.join(LEASES))),
            result => result.context("reading leases"),
        },
        None if path.exists() => Err(not_permitted_error(&path)),
        None => Ok(None),
    }
}

/// Like [`open`], but creates the directory if it is missing.
pub fn open_or_create(host: &Host) -> anyhow::Result<Leases> {
    let path = host.outside_path(Path::new(RUN_DIR));
    let directory = host.create_directory(Path::new(RUN_DIR))?;
    set_mode(&directory, RUN_DIR_MODE).with_context(|| format!("opening {}", path.display()))?;
    let processes = Processes::at_root(&host.outside_path(Path::new("/")));
    Ok(Leases::open(&RunDir::new(directory, &path), processes)?)
}

fn not_permitted_error(path: &Path) -> anyhow::Error {
    anyhow!("reading leases: {path:?} is readable only for root{}", as_root())
}

pub fn list(host: &Host) -> anyhow::Result<Vec<LeaseEntry>> {
    match open(host)? {
        Some(leases) => leases.list().context("reading leases"),
        None => Ok(Vec::new()),
    }
}

/// Combines the leases from before and after reading the host, each with whether it is still active. A device that
/// returned in between is only in the first list, and one that left only in the second.
pub(crate) fn compare(before: Vec<LeaseEntry>, now: Vec<LeaseEntry>) -> Vec<(LeaseEntry, bool)> {
    let mut ended = before;
    ended.retain(|entry| !now.iter().any(|current| current.device == entry.device));
    let now = now.into_iter().map(|entry| (entry, true));
    now.chain(ended.into_iter().map(|entry| (entry, false)))
        .filter(|(entry, _)| !entry.has_ended())
        .collect()
}
