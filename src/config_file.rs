//! A configuration file that people maintain: read as it is, and replaced as a whole with its
//! owner, mode and label.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use onload_core::fs::atomic::{self, TempFile, WriteError};
use onload_core::fs::lock::{COMMAND_PATIENCE, Lock, LockError, LockMode};
use onload_core::fs::{attributes, regular};
use onload_core::run_dir::{LOCKS, RUN_DIR, open_private};
use onload_host::host::{Host, HostError};
use rustix::fs::{Mode, OFlags, Stat, fstat, openat};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Bytes of a configuration file that are read.
const LIMIT: u64 = 4 * 1024 * 1024;
/// Mode of a new file.
const NEW_MODE: u32 = 0o644;
const PERMISSIONS: u32 = 0o7777;

/// Why a file cannot be read or replaced.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigFileError {
    /// It cannot be opened or read.
    #[error("reading {}", .path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    /// A replacement would not be the same kind of file.
    #[error("reading {}: it is {what}, which replacing it would break; edit it by hand", .path.display())]
    Unusual { path: PathBuf, what: &'static str },
    #[error("reading {}: not UTF-8 text", .path.display())]
    NotText { path: PathBuf },
    /// The owner or label of the old file could not be given to the new one.
    #[error("giving {} the owner and label that it had", .path.display())]
    Attributes { path: PathBuf, source: Errno },
    /// It cannot be written or removed; the old one is still whole.
    #[error("{action} {}", .path.display())]
    Write {
        /// What was being done.
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
}

/// The lock for all configuration files, below [`RUN_DIR`]: in their own directories, others could
/// hold it.
const LOCK_NAME: &str = "configure";

/// Its directory in the one that a user has at run time.
const OF_USER: &str = "onload-ctk";

/// Why other runs of ours are not kept out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigLockError {
    /// The directory of the lock cannot be used.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Its mode cannot be restricted to the owner.
    #[error("opening the directory of locks {}", .path.display())]
    Directory { path: PathBuf, source: Errno },
    /// It cannot be locked, or another process holds the lock.
    #[error("locking the files of configuration")]
    Lock(#[from] LockError),
}

/// Keeps other runs of this program away from a host's configuration files until the result is
/// dropped.
///
/// # Errors
/// [`ConfigLockError`], also if another process holds the lock for too long.
pub(crate) fn lock(host: &Host) -> Result<Lock, ConfigLockError> {
    let path = Path::new(RUN_DIR);
    let run = host.create_directory(path)?;
    take_lock(host, &run, &path.join(LOCKS))
}

/// The lock of a user's own files; none where the user has no directory at run time, since there is
/// none then that others cannot open.
///
/// # Errors
/// As [`lock`].
pub(crate) fn lock_as_user(host: &Host) -> Result<Option<Lock>, ConfigLockError> {
    let path = PathBuf::from(format!("/run/user/{}", geteuid().as_raw()));
    let run = host.directory(&path)?;
    let path = path.join(OF_USER);
    run.map(|run| take_lock(host, &run, &path)).transpose()
}

fn take_lock(host: &Host, run: &OwnedFd, path: &Path) -> Result<Lock, ConfigLockError> {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or(LOCKS);
    let path = host.outside_path(path);
    let locks = open_private(run, name).map_err(|source| ConfigLockError::Directory {
        path: path.clone(),
        source,
    })?;
    let kind = LockMode::Exclusive;
    Ok(Lock::take(locks, &path, LOCK_NAME, kind, COMMAND_PATIENCE)?)
}

/// The open directory of a configuration file.
#[derive(Debug)]
pub(crate) struct ConfigDir {
    path: PathBuf,
    directory: OwnedFd,
}

/// A file as read.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    pub text: String,
    file: File,
    stat: Stat,
}

impl ConfigDir {
    #[must_use]
    pub(crate) fn new(path: PathBuf, directory: OwnedFd) -> Self {
        ConfigDir { path, directory }
    }

    /// Reads a file; `None` if it does not exist.
    ///
    /// # Errors
    /// It cannot be read, is not text, or is not a regular file with one name.
    pub(crate) fn read(&self, name: &OsStr) -> Result<Option<ConfigFile>, ConfigFileError> {
        let path = self.path.join(name);
        let read = |source| ConfigFileError::Read {
            path: path.clone(),
            source,
        };
        let unusual = |what| ConfigFileError::Unusual {
            path: path.clone(),
            what,
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file = match openat(&self.directory, name, flags, Mode::empty()) {
            Ok(descriptor) => File::from(descriptor),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(unusual("a symbolic link")),
            Err(Errno::NXIO) => return Err(read(regular::refusal("a socket"))),
            Err(error) => return Err(read(error.into())),
        };
        let metadata = file.metadata().map_err(read)?;
        regular::refuse_unusual(&metadata).map_err(read)?;
        let stat = fstat(&file).map_err(|error| read(error.into()))?;
        if stat.st_nlink > 1 {
            return Err(unusual("a file of several names (hard links)"));
        }
        if u64::try_from(stat.st_size).is_ok_and(|size| size > LIMIT) {
            return Err(unusual("longer than 4 MiB"));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(read)?;
        let text = String::from_utf8(bytes)
            .map_err(|_| ConfigFileError::NotText { path: path.clone() })?;
        Ok(Some(ConfigFile { text, file, stat }))
    }

    /// Replaces a file. The new one has the owner, mode and label of `like`, or else belongs to the
    /// caller and has mode 0644.
    ///
    /// # Errors
    /// It cannot be written; the old one is intact.
    pub(crate) fn write(
        &self,
        name: &OsStr,
        text: &str,
        like: Option<&ConfigFile>,
    ) -> Result<(), ConfigFileError> {
        let failed = |failed| self.write_error("writing", name, failed);
        let mode = like.map_or(NEW_MODE, |old| old.stat.st_mode & PERMISSIONS);
        let mut temporary = TempFile::create(self.directory.as_fd(), name, mode).map_err(failed)?;
        if let Some(old) = like {
            attributes::copy(&old.file, &old.stat, temporary.file()).map_err(|failed| {
                ConfigFileError::Attributes {
                    path: self.path.join(name),
                    source: failed.error,
                }
            })?;
        }
        temporary.write(text.as_bytes()).map_err(failed)?;
        temporary.commit().map_err(failed)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(crate) fn remove(&self, name: &OsStr) -> Result<(), ConfigFileError> {
        atomic::remove(&self.directory, name)
            .and_then(|_| atomic::sync(&self.directory))
            .map_err(|failed| self.write_error("removing", name, failed))
    }

    /// Of how a file is replaced people see the file alone.
    fn write_error(
        &self,
        action: &'static str,
        name: &OsStr,
        failed: WriteError,
    ) -> ConfigFileError {
        ConfigFileError::Write {
            action,
            path: self.path.join(name),
            source: failed.source,
        }
    }
}

/// The name of a file's backup, beside it.
#[must_use]
pub(crate) fn backup_name(path: &Path) -> OsString {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".onload-ctk-backup");
    name
}
