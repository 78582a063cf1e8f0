//! The directory for files about running containers, and the lock between containers that start and
//! containers that end.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, fchmod, fstat, mkdirat, openat};
use rustix::io::Errno;

use onload_sys::fs::list::each_name;
use onload_sys::fs::lock::{Lock, LockError, LockMode};

/// The directory for files about running containers, with a subdirectory for each container.
pub const RUN_DIR: &str = "/run/onload-ctk";

/// The subdirectory of the lock files. No container ID contains `@`
/// ([`onload_core::container_id::ContainerId`]).
pub const LOCKS: &str = "@locks";
/// The subdirectory of the leases, which only root can enter.
pub const LEASES: &str = "@leases";
/// The subdirectory of the tickets, which only root can enter ([`crate::tickets`]).
pub const REQUESTS: &str = "@requests";
/// The lock that is shared while a container starts, and exclusive while one ends.
const CONTAINERS: &str = "containers";
/// The mode of [`RUN_DIR`]. A runtime in a user namespace can reach its container's files, but
/// cannot list the containers.
pub const RUN_DIR_MODE: Mode = Mode::from_raw_mode(0o711);
/// The mode of directories that only their owner can enter.
pub const PRIVATE_MODE: Mode = Mode::from_raw_mode(0o700);
const OPEN: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An open [`RUN_DIR`].
#[derive(Debug)]
pub struct RunDir {
    fd: OwnedFd,
    path: PathBuf,
}

impl AsFd for RunDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl RunDir {
    pub fn new(fd: OwnedFd, path: &Path) -> Self {
        let path = path.to_owned();
        RunDir { fd, path }
    }

    /// Opens the directory if it exists. Returns `None` also if this user has no access: only root
    /// has, and other users have no files there.
    pub fn find(path: &Path) -> Result<Option<Self>, Errno> {
        match rustix::fs::open(path, OPEN, Mode::empty()) {
            Ok(fd) => Ok(Some(RunDir::new(fd, path))),
            Err(Errno::NOENT | Errno::ACCESS) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the subdirectory of a container.
    pub fn open(&self, name: &str) -> Result<OwnedFd, Errno> {
        openat(&self.fd, name, OPEN, Mode::empty())
    }

    pub fn lock(&self, mode: LockMode, timeout: Duration) -> Result<Lock, LockError> {
        let (locks, path) = self.open_lock_dir()?;
        Lock::acquire(locks, &path, CONTAINERS, mode, timeout)
    }

    /// Acquires the lock exclusively if it is free right now.
    #[must_use]
    pub fn lock_if_free(&self) -> Option<Lock> {
        let (locks, path) = self.open_lock_dir().ok()?;
        Lock::try_acquire(locks, &path, CONTAINERS).ok()?
    }

    fn open_lock_dir(&self) -> Result<(OwnedFd, PathBuf), LockError> {
        let path = self.path.join(LOCKS);
        let locks = open_private(self, LOCKS).map_err(|error| LockError::File {
            action: "opening the directory of",
            path: path.join(CONTAINERS),
            source: error,
        })?;
        Ok((locks, path))
    }
}

/// Opens a directory that only its owner can enter. Creates it if necessary.
pub fn open_private(dir: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    let open = || openat(&dir, name, OPEN, Mode::empty());
    let opened = match open() {
        Err(Errno::NOENT) => {
            make_dir(&dir, OsStr::new(name), PRIVATE_MODE)?;
            open()?
        }
        opened => opened?,
    };
    set_mode(&opened, PRIVATE_MODE)?;
    Ok(opened)
}

/// Creates a directory if it does not exist.
pub fn make_dir(dir: impl AsFd, name: &OsStr, mode: Mode) -> Result<(), Errno> {
    match mkdirat(dir, name, mode) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Sets a directory's mode, which an engine's umask may have changed on creation.
pub fn set_mode(dir: impl AsFd, mode: Mode) -> Result<(), Errno> {
    if Mode::from_raw_mode(fstat(&dir)?.st_mode & 0o7777) == mode {
        return Ok(());
    }
    fchmod(&dir, mode)
}

/// Lists the names in a directory, except those that are not UTF-8, which none of our files has.
pub(crate) fn list_names(directory: &OwnedFd) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    each_name(directory, &mut |name| {
        names.extend(std::str::from_utf8(name).map(str::to_owned));
        true
    })?;
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_lock_is_in_a_private_directory() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::find(dir.path()).unwrap().unwrap();
        std::fs::create_dir(dir.path().join(LOCKS)).unwrap();
        let lock = run.lock(LockMode::Exclusive, Duration::ZERO).unwrap();
        for (path, mode) in [(LOCKS, 0o700), ("@locks/containers", 0o600)] {
            let found = std::fs::metadata(dir.path().join(path)).unwrap();
            assert_eq!(found.permissions().mode() & 0o7777, mode, "{path}");
        }
        // Locking the directory that everyone can open does not hold the lock.
        rustix::fs::flock(&run, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        drop(lock);
        run.lock(LockMode::Shared, Duration::ZERO).unwrap();
    }

    #[test]
    fn no_container_is_named_like_the_lock_directory() {
        assert!(LOCKS.parse::<onload_core::container_id::ContainerId>().is_err());
    }
}
