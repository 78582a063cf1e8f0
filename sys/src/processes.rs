//! Processes and their cgroups. A process is identified by its PID and start time, since the kernel reuses PIDs.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, openat, statx};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{Context as _, Result, bail};
use crate::fs::detached;
use crate::text::Quoted;

/// Limit for small files in /proc and cgroupfs, in bytes: `cgroup` has a path of up to 4096 bytes for each hierarchy.
const MAX_BYTES: u64 = 1024 * 1024;
/// Number of cgroup v1 directories that are searched below a cgroup. If there are more, the cgroup counts as populated.
const MAX_DIRECTORIES: usize = 4096;
/// The file with the boot ID, relative to /proc.
const BOOT_ID: &str = "sys/kernel/random/boot_id";
/// The mount point of the host's cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";
/// The cgroup v1 controller for devices.
const DEVICES: &str = "devices";
/// A file in every cgroup, also in the root of a hierarchy (cgroups(7)).
const PROCS: &str = "cgroup.procs";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessId {
    pub pid: u32,
    /// Start time in clock ticks after boot (proc_pid_stat(5), field 22).
    pub start_time: u64,
    /// The inode of the PID namespace that `pid` is relative to.
    pub pid_namespace: u64,
}

/// A cgroup, valid until reboot. A cgroup that is created again at the same path has another inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// The path of its directory on the host.
    pub path: PathBuf,
    pub inode: u64,
}

#[derive(Clone, Debug)]
pub struct Processes {
    proc: PathBuf,
    cgroups: PathBuf,
}

impl Default for Processes {
    fn default() -> Self {
        Processes::at_root(Path::new("/"))
    }
}

/// The number of descriptors of a process that were searched.
#[derive(Clone, Copy, Default)]
struct DescriptorCount {
    pid: u32,
    count: usize,
}

impl Processes {
    /// Reads /proc and /sys below `root` instead of `/`.
    pub fn at_root(root: &Path) -> Self {
        Processes { proc: root.join("proc"), cgroups: root.join("sys/fs/cgroup") }
    }

    /// Returns the root directory that contains /proc.
    pub fn root(&self) -> &Path {
        self.proc.parent().unwrap_or(Path::new("/"))
    }

    /// Returns the boot ID. systemd-nspawn and LXC mount their own file over the kernel's, so that each would take the
    /// other's containers for those of another boot. In that case this reads the kernel's file in a new mount of /proc.
    pub fn boot_id(&self) -> Result<String> {
        let path = self.proc.join(BOOT_ID);
        let context = || read_context(&path);
        let bytes = if is_on_file_system_of(&path, &self.proc).with_context(context)? {
            read(&path).with_context(context)?
        } else {
            kernel_boot_id()
                .context("another file is mounted over the kernel's, which cannot be read")
                .with_context(context)?
        };
        Ok(String::from_utf8_lossy(bytes.trim_ascii()).into_owned())
    }

    /// Returns the inode of this process's PID namespace.
    fn own_namespace(&self) -> Result<u64> {
        let path = self.proc.join("self/ns/pid");
        Ok(rustix::fs::stat(&path).with_context(|| read_context(&path))?.st_ino)
    }

    /// Returns the process that has a PID now, or `None`.
    pub fn find(&self, pid: u32) -> Result<Option<ProcessId>> {
        let path = self.process_path(pid, "stat");
        let Some(stat) = read_if_running(&path)? else {
            return Ok(None);
        };
        let Some(start_time) = start_time(&stat) else {
            bail!("{}: no start time in it", read_context(&path));
        };
        Ok(Some(ProcessId { pid, start_time, pid_namespace: self.own_namespace()? }))
    }

    /// Returns whether a process has exited. A zombie has, unless other threads of it still run: a program may end its
    /// main thread alone (pthread_exit(3)). Returns `None` for a process of another PID namespace, whose PID means
    /// nothing here.
    pub fn has_ended(&self, process: ProcessId) -> Result<Option<bool>> {
        if self.own_namespace()? != process.pid_namespace {
            return Ok(None);
        }
        let Some(stat) = read_if_running(&self.process_path(process.pid, "stat"))? else {
            return Ok(Some(true));
        };
        let is_same = start_time(&stat).is_none_or(|now| now == process.start_time);
        Ok(Some(!is_same || is_zombie(&stat)))
    }

    /// Returns the device cgroup of process `pid`, if `other` is not in the same one.
    pub fn own_cgroup(&self, pid: u32, other: u32) -> Result<Option<Cgroup>> {
        let directory = |pid: u32| -> Result<Option<PathBuf>> {
            let lines = read_if_running(&self.process_path(pid, "cgroup"))?;
            Ok(lines.and_then(|lines| cgroup(&lines)))
        };
        let (own_path, other) = (directory(pid)?, directory(other)?);
        let own_path = own_path.filter(|path| other.as_ref() != Some(path));
        // A missing path belongs to another cgroup namespace or to another mount.
        Ok(own_path.and_then(|path| {
            let inode = rustix::fs::stat(self.cgroups.join(&path)).ok()?.st_ino;
            let path = Path::new(CGROUPS).join(path);
            Some(Cgroup { path, inode })
        }))
    }

    /// Returns whether a cgroup or its descendants have processes. A removed cgroup has none. Returns true if the
    /// host's cgroups cannot be read or the path is outside of them.
    pub fn is_populated(&self, cgroup: &Cgroup) -> Result<bool> {
        let Some(relative) = below_cgroups(&cgroup.path) else {
            return Ok(true);
        };
        let path = &self.cgroups.join(relative);
        match rustix::fs::stat(path).map_err(io::Error::from) {
            Ok(stat) if stat.st_ino == cgroup.inode => {}
            Ok(_) => return Ok(false),
            Err(error) if is_gone(&error) => return Ok(!self.sees_cgroups()),
            Err(error) => return Err(error).with_context(|| read_context(path)),
        }
        if let Some(events) = read_if_running(&path.join("cgroup.events"))? {
            let mut lines = events.split(|byte| *byte == b'\n');
            return Ok(lines.any(|line| line == b"populated 1"));
        }
        let mut budget = MAX_DIRECTORIES;
        has_process_below(path, &mut budget)
    }

    /// Returns whether a cgroup file system is mounted. A container may have an empty directory in its place.
    fn sees_cgroups(&self) -> bool {
        let roots = [self.cgroups.clone(), self.cgroups.join(DEVICES)];
        roots.iter().any(|root| root.join(PROCS).exists())
    }

    /// Finds a process that has a character device open, and the name of its program, among the processes that this one
    /// may inspect. Fails with [`ErrorKind::TimedOut`] at the deadline, naming the process with the most descriptors:
    /// any process may open very many.
    pub fn find_opener(&self, node: &Path, deadline: Instant) -> io::Result<Option<(u32, String)>> {
        self.find_opener_among(&|_| true, node, deadline)
    }

    /// Like [`Processes::find_opener`], among the processes that `is_candidate` accepts. It receives the directory in
    /// /proc that lists the descriptor: the process's, or a thread's if the main thread has exited, when the process's
    /// own directory shows no namespaces.
    pub fn find_opener_among(
        &self,
        is_candidate: &dyn Fn(&Path) -> bool,
        node: &Path,
        deadline: Instant,
    ) -> io::Result<Option<(u32, String)>> {
        let Some(node_number) = device_number(node) else {
            return Ok(None);
        };
        let (mut current, mut largest) = (DescriptorCount::default(), DescriptorCount::default());
        for (pid, descriptor) in self.descriptors() {
            if Instant::now() >= deadline {
                return Err(self.search_timeout_error(largest));
            }
            if current.pid != pid {
                current = DescriptorCount { pid, count: 0 };
            }
            current.count += 1;
            if current.count > largest.count {
                largest = current;
            }
            if open_device(&descriptor, &|number| number == node_number).is_some()
                && descriptor.ancestors().nth(2).is_some_and(is_candidate)
            {
                return Ok(Some((pid, self.program_name(pid))));
            }
        }
        Ok(None)
    }

    /// `largest` is the process with the most descriptors among those that were searched.
    fn search_timeout_error(&self, largest: DescriptorCount) -> io::Error {
        let DescriptorCount { pid, count } = largest;
        if count == 0 {
            return io::Error::new(ErrorKind::TimedOut, "no time was left to search /proc");
        }
        let program = self.program_name(pid);
        let user = self.user(pid).map_or_else(String::new, |user| format!(" of user {user}"));
        let text = format!(
            "the search of /proc timed out at process {pid} ({}){user}, which has most of the descriptors that were searched, {count}",
            Quoted(&program)
        );
        io::Error::new(ErrorKind::TimedOut, text)
    }

    /// Returns the real user ID of a process. The owner of its directory in /proc may be root instead
    /// (PR_SET_DUMPABLE).
    fn user(&self, pid: u32) -> Option<u32> {
        let status = read(&self.process_path(pid, "status")).ok()?;
        let status = String::from_utf8_lossy(&status).into_owned();
        status
            .lines()
            .find_map(|line| line.strip_prefix("Uid:"))?
            .split_ascii_whitespace()
            .next()?
            .parse()
            .ok()
    }

    /// Iterates over the descriptor links of all processes that this one may inspect, with their PIDs.
    pub fn descriptors(&self) -> impl Iterator<Item = (u32, PathBuf)> {
        let processes = entries(&self.proc).filter_map(|process| {
            let pid = process.file_name()?.to_str()?.parse().ok()?;
            Some((pid, process))
        });
        processes.flat_map(|(pid, process)| list_descriptors(&process).map(move |link| (pid, link)))
    }

    /// Returns the program name of a process. Processes can set it to anything.
    pub fn program_name(&self, pid: u32) -> String {
        let program = read(&self.process_path(pid, "comm")).unwrap_or_default();
        String::from_utf8_lossy(program.trim_ascii_end()).into_owned()
    }

    fn process_path(&self, pid: u32, name: &str) -> PathBuf {
        self.proc.join(pid.to_string()).join(name)
    }
}

/// Iterates over the descriptor links of a process, given its directory in /proc. After the main thread has exited,
/// only the directories of the other threads list them (kernel/exit.c, `exit_files`).
pub fn list_descriptors(process: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let mut descriptors = entries(&process.join("fd")).peekable();
    let threads =
        descriptors.peek().is_none().then(|| other_threads(process)).into_iter().flatten();
    descriptors.chain(threads.flat_map(|thread| entries(&thread.join("fd"))))
}

/// Iterates over the directories of a process's threads, without the main thread, whose directory has the same content
/// as the process's.
pub fn other_threads(process: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let task = process.join("task");
    // The link count is the number of threads plus two (fs/proc/base.c, `proc_task_getattr`). Thousands of kernel
    // threads have a single thread, which one system call shows.
    let is_alone = rustix::fs::stat(&task).is_ok_and(|stat| stat.st_nlink == 3);
    let threads = (!is_alone).then(|| entries(&task)).into_iter().flatten();
    let first = process.file_name().map(OsStr::to_owned);
    threads.filter(move |thread| thread.file_name() != first.as_deref())
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}

/// Returns the device number of the character device that a descriptor has open, if `is_wanted` accepts it. The path of
/// the link proves nothing, since a container can rename its nodes.
pub fn open_device(
    descriptor: &Path,
    is_wanted: &dyn Fn((u32, u32)) -> bool,
) -> Option<(u32, u32)> {
    let number = device_number(descriptor).filter(|number| is_wanted(*number))?;
    (!is_path_only(descriptor)).then_some(number)
}

/// Returns whether a descriptor was opened with O_PATH, which does not open the device and needs no permission for it.
fn is_path_only(descriptor: &Path) -> bool {
    read_open_flags(descriptor).is_some_and(|flags| flags & OFlags::PATH.bits() != 0)
}

/// Reads the flags of a descriptor, `/proc/<pid>/fd/<number>`, from its fdinfo (proc_pid_fdinfo(5)).
fn read_open_flags(descriptor: &Path) -> Option<u32> {
    let (directory, name) = (descriptor.parent()?, descriptor.file_name()?);
    let bytes = read(&directory.with_file_name("fdinfo").join(name)).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"))?;
    u32::from_str_radix(flags.trim(), 8).ok()
}

/// Returns the device number of a character device. Uses AT_STATX_DONT_SYNC (statx(2)), because the path may be a
/// regular file on a server that never answers.
pub fn device_number(path: &Path) -> Option<(u32, u32)> {
    let stat = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
    let is_character = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::CharacterDevice;
    is_character.then_some((stat.stx_rdev_major, stat.stx_rdev_minor))
}

/// Returns whether a file is on the same file system as a directory, so that no other one is mounted over the file.
fn is_on_file_system_of(path: &Path, dir: &Path) -> rustix::io::Result<bool> {
    Ok(rustix::fs::stat(path)?.st_dev == rustix::fs::stat(dir)?.st_dev)
}

fn kernel_boot_id() -> io::Result<Vec<u8>> {
    let proc = detached::mount("proc")?;
    let file = openat(proc, BOOT_ID, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::new();
    File::from(file).take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn read_context(path: &Path) -> String {
    format!("reading {path:?}")
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(4096);
    let read = File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if u64::try_from(read).unwrap_or(u64::MAX) > MAX_BYTES {
        return Err(io::Error::other(format!("longer than {MAX_BYTES} bytes")));
    }
    Ok(bytes)
}

/// Reads a file of a process or cgroup. Returns `None` if it is gone: reading an open file then fails with ESRCH or
/// ENODEV.
fn read_if_running(path: &Path) -> Result<Option<Vec<u8>>> {
    match read(path) {
        Err(error) if is_gone(&error) => Ok(None),
        result => result.map(Some).with_context(|| read_context(path)),
    }
}

fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::NOENT, Errno::SRCH, Errno::NODEV].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| gone.contains(&code))
}

/// Iterates over the fields of proc_pid_stat(5), starting with the third. The second is the program name in
/// parentheses, which may contain anything, so parsing starts after the last parenthesis.
fn fields(stat: &[u8]) -> impl Iterator<Item = &[u8]> {
    stat.iter()
        .rposition(|byte| *byte == b')')
        .map_or(&[][..], |index| &stat[index + 1..])
        .split(u8::is_ascii_whitespace)
        .filter(|field| !field.is_empty())
}

/// Returns the start time of a process in clock ticks after boot: field 22 of its `stat` (proc_pid_stat(5)). `None` if
/// `stat` is truncated.
pub fn start_time(stat: &[u8]) -> Option<u64> {
    std::str::from_utf8(fields(stat).nth(19)?).ok()?.parse().ok()
}

/// Returns whether a process has exited by its state (field 3) and has no other threads (field 20).
pub fn is_zombie(stat: &[u8]) -> bool {
    let has_ended = matches!(fields(stat).next(), Some(b"Z" | b"X"));
    has_ended && matches!(fields(stat).nth(17), Some(b"0" | b"1"))
}

/// Parses the path of the device cgroup, relative to /sys/fs/cgroup, from lines `NUMBER:CONTROLLERS:PATH` (cgroups(7)).
/// Returns `None` for the root cgroup, which all processes share, and for one outside this process's cgroup namespace.
fn cgroup(lines: &[u8]) -> Option<PathBuf> {
    let line = |controller: &[u8]| {
        lines.split(|byte| *byte == b'\n').find_map(|line| {
            let mut parts = line.splitn(3, |byte| *byte == b':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            let mut controllers = controllers.split(|byte| *byte == b',');
            let path = std::str::from_utf8(path).ok()?;
            controllers.any(|name| name == controller).then_some(path)
        })
    };
    let (mount, path) = match line(DEVICES.as_bytes()) {
        Some(path) => (DEVICES, path),
        None => ("", line(b"")?),
    };
    let path = Path::new(path.strip_prefix('/')?);
    is_plain(path).then(|| Path::new(mount).join(path))
}

/// Returns the path of a cgroup relative to the mount point.
fn below_cgroups(path: &Path) -> Option<&Path> {
    let relative = path.strip_prefix(CGROUPS).ok()?;
    is_plain(relative).then_some(relative)
}

/// Returns whether a relative path has only ordinary components, and at least one.
fn is_plain(path: &Path) -> bool {
    let mut parts = path.components();
    path != Path::new("") && parts.all(|part| matches!(part, Component::Normal(_)))
}

fn has_process_below(cgroup: &Path, budget: &mut usize) -> Result<bool> {
    let Some(remaining) = budget.checked_sub(1) else {
        return Ok(true);
    };
    *budget = remaining;
    match read_if_running(&cgroup.join(PROCS))? {
        None => return Ok(false),
        Some(bytes) if !bytes.is_empty() => return Ok(true),
        Some(_) => {}
    }
    let entries = match std::fs::read_dir(cgroup) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(false),
        Err(error) => return Err(error).with_context(|| read_context(cgroup)),
    };
    for entry in entries {
        let entry = entry.with_context(|| read_context(cgroup))?;
        let is_dir = match entry.file_type() {
            Ok(kind) => kind.is_dir(),
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(error).with_context(|| read_context(&entry.path())),
        };
        if is_dir && has_process_below(&entry.path(), budget)? {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onload_test_tree::Tree;
    use rustix::mount::{OpenTreeFlags, open_tree};
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::process::Command;
    use std::time::Duration;

    /// The expected name of the boot where another file is mounted over it.
    const BOOT: &str = "ONLOAD_CTK_TEST_BOOT";

    const STAT: &str = "S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 9 10";

    /// A host with files of /proc and /sys/fs/cgroup by their paths.
    fn host(files: &[(&str, &str)]) -> (Tree, Processes) {
        let tree = Tree::with(files);
        tree.file("proc/self/ns/pid", "");
        let processes = Processes::at_root(tree.root());
        (tree, processes)
    }

    fn cgroup_at(tree: &Tree, below: &str) -> Cgroup {
        let path = Path::new(CGROUPS).join(below);
        let inode = rustix::fs::stat(tree.path(path.to_str().unwrap())).unwrap().st_ino;
        Cgroup { path, inode }
    }

    #[test]
    fn the_start_time_is_read_behind_any_name() {
        let behind = "S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 9 10";
        assert_eq!(start_time(format!("12 (a) {behind}").as_bytes()), Some(4711));
        let tricky = [b"12 (a\xff\n) S 1) () ", behind.as_bytes()].concat();
        assert_eq!(start_time(&tricky), Some(4711));
        assert_eq!(start_time(b"12 (a) S 1"), None);
        assert_eq!(start_time(b""), None);
    }

    #[test]
    fn a_process_is_told_by_its_number_and_its_start_time() {
        let stat = format!("12 (a) Z) {STAT}");
        let (_dir, processes) = host(&[("proc/12/stat", &stat)]);
        let found = processes.find(12).unwrap().unwrap();
        assert_eq!(found.start_time, 4711);
        assert_eq!(processes.has_ended(found).unwrap(), Some(false));
        let earlier = ProcessId { start_time: 4710, ..found };
        let ended = processes.has_ended(earlier).unwrap();
        assert_eq!(ended, Some(true), "its number is another's");
        assert_eq!(processes.find(13).unwrap(), None);
        let absent = ProcessId { pid: 13, ..found };
        assert_eq!(processes.has_ended(absent).unwrap(), Some(true));
        let elsewhere = ProcessId { pid_namespace: found.pid_namespace + 1, ..absent };
        assert_eq!(processes.has_ended(elsewhere).unwrap(), None);
    }

    #[test]
    fn a_zombie_has_ended() {
        let stat = format!("12 (a) {}", STAT.replacen('S', "Z", 1));
        let (_dir, processes) = host(&[("proc/12/stat", &stat)]);
        let process = processes.find(12).unwrap().unwrap();
        assert_eq!(processes.has_ended(process).unwrap(), Some(true));
    }

    #[test]
    fn a_process_lives_while_a_thread_of_it_does() {
        let stat =
            format!("12 (a) {}", STAT.replacen('S', "Z", 1).replace(" 1 0 4711", " 2 0 4711"));
        let (_dir, processes) = host(&[("proc/12/stat", &stat)]);
        let process = processes.find(12).unwrap().unwrap();
        assert_eq!(processes.has_ended(process).unwrap(), Some(false));
    }

    #[test]
    fn a_process_that_cannot_be_read_is_neither_dead_nor_alive() {
        let (_dir, processes) = host(&[("proc/12/stat/x", ""), ("proc/14/stat", "14 (a")]);
        let process =
            ProcessId { pid: 12, start_time: 1, pid_namespace: processes.own_namespace().unwrap() };
        let looked = processes.has_ended(process);
        assert!(looked.is_err(), "a directory is no file");
        assert!(processes.find(14).is_err());
    }

    #[test]
    fn this_process_lives_in_this_boot() {
        let processes = Processes::default();
        let own = processes.find(std::process::id()).unwrap().unwrap();
        assert_eq!(processes.has_ended(own).unwrap(), Some(false));
        assert_eq!(processes.boot_id().unwrap().len(), 36);
    }

    #[test]
    fn the_boot_is_the_kernel_s_whatever_is_mounted_over_its_name() {
        let boot = || Processes::default().boot_id().unwrap();
        if let Ok(wanted) = std::env::var(BOOT) {
            let path = Path::new("/proc").join(BOOT_ID);
            assert_eq!(fs::read_to_string(path).unwrap(), "another\n");
            assert_eq!(boot(), wanted);
            return;
        }
        if !onload_test_needs::mount_namespace("mounting over a file") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("boot_id");
        fs::write(&own, "another\n").unwrap();
        let script =
            "mount --bind \"$1\" /proc/sys/kernel/random/boot_id && exec \"$2\" --exact \"$3\"";
        let test = "processes::tests::the_boot_is_the_kernel_s_whatever_is_mounted_over_its_name";
        let output = Command::new("unshare")
            .args(["--mount", "sh", "-ec", script, "sh"])
            .arg(own)
            .arg(std::env::current_exe().unwrap())
            .arg(test)
            .env(BOOT, boot())
            .output()
            .unwrap();
        let output_text = String::from_utf8_lossy(&output.stdout);
        assert!(output_text.contains("1 passed"), "{output_text}");
    }

    #[test]
    fn who_has_a_device_open_is_found() {
        let (tree, processes) = host(&[
            ("proc/7/comm", "qemu\n"),
            ("proc/7/fd/3", ""),
            ("proc/8/comm", "other\n"),
            ("proc/8/fd/3", ""),
            ("proc/self/fd/3", ""),
        ]);
        for (pid, to) in [(7, "/dev/null"), (8, "/dev/zero")] {
            tree.link(&format!("proc/{pid}/fd/3"), to);
        }
        let until = Instant::now() + Duration::from_secs(60);
        let opener = |node: &Path| processes.find_opener(node, until).unwrap();
        let found = opener(Path::new("/dev/null"));
        assert_eq!(found, Some((7, "qemu".to_owned())));
        assert_eq!(opener(&tree.path("none")), None);
        assert_eq!(opener(Path::new("/dev/full")), None);
        // A container renames what it has open.
        tree.link("renamed", "/dev/null");
        let renamed = tree.path("renamed");
        tree.link("proc/7/fd/3", renamed.to_str().unwrap());
        assert_eq!(found, opener(Path::new("/dev/null")));
        // A user who may create a node may also refer to it so, without the right to open it.
        tree.file("proc/7/fdinfo/3", "pos:\t0\nflags:\t012100000\nmnt_id:\t29\n");
        assert_eq!(opener(Path::new("/dev/null")), None);
        tree.file("proc/7/fdinfo/3", "pos:\t0\nflags:\t02100002\nmnt_id:\t29\n");
        assert_eq!(found, opener(Path::new("/dev/null")));
        // The first thread may have ended (pthread_exit(3)).
        tree.file("proc/9/comm", "threads\n");
        tree.directory("proc/9/task/9");
        tree.file("proc/9/task/10/fd/3", "");
        tree.link("proc/9/task/10/fd/3", "/dev/full");
        let found = opener(Path::new("/dev/full"));
        assert_eq!(found, Some((9, "threads".to_owned())));
        // A user may have a million files open.
        let late = processes.find_opener(Path::new("/dev/null"), Instant::now()).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        assert_eq!(late.to_string(), "no time was left to search /proc");
        let largest = DescriptorCount { pid: std::process::id(), count: 7 };
        let late = Processes::default().search_timeout_error(largest).to_string();
        let user = rustix::process::getuid().as_raw();
        let end =
            format!(" of user {user}, which has most of the descriptors that were searched, 7");
        assert!(late.starts_with("the search of /proc timed out at process "), "{late}");
        assert!(late.ends_with(&end), "{late}");
    }

    #[test]
    fn the_first_thread_of_a_process_is_none_of_the_others() {
        let (tree, _) = host(&[("proc/7/task/7/fd/3", "")]);
        let others = || {
            let mut found: Vec<PathBuf> = other_threads(&tree.path("proc/7")).collect();
            found.sort();
            found
        };
        assert!(others().is_empty());
        for thread in ["proc/7/task/10", "proc/7/task/11"] {
            tree.directory(thread);
        }
        assert_eq!(others(), ["proc/7/task/10", "proc/7/task/11"].map(|thread| tree.path(thread)));
        assert_eq!(other_threads(&tree.path("proc/8")).count(), 0);
    }

    #[test]
    fn who_has_a_device_open_that_was_mounted_in_a_container_which_ended_is_found() {
        if !onload_test_needs::root("a copy of a mount") {
            return;
        }
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let mount = open_tree(CWD, "/dev/full", flags).unwrap();
        let own = |fd: i32| PathBuf::from(format!("/proc/self/fd/{fd}"));
        let open = File::open(own(mount.as_raw_fd())).unwrap();
        drop(mount);
        let link = own(open.as_raw_fd());
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("/"));
        let (tree, processes) = host(&[("proc/7/comm", "qemu\n")]);
        tree.link("proc/7/fd", "/proc/self/fd");
        let until = Instant::now() + Duration::from_secs(60);
        let found = processes.find_opener(Path::new("/dev/full"), until).unwrap();
        assert_eq!(found, Some((7, "qemu".to_owned())));
        drop(open);
        let found = processes.find_opener(Path::new("/dev/full"), until).unwrap();
        assert_eq!(found, None);
    }

    #[test]
    fn what_opens_nothing_is_no_open_device() {
        let zero = device_number(Path::new("/dev/zero")).unwrap();
        let descriptor = |flags: OFlags| {
            let open = openat(CWD, "/dev/zero", flags, Mode::empty()).unwrap();
            let own = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
            (open_device(&own, &|number| number == zero), open)
        };
        assert!(descriptor(OFlags::RDWR).0.is_some());
        assert_eq!(descriptor(OFlags::PATH).0, None);
    }

    #[test]
    fn the_cgroup_is_that_of_the_hierarchy_that_judges_devices() {
        let found = |lines: &str| cgroup(lines.as_bytes()).map(|path| path.display().to_string());
        let both = "5:cpu,devices:/docker/1\n1:name=systemd:/x\n0::/y\n";
        assert_eq!(found(both).unwrap(), "devices/docker/1");
        assert_eq!(found("0::/system.slice/a:b.scope\n").unwrap(), "system.slice/a:b.scope");
        for none in ["0::/\n", "0::/../x\n", "0::x\n", "1:cpu:/x\n", ""] {
            assert_eq!(found(none), None, "{none:?}");
        }
    }

    #[test]
    fn a_cgroup_that_is_shared_with_another_process_is_not_its_own() {
        let (tree, processes) = host(&[
            ("proc/1/cgroup", "0::/a/one\n"),
            ("proc/2/cgroup", "0::/a/two\n"),
            ("proc/3/cgroup", "0::/a/two\n"),
        ]);
        let one = tree.path("sys/fs/cgroup/a/one");
        assert_eq!(processes.own_cgroup(1, 2).unwrap(), None, "it does not exist");
        fs::create_dir_all(&one).unwrap();
        assert_eq!(processes.own_cgroup(1, 2).unwrap(), Some(cgroup_at(&tree, "a/one")));
        assert_eq!(processes.own_cgroup(2, 3).unwrap(), None);
        assert_eq!(processes.own_cgroup(9, 3).unwrap(), None, "it has ended");
    }

    #[test]
    fn a_cgroup_of_version_2_says_whether_it_is_populated() {
        let (tree, processes) = host(&[
            ("sys/fs/cgroup/a/cgroup.events", "populated 1\nfrozen 0\n"),
            ("sys/fs/cgroup/b/cgroup.events", "populated 0\nfrozen 0\n"),
            ("sys/fs/cgroup/cgroup.procs", ""),
        ]);
        let at = |name: &str| cgroup_at(&tree, name);
        let is_populated = |cgroup: &Cgroup| processes.is_populated(cgroup).unwrap();
        assert!(is_populated(&at("a")));
        assert!(!is_populated(&at("b")));
        let again = Cgroup { inode: at("b").inode, ..at("a") };
        assert!(!is_populated(&again), "another one at its path");
        let gone = Cgroup { path: "/sys/fs/cgroup/gone".into(), ..at("a") };
        assert!(!is_populated(&gone));
    }

    #[test]
    fn a_cgroup_that_cannot_be_seen_counts_as_populated() {
        let gone = |path: &str| Cgroup { path: path.into(), inode: 3 };
        let without = host(&[]);
        let empty = host(&[("sys/fs/cgroup/other", "")]);
        let v1 = host(&[("sys/fs/cgroup/devices/cgroup.procs", "")]);
        let v2 = host(&[("sys/fs/cgroup/cgroup.procs", "")]);
        let is_populated =
            |host: &(Tree, Processes), path: &str| host.1.is_populated(&gone(path)).unwrap();
        let path = "/sys/fs/cgroup/devices/gone";
        assert!(is_populated(&without, path) && is_populated(&empty, path));
        assert!(!is_populated(&v1, path) && !is_populated(&v2, path));
        // No cgroup of a host has such a path.
        for path in ["/elsewhere", "/sys/fs/cgroup", "/sys/fs/cgroup/../x", "x"] {
            assert!(is_populated(&v2, path), "{path}");
        }
    }

    #[test]
    fn a_cgroup_of_version_1_is_populated_by_a_process_anywhere_below() {
        let (tree, processes) = host(&[
            ("sys/fs/cgroup/devices/a/cgroup.procs", ""),
            ("sys/fs/cgroup/devices/a/b/cgroup.procs", ""),
            ("sys/fs/cgroup/devices/a/b/c/cgroup.procs", "17\n"),
            ("sys/fs/cgroup/devices/d/cgroup.procs", ""),
            ("sys/fs/cgroup/devices/d/e/cgroup.procs", ""),
        ]);
        let is_populated = |name: &str| {
            let cgroup = cgroup_at(&tree, &format!("devices/{name}"));
            processes.is_populated(&cgroup)
        };
        assert!(is_populated("a").unwrap());
        assert!(!is_populated("d").unwrap());
    }

    #[test]
    fn a_cgroup_with_more_directories_than_are_looked_at_counts_as_populated() {
        let (tree, _) =
            host(&[("d/cgroup.procs", ""), ("d/e/cgroup.procs", ""), ("d/f/cgroup.procs", "")]);
        assert!(!has_process_below(&tree.path("d"), &mut 3).unwrap());
        assert!(has_process_below(&tree.path("d"), &mut 2).unwrap());
    }
}
