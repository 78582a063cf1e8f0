//! A configuration file maintained by people: replaced atomically, keeping its owner, mode and label.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use onload_host::host::Host;
use onload_lease::run_dir::{LOCKS, RUN_DIR, open_private};
use onload_sys::fs::atomic::{self, TempFile, WriteError};
use onload_sys::fs::lock::{COMMAND_TIMEOUT, Lock, LockMode};
use onload_sys::fs::{attributes, regular};
use rustix::fs::{Mode, OFlags, Stat, fstat, open, openat};
use rustix::io::Errno;
use rustix::process::geteuid;

/// The directory of our own configuration.
const CONFIG_DIR: &str = "/etc/onload-ctk";
const MAX_BYTES: u64 = 4 * 1024 * 1024;
const NEW_MODE: u32 = 0o644;
const PERMISSIONS: u32 = 0o7777;

/// The lock for all configuration files, below [`RUN_DIR`]: in their own directories, others could
/// hold it.
const LOCK_NAME: &str = "configure";

const USER_DIR: &str = "onload-ctk";

pub(crate) fn lock(host: &Host) -> Result<Lock> {
    let path = Path::new(RUN_DIR);
    let run = host.create_directory(path)?;
    take_lock(host, &run, &path.join(LOCKS))
}

/// The lock for a user's own files. `None` without a runtime directory, since no other directory is private.
pub(crate) fn lock_as_user(host: &Host) -> Result<Option<Lock>> {
    let path = PathBuf::from(format!("/run/user/{}", geteuid().as_raw()));
    let run = host.directory(&path)?;
    let path = path.join(USER_DIR);
    run.map(|run| take_lock(host, &run, &path)).transpose()
}

fn take_lock(host: &Host, run: &OwnedFd, path: &Path) -> Result<Lock> {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or(LOCKS);
    let path = host.outside_path(path);
    let locks = open_private(run, name)
        .with_context(|| format!("opening the directory of locks {}", path.display()))?;
    let kind = LockMode::Exclusive;
    Lock::acquire(locks, &path, LOCK_NAME, kind, COMMAND_TIMEOUT)
        .context("locking the configuration files")
}

#[derive(Debug)]
pub(crate) struct ConfigDir {
    path: PathBuf,
    directory: OwnedFd,
}

#[derive(Debug)]
pub(crate) struct ConfigFile {
    pub text: String,
    file: File,
    stat: Stat,
}

impl ConfigDir {
    pub(crate) fn new(path: PathBuf, directory: OwnedFd) -> Self {
        ConfigDir { path, directory }
    }

    /// `None` if it does not exist. Anything but a regular file with one name is an error.
    pub(crate) fn read(&self, name: &OsStr) -> Result<Option<ConfigFile>> {
        let path = self.path.join(name);
        let reading = || format!("reading {}", path.display());
        let unusual = |kind: &str| {
            let path = path.display();
            anyhow!(
                "reading {path}: it is {kind}, and a replacement would break that; edit it \
                 manually"
            )
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file = match openat(&self.directory, name, flags, Mode::empty()) {
            Ok(descriptor) => File::from(descriptor),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(unusual("a symbolic link")),
            Err(Errno::NXIO) => {
                return Err(regular::not_regular_error("a socket")).with_context(reading);
            }
            Err(error) => return Err(error).with_context(reading),
        };
        let metadata = file.metadata().with_context(reading)?;
        regular::refuse_unusual(&metadata).with_context(reading)?;
        let stat = fstat(&file).with_context(reading)?;
        if stat.st_nlink > 1 {
            return Err(unusual("a file of several names (hard links)"));
        }
        if u64::try_from(stat.st_size).is_ok_and(|size| size > MAX_BYTES) {
            return Err(unusual("longer than 4 MiB"));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).with_context(reading)?;
        let text =
            String::from_utf8(bytes).map_err(|_| anyhow!("{}: not UTF-8 text", reading()))?;
        Ok(Some(ConfigFile { text, file, stat }))
    }

    /// The new one has the owner, mode and label of `like`, or else belongs to the caller and has mode 0644. On an
    /// error the old one is intact.
    pub(crate) fn write(&self, name: &OsStr, text: &str, like: Option<&ConfigFile>) -> Result<()> {
        let to_error = |error| self.write_error("writing", name, error);
        let mode = like.map_or(NEW_MODE, |old| old.stat.st_mode & PERMISSIONS);
        let mut temporary =
            TempFile::create(self.directory.as_fd(), name, mode).map_err(to_error)?;
        if let Some(old) = like {
            let copied = attributes::copy(&old.file, &old.stat, temporary.file());
            copied.map_err(|error| error.error).with_context(|| {
                let path = self.path.join(name);
                format!("giving {} its previous owner and label", path.display())
            })?;
        }
        temporary.write(text.as_bytes()).map_err(to_error)?;
        temporary.commit().map_err(to_error)
    }

    pub(crate) fn remove(&self, name: &OsStr) -> Result<()> {
        atomic::remove(&self.directory, name)
            .and_then(|_| atomic::sync(&self.directory))
            .map_err(|error| self.write_error("removing", name, error))
    }

    /// Errors name only the file, not the steps of replacing it.
    fn write_error(&self, action: &str, name: &OsStr, error: WriteError) -> anyhow::Error {
        let path = self.path.join(name);
        anyhow::Error::new(error.source).context(format!("{action} {}", path.display()))
    }
}

/// A file of our own configuration, in a directory that may not exist yet.
pub(crate) struct OwnFile {
    pub path: PathBuf,
    directory: Option<ConfigDir>,
    file: Option<ConfigFile>,
}

impl OwnFile {
    /// Reads a file of [`CONFIG_DIR`].
    pub(crate) fn of_host(host: &Host, name: &str) -> Result<OwnFile> {
        let path = host.outside_path(&Path::new(CONFIG_DIR).join(name));
        OwnFile::read(path, host.directory(Path::new(CONFIG_DIR))?)
    }

    /// Reads a file that a user named, whose directory has to exist.
    pub(crate) fn named(path: &Path) -> Result<OwnFile> {
        let parent = parent_of(path);
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = open(parent, flags, Mode::empty())
            .with_context(|| format!("opening the directory {}", parent.display()))?;
        OwnFile::read(path.to_owned(), Some(open))
    }

    fn read(path: PathBuf, open: Option<OwnedFd>) -> Result<OwnFile> {
        let directory = open.map(|open| ConfigDir::new(parent_of(&path).to_owned(), open));
        let mut own_file = OwnFile { path, directory, file: None };
        if let Some(directory) = &own_file.directory {
            own_file.file = directory.read(own_file.name())?;
        }
        Ok(own_file)
    }

    fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    pub(crate) fn text(&self) -> Option<&str> {
        self.file.as_ref().map(|file| file.text.as_str())
    }

    /// Replaces the file, and creates [`CONFIG_DIR`] if necessary. Removes it if there is no text.
    pub(crate) fn write(&mut self, host: &Host, text: Option<&str>) -> Result<()> {
        if self.directory.is_none() {
            let open = host.create_directory(Path::new(CONFIG_DIR))?;
            self.directory = Some(ConfigDir::new(parent_of(&self.path).to_owned(), open));
        }
        match (&self.directory, text) {
            (Some(directory), Some(text)) => directory.write(self.name(), text, self.file.as_ref()),
            (Some(directory), None) => directory.remove(self.name()),
            (None, _) => Ok(()),
        }
    }
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The name of a file's backup in the same directory.
pub(crate) fn backup_name(path: &Path) -> OsString {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".onload-ctk-backup");
    name
}
