//! The directory of one container under [`RUN_DIR`], for entry points that give the container something.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use onload_core::container_id::ContainerId;
use onload_lease::run_dir::{RUN_DIR, RUN_DIR_MODE, RunDir, make_dir, set_mode};
use onload_sys::error::{Context as _, Result};
use onload_sys::fs::atomic::{TempFile, WriteError};
use onload_sys::fs::attributes::set_label;
use onload_sys::fs::lock::{Lock, LockError, LockMode, START_TIMEOUT};
use onload_sys::fs::trust::TrustedTree;
use onload_sys::text::ErrorChain;
use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};

use super::container_record::{self, ContainerRecord, CreatedPath, LiveInjection, RECORD};
use super::creator::{Creator, CreatorStage};
use crate::decide::host_view::LocalHost;

const OWN_DIR_MODE: Mode = Mode::from_raw_mode(0o755);

#[derive(Debug)]
pub(crate) struct ContainerDir {
    pub run: RunDir,
    /// The container's directory in it.
    pub dir: OwnedFd,
    /// Prevents poststop from removing files until it is dropped. `None` if another process held the lock for too long,
    /// in which case it also prevents sweeps.
    lock: Option<Lock>,
    /// Time limit for waiting for the lock again.
    timeout: Duration,
    pub warning: Option<String>,
    /// The record of the container, including that of an earlier start.
    pub record: ContainerRecord,
    path: PathBuf,
}

impl ContainerDir {
    /// Opens it, after creating it if necessary, and records in it that it belongs to this process. Every directory above
    /// it must belong to root.
    pub(crate) fn open(
        id: &ContainerId,
        stage: CreatorStage,
        bundle: &Path,
        root: Option<&Path>,
        host: &LocalHost,
    ) -> Result<Self> {
        let run = open_run(host.trusted())?;
        let lock = run.lock(LockMode::Shared, START_TIMEOUT);
        let creator = Creator::current(stage, bundle, root)?;
        let mut container_dir = ContainerDir::create(run, id, lock)?;
        container_dir.read().inspect_err(|_| remove_empty(&container_dir.run, id))?;
        container_dir.record.maker = Some(creator);
        container_dir.save().inspect_err(|_| container_dir.remove_if_unused(id))?;
        Ok(container_dir)
    }

    /// The lock comes first: a directory opened before it may be one that a sweep then removes.
    fn create(run: RunDir, id: &ContainerId, lock: Result<Lock, LockError>) -> Result<Self> {
        let (lock, warning) = match lock {
            Ok(lock) => (Some(lock), None),
            Err(error @ LockError::Held { .. }) => (None, Some(ErrorChain(&error).to_string())),
            Err(error) => return Err(error.into()),
        };
        let path = run.path().join(id.as_str());
        let name = OsStr::new(id.as_str());
        make_dir(&run, name, OWN_DIR_MODE).with_context(|| write_context(&path))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = openat(&run, name, flags, Mode::empty())
            .and_then(|dir| set_mode(&dir, OWN_DIR_MODE).map(|()| dir))
            .inspect_err(|_| remove_empty(&run, id))
            .with_context(|| write_context(&path))?;
        Ok(ContainerDir {
            run,
            dir,
            timeout: lock.as_ref().map_or(Duration::ZERO, |_| START_TIMEOUT),
            lock,
            warning,
            record: ContainerRecord::default(),
            path,
        })
    }

    /// Reads the container's record. A record that cannot be parsed is replaced, and commands that need it report that.
    fn read(&mut self) -> Result<()> {
        let before = container_record::read_known(&self.dir, &mut Vec::new())?;
        self.record = before.unwrap_or_default();
        // Removes the injection of an earlier start without poststop, since a sweep would judge this container by it.
        if let Some(creator) = &self.record.maker {
            let live = &mut self.record.live;
            live.take_if(|injection| creator.has_ended(injection.pid, injection.start_time));
        }
        Ok(())
    }

    pub(crate) fn save(&self) -> Result<()> {
        container_record::write(&self.dir, &self.record)
    }

    /// Records the paths that will be created in the container's root, in addition to those of an earlier start, and
    /// releases the lock: a container with the same root that ends finds this record and hands over what it created
    /// there.
    pub(crate) fn record_planned(&mut self, root: &Path, missing: &[CreatedPath]) -> Result<()> {
        let created = self.record.created.get_or_insert_default();
        if created.root != root {
            created.made.clear();
        }
        root.clone_into(&mut created.root);
        created.made.retain(|path| path.inode.is_some());
        created.made.extend_from_slice(missing);
        self.save()?;
        self.lock = None;
        Ok(())
    }

    /// Records the paths that were created, in addition to those handed over in the meantime, and the data for
    /// `reapply`.
    pub(crate) fn record_created(
        &mut self,
        missing: &[CreatedPath],
        created_paths: impl Iterator<Item = CreatedPath>,
        injection: LiveInjection,
    ) -> Result<()> {
        let _lock = match self.run.lock(LockMode::Shared, self.timeout) {
            Err(error) if !matches!(error, LockError::Held { .. }) => return Err(error.into()),
            lock => lock.ok(),
        };
        let recorded = container_record::read(&self.dir)?.and_then(|record| record.created);
        let created = self.record.created.get_or_insert_default();
        if let Some(recorded) = recorded {
            *created = recorded;
        }
        created.made.retain(|path| !missing.contains(path));
        created.made.extend(created_paths);
        self.record.live = Some(injection);
        self.save()
    }

    /// Takes the lock for undoing a start. Returns `None` if another process holds it for too long.
    pub(crate) fn lock_alone(&mut self) -> Option<Lock> {
        self.lock = None;
        self.run.lock(LockMode::Exclusive, self.timeout).ok()
    }

    /// Writes a file that is mounted in the container, and gives it the label of SELinux that the container's files have.
    pub(crate) fn write(&self, name: &str, bytes: &[u8], label: Option<&str>) -> Result<()> {
        let cause = |error: WriteError| error.source;
        let write = || -> io::Result<()> {
            let mut file =
                TempFile::create(self.dir.as_fd(), OsStr::new(name), 0o644).map_err(cause)?;
            file.write(bytes).map_err(cause)?;
            if let Some(label) = label {
                set_label(file.file(), label)?;
            }
            file.commit().map_err(cause)
        };
        write().with_context(|| write_context(&self.path.join(name)))
    }

    /// Appends to a file in it, which may be mounted in the container.
    pub(crate) fn append(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.dir, name, flags, Mode::empty()).map(File::from);
        let written = file.map_err(io::Error::from).and_then(|mut file| file.write_all(bytes));
        written.with_context(|| write_context(&self.path.join(name)))
    }

    /// Restores it as far as possible. The original error is the one to report.
    pub(crate) fn remove_if_unused(&self, id: &ContainerId) {
        if self.record.created.is_none() && self.record.live.is_none() {
            let _ = unlinkat(&self.dir, RECORD, AtFlags::empty());
        }
        remove_empty(&self.run, id);
    }
}

/// Opens [`RUN_DIR`], and makes it first where it is not there; every directory above belongs to root.
pub(crate) fn open_run(trusted: &TrustedTree) -> Result<RunDir> {
    let path = Path::new(RUN_DIR);
    let above = path.parent().unwrap_or(Path::new("/"));
    let above = trusted.open_dir(above)?;
    let name = path.file_name().unwrap_or(OsStr::new("onload-ctk"));
    make_dir(&above, name, RUN_DIR_MODE).with_context(|| write_context(path))?;
    let run = trusted.open_dir(path)?;
    set_mode(&run, RUN_DIR_MODE).with_context(|| write_context(path))?;
    Ok(RunDir::new(run.into(), path))
}

pub(crate) fn write_context(path: &Path) -> String {
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
    use crate::record::container_record::TargetType;
    use crate::record::init::InitProcess;
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
        let sweeper = run().lock_if_free();
        let lock = std::thread::scope(|scope| {
            let sweep = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                sweep::clear(&run(), &id, sweeper.as_ref()).unwrap();
                assert!(!dir.path().join("c1").exists());
                drop(sweeper);
            });
            let lock = run().lock(LockMode::Shared, Duration::from_secs(60));
            sweep.join().unwrap();
            lock
        });
        let own = ContainerDir::create(run(), &id, lock).unwrap();
        own.write("ld.so.preload", b"x", None).unwrap();
        assert!(dir.path().join("c1/ld.so.preload").exists());
    }

    #[test]
    fn a_restart_without_a_poststop_is_not_swept_for_the_process_that_was() {
        let dir = tempfile::tempdir().unwrap();
        let run = || RunDir::find(dir.path()).unwrap().unwrap();
        let lock = run().lock(LockMode::Shared, Duration::ZERO);
        let mut own = ContainerDir::create(run(), &"c1".parse().unwrap(), lock).unwrap();
        let creator = Creator::current(CreatorStage::Hook, Path::new("/b"), None);
        own.record.maker = Some(creator.unwrap());
        let pid = std::process::id();
        let started = InitProcess::open(Some(pid)).unwrap().start_time().unwrap();
        for (start_time, stays) in [(started, true), (started - 1, false)] {
            own.record.live = Some(LiveInjection { pid, start_time, ..LiveInjection::default() });
            own.save().unwrap();
            own.read().unwrap();
            assert_eq!(own.record.live.is_some(), stays);
        }
    }

    /// Another container of the same root ends between what this one records before its mounts and after them.
    #[test]
    fn what_is_handed_over_during_a_start_is_recorded_with_what_that_created() {
        let (dir, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let run = || RunDir::find(dir.path()).unwrap().unwrap();
        let start = |id: &str| {
            let lock = run().lock(LockMode::Shared, Duration::ZERO);
            ContainerDir::create(run(), &id.parse().unwrap(), lock).unwrap()
        };
        let target = |name: &str, inode| CreatedPath {
            inode,
            ..CreatedPath::new(Path::new(name), TargetType::File)
        };
        let create = |own: &mut ContainerDir, name| {
            let missing = [target(name, None)];
            own.record_planned(root.path(), &missing).unwrap();
            missing
        };
        let mut first = start("c1");
        let missing = create(&mut first, "/a");
        std::fs::write(root.path().join("a"), "").unwrap();
        let made = [target("/a", Some(7))];
        let done = first.record_created(&missing, made.into_iter(), LiveInjection::default());
        done.unwrap();

        let mut second = start("c2");
        let missing = create(&mut second, "/b");
        let alone = run().lock_if_free();
        assert!(alone.is_some(), "who mounts holds no lock");
        sweep::clear(&run(), &"c1".parse().unwrap(), alone.as_ref()).unwrap();
        drop(alone);
        assert!(!dir.path().join("c1").exists());
        let made = [target("/b", Some(8))];
        second.record_created(&missing, made.into_iter(), LiveInjection::default()).unwrap();
        let record = container_record::read(&second.dir).unwrap().unwrap();
        let both = [target("/a", Some(7)), target("/b", Some(8))];
        assert_eq!(record.created.unwrap().made, both);
        assert!(root.path().join("a").exists());
    }

    #[test]
    fn what_a_container_reads_has_the_label_of_its_files() {
        if !onload_test_needs::root("labelling a file") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::find(dir.path()).unwrap().unwrap();
        let lock = run.lock(LockMode::Shared, Duration::ZERO);
        let own = ContainerDir::create(run, &"c1".parse().unwrap(), lock).unwrap();
        let label = "system_u:object_r:container_file_t:s0:c40,c987";
        own.write("ld.so.preload", b"x", Some(label)).unwrap();
        let mut found = [0; 100];
        let path = dir.path().join("c1/ld.so.preload");
        let length = rustix::fs::getxattr(path, "security.selinux", &mut found[..]).unwrap();
        assert_eq!(&found[..length], label.as_bytes());
    }

    #[test]
    fn a_stranger_s_lock_costs_a_start_a_line_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let run = || RunDir::find(dir.path()).unwrap().unwrap();
        let stranger = run().lock_if_free();
        let lock = run().lock(LockMode::Shared, Duration::ZERO);
        let own = ContainerDir::create(run(), &"c1".parse().unwrap(), lock).unwrap();
        let line = own.warning.clone().unwrap();
        assert!(own.lock.is_none() && line.contains("holds it"), "{line}");
        own.write("ld.so.preload", b"x", None).unwrap();
        drop(stranger);
    }
}
