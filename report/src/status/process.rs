//! The data of one process in /proc. It may end at any moment: what is gone then is not known.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::SplitWhitespace;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onload_core::timestamp::since_boot_ms;
use onload_host::host::{Host, HostError};
use onload_sys::processes::{is_zombie, open_device, start_time};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// The library's file name, which a version may follow.
const LIBRARY: &[u8] = b"libonload.so";
/// Bytes of the small files of a process.
const SMALL: u64 = 64 * 1024;
/// CAP_IPC_LOCK, of whose holder the kernel locks any amount of memory (capabilities(7)).
const IPC_LOCK: u32 = 14;
/// The auxiliary vector entry for programs with more privileges than their caller (getauxval(3)).
const AT_SECURE: u64 = 23;
/// The number of the descriptor.
const STDERR: &str = "2";
/// Majors of pseudo-terminals (include/uapi/linux/major.h).
const UNIX98_PTY_MAJORS: RangeInclusive<u32> = 136..=143;
/// Limit for the path or name of a descriptor in bytes: none of our devices has a longer one, while a container may
/// have a quarter of a million with 4 KiB, for example in /dev/shm.
const MAX_PATH_BYTES: usize = 64;
/// The column of a file's inode in `maps`: range, rights, offset, device, inode, path.
const INODE: usize = 4;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ContainerProcess {
    /// Its number, or that of another of its threads where the first one has ended.
    pub(super) pid: u32,
    /// Its number in its own pid namespace, by which its library names it.
    pub(super) own_pid: Option<u32>,
    /// When it started, in hundredths of a second since boot.
    pub(super) start_time: u64,
    /// Its name, which it chooses itself.
    pub(super) name: String,
    /// Whether it is the first of its pid namespace.
    pub(super) is_init: bool,
    /// Whether it runs with other rights than who started it: the loader ignores LD_PRELOAD then
    /// (ld.so(8), "secure-execution mode").
    pub(super) is_secure: bool,
    /// Whether it maps the library; `None` if this user may not see that.
    pub(super) preload: Option<LibraryMapping>,
    /// Its descriptors of our devices and of Onload; `None` if this user may not see them.
    pub(super) open: Option<Vec<String>>,
    pub(super) sockets: Vec<u64>,
    /// The addresses of its TCP and UDP sockets in the kernel for other machines; `None` if not requested or unknown.
    pub(super) kernel_addresses: Option<BTreeSet<IpAddr>>,
    /// Whether it has a socket of the kernel's TCP and UDP within the host, or one that looks up names.
    pub(super) has_local_socket: bool,
    pub(super) has_stack: bool,
    /// Whether its stderr is a terminal.
    pub(super) has_terminal: bool,
    pub(super) memlock: Option<MemlockLimit>,
    /// Its network namespace, as the kernel names it.
    pub(super) network: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum LibraryMapping {
    No,
    Yes,
    /// It maps a file that has been removed or replaced since.
    Replaced,
    /// It maps one that is not this host's.
    Foreign,
}

/// In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum MemlockLimit {
    Bytes(u64),
    Unlimited,
}

pub(super) fn proc_dir(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// `None` if it has ended.
pub(super) fn read_cgroup(host: &Host, pid: u32) -> Option<Vec<u8>> {
    host.bytes(&proc_dir(pid).join("cgroup"), SMALL).ok()?
}

/// A namespace of it, as the kernel names it: `pid:[4026531836]`.
pub(super) fn namespace_link(host: &Host, pid: u32, kind: &str) -> Option<PathBuf> {
    host.link(&proc_dir(pid).join("ns").join(kind)).ok()?
}

/// The namespace of the host itself: that of its first process, or else of this one, where the first one is
/// not ours to see.
pub(super) fn host_namespace(host: &Host, kind: &str) -> Option<PathBuf> {
    let own_link = Path::new("/proc/self/ns").join(kind);
    namespace_link(host, 1, kind).or_else(|| host.link(&own_link).ok()?)
}

/// Returns the time of the boot, or `None` if no process runs, as in an unpacked tree. On a captured host it is up to a second too early, since
/// the kernel writes whole seconds.
pub(crate) fn boot_time(host: &Host) -> Result<Option<SystemTime>, HostError> {
    let line = host.lines(Path::new("/proc/stat"), &|line| line.starts_with(b"btime "))?;
    let seconds = line.and_then(|line| {
        let text = String::from_utf8(line).ok()?;
        text.trim().strip_prefix("btime ")?.parse::<u64>().ok()
    });
    if host.is_running() && seconds.is_some() {
        let uptime = Duration::from_millis(since_boot_ms());
        return Ok(SystemTime::now().checked_sub(uptime));
    }
    Ok(seconds.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds)))
}

pub(super) struct ProcessReader<'h> {
    host: &'h Host,
    /// The user namespace in which a capability counts for the whole host.
    user_namespace: Option<PathBuf>,
    /// The inode of the host's own library.
    library: Option<u64>,
}

pub(super) struct ProcessEnded;

impl<'h> ProcessReader<'h> {
    pub(super) fn new(host: &'h Host, library: Option<u64>) -> Self {
        ProcessReader { host, user_namespace: host_namespace(host, "user"), library }
    }

    /// Reads a process. `None` if it has exited, or if its PID belongs to another process by the end.
    pub(super) fn read(&self, pid: u32) -> Option<ContainerProcess> {
        let start_time = self.start_time(pid)?;
        let mut process = self.read_process(pid).ok()?;
        self.read_maps(&mut process).ok()?;
        self.open(&mut process).ok()?;
        (self.start_time(pid) == Some(start_time))
            .then_some(ContainerProcess { start_time, ..process })
    }

    /// Returns when a process started, or `None` if it has exited. A zombie has no memory, descriptors or root any
    /// more.
    fn start_time(&self, pid: u32) -> Option<u64> {
        let stat = self.host.bytes(&proc_dir(pid).join("stat"), SMALL).ok()??;
        (!is_zombie(&stat)).then(|| start_time(&stat)).flatten()
    }

    fn read_process(&self, pid: u32) -> Result<ContainerProcess, ProcessEnded> {
        let directory = proc_dir(pid);
        let small = |name: &str| if_readable(self.host.bytes(&directory.join(name), SMALL));
        let status = small("status")?.unwrap_or_default();
        let status = ProcStatus(String::from_utf8_lossy(&status));
        let limits = small("limits")?.unwrap_or_default();
        let auxiliary = small("auxv")?.unwrap_or_default();
        let own_pid = status.words("NSpid").next_back();
        let visible_pid = match status.field("State") {
            Some(state) if state.starts_with('Z') => self.find_live_thread(pid).unwrap_or(pid),
            _ => pid,
        };
        Ok(ContainerProcess {
            pid: visible_pid,
            own_pid: own_pid.and_then(|text| text.parse().ok()),
            name: status.field("Name").unwrap_or_default().to_owned(),
            is_init: own_pid == Some("1"),
            is_secure: is_secure(&auxiliary).unwrap_or_else(|| status.has_other_user()),
            memlock: if self.is_memlock_unlimited(pid, &status) {
                Some(MemlockLimit::Unlimited)
            } else {
                parse_memlock(&String::from_utf8_lossy(&limits))
            },
            network: namespace_link(self.host, visible_pid, "net"),
            ..ContainerProcess::default()
        })
    }

    /// Returns the directory to read for a process whose main thread has exited (pthread_exit(3)): its own directory in
    /// /proc shows no memory, descriptors or root any more (kernel/exit.c, `do_exit`), while those of its other threads
    /// do. These exist although /proc does not list them.
    fn find_live_thread(&self, pid: u32) -> Option<u32> {
        let names = self.host.list(&proc_dir(pid).join("task")).ok()?.names;
        names
            .iter()
            .filter_map(|name| name.parse().ok())
            .find(|thread| namespace_link(self.host, *thread, "net").is_some())
    }

    /// Whether the limit does not count for it: `can_do_mlock` asks for the capability in the host's user namespace.
    fn is_memlock_unlimited(&self, pid: u32, status: &ProcStatus<'_>) -> bool {
        let capabilities = status.field("CapEff").unwrap_or_default();
        let capabilities = u64::from_str_radix(capabilities, 16).unwrap_or_default();
        let has_capability = capabilities & (1 << IPC_LOCK) != 0;
        let expected = self.user_namespace.as_ref();
        has_capability
            && expected.is_some_and(|namespace| {
                namespace_link(self.host, pid, "user").as_ref() == Some(namespace)
            })
    }

    fn read_maps(&self, process: &mut ContainerProcess) -> Result<(), ProcessEnded> {
        let Some(lines) = read_mappings(self.host, process.pid, &is_onload_library)? else {
            return Ok(());
        };
        let mut mapping = LibraryMapping::No;
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let inodes = parse_column(line, INODE).zip(self.library);
            if line.ends_with(DELETED) {
                mapping = LibraryMapping::Replaced;
                break;
            } else if inodes.is_some_and(|(mapped, host)| mapped != host) {
                mapping = LibraryMapping::Foreign;
            } else if mapping == LibraryMapping::No {
                mapping = LibraryMapping::Yes;
            }
        }
        process.preload = Some(mapping);
        Ok(())
    }

    fn open(&self, process: &mut ContainerProcess) -> Result<(), ProcessEnded> {
        let directory = proc_dir(process.pid).join("fd");
        let Some(descriptors) = if_readable(self.host.list(&directory).map(Some))? else {
            return Ok(());
        };
        let mut targets = Vec::new();
        let mut node_paths = BTreeMap::new();
        for name in &descriptors.names {
            let descriptor = directory.join(name);
            let Ok(Some(target)) = self.host.link(&descriptor) else { continue };
            targets.extend(self.device_name(&descriptor, &target, &mut node_paths));
            if let Some(target) = target.to_str() {
                process.sockets.extend(socket_inode(target));
                process.has_terminal |= name == STDERR && is_terminal(target);
            }
        }
        process.open = Some(targets);
        Ok(())
    }

    /// Returns the name of the device that a descriptor has open: of a device node, the path that the kernel gives it.
    /// The target of the link proves nothing: a container may give any file the path of a node, and a node any path.
    fn device_name(
        &self,
        descriptor: &Path,
        target: &Path,
        node_paths: &mut BTreeMap<(u32, u32), Option<String>>,
    ) -> Option<String> {
        let name = || target.to_str().filter(|name| name.len() <= MAX_PATH_BYTES);
        if !target.is_absolute() {
            return name()
                .filter(|name| name.starts_with("anon_inode:[vfio") || is_onload_descriptor(name))
                .map(str::to_owned);
        }
        let node_path = || Some(name().filter(|name| name.starts_with("/dev/"))?.to_owned());
        // A captured host has only the links.
        if !self.host.is_running() {
            return node_path();
        }
        let number = open_device(descriptor, &|_| true)?;
        let kernel_path = node_paths.entry(number).or_insert_with(|| self.kernel_path(number));
        // Terminals have no path there, and a container can mount theirs anywhere. RDMA devices of another network
        // namespace have none either.
        let is_pty = UNIX98_PTY_MAJORS.contains(&number.0);
        kernel_path.clone().or_else(|| node_path().filter(|_| !is_pty))
    }

    fn kernel_path(&self, (major, minor): (u32, u32)) -> Option<String> {
        let uevent = PathBuf::from(format!("/sys/dev/char/{major}:{minor}/uevent"));
        let uevent = self.host.text(&uevent).ok()??;
        let name = uevent.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
        Some(format!("/dev/{name}"))
    }
}

/// Returns whether a descriptor belongs to Onload's file system, such as `onload:[tcpl:0:2047]`
/// (Onload, `onloadfs_dname`), or to one of its anonymous inodes. A container cannot create a file
/// with such a name: paths of files begin with `/`.
pub(super) fn is_onload_descriptor(target: &str) -> bool {
    onload_descriptor(target).is_some()
}

/// The text after the bracket.
fn onload_descriptor(target: &str) -> Option<&str> {
    target.strip_prefix("anon_inode:").unwrap_or(target).strip_prefix("onload:[")
}

fn is_terminal(target: &str) -> bool {
    let terminals = ["/dev/pts/", "/dev/tty", "/dev/console"];
    terminals.iter().any(|start| target.starts_with(start))
}

/// The inode of a socket: `socket:[1234]`.
fn socket_inode(target: &str) -> Option<u64> {
    let inode = target.strip_prefix("socket:[")?.strip_suffix(']')?;
    inode.parse().ok()
}

impl ContainerProcess {
    pub(super) fn has_open(&self, start: &str) -> bool {
        self.open.iter().flatten().any(|target| target.starts_with(start))
    }

    pub(super) fn has_kernel_socket(&self) -> bool {
        self.kernel_addresses.as_ref().is_some_and(|addresses| !addresses.is_empty())
    }

    /// Whether it has a stack and uses it. A program has a stack too if it connects only within the host, or only by interfaces
    /// that Onload does not have.
    pub(super) fn is_accelerated(&self) -> bool {
        let has_onload_socket = self.open.iter().flatten().any(|target| {
            onload_descriptor(target)
                .is_some_and(|name| name.starts_with("tcp") || name.starts_with("udp"))
        });
        let has_kernel_socket = self.has_kernel_socket() || self.has_local_socket;
        self.has_stack && (has_onload_socket || !has_kernel_socket)
    }

    /// Whether the driver has given it a descriptor, which it does only for a library of the same build.
    pub(super) fn has_driver(&self) -> bool {
        self.open.iter().flatten().any(|target| target == "/dev/onload")
    }
}

/// Returns the wanted lines of a process's `maps`; `None` if this user may not read them.
pub(super) fn read_mappings(
    host: &Host,
    pid: u32,
    is_wanted: &dyn Fn(&[u8]) -> bool,
) -> Result<Option<Vec<u8>>, ProcessEnded> {
    if_readable(host.lines(&proc_dir(pid).join("maps"), is_wanted))
}

/// Returns whether our file is mounted over the container's /etc/ld.so.preload.
pub(super) fn has_preload_file(host: &Host, pid: u32) -> bool {
    let lines = host.lines(&proc_dir(pid).join("mountinfo"), &|line| {
        line.split(|byte| *byte == b' ').nth(4) == Some(b"/etc/ld.so.preload")
    });
    lines.ok().flatten().is_some_and(|lines| !lines.is_empty())
}

fn if_readable<T>(result: Result<Option<T>, HostError>) -> Result<Option<T>, ProcessEnded> {
    match result {
        Ok(Some(content)) => Ok(Some(content)),
        Ok(None) => Err(ProcessEnded),
        Err(HostError::Read { source, .. })
            if matches!(Errno::from_io_error(&source), Some(Errno::NOENT | Errno::SRCH)) =>
        {
            Err(ProcessEnded)
        }
        Err(_) => Ok(None),
    }
}

struct ProcStatus<'s>(Cow<'s, str>);

impl ProcStatus<'_> {
    fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    }

    fn words(&self, name: &str) -> SplitWhitespace<'_> {
        self.field(name).unwrap_or_default().split_whitespace()
    }

    /// Whether it runs as another user or group than who started it.
    fn has_other_user(&self) -> bool {
        ["Uid", "Gid"].into_iter().any(|name| {
            let mut words = self.words(name);
            words.next() != words.next()
        })
    }
}

/// Returns the flag in the auxiliary vector, or `None` if it is missing.
fn is_secure(auxiliary: &[u8]) -> Option<bool> {
    let mut entries = auxiliary.chunks_exact(16).filter_map(|entry| {
        let (kind, value) = entry.split_at(8);
        let word = |bytes: &[u8]| Some(u64::from_ne_bytes(bytes.try_into().ok()?));
        Some((word(kind)?, word(value)?))
    });
    let (_, value) = entries.find(|(kind, _)| *kind == AT_SECURE)?;
    Some(value != 0)
}

/// The suffix of a deleted file's path.
const DELETED: &[u8] = b" (deleted)";

/// Whether a line of `maps` is of a file that is called as the library is.
fn is_onload_library(line: &[u8]) -> bool {
    let path = line.strip_suffix(DELETED).unwrap_or(line);
    let name = path.rsplit(|byte| *byte == b'/').next();
    let version = name.and_then(|name| name.strip_prefix(LIBRARY));
    version.is_some_and(|version| version.is_empty() || version.starts_with(b"."))
}

/// The number in a column of one of the kernel's tables.
pub(super) fn parse_column(line: &[u8], column: usize) -> Option<u64> {
    find_column(line, column)?.parse().ok()
}

pub(super) fn find_column(line: &[u8], column: usize) -> Option<&str> {
    let words = line.split(|byte| *byte == b' ');
    let word = words.filter(|word| !word.is_empty()).nth(column)?;
    std::str::from_utf8(word).ok()
}

fn parse_memlock(text: &str) -> Option<MemlockLimit> {
    let limits = text.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match limits.split_whitespace().next()? {
        "unlimited" => Some(MemlockLimit::Unlimited),
        number => number.parse().ok().map(MemlockLimit::Bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions, remove_file};
    use std::os::unix::fs::OpenOptionsExt;

    use onload_test_tree::Tree;
    use rustix::fs::OFlags;

    use super::*;

    #[test]
    fn a_descriptor_counts_by_the_device_that_it_has_open() {
        let host = Host::open(Path::new("/")).unwrap();
        if !onload_test_needs::root("a device node")
            || !onload_test_needs::that(
                host.text(Path::new("/sys/dev/char/1:7/uevent")).unwrap().is_some(),
                "sysfs does not list the devices of this machine",
            )
        {
            return;
        }
        let open = || {
            let process = ProcessReader::new(&host, None).read(std::process::id()).unwrap();
            process.open.unwrap()
        };
        let count = || open().iter().filter(|name| *name == "/dev/full").count();
        let path_only = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::PATH.bits().cast_signed())
            .open("/dev/full")
            .unwrap();
        let plain = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        assert_eq!(count(), 0);
        let plain_path = plain.path().to_str().unwrap();
        assert!(open().iter().all(|name| name != plain_path), "{:?}", open());
        drop(path_only);
        let tree = Tree::on_disk();
        tree.real_node("/elsewhere", 1, 7);
        let deleted = File::open(tree.path("/elsewhere")).unwrap();
        remove_file(tree.path("/elsewhere")).unwrap();
        assert_eq!(count(), 1);
        let node = File::open("/dev/full").unwrap();
        assert_eq!(count(), 2);
        drop((deleted, node));
        assert_eq!(count(), 0);
    }

    #[test]
    fn a_limit_is_read_from_its_column() {
        let line = |soft: &str| {
            format!("Limit  Soft Limit\nMax locked memory         {soft}    67108864   bytes\n")
        };
        assert_eq!(parse_memlock(&line("8388608")), Some(MemlockLimit::Bytes(8_388_608)));
        assert_eq!(parse_memlock(&line("unlimited")), Some(MemlockLimit::Unlimited));
        assert_eq!(parse_memlock("Max locked memory\n"), None);
        assert_eq!(parse_memlock(""), None);
    }
}
