//! Files replaced whole or not at all: a temporary file in the same directory, synchronised, renamed
//! over the old one, and the directory synchronised. The directory is a descriptor, so that nobody can
//! exchange it on the way.

use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Mode, OFlags, fchmod, fsync, openat, renameat, unlinkat};
use thiserror::Error;

/// Why a file could not be replaced; the old one is then whole, and the temporary one gone.
#[derive(Debug, Error)]
#[error("{action} {}", .name.display())]
pub struct WriteError {
    /// What was being done.
    pub action: &'static str,
    /// The file, in its directory.
    pub name: OsString,
    /// What the kernel said.
    pub source: io::Error,
}

const PREFIX: &str = ".onload-ctk-";
const SUFFIX: &str = ".tmp";
const ATTEMPTS: u32 = 64;

/// Whether a name is that of a temporary file of this module: what a killed process leaves. CDI
/// readers pass it by, since it ends neither in `.json` nor in `.yaml`.
#[must_use]
pub fn is_temporary_name(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(PREFIX.as_bytes()) && name.ends_with(SUFFIX.as_bytes())
}

/// A new file that takes a name when it is complete; dropped before, it is gone.
#[derive(Debug)]
pub struct TempFile<'dir> {
    dir: BorrowedFd<'dir>,
    temporary: Option<OsString>,
    name: OsString,
    file: File,
}

impl<'dir> TempFile<'dir> {
    /// Creates it in `dir`, to become `name`, with exactly the permission bits of `mode`: the umask
    /// takes nothing away.
    ///
    /// # Errors
    /// [`WriteError`], also where `name` is no plain file name.
    pub fn create(dir: BorrowedFd<'dir>, name: &OsStr, mode: u32) -> Result<Self, WriteError> {
        let fail = |action| {
            move |source: io::Error| WriteError {
                action,
                name: name.to_owned(),
                source,
            }
        };
        let bytes = name.as_encoded_bytes();
        if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/') {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "not a plain file name");
            return Err(fail("naming")(source));
        }
        let (temporary, file) = exclusive(dir).map_err(fail("creating a temporary file for"))?;
        let temp = Self {
            dir,
            temporary: Some(temporary),
            name: name.to_owned(),
            file,
        };
        let mode = Mode::from_raw_mode(mode & 0o7777);
        fchmod(&temp.file, mode).map_err(|error| fail("setting the mode of")(error.into()))?;
        Ok(temp)
    }

    /// The open file, to write and to give an owner and labels.
    #[must_use]
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.file.write_all(bytes).map_err(|source| WriteError {
            action: "writing",
            name: self.name.clone(),
            source,
        })
    }

    /// Synchronises it, renames it over its name, and synchronises the directory.
    ///
    /// # Errors
    /// [`WriteError`]. After a failed synchronisation of the directory alone the new file is in place.
    pub fn commit(mut self) -> Result<(), WriteError> {
        let fail = |action, source| WriteError {
            action,
            name: self.name.clone(),
            source,
        };
        self.file
            .sync_all()
            .map_err(|error| fail("synchronising", error))?;
        if let Some(temporary) = self.temporary.as_deref() {
            renameat(self.dir, temporary, self.dir, &self.name)
                .map_err(|error| fail("renaming a temporary file to", error.into()))?;
        }
        let synced =
            fsync(self.dir).map_err(|error| fail("synchronising the directory of", error.into()));
        self.temporary = None;
        synced
    }
}

impl Drop for TempFile<'_> {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // The error that led here is the one to tell.
            let _ = unlinkat(self.dir, temporary, AtFlags::empty());
        }
    }
}

/// A name that is taken, be it by a link that somebody laid, is passed by.
fn exclusive(dir: BorrowedFd<'_>) -> io::Result<(OsString, File)> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..ATTEMPTS {
        // Nobody can lay all names in advance: the state is made of random bytes of the kernel's.
        let random = RandomState::new().build_hasher().finish();
        let name = OsString::from(format!("{PREFIX}{random:016x}{SUFFIX}"));
        match openat(dir, &name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(descriptor) => return Ok((name, File::from(descriptor))),
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AlreadyExists,
        "all temporary names are taken",
    ))
}

/// Replaces `name` in `dir` by `bytes`, with the permission bits of `mode`.
///
/// # Errors
/// [`WriteError`]; see [`TempFile::commit`].
pub fn write_atomic(
    dir: impl AsFd,
    name: &OsStr,
    bytes: &[u8],
    mode: u32,
) -> Result<(), WriteError> {
    let mut temp = TempFile::create(dir.as_fd(), name, mode)?;
    temp.write(bytes)?;
    temp.commit()
}

/// Removes `name` from `dir`; whether it was there.
///
/// # Errors
/// [`WriteError`].
pub fn remove(dir: impl AsFd, name: &OsStr) -> Result<bool, WriteError> {
    match unlinkat(&dir, name, AtFlags::empty()) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(error) => {
            let source = error.into();
            Err(WriteError {
                action: "removing",
                name: name.to_owned(),
                source,
            })
        }
    }
}

/// Synchronises a directory, so that what was renamed in it or removed from it stays so.
///
/// # Errors
/// [`WriteError`].
pub fn sync(dir: impl AsFd) -> Result<(), WriteError> {
    fsync(dir).map_err(|error| {
        let (name, source) = (OsString::from("."), error.into());
        WriteError {
            action: "synchronising the directory",
            name,
            source,
        }
    })
}
