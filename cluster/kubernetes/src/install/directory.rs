//! The host's directory of hooks, with one directory per version. All access goes through descriptors of checked
//! directories.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result};
use onload_host::host::Host;
use onload_host::specdir::sha256;
use onload_lease::run_dir::set_mode;
use onload_sys::fs::atomic::{self, TempFile, WriteError};
use onload_sys::fs::lock::{COMMAND_TIMEOUT, Lock, LockMode};
use onload_sys::fs::trust::{TrustError, TrustedDir, TrustedOwners, TrustedTree};
use rustix::fs::{AtFlags, Mode, StatVfsMountFlags, fstatvfs, mkdirat, renameat, unlinkat};
use rustix::io::Errno;

use super::record::{InstallRecord, RECORD_NAME};
use crate::spec_writer::{HOOK_NAME, VERSION};

/// Limit for a hook in bytes. The hook of this version has a few million bytes.
pub(super) const MAX_HOOK_BYTES: u64 = 64 * 1024 * 1024;
/// Limit for a record in bytes.
const MAX_RECORD_BYTES: u64 = 1024 * 1024;
/// The lock that installers take while they change something.
const LOCK_NAME: &str = ".lock";
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);
const FILE_MODE: u32 = 0o644;
pub(super) const HOOK_MODE: u32 = 0o755;

/// A tree of directories that only root can change.
#[derive(Debug)]
pub(super) struct TrustedRoot {
    trusted: TrustedTree,
    /// The root of the host, as this process sees it.
    root: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HookFile {
    /// The sha256 of its content, in hexadecimal.
    pub sha256: String,
    pub mode: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InstalledContent {
    /// The hook of this version.
    pub hook: Option<HookFile>,
    pub record: InstallRecord,
}

#[derive(Debug)]
pub(super) struct HookDirectory {
    fd: OwnedFd,
    /// Its path as this process sees it.
    pub path: PathBuf,
}

/// Returns the result, or `None` if the file does not exist.
fn if_present<T>(result: Result<T, TrustError>, path: &Path) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error).with_context(|| read_context(path)),
    }
}

fn read_context(path: &Path) -> String {
    format!("looking at {}", path.display())
}

impl TrustedRoot {
    /// Opens the root of a host. Only files and directories of `owners` are trusted.
    pub(super) fn for_host(host: &Host, owners: TrustedOwners) -> Result<Self> {
        let root: PathBuf = host.outside_path(Path::new("/")).components().collect();
        let trusted = TrustedTree::for_tree(&root, owners).with_context(|| read_context(&root))?;
        Ok(TrustedRoot { trusted, root })
    }

    /// Returns a path of the host as this process sees it.
    pub(super) fn outside_path(&self, path: &Path) -> PathBuf {
        let below = path.strip_prefix("/").unwrap_or(path);
        self.root.join(below)
    }

    fn open_dir(&self, path: &Path) -> Result<Option<TrustedDir<'_>>> {
        if_present(self.trusted.open_dir(path), &self.outside_path(path))
    }

    /// Opens a directory; `None` if it does not exist.
    pub(super) fn open(&self, path: &Path) -> Result<Option<HookDirectory>> {
        let dir = self.open_dir(path)?;
        Ok(dir.map(|dir| HookDirectory { fd: dir.into(), path: self.outside_path(path) }))
    }

    /// Returns the mount flags of the file system that holds a directory, or will hold it.
    pub(super) fn mount_flags(&self, path: &Path) -> Result<StatVfsMountFlags> {
        for above in path.ancestors() {
            let Some(dir) = self.open_dir(above)? else {
                continue;
            };
            let status = fstatvfs(&dir).with_context(|| {
                let path = self.outside_path(above);
                format!("looking at the file system of {}", path.display())
            })?;
            return Ok(status.f_flag);
        }
        Ok(StatVfsMountFlags::empty())
    }

    /// Opens a directory, creating it and its parents with mode 0755 if they are missing.
    pub(super) fn create_dir(&self, path: &Path) -> Result<HookDirectory> {
        let mut above: Vec<&Path> = path.ancestors().collect();
        above.reverse();
        for pair in above.windows(2) {
            let [parent, child] = pair else { continue };
            if self.open_dir(child)?.is_some() {
                continue;
            }
            let making = || format!("making the directory {}", self.outside_path(child).display());
            let parent = self.open_dir(parent)?.ok_or(Errno::NOENT).with_context(making)?;
            let name = child.file_name().unwrap_or_default();
            match mkdirat(&parent, name, DIRECTORY_MODE) {
                Ok(()) => {}
                // Another installer has just created this directory.
                Err(Errno::EXIST) => continue,
                Err(error) => return Err(error).with_context(making),
            }
            let created = self.open_dir(child)?.ok_or(Errno::NOENT).with_context(making)?;
            set_mode(&created, DIRECTORY_MODE).with_context(making)?;
        }
        let directory = self.open(path)?.ok_or(Errno::NOENT);
        directory.with_context(|| format!("opening {}", self.outside_path(path).display()))
    }

    /// Returns the content of a directory of hooks. Empty if it does not exist.
    pub(super) fn read_content(&self, path: &Path) -> Result<InstalledContent> {
        let hook = self.read_hook(&path.join(VERSION))?;
        Ok(InstalledContent { hook, record: self.record(path)? })
    }

    fn record(&self, path: &Path) -> Result<InstallRecord> {
        let path = path.join(RECORD_NAME);
        let outside = self.outside_path(&path);
        let result = self.trusted.open(&path).and_then(|file| file.read(MAX_RECORD_BYTES));
        let Some(bytes) = if_present(result, &outside)? else {
            return Ok(InstallRecord::default());
        };
        InstallRecord::parse(&bytes).map_err(|why| {
            Error::msg(format!("reading {}: {why}; nothing is changed", outside.display()))
        })
    }

    fn read_hook(&self, version: &Path) -> Result<Option<HookFile>> {
        let path = self.outside_path(&version.join(HOOK_NAME));
        let Some(dir) = self.open_dir(version)? else {
            return Ok(None);
        };
        let Some(file) = if_present(dir.open(OsStr::new(HOOK_NAME)), &path)? else {
            return Ok(None);
        };
        let metadata = file.file.metadata().with_context(|| read_context(&path))?;
        let content = file.read(MAX_HOOK_BYTES).with_context(|| read_context(&path))?;
        Ok(Some(HookFile {
            sha256: sha256(&content),
            mode: metadata.permissions().mode() & 0o7777,
        }))
    }

    /// Opens a file for reading; `None` if it does not exist.
    pub(super) fn open_file(&self, path: &Path) -> Result<Option<File>> {
        let opened = if_present(self.trusted.open(path), &self.outside_path(path))?;
        Ok(opened.map(|opened| opened.file))
    }
}

impl AsFd for HookDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl HookDirectory {
    /// Locks out other installers until the result is dropped.
    pub(super) fn lock(&self) -> Result<Lock> {
        let (name, mode) = (LOCK_NAME, LockMode::Exclusive);
        Ok(Lock::acquire(&self.fd, &self.path, name, mode, COMMAND_TIMEOUT)?)
    }

    fn write_error(&self, failed: WriteError) -> Error {
        let path = self.path.join(&failed.name);
        Error::new(failed.source).context(format!("{} {}", failed.action, path.display()))
    }

    fn sync(&self) -> Result<()> {
        atomic::sync(&self.fd).map_err(|failed| self.write_error(failed))
    }

    /// Replaces a file atomically, after calling `prepare` on the new file.
    pub(super) fn write_file(
        &self,
        name: &str,
        bytes: &[u8],
        mode: u32,
        prepare: impl FnOnce(&File) -> Result<()>,
    ) -> Result<()> {
        let failed = |failed| self.write_error(failed);
        let mut temp = TempFile::create(self.as_fd(), OsStr::new(name), mode).map_err(failed)?;
        temp.write(bytes).map_err(failed)?;
        prepare(temp.file())?;
        temp.commit().map_err(failed)
    }

    pub(super) fn write_text(&self, name: &str, text: &str) -> Result<()> {
        self.write_file(name, text.as_bytes(), FILE_MODE, |_| Ok(()))
    }

    /// Renames a file, replacing the target.
    pub(super) fn rename(&self, from: &str, to: &str) -> Result<()> {
        renameat(&self.fd, from, &self.fd, to)
            .with_context(|| format!("renaming {}", self.path.join(from).display()))?;
        self.sync()
    }

    /// Removes a file, if it exists.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        let removed = atomic::remove(&self.fd, OsStr::new(name));
        removed.map_err(|failed| self.write_error(failed))?;
        self.sync()
    }

    /// Removes the record and the lock file.
    pub(super) fn remove_own(&self) -> Result<()> {
        self.remove(RECORD_NAME)?;
        self.remove(LOCK_NAME)
    }

    /// Removes a subdirectory. Returns false if it is not empty or is a mount point.
    pub(super) fn remove_directory(&self, name: &OsStr) -> Result<bool> {
        match unlinkat(&self.fd, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::BUSY) => Ok(false),
            Err(error) => Err(error).with_context(|| {
                format!("removing the directory {}", self.path.join(name).display())
            }),
        }
    }
}
