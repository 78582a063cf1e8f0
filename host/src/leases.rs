//! The leases of a host: who has which of its devices.

use std::io;
use std::path::{Path, PathBuf};

use onload_core::lease::{Device, LeaseError, Leases, Listed};
use onload_core::processes::Processes;
use onload_core::run_dir::{RUN_DIR, RunDir};

use crate::discover::unread::AS_ROOT;
use crate::host::Host;

/// Why leases are not known.
#[derive(Debug, thiserror::Error)]
pub enum UnknownLeases {
    /// The directory above them cannot be opened.
    #[error("reading leases in {path:?}")]
    Directory { path: PathBuf, source: io::Error },
    /// Only root may see them.
    #[error("reading leases: {0:?} is for root alone; {AS_ROOT}")]
    ForRoot(PathBuf),
    /// Their own directory cannot be opened.
    #[error("reading leases")]
    Leases(#[source] LeaseError),
}

/// Opens the leases of a host; none where it has had no container of ours since its boot.
///
/// # Errors
/// [`UnknownLeases`], as for everybody but root.
pub fn open(host: &Host) -> Result<Option<Leases>, UnknownLeases> {
    let path = host.outside_path(Path::new(RUN_DIR));
    let processes = Processes::at(&host.outside_path(Path::new("/")));
    let run = RunDir::find(&path).map_err(|error| UnknownLeases::Directory {
        path: path.clone(),
        source: error.into(),
    })?;
    match run {
        Some(run) => Leases::find(&run, processes).map_err(|error| match error {
            LeaseError::Directory { path, source, .. }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                UnknownLeases::ForRoot(path)
            }
            error => UnknownLeases::Leases(error),
        }),
        None if path.exists() => Err(UnknownLeases::ForRoot(path)),
        None => Ok(None),
    }
}

/// All leases of a host, those that are over too.
///
/// # Errors
/// As for [`open`].
pub fn list(host: &Host) -> Result<Vec<Listed>, UnknownLeases> {
    match open(host)? {
        Some(leases) => leases.list().map_err(UnknownLeases::Leases),
        None => Ok(Vec::new()),
    }
}

/// Leases from before and after a look at the host. What came back meanwhile is in the first list alone, and what went
/// meanwhile in the second.
#[derive(Clone, Debug, Default)]
pub(crate) struct Around {
    pub(crate) now: Vec<Listed>,
    /// Those that stood before, of devices of which no lease stands now.
    pub(crate) ended: Vec<Listed>,
}

impl Around {
    /// Lists the leases again.
    ///
    /// # Errors
    /// As for [`open`].
    pub(crate) fn after(before: Vec<Listed>, host: &Host) -> Result<Self, UnknownLeases> {
        Ok(Around::of(before, list(host)?))
    }

    pub(crate) fn of(before: Vec<Listed>, now: Vec<Listed>) -> Self {
        let stands = |device: &Device| now.iter().any(|listed| listed.device == *device);
        let ended = before.into_iter();
        let ended = ended.filter(|listed| !stands(&listed.device));
        Around {
            ended: ended.collect(),
            now,
        }
    }

    /// Each lease that is not over, with whether it stands.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&Listed, bool)> {
        let now = self.now.iter().map(|listed| (listed, true));
        let ended = self.ended.iter().map(|listed| (listed, false));
        now.chain(ended).filter(|(listed, _)| !listed.is_over)
    }
}
