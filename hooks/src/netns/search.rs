//! A network namespace that is found again: by its cookie, among those that engines keep as files, and those of all
//! processes. Any process that is in it keeps it, and what moved into it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use onload_core::text::Quoted;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statx};

use super::namespace::{Inode, Netns, inode, open};

/// Where engines and people keep namespaces as files (ip-netns(8), podman, containerd; docker).
const KEPT: [&str; 2] = ["/run/netns", "/run/docker/netns"];
const PROC: &str = "/proc";
const OWN_DESCRIPTORS: &str = "/proc/self/fd";
const OWN_NAMESPACE: &str = "/proc/self/ns/net";
/// Numbers that namespaces may have (fs/proc/generic.c, `PROC_DYNAMIC_FIRST`).
const INODES: RangeInclusive<u64> = 0xF000_0000..=0xFFFF_FFFF;
/// What the kernel calls descriptors that are of no namespace (`d_dname` in its source).
const NO_NAMESPACE: [&[u8]; 3] = [b"socket:[", b"pipe:[", b"anon_inode:"];
/// How long all namespaces are looked at: who is in one may fill it.
const ALL: Duration = Duration::from_secs(6);
/// How long descriptors are looked at.
const DESCRIPTORS: Duration = Duration::from_secs(2);

/// Who keeps a namespace, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keeper(String);

impl std::fmt::Display for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A namespace, and who keeps it.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) netns: Netns,
    pub(crate) keeper: Keeper,
}

/// The namespace with a cookie; `hint` is a file that may be of it, and is looked at after those that engines keep.
pub(crate) fn find(cookie: u64, hint: Option<&Path>) -> Option<Found> {
    let mut all = Candidates::new(hint).filter_map(Result::ok);
    all.find(|found| found.netns.cookie() == cookie)
}

/// How far is looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Namespaces that are kept as files, and those of processes.
    Processes,
    /// Beside those, the ones that processes keep by a descriptor alone.
    Descriptors,
}

/// Every namespace but `own` that can be found, once; an error ends them where that takes too long.
pub(crate) fn others(own: &Netns, depth: Depth) -> impl Iterator<Item = io::Result<Found>> {
    let cookie = own.cookie();
    let all = Candidates::new(None).with(depth);
    let is_other =
        move |found: &io::Result<Found>| !matches!(found, Ok(own) if own.netns.cookie() == cookie);
    let until = Instant::now() + ALL;
    let in_time = all
        .filter(is_other)
        .map(move |found| match Instant::now() < until {
            true => found,
            false => Err(too_long(ALL, "")),
        });
    to_first_error(in_time)
}

/// All to the first error, and that too.
fn to_first_error<T>(
    all: impl Iterator<Item = io::Result<T>>,
) -> impl Iterator<Item = io::Result<T>> {
    let mut has_failed = false;
    all.take_while(move |one| !std::mem::replace(&mut has_failed, one.is_err()))
}

fn too_long(patience: Duration, at: &str) -> io::Error {
    let seconds = patience.as_secs();
    io::Error::other(format!("not done within {seconds} seconds{at}"))
}

/// The namespace in which something is so, but for `own`.
pub(crate) fn holder_of(own: &Netns, is_it: &dyn Fn(&Netns) -> bool) -> Option<Found> {
    let all = others(own, Depth::Descriptors).map_while(Result::ok);
    let mut own = all.filter(|found| is_it(&found.netns));
    own.next()
}

/// All namespaces that have a name somewhere, each of them once.
struct Candidates {
    paths: Box<dyn Iterator<Item = io::Result<PathBuf>>>,
    /// A number may go to a namespace that is made meanwhile. That one is nobody's who looks for an older one.
    seen: BTreeSet<Inode>,
}

impl Candidates {
    fn new(hint: Option<&Path>) -> Self {
        let kept = KEPT.into_iter().flat_map(|dir| entries(Path::new(dir)));
        let hint = hint.map(Path::to_owned).into_iter();
        let processes = processes().map(|dir| dir.join("ns/net"));
        Candidates {
            paths: Box::new(kept.chain(hint).chain(processes).map(Ok)),
            seen: BTreeSet::new(),
        }
    }

    fn with(self, depth: Depth) -> Self {
        match depth {
            Depth::Processes => self,
            Depth::Descriptors => Candidates {
                paths: Box::new(self.paths.chain(descriptors(DESCRIPTORS))),
                ..self
            },
        }
    }
}

/// The directories of all processes.
fn processes() -> impl Iterator<Item = PathBuf> {
    let is_pid = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let processes = std::iter::once_with(|| entries(Path::new(PROC))).flatten();
    processes.filter(is_pid)
}

/// The descriptors of network namespaces that processes have, for as long as there is time, and an error that ends them
/// where that is not enough: any process may have very many.
fn descriptors(patience: Duration) -> impl Iterator<Item = io::Result<PathBuf>> {
    let all = move || {
        let until = Instant::now() + patience;
        let all = processes().flat_map(|dir| entries(&dir.join("fd")));
        let in_time = all.map(move |path| match Instant::now() < until {
            true => Ok(path),
            false => Err(late_at(patience, &path)),
        });
        in_time.filter(|path| path.as_ref().map_or(true, |path| names_namespace(path)))
    };
    to_first_error(std::iter::once_with(all).flatten())
}

/// Says at whose descriptors there was no more time.
fn late_at(patience: Duration, path: &Path) -> io::Error {
    let at = format!("; it was at the descriptors of {}", keeper(path));
    too_long(patience, &at)
}

/// Whether a descriptor may be of a network namespace, by its name and number alone. What it is of is not touched: that
/// may be a file of a server that never answers.
fn names_namespace(path: &Path) -> bool {
    // Most are told by one system call. A path of the file system begins with no such word.
    let name = fs::read_link(path).unwrap_or_default();
    let name = name.as_os_str().as_bytes();
    if NO_NAMESPACE.iter().any(|kind| name.starts_with(kind)) {
        return false;
    }
    let (Some(process), Some(number)) = (path.ancestors().nth(2), path.file_name()) else {
        return false;
    };
    let info = fs::read_to_string(process.join("fdinfo").join(number)).unwrap_or_default();
    let inode = info.lines().find_map(|line| line.strip_prefix("ino:"));
    inode
        .and_then(|inode| inode.trim().parse().ok())
        .is_some_and(|inode: u64| INODES.contains(&inode))
}

/// Opens a candidate. A descriptor may be of another file than its number says, which is not opened then.
fn open_candidate(path: &Path) -> io::Result<File> {
    if !path.starts_with(PROC) || path.ends_with("ns/net") {
        return open(path);
    }
    let held = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    if file_system(&held, "")? != file_system(CWD, OWN_NAMESPACE)? {
        return Err(io::ErrorKind::NotFound.into());
    }
    open(&Path::new(OWN_DESCRIPTORS).join(held.as_raw_fd().to_string()))
}

/// The device number of a file's file system, as far as it is known without asking anybody.
fn file_system(dir: impl AsFd, path: &str) -> io::Result<(u32, u32)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(dir, path, flags, StatxFlags::BASIC_STATS)?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

impl Found {
    /// The same with another way in.
    pub(crate) fn again(&self) -> io::Result<Found> {
        Ok(Found {
            netns: self.netns.again()?,
            keeper: self.keeper.clone(),
        })
    }
}

impl Iterator for Candidates {
    type Item = io::Result<Found>;

    fn next(&mut self) -> Option<io::Result<Found>> {
        loop {
            let path = match self.paths.next()? {
                Ok(path) => path,
                Err(error) => return Some(Err(error)),
            };
            // A file of another kind in these directories is nobody's namespace.
            let Ok(file) = open_candidate(&path) else {
                continue;
            };
            let Ok(number) = inode(&file) else { continue };
            if !self.seen.insert(number) {
                continue;
            }
            if let Ok(netns) = Netns::enter(file, &path) {
                let keeper = keeper(&path);
                return Some(Ok(Found { netns, keeper }));
            }
        }
    }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    paths.sort();
    paths
}

/// A process by its number and program, or a file.
fn keeper(path: &Path) -> Keeper {
    let process = path
        .strip_prefix(PROC)
        .ok()
        .and_then(|below| below.iter().next());
    let text = match process.and_then(|pid| pid.to_str()) {
        Some(pid) => {
            let program = fs::read(Path::new(PROC).join(pid).join("comm")).unwrap_or_default();
            let program = String::from_utf8_lossy(program.trim_ascii_end()).into_owned();
            format!("process {pid} ({})", Quoted(&program))
        }
        None => format!("{path:?}"),
    };
    Keeper(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_that_there_is_no_time_for_are_an_error_and_not_left_out() {
        let late: Vec<_> = descriptors(Duration::ZERO).collect();
        let [Err(error)] = late.as_slice() else {
            panic!("{late:?}");
        };
        let told = error.to_string();
        let begin = "not done within 0 seconds; it was at the descriptors of process ";
        assert!(told.starts_with(begin), "{told}");
    }
}
