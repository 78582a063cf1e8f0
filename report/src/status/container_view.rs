//! The root directory of a process: a container chooses what is there, so nothing in it leads elsewhere. No link is
//! followed: what is mounted was looked at on the way to directories, and not where links lead.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use onload_host::host::{Host, SYSFS_MAGIC};
use onload_sys::fs::open::open_in_root;
use rustix::fs::{FileType, OFlags, ResolveFlags};

const INTERFACES: &str = "/sys/class/net";
const DEVICES: &str = "/dev";
/// Lines above the interfaces in /proc/PID/net/dev.
const HEADER_LINES: usize = 2;

pub(super) struct ContainerView<'h> {
    host: &'h Host,
    /// Its path on the host, by which a captured host's table has its nodes.
    base: PathBuf,
    root: OwnedFd,
}

/// Opens the root directory of a process. `None` if it has exited or may not be inspected.
pub(super) fn open(host: &Host, base: PathBuf) -> Option<ContainerView<'_>> {
    let root = host.directory(&base).ok()??;
    Some(ContainerView { host, base, root })
}

impl ContainerView<'_> {
    fn open(&self, path: &Path, flags: OFlags) -> Option<OwnedFd> {
        open_in_root(&self.root, path, flags, ResolveFlags::NO_SYMLINKS).ok()
    }

    pub(super) fn node_number(&self, path: &Path) -> Option<(u32, u32)> {
        let relative = path.strip_prefix("/").unwrap_or(path);
        // A captured host has no nodes, and a table of them.
        if !self.host.is_running() {
            let node = self.host.device_node(&self.base.join(relative)).ok()??;
            return Some((node.major, node.minor));
        }
        let node = self.open(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        let stat = rustix::fs::fstat(&node).ok()?;
        let is_node = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
        is_node.then(|| (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)))
    }

    /// The names in a directory, sorted; those of a captured host's table too. No more than `most`.
    pub(super) fn list_names(&self, path: &Path, max: usize) -> Vec<String> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = self.open(path, flags);
        let names = directory
            .and_then(|directory| rustix::fs::Dir::new(directory).ok())
            .into_iter()
            .flatten()
            .take(max)
            .filter_map(|entry| {
                let entry = entry.ok()?;
                entry.file_name().to_str().ok().map(str::to_owned)
            });
        let base = self.base.join(path.strip_prefix("/").unwrap_or(path));
        let mut names: Vec<String> = names.chain(self.host.table_names(&base)).collect();
        names.retain(|name| name != "." && name != "..");
        names.sort();
        names.dedup();
        names
    }

    /// Whether the kernel's sysfs is there, and not a directory of the container's own making. On a captured host,
    /// whether any process is.
    fn has_sysfs(&self) -> bool {
        self.open(Path::new(INTERFACES), OFlags::PATH).is_some_and(|directory| {
            !self.host.is_running()
                || rustix::fs::fstatfs(directory).is_ok_and(|stat| stat.f_type == SYSFS_MAGIC)
        })
    }

    /// Whether its sysfs is of the network that the process is in: a container may have the host's (`-v /sys:/sys`),
    /// which shows the host's devices. `table` is the kernel's own list of the process's interfaces.
    pub(super) fn shows_network(&self, table: &[u8], max: usize) -> bool {
        if !self.has_sysfs() {
            return false;
        }
        let mut sysfs_names = self.list_names(Path::new(INTERFACES), max);
        sysfs_names.retain(|name| name != "bonding_masters");
        let names = table.split(|byte| *byte == b'\n').skip(HEADER_LINES).filter_map(|line| {
            let line = std::str::from_utf8(line).ok()?;
            Some(line.split_once(':')?.0.trim().to_owned())
        });
        let mut table_names: Vec<String> = names.collect();
        table_names.sort();
        sysfs_names == table_names
    }

    /// Returns whether its /dev differs from the host's, which a sandbox may show. Unknown on a captured host.
    pub(super) fn has_own_devices(&self) -> bool {
        let device = |fd: &OwnedFd| rustix::fs::fstat(fd).ok().map(|stat| stat.st_dev);
        let container_dev = self.open(Path::new(DEVICES), OFlags::PATH);
        let host_dev = self.host.directory(Path::new(DEVICES)).ok().flatten();
        let (container_dev, host_dev) =
            (container_dev.as_ref().and_then(device), host_dev.as_ref().and_then(device));
        self.host.is_running() && container_dev.is_some() && container_dev != host_dev
    }
}
