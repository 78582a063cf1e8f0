//! Locks between onload-ctk's processes: a file that only its owner can open, a deadline for waiting, and a message
//! that names the process with the lock.
//!
//! flock(2) requires no permission: a process that can open a file, even for reading, can lock it. Directories that
//! others can open are therefore never locked. User 0 of a container that sees the file can still open it, hence the
//! deadline and the message.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, fchmod, flock, fstat, major, minor,
    openat, statat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::text::Quoted;

/// Limit for waiting while a container starts or ends.
pub const START_TIMEOUT: Duration = Duration::from_secs(1);
/// Limit for waiting in a command.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

const MODE: Mode = Mode::from_raw_mode(0o600);
/// The first pause between two attempts. Pauses double up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(20);
/// The kernel's list of locks (proc_locks(5)).
const TABLE: &str = "/proc/locks";
const MAX_TABLE_BYTES: u64 = 16 * 1024 * 1024;
const NAMED: usize = 3;

/// Whether other processes may hold the lock at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    Shared,
    Exclusive,
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("{action} the lock {path:?}")]
    File { action: &'static str, path: PathBuf, source: Errno },
    #[error("the lock {0:?} is not a regular file with one name; remove it")]
    Foreign(PathBuf),
    #[error("the lock {path:?} was not free within {} s: {holders}; try again when that has ended", .waited.as_secs())]
    Held { path: PathBuf, waited: Duration, holders: String },
}

impl crate::error::TypedError for LockError {}

/// A lock. The kernel releases it when this is dropped or when the process ends in any way.
#[derive(Debug)]
pub struct Lock {
    file: OwnedFd,
}

impl Lock {
    /// Takes a lock through a file in an open directory, and creates the file if necessary. `path` is the directory's
    /// path, for messages.
    pub fn acquire(
        dir: impl AsFd,
        path: &Path,
        name: &str,
        mode: LockMode,
        timeout: Duration,
    ) -> Result<Lock, LockError> {
        let path = path.join(name);
        let operation = match mode {
            LockMode::Shared => FlockOperation::NonBlockingLockShared,
            LockMode::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        let (since, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            let file = open(dir.as_fd(), &path, name)?;
            match flock(&file, operation) {
                // If the file was removed in the meantime, another process may have created and locked a new one.
                Ok(()) if is_still_at(&dir, &path, name, &file)? => return Ok(Lock { file }),
                Ok(()) | Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(error) => return Err(file_error("taking", &path)(error)),
            }
            let remaining = timeout.saturating_sub(since.elapsed());
            if remaining.is_zero() {
                return Err(held_error(&file, path, timeout));
            }
            std::thread::sleep(pause.min(remaining));
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Takes an exclusive lock if it is free right now.
    pub fn try_acquire(dir: impl AsFd, path: &Path, name: &str) -> Result<Option<Lock>, LockError> {
        match Lock::acquire(dir, path, name, LockMode::Exclusive, Duration::ZERO) {
            Err(LockError::Held { .. }) => Ok(None),
            result => result.map(Some),
        }
    }

    /// Returns whether the lock's file still exists. Removing it does not release the lock, but other processes no
    /// longer find it.
    pub fn is_linked(&self) -> bool {
        fstat(&self.file).is_ok_and(|stat| stat.st_nlink > 0)
    }
}

fn open(dir: impl AsFd, path: &Path, name: &str) -> Result<OwnedFd, LockError> {
    let flags = OFlags::RDWR
        | OFlags::CREATE
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::CLOEXEC;
    let file = match openat(dir, name, flags, MODE) {
        Ok(file) => file,
        Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => {
            return Err(LockError::Foreign(path.to_owned()));
        }
        Err(error) => return Err(file_error("opening", path)(error)),
    };
    let stat = fstat(&file).map_err(file_error("looking at", path))?;
    // A file with several hard links may belong to another program, so its mode must not change.
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink > 1 {
        return Err(LockError::Foreign(path.to_owned()));
    }
    let is_open = Mode::from_raw_mode(stat.st_mode & 0o7777) != MODE;
    if is_open && stat.st_uid == geteuid().as_raw() {
        fchmod(&file, MODE).map_err(file_error("restricting the mode of", path))?;
    }
    Ok(file)
}

fn file_error(action: &'static str, path: &Path) -> impl FnOnce(Errno) -> LockError {
    move |source| LockError::File { action, path: path.to_owned(), source }
}

/// Returns whether `name` still refers to an open file.
fn is_still_at(dir: impl AsFd, path: &Path, name: &str, file: &OwnedFd) -> Result<bool, LockError> {
    let same = |named: Stat| {
        let own_stat = fstat(file)?;
        Ok((named.st_dev, named.st_ino) == (own_stat.st_dev, own_stat.st_ino))
    };
    match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).and_then(same) {
        Err(Errno::NOENT) => Ok(false),
        result => result.map_err(file_error("looking at", path)),
    }
}

fn held_error(file: &OwnedFd, path: PathBuf, waited: Duration) -> LockError {
    let table = File::open(TABLE).map(|table| table.take(MAX_TABLE_BYTES));
    let pids = fstat(file)
        .ok()
        .zip(table.ok())
        .map(|(stat, table)| parse_lock_owners(BufReader::new(table), &stat));
    let command = |pid: u32| std::fs::read(format!("/proc/{pid}/comm")).ok();
    LockError::Held { path, waited, holders: describe(&pids.unwrap_or_default(), &command) }
}

/// Returns the processes that hold a lock on a file, according to the kernel's table. Its lines look like `3: FLOCK
/// ADVISORY WRITE 1234 00:1b:567 0 EOF`, with the device in hexadecimal; lines of waiting processes have `->` after the
/// first field (fs/locks.c, `lock_get_status`).
fn parse_lock_owners(table: impl BufRead, file: &Stat) -> Vec<u32> {
    let (major, minor) = (major(file.st_dev), minor(file.st_dev));
    let file_id = format!("{major:02x}:{minor:02x}:{}", file.st_ino);
    let pid = |line: Vec<u8>| {
        let line = String::from_utf8(line).ok()?;
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        match fields.get(1..6)? {
            ["FLOCK", _, _, pid, id] if *id == file_id => pid.parse().ok(),
            _ => None,
        }
    };
    let mut pids: Vec<u32> = table.split(b'\n').map_while(Result::ok).filter_map(pid).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// Describes the processes that hold a lock. `command` returns the program name of a process.
fn describe(pids: &[u32], command: &dyn Fn(u32) -> Option<Vec<u8>>) -> String {
    if pids.is_empty() {
        return "/proc/locks does not say who holds it".to_owned();
    }
    let one = |pid: &u32| match command(*pid) {
        Some(name) => {
            let name = String::from_utf8_lossy(name.trim_ascii_end()).into_owned();
            format!("process {pid} ({}) holds it", Quoted(&name))
        }
        // The process that took the lock is gone, and a child has inherited the open file.
        None => format!(
            "process {pid} has ended, but another process still has it open (fuser shows which)"
        ),
    };
    let mut all: Vec<String> = pids.iter().take(NAMED).map(one).collect();
    if let Some(more) = pids.len().checked_sub(NAMED).filter(|more| *more > 0) {
        all.push(format!("{more} more hold it"));
    }
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    const NOW: Duration = Duration::ZERO;

    fn dir_of(dir: &tempfile::TempDir) -> File {
        File::open(dir.path()).unwrap()
    }

    fn take(dir: &tempfile::TempDir, kind: LockMode) -> Result<Lock, LockError> {
        Lock::acquire(dir_of(dir), dir.path(), "lock", kind, NOW)
    }

    #[test]
    fn one_holds_it_alone_or_several_share_it() {
        let dir = tempfile::tempdir().unwrap();
        let first = take(&dir, LockMode::Shared).unwrap();
        let second = take(&dir, LockMode::Shared).unwrap();
        assert!(take(&dir, LockMode::Exclusive).is_err());
        drop(first);
        assert!(take(&dir, LockMode::Exclusive).is_err());
        drop(second);
        let _alone = take(&dir, LockMode::Exclusive).unwrap();
        assert!(take(&dir, LockMode::Shared).is_err());
    }

    #[test]
    fn a_lock_that_is_held_costs_a_line_with_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let held = take(&dir, LockMode::Exclusive).unwrap();
        let line = take(&dir, LockMode::Shared).unwrap_err().to_string();
        let own = format!("process {} (\"", std::process::id());
        assert!(line.contains(&own), "{line}");
        assert!(line.contains("was not free within 0 s"), "{line}");
        drop(held);
    }

    #[test]
    fn it_is_waited_for_until_it_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let held = take(&dir, LockMode::Exclusive).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                drop(held);
            });
            let minute = Duration::from_secs(60);
            Lock::acquire(dir_of(&dir), dir.path(), "lock", LockMode::Shared, minute).unwrap();
        });
    }

    #[test]
    fn only_its_owner_can_open_it_whoever_made_it_and_with_whatever_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        for mode in [None, Some(0o666), Some(0o000), Some(0o4755)] {
            if mode == Some(0) && !onload_test_needs::root("opening a lock of mode 0") {
                continue;
            }
            if let Some(mode) = mode {
                std::fs::write(&path, "").unwrap();
                std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            }
            take(&dir, LockMode::Exclusive).unwrap();
            let now = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(now & 0o7777, 0o600, "{mode:?}");
        }
    }

    #[test]
    fn what_is_no_file_of_ours_is_neither_locked_nor_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let other = dir.path().join("other");
        std::fs::write(&other, "").unwrap();
        std::fs::set_permissions(&other, PermissionsExt::from_mode(0o644)).unwrap();
        let laid: [&dyn Fn(); 4] = [
            &|| std::fs::hard_link(&other, &path).unwrap(),
            &|| symlink(&other, &path).unwrap(),
            &|| std::fs::create_dir(&path).unwrap(),
            &|| drop(std::os::unix::net::UnixListener::bind(&path).unwrap()),
        ];
        for lay in laid {
            lay();
            let line = take(&dir, LockMode::Exclusive).unwrap_err().to_string();
            assert!(line.contains("remove it"), "{line}");
            let mode = std::fs::metadata(&other).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o644);
            let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path));
        }
    }

    /// A process that waits for a file which is then removed must not hold that one while another
    /// holds the new one.
    #[test]
    fn a_file_that_was_removed_while_it_was_waited_for_is_not_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let first = take(&dir, LockMode::Exclusive).unwrap();
        let second = std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                std::fs::remove_file(dir.path().join("lock")).unwrap();
                let second = take(&dir, LockMode::Exclusive).unwrap();
                drop(first);
                second
            });
            let (directory, wait) = (dir_of(&dir), Duration::from_millis(300));
            let refused = Lock::acquire(directory, dir.path(), "lock", LockMode::Exclusive, wait);
            assert!(matches!(refused, Err(LockError::Held { .. })));
            second.join().unwrap()
        });
        drop(second);
        take(&dir, LockMode::Exclusive).unwrap();
    }

    #[test]
    fn a_lock_whose_file_was_removed_has_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let open = File::open(dir.path()).unwrap();
        let lock = Lock::try_acquire(&open, dir.path(), "lock").unwrap().unwrap();
        assert!(lock.is_linked());
        std::fs::remove_file(dir.path().join("lock")).unwrap();
        assert!(!lock.is_linked());
    }

    #[test]
    fn the_holders_are_read_from_the_kernel_s_table() {
        let dir = tempfile::tempdir().unwrap();
        let mut stat = fstat(dir_of(&dir)).unwrap();
        stat.st_dev = rustix::fs::makedev(0, 0x1b);
        stat.st_ino = 567;
        let table = b"1: POSIX  ADVISORY  WRITE 7 00:1b:567 0 EOF\n\
            2: FLOCK  ADVISORY  READ 1234 00:1b:567 0 EOF\n\
            2: -> FLOCK  ADVISORY  WRITE 99 00:1b:567 0 EOF\n\
            3: FLOCK  ADVISORY  READ 12 00:1b:567 0 EOF\n\
            4: FLOCK  ADVISORY  WRITE 8 00:1b:5671 0 EOF\n\
            5: FLOCK  ADVISORY  WRITE 9 08:1b:567 0 EOF\n\xff\n6: FLOCK\n";
        assert_eq!(parse_lock_owners(&table[..], &stat), [12, 1234]);
    }

    #[test]
    fn the_line_names_a_few_holders_and_escapes_what_they_call_themselves() {
        let command = |pid: u32| (pid != 7).then(|| b"a\x1b[31m\xff\n".to_vec());
        assert!(describe(&[], &command).contains("does not say"));
        let line = describe(&[1, 7, 9, 10, 11], &command);
        assert_eq!(
            line,
            "process 1 (\"a\\u{1b}[31m\u{fffd}\") holds it, \
             process 7 has ended, but another process still has it open (fuser shows which), \
             process 9 (\"a\\u{1b}[31m\u{fffd}\") holds it, 2 more hold it"
        );
    }
}
