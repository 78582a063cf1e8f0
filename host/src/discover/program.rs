//! Libraries and programs on the host: which of them can work in a container with an unknown image.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use object::read::ReadCache;
use onload_core::elf::{self, ElfError, Summary};

use crate::discover::probe::Probe;
use crate::host::EntryKind;

/// Bytes of a library that are searched; libonload.so has about five million.
pub const LIBRARY_LIMIT: u64 = 32 * 1024 * 1024;
/// Bytes of an interpreter line (Linux, `BINPRM_BUF_SIZE`).
pub const INTERPRETER_LINE: usize = 256;

/// The shared objects that come with the GNU C library, and the kernel's own.
const WITH_LIBC: [&str; 15] = [
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

/// Where a product is installed below a prefix such as / or /opt/onload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// The directory of its libraries.
    pub library_dir: PathBuf,
    /// The names of its libraries in that directory, including links, sorted.
    pub libraries: Vec<String>,
    /// The prefix; the library directory is in its usr/lib.
    pub prefix: PathBuf,
}

/// A program or script that works in a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// Its path on the host.
    pub path: PathBuf,
}

/// The directories where distributions and installers put libraries, below each prefix.
#[must_use]
pub(crate) fn library_dirs(configured: &[PathBuf]) -> Vec<PathBuf> {
    if !configured.is_empty() {
        return configured.to_vec();
    }
    let below = [
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/aarch64-linux-gnu",
        "usr/lib64",
    ];
    let prefixes = ["/", "/opt/onload"];
    prefixes
        .iter()
        .flat_map(|prefix| below.map(|dir| Path::new(prefix).join(dir)))
        .collect()
}

/// Every directory that contains a library with that name, and the libraries there that belong to
/// it.
pub(crate) fn installations(
    probe: &Probe<'_>,
    dirs: &[PathBuf],
    main_library: &str,
    belongs: impl Fn(&str) -> bool,
) -> Vec<Installation> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for dir in dirs {
        // /usr/lib64 may be a link to a directory that is listed under its own name.
        let Some(place) = probe
            .resolve(dir)
            .filter(|place| seen.insert(place.clone()))
        else {
            continue;
        };
        let mut libraries = probe.list(&place);
        libraries.retain(|name| belongs(name));
        libraries.retain(|name| is_file(probe, &dir.join(name)));
        if libraries.iter().any(|name| name == main_library) {
            let prefix = prefix_of(dir);
            found.push(Installation {
                library_dir: dir.clone(),
                libraries,
                prefix,
            });
        }
    }
    found
}

fn is_file(probe: &Probe<'_>, path: &Path) -> bool {
    let file = matches!(probe.entry(path), Some(EntryKind::File { .. }));
    if !file && probe.why_unread(path).is_none() {
        let shown = probe.host().outside_path(path);
        probe.warn(format!(
            "skipped library {}: it leads to no regular file",
            shown.display()
        ));
    }
    file
}

/// The directory above usr/lib; a directory that is not below one counts as below /.
fn prefix_of(library_dir: &Path) -> PathBuf {
    let above = library_dir.ancestors().find(|dir| dir.ends_with("usr"));
    above
        .and_then(Path::parent)
        .unwrap_or(Path::new("/"))
        .to_owned()
}

/// The content of a library; `None` and a warning if it cannot be read.
pub(crate) fn library_content(probe: &Probe<'_>, path: &Path) -> Option<Vec<u8>> {
    probe.or_warn(probe.host().bytes(path, LIBRARY_LIMIT))
}

/// What the loader would learn from a library; `None` and a warning if it is not an ELF file.
pub fn library_summary(probe: &Probe<'_>, path: &Path, content: &[u8]) -> Option<Summary> {
    elf::summarize(content)
        .inspect_err(|error| {
            let shown = probe.host().outside_path(path);
            probe.warn(format!("reading library {}: {error}", shown.display()));
        })
        .ok()
}

/// What each of the mounted libraries needs, by each of its names.
pub(crate) fn needs_of(
    probe: &Probe<'_>,
    installation: &Installation,
) -> BTreeMap<String, Vec<String>> {
    let mut needs = BTreeMap::new();
    for name in &installation.libraries {
        let summary = elf_summary(probe, &installation.library_dir.join(name));
        needs.insert(
            name.clone(),
            summary.map(|summary| summary.needed).unwrap_or_default(),
        );
    }
    needs
}

fn elf_summary(probe: &Probe<'_>, path: &Path) -> Result<Summary, ElfError> {
    let file = probe
        .or_warn(probe.host().file(path))
        .ok_or(ElfError::NotElf)?;
    elf::summarize(&ReadCache::new(file))
}

/// Those of the tools `names` that work in a container with the `mounted` libraries, and why each
/// of the others does not. Names that the host lacks appear in neither.
pub(crate) fn tools(
    probe: &Probe<'_>,
    dir: &Path,
    names: &[&str],
    mounted: &BTreeMap<String, Vec<String>>,
) -> (Vec<Tool>, Vec<(String, String)>) {
    let (mut offered, mut refused) = (Vec::new(), Vec::new());
    for name in names {
        let path = dir.join(name);
        match probe.entry(&path) {
            None => {}
            Some(EntryKind::File { .. }) => match obstacle(probe, &path, mounted) {
                None => offered.push(Tool {
                    name: (*name).to_owned(),
                    path,
                }),
                Some(reason) => refused.push(((*name).to_owned(), reason)),
            },
            Some(_) => refused.push(((*name).to_owned(), "it is no regular file".to_owned())),
        }
    }
    offered.sort();
    (offered, refused)
}

/// Why a program cannot work in a container; `None` if it can.
fn obstacle(
    probe: &Probe<'_>,
    path: &Path,
    mounted: &BTreeMap<String, Vec<String>>,
) -> Option<String> {
    if let Some(interpreter) = interpreter_line(probe, path) {
        return match interpreter.as_str() {
            "/bin/sh" => None,
            other => Some(format!(
                "it is a script for {other}, which an image need not have"
            )),
        };
    }
    if let Some(reason) = probe.why_unread(path) {
        return Some(format!("not known: {reason}"));
    }
    match elf_summary(probe, path) {
        Err(ElfError::NotElf) => Some("it is neither an ELF program nor a script".to_owned()),
        Err(error) => Some(error.to_string()),
        Ok(summary) => {
            let missing = missing_libraries(&summary.needed, mounted);
            (!missing.is_empty()).then(|| {
                format!(
                    "it needs {}, which an image need not have",
                    missing.join(", ")
                )
            })
        }
    }
}

/// The program of a `#!` line; `None` for a file without one.
fn interpreter_line(probe: &Probe<'_>, path: &Path) -> Option<String> {
    let file = probe.or_warn(probe.host().file(path))?;
    let mut head = Vec::new();
    file.take(INTERPRETER_LINE as u64)
        .read_to_end(&mut head)
        .ok()?;
    parse_interpreter_line(&head)
}

/// The program that a `#!` line at the start of a file names; `None` without one.
pub fn parse_interpreter_line(head: &[u8]) -> Option<String> {
    let line = head
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let line = String::from_utf8_lossy(line);
    Some(
        line.split_ascii_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned(),
    )
}

/// The libraries that are needed, directly or by a mounted one, and neither come with libc nor are
/// mounted.
fn missing_libraries(needed: &[String], mounted: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let mut missing = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut open: Vec<&String> = needed.iter().collect();
    while let Some(name) = open.pop() {
        if WITH_LIBC.contains(&name.as_str()) || !seen.insert(name) {
            continue;
        }
        match mounted.get(name) {
            Some(needs) => open.extend(needs),
            None => drop(missing.insert(name.clone())),
        }
    }
    missing.into_iter().collect()
}

/// Properties that hold for every text.
#[cfg(fuzzing)]
pub(super) fn fuzz(text: &str) {
    let _ = parse_interpreter_line(text.as_bytes());
    let _ = prefix_of(Path::new(text));
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
            (
                "libefcp.so.1".to_owned(),
                names(&["libc.so.6", "libonload.so"]),
            ),
            (
                "libonload.so".to_owned(),
                names(&["libdl.so.2", "libefcp.so.1"]),
            ),
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
    fn the_interpreter_is_the_first_word_of_its_line() {
        let interpreter = |text: &str| parse_interpreter_line(text.as_bytes());
        assert_eq!(interpreter("#!/bin/sh\n").as_deref(), Some("/bin/sh"));
        assert_eq!(
            interpreter("#! /bin/sh -e\necho").as_deref(),
            Some("/bin/sh")
        );
        assert_eq!(
            interpreter("#!/usr/bin/env bash\n").as_deref(),
            Some("/usr/bin/env")
        );
        assert_eq!(interpreter("#!").as_deref(), Some(""));
        assert_eq!(interpreter("\u{7f}ELF"), None);
    }

    #[test]
    fn the_prefix_is_what_stands_above_usr() {
        assert_eq!(prefix_of(Path::new("/usr/lib64")), Path::new("/"));
        assert_eq!(
            prefix_of(Path::new("/usr/lib/x86_64-linux-gnu")),
            Path::new("/")
        );
        assert_eq!(
            prefix_of(Path::new("/opt/onload/usr/lib64")),
            Path::new("/opt/onload")
        );
        assert_eq!(prefix_of(Path::new("/srv/onload")), Path::new("/"));
    }
}
