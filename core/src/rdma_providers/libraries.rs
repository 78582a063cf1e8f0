//! The search path of a dynamic loader: `LD_LIBRARY_PATH`, /etc/ld.so.cache, and the default
//! directories. The cache includes the directories of /etc/ld.so.conf, which no loader reads.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use onload_sys::bail;
use onload_sys::error::Result;
use onload_sys::fs::open::PATH_MAX;
use onload_sys::ld_cache;

use super::files::{LibraryFiles, NativeLibrary};

/// The default directories of glibc's loaders, of Debian and of Red Hat.
pub const LIBRARY_DIRS: [&str; 8] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];
const CACHE: &str = "/etc/ld.so.cache";
/// Maximum size of a cache. A distribution's cache with thousands of libraries has 500 kB.
const MAX_CACHE_BYTES: u64 = 4 * 1024 * 1024;
/// Maximum number of directories in `LD_LIBRARY_PATH`.
const MAX_PATH_DIRS: usize = 32;
/// The directory that musl searches in addition to /lib and /usr/lib, unless its configuration
/// lists others.
const MUSL_DIR: &str = "/usr/local/lib";
const GLIBC_LOADERS: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
const MUSL_LOADERS: [&str; 2] = ["/lib/ld-musl-x86_64.so.1", "/lib/ld-musl-aarch64.so.1"];
/// Subdirectories for newer processors (glibc-hwcaps), the best first.
const CAPABILITIES: [&str; 3] = ["x86-64-v4", "x86-64-v3", "x86-64-v2"];

pub(super) struct LibrarySearch<'a> {
    pub(super) files: &'a dyn LibraryFiles,
    /// The owner of the files in messages: `the image`.
    pub(super) owner: &'static str,
    /// The directories that are searched before the cache.
    path_dirs: Vec<PathBuf>,
    cache: Vec<u8>,
    default_dirs: Vec<PathBuf>,
    /// The libraries by path. Many libraries need the same one.
    opened: RefCell<BTreeMap<PathBuf, Option<Rc<NativeLibrary>>>>,
}

impl<'a> LibrarySearch<'a> {
    pub(super) fn new(
        files: &'a dyn LibraryFiles,
        owner: &'static str,
        library_path: Option<&str>,
    ) -> Result<Self> {
        let path: Vec<&str> = library_path
            .unwrap_or_default()
            .split([':', ';'])
            .filter(|dir| dir.starts_with('/'))
            .collect();
        if path.len() > MAX_PATH_DIRS || path.iter().any(|dir| dir.len() > PATH_MAX) {
            bail!("LD_LIBRARY_PATH of the container is too long to be searched");
        }
        let cache = files.open(Path::new(CACHE))?;
        let loader_dirs = find_loader_dirs(files);
        // The loader's own directories come first, in its order.
        let dirs = loader_dirs.iter().filter_map(|dir| dir.to_str()).chain(LIBRARY_DIRS);
        let musl = MUSL_LOADERS
            .into_iter()
            .any(|loader| matches!(files.open(Path::new(loader)), Ok(Some(_))))
            .then_some(MUSL_DIR);
        Ok(LibrarySearch {
            files,
            owner,
            path_dirs: existing_directories(files, path.into_iter()),
            cache: cache.map_or_else(|| Ok(Vec::new()), |file| file.read(MAX_CACHE_BYTES))?,
            default_dirs: existing_directories(files, dirs.chain(musl)),
            opened: RefCell::default(),
        })
    }

    pub(super) fn open(&self, path: &Path) -> Result<Option<Rc<NativeLibrary>>> {
        if let Some(library) = self.opened.borrow().get(path) {
            return Ok(library.clone());
        }
        let library = NativeLibrary::open(self.files, path)?.map(Rc::new);
        let mut opened = self.opened.borrow_mut();
        opened.insert(path.to_owned(), library.clone());
        Ok(library)
    }

    /// Finds the library that a loader uses for a name.
    pub(super) fn find_first(&self, name: &str) -> Result<Option<Rc<NativeLibrary>>> {
        for path in self.candidate_paths(name) {
            if let Some(library) = self.open(&path)? {
                return Ok(Some(library));
            }
        }
        Ok(None)
    }

    pub(super) fn candidate_paths(&self, name: &str) -> Vec<PathBuf> {
        // A name with a slash is a path, which a loader does not search.
        if name.is_empty() || name.contains(['/', '\0']) {
            return Vec::new();
        }
        let cached = ld_cache::find_library_paths(&self.cache, name);
        self.path_dirs
            .iter()
            .map(|dir| dir.join(name))
            .chain(cached.into_iter().map(PathBuf::from))
            .chain(self.default_dirs.iter().map(|dir| dir.join(name)))
            .collect()
    }
}

/// Returns the directories that the installed loader of glibc searches by default, or no directories if they are
/// unknown.
fn find_loader_dirs(files: &dyn LibraryFiles) -> Vec<PathBuf> {
    let open = |path: &str| NativeLibrary::open(files, Path::new(path)).ok()?;
    let loader = GLIBC_LOADERS.iter().find_map(|path| open(path));
    loader.and_then(|loader| loader.find_loader_paths().ok()).unwrap_or_default().library_dirs
}

/// Returns the candidates that exist, without duplicates. The subdirectories for processors with more capabilities
/// precede their directory.
fn existing_directories<'a>(
    files: &dyn LibraryFiles,
    candidates: impl Iterator<Item = &'a str>,
) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for dir in candidates {
        let Some(dir) = files.find_directory(Path::new(dir)) else {
            continue;
        };
        let capabilities = dir.join("glibc-hwcaps");
        if !directories.contains(&dir) && files.find_directory(&capabilities).is_some() {
            let names = CAPABILITIES.iter().map(|name| capabilities.join(name));
            directories.extend(names.filter_map(|dir| files.find_directory(&dir)));
        }
        if !directories.contains(&dir) {
            directories.push(dir);
        }
    }
    directories
}
