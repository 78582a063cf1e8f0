//! Which CDI files matter to this project. Drivers of other vendors write one for each claim, so there may be
//! thousands that change all the time: each is read once, until it changes.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memchr::memchr;
use memchr::memmem;
use onload_cdi::{MAX_FILE_BYTES, Registry, SpecSource, from_json, from_yaml};
use onload_core::class::Class;

pub const FILE_PREFIX: &str = "onload.dev-";
const VENDOR_PREFIX: &str = "onload.dev/";
pub(crate) const NVIDIA_GPU: &str = "nvidia.com/gpu";
pub(crate) const AMD_GPU: &str = "amd.com/gpu";

/// Tells one content of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    /// Returns `None` if there is no such file. A dangling link has the stamp of the link.
    fn read(path: &Path) -> Option<FileStamp> {
        let metadata: Metadata = fs::metadata(path).or_else(|_| fs::symlink_metadata(path)).ok()?;
        Some(FileStamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct IndexedFile {
    stamp: FileStamp,
    is_relevant: bool,
}

#[derive(Debug, Default)]
pub struct SpecIndex {
    files: Mutex<BTreeMap<PathBuf, IndexedFile>>,
}

impl SpecIndex {
    fn lock_files(&self) -> MutexGuard<'_, BTreeMap<PathBuf, IndexedFile>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a file may have devices of our classes or GPUs.
    pub(crate) fn is_relevant(&self, path: &Path) -> bool {
        self.relevant_stamp(path).is_some()
    }

    /// Returns whether a change of a file matters: whether it is relevant, or was before.
    pub(crate) fn is_relevant_change(&self, path: &Path) -> bool {
        let before = self.lock_files().get(path).copied();
        let is_relevant = self.is_relevant(path);
        is_relevant || before.is_some_and(|file| file.is_relevant)
    }

    fn relevant_stamp(&self, path: &Path) -> Option<FileStamp> {
        let Some(stamp) = FileStamp::read(path) else {
            self.lock_files().remove(path);
            return None;
        };
        let known = self.lock_files().get(path).copied().filter(|file| file.stamp == stamp);
        let is_relevant = match known {
            Some(file) => file.is_relevant,
            None => {
                // A file that cannot be read may be readable the next time, with the same stamp.
                let Ok(is_relevant) = read_relevance(path) else {
                    self.lock_files().remove(path);
                    return Some(stamp);
                };
                self.lock_files().insert(path.to_owned(), IndexedFile { stamp, is_relevant });
                is_relevant
            }
        };
        is_relevant.then_some(stamp)
    }

    /// Reads the specifications of our classes and of GPUs. `dirs`: as in [`Registry::scan`].
    pub fn scan(&self, dirs: &[PathBuf]) -> (Registry, SpecFiles) {
        let mut listed = BTreeMap::new();
        let registry = Registry::scan_filtered(dirs, |path, priority| {
            let stamp = self.relevant_stamp(path);
            listed.insert(path.to_owned(), (priority, stamp));
            stamp.is_some()
        });
        self.lock_files().retain(|path, _| {
            let is_scanned = path.parent().is_some_and(|dir| dirs.iter().any(|other| other == dir));
            !is_scanned || listed.contains_key(path)
        });
        let files = listed
            .into_iter()
            .filter_map(|(path, (priority, stamp))| Some((path, (priority, stamp?))));
        (registry, SpecFiles { files: files.collect() })
    }
}

/// The files that [`SpecIndex::scan`] read, with their state at that time. An answer to an engine reads no others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecFiles {
    /// With the priority of the directory.
    files: BTreeMap<PathBuf, (usize, FileStamp)>,
}

impl SpecFiles {
    /// Returns whether none of the files has changed since.
    pub fn is_current(&self) -> bool {
        self.files.iter().all(|(path, (_, stamp))| FileStamp::read(path).as_ref() == Some(stamp))
    }

    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.keys().map(PathBuf::as_path)
    }

    /// Reads these files again, without those that are gone.
    pub fn read(&self) -> (Registry, SpecFiles) {
        let files: BTreeMap<PathBuf, (usize, FileStamp)> = self
            .files
            .iter()
            .filter_map(|(path, (priority, _))| {
                Some((path.clone(), (*priority, FileStamp::read(path)?)))
            })
            .collect();
        let sources =
            files.iter().map(|(path, (priority, _))| SpecSource::read(path.clone(), *priority));
        (Registry::from_sources(sources.collect()), SpecFiles { files })
    }
}

/// A file with our name is relevant whatever is in it, since devices may be missing because it is broken.
fn read_relevance(path: &Path) -> io::Result<bool> {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    if name.starts_with(FILE_PREFIX.as_bytes()) {
        return Ok(true);
    }
    let parse = match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => from_json,
        Some("yaml") => from_yaml,
        _ => return Ok(false),
    };
    if !fs::metadata(path)?.is_file() {
        return Ok(false);
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    // A backslash may spell any letter of the kind.
    let may_be_relevant = [VENDOR_PREFIX, NVIDIA_GPU, AMD_GPU]
        .into_iter()
        .any(|text| memmem::find(&bytes, text.as_bytes()).is_some())
        || memchr(b'\\', &bytes).is_some();
    if !may_be_relevant || bytes.len() as u64 > MAX_FILE_BYTES {
        return Ok(false);
    }
    Ok(parse(&bytes).is_ok_and(|spec| {
        let kind = spec.kind.as_str();
        let class = kind.strip_prefix(VENDOR_PREFIX).map(str::parse::<Class>);
        class.is_some_and(|class| class.is_ok()) || [NVIDIA_GPU, AMD_GPU].contains(&kind)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: &str = r#"{"cdiVersion":"0.5.0","kind":"KIND","devices":[{"name":"a","containerEdits":{"env":["A=1"]}}]}"#;

    struct Specs {
        dir: tempfile::TempDir,
        index: SpecIndex,
    }

    impl Specs {
        fn new() -> Specs {
            Specs { dir: tempfile::tempdir().unwrap(), index: SpecIndex::default() }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn write(&self, name: &str, text: &str) {
            let new = self.path("new");
            fs::write(&new, text).unwrap();
            fs::rename(new, self.path(name)).unwrap();
        }

        fn names(&self) -> Vec<String> {
            let (registry, _) = self.index.scan(&[self.dir.path().to_owned()]);
            registry.devices().map(|device| device.name.to_string()).collect()
        }
    }

    #[test]
    fn only_files_of_our_classes_and_gpus_are_read_by_a_scan() {
        let specs = Specs::new();
        for (name, kind) in [
            ("onload.dev-nic.json", "onload.dev/nic"),
            ("theirs.json", "onload.dev/vfio"),
            ("escaped.json", r"onload\u002edev/rdma"),
            ("gpu.yaml", NVIDIA_GPU),
            ("claim.onload.dev-1.json", "onload.dev/claim"),
            ("other.json", "vendor.example/x"),
            ("note.txt", "onload.dev/ptp"),
        ] {
            specs.write(name, &SPEC.replace("KIND", kind));
        }
        let names =
            ["nvidia.com/gpu=a", "onload.dev/nic=a", "onload.dev/rdma=a", "onload.dev/vfio=a"];
        assert_eq!(specs.names(), names);
    }

    #[test]
    fn a_file_is_read_again_only_after_it_has_changed() {
        let specs = Specs::new();
        specs.write("other.json", &SPEC.replace("KIND", "vendor.example/x"));
        assert!(!specs.index.is_relevant(&specs.path("other.json")));
        specs.write("other.json", &SPEC.replace("KIND", "onload.dev/nic"));
        assert!(specs.index.is_relevant(&specs.path("other.json")));
        // A remembered result is used, even if it is wrong.
        specs.index.lock_files().get_mut(&specs.path("other.json")).unwrap().is_relevant = false;
        assert!(!specs.index.is_relevant(&specs.path("other.json")));
        assert!(specs.names().is_empty());
    }

    #[test]
    fn files_that_are_gone_are_forgotten() {
        let specs = Specs::new();
        for name in ["a.json", "b.json"] {
            specs.write(name, &SPEC.replace("KIND", "vendor.example/x"));
        }
        specs.names();
        assert_eq!(specs.index.lock_files().len(), 2);
        fs::remove_file(specs.path("a.json")).unwrap();
        assert!(!specs.index.is_relevant_change(&specs.path("a.json")));
        assert_eq!(specs.index.lock_files().len(), 1);
        fs::remove_file(specs.path("b.json")).unwrap();
        specs.names();
        assert!(specs.index.lock_files().is_empty());
    }

    #[test]
    fn a_change_matters_if_the_file_is_relevant_or_was() {
        let specs = Specs::new();
        let path = specs.path("a.json");
        let write = |kind: &str| specs.write("a.json", &SPEC.replace("KIND", kind));
        write("vendor.example/x");
        assert!(!specs.index.is_relevant_change(&path));
        write("onload.dev/nic");
        assert!(specs.index.is_relevant_change(&path));
        write("vendor.example/x");
        assert!(specs.index.is_relevant_change(&path));
        assert!(!specs.index.is_relevant_change(&path));
        // A broken file with our name may be why devices are missing.
        specs.write("onload.dev-nic.json", "{");
        assert!(specs.index.is_relevant_change(&specs.path("onload.dev-nic.json")));
    }

    #[test]
    fn answers_read_only_the_files_of_the_scan() {
        let specs = Specs::new();
        specs.write("onload.dev-nic.json", &SPEC.replace("KIND", "onload.dev/nic"));
        specs.write("onload.dev-vfio.json", &SPEC.replace("KIND", "onload.dev/vfio"));
        let (_, files) = specs.index.scan(&[specs.dir.path().to_owned()]);
        specs.write("other.json", &SPEC.replace("KIND", "onload.dev/rdma"));
        assert!(files.is_current());
        fs::remove_file(specs.path("onload.dev-vfio.json")).unwrap();
        assert!(!files.is_current());
        let (registry, again) = files.read();
        let names: Vec<String> = registry.devices().map(|device| device.name.to_string()).collect();
        assert_eq!(names, ["onload.dev/nic=a"]);
        assert!(again.is_current());
    }
}
