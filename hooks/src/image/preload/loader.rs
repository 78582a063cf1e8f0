//! Whether the programs of an image can load libonload.so, and whether their loader finds it by its name.
//!
//! A loader that finds a library and cannot load it ends the program before its first instruction. A loader that does
//! not find the library runs the program without it: glibc's prints a message, musl's prints nothing.
//!
//! The image's author controls the files, so every read is bounded, and so is the time of all reads together.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use onload_core::config::Preload;
use onload_core::onload::LIBRARY;
use onload_core::rdma_providers::LIBRARY_DIRS;
use onload_sys::elf::{self, ElfSummary, GlibcVersion, LoaderPaths};
use onload_sys::fs::container_root::ContainerPath;
use onload_sys::fs::list::each_name;
use onload_sys::fs::open::PATH_MAX;
use onload_sys::ld_cache;
use onload_sys::text::ErrorChain;
use rustix::fs::{Mode, OFlags, openat};

use super::program::{ContainerProgram, ProgramFiles};
use crate::decide::preload_choice::LD_SO_PRELOAD;

/// The paths of loaders in distributions.
const LOADERS: [&str; 6] = [
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-linux.so.2",
    "/lib64/ld64.so.2",
    "/lib/ld-musl-x86_64.so.1",
    "/lib/ld-musl-aarch64.so.1",
];
/// Directories with a directory for each package, which Nix and Guix use.
const STORES: [&str; 2] = ["/nix/store", "/gnu/store"];
/// Names of loaders in the directory lib of a package.
const STORE_LOADERS: [&str; 4] = [
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
    "ld-musl-x86_64.so.1",
    "ld-musl-aarch64.so.1",
];
/// Packages of a store that are searched for loaders; a large image has about 1000.
const MAX_PACKAGES: usize = 4096;
/// Time for one image, which can make each path lead through dozens of long links.
const TIME_LIMIT: Duration = Duration::from_secs(1);
/// Loaders that are examined.
const MAX_LOADERS: usize = 32;
/// Bytes of ld.so.cache that are read; a large distribution's has about 500,000.
const MAX_CACHE_BYTES: u64 = 4 * 1024 * 1024;
/// Directories of each search path that are used.
const MAX_SEARCH_DIRS: usize = 32;
const LIBC: &str = "libc.so.6";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LoadVerdict {
    /// The program's loader finds the library by its name.
    ByName,
    /// The program's loader finds the library only by this path, and every loader of the image can load it.
    ByPath(String),
    /// Why the answer is unknown, or why a preload has no effect.
    Unknown(String),
    /// Why the program would not start, or would start without the library.
    CannotLoad(String),
}

use LoadVerdict::{ByName, ByPath, CannotLoad, Unknown};

/// The library as a container gets it.
pub(crate) struct PreloadedLibrary<'a> {
    /// Its path on the host.
    pub source: Option<&'a str>,
    /// Its paths in the container.
    pub targets: &'a [String],
    pub mode: Preload,
    /// Whether it is preloaded by its path even if the program's loader finds its name.
    pub is_path_required: bool,
}

/// Judges the loaders of one image.
pub(crate) struct LoaderCheck<'a> {
    pub files: ProgramFiles<'a>,
    /// The requirements of the library; `None` if its file could not be read.
    pub library: Option<&'a ElfSummary>,
    pub preload: &'a PreloadedLibrary<'a>,
    /// `LD_LIBRARY_PATH` of the container.
    pub library_path: Option<&'a str>,
    pub started: Instant,
}

struct Loader {
    path: PathBuf,
    paths: LoaderPaths,
    /// Whether it is for another machine than the library.
    is_foreign: bool,
}

type Judgement<T> = Result<T, LoadVerdict>;

impl LoaderCheck<'_> {
    pub(crate) fn judge(&self, program: &ContainerProgram) -> LoadVerdict {
        let judgement = match self.files.resolve_program(program) {
            Ok((path, summary)) => self.judge_program(&path, &summary),
            Err(reason) => self.judge_installed_loader(&reason),
        };
        judgement.unwrap_or_else(|verdict| verdict)
    }

    fn judge_program(&self, path: &Path, program: &ElfSummary) -> Judgement<LoadVerdict> {
        let Some(interpreter) = &program.interpreter else {
            return Err(Unknown(format!("{path:?} is a static program, which preloads nothing")));
        };
        if interpreter.is_empty() {
            return Err(Unknown(format!("{path:?} has no loader")));
        }
        if self.is_foreign(program) {
            return Err(CannotLoad(format!("{path:?} is for a different machine than {LIBRARY}")));
        }
        let loader = self.open_loader(Path::new(interpreter))?;
        self.judge_loader(&loader, Some((path, program)))
    }

    /// Judges by what is installed, if the program could not be examined.
    fn judge_installed_loader(&self, reason: &str) -> Judgement<LoadVerdict> {
        for path in self.list_loaders()? {
            let loader = self.open_loader(&path)?;
            if loader.is_foreign {
                continue;
            }
            return self.judge_loader(&loader, None).map_err(|verdict| match verdict {
                Unknown(more) => Unknown(format!("{reason}; {more}")),
                verdict => verdict,
            });
        }
        Err(Unknown(reason.to_owned()))
    }

    fn judge_loader(
        &self,
        loader: &Loader,
        program: Option<(&Path, &ElfSummary)>,
    ) -> Judgement<LoadVerdict> {
        let search = self.search(loader, program);
        self.check_libc(loader, &search)?;
        let list = loader.paths.preload_list.as_deref().unwrap_or(Path::new(LD_SO_PRELOAD));
        if self.preload.mode == Preload::File && list != Path::new(LD_SO_PRELOAD) {
            return Err(CannotLoad(format!(
                "the image's loader {:?} reads {list:?} instead of {LD_SO_PRELOAD}; set onload.dev/preload: env, with the runtime onload",
                loader.path
            )));
        }
        self.find_name(loader, &search)
    }

    /// Fails if a loader is not glibc's. The loader's own paths are unknown if the image lacks its file.
    fn open_loader(&self, path: &Path) -> Judgement<Loader> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if is_musl(path) {
            return Err(CannotLoad(format!(
                "the image's libc is musl ({}), {LIBRARY} needs glibc",
                path.display()
            )));
        }
        let not_glibc = || {
            CannotLoad(format!("the image's loader {path:?} is not glibc's, which {LIBRARY} needs"))
        };
        if !["ld-linux", "ld64.so", "ld.so"].iter().any(|prefix| name.starts_with(prefix)) {
            return Err(not_glibc());
        }
        let Some((file, size)) = self.open(path)? else {
            let path = path.to_owned();
            return Ok(Loader { path, paths: LoaderPaths::default(), is_foreign: false });
        };
        let unreadable = |error| Unknown(format!("{path:?}: {error}"));
        let content = elf::block_reader(&file, size);
        let summary = elf::summarize(&content).map_err(unreadable)?;
        // gcompat's loader, for instance, starts musl's.
        if summary.glibc_defined().is_none() {
            return Err(not_glibc());
        }
        let paths = elf::find_loader_paths(&content).map_err(unreadable)?;
        Ok(Loader { path: path.to_owned(), paths, is_foreign: self.is_foreign(&summary) })
    }

    /// Opens a file of the image; `None` if there is none.
    fn open(&self, path: &Path) -> Judgement<Option<(File, u64)>> {
        self.check_time()?;
        if (self.files.covered)(path) {
            return Err(Unknown(format!("{path:?} is under a mount")));
        }
        match self.files.root.open_file(path) {
            Ok(opened) => Ok(Some(opened)),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(Unknown(ErrorChain(&error).to_string())),
        }
    }

    fn check_time(&self) -> Judgement<()> {
        match self.started.elapsed() > TIME_LIMIT {
            true => Err(Unknown("examining the image's loaders took too long".to_owned())),
            false => Ok(()),
        }
    }

    fn check_libc(&self, loader: &Loader, search: &LoaderSearch) -> Judgement<()> {
        let Some(library) = self.library else {
            return Ok(());
        };
        let mut paths = search.candidates(LIBC);
        paths.extend(loader.path.parent().map(|dir| dir.join(LIBC)));
        paths.extend(LIBRARY_DIRS.iter().map(|dir| Path::new(dir).join(LIBC)));
        for path in paths {
            let Some((file, size)) = self.open(&path)? else {
                continue;
            };
            match elf::summarize_file(&file, size) {
                Ok(libc) if self.is_foreign(&libc) => {}
                Ok(libc) => return compare_versions(library, &libc),
                Err(_) if self.is_skipped(&file) => {}
                Err(error) => return Err(Unknown(format!("{path:?}: {error}"))),
            }
        }
        Err(Unknown(format!("the image has no {LIBC} where glibc keeps it")))
    }

    /// Determines how programs of the loader have to name the library.
    fn find_name(&self, loader: &Loader, search: &LoaderSearch) -> Judgement<LoadVerdict> {
        let resolve =
            |path: &Path| ContainerPath::resolve(Some(self.files.root), path, &|_| false).ok();
        let targets: Vec<ContainerPath> =
            self.preload.targets.iter().filter_map(|target| resolve(Path::new(target))).collect();
        let Some(target) = self.preload.targets.first().filter(|_| !targets.is_empty()) else {
            return Ok(ByName);
        };
        if self.preload.is_path_required {
            self.check_all_loaders(&format!("{LD_SO_PRELOAD} names {target}"))?;
            return Ok(ByPath(target.clone()));
        }
        let mut own_copy = None;
        for path in search.candidates(LIBRARY) {
            if resolve(&path).is_some_and(|path| targets.contains(&path)) {
                return Ok(ByName);
            }
            if let Ok(Some((file, _))) = self.open(&path)
                && !self.is_skipped(&file)
            {
                own_copy = Some(path);
                break;
            }
        }
        let loader = loader.path.display();
        let reason = match own_copy {
            Some(path) => {
                format!("the image's loader {loader} finds the image's own {path:?} first")
            }
            None => format!("the image's loader {loader} does not search for {target}"),
        };
        self.check_all_loaders(&reason)?;
        Ok(ByPath(target.clone()))
    }

    /// Fails if a loader of the image cannot load the library, which it would find by its path.
    fn check_all_loaders(&self, reason: &str) -> Judgement<()> {
        let loaders = self.list_loaders().map_err(|verdict| match verdict {
            Unknown(why) => CannotLoad(format!("{reason}; {why}")),
            verdict => verdict,
        })?;
        for path in loaders {
            if is_musl(&path) {
                // musl's loader reads no list of libraries.
                if self.preload.mode == Preload::File {
                    continue;
                }
                return Err(CannotLoad(format!(
                    "{reason}, and programs of musl ({}) would not start with its path in LD_PRELOAD; set onload.dev/preload: file",
                    path.display()
                )));
            }
            let checked = self.open_loader(&path).and_then(|loader| {
                if loader.is_foreign {
                    return Ok(());
                }
                self.check_libc(&loader, &self.search(&loader, None))
            });
            if let Err(Unknown(why) | CannotLoad(why)) = checked {
                return Err(CannotLoad(format!(
                    "{reason}, and programs of {} might not start with its path: {why}",
                    path.display()
                )));
            }
        }
        Ok(())
    }

    /// Lists the loaders of the image: those in the usual places, and those of packages in a store.
    fn list_loaders(&self) -> Judgement<Vec<PathBuf>> {
        let mut loaders = Vec::new();
        let mut add = |paths: &mut dyn Iterator<Item = PathBuf>| {
            for path in paths.filter(|path| !(self.files.covered)(path)) {
                if self.open(&path)?.is_some() {
                    loaders.push(path);
                }
            }
            match loaders.len() > MAX_LOADERS {
                true => Err(Unknown(format!("the image has more than {MAX_LOADERS} loaders"))),
                false => Ok(()),
            }
        };
        add(&mut LOADERS.iter().map(PathBuf::from))?;
        for store in STORES {
            let Ok(directory) = self.files.root.find(Path::new(store)) else {
                continue;
            };
            if (self.files.covered)(Path::new(store)) {
                return Err(Unknown(format!("{store:?} is under a mount")));
            }
            let packages = list_packages(&directory);
            for package in packages.map_err(|why| Unknown(format!("{store:?} {why}")))? {
                self.check_time()?;
                let libraries = Path::new(store).join(package).join("lib");
                if self.files.root.find(&libraries).is_ok() {
                    add(&mut STORE_LOADERS.iter().map(|name| libraries.join(name)))?;
                }
            }
        }
        Ok(loaders)
    }

    /// Whether a loader of the library's machine skips a file in its search (elf/dl-load.c, `open_verify`).
    fn is_skipped(&self, file: &File) -> bool {
        let mut header = [0; 20];
        let Some(library) = self.library else {
            return false;
        };
        let is_elf = file.read_exact_at(&mut header, 0).is_ok() && header.starts_with(b"\x7fELF");
        let machine = (u16::from_le_bytes([header[18], header[19]]), header[4] == 2);
        is_elf && machine != (library.machine, library.is_64)
    }

    fn is_foreign(&self, other: &ElfSummary) -> bool {
        self.library
            .is_some_and(|library| (library.machine, library.is_64) != (other.machine, other.is_64))
    }

    fn search(&self, loader: &Loader, program: Option<(&Path, &ElfSummary)>) -> LoaderSearch {
        let mut first_dirs = Vec::new();
        let mut add = |list: Option<&str>, origin: &Path| {
            for dir in list.unwrap_or_default().split([':', ';']).take(MAX_SEARCH_DIRS) {
                let dir = dir
                    .replace("${ORIGIN}", "$ORIGIN")
                    .replace("$ORIGIN", &origin.to_string_lossy());
                // A relative directory is that of a process, and $LIB and $PLATFORM are the loader's.
                let is_plain = dir.starts_with('/') && !dir.contains('$');
                if is_plain && dir.len() <= PATH_MAX {
                    first_dirs.push(PathBuf::from(dir));
                }
            }
        };
        let (path, summary) =
            program.map_or((Path::new("/"), None), |(path, summary)| (path, Some(summary)));
        let origin = path.parent().unwrap_or(Path::new("/"));
        let runpath = summary.and_then(|summary| summary.runpath.as_deref());
        let rpath = summary.and_then(|summary| summary.rpath.as_deref());
        add(rpath.filter(|_| runpath.is_none()), origin);
        add(self.library_path, Path::new("$ORIGIN"));
        add(runpath, origin);
        first_dirs.retain(|dir| !(self.files.covered)(dir));
        let cache = loader.paths.cache.as_deref().unwrap_or(Path::new("/etc/ld.so.cache"));
        let default_dirs = match &loader.paths.library_dirs[..] {
            [] => LIBRARY_DIRS.iter().map(PathBuf::from).collect(),
            dirs => dirs.to_vec(),
        };
        LoaderSearch { first_dirs, cache: self.read_cache(cache), default_dirs }
    }

    /// Returns nothing if there is no cache, or one that no loader could use.
    fn read_cache(&self, path: &Path) -> Vec<u8> {
        let mut bytes = Vec::new();
        if !(self.files.covered)(path)
            && let Ok((file, size)) = self.files.root.open_file(path)
            && size <= MAX_CACHE_BYTES
            && file.take(MAX_CACHE_BYTES).read_to_end(&mut bytes).is_err()
        {
            bytes.clear();
        }
        bytes
    }
}

/// Returns the directories that a glibc loader searches for a library, in its order (ld.so(8)).
struct LoaderSearch {
    /// The program's RPATH, LD_LIBRARY_PATH and the program's RUNPATH.
    first_dirs: Vec<PathBuf>,
    cache: Vec<u8>,
    default_dirs: Vec<PathBuf>,
}

impl LoaderSearch {
    fn candidates(&self, name: &str) -> Vec<PathBuf> {
        let cached = ld_cache::find_library_paths(&self.cache, name);
        self.first_dirs
            .iter()
            .map(|dir| dir.join(name))
            .chain(cached.into_iter().map(PathBuf::from))
            .chain(self.default_dirs.iter().map(|dir| dir.join(name)))
            .collect()
    }
}

fn is_musl(loader: &Path) -> bool {
    loader.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-musl"))
}

fn list_packages(store: &OwnedFd) -> Result<Vec<PathBuf>, String> {
    let mut packages = Vec::new();
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let listed = openat(store, ".", flags, Mode::empty()).and_then(|directory| {
        each_name(directory, &mut |name| {
            packages.push(PathBuf::from(OsStr::from_bytes(name)));
            packages.len() <= MAX_PACKAGES
        })
    });
    listed.map_err(|error| format!("cannot be listed: {error}"))?;
    if packages.len() > MAX_PACKAGES {
        return Err(format!("has more than {MAX_PACKAGES} packages"));
    }
    Ok(packages)
}

fn compare_versions(library: &ElfSummary, libc: &ElfSummary) -> Judgement<()> {
    let missing = library
        .version_needs
        .iter()
        .filter(|need| !need.weak && need.library.starts_with("libc.so."))
        .map(|need| need.version.as_str())
        .filter(|version| !libc.version_definitions.contains(*version))
        .max_by_key(|version| GlibcVersion::from_symbol_version(version));
    let newer = library.glibc_needed().filter(|needed| Some(*needed) > libc.glibc_defined());
    let needed = match (missing, newer) {
        (None, None) => return Ok(()),
        (_, Some(version)) => format!("GLIBC_{version}"),
        (Some(version), None) => version.to_owned(),
    };
    let defined = libc
        .glibc_defined()
        .map_or_else(|| "of an unknown version".to_owned(), |version| version.to_string());
    Err(CannotLoad(format!("{LIBRARY} needs {needed}, the image's glibc is {defined}")))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use onload_sys::elf::VersionNeed;
    use onload_sys::fs::container_root::ContainerRoot;
    use onload_test_tree::Tree;
    use onload_test_tree::elf::SharedLibrary;

    use super::*;

    const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    const MUSL: &str = "/lib/ld-musl-x86_64.so.1";
    const GLIBC: &str = "/lib64/ld-linux-x86-64.so.2";
    const MULTIARCH: &str = "/usr/lib/x86_64-linux-gnu/libonload.so";
    const LIB64: &str = "/usr/lib64/libonload.so";

    /// The root file system of an image, of small ELF files, and the configuration of a container.
    struct Image {
        tree: Tree,
        targets: Vec<String>,
        mode: Preload,
        is_path_required: bool,
        library_path: Option<&'static str>,
        covered: Vec<&'static str>,
    }

    impl Image {
        fn new() -> Self {
            let tree = Tree::new();
            for dir in ["bin", "lib", "lib64", "usr/bin", "etc"] {
                tree.directory(dir);
            }
            Image {
                tree,
                targets: vec![LIB64.to_owned()],
                mode: Preload::Env,
                is_path_required: false,
                library_path: None,
                covered: Vec::new(),
            }
        }

        /// An image whose program `/bin/app` has a loader of glibc 2.36 that searches these directories.
        fn with_loader(loader: &str, dirs: &[&str], list: &str) -> Self {
            let image = Image::new();
            image.file("bin/app", elf_with_loader(Some(loader)));
            image.add_loader(loader, dirs, list);
            image
        }

        fn add_loader(&self, loader: &str, dirs: &[&str], list: &str) {
            let mut file = glibc("ld-linux-x86-64.so.2", "GLIBC_2.36").says(list);
            for dir in dirs {
                file = file.says(dir);
            }
            self.file(loader, file.bytes());
            let libc = Path::new(loader).with_file_name(LIBC);
            self.file(&libc.to_string_lossy(), glibc(LIBC, "GLIBC_2.36").bytes());
        }

        fn file(&self, path: &str, bytes: impl AsRef<[u8]>) {
            self.tree.file(path.trim_start_matches('/'), bytes);
        }

        fn link(&self, target: &str, path: &str) {
            self.tree.link(path, target);
        }

        fn judge_args(&self, args: &[&str]) -> LoadVerdict {
            let program = ContainerProgram {
                args: args.iter().map(|arg| (*arg).to_owned()).collect(),
                path: Some("/none:/bin".to_owned()),
                cwd: "/".to_owned(),
            };
            let root = &ContainerRoot::open(self.tree.root()).unwrap();
            let covered =
                &|path: &Path| self.covered.iter().any(|covered| path.starts_with(covered));
            LoaderCheck {
                files: ProgramFiles { root, covered },
                library: Some(&library("GLIBC_2.17")),
                preload: &PreloadedLibrary {
                    source: None,
                    targets: &self.targets,
                    mode: self.mode,
                    is_path_required: self.is_path_required,
                },
                library_path: self.library_path,
                started: Instant::now(),
            }
            .judge(&program)
        }

        fn judge(&self, program: &str) -> LoadVerdict {
            self.judge_args(&[program])
        }

        fn reason(&self, program: &str) -> String {
            match self.judge(program) {
                Unknown(reason) => format!("unknown: {reason}"),
                CannotLoad(reason) => format!("cannot: {reason}"),
                verdict => panic!("{verdict:?}"),
            }
        }
    }

    fn glibc(soname: &str, version: &str) -> SharedLibrary {
        SharedLibrary::new(soname).defines("GLIBC_2.17", &["a"]).defines(version, &["b"])
    }

    fn library(version: &str) -> ElfSummary {
        let need =
            VersionNeed { library: LIBC.to_owned(), version: version.to_owned(), weak: false };
        ElfSummary {
            machine: MACHINE,
            is_64: true,
            version_needs: [need].into(),
            ..ElfSummary::default()
        }
    }

    fn libc(versions: &[&str]) -> ElfSummary {
        ElfSummary {
            version_definitions: versions.iter().map(|v| (*v).to_owned()).collect(),
            ..library("")
        }
    }

    /// An ELF file with one program header, PT_INTERP, or without any.
    fn elf_with_loader(loader: Option<&str>) -> Vec<u8> {
        let mut file = vec![0_u8; 64];
        file[..18].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0");
        file[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        file[20] = 1;
        file[52] = 64;
        file[54] = 56;
        let Some(loader) = loader else {
            return file;
        };
        file[32] = 64;
        file[56] = 1;
        let mut header = vec![0_u8; 56];
        header[0] = 3;
        header[8] = 120;
        let size = u64::try_from(loader.len() + 1).unwrap().to_le_bytes();
        header[32..40].copy_from_slice(&size);
        header[40..48].copy_from_slice(&size);
        file.extend(header);
        file.extend(loader.as_bytes());
        file.push(0);
        file
    }

    const NIX: &str =
        "/nix/store/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-glibc-2.40-66/lib/ld-linux-x86-64.so.2";
    const NIX_DIRS: [&str; 1] = ["/nix/store/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-glibc-2.40-66/lib/"];
    const NIX_LIST: &str = "/etc/ld-nix.so.preload";
    const GUIX: &str =
        "/gnu/store/bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb-glibc-2.39/lib/ld-linux-x86-64.so.2";
    const GUIX_DIRS: [&str; 1] = ["/gnu/store/bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb-glibc-2.39/lib/"];
    const ALPINE: &str = "/usr/glibc-compat/lib/ld-linux-x86-64.so.2";
    const ALPINE_DIRS: [&str; 1] = ["/usr/glibc-compat/lib/"];
    const BOTTLEROCKET: &str = "/x86_64-bottlerocket-linux-gnu/sys-root/lib/ld-linux-x86-64.so.2";
    const BOTTLEROCKET_DIRS: [&str; 2] = [
        "/x86_64-bottlerocket-linux-gnu/sys-root/lib/",
        "/x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/",
    ];
    const CONDA: &str = "/opt/conda/x86_64-conda-linux-gnu/sysroot/lib64/ld-linux-x86-64.so.2";

    #[test]
    fn a_loader_that_searches_for_the_library_gets_its_name() {
        for (dirs, target) in [
            (&["/lib64/", "/usr/lib64/"][..], LIB64),
            (&["/lib/x86_64-linux-gnu/", "/usr/lib/x86_64-linux-gnu/"], MULTIARCH),
            // Debian's with /lib a link to usr/lib, and Arch's with /usr/lib64 a link to lib.
            (&["/lib/x86_64-linux-gnu/"], MULTIARCH),
            (&["/usr/lib/"], LIB64),
        ] {
            let mut image = Image::with_loader(GLIBC, dirs, LD_SO_PRELOAD);
            image.tree.remove("lib");
            image.tree.directory("usr/lib/x86_64-linux-gnu");
            image.link("usr/lib", "lib");
            image.link("lib", "usr/lib64");
            image.targets = vec![target.to_owned()];
            for mode in [Preload::Env, Preload::File] {
                image.mode = mode;
                assert_eq!(image.judge("/bin/app"), ByName, "{dirs:?} {target}");
            }
        }
    }

    #[test]
    fn a_loader_with_directories_of_its_own_gets_the_path() {
        for (loader, dirs) in [
            (NIX, &NIX_DIRS[..]),
            (GUIX, &GUIX_DIRS),
            (ALPINE, &ALPINE_DIRS),
            (BOTTLEROCKET, &BOTTLEROCKET_DIRS),
            (CONDA, &["/opt/conda/x86_64-conda-linux-gnu/sysroot/lib64/"]),
        ] {
            let mut image = Image::with_loader(loader, dirs, LD_SO_PRELOAD);
            for mode in [Preload::Env, Preload::File] {
                image.mode = mode;
                assert_eq!(image.judge("/bin/app"), ByPath(LIB64.to_owned()), "{loader}");
            }
        }
    }

    #[test]
    fn a_loader_that_reads_another_list_is_refused_in_file_mode() {
        let mut image = Image::with_loader(NIX, &NIX_DIRS, NIX_LIST);
        assert_eq!(image.judge("/bin/app"), ByPath(LIB64.to_owned()));
        image.mode = Preload::File;
        let reason = image.reason("/bin/app");
        assert!(
            reason.contains("reads \"/etc/ld-nix.so.preload\" instead of /etc/ld.so.preload"),
            "{reason}"
        );
    }

    #[test]
    fn the_path_is_refused_if_a_program_of_musl_would_end_by_it() {
        for musl in [MUSL, "/nix/store/cccccccccccccccccccccccccccccccc-m/lib/ld-musl-x86_64.so.1"]
        {
            let mut image = Image::with_loader(ALPINE, &ALPINE_DIRS, LD_SO_PRELOAD);
            image.file(musl, "x");
            let reason = image.reason("/bin/app");
            assert!(reason.contains("does not search for /usr/lib64/libonload.so"), "{reason}");
            assert!(reason.ends_with("set onload.dev/preload: file"), "{reason}");
            // musl's loader does not read the list.
            image.mode = Preload::File;
            assert_eq!(image.judge("/bin/app"), ByPath(LIB64.to_owned()));
            image.targets = vec!["/usr/glibc-compat/lib/libonload.so".to_owned()];
            image.mode = Preload::Env;
            assert_eq!(image.judge("/bin/app"), ByName, "musl does not find the name");
        }
    }

    #[test]
    fn the_path_is_refused_if_another_glibc_cannot_load_the_library() {
        let old = "nix/store/dddddddddddddddddddddddddddddddd-glibc-2.12/lib";
        let image = Image::with_loader(NIX, &NIX_DIRS, NIX_LIST);
        let loader = format!("{old}/ld-linux-x86-64.so.2");
        image.file(&loader, SharedLibrary::new("ld").defines("GLIBC_2.12", &["a"]).bytes());
        image.file(
            &format!("{old}/{LIBC}"),
            SharedLibrary::new(LIBC).defines("GLIBC_2.12", &["a"]).bytes(),
        );
        let reason = image.reason("/bin/app");
        assert!(reason.contains("needs GLIBC_2.17, the image's glibc is 2.12"), "{reason}");
        image.file(&loader, "x");
        assert!(image.reason("/bin/app").contains("not an ELF file"));
    }

    #[test]
    fn a_list_with_the_path_is_refused_if_another_glibc_reads_it_and_cannot_load_the_library() {
        let mut image = Image::with_loader(GLIBC, &["/usr/lib64/"], LD_SO_PRELOAD);
        image.mode = Preload::File;
        image.file(MUSL, "x");
        let old = Path::new(GUIX).parent().unwrap().to_str().unwrap();
        for (version, is_refused) in [("GLIBC_2.12", true), ("GLIBC_2.17", false)] {
            let file = SharedLibrary::new(LIBC).defines(version, &["a"]).says(GUIX_DIRS[0]).bytes();
            image.file(GUIX, &file);
            image.file(&format!("{old}/{LIBC}"), &file);
            image.is_path_required = false;
            assert_eq!(image.judge("/bin/app"), ByName, "{version}");
            image.is_path_required = true;
            if is_refused {
                let reason = image.reason("/bin/app");
                assert!(reason.contains("/etc/ld.so.preload names /usr/lib64/libonload.so, and programs of /gnu/store"), "{reason}");
            } else {
                assert_eq!(image.judge("/bin/app"), ByPath(LIB64.to_owned()), "{version}");
            }
        }
    }

    #[test]
    fn a_store_that_cannot_be_searched_whole_is_refused() {
        let mut image = Image::with_loader(GUIX, &GUIX_DIRS, LD_SO_PRELOAD);
        image.tree.directory("nix/store");
        image.covered = vec!["/nix/store"];
        assert!(image.reason("/bin/app").contains("\"/nix/store\" is under a mount"));
        image.covered = Vec::new();
        for number in 0..=MAX_PACKAGES {
            image.tree.directory(&format!("nix/store/{number}"));
        }
        assert!(image.reason("/bin/app").contains("has more than 4096 packages"));
        image.tree.remove("nix/store");
        for number in 0..=MAX_LOADERS {
            image.file(&format!("nix/store/{number}/lib/ld-linux-x86-64.so.2"), "x");
        }
        assert!(image.reason("/bin/app").contains("has more than 32 loaders"));
    }

    /// Forty links, each of which leads through thousands of directories, to each package's libraries.
    #[test]
    fn an_image_of_long_links_is_given_up_in_bounded_time() {
        let image = Image::with_loader(GUIX, &GUIX_DIRS, LD_SO_PRELOAD);
        let detour = "d/../".repeat(700);
        image.tree.directory("gnu/store/d");
        image.tree.directory("gnu/store/end");
        image.link("end", "gnu/store/link0");
        for number in 1..38 {
            let target = format!("{detour}link{}", number - 1);
            image.link(&target, &format!("gnu/store/link{number}"));
        }
        for number in 0..3000 {
            let package = format!("gnu/store/{number}");
            image.tree.directory(&package);
            image.link("../link37", &format!("{package}/lib"));
        }
        let started = Instant::now();
        let reason = image.reason("/bin/app");
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
        assert!(reason.contains("took too long"), "{reason}");
    }

    #[test]
    fn a_loader_that_takes_the_image_s_own_copy_gets_the_path() {
        let own = SharedLibrary::new(LIBRARY).bytes();
        let dirs = ["/lib64/", "/usr/lib64/"];
        let mut image = Image::with_loader(GLIBC, &dirs, LD_SO_PRELOAD);
        image.file("opt/onload/lib/libonload.so", &own);
        assert_eq!(image.judge("/bin/app"), ByName);
        image.library_path = Some("/none:/opt/onload/lib");
        assert_eq!(image.judge("/bin/app"), ByPath(LIB64.to_owned()));
        image.covered = vec!["/opt/onload"];
        assert_eq!(image.judge("/bin/app"), ByName);
        // One for another machine is skipped.
        let image = Image::with_loader(GLIBC, &dirs, LD_SO_PRELOAD);
        let mut foreign = own.clone();
        foreign[18] ^= 0xff;
        image.file("lib64/libonload.so", &foreign);
        assert_eq!(image.judge("/bin/app"), ByName);
        image.file("lib64/libonload.so", &own);
        assert_eq!(image.judge("/bin/app"), ByPath(LIB64.to_owned()));
        // The host's library is mounted over it.
        let mut image = Image::with_loader(GLIBC, &dirs, LD_SO_PRELOAD);
        image.targets = vec!["/lib64/libonload.so".to_owned()];
        image.file("lib64/libonload.so", &own);
        assert_eq!(image.judge("/bin/app"), ByName);
    }

    #[test]
    fn a_loader_searches_in_its_order() {
        let image = Image::with_loader(GLIBC, &["/lib64/"], LD_SO_PRELOAD);
        let root = &ContainerRoot::open(image.tree.root()).unwrap();
        let check = LoaderCheck {
            files: ProgramFiles { root, covered: &|path| path == Path::new("/mounted") },
            library: None,
            preload: &PreloadedLibrary {
                source: None,
                targets: &[],
                mode: Preload::Env,
                is_path_required: false,
            },
            library_path: Some("/env:/mounted:relative:/$LIB"),
            started: Instant::now(),
        };
        let loader = check.open_loader(Path::new(GLIBC)).unwrap_or_else(|why| panic!("{why:?}"));
        let candidates = |rpath: Option<&str>, runpath: Option<&str>| {
            let [rpath, runpath] = [rpath, runpath].map(|dirs| dirs.map(str::to_owned));
            let program = ElfSummary { rpath, runpath, ..ElfSummary::default() };
            let search = check.search(&loader, Some((Path::new("/opt/bin/app"), &program)));
            search.candidates("l").iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(candidates(None, None), ["/env/l", "/lib64/l"]);
        assert_eq!(
            candidates(Some("$ORIGIN/../lib"), None),
            ["/opt/bin/../lib/l", "/env/l", "/lib64/l"]
        );
        assert_eq!(
            candidates(Some("/ignored"), Some("${ORIGIN}:/run")),
            ["/env/l", "/opt/bin/l", "/run/l", "/lib64/l"]
        );
    }

    /// Two copies of libc: the loader's order says which one the program gets.
    #[test]
    fn the_libc_that_the_loader_takes_counts() {
        let mut image = Image::with_loader(GLIBC, &["/lib64/", "/usr/lib64/"], LD_SO_PRELOAD);
        let old = SharedLibrary::new(LIBC).defines("GLIBC_2.12", &["a"]).bytes();
        image.file("usr/lib64/libc.so.6", &old);
        image.file("opt/old/libc.so.6", &old);
        assert_eq!(image.judge("/bin/app"), ByName);
        image.library_path = Some("/opt/old");
        assert!(image.reason("/bin/app").contains("the image's glibc is 2.12"));
    }

    #[test]
    fn a_loader_that_is_not_glibc_s_is_refused() {
        let image = Image::new();
        image.file("bin/app", elf_with_loader(Some(GLIBC)));
        // gcompat's loader, and libc6-compat's link to musl.
        image.file("lib64/ld-linux-x86-64.so.2", elf_with_loader(None));
        assert!(image.reason("/bin/app").contains("is not glibc's"));
        image.tree.remove("lib64/ld-linux-x86-64.so.2");
        image.file("lib/libc.musl-x86_64.so.1", SharedLibrary::new("libc").bytes());
        image.link("../lib/libc.musl-x86_64.so.1", "lib64/ld-linux-x86-64.so.2");
        assert!(image.reason("/bin/app").contains("is not glibc's"));
        image.file("bin/odd", elf_with_loader(Some("/system/bin/linker64")));
        assert!(image.reason("/bin/odd").contains("is not glibc's"));
    }

    #[test]
    fn a_libc_with_the_needed_versions_loads() {
        let old = libc(&["GLIBC_2.2.5", "GLIBC_2.36"]);
        assert_eq!(compare_versions(&library("GLIBC_2.2.5"), &old), Ok(()));
        assert_eq!(compare_versions(&library("GLIBC_2.36"), &old), Ok(()));
        for version in ["GLIBC_2.38", "GLIBC_ABI_DT_RELR"] {
            assert_eq!(
                compare_versions(&library(version), &old),
                Err(CannotLoad(format!("libonload.so needs {version}, the image's glibc is 2.36")))
            );
        }
        assert!(compare_versions(&library("GLIBC_2.3"), &libc(&[])).is_err());
    }

    #[test]
    fn a_musl_image_cannot_load_it() {
        let image = Image::new();
        image.file("bin/app", elf_with_loader(Some(MUSL)));
        assert!(image.reason("/bin/app").starts_with("cannot: the image's libc is musl"));
        assert!(image.reason("app").starts_with("cannot: "), "found in PATH");
        image.file("bin/script", "#! /bin/app -x\n");
        image.file("bin/script2", "#!/bin/script\n");
        assert!(image.reason("/bin/script2").starts_with("cannot: "));
    }

    #[test]
    fn a_static_program_preloads_nothing() {
        let image = Image::new();
        image.file("bin/app", elf_with_loader(None));
        assert!(image.reason("/bin/app").starts_with("unknown: \"/bin/app\" is a static program"));
    }

    #[test]
    fn a_program_for_another_machine_cannot_load_it() {
        let image = Image::new();
        let mut bytes = elf_with_loader(Some(GLIBC));
        bytes[18] ^= 0xff;
        image.file("bin/app", &bytes);
        assert!(image.reason("/bin/app").contains("different machine"));
    }

    #[test]
    fn an_init_that_the_engine_mounts_is_skipped() {
        let mut image = Image::new();
        image.file("bin/app", elf_with_loader(Some(MUSL)));
        image.covered = vec!["/sbin/docker-init"];
        let verdict = image.judge_args(&["/sbin/docker-init", "--", "/bin/app"]);
        assert!(matches!(verdict, CannotLoad(_)));
    }

    #[test]
    fn the_installed_loader_counts_if_the_program_is_unknown() {
        let reason = Image::new().reason("redis-server");
        assert!(reason.contains("\"redis-server\" is in no directory of PATH"), "{reason}");
        let mut image = Image::new();
        image.file("lib/ld-musl-x86_64.so.1", "x");
        assert!(image.reason("/absent").starts_with("cannot: the image's libc is musl"));
        image.covered = vec!["/app"];
        assert!(matches!(image.judge("/app/x"), CannotLoad(_)));
        let image = Image::with_loader(GLIBC, &["/usr/lib64/"], LD_SO_PRELOAD);
        assert_eq!(image.judge("/absent"), ByName);
        image.tree.remove("lib64/libc.so.6");
        assert!(image.reason("/absent").contains("has no libc.so.6"));
        let image = Image::with_loader(NIX, &NIX_DIRS, NIX_LIST);
        assert_eq!(image.judge("/absent"), ByPath(LIB64.to_owned()));
    }

    #[test]
    fn programs_that_are_no_files_are_given_up_in_bounded_time() {
        let image = Image::new();
        image.link("b", "bin/a");
        image.link("a", "bin/b");
        image.link("/proc/self/root/bin/sh", "bin/magic");
        image.link("../../../../../../../../../bin/sh", "bin/up");
        for (path, text) in [
            ("bin/self", "#!/bin/self\n"),
            ("bin/empty", ""),
            ("bin/text", "echo\n"),
            ("bin/nul", "#!/bin/\0sh\n"),
            ("bin/bare", "#!\n"),
        ] {
            image.file(path, text);
        }
        let fifo = image.tree.path("bin/fifo");
        let mode = Mode::from_raw_mode(0o644);
        rustix::fs::mknodat(rustix::fs::CWD, fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let sparse = File::create(image.tree.path("bin/sparse")).unwrap();
        sparse.set_len(10 << 30).unwrap();
        let names = [
            "a", "magic", "up", "self", "empty", "text", "nul", "bare", "fifo", "sparse", "../bin",
        ];
        for name in names {
            let reason = image.reason(&format!("/bin/{name}"));
            assert!(reason.starts_with("unknown: "), "{name}: {reason}");
        }
        assert!(matches!(image.judge_args(&[]), Unknown(_)));
    }

    #[test]
    fn a_libc_that_is_no_library_is_given_up() {
        let image = Image::new();
        image.file("bin/app", elf_with_loader(Some(GLIBC)));
        assert!(image.reason("/bin/app").contains("has no libc.so.6"));
        image.file("lib64/libc.so.6", "INPUT(libc)\n");
        assert!(image.reason("/bin/app").contains("not an ELF file"));
        image.tree.remove("lib64/libc.so.6");
        image.link("/proc/self/root/lib/x86_64-linux-gnu/libc.so.6", "lib64/libc.so.6");
        assert!(image.reason("/bin/app").contains("has no libc.so.6"));
    }
}
