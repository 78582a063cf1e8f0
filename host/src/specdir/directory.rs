//! An open output directory: locking it, reading its files, and carrying out a plan.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::Context;
use onload_core::class::Class;
use onload_sys::fs::atomic::{self, WriteError};
use onload_sys::fs::lock::{COMMAND_TIMEOUT, Lock, LockError, LockMode};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::manifest::{MANIFEST_NAME, Manifest, SpecFormat};
use super::plan::{FileAction, SpecPlan};

/// Other users, for example of rootless engines, read specifications.
const FILE_MODE: u32 = 0o644;
/// In the directory itself, since nothing is written anywhere else; CDI readers use only names that end in .json or
/// .yaml.
pub const LOCK_NAME: &str = ".onload-ctk-lock";
const OWN_PREFIX: &str = ".onload-ctk-";
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;

#[derive(Debug)]
pub struct SpecDir {
    path: PathBuf,
    directory: OwnedFd,
}

impl SpecDir {
    pub fn new(path: PathBuf, directory: OwnedFd) -> Self {
        SpecDir { path, directory }
    }

    /// `None` if it does not exist.
    pub fn open(path: &Path) -> anyhow::Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(directory) => Ok(Some(SpecDir::new(path.to_owned(), directory))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error).context(directory_context("opening", path)),
        }
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Keeps onload-ctk's other writers out until the result is dropped. The kernel releases the lock when the process
    /// ends in any way.
    pub fn lock(&self) -> anyhow::Result<Lock> {
        let (dir, path) = (&self.directory, &self.path);
        let lock = Lock::acquire(dir, path, LOCK_NAME, LockMode::Exclusive, COMMAND_TIMEOUT);
        lock.map_err(|error| match error {
            // The message names the directory, which users know, instead of the lock file.
            LockError::File { source, .. } => {
                anyhow::Error::new(source).context(directory_context("writing to", path))
            }
            error => {
                let what = "locking the directory of CDI specifications";
                anyhow::Error::new(error).context(format!("{what} {}", path.display()))
            }
        })
    }

    /// `None` for what is not a regular file.
    pub fn read_files(&self) -> anyhow::Result<BTreeMap<String, Option<Vec<u8>>>> {
        let names = Class::ALL.into_iter().flat_map(SpecFormat::file_names);
        let mut files = BTreeMap::new();
        for name in names {
            if let Some(content) = self.read(&name)? {
                files.insert(name, content);
            }
        }
        Ok(files)
    }

    /// `None` if there is none, an error text if it cannot be parsed.
    pub fn read_manifest(&self) -> anyhow::Result<Result<Option<Manifest>, String>> {
        let Some(Some(content)) = self.read(MANIFEST_NAME)? else {
            return Ok(Ok(None));
        };
        let path = self.path.join(MANIFEST_NAME);
        Ok(Manifest::parse(&content).map(Some).map_err(|error| {
            let path = path.display();
            format!("reading {path}: {error:#}; its files are treated as files of others")
        }))
    }

    /// The outer `None` if nothing is there, the inner one if it is not a regular file.
    fn read(&self, name: &str) -> anyhow::Result<Option<Option<Vec<u8>>>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let read_context = || format!("reading {}", self.path.join(name).display());
        let file = match rustix::fs::openat(&self.directory, name, flags, Mode::empty()) {
            Ok(descriptor) => File::from(descriptor),
            Err(Errno::NOENT) => return Ok(None),
            // A symbolic link or a socket.
            Err(Errno::LOOP | Errno::NXIO) => return Ok(Some(None)),
            Err(error) => return Err(error).with_context(read_context),
        };
        let metadata = file.metadata().with_context(read_context)?;
        if !metadata.is_file() || metadata.len() > MAX_FILE_BYTES {
            return Ok(Some(None));
        }
        let mut content = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut content).with_context(read_context)?;
        Ok(Some(Some(content)))
    }

    /// Writes and removes files. At every moment, each file is either the old one or the new one, and the manifest
    /// lists it. Nothing is written if nothing changes.
    pub fn apply(&self, plan: &SpecPlan) -> anyhow::Result<()> {
        self.remove_leftovers()?;
        if plan.changes_files() {
            self.write_manifest(&plan.before)?;
        }
        for step in &plan.steps {
            match &step.action {
                FileAction::Write(content) => self.write(&step.name, content)?,
                FileAction::Remove => self.remove(&step.name)?,
                FileAction::Keep | FileAction::Leave | FileAction::Undecided => {}
            }
        }
        self.write_manifest(&plan.after)
    }

    fn write_manifest(&self, manifest: &Manifest) -> anyhow::Result<()> {
        let content = manifest.to_bytes();
        if self.read(MANIFEST_NAME)? == Some(Some(content.clone())) {
            return Ok(());
        }
        self.write(MANIFEST_NAME, &content)
    }

    fn write(&self, name: &str, content: &[u8]) -> anyhow::Result<()> {
        atomic::write_atomic(&self.directory, OsStr::new(name), content, FILE_MODE)
            .map_err(|error| self.write_error("writing", name, error))
    }

    fn remove(&self, name: &str) -> anyhow::Result<()> {
        atomic::remove(&self.directory, OsStr::new(name))
            .and_then(|_| atomic::sync(&self.directory))
            .map_err(|error| self.write_error("removing", name, error))
    }

    /// Removes temporary files of a killed run. The lock guarantees that no other run has any; those of the claims of
    /// Kubernetes stay while they are written.
    fn remove_leftovers(&self) -> anyhow::Result<()> {
        let list_context = || directory_context("listing", &self.path);
        let entries = rustix::fs::Dir::read_from(&self.directory).with_context(list_context)?;
        for entry in entries {
            let entry = entry.with_context(list_context)?;
            let name = entry.file_name().to_str().unwrap_or_default();
            if atomic::is_temporary_name(OsStr::new(name)) {
                atomic::remove_leftover(&self.directory, OsStr::new(name))
                    .map_err(|error| self.write_error("removing", name, error))?;
            }
        }
        Ok(())
    }

    /// The error names the file. Instead of a temporary file or the manifest it names the directory, unless a directory
    /// is in that file's place.
    fn write_error(
        &self,
        action: &'static str,
        name: &str,
        write_error: WriteError,
    ) -> anyhow::Error {
        let error = write_error.source;
        let is_other = error.kind() == std::io::ErrorKind::IsADirectory;
        let what = if name.starts_with(OWN_PREFIX) && !is_other {
            directory_context("writing to", &self.path)
        } else {
            format!("{action} {}", self.path.join(name).display())
        };
        anyhow::Error::new(error).context(what)
    }
}

fn directory_context(action: &str, path: &Path) -> String {
    let path = path.display();
    format!("{action} the directory of CDI specifications {path}")
}
