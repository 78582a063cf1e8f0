//! The directory of one container under [`RUN_DIR`], for entry points that give the container something.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use onload_core::container_id::ContainerId;
use onload_core::run_dir::{RUN_DIR, RUN_DIR_MODE, RunDir, make_dir, set_mode};
use onload_sys::error::{Context as _, Result};
use onload_sys::fs::atomic::write_atomic;
use onload_sys::fs::lock::{Lock, LockError, LockMode, START_PATIENCE};
use onload_sys::text::Chain;
use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};

use super::files::{self, RECORD, Record};
use super::maker::{EntryPoint, Maker};
use crate::decide::host::ThisHost;

const OWN_DIR_MODE: Mode = Mode::from_raw_mode(0o755);

#[derive(Debug)]
pub(crate) struct OwnDir {
    pub run: RunDir,
    /// The container's directory in it.
    pub dir: OwnedFd,
    /// Until it is dropped, no poststop removes what is found here. `None` if somebody held the lock for too long; then
    /// nobody else sweeps either.
    pub lock: Option<Lock>,
    pub warning: Option<String>,
    /// What is recorded of the container, an earlier start's included.
    pub record: Record,
    path: PathBuf,
}

impl OwnDir {
    /// Opens it, after creating it if necessary, and records in it that it belongs to this process. Every directory above
    /// it must belong to root.
    pub(crate) fn open(
        id: &ContainerId,
        entry_point: EntryPoint<'_>,
        host: &ThisHost,
    ) -> Result<Self> {
        let run = open_run(host)?;
        let lock = run.lock(LockMode::Shared, START_PATIENCE);
        let maker = Maker::this(entry_point)?;
        let mut own = OwnDir::make(run, id, lock)?;
        // A record that is not understood is replaced; whoever needs it says so.
        let before = files::read_known(&own.dir, &mut Vec::new());
        let before = before.inspect_err(|_| remove_empty(&own.run, id))?;
        own.record = before.unwrap_or_default();
        own.record.maker = Some(maker);
        own.save().inspect_err(|_| own.give_up(id))?;
        Ok(own)
    }

    /// The lock comes first: a directory opened before it may be one that a sweep then removes.
    fn make(run: RunDir, id: &ContainerId, lock: Result<Lock, LockError>) -> Result<Self> {
        let (lock, warning) = match lock {
            Ok(lock) => (Some(lock), None),
            Err(error @ LockError::Held { .. }) => (None, Some(Chain(&error).to_string())),
            Err(error) => return Err(error.into()),
        };
        let path = run.path().join(id.as_str());
        let name = OsStr::new(id.as_str());
        make_dir(&run, name, OWN_DIR_MODE).with_context(|| writing(&path))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = openat(&run, name, flags, Mode::empty());
        let dir = dir.and_then(|dir| set_mode(&dir, OWN_DIR_MODE).map(|()| dir));
        let dir = dir
            .inspect_err(|_| remove_empty(&run, id))
            .with_context(|| writing(&path))?;
        Ok(OwnDir {
            run,
            dir,
            lock,
            warning,
            record: Record::default(),
            path,
        })
    }

    pub(crate) fn save(&self) -> Result<()> {
        files::write(&self.dir, &self.record)
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let written = write_atomic(&self.dir, OsStr::new(name), bytes, 0o644);
        written
            .map_err(|error| error.source)
            .with_context(|| writing(&self.path.join(name)))
    }

    /// Appends to a file in it, which may be mounted in the container.
    pub(crate) fn append(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.dir, name, flags, Mode::empty()).map(File::from);
        let written = file.map_err(io::Error::from);
        let written = written.and_then(|mut file| file.write_all(bytes));
        written.with_context(|| writing(&self.path.join(name)))
    }

    /// Restores it as far as possible. The original error is the one to report.
    pub(crate) fn give_up(&self, id: &ContainerId) {
        if self.record.created.is_none() && self.record.live.is_none() {
            let _ = unlinkat(&self.dir, RECORD, AtFlags::empty());
        }
        remove_empty(&self.run, id);
    }
}

/// Opens [`RUN_DIR`], and makes it first where it is not there; every directory above belongs to root.
pub(crate) fn open_run(host: &ThisHost) -> Result<RunDir> {
    let path = Path::new(RUN_DIR);
    let above = path.parent().unwrap_or(Path::new("/"));
    let above = host.trusted().open_dir(above)?;
    let name = path.file_name().unwrap_or(OsStr::new("onload-ctk"));
    make_dir(&above, name, RUN_DIR_MODE).with_context(|| writing(path))?;
    let run = host.trusted().open_dir(path)?;
    set_mode(&run, RUN_DIR_MODE).with_context(|| writing(path))?;
    Ok(RunDir::new(run.into(), path))
}

pub(crate) fn writing(path: &Path) -> String {
    format!("writing {path:?}")
}

/// Removes the directory if it was just created and is therefore empty. An existing one is not
/// empty and stays.
fn remove_empty(run: &RunDir, id: &ContainerId) {
    let _ = unlinkat(run, id.as_str(), AtFlags::REMOVEDIR);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sweep;

    /// The sweep of another container finds the directory of an earlier start, and removes it while
    /// this start waits for the lock.
    #[test]
    fn a_restart_that_meets_a_sweep_has_a_directory_that_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let run = || RunDir::find(dir.path()).unwrap().unwrap();
        let id: ContainerId = "c1".parse().unwrap();
        std::fs::create_dir(dir.path().join("c1")).unwrap();
        std::fs::write(dir.path().join("c1/record.json"), "{}").unwrap();
        let mut sweeper = run().lock_if_free();
        let lock = run().lock_while(LockMode::Shared, &mut || {
            sweep::clear(&run(), &id, sweeper.take().as_ref()).unwrap();
            assert!(!dir.path().join("c1").exists());
            true
        });
        let own = OwnDir::make(run(), &id, lock).unwrap();
        own.write("ld.so.preload", b"x").unwrap();
        assert!(dir.path().join("c1/ld.so.preload").exists());
    }

    #[test]
    fn a_stranger_s_lock_costs_a_start_a_line_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let run = || RunDir::find(dir.path()).unwrap().unwrap();
        let stranger = run().lock_if_free();
        let lock = run().lock_while(LockMode::Shared, &mut || false);
        let own = OwnDir::make(run(), &"c1".parse().unwrap(), lock).unwrap();
        let line = own.warning.clone().unwrap();
        assert!(own.lock.is_none() && line.contains("holds it"), "{line}");
        own.write("ld.so.preload", b"x").unwrap();
        drop(stranger);
    }
}
