//! An open output directory: locking it, reading its files, and carrying out a plan.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use onload_core::class::Class;
use onload_core::fs::atomic::{self, WriteError};
use onload_core::fs::lock::{COMMAND_PATIENCE, Lock, LockError, LockMode};
use onload_core::text::Chain;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::manifest::{Format, MANIFEST_NAME, Manifest};
use super::plan::{Action, Plan};

/// Other users, such as those of rootless engines, read specifications.
const FILE_MODE: u32 = 0o644;
/// The lock of the directory. It is inside it, since nothing is written anywhere else; CDI readers
/// use only names that end in .json or .yaml.
pub const LOCK_NAME: &str = ".onload-ctk-lock";
/// How the names of the lock, of the manifest and of temporary files begin.
const OWN_PREFIX: &str = ".onload-ctk-";
/// Bytes of a file of ours that are read back.
const FILE_LIMIT: u64 = 64 * 1024 * 1024;

#[derive(Debug)]
pub struct SpecDir {
    path: PathBuf,
    directory: OwnedFd,
}

/// Why an output directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpecDirError {
    /// It cannot be locked, or another process holds the lock.
    #[error("locking the directory of CDI specifications {}", .path.display())]
    Lock {
        path: PathBuf,
        /// Who holds it, or the system's error.
        source: LockError,
    },
    /// It cannot be opened, listed or written to.
    #[error("{action} the directory of CDI specifications {}", .path.display())]
    Directory {
        /// What was being done.
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// A file in it cannot be read.
    #[error("reading {}", .path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    /// A file in it cannot be written or removed; the old one is still whole.
    #[error("{action} {}", .path.display())]
    Write {
        /// What was being done.
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
}

impl SpecDir {
    /// Wraps a directory that is already open.
    #[must_use]
    pub fn new(path: PathBuf, directory: OwnedFd) -> Self {
        SpecDir { path, directory }
    }

    /// Opens a directory; `None` if it does not exist.
    ///
    /// # Errors
    /// It exists but is not a directory, or cannot be opened.
    pub fn open(path: &Path) -> Result<Option<Self>, SpecDirError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(directory) => Ok(Some(SpecDir::new(path.to_owned(), directory))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(SpecDirError::Directory {
                action: "opening",
                path: path.to_owned(),
                source: error.into(),
            }),
        }
    }

    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Keeps onload-ctk's other writers out until the result is dropped. The kernel releases the
    /// lock when the process ends in any way.
    ///
    /// # Errors
    /// [`SpecDirError::Lock`], also if another process holds it for too long.
    pub fn lock(&self) -> Result<Lock, SpecDirError> {
        let (dir, path) = (&self.directory, &self.path);
        let lock = Lock::take(dir, path, LOCK_NAME, LockMode::Exclusive, COMMAND_PATIENCE);
        lock.map_err(|error| match error {
            // Which file of ours it was is nothing to people: they know the directory.
            LockError::File { source, .. } => self.error("writing to", source),
            source => SpecDirError::Lock {
                path: path.clone(),
                source,
            },
        })
    }

    /// The files with our names and their content; `None` for what is not a regular file.
    ///
    /// # Errors
    /// A file exists but cannot be read.
    pub fn existing(&self) -> Result<BTreeMap<String, Option<Vec<u8>>>, SpecDirError> {
        let names = Class::ALL.into_iter().flat_map(Format::file_names);
        let mut files = BTreeMap::new();
        for name in names {
            if let Some(content) = self.read(&name)? {
                files.insert(name, content);
            }
        }
        Ok(files)
    }

    /// The manifest: `None` if there is none, an error text if it cannot be parsed.
    ///
    /// # Errors
    /// It exists but cannot be read.
    pub fn manifest(&self) -> Result<Result<Option<Manifest>, String>, SpecDirError> {
        let Some(Some(content)) = self.read(MANIFEST_NAME)? else {
            return Ok(Ok(None));
        };
        let path = self.path.join(MANIFEST_NAME);
        Ok(Manifest::parse(&content).map(Some).map_err(|error| {
            format!(
                "reading {}: {}; files there count as somebody else's",
                path.display(),
                Chain(&error)
            )
        }))
    }

    /// A file's content: the outer `None` if nothing is there, the inner one if it is not a regular
    /// file.
    fn read(&self, name: &str) -> Result<Option<Option<Vec<u8>>>, SpecDirError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.directory, name, flags, Mode::empty()) {
            Ok(descriptor) => File::from(descriptor),
            Err(Errno::NOENT) => return Ok(None),
            // A symbolic link or a socket.
            Err(Errno::LOOP | Errno::NXIO) => return Ok(Some(None)),
            Err(error) => return Err(self.read_error(name, error.into())),
        };
        let metadata = file
            .metadata()
            .map_err(|error| self.read_error(name, error))?;
        if !metadata.is_file() || metadata.len() > FILE_LIMIT {
            return Ok(Some(None));
        }
        let mut content = Vec::new();
        file.take(FILE_LIMIT)
            .read_to_end(&mut content)
            .map_err(|error| self.read_error(name, error))?;
        Ok(Some(Some(content)))
    }

    /// Carries out a plan. Whatever happens meanwhile, each file is either the old one or the new
    /// one, and the manifest lists it. Nothing is written if nothing changes.
    ///
    /// # Errors
    /// A file cannot be written or removed; the remaining steps are not done.
    pub fn carry_out(&self, plan: &Plan) -> Result<(), SpecDirError> {
        self.remove_leftovers()?;
        if plan.changes_files() {
            self.write_manifest(&plan.before)?;
        }
        for step in &plan.steps {
            match &step.action {
                Action::Write(content) => self.write(&step.name, content)?,
                Action::Remove => self.remove(&step.name)?,
                Action::Keep | Action::Leave | Action::Undecided => {}
            }
        }
        self.write_manifest(&plan.after)
    }

    fn write_manifest(&self, manifest: &Manifest) -> Result<(), SpecDirError> {
        let content = manifest.to_bytes();
        if self.read(MANIFEST_NAME)? == Some(Some(content.clone())) {
            return Ok(());
        }
        self.write(MANIFEST_NAME, &content)
    }

    fn write(&self, name: &str, content: &[u8]) -> Result<(), SpecDirError> {
        atomic::write_atomic(&self.directory, OsStr::new(name), content, FILE_MODE)
            .map_err(|failed| self.write_error("writing", name, failed))
    }

    fn remove(&self, name: &str) -> Result<(), SpecDirError> {
        atomic::remove(&self.directory, OsStr::new(name))
            .and_then(|_| atomic::sync(&self.directory))
            .map_err(|failed| self.write_error("removing", name, failed))
    }

    /// Removes temporary files of a killed run. The lock guarantees that no other run has any.
    fn remove_leftovers(&self) -> Result<(), SpecDirError> {
        let entries = rustix::fs::Dir::read_from(&self.directory)
            .map_err(|source| self.error("listing", source))?;
        for entry in entries {
            let entry = entry.map_err(|source| self.error("listing", source))?;
            let name = entry.file_name().to_str().unwrap_or_default();
            if atomic::is_temporary_name(OsStr::new(name)) {
                atomic::remove(&self.directory, OsStr::new(name))
                    .map_err(|failed| self.write_error("removing", name, failed))?;
            }
        }
        Ok(())
    }

    fn error(&self, action: &'static str, source: Errno) -> SpecDirError {
        SpecDirError::Directory {
            action,
            path: self.path.clone(),
            source: source.into(),
        }
    }

    fn read_error(&self, name: &str, source: std::io::Error) -> SpecDirError {
        SpecDirError::Read {
            path: self.path.join(name),
            source,
        }
    }

    /// Names the file; of one that is there for us alone its directory, but where something else stands
    /// in its place.
    fn write_error(&self, action: &'static str, name: &str, failed: WriteError) -> SpecDirError {
        let source = failed.source;
        let is_other = source.kind() == std::io::ErrorKind::IsADirectory;
        if name.starts_with(OWN_PREFIX) && !is_other {
            return SpecDirError::Directory {
                action: "writing to",
                path: self.path.clone(),
                source,
            };
        }
        SpecDirError::Write {
            action,
            path: self.path.join(name),
            source,
        }
    }
}
