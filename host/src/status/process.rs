//! What the kernel tells of one process. It may end at any moment: what is gone then is not known.

use std::path::{Path, PathBuf};

use crate::host::Host;

const LIBRARY: &[u8] = b"libonload.so";
/// Descriptors of one process that are looked at.
const MOST_DESCRIPTORS: usize = 4096;
/// Bytes of `status`, `limits` and `cgroup`.
const SMALL: u64 = 64 * 1024;

/// A process of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// Its name, which it chooses itself.
    pub(super) name: String,
    /// Whether it is the first of its pid namespace.
    pub(super) is_init: bool,
    /// Whether it runs with other rights than who started it: the loader ignores LD_PRELOAD then
    /// (ld.so(8), "secure-execution mode").
    pub(super) is_set_user_id: bool,
    /// Whether it maps the library; none where that is not ours to see.
    pub(super) preload: Option<Preload>,
    /// What its descriptors lead to, of our devices; none where that is not ours to see.
    pub(super) open: Option<Vec<String>>,
    /// RLIMIT_MEMLOCK.
    pub(super) memlock: Option<Limit>,
    /// Its network namespace, as the kernel names it.
    pub(super) network: Option<PathBuf>,
}

/// Whether a process maps the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preload {
    /// It does not.
    No,
    /// It does.
    Yes,
    /// It maps a file that has been removed or replaced since.
    Replaced,
}

/// A limit in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    Unlimited,
    Bytes(u64),
}

/// The directory of a process.
pub(super) fn directory(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// The bytes of its `cgroup`; none where it has ended.
pub(super) fn cgroup(host: &Host, pid: u32) -> Option<Vec<u8>> {
    host.bytes(&directory(pid).join("cgroup"), SMALL).ok()?
}

/// A namespace of it, as the kernel names it: `pid:[4026531836]`.
pub(super) fn namespace(host: &Host, pid: u32, kind: &str) -> Option<PathBuf> {
    host.link(&directory(pid).join("ns").join(kind)).ok()?
}

/// The namespace of the host itself: that of its first process, or else of this one, where the first one is
/// not ours to see.
pub(super) fn own_namespace(host: &Host, kind: &str) -> Option<PathBuf> {
    let this = Path::new("/proc/self/ns").join(kind);
    namespace(host, 1, kind).or_else(|| host.link(&this).ok()?)
}

/// Looks at a process; none where it has ended.
pub(super) fn read(host: &Host, pid: u32) -> Option<Process> {
    let directory = directory(pid);
    let status = host.bytes(&directory.join("status"), SMALL).ok()??;
    let status = String::from_utf8_lossy(&status);
    let field = |name: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    let users: Vec<&str> = field("Uid")
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let mut numbers = field("NSpid").unwrap_or_default().split_whitespace();
    let limits = host.bytes(&directory.join("limits"), SMALL).ok()?;
    let limits = limits.unwrap_or_default();
    Some(Process {
        pid,
        name: field("Name").unwrap_or_default().trim().to_owned(),
        is_init: numbers.next_back() == Some("1"),
        is_set_user_id: users.first() != users.get(1),
        preload: preload(host, &directory),
        open: open(host, &directory),
        memlock: parse_memlock(&String::from_utf8_lossy(&limits)),
        network: namespace(host, pid, "net"),
    })
}

fn preload(host: &Host, directory: &Path) -> Option<Preload> {
    let wanted = |line: &[u8]| memchr::memmem::find(line, LIBRARY).is_some();
    let lines = host.lines(&directory.join("maps"), &wanted).ok()??;
    let lines = || {
        let lines = lines.split(|byte| *byte == b'\n');
        lines.filter(|line| !line.is_empty())
    };
    Some(if lines().any(|line| line.ends_with(b" (deleted)")) {
        Preload::Replaced
    } else if lines().next().is_some() {
        Preload::Yes
    } else {
        Preload::No
    })
}

/// The devices of ours that it has open.
fn open(host: &Host, directory: &Path) -> Option<Vec<String>> {
    let directory = directory.join("fd");
    let names = host.list(&directory).ok()?.names;
    let targets = names.iter().take(MOST_DESCRIPTORS).filter_map(|name| {
        let target = host.link(&directory.join(name)).ok()??;
        let target = target.to_str()?;
        let is_ours = target.starts_with("/dev/") || target.starts_with("anon_inode:[vfio");
        is_ours.then(|| target.to_owned())
    });
    Some(targets.collect())
}

/// The soft limit in proc_pid_limits(5).
fn parse_memlock(text: &str) -> Option<Limit> {
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(Limit::Unlimited),
        number => number.parse().ok().map(Limit::Bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_read_from_its_column() {
        let line = |soft: &str| {
            format!("Limit  Soft Limit\nMax locked memory         {soft}    67108864   bytes\n")
        };
        assert_eq!(
            parse_memlock(&line("8388608")),
            Some(Limit::Bytes(8_388_608))
        );
        assert_eq!(parse_memlock(&line("unlimited")), Some(Limit::Unlimited));
        assert_eq!(parse_memlock("Max locked memory\n"), None);
        assert_eq!(parse_memlock(""), None);
    }
}
