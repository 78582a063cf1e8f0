//! Libraries and programs on the host, and whether they can work in a container with any image.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use object::read::ReadCache;
use onload_core::onload::TOOL_STARTER;
use onload_sys::elf::{self, ElfError, ElfSummary};
use serde::Serialize;

use crate::discover::probe::Probe;
use crate::host::{EntryKind, Host};

/// Limit for a library that is searched, in bytes; libonload.so has about five million.
pub const MAX_LIBRARY_BYTES: u64 = 32 * 1024 * 1024;
/// Limit for an interpreter line in bytes (Linux, `BINPRM_BUF_SIZE`).
pub const INTERPRETER_LINE: usize = 256;

/// Limit for the libraries of one tool; real ones have about a dozen, and each is a mount.
const MAX_LIBRARIES: usize = 64;

/// Shared objects of the GNU C library and of the kernel.
const LIBC_OBJECTS: [&str; 15] = [
    "ld-linux-aarch64.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux.so.2",
    "libBrokenLocale.so.1",
    "libanl.so.1",
    "libc.so.6",
    "libdl.so.2",
    "libm.so.6",
    "libmvec.so.1",
    "libpthread.so.0",
    "libresolv.so.2",
    "librt.so.1",
    "libthread_db.so.1",
    "libutil.so.1",
    "linux-vdso.so.1",
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    pub library_dir: PathBuf,
    /// The names of its libraries in that directory, including links, sorted.
    pub libraries: Vec<String>,
    /// The prefix; the library directory is in its usr/lib.
    pub prefix: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Tool {
    pub name: String,
    #[serde(skip)]
    pub path: PathBuf,
    /// The host's files that it is started with. `None` if every image has all that it needs.
    #[serde(skip)]
    pub closure: Option<ProgramClosure>,
}

/// The files of the host that a program loads when it starts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProgramClosure {
    /// The dynamic loader that it requests.
    pub loader: PathBuf,
    /// The libraries that the loader will load, including libc's, by the requested names.
    pub libraries: BTreeMap<String, PathBuf>,
}

/// The libraries that a tool can rely on in a container, in addition to libc's.
#[derive(Clone, Debug, Default)]
pub(crate) struct ContainerLibraries {
    /// The requirements of each library that is mounted for all programs, by each of its names.
    pub mounted: BTreeMap<String, Vec<String>>,
    /// The host's library directories, or `None` if the operator does not allow providing libraries from them.
    pub search: Option<Vec<PathBuf>>,
}

/// Returns the directories in which distributions and installers put libraries, below each prefix.
pub(crate) fn library_dirs(configured: &[PathBuf]) -> Vec<PathBuf> {
    if !configured.is_empty() {
        return configured.to_vec();
    }
    let below = ["usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64"];
    let prefixes = ["/", "/opt/onload"];
    prefixes.iter().flat_map(|prefix| below.map(|dir| Path::new(prefix).join(dir))).collect()
}

/// Returns the directories to search for a program's libraries: its own directory, those of installations, and those of
/// the host's loader.
pub(crate) fn search_dirs(own: Option<&Path>, configured: &[PathBuf]) -> Vec<PathBuf> {
    let usual = ["usr/lib", "lib"].into_iter().flat_map(|above| {
        ["x86_64-linux-gnu", "aarch64-linux-gnu"]
            .map(|dir| Path::new("/").join(above).join(dir))
            .into_iter()
            .chain([PathBuf::from(format!("/{above}64"))])
    });
    let mut visited = BTreeSet::new();
    own.map(Path::to_owned)
        .into_iter()
        .chain(library_dirs(configured))
        .chain(usual)
        .filter(|dir| visited.insert(dir.clone()))
        .collect()
}

pub(crate) fn find_installations(
    probe: &Probe<'_>,
    dirs: &[PathBuf],
    main_library: &str,
    belongs: impl Fn(&str) -> bool,
) -> Vec<Installation> {
    let mut visited = BTreeSet::new();
    let mut installations = Vec::new();
    for dir in dirs {
        // /usr/lib64 may be a link to a directory that is listed under its own name.
        let Some(path) = probe.resolve(dir).filter(|path| visited.insert(path.clone())) else {
            continue;
        };
        let mut libraries = probe.list(&path);
        libraries.retain(|name| belongs(name));
        libraries.retain(|name| is_file(probe, &dir.join(name)));
        if libraries.iter().any(|name| name == main_library) {
            let prefix = find_prefix(dir);
            installations.push(Installation { library_dir: dir.clone(), libraries, prefix });
        }
    }
    installations
}

fn is_file(probe: &Probe<'_>, path: &Path) -> bool {
    let file = matches!(probe.entry(path), Some(EntryKind::File { .. }));
    if !file && probe.unread_reason(path).is_none() {
        let outside_path = probe.host().outside_path(path);
        probe.warn(format!(
            "skipped library {}: it leads to no regular file",
            outside_path.display()
        ));
    }
    file
}

/// Returns the directory that contains usr/lib, or / if there is none.
fn find_prefix(library_dir: &Path) -> PathBuf {
    let above = library_dir.ancestors().find(|dir| dir.ends_with("usr"));
    above.and_then(Path::parent).unwrap_or(Path::new("/")).to_owned()
}

pub(crate) fn read_library(probe: &Probe<'_>, path: &Path) -> Option<Vec<u8>> {
    probe.ok_or_warn(probe.host().bytes(path, MAX_LIBRARY_BYTES))
}

pub fn library_summary(probe: &Probe<'_>, path: &Path, content: &[u8]) -> Option<ElfSummary> {
    elf::summarize(content)
        .inspect_err(|error| {
            let outside_path = probe.host().outside_path(path);
            probe.warn(format!("reading library {}: {error}", outside_path.display()));
        })
        .ok()
}

pub(crate) fn needed_libraries(
    probe: &Probe<'_>,
    installation: &Installation,
) -> BTreeMap<String, Vec<String>> {
    let mut needs = BTreeMap::new();
    for name in &installation.libraries {
        let summary = elf_summary(probe, &installation.library_dir.join(name));
        needs.insert(name.clone(), summary.map(|summary| summary.needed).unwrap_or_default());
    }
    needs
}

fn elf_summary(probe: &Probe<'_>, path: &Path) -> Result<ElfSummary, ElfError> {
    let file = probe.ok_or_warn(probe.host().file(path)).ok_or(ElfError::NotElf)?;
    elf::summarize(&ReadCache::new(file))
}

/// Returns the host's files that a program needs in a container. Fails if it cannot work there.
pub(crate) fn find_closure(
    probe: &Probe<'_>,
    path: &Path,
    container_libraries: &ContainerLibraries,
) -> Result<Option<ProgramClosure>, String> {
    if let Some(interpreter) = interpreter_line(probe, path) {
        return match interpreter.as_str() {
            "/bin/sh" => Ok(None),
            other => Err(format!("it is a script for {other}, which images may lack")),
        };
    }
    if let Some(reason) = probe.unread_reason(path) {
        return Err(format!("not known: {reason}"));
    }
    let summary = elf_summary(probe, path).map_err(|error| match error {
        ElfError::NotElf => "it is neither an ELF program nor a script".to_owned(),
        error => error.to_string(),
    })?;
    let missing = missing_libraries(&summary.needed, &container_libraries.mounted).join(", ");
    if missing.is_empty() {
        return Ok(None);
    }
    let Some(dirs) = &container_libraries.search else {
        return Err(format!(
            "it needs {missing}, which images may lack; run it on the host, or set tool-libraries \
             = true in [cdi]"
        ));
    };
    if !matches!(probe.entry(TOOL_STARTER), Some(EntryKind::File { .. })) {
        return Err(format!(
            "it needs {missing}, which {TOOL_STARTER} would provide, but that is missing; install \
             the package onload-ctk"
        ));
    }
    close(probe, &summary, dirs).map(Some)
}

/// Returns all files that a program of the host consists of, including requirements of preloaded and dynamically loaded
/// libraries.
pub fn find_host_closure(
    host: &Host,
    program: &Path,
    loaded: &[PathBuf],
) -> Result<ProgramClosure, String> {
    let probe = Probe::new(host);
    let read = |path: &Path| {
        elf_summary(&probe, path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let mut summary = read(program)?;
    for library in loaded {
        summary.needed.extend(read(library)?.needed);
    }
    close(&probe, &summary, &search_dirs(None, &[]))
}

/// Collects the libraries. Fails if one of them cannot be provided.
fn close(
    probe: &Probe<'_>,
    program: &ElfSummary,
    dirs: &[PathBuf],
) -> Result<ProgramClosure, String> {
    let loader = program
        .interpreter
        .as_deref()
        .map(PathBuf::from)
        .filter(|loader| loader.is_absolute())
        .ok_or("it has no dynamic loader; run it on the host")?;
    if !matches!(probe.entry(&loader), Some(EntryKind::File { .. })) {
        let loader = loader.display();
        return Err(format!("its dynamic loader {loader} is not on this host; install it"));
    }
    let mut libraries = BTreeMap::new();
    let mut pending = program.needed.clone();
    while let Some(name) = pending.pop() {
        // libc requires the loader, which is already loaded.
        let is_loader = loader.file_name().is_some_and(|file_name| file_name == name.as_str());
        if is_loader || libraries.contains_key(&name) {
            continue;
        }
        if name.contains('/') || name.is_empty() {
            return Err(format!(
                "it needs {name:?}, which is not a library name; run it on the host"
            ));
        }
        let mut candidates = dirs
            .iter()
            .map(|dir| dir.join(&name))
            .filter_map(|path| Some((if_loadable(probe, &path, program)?, path)));
        let Some((summary, path)) = candidates.next() else {
            return Err(not_found_message(probe, &name, dirs));
        };
        if libraries.len() == MAX_LIBRARIES {
            return Err(format!(
                "it needs more than {MAX_LIBRARIES} libraries; run it on the host"
            ));
        }
        pending.extend(summary.needed);
        libraries.insert(name, path);
    }
    Ok(ProgramClosure { loader, libraries })
}

/// Reads a library if it is for the same machine as the program: the loader skips others.
fn if_loadable(probe: &Probe<'_>, path: &Path, program: &ElfSummary) -> Option<ElfSummary> {
    if !matches!(probe.entry(path), Some(EntryKind::File { .. })) {
        return None;
    }
    let summary = elf_summary(probe, path).ok()?;
    let fits = (summary.machine, summary.is_64) == (program.machine, program.is_64);
    fits.then_some(summary)
}

fn not_found_message(probe: &Probe<'_>, name: &str, dirs: &[PathBuf]) -> String {
    let mut paths = dirs.iter().map(|dir| dir.join(name));
    if let Some(reason) = paths.find_map(|path| probe.unread_reason(path)) {
        return format!("it needs {name}; could not determine whether this host has it: {reason}");
    }
    let dirs: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    format!("it needs {name}, which is in none of {}; install it on this host", dirs.join(", "))
}

/// Returns the program of a `#!` line, or `None` without one.
fn interpreter_line(probe: &Probe<'_>, path: &Path) -> Option<String> {
    let file = probe.ok_or_warn(probe.host().file(path))?;
    let mut head = Vec::new();
    file.take(INTERPRETER_LINE as u64).read_to_end(&mut head).ok()?;
    parse_interpreter_line(&head)
}

pub fn parse_interpreter_line(head: &[u8]) -> Option<String> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    Some(line.split_ascii_whitespace().next().unwrap_or_default().to_owned())
}

/// Returns the libraries that are needed, directly or by a mounted one, and neither belong to libc nor are mounted.
fn missing_libraries(needed: &[String], mounted: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let mut missing = BTreeSet::new();
    let mut visited = BTreeSet::new();
    let mut pending: Vec<&String> = needed.iter().collect();
    while let Some(name) = pending.pop() {
        if LIBC_OBJECTS.contains(&name.as_str()) || !visited.insert(name) {
            continue;
        }
        match mounted.get(name) {
            Some(needs) => pending.extend(needs),
            None => drop(missing.insert(name.clone())),
        }
    }
    missing.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_program_that_needs_only_libc_and_what_is_mounted_misses_nothing() {
        let mounted = BTreeMap::from([
            ("libefcp.so.1".to_owned(), names(&["libc.so.6", "libonload.so"])),
            ("libonload.so".to_owned(), names(&["libdl.so.2", "libefcp.so.1"])),
        ]);
        let missing = missing_libraries(&names(&["libefcp.so.1", "libm.so.6"]), &mounted);
        assert_eq!(missing, Vec::<String>::new());
    }

    #[test]
    fn what_a_mounted_library_misses_its_user_misses() {
        let mounted = BTreeMap::from([("liba.so".to_owned(), names(&["libdbus-1.so.3"]))]);
        let missing = missing_libraries(&names(&["libpcap.so.0.8", "liba.so"]), &mounted);
        assert_eq!(missing, ["libdbus-1.so.3", "libpcap.so.0.8"]);
    }

    #[test]
    fn libraries_are_looked_for_beside_the_product_s_own_first_and_once_in_each_directory() {
        let dirs = |configured: &[&str]| {
            let configured: Vec<PathBuf> = configured.iter().map(PathBuf::from).collect();
            search_dirs(Some(Path::new("/opt/onload/usr/lib64")), &configured)
        };
        let usual = [
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/aarch64-linux-gnu",
            "/usr/lib64",
            "/lib/x86_64-linux-gnu",
            "/lib/aarch64-linux-gnu",
            "/lib64",
        ]
        .map(PathBuf::from);
        let found = dirs(&["/srv/lib", "/usr/lib64"]);
        assert_eq!(
            found[..3],
            ["/opt/onload/usr/lib64", "/srv/lib", "/usr/lib64"].map(PathBuf::from)
        );
        for found in [found, dirs(&[])] {
            let once: BTreeSet<&PathBuf> = found.iter().collect();
            assert_eq!(once.len(), found.len());
            assert!(usual.iter().all(|dir| once.contains(dir)), "{found:?}");
        }
    }

    #[test]
    fn the_interpreter_is_the_first_word_of_its_line() {
        let interpreter = |text: &str| parse_interpreter_line(text.as_bytes());
        assert_eq!(interpreter("#!/bin/sh\n").as_deref(), Some("/bin/sh"));
        assert_eq!(interpreter("#! /bin/sh -e\necho").as_deref(), Some("/bin/sh"));
        assert_eq!(interpreter("#!/usr/bin/env bash\n").as_deref(), Some("/usr/bin/env"));
        assert_eq!(interpreter("#!").as_deref(), Some(""));
        assert_eq!(interpreter("\u{7f}ELF"), None);
    }

    #[test]
    fn the_prefix_is_what_stands_above_usr() {
        assert_eq!(find_prefix(Path::new("/usr/lib64")), Path::new("/"));
        assert_eq!(find_prefix(Path::new("/usr/lib/x86_64-linux-gnu")), Path::new("/"));
        assert_eq!(find_prefix(Path::new("/opt/onload/usr/lib64")), Path::new("/opt/onload"));
        assert_eq!(find_prefix(Path::new("/srv/onload")), Path::new("/"));
    }
}
