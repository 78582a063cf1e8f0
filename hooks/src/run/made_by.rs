//! Which runtime made a container, remembered while the container lives: what looks after it later
//! must reach the same runtime, whatever happened to the configuration meanwhile.
//!
//! A record is a symbolic link, made by one system call and read by another; nothing ever follows it.
//! Its target begins with the version of the format: `1:PATH`, or `1:guarded:PATH` for a container
//! whose later processes are looked at too. Its name is the container's id and what `--root` was, since
//! two engines may use one id.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use onload_core::container_id::ContainerId;
use onload_core::fs::open::{is_there, open_resolved};
use onload_core::fs::trust::Trusted;
use onload_core::run_dir::RUN_DIR;
use onload_core::run_dir::{PRIVATE_MODE, RUN_DIR_MODE, make_dir};
use rustix::fs::{
    AtFlags, CWD, OFlags, RawDir, ResolveFlags, fstat, readlinkat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

/// The records' directory in [`RUN_DIR`]; no container's id has that letter.
pub const NAME: &str = "@runtimes";

/// Where runc, crun and youki keep their containers when nobody says `--root`; crun below
/// XDG_RUNTIME_DIR where that is set, which for root is the last of them.
pub(crate) const DEFAULT_ROOTS: [&str; 4] =
    ["/run/runc", "/run/crun", "/run/youki", "/run/user/0/crun"];

/// The runtimes that keep their containers there.
const DEFAULT_ROOTED: [&str; 3] = ["runc", "crun", "youki"];

const PLAIN: &[u8] = b"1:";
const GUARDED: &[u8] = b"1:guarded:";

/// Bytes of an id that is kept: the name of a file has 255, and the rest says what `--root` was.
const MAX_ID_BYTES: usize = 200;

/// One start in so many looks for records of containers that are gone; which one, its id decides.
const SWEEP_ONE_IN: u64 = 2;

/// Records that are looked at then. With the former, two for each that is written: of many, no more
/// than half can be of containers that are gone.
const SWEEP_AT_MOST: usize = 4;

/// Seconds that a record stays although the runtime has no such container: it may be about to make it.
const SWEEP_AFTER: u64 = 60;

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The runtime.
    pub runtime: PathBuf,
    /// Processes that are started in the container later are looked at too.
    pub is_guarded: bool,
}

impl Record {
    /// Reads the target of a link. A path that is not absolute, or a format of another version, is no
    /// record.
    #[must_use]
    pub fn parse(target: &[u8]) -> Option<Record> {
        let (path, is_guarded) = match target.strip_prefix(GUARDED) {
            Some(path) => (path, true),
            None => (target.strip_prefix(PLAIN)?, false),
        };
        path.starts_with(b"/").then(|| Record {
            runtime: PathBuf::from(OsStr::from_bytes(path)),
            is_guarded,
        })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let prefix = if self.is_guarded { GUARDED } else { PLAIN };
        [prefix, self.runtime.as_os_str().as_bytes()].concat()
    }
}

/// A container as one engine names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named<'a> {
    /// Its id.
    pub id: &'a ContainerId,
    /// What `--root` is, where it is said.
    pub root: Option<&'a OsStr>,
}

/// How the state of a container looks, by which runtimes differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateOf {
    /// runc keeps `state.json` (libcontainer/factory_linux.go).
    Runc,
    /// crun keeps `status` (libcrun/status.c).
    Crun,
    /// Some other runtime.
    Other,
    /// There is no such container where `--root` says.
    None,
    /// Nobody said where containers are kept, and the usual places have no such container.
    Unknown,
}

impl Named<'_> {
    fn file_name(self) -> Option<String> {
        let id = self.id.as_str();
        (id.len() <= MAX_ID_BYTES).then(|| format!("{id}{}", suffix(self.root)))
    }

    fn directories(self) -> impl Iterator<Item = PathBuf> {
        state_directories(self.root, self.id.as_str())
    }

    /// Which kind of runtime keeps the container, as far as its state tells.
    #[must_use]
    pub(crate) fn state_of(self) -> StateOf {
        let mut found = self.root.map_or(StateOf::Unknown, |_| StateOf::None);
        for dir in self.directories() {
            if statat(CWD, dir.join("state.json"), AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                return StateOf::Runc;
            }
            if statat(CWD, dir.join("status"), AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                return StateOf::Crun;
            }
            if is_there(&dir) {
                found = StateOf::Other;
            }
        }
        found
    }
}

fn state_directories(root: Option<&OsStr>, id: &str) -> impl Iterator<Item = PathBuf> {
    let given = root.map(PathBuf::from);
    let usual = match given {
        Some(_) => &[][..],
        None => &DEFAULT_ROOTS[..],
    };
    let all = given.into_iter().chain(usual.iter().map(PathBuf::from));
    let id = id.to_owned();
    all.map(move |root| root.join(&id))
}

fn suffix(root: Option<&OsStr>) -> String {
    format!("@{:016x}", hash(root.map_or(b"", OsStr::as_bytes)))
}

/// FNV-1a (RFC 9923): names that nobody can choose at will need no more.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A number that differs from one id to the next, also where they only count up: the last letter is in
/// these bits as the others are.
fn lot(id: &ContainerId) -> u64 {
    hash(id.as_str().as_bytes()) >> 41
}

/// What is remembered of a container, and where.
#[derive(Debug)]
pub(crate) struct Remembered {
    /// What it says.
    pub record: Record,
    dir: OwnedFd,
    name: String,
}

/// What is remembered of a container. The directory and those above it are judged like every file
/// of the host that is believed; the runtime is for the caller to judge.
#[must_use]
pub(crate) fn read(trusted: &Trusted, named: Named<'_>) -> Option<Remembered> {
    let dir = trusted.open_dir(&Path::new(RUN_DIR).join(NAME)).ok()?;
    let dir = OwnedFd::from(dir);
    let name = named.file_name()?;
    let target = readlinkat(&dir, &name, Vec::with_capacity(64)).ok()?;
    let record = Record::parse(target.as_bytes())?;
    Some(Remembered { record, dir, name })
}

impl Remembered {
    /// Takes the record away: nobody made the container.
    pub(crate) fn undo(&self) {
        // What stays is swept later.
        let _ = unlinkat(&self.dir, &self.name, AtFlags::empty());
    }

    /// Forgets a container that is deleted, unless its later processes are looked at: should the
    /// runtime not delete it, they still have to be, and the record goes with others that are left.
    pub(crate) fn forget(&self) {
        if !self.record.is_guarded {
            self.undo();
        }
    }
}

/// Remembers the runtime of a container that is about to be made, and forgets a few that are gone.
/// Where a container of that name lives, what is remembered of it stays, and nothing is given: the
/// runtime will refuse the other one.
///
/// # Errors
/// What stood in the way. Without a record a container starts all the same unless it is guarded.
pub(crate) fn write(
    trusted: &Trusted,
    named: Named<'_>,
    record: Record,
) -> Result<Option<Remembered>, Errno> {
    let name = named.file_name().ok_or(Errno::NAMETOOLONG)?;
    let dir = match open() {
        Err(Errno::NOENT) => {
            make(trusted)?;
            open()?
        }
        found => found?,
    };
    let target = record.to_bytes();
    match symlinkat(OsStr::from_bytes(&target), &dir, &name) {
        Err(Errno::EXIST) if named.directories().any(|state| is_there(&state)) => {
            let held = readlinkat(&dir, &name, Vec::new())?;
            let is_same = held.as_bytes() == target;
            return is_same.then_some(None).ok_or(Errno::EXIST);
        }
        Err(Errno::EXIST) => {
            // Made anew, so that its time is the time of this start.
            unlinkat(&dir, &name, AtFlags::empty())?;
            symlinkat(OsStr::from_bytes(&target), &dir, &name)?;
        }
        made => made?,
    }
    if lot(named.id).is_multiple_of(SWEEP_ONE_IN) {
        sweep(&dir, named);
    }
    Ok(Some(Remembered { record, dir, name }))
}

/// Opens the directory to write in it. One call instead of a step for each directory above: nothing is
/// read here, and no link is followed.
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

fn make(trusted: &Trusted) -> Result<(), Errno> {
    let path = Path::new(RUN_DIR);
    let above = path.parent().unwrap_or(Path::new("/"));
    let above = trusted.open_dir(above).map_err(|_| Errno::PERM)?;
    let name = path.file_name().unwrap_or_default();
    make_dir(&above, name, RUN_DIR_MODE)?;
    let run = trusted.open_dir(path).map_err(|_| Errno::PERM)?;
    make_dir(&run, OsStr::new(NAME), PRIVATE_MODE)
}

/// Removes some records of containers that the runtime of the same `--root` keeps no more. A runtime
/// that ends a container by itself (`run`), or is killed, is never asked to delete it.
fn sweep(dir: &OwnedFd, own: Named<'_>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_secs());
    let suffix = suffix(own.root);
    let mut buffer = Vec::with_capacity(8 * 1024);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    let mut names: Vec<String> = Vec::new();
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name().to_str().unwrap_or_default();
        names.extend(name.ends_with(&suffix).then(|| name.to_owned()));
    }
    // Another place each time, so that those who live do not hide those who are gone.
    let place = usize::try_from(lot(own.id) / SWEEP_ONE_IN).unwrap_or_default();
    let from_first = names.iter().cycle().skip(place % names.len().max(1));
    for name in from_first.take(names.len().min(SWEEP_AT_MOST)) {
        let id = name.strip_suffix(&suffix).unwrap_or_default();
        if id != own.id.as_str() && is_left(dir, name, id, own.root, now) {
            // What stays is tried again.
            let _ = unlinkat(dir, name.as_str(), AtFlags::empty());
        }
    }
}

fn is_left(dir: &OwnedFd, name: &str, id: &str, root: Option<&OsStr>, now: u64) -> bool {
    if state_directories(root, id).any(|state| is_there(&state)) {
        return false;
    }
    if root.is_none() && !is_default_rooted(dir, name) {
        return false;
    }
    let made = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
    made.is_ok_and(|stat| {
        let made = u64::try_from(stat.st_mtime).unwrap_or_default();
        now.saturating_sub(made) >= SWEEP_AFTER
    })
}

/// Whether a record is of a runtime that is known to keep its containers in one of the usual places.
fn is_default_rooted(dir: &OwnedFd, name: &str) -> bool {
    let target = readlinkat(dir, name, Vec::new()).ok();
    let record = target.and_then(|target| Record::parse(target.as_bytes()));
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
            let record = Record {
                runtime: PathBuf::from("/usr/bin/runc"),
                is_guarded,
            };
            assert_eq!(Record::parse(&record.to_bytes()), Some(record));
        }
        for target in [
            "",
            "1:",
            "/usr/bin/runc",
            "1:runc",
            "1:guarded:runc",
            "2:/usr/bin/runc",
        ] {
            assert_eq!(Record::parse(target.as_bytes()), None, "{target}");
        }
    }

    #[test]
    fn one_id_of_two_engines_has_two_records() {
        let id: ContainerId = "c1".parse().unwrap();
        let name = |root: Option<&'static str>| {
            let root = root.map(OsStr::new);
            Named { id: &id, root }.file_name().unwrap()
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
                lot(&id).is_multiple_of(SWEEP_ONE_IN)
            });
            let count = sweeps.count();
            assert!((350..650).contains(&count), "{}: {count}", name(7));
        }
    }

    #[test]
    fn an_id_that_is_too_long_for_a_file_s_name_has_no_record() {
        let id: ContainerId = "x".repeat(201).parse().unwrap();
        assert_eq!(
            Named {
                id: &id,
                root: None
            }
            .file_name(),
            None
        );
    }

    #[test]
    fn the_runtime_that_keeps_a_container_is_told_from_its_state() {
        let dir = tempfile::tempdir().unwrap();
        let id: ContainerId = "onload-ctk-no-such-container".parse().unwrap();
        let root = Some(dir.path().as_os_str());
        let named = Named { id: &id, root };
        assert_eq!(named.state_of(), StateOf::None);
        assert_eq!(
            Named {
                id: &id,
                root: None
            }
            .state_of(),
            StateOf::Unknown
        );
        let state = dir.path().join(id.as_str());
        std::fs::create_dir(&state).unwrap();
        assert_eq!(named.state_of(), StateOf::Other);
        std::fs::write(state.join("status"), "").unwrap();
        assert_eq!(named.state_of(), StateOf::Crun);
        std::fs::remove_file(state.join("status")).unwrap();
        std::fs::write(state.join("state.json"), "").unwrap();
        assert_eq!(named.state_of(), StateOf::Runc);
    }
}
