//! Records which runtime created a container, for as long as the container lives: later commands for it must reach the
//! same runtime, even if the configuration has changed.
//!
//! A record is a symbolic link, created by one system call and read by another; nothing ever follows it. Its target begins
//! with the version of the format: `1:PATH`, or `1:guarded:PATH` for a container whose later processes are checked too.
//! Its name consists of the container's id and the value of `--root`, since two engines may use the same id.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use onload_core::container_id::ContainerId;
use onload_lease::run_dir::{PRIVATE_MODE, RUN_DIR, RUN_DIR_MODE, make_dir};
use onload_sys::fs::list::each_name;
use onload_sys::fs::open::{may_exist, open_resolved};
use onload_sys::fs::trust::TrustedTree;
use rustix::fs::{
    AtFlags, CWD, OFlags, ResolveFlags, fstat, readlinkat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

/// The directory of the records in [`RUN_DIR`]; no container id contains that character.
pub const NAME: &str = "@runtimes";

/// The directories in which runc, crun and youki keep their containers without `--root`. The last one is crun's with
/// root's XDG_RUNTIME_DIR.
pub(crate) const DEFAULT_ROOTS: [&str; 4] =
    ["/run/runc", "/run/crun", "/run/youki", "/run/user/0/crun"];

const DEFAULT_ROOTED: [&str; 3] = ["runc", "crun", "youki"];

const PLAIN: &[u8] = b"1:";
const GUARDED: &[u8] = b"1:guarded:";
/// The rest is not an absolute path, so that no version mistakes it for a container's record.
const CONFIGURED: &[u8] = b"1:configured:";

/// The name of the link to the runtime of the configuration; no name of a container's record ends so.
const CONFIGURED_NAME: &str = "@configured";

/// Bytes of an id in a record's name: a file name has at most 255, and the rest encodes `--root`.
const MAX_ID_BYTES: usize = 200;

/// Every container whose ID has a hash that is a multiple of this searches for records of containers that are gone.
const SWEEP_ONE_IN: u64 = 2;

/// Records that are examined then. Together with [`SWEEP_ONE_IN`], that is two for each record written, so among many
/// records at most half belong to containers that are gone.
const SWEEP_AT_MOST: usize = 4;

/// Seconds that a record stays although the runtime has no such container: it may be about to create it.
const SWEEP_AFTER: u64 = 60;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeRecord {
    pub runtime: PathBuf,
    /// Whether processes that are started in the container later are checked too.
    pub is_guarded: bool,
}

impl RuntimeRecord {
    /// Parses the target of a link. A path that is not absolute, or a format of another version, is not a record.
    #[must_use]
    pub fn parse(target: &[u8]) -> Option<RuntimeRecord> {
        let (path, is_guarded) = match target.strip_prefix(GUARDED) {
            Some(path) => (path, true),
            None => (target.strip_prefix(PLAIN)?, false),
        };
        path.starts_with(b"/")
            .then(|| RuntimeRecord { runtime: PathBuf::from(OsStr::from_bytes(path)), is_guarded })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let prefix = if self.is_guarded { GUARDED } else { PLAIN };
        [prefix, self.runtime.as_os_str().as_bytes()].concat()
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
    fn file_name(self) -> Option<String> {
        let id = self.id.as_str();
        (id.len() <= MAX_ID_BYTES).then(|| format!("{id}{}", root_suffix(self.root)))
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

fn root_suffix(root: Option<&OsStr>) -> String {
    format!("@{:016x}", hash(root.map_or(b"", OsStr::as_bytes)))
}

/// FNV-1a (RFC 9923): enough for names that an attacker cannot choose freely.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A number that differs from one id to the next, even if they merely count up: these bits depend on the last character as
/// much as on the others.
fn hash_bits(id: &ContainerId) -> u64 {
    hash(id.as_str().as_bytes()) >> 41
}

#[derive(Debug)]
pub(crate) struct StoredRecord {
    pub record: RuntimeRecord,
    dir: OwnedFd,
    name: String,
}

/// Reads a container's record, in a directory that only root can write to. The caller has to check the runtime.
pub(crate) fn read(trusted: &TrustedTree, named: ContainerKey<'_>) -> Option<StoredRecord> {
    let dir = trusted.open_dir(&Path::new(RUN_DIR).join(NAME)).ok()?;
    let dir = OwnedFd::from(dir);
    let name = named.file_name()?;
    let target = readlinkat(&dir, &name, Vec::with_capacity(64)).ok()?;
    let record = RuntimeRecord::parse(target.as_bytes())?;
    Some(StoredRecord { record, dir, name })
}

/// The runtime that [`StoredRecord::remember_configured`] remembers, as far as this boot goes. The caller has to
/// check the runtime.
pub(crate) fn read_configured(trusted: &TrustedTree) -> Option<PathBuf> {
    let dir = trusted.open_dir(&Path::new(RUN_DIR).join(NAME)).ok()?;
    let target = readlinkat(&dir, CONFIGURED_NAME, Vec::with_capacity(128)).ok()?;
    let path = target.as_bytes().strip_prefix(CONFIGURED)?;
    path.starts_with(b"/").then(|| PathBuf::from(OsStr::from_bytes(path)))
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
        let path = self.record.runtime.as_os_str().as_bytes();
        let target = [CONFIGURED, path].concat();
        let held = readlinkat(&self.dir, CONFIGURED_NAME, Vec::with_capacity(128));
        if held.is_ok_and(|held| !is_named || held.as_bytes() == target) {
            return;
        }
        // If that fails, a later start tries again.
        let _ = unlinkat(&self.dir, CONFIGURED_NAME, AtFlags::empty());
        let _ = symlinkat(OsStr::from_bytes(&target), &self.dir, CONFIGURED_NAME);
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
) -> Result<Option<StoredRecord>, Errno> {
    let name = named.file_name().ok_or(Errno::NAMETOOLONG)?;
    let dir = match open() {
        Err(Errno::NOENT) => {
            create_state_dir(trusted)?;
            open()?
        }
        found => found?,
    };
    let target = record.to_bytes();
    match symlinkat(OsStr::from_bytes(&target), &dir, &name) {
        Err(Errno::EXIST) if named.directories().any(|state| may_exist(&state)) => {
            let held = readlinkat(&dir, &name, Vec::new())?;
            let is_same = held.as_bytes() == target;
            return is_same.then_some(None).ok_or(Errno::EXIST);
        }
        Err(Errno::EXIST) => {
            // Created again, so that its time is that of this start.
            unlinkat(&dir, &name, AtFlags::empty())?;
            symlinkat(OsStr::from_bytes(&target), &dir, &name)?;
        }
        made => made?,
    }
    if hash_bits(named.id).is_multiple_of(SWEEP_ONE_IN) {
        remove_stale(&dir, named);
    }
    Ok(Some(StoredRecord { record, dir, name }))
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

fn create_state_dir(trusted: &TrustedTree) -> Result<(), Errno> {
    let path = Path::new(RUN_DIR);
    let above = path.parent().unwrap_or(Path::new("/"));
    let above = trusted.open_dir(above).map_err(|_| Errno::PERM)?;
    let name = path.file_name().unwrap_or_default();
    make_dir(&above, name, RUN_DIR_MODE)?;
    let run = trusted.open_dir(path).map_err(|_| Errno::PERM)?;
    make_dir(&run, OsStr::new(NAME), PRIVATE_MODE)
}

/// Removes some records of containers that the runtime with the same `--root` no longer has. A runtime that ends a
/// container itself (`run`), or is killed, is never asked to delete it.
fn remove_stale(dir: &OwnedFd, own: ContainerKey<'_>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let suffix = root_suffix(own.root);
    let mut names: Vec<String> = Vec::new();
    let _ = each_name(dir, &mut |name| {
        let name = std::str::from_utf8(name).unwrap_or_default();
        names.extend(name.ends_with(&suffix).then(|| name.to_owned()));
        true
    });
    // The starting point varies, so that living containers do not hide those that are gone.
    let place = usize::try_from(hash_bits(own.id) / SWEEP_ONE_IN).unwrap_or_default();
    let from_first = names.iter().cycle().skip(place % names.len().max(1));
    for name in from_first.take(names.len().min(SWEEP_AT_MOST)) {
        let id = name.strip_suffix(&suffix).unwrap_or_default();
        if id != own.id.as_str() && is_stale(dir, name, id, own.root, now) {
            // If it stays, a later sweep tries again.
            let _ = unlinkat(dir, name.as_str(), AtFlags::empty());
        }
    }
}

fn is_stale(dir: &OwnedFd, name: &str, id: &str, root: Option<&OsStr>, now: u64) -> bool {
    if state_directories(root, id).any(|state| may_exist(&state)) {
        return false;
    }
    if root.is_none() && !has_default_root(dir, name) {
        return false;
    }
    let made = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
    made.is_ok_and(|stat| {
        let made = u64::try_from(stat.st_mtime).unwrap_or_default();
        now.saturating_sub(made) >= SWEEP_AFTER
    })
}

/// Whether a record is for a runtime that is known to keep its containers in a default directory.
fn has_default_root(dir: &OwnedFd, name: &str) -> bool {
    let target = readlinkat(dir, name, Vec::new()).ok();
    let record = target.and_then(|target| RuntimeRecord::parse(target.as_bytes()));
    record.is_some_and(|record| {
        let runtime = record.runtime.file_name().unwrap_or_default();
        DEFAULT_ROOTED.iter().any(|known| runtime == *known)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_what_was_written_and_nothing_else() {
        for is_guarded in [false, true] {
            let record = RuntimeRecord { runtime: PathBuf::from("/usr/bin/runc"), is_guarded };
            assert_eq!(RuntimeRecord::parse(&record.to_bytes()), Some(record));
        }
        for target in [
            "",
            "1:",
            "/usr/bin/runc",
            "1:runc",
            "1:guarded:runc",
            "1:configured:/usr/bin/runc",
            "2:/usr/bin/runc",
        ] {
            assert_eq!(RuntimeRecord::parse(target.as_bytes()), None, "{target}");
        }
    }

    #[test]
    fn one_id_of_two_engines_has_two_records() {
        let id: ContainerId = "c1".parse().unwrap();
        let name = |root: Option<&'static str>| {
            let root = root.map(OsStr::new);
            ContainerKey { id: &id, root }.file_name().unwrap()
        };
        assert_ne!(name(Some("/run/a")), name(Some("/run/b")));
        assert_ne!(name(None), name(Some("/run/b")));
        assert_eq!(name(None), "c1@cbf29ce484222325");
        assert!(name(None).parse::<ContainerId>().is_err());
    }

    #[test]
    fn about_every_second_start_sweeps_however_its_containers_are_called() {
        let names: [fn(u32) -> String; 4] = [
            |n| format!("c{n}"),
            |n| format!("job-{}", 2 * n),
            |n| format!("{n:064x}"),
            |n| format!("{n}-worker"),
        ];
        for name in names {
            let sweeps = (0..1000).filter(|n| {
                let id: ContainerId = name(*n).parse().unwrap();
                hash_bits(&id).is_multiple_of(SWEEP_ONE_IN)
            });
            let count = sweeps.count();
            assert!((350..650).contains(&count), "{}: {count}", name(7));
        }
    }

    #[test]
    fn an_id_that_is_too_long_for_a_file_s_name_has_no_record() {
        let id: ContainerId = "x".repeat(201).parse().unwrap();
        assert_eq!(ContainerKey { id: &id, root: None }.file_name(), None);
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
