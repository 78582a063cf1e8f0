//! A network namespace that is found again: by its cookie, among those that engines keep as files, and those of all
//! processes. Any process that is in it keeps it, and what moved into it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd};
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
    let mut all = Candidates::new(hint);
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
    let all = all.filter(move |found| found.netns.cookie() != cookie);
    let until = Instant::now() + ALL;
    let mut is_late = false;
    let in_time = all.map(move |found| match Instant::now() < until {
        true => Ok(found),
        false => Err(too_long()),
    });
    in_time.take_while(move |found| !std::mem::replace(&mut is_late, found.is_err()))
}

fn too_long() -> io::Error {
    let seconds = ALL.as_secs();
    io::Error::other(format!("not done within {seconds} seconds"))
}

/// The namespace in which something is so, but for `own`.
pub(crate) fn holder_of(own: &Netns, is_it: &dyn Fn(&Netns) -> bool) -> Option<Found> {
    let all = others(own, Depth::Descriptors).map_while(Result::ok);
    let mut own = all.filter(|found| is_it(&found.netns));
    own.next()
}

/// All namespaces that have a name somewhere, each of them once.
struct Candidates {
    paths: Box<dyn Iterator<Item = PathBuf>>,
    /// A number may go to a namespace that is made meanwhile. That one is nobody's who looks for an older one.
    seen: BTreeSet<Inode>,
}

impl Candidates {
    fn new(hint: Option<&Path>) -> Self {
        let kept = KEPT.into_iter().flat_map(|dir| entries(Path::new(dir)));
        let hint = hint.map(Path::to_owned).into_iter();
        let processes = processes().map(|dir| dir.join("ns/net"));
        Candidates {
            paths: Box::new(kept.chain(hint).chain(processes)),
            seen: BTreeSet::new(),
        }
    }

    fn with(self, depth: Depth) -> Self {
        match depth {
            Depth::Processes => self,
            Depth::Descriptors => Candidates {
                paths: Box::new(self.paths.chain(descriptors())),
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

/// The descriptors of network namespaces that processes have, for as long as there is time: any of them may have very
/// many.
fn descriptors() -> impl Iterator<Item = PathBuf> {
    let all = || {
        let until = Instant::now() + DESCRIPTORS;
        let in_time = move |_: &PathBuf| Instant::now() < until;
        let all = processes().flat_map(|dir| entries(&dir.join("fd")));
        all.take_while(in_time).filter(|path| names_namespace(path))
    };
    std::iter::once_with(all).flatten()
}

/// Whether a descriptor may be of a network namespace, by its number alone. What it is of is not touched: that may be a
/// file of a server that never answers.
fn names_namespace(path: &Path) -> bool {
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
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        loop {
            let path = self.paths.next()?;
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
                return Some(Found { netns, keeper });
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
