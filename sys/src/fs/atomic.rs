//! Replaces files completely or not at all: writes a temporary file in the same directory, synchronises it, renames it
//! over the old one, and synchronises the directory. The directory is passed as a descriptor, so that it cannot be
//! exchanged in between.

use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, RenameFlags, fchmod, flock, fstat, fsync, openat,
    renameat, renameat_with, unlinkat,
};
use thiserror::Error;

/// A file could not be replaced. The old file is unchanged, and the temporary one was removed.
#[derive(Debug, Error)]
#[error("{action} {}", .name.display())]
pub struct WriteError {
    pub action: &'static str,
    pub name: OsString,
    pub source: io::Error,
}

impl crate::error::TypedError for WriteError {}

const PREFIX: &str = ".onload-ctk-";
const SUFFIX: &str = ".tmp";
const ATTEMPTS: u32 = 64;

/// Returns whether this is the name of one of this module's temporary files, which a killed process leaves behind. CDI
/// readers ignore it, since it ends in neither `.json` nor `.yaml`.
pub fn is_temporary_name(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(PREFIX.as_bytes()) && name.ends_with(SUFFIX.as_bytes())
}

/// Returns the temporary name with this number.
pub fn temporary_name(number: u64) -> OsString {
    OsString::from(format!("{PREFIX}{number:016x}{SUFFIX}"))
}

/// A file under a temporary name, renamed once it is complete. It is removed if it is dropped before.
#[derive(Debug)]
pub struct TempFile<'dir> {
    dir: BorrowedFd<'dir>,
    temporary: Option<OsString>,
    name: OsString,
    file: File,
}

impl<'dir> TempFile<'dir> {
    /// Creates a temporary file in `dir` that will replace `name`, with the permission bits of `mode` regardless of the
    /// umask.
    pub fn create(dir: BorrowedFd<'dir>, name: &OsStr, mode: u32) -> Result<Self, WriteError> {
        let bytes = name.as_encoded_bytes();
        if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/') {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "not a plain file name");
            return Err(write_error("naming", name)(source));
        }
        let created =
            create_exclusive(dir).map_err(write_error("creating a temporary file for", name));
        let (temporary, file) = created?;
        let temp = Self { dir, temporary: Some(temporary), name: name.to_owned(), file };
        let mode = Mode::from_raw_mode(mode & 0o7777);
        fchmod(&temp.file, mode).map_err(write_error("setting the mode of", name))?;
        Ok(temp)
    }

    /// Returns the open file, for writing and for setting its owner and labels.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let written = self.file.write_all(bytes);
        written.map_err(write_error("writing", &self.name))
    }

    /// Synchronises the file, renames it and synchronises the directory. If only the last step fails, the new file is
    /// in place.
    pub fn commit(self) -> Result<(), WriteError> {
        self.commit_with_flags(RenameFlags::empty())
    }

    /// Like [`TempFile::commit`], but fails with EEXIST if the name is taken.
    pub fn commit_new(self) -> Result<(), WriteError> {
        self.commit_with_flags(RenameFlags::NOREPLACE)
    }

    /// Like [`TempFile::commit`], but fails with ENOENT unless a file has the name. Exchanges the two files and removes
    /// the old one.
    pub fn commit_over(self) -> Result<(), WriteError> {
        self.commit_with_flags(RenameFlags::EXCHANGE)
    }

    fn commit_with_flags(mut self, flags: RenameFlags) -> Result<(), WriteError> {
        self.rename(flags)?;
        let synced = fsync(self.dir);
        synced.map_err(write_error("synchronising the directory of", &self.name))
    }

    /// Like [`TempFile::commit`], but does not synchronise the directory: after a crash the file is the old or the new
    /// one.
    pub fn commit_without_dir_sync(mut self) -> Result<(), WriteError> {
        self.rename(RenameFlags::empty())
    }

    fn rename(&mut self, flags: RenameFlags) -> Result<(), WriteError> {
        let (dir, name) = (self.dir, &self.name);
        let synced = self.file.sync_all();
        synced.map_err(write_error("synchronising", name))?;
        if let Some(temporary) = self.temporary.as_deref() {
            let renamed = if flags.is_empty() {
                renameat(dir, temporary, dir, name)
            } else {
                renameat_with(dir, temporary, dir, name, flags)
            };
            renamed.map_err(write_error("renaming a temporary file to", name))?;
        }
        // After an exchange the old file has the temporary name and is removed with it.
        if flags != RenameFlags::EXCHANGE {
            self.temporary = None;
        }
        Ok(())
    }
}

impl Drop for TempFile<'_> {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // The original error is the one to report.
            let _ = unlinkat(self.dir, temporary, AtFlags::empty());
        }
    }
}

/// Creates a file under the first free temporary name. A symbolic link also occupies a name.
fn create_exclusive(dir: BorrowedFd<'_>) -> io::Result<(OsString, File)> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..ATTEMPTS {
        // Another user cannot create all names in advance, since the hasher is seeded with the kernel's random bytes.
        let random = RandomState::new().build_hasher().finish();
        let name = temporary_name(random);
        match openat(dir, &name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(descriptor) => return Ok((name, File::from(descriptor))),
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "all temporary names are taken"))
}

/// Replaces `name` in `dir` with `bytes`, with the permission bits of `mode`.
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

/// Like [`write_atomic`], in a directory where other processes call [`remove_leftover`] at the same time.
pub fn write_atomic_locked(
    dir: impl AsFd,
    name: &OsStr,
    bytes: &[u8],
    mode: u32,
) -> Result<(), WriteError> {
    loop {
        let mut temp = TempFile::create(dir.as_fd(), name, mode)?;
        let locked = flock(&temp.file, FlockOperation::LockExclusive);
        let stat = locked
            .and_then(|()| fstat(&temp.file))
            .map_err(write_error("locking a temporary file for", name))?;
        // Another process may have removed the file before it was locked.
        if stat.st_nlink > 0 {
            temp.write(bytes)?;
            return temp.commit();
        }
    }
}

/// Removes a temporary file that a killed process left behind. Keeps files that [`write_atomic_locked`] is writing.
pub fn remove_leftover(dir: impl AsFd, name: &OsStr) -> Result<(), WriteError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(&dir, name, flags, Mode::empty());
    let is_written = file.as_ref().is_ok_and(|file| {
        let locked = flock(file, FlockOperation::NonBlockingLockExclusive);
        locked == Err(rustix::io::Errno::WOULDBLOCK)
    });
    if is_written {
        return Ok(());
    }
    remove(dir, name).map(drop)
}

/// Removes `name` from `dir`. Returns whether it existed.
pub fn remove(dir: impl AsFd, name: &OsStr) -> Result<bool, WriteError> {
    match unlinkat(&dir, name, AtFlags::empty()) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(error) => Err(write_error("removing", name)(error)),
    }
}

/// Synchronises a directory, so that renames and removals in it survive a crash.
pub fn sync(dir: impl AsFd) -> Result<(), WriteError> {
    fsync(dir).map_err(write_error("synchronising the directory", OsStr::new(".")))
}

fn write_error<E: Into<io::Error>>(
    action: &'static str,
    name: &OsStr,
) -> impl FnOnce(E) -> WriteError {
    move |error| WriteError { action, name: name.to_owned(), source: error.into() }
}
