//! Records which runtime created a container, for as long as the container lives: later commands for it must reach the
//! same runtime, even if the configuration has changed.
//!
//! Each container has one file. Its name consists of the container's id and the value of `--root`, since two engines may
//! use the same id.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process;
use std::time::{SystemTime, UNIX_EPOCH};

use onload_core::container_id::ContainerId;
use onload_core::versioned;
use onload_lease::run_dir::{RUN_DIR, open_private};
use onload_sys::error::{Context as _, Result, bail};
use onload_sys::fs::atomic::{is_temporary_name, temporary_name};
use onload_sys::fs::open::{may_exist, open_resolved};
use onload_sys::fs::trust::TrustedTree;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, ResolveFlags, fstat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::container_dir::open_run;
use super::container_record::read_bytes;
use super::creator::DEFAULT_ROOTS;
use super::listing::{list_entries, random_index};

/// The directory of the records in [`RUN_DIR`]; no container id contains that character.
pub const NAME: &str = "@runtimes";

const DEFAULT_ROOTED: [&str; 3] = ["runc", "crun", "youki"];

/// The record of the last runtime that the configuration named; no name of a container's record starts so.
pub const CONFIGURED: &str = "@configured";

/// The newest version of a record that this code understands.
const VERSION: u32 = 1;

/// Every second start on average searches for records of containers that are gone.
const SWEEP_ONE_IN: usize = 2;

/// Records that are examined then. Together with [`SWEEP_ONE_IN`], that is two for each record written, so among many
/// records at most half belong to containers that are gone.
const SWEEP_AT_MOST: usize = 4;

/// Seconds that a record stays although the runtime has no such container: it may be about to create it.
const SWEEP_AFTER: u64 = 60;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeRecord {
    pub runtime: PathBuf,
    /// Whether processes that are started in the container later are checked too.
    #[serde(rename = "guarded")]
    pub is_guarded: bool,
}

impl RuntimeRecord {
    pub fn parse(bytes: &[u8]) -> Result<RuntimeRecord> {
        let record: RuntimeRecord = versioned::parse(bytes, VERSION, "it is not a record")?;
        if record.runtime.is_relative() {
            bail!("it names no absolute path");
        }
        Ok(record)
    }
}

/// A container as identified by one engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContainerKey<'a> {
    pub id: &'a ContainerId,
    pub root: Option<&'a OsStr>,
}

/// Which runtime's state a container has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateOwner {
    /// runc keeps `state.json` (libcontainer/factory_linux.go).
    Runc,
    /// crun keeps `status` (libcrun/status.c).
    Crun,
    Other,
    /// There is no such container in `--root`.
    None,
    /// There was no `--root`, and no such container in the default directories.
    Unknown,
}

impl ContainerKey<'_> {
    fn file_name(self) -> String {
        format!("{}{}", self.id.as_str(), root_suffix(self.root))
    }

    fn directories(self) -> impl Iterator<Item = PathBuf> {
        state_directories(self.root, self.id.as_str())
    }

    /// Determines from its state which runtime keeps the container.
    pub(crate) fn state_owner(self) -> StateOwner {
        self.state_owner_in(self.directories())
    }

    fn state_owner_in(self, directories: impl IntoIterator<Item = PathBuf>) -> StateOwner {
        let mut found = self.root.map_or(StateOwner::Unknown, |_| StateOwner::None);
        for dir in directories {
            if statat(CWD, dir.join("state.json"), AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                return StateOwner::Runc;
            }
            if statat(CWD, dir.join("status"), AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                return StateOwner::Crun;
            }
            if may_exist(&dir) {
                found = StateOwner::Other;
            }
        }
        found
    }
}

/// The directories in which a runtime may keep a container.
pub(crate) fn state_directories(root: Option<&OsStr>, id: &str) -> impl Iterator<Item = PathBuf> {
    let given = root.map(PathBuf::from);
    let usual = match given {
        Some(_) => &[][..],
        None => &DEFAULT_ROOTS[..],
    };
    let all = given.into_iter().chain(usual.iter().map(PathBuf::from));
    let id = id.to_owned();
    all.map(move |root| root.join(&id))
}

/// The end of the names of records with the same `--root`.
fn root_suffix(root: Option<&OsStr>) -> String {
    let root = root.unwrap_or_default().to_string_lossy();
    format!("@{}", root.replace('%', "%25").replace('/', "%2F"))
}

#[derive(Debug)]
pub(crate) struct StoredRecord {
    pub record: RuntimeRecord,
    dir: OwnedFd,
    name: String,
}

/// Reads a container's record, in a directory that only root can write to. Fails if there is a record that cannot be
/// understood. The caller has to check the runtime.
pub(crate) fn read(trusted: &TrustedTree, named: ContainerKey<'_>) -> Result<Option<StoredRecord>> {
    let Ok(dir) = trusted.open_dir(&Path::new(RUN_DIR).join(NAME)) else {
        return Ok(None);
    };
    let (dir, name) = (OwnedFd::from(dir), named.file_name());
    Ok(read_in(&dir, &name)?.map(|record| StoredRecord { record, dir, name }))
}

fn read_in(dir: &OwnedFd, name: &str) -> Result<Option<RuntimeRecord>> {
    let failed = || format!("reading {:?}", Path::new(RUN_DIR).join(NAME).join(name));
    let bytes = read_bytes(dir, name).with_context(failed)?;
    bytes.map(|bytes| RuntimeRecord::parse(&bytes)).transpose().with_context(failed)
}

/// Replaces a record by rename. Unlike [`onload_sys::fs::atomic::TempFile`] it does not synchronise the file, since the
/// directory is empty after a boot, and uses a name that others can guess, since only root can write in the directory. A
/// killed process may have left a file of that name.
fn write_in(dir: &OwnedFd, name: &str, record: &RuntimeRecord) -> Result<()> {
    let failed = || format!("writing {:?}", Path::new(RUN_DIR).join(NAME).join(name));
    let bytes = versioned::to_bytes(VERSION, record).with_context(failed)?;
    let temporary = temporary_name(process::id().into());
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(dir, &temporary, flags, Mode::RUSR | Mode::WUSR);
    let written = file.map_err(io::Error::from).and_then(|file| File::from(file).write_all(&bytes));
    written.with_context(failed)?;
    renameat(dir, &temporary, dir, name).with_context(failed)
}

/// The runtime that [`StoredRecord::remember_configured`] remembers, as far as this boot goes. The caller has to
/// check the runtime.
pub(crate) fn read_configured(trusted: &TrustedTree) -> Option<PathBuf> {
    let dir = trusted.open_dir(&Path::new(RUN_DIR).join(NAME)).ok()?;
    Some(read_in(&dir.into(), CONFIGURED).ok()??.runtime)
}

impl StoredRecord {
    /// Removes the record: the container was not created.
    pub(crate) fn undo(&self) {
        // If it stays, a later sweep removes it.
        let _ = unlinkat(&self.dir, &self.name, AtFlags::empty());
    }

    /// Remembers the record's runtime as that of the configuration. A default runtime, used because the configuration
    /// file is missing for a moment, does not replace a remembered one, which may confine containers more.
    pub(crate) fn remember_configured(&self, is_named: bool) {
        let configured = RuntimeRecord { is_guarded: false, ..self.record.clone() };
        if let Ok(Some(remembered)) = read_in(&self.dir, CONFIGURED)
            && (!is_named || remembered == configured)
        {
            return;
        }
        // If that fails, a later start tries again.
        let _ = write_in(&self.dir, CONFIGURED, &configured);
    }

    /// Forgets a deleted container, unless its later processes are checked. If the runtime then does not delete it, they
    /// still have to be checked, and a sweep removes the record later.
    pub(crate) fn forget(&self) {
        if !self.record.is_guarded {
            self.undo();
        }
    }
}

/// Records the runtime of a container that is about to be created, and removes a few records of containers that are gone.
/// If a container with that name lives, its record stays and `None` is returned: the runtime will refuse the new one.
/// Without a record, the container starts all the same unless it is guarded.
pub(crate) fn write(
    trusted: &TrustedTree,
    named: ContainerKey<'_>,
    record: RuntimeRecord,
) -> Result<Option<StoredRecord>> {
    let (dir, name) = (open_or_create(trusted)?, named.file_name());
    let held = read_in(&dir, &name);
    if !matches!(held, Ok(None)) && named.directories().any(|state| may_exist(&state)) {
        if held? != Some(record) {
            bail!("a container with this name was created otherwise");
        }
        return Ok(None);
    }
    write_in(&dir, &name, &record)?;
    if random_index().is_multiple_of(SWEEP_ONE_IN) {
        remove_stale(&dir, named);
    }
    Ok(Some(StoredRecord { record, dir, name }))
}

fn open_or_create(trusted: &TrustedTree) -> Result<OwnedFd> {
    let opened = match open() {
        Err(Errno::NOENT) => open_private(open_run(trusted)?, NAME),
        opened => opened,
    };
    opened.with_context(|| format!("opening {:?}", Path::new(RUN_DIR).join(NAME)))
}

/// Opens the directory to write in it, by a single system call instead of one for each parent directory. Nothing is read
/// from it, and no link is followed.
fn open() -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let path = Path::new(RUN_DIR).join(NAME);
    let dir = open_resolved(CWD, path, flags, ResolveFlags::NO_SYMLINKS)?;
    let stat = fstat(&dir)?;
    if stat.st_uid != 0 || stat.st_mode & 0o077 != 0 {
        return Err(Errno::PERM);
    }
    Ok(dir)
}

/// Removes some records of containers that the runtime with the same `--root` no longer has. A runtime that ends a
/// container itself (`run`), or is killed, is never asked to delete it.
fn remove_stale(dir: &OwnedFd, own: ContainerKey<'_>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let suffix = root_suffix(own.root);
    let mut names = list_entries(dir);
    names.retain(|name| name.ends_with(&suffix) || is_temporary_name(name.as_ref()));
    // The starting point is random, so that living containers do not hide those that are gone.
    let first = random_index().checked_rem(names.len()).unwrap_or(0);
    for name in names.iter().cycle().skip(first).take(names.len().min(SWEEP_AT_MOST)) {
        let id = name.strip_suffix(&suffix);
        if id != Some(own.id.as_str()) && is_stale(dir, name, id, own.root, now) {
            // If it stays, a later sweep tries again.
            let _ = unlinkat(dir, name.as_str(), AtFlags::empty());
        }
    }
}

/// `id` is `None` for a temporary file, which a killed process left behind.
fn is_stale(dir: &OwnedFd, name: &str, id: Option<&str>, root: Option<&OsStr>, now: u64) -> bool {
    let made = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
    let is_old = made.is_ok_and(|stat| {
        let made = u64::try_from(stat.st_mtime).unwrap_or_default();
        now.saturating_sub(made) >= SWEEP_AFTER
    });
    is_old
        && id.is_none_or(|id| {
            !state_directories(root, id).any(|state| may_exist(&state))
                && (root.is_some() || has_default_root(dir, name))
        })
}

/// Whether a record is for a runtime that is known to keep its containers in a default directory.
fn has_default_root(dir: &OwnedFd, name: &str) -> bool {
    let Ok(Some(record)) = read_in(dir, name) else {
        return false;
    };
    let runtime = record.runtime.file_name().unwrap_or_default();
    DEFAULT_ROOTED.iter().any(|known| runtime == *known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_other_versions_and_relative_paths() {
        let accepted = br#"{"version":1,"runtime":"/usr/bin/runc","guarded":true}"#;
        let record = RuntimeRecord { runtime: "/usr/bin/runc".into(), is_guarded: true };
        assert_eq!(RuntimeRecord::parse(accepted).unwrap(), record);
        for rejected in [
            "",
            "{}",
            r#"{"version":2,"runtime":"/usr/bin/runc","guarded":true}"#,
            r#"{"version":1,"runtime":"runc","guarded":true}"#,
            r#"{"version":1,"runtime":"/usr/bin/runc"}"#,
        ] {
            assert!(RuntimeRecord::parse(rejected.as_bytes()).is_err(), "{rejected}");
        }
    }

    #[test]
    fn names_records_of_one_id_by_root() {
        let id: ContainerId = "c1".parse().unwrap();
        let name = |root: Option<&'static str>| {
            ContainerKey { id: &id, root: root.map(OsStr::new) }.file_name()
        };
        assert_eq!(name(None), "c1@");
        assert_eq!(name(Some("/run/a")), "c1@%2Frun%2Fa");
        assert_ne!(name(Some("/run/a")), name(Some("%2Frun/a")));
    }

    #[test]
    fn the_state_of_a_container_names_its_runtime() {
        let root = tempfile::tempdir().unwrap();
        let id: ContainerId = "c1".parse().unwrap();
        let key = ContainerKey { id: &id, root: Some(root.path().as_os_str()) };
        let state = root.path().join("c1");
        assert_eq!(key.state_owner(), StateOwner::None);
        let without_root = ContainerKey { root: None, ..key };
        assert_eq!(without_root.state_owner_in([state.clone()]), StateOwner::Unknown);
        std::fs::create_dir(&state).unwrap();
        assert_eq!(key.state_owner(), StateOwner::Other);
        std::fs::write(state.join("status"), "").unwrap();
        assert_eq!(key.state_owner(), StateOwner::Crun);
        std::fs::remove_file(state.join("status")).unwrap();
        std::fs::write(state.join("state.json"), "").unwrap();
        assert_eq!(key.state_owner(), StateOwner::Runc);
    }
}
