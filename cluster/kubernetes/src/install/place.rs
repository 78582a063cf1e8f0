//! The directory of the host that holds the hooks, one directory a version: looked at, made, and written to
//! through descriptors of what was checked.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use onload_core::fs::atomic::{self, TempFile};
use onload_core::fs::lock::{COMMAND_PATIENCE, Lock, LockMode};
use onload_core::fs::trust::{Owners, Trusted, TrustedDir};
use onload_core::run_dir::set_mode;
use onload_host::host::Host;
use rustix::fs::{AtFlags, Mode, StatVfsMountFlags, fstatvfs, mkdirat, renameat, unlinkat};
use rustix::io::Errno;

use super::error::InstallError;
use super::record::{RECORD_NAME, Record, is_version, sha256};
use crate::spec_writer::HOOK_NAME;

/// Bytes of a hook: ours has a few millions.
pub(super) const HOOK_LIMIT: u64 = 64 * 1024 * 1024;
/// Bytes of a record that are read.
const RECORD_LIMIT: u64 = 1024 * 1024;
/// Names of a directory that are looked at.
const NAMES: usize = 10_000;
/// The lock that installers take while they change something.
const LOCK_NAME: &str = ".lock";
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);
const FILE_MODE: u32 = 0o644;
/// The mode of a hook.
pub(super) const HOOK_MODE: u32 = 0o755;

/// A tree of directories that belong to root alone, in which a directory is looked up.
#[derive(Debug)]
pub(super) struct Tree {
    trusted: Trusted,
    /// The root of the host, as this process sees it.
    root: PathBuf,
}

/// What stands in the place of a version's hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HookFile {
    /// The sha256 of its content, in hexadecimal.
    pub sha256: String,
    pub mode: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    /// The hooks, by version; `None` for a directory without one.
    pub hooks: BTreeMap<String, Option<HookFile>>,
    /// What was installed.
    pub record: Record,
}

/// How the file system of the directory is mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mounted {
    pub read_only: bool,
    pub noexec: bool,
}

/// An open directory of the tree.
#[derive(Debug)]
pub(super) struct Directory {
    fd: OwnedFd,
    /// Where it is, as this process sees it.
    pub path: PathBuf,
}

impl Tree {
    /// The tree of a host, in which these users own all that is used.
    ///
    /// # Errors
    /// The root cannot be opened.
    pub(super) fn of(host: &Host, owners: Owners) -> Result<Self, InstallError> {
        let root: PathBuf = host.outside_path(Path::new("/")).components().collect();
        let trusted = Trusted::below(&root, owners).map_err(InstallError::trust(&root))?;
        Ok(Tree { trusted, root })
    }

    /// The path of something of the host, as this process sees it.
    pub(super) fn outside(&self, path: &Path) -> PathBuf {
        let below = path.strip_prefix("/").unwrap_or(path);
        self.root.join(below)
    }

    fn look(&self, path: &Path) -> Result<Option<TrustedDir<'_>>, InstallError> {
        match self.trusted.open_dir(path) {
            Ok(dir) => Ok(Some(dir)),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(InstallError::trust(&self.outside(path))(error)),
        }
    }

    /// Opens a directory; `None` if it does not exist.
    ///
    /// # Errors
    /// Somebody else could change it, or a directory above it; it cannot be opened.
    pub(super) fn open(&self, path: &Path) -> Result<Option<Directory>, InstallError> {
        let found = self.look(path)?;
        Ok(found.map(|found| Directory {
            fd: found.into(),
            path: self.outside(path),
        }))
    }

    /// How the file system is mounted that holds a directory, or will hold it.
    ///
    /// # Errors
    /// Somebody else could change a directory above it.
    pub(super) fn mounted(&self, path: &Path) -> Result<Mounted, InstallError> {
        for above in path.ancestors() {
            let Some(found) = self.look(above)? else {
                continue;
            };
            let failed = InstallError::path("looking at the file system of", &self.outside(above));
            let flags = fstatvfs(&found)
                .map_err(|error| failed(error.into()))?
                .f_flag;
            return Ok(Mounted {
                read_only: flags.contains(StatVfsMountFlags::RDONLY),
                noexec: flags.contains(StatVfsMountFlags::NOEXEC),
            });
        }
        Ok(Mounted::default())
    }

    /// Opens a directory, after making it and those above it where they are missing (mode 0755).
    ///
    /// # Errors
    /// As [`Tree::open`]; one cannot be made.
    pub(super) fn make(&self, path: &Path) -> Result<Directory, InstallError> {
        let mut above: Vec<&Path> = path.ancestors().collect();
        above.reverse();
        for pair in above.windows(2) {
            let [parent, child] = pair else { continue };
            if self.look(child)?.is_some() {
                continue;
            }
            let failed = |error: Errno| {
                InstallError::path("making the directory", &self.outside(child))(error.into())
            };
            let parent = self.look(parent)?.ok_or_else(|| failed(Errno::NOENT))?;
            let name = child.file_name().unwrap_or_default();
            match mkdirat(&parent, name, DIRECTORY_MODE) {
                Ok(()) => {}
                // Another installer was faster.
                Err(Errno::EXIST) => continue,
                Err(error) => return Err(failed(error)),
            }
            let made = self.look(child)?.ok_or_else(|| failed(Errno::NOENT))?;
            set_mode(&made, DIRECTORY_MODE).map_err(failed)?;
        }
        let path_outside = self.outside(path);
        let found = self.open(path)?;
        found.ok_or_else(|| InstallError::path("opening", &path_outside)(Errno::NOENT.into()))
    }

    /// What a directory of hooks holds; nothing where it does not exist.
    ///
    /// # Errors
    /// As [`Tree::open`]; a file of ours cannot be read, or somebody else could change it.
    pub(super) fn content(&self, path: &Path) -> Result<Content, InstallError> {
        let Some(dir) = self.look(path)? else {
            return Ok(Content::default());
        };
        let names = dir.names(
            |name| std::str::from_utf8(name).is_ok_and(is_version),
            NAMES,
        );
        let names = names.map_err(InstallError::trust(&self.outside(path)))?;
        let names = names.iter().filter_map(|name| name.to_str());
        let mut content = Content {
            hooks: BTreeMap::new(),
            record: self.record(path)?,
        };
        for version in names {
            let hook = self.hook(&path.join(version))?;
            content.hooks.insert(version.to_owned(), hook);
        }
        Ok(content)
    }

    fn record(&self, path: &Path) -> Result<Record, InstallError> {
        let path = path.join(RECORD_NAME);
        let bytes = match self
            .trusted
            .open(&path)
            .and_then(|file| file.read(RECORD_LIMIT))
        {
            Ok(bytes) => bytes,
            Err(error) if error.is_absent() => return Ok(Record::default()),
            Err(error) => return Err(InstallError::trust(&self.outside(&path))(error)),
        };
        Record::parse(&bytes).map_err(|error| InstallError::Record {
            path: self.outside(&path),
            why: error.to_string(),
        })
    }

    /// The hook in the directory of a version.
    fn hook(&self, version: &Path) -> Result<Option<HookFile>, InstallError> {
        let path = self.outside(&version.join(HOOK_NAME));
        let Some(dir) = self.look(version)? else {
            return Ok(None);
        };
        let file = match dir.open(OsStr::new(HOOK_NAME)) {
            Ok(file) => file,
            Err(error) if error.is_absent() => return Ok(None),
            Err(error) => return Err(InstallError::trust(&path)(error)),
        };
        let metadata = file.file.metadata();
        let metadata = metadata.map_err(InstallError::path("looking at", &path))?;
        let content = file.read(HOOK_LIMIT).map_err(InstallError::trust(&path))?;
        Ok(Some(HookFile {
            sha256: sha256(&content),
            mode: metadata.permissions().mode() & 0o7777,
        }))
    }

    /// Opens a file for reading; `None` if it does not exist.
    ///
    /// # Errors
    /// [`InstallError::Trust`].
    pub(super) fn file(&self, path: &Path) -> Result<Option<File>, InstallError> {
        match self.trusted.open(path) {
            Ok(opened) => Ok(Some(opened.file)),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(InstallError::trust(&self.outside(path))(error)),
        }
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Directory {
    /// Keeps other installers out until the result is dropped.
    ///
    /// # Errors
    /// [`InstallError::Lock`].
    pub(super) fn lock(&self) -> Result<Lock, InstallError> {
        let (name, mode) = (LOCK_NAME, LockMode::Exclusive);
        Ok(Lock::take(
            &self.fd,
            &self.path,
            name,
            mode,
            COMMAND_PATIENCE,
        )?)
    }

    /// Replaces a file, completely or not at all.
    ///
    /// # Errors
    /// [`InstallError::Path`]; the old file is unchanged.
    pub(super) fn put(
        &self,
        name: &str,
        bytes: &[u8],
        mode: u32,
        prepare: impl FnOnce(&File) -> Result<(), InstallError>,
    ) -> Result<(), InstallError> {
        let failed = || InstallError::write(&self.path);
        let temp = TempFile::create(self.as_fd(), OsStr::new(name), mode);
        let mut temp = temp.map_err(failed())?;
        temp.write(bytes).map_err(failed())?;
        prepare(temp.file())?;
        temp.commit().map_err(failed())
    }

    /// Writes the record.
    ///
    /// # Errors
    /// [`InstallError::Path`].
    pub(super) fn put_record(&self, record: &Record) -> Result<(), InstallError> {
        self.put(RECORD_NAME, &record.to_bytes(), FILE_MODE, |_| Ok(()))
    }

    /// Writes a configuration file.
    ///
    /// # Errors
    /// [`InstallError::Path`].
    pub(super) fn put_text(&self, name: &str, text: &str) -> Result<(), InstallError> {
        self.put(name, text.as_bytes(), FILE_MODE, |_| Ok(()))
    }

    /// Gives a file another name, which it takes from whatever has it.
    ///
    /// # Errors
    /// [`InstallError::Path`].
    pub(super) fn rename(&self, from: &str, to: &str) -> Result<(), InstallError> {
        renameat(&self.fd, from, &self.fd, to)
            .map_err(|error| InstallError::path("renaming", &self.path.join(from))(error.into()))?;
        atomic::sync(&self.fd).map_err(InstallError::write(&self.path))
    }

    /// Removes a file, if it exists.
    ///
    /// # Errors
    /// [`InstallError::Path`].
    pub(super) fn remove(&self, name: &str) -> Result<(), InstallError> {
        let removed = atomic::remove(&self.fd, OsStr::new(name));
        removed.map_err(InstallError::write(&self.path))?;
        atomic::sync(&self.fd).map_err(InstallError::write(&self.path))
    }

    /// Removes what is ours beside hooks: the record and the lock.
    ///
    /// # Errors
    /// [`InstallError::Path`].
    pub(super) fn remove_own(&self) -> Result<(), InstallError> {
        self.remove(RECORD_NAME)?;
        self.remove(LOCK_NAME)
    }

    /// Removes a directory in it; whether that was possible. It is not where something is left in it, or
    /// where it is mounted.
    ///
    /// # Errors
    /// [`InstallError::Path`].
    pub(super) fn remove_directory(&self, name: &OsStr) -> Result<bool, InstallError> {
        match unlinkat(&self.fd, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::BUSY) => Ok(false),
            Err(error) => {
                let path = self.path.join(name);
                Err(InstallError::path("removing the directory", &path)(
                    error.into(),
                ))
            }
        }
    }
}
