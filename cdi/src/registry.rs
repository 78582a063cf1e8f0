//! The devices that an engine finds in its specification directories.
//!
//! Files end in `.json` or `.yaml`; `.yml` files and subdirectories are ignored. A later directory
//! has the higher priority. If a device is in two directories, the one with the higher priority is
//! used. If it is in two files of one directory, it cannot be requested at all. An invalid file does
//! not affect the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::name::QualifiedName;
use crate::parse::{self, ParseError};
use crate::spec::{ContainerEdits, Device, Spec};
use crate::validate::{Problems, validate};

/// The default directories of engines, starting with the lowest priority.
pub const DEFAULT_DIRS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// Maximum size of a file. Larger files are reported and not read.
pub const MAX_FILE_BYTES: u64 = 16 << 20;

/// Why a specification could not be loaded from a file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file cannot be read.
    #[error("reading the file")]
    Read(#[source] io::Error),
    /// The content is not a specification.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// The file is YAML, and this crate was built without the feature `yaml`.
    #[error("reading YAML: this program reads JSON only")]
    NoYaml,
    /// The error of a caller that reads files itself to create a [`SpecSource`].
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

/// An error of a file or directory.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The directory cannot be read.
    #[error("reading the directory")]
    Directory(#[source] io::Error),
    /// The file could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The specification is not valid.
    #[error(transparent)]
    Invalid(#[from] Problems),
    /// Other files of the same priority offer the same device.
    #[error("device {name} is also in {}, so engines do not resolve it", join_paths(.others))]
    Conflict {
        /// The device.
        name: QualifiedName,
        /// The other files.
        others: Vec<PathBuf>,
    },
}

fn join_paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// A file of a specification directory.
#[derive(Debug)]
pub struct SpecSource {
    /// Path of the file.
    pub path: PathBuf,
    /// Index of its directory. The highest one takes precedence.
    pub priority: usize,
    /// The specification, or why it could not be loaded.
    pub content: Result<Spec, LoadError>,
}

impl SpecSource {
    /// Reads a file, as [`Registry::scan`] does.
    #[must_use]
    pub fn read(path: PathBuf, priority: usize) -> Self {
        SpecSource { content: read(&path), path, priority }
    }
}

/// A device that can be requested.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ResolvedDevice<'a> {
    /// Name of the device.
    pub name: &'a QualifiedName,
    /// The file that offers the device.
    pub path: &'a Path,
    /// The priority of that file.
    pub priority: usize,
    /// The content of that file.
    pub spec: &'a Spec,
    /// The device's entry in that file.
    pub device: &'a Device,
}

/// A device that several files of the same priority offer, so that it cannot be requested.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conflict {
    /// Name of the device.
    pub name: QualifiedName,
    /// The priority of the files.
    pub priority: usize,
    /// The files.
    pub paths: Vec<PathBuf>,
}

/// A device hidden by a file with a higher priority.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShadowedDevice {
    /// Name of the device.
    pub name: QualifiedName,
    /// The file whose entry has no effect.
    pub path: PathBuf,
    /// The file whose entry is used.
    pub by: PathBuf,
}

/// The error for requested names that no file offers.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("resolving CDI devices: no specification offers {}", join_names(.names))]
#[non_exhaustive]
pub struct UnresolvableError {
    /// The names, as requested.
    pub names: Vec<QualifiedName>,
}

fn join_names(names: &[QualifiedName]) -> String {
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A valid file.
#[derive(Debug)]
struct SpecFile {
    path: PathBuf,
    priority: usize,
    spec: Spec,
}

/// The devices of a set of files.
#[derive(Debug, Default)]
pub struct Registry {
    files: Vec<SpecFile>,
    /// For each device, the index of its file in `files` and its index in that file's specification.
    devices: BTreeMap<QualifiedName, (usize, usize)>,
    errors: BTreeMap<PathBuf, Vec<RegistryError>>,
    conflicts: Vec<Conflict>,
    shadowed: Vec<ShadowedDevice>,
}

impl Registry {
    /// Creates a registry from files. Files of the same priority stay in the order of `sources`.
    #[must_use]
    pub fn from_sources(mut sources: Vec<SpecSource>) -> Self {
        sources.sort_by_key(|source| source.priority);
        let mut registry = Self::default();
        let mut locations_by_name: BTreeMap<QualifiedName, Vec<(usize, usize)>> = BTreeMap::new();
        for SpecSource { path, priority, content } in sources {
            match content.map_err(RegistryError::from).and_then(validated) {
                Err(error) => registry.add_error(&path, error),
                Ok(spec) => {
                    for (position, name) in device_names(&spec) {
                        let location = (registry.files.len(), position);
                        locations_by_name.entry(name).or_default().push(location);
                    }
                    registry.files.push(SpecFile { path, priority, spec });
                }
            }
        }
        for (name, locations) in locations_by_name {
            registry.resolve_name(name, &locations);
        }
        registry
    }

    /// Reads the files of `dirs`, starting with the lowest priority. A missing directory counts as
    /// empty. A directory that is itself a symbolic link is reported as an error, since engines
    /// ignore it; links in the path to it (`/var/run`) are followed.
    #[must_use]
    pub fn scan(dirs: &[PathBuf]) -> Self {
        Self::scan_filtered(dirs, |_, _| true)
    }

    /// Like [`Registry::scan`], but reads only the files that `is_wanted` accepts, by path and priority.
    #[must_use]
    pub fn scan_filtered(
        dirs: &[PathBuf],
        mut is_wanted: impl FnMut(&Path, usize) -> bool,
    ) -> Self {
        let mut sources = Vec::new();
        let mut unread = Vec::new();
        for (priority, dir) in dirs.iter().enumerate() {
            match list_files(dir) {
                Ok(mut paths) => {
                    paths.retain(|path| is_wanted(path, priority));
                    sources.extend(paths.into_iter().map(|path| SpecSource::read(path, priority)));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => unread.push((dir, RegistryError::Directory(error))),
            }
        }
        let mut registry = Self::from_sources(sources);
        for (dir, error) in unread {
            registry.add_error(dir, error);
        }
        registry
    }

    fn add_error(&mut self, path: &Path, error: RegistryError) {
        self.errors.entry(path.to_owned()).or_default().push(error);
    }

    /// Decides which file offers `name`. As in the engines' library, a conflict at any priority makes
    /// the device unavailable, even if a file of a higher priority offers it too.
    fn resolve_name(&mut self, name: QualifiedName, locations: &[(usize, usize)]) {
        let mut conflicts: BTreeMap<usize, Vec<PathBuf>> = BTreeMap::new();
        for file in locations.iter().map(|(index, _)| &self.files[*index]) {
            conflicts.entry(file.priority).or_default().push(file.path.clone());
        }
        conflicts.retain(|_, paths| paths.len() > 1);
        if !conflicts.is_empty() {
            for (priority, paths) in conflicts {
                self.add_conflict(Conflict { name: name.clone(), priority, paths });
            }
        } else if let Some((winner, hidden)) = locations.split_last() {
            for (index, _) in hidden {
                let path = self.files[*index].path.clone();
                let by = self.files[winner.0].path.clone();
                self.shadowed.push(ShadowedDevice { name: name.clone(), path, by });
            }
            self.devices.insert(name, *winner);
        }
    }

    fn add_conflict(&mut self, conflict: Conflict) {
        for path in &conflict.paths {
            let others = conflict.paths.iter().filter(|other| *other != path).cloned().collect();
            let name = conflict.name.clone();
            self.add_error(path, RegistryError::Conflict { name, others });
        }
        self.conflicts.push(conflict);
    }

    /// Iterates over the devices that can be requested, sorted by name.
    pub fn devices(&self) -> impl Iterator<Item = ResolvedDevice<'_>> {
        self.devices.iter().filter_map(|(name, location)| self.resolved_at(name, *location))
    }

    /// Finds a device by name.
    #[must_use]
    pub fn device(&self, name: &QualifiedName) -> Option<ResolvedDevice<'_>> {
        let (name, location) = self.devices.get_key_value(name)?;
        self.resolved_at(name, *location)
    }

    fn resolved_at<'a>(
        &'a self,
        name: &'a QualifiedName,
        location: (usize, usize),
    ) -> Option<ResolvedDevice<'a>> {
        let file = self.files.get(location.0)?;
        let device = file.spec.devices.get(location.1)?;
        Some(ResolvedDevice {
            name,
            path: &file.path,
            priority: file.priority,
            spec: &file.spec,
            device,
        })
    }

    /// Returns all files, valid or not, and the directories that could not be read.
    #[must_use]
    pub fn paths(&self) -> BTreeSet<&Path> {
        self.files
            .iter()
            .map(|file| file.path.as_path())
            .chain(self.errors.keys().map(PathBuf::as_path))
            .collect()
    }

    /// Returns the errors of each file and directory.
    #[must_use]
    pub fn errors(&self) -> &BTreeMap<PathBuf, Vec<RegistryError>> {
        &self.errors
    }

    /// Returns the devices that cannot be requested because several files offer them, sorted by name.
    #[must_use]
    pub fn conflicts(&self) -> &[Conflict] {
        &self.conflicts
    }

    /// Returns the devices that another file hides, sorted by name.
    #[must_use]
    pub fn shadowed(&self) -> &[ShadowedDevice] {
        &self.shadowed
    }

    /// Returns the edits for `names`, in that order. The edits of a file are included once, before
    /// those of its first requested device. The edits of a repeated name are repeated.
    ///
    /// # Errors
    /// [`UnresolvableError`] with all names that no file offers, if there are any.
    pub fn edits_for(&self, names: &[QualifiedName]) -> Result<ContainerEdits, UnresolvableError> {
        let mut edits = ContainerEdits::default();
        let mut missing = Vec::new();
        let mut files = BTreeSet::new();
        for name in names {
            let Some(resolved) = self.device(name) else {
                missing.push(name.clone());
                continue;
            };
            if files.insert((resolved.priority, resolved.path)) {
                edits.append(&resolved.spec.container_edits);
            }
            edits.append(&resolved.device.container_edits);
        }
        if missing.is_empty() { Ok(edits) } else { Err(UnresolvableError { names: missing }) }
    }
}

fn validated(spec: Spec) -> Result<Spec, RegistryError> {
    validate(&spec)?;
    Ok(spec)
}

/// Iterates over the names that a valid specification offers, each with its index.
fn device_names(spec: &Spec) -> impl Iterator<Item = (usize, QualifiedName)> {
    spec.devices.iter().enumerate().filter_map(|(index, device)| {
        let (kind, name) = (spec.kind.parse().ok()?, device.name.parse().ok()?);
        Some((index, QualifiedName { kind, device: name }))
    })
}

fn list_files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    // Removes a trailing slash, with which lstat(2) would follow a symbolic link.
    let dir: PathBuf = dir.components().collect();
    if fs::symlink_metadata(&dir)?.is_symlink() {
        let message = "a symbolic link, which engines do not follow here";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        let is_spec = has_suffix(&path, ".json") || has_suffix(&path, ".yaml");
        if is_spec && !entry.file_type()?.is_dir() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Unlike [`Path::extension`], accepts a file named `.json`, as engines do.
fn has_suffix(path: &Path, suffix: &str) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(suffix.as_bytes())
}

fn read(path: &Path) -> Result<Spec, LoadError> {
    let bytes = read_file(path).map_err(LoadError::Read)?;
    if has_suffix(path, ".yaml") { read_yaml(&bytes) } else { Ok(parse::from_json(&bytes)?) }
}

#[cfg(feature = "yaml")]
fn read_yaml(bytes: &[u8]) -> Result<Spec, LoadError> {
    Ok(parse::from_yaml(bytes)?)
}

#[cfg(not(feature = "yaml"))]
fn read_yaml(_: &[u8]) -> Result<Spec, LoadError> {
    Err(LoadError::NoYaml)
}

/// Reads a regular file. Rejects other types, since opening a pipe would block until it has a writer.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let message = format!("larger than {MAX_FILE_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}
