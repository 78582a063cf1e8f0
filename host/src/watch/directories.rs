//! Watches the entries of directories by inotify(7), including directories that do not exist yet or are replaced. Their
//! parent directories are watched too, starting from the root, so that no new directory is missed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::spec_index::SpecIndex;

/// Size of the buffer for events in bytes; an event has up to 272.
const BUFFER: usize = 16 * 1024;
const ANCESTOR_EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF);
/// Includes changes of owner and mode, which determine whether a file is trusted.
const DIRECTORY_EVENTS: WatchFlags =
    ANCESTOR_EVENTS.union(WatchFlags::CLOSE_WRITE).union(WatchFlags::ATTRIB);
const REMOVAL_EVENTS: ReadFlags = ReadFlags::DELETE_SELF
    .union(ReadFlags::MOVE_SELF)
    .union(ReadFlags::IGNORED)
    .union(ReadFlags::UNMOUNT);
const OWN_PREFIX: &[u8] = b".onload-ctk-";
const OWN_LOCK: &[u8] = b".lock";

#[derive(Debug)]
pub(super) struct DirectoryWatches {
    inotify: OwnedFd,
    paths: Vec<PathBuf>,
    watches: BTreeMap<i32, DirWatch>,
    /// The watch of each wanted directory that exists, by its index in `paths`.
    path_watches: BTreeMap<usize, i32>,
    /// Judges changes in these directories, which are among `paths`.
    spec_dirs: Vec<PathBuf>,
    spec_index: Arc<SpecIndex>,
    missing_sources: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct DirWatch {
    is_target: bool,
    next: BTreeSet<OsString>,
}

impl DirectoryWatches {
    /// `spec_dirs` are watched too. Changes of files there that are not relevant are not reported.
    pub(super) fn watch(
        mut paths: Vec<PathBuf>,
        spec_dirs: Vec<PathBuf>,
        spec_index: Arc<SpecIndex>,
    ) -> io::Result<Self> {
        paths.extend(spec_dirs.iter().cloned());
        let mut directories = DirectoryWatches {
            inotify: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            paths,
            spec_dirs,
            spec_index,
            watches: BTreeMap::new(),
            path_watches: BTreeMap::new(),
            missing_sources: BTreeSet::new(),
        };
        directories.arm();
        Ok(directories)
    }

    pub(super) fn missing_sources(&self) -> impl Iterator<Item = &str> {
        self.missing_sources.iter().map(String::as_str)
    }

    fn arm(&mut self) {
        let mut watches: BTreeMap<i32, DirWatch> = BTreeMap::new();
        self.path_watches.clear();
        for (index, target) in self.paths.iter().enumerate() {
            let mut path = PathBuf::new();
            let mut names = target.components().peekable();
            while let Some(name) = names.next() {
                path.push(name);
                let next = names.peek().map(|next| next.as_os_str());
                let watch = match add(&self.inotify, &path, next.is_none()) {
                    Ok(watch) => watch,
                    Err(Errno::NOENT | Errno::NOTDIR) => break,
                    Err(error) => {
                        let error = io::Error::from(error);
                        let message = format!("watching {}: {error}", path.display());
                        self.missing_sources.insert(message);
                        break;
                    }
                };
                let entry = watches.entry(watch).or_default();
                match next {
                    Some(next) => drop(entry.next.insert(next.to_owned())),
                    None => {
                        entry.is_target = true;
                        self.path_watches.insert(index, watch);
                    }
                }
            }
        }
        for old in self.watches.keys().filter(|old| !watches.contains_key(old)) {
            // The kernel has already removed the watches of deleted directories.
            let _ = inotify::remove_watch(&self.inotify, *old);
        }
        self.watches = watches;
    }

    /// Returns whether entries of a wanted directory have changed, or it was created, deleted or replaced.
    pub(super) fn read(&mut self) -> io::Result<bool> {
        let (mut is_changed, needs_arming) = self.read_events()?;
        if needs_arming {
            let before = self.path_watches.clone();
            self.arm();
            is_changed |= self.path_watches != before;
        }
        Ok(is_changed)
    }

    /// Returns whether entries of a wanted directory have changed, and whether watches must be set up again.
    fn read_events(&self) -> io::Result<(bool, bool)> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        let (mut is_changed, mut needs_arming) = (false, false);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok((is_changed, needs_arming)),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                (is_changed, needs_arming) = (true, true);
            }
            let Some(watch) = self.watches.get(&event.wd()) else {
                continue;
            };
            needs_arming |= event.events().intersects(REMOVAL_EVENTS);
            let Some(name) = event.file_name() else {
                continue;
            };
            let name = OsStr::from_bytes(name.to_bytes());
            needs_arming |= watch.next.contains(name);
            is_changed |= watch.is_target
                && !is_silent(name)
                && self.is_relevant(event.wd(), name, event.events());
        }
    }

    /// Returns whether a change of an entry matters. In a directory of specifications, only relevant files do.
    fn is_relevant(&self, watch: i32, name: &OsStr, events: ReadFlags) -> bool {
        // A volume of Kubernetes replaces all of its files by a link `..data`.
        let is_many =
            events.contains(ReadFlags::ISDIR) || name.as_encoded_bytes().starts_with(b"..");
        self.path_watches
            .iter()
            .filter(|(_, target)| **target == watch)
            .filter_map(|(index, _)| self.paths.get(*index))
            .any(|dir| {
                is_many
                    || !self.spec_dirs.contains(dir)
                    || self.spec_index.is_relevant_change(&dir.join(name))
            })
    }
}

impl AsFd for DirectoryWatches {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

fn add(inotify: &OwnedFd, path: &Path, is_target: bool) -> Result<i32, Errno> {
    let events = if is_target { DIRECTORY_EVENTS } else { ANCESTOR_EVENTS };
    // MASK_ADD, because a directory may be wanted and a parent of another one.
    inotify::add_watch(inotify, path, events | WatchFlags::MASK_ADD | WatchFlags::ONLYDIR)
}

fn is_silent(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.starts_with(OWN_PREFIX) || name == OWN_LOCK
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use onload_core::class::Class;

    use super::*;
    use crate::spec_name::SpecName;
    use crate::specdir::{DesiredSpecs, Manifest, SpecDir, SpecFormat, plan};

    /// A directory with directories that are watched, and what was told of them.
    struct Watched {
        root: tempfile::TempDir,
        directories: DirectoryWatches,
    }

    impl Watched {
        fn new(make: &[&str], wanted: &[&str]) -> Watched {
            let root = tempfile::tempdir().unwrap();
            for path in make {
                fs::create_dir_all(root.path().join(path)).unwrap();
            }
            let wanted = wanted.iter().map(|path| root.path().join(path));
            let directories =
                DirectoryWatches::watch(wanted.collect(), Vec::new(), Arc::default()).unwrap();
            assert_eq!(directories.missing_sources().next(), None);
            Watched { root, directories }
        }

        fn path(&self, path: &str) -> PathBuf {
            self.root.path().join(path)
        }

        fn is_told(&mut self) -> bool {
            self.directories.read().unwrap()
        }
    }

    #[test]
    fn entries_that_come_change_and_go_are_told() {
        let mut watched = Watched::new(&["cdi"], &["cdi"]);
        assert!(!watched.is_told());
        let (one, two) = (watched.path("cdi/one"), watched.path("cdi/two"));
        fs::write(&one, "a").unwrap();
        assert!(watched.is_told());
        fs::rename(&one, &two).unwrap();
        assert!(watched.is_told());
        fs::set_permissions(&two, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(watched.is_told());
        fs::write(&two, "b").unwrap();
        assert!(watched.is_told());
        fs::remove_file(&two).unwrap();
        assert!(watched.is_told());
        symlink("/nowhere", &one).unwrap();
        assert!(watched.is_told());
    }

    #[test]
    fn reading_a_file_and_what_stands_beside_the_directory_are_not_told() {
        let mut watched = Watched::new(&["run/cdi"], &["run/cdi"]);
        let file = watched.path("run/cdi/one");
        fs::write(&file, "a").unwrap();
        assert!(watched.is_told());
        fs::read(&file).unwrap();
        fs::write(watched.path("run/other"), "").unwrap();
        fs::create_dir(watched.path("run/cdi-other")).unwrap();
        assert!(!watched.is_told());
    }

    #[test]
    fn locks_and_temporary_files_of_ours_are_not_told() {
        let mut watched = Watched::new(&["cdi"], &["cdi"]);
        let temporary = watched.path("cdi/.onload-ctk-0123456789abcdef.tmp");
        fs::write(watched.path("cdi/.onload-ctk-lock"), "").unwrap();
        fs::write(watched.path("cdi/.lock"), "").unwrap();
        fs::write(&temporary, "").unwrap();
        assert!(!watched.is_told());
        fs::rename(temporary, watched.path("cdi/one.json")).unwrap();
        assert!(watched.is_told());
        fs::write(watched.path("cdi/..data"), "").unwrap();
        assert!(watched.is_told());
    }

    #[test]
    fn the_file_of_a_vendor_is_told_and_a_run_of_ours_that_changes_nothing_is_not() {
        let mut watched = Watched::new(&["etc/cdi", "run/cdi"], &["etc/cdi", "run/cdi"]);
        // As nvidia-ctk writes it.
        fs::write(watched.path("run/cdi/nvidia.yaml.1"), "kind: a").unwrap();
        let from = watched.path("run/cdi/nvidia.yaml.1");
        fs::rename(from, watched.path("run/cdi/nvidia.yaml")).unwrap();
        assert!(watched.is_told());
        fs::write(watched.path("etc/cdi/amd.json"), "{}").unwrap();
        assert!(watched.is_told());
        let wanted = DesiredSpecs {
            scope: vec![Class::Rdma],
            files: BTreeMap::from([(SpecName::devices(Class::Rdma), b"{}".to_vec())]),
            format: SpecFormat::Json,
            undecided: BTreeSet::new(),
            manifest: Manifest::default(),
            force: false,
        };
        let run = |watched: &Watched| {
            let directory = SpecDir::open(&watched.path("run/cdi")).unwrap().unwrap();
            let _lock = directory.lock().unwrap();
            let manifest = directory.read_manifest().unwrap().unwrap();
            let existing = directory.read_files().unwrap();
            let plan = plan(&wanted, &existing, manifest.as_ref());
            directory.apply(&plan).unwrap();
        };
        run(&watched);
        assert!(watched.is_told());
        run(&watched);
        assert!(!watched.is_told());
    }

    #[test]
    fn only_relevant_files_of_specification_directories_are_told() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("cdi");
        fs::create_dir(&dir).unwrap();
        let mut directories =
            DirectoryWatches::watch(Vec::new(), vec![dir.clone()], Arc::default()).unwrap();
        let mut is_told = || directories.read().unwrap();
        let spec = |kind: &str| {
            format!(
                r#"{{"cdiVersion":"0.5.0","kind":"{kind}","devices":[{{"name":"a","containerEdits":{{"env":["A=1"]}}}}]}}"#
            )
        };
        fs::write(dir.join("other.json"), spec("vendor.example/x")).unwrap();
        fs::write(dir.join("claim.onload.dev-1.json"), spec("onload.dev/claim")).unwrap();
        assert!(!is_told());
        fs::write(dir.join("other.json"), spec("onload.dev/nic")).unwrap();
        assert!(is_told());
        fs::remove_file(dir.join("other.json")).unwrap();
        assert!(is_told());
        fs::remove_file(dir.join("claim.onload.dev-1.json")).unwrap();
        assert!(!is_told());
        fs::write(dir.join("onload.dev-nic.json"), "{").unwrap();
        assert!(is_told());
        symlink("elsewhere", dir.join("..data")).unwrap();
        assert!(is_told());
        fs::remove_dir_all(&dir).unwrap();
        assert!(is_told());
    }

    #[test]
    fn a_directory_that_does_not_exist_yet_is_told_when_it_comes() {
        let mut watched = Watched::new(&[], &["run/ctk/leases"]);
        fs::create_dir(watched.path("run")).unwrap();
        assert!(!watched.is_told());
        // All at once: what is made before the directory is watched is in it when it is told.
        fs::create_dir_all(watched.path("run/ctk/leases")).unwrap();
        fs::write(watched.path("run/ctk/leases/a"), "").unwrap();
        assert!(watched.is_told());
        fs::write(watched.path("run/ctk/leases/b"), "").unwrap();
        assert!(watched.is_told());
    }

    #[test]
    fn a_directory_that_is_replaced_is_told_and_the_new_one_is_watched() {
        let mut watched = Watched::new(&["run/cdi", "new"], &["run/cdi"]);
        fs::rename(watched.path("run/cdi"), watched.path("old")).unwrap();
        fs::rename(watched.path("new"), watched.path("run/cdi")).unwrap();
        assert!(watched.is_told());
        fs::write(watched.path("old/a"), "").unwrap();
        assert!(!watched.is_told());
        fs::write(watched.path("run/cdi/b"), "").unwrap();
        assert!(watched.is_told());
        // A directory above it.
        fs::rename(watched.path("run"), watched.path("away")).unwrap();
        assert!(watched.is_told());
        fs::create_dir_all(watched.path("run/cdi")).unwrap();
        assert!(watched.is_told());
        fs::remove_dir_all(watched.path("run")).unwrap();
        assert!(watched.is_told());
    }

    #[test]
    fn a_link_on_the_way_is_followed_and_watched() {
        let root = tempfile::tempdir().unwrap();
        for path in ["one/cdi", "two/cdi"] {
            fs::create_dir_all(root.path().join(path)).unwrap();
        }
        symlink("one", root.path().join("run")).unwrap();
        let wanted = vec![root.path().join("run/cdi")];
        let directories = DirectoryWatches::watch(wanted, Vec::new(), Arc::default()).unwrap();
        let mut watched = Watched { root, directories };
        fs::write(watched.path("one/cdi/a"), "").unwrap();
        assert!(watched.is_told());
        fs::remove_file(watched.path("run")).unwrap();
        symlink("two", watched.path("run")).unwrap();
        assert!(watched.is_told());
        fs::write(watched.path("two/cdi/b"), "").unwrap();
        assert!(watched.is_told());
    }

    #[test]
    fn a_directory_may_be_wanted_twice_and_be_on_the_way_to_another() {
        let mut watched = Watched::new(&["run"], &["run", "run/leases", "run"]);
        fs::write(watched.path("run/a"), "").unwrap();
        assert!(watched.is_told());
        fs::create_dir(watched.path("run/leases")).unwrap();
        assert!(watched.is_told());
        fs::write(watched.path("run/leases/b"), "").unwrap();
        assert!(watched.is_told());
    }

    #[test]
    fn a_file_in_the_place_of_a_directory_is_none() {
        let mut watched = Watched::new(&["run/cdi"], &["run/cdi"]);
        fs::remove_dir(watched.path("run/cdi")).unwrap();
        fs::write(watched.path("run/cdi"), "").unwrap();
        assert!(watched.is_told());
        fs::remove_file(watched.path("run/cdi")).unwrap();
        fs::create_dir(watched.path("run/cdi")).unwrap();
        assert!(watched.is_told());
    }

    #[test]
    fn more_events_than_the_kernel_keeps_mean_everything() {
        let limit: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let mut watched = Watched::new(&["cdi"], &["cdi"]);
        let files = [watched.path("cdi/a"), watched.path("cdi/b")];
        files.iter().for_each(|file| fs::write(file, "").unwrap());
        // Of two equal events in a row the kernel keeps one.
        for file in files.iter().cycle().take(limit + 2) {
            fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
        }
        // No event of a file says that there may be another directory.
        assert_eq!(watched.directories.read_events().unwrap(), (true, true));
        fs::write(watched.path("cdi/c"), "").unwrap();
        assert!(watched.is_told());
    }
}
