//! Which roots of containers are looked into. Who looks into a file system that a program answers for may wait for good,
//! and not even SIGKILL ends that (FUSE, `request_wait_answer` in fs/fuse/dev.c; hard mounts of NFS). So few kinds of
//! file systems are looked into, and an overlay where all of its layers are on these.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use onload_host::host::Host;
use onload_sys::mountinfo::{MountinfoLine, each_line, parse};

use super::process::{self, ContainerProcess, proc_dir};

/// Kinds that answer by themselves. Not erofs: nydus has a program fetch what it shows.
const LOOKED_INTO: [&[u8]; 17] = [
    b"bcachefs",
    b"btrfs",
    b"cgroup",
    b"cgroup2",
    b"devpts",
    b"devtmpfs",
    b"ext2",
    b"ext3",
    b"ext4",
    b"f2fs",
    b"hugetlbfs",
    b"mqueue",
    b"proc",
    b"sysfs",
    b"tmpfs",
    b"xfs",
    b"zfs",
];
const OVERLAY: &[u8] = b"overlay";
/// Options of an overlay that name its layers (Documentation/filesystems/overlayfs.rst).
const LAYERS: [&[u8]; 5] = [b"lowerdir", b"lowerdir+", b"datadir+", b"upperdir", b"workdir"];
/// Overlays on overlays that are followed.
const DEPTH: usize = 2;
const PRELOAD_FILE: &[u8] = b"/etc/ld.so.preload";
const FUSE: &str = "/sys/fs/fuse";
const FUSE_CONNECTIONS: &str = "/sys/fs/fuse/connections";

pub(super) struct Mounts<'h> {
    host: &'h Host,
    own_users: Option<PathBuf>,
    own: OnceCell<HostMounts>,
    by_place: HashMap<(PathBuf, Option<PathBuf>), Mounted>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mounted {
    pub(super) may_look: bool,
    /// Whether the library is preloaded by a file of ours that is mounted over the container's own.
    pub(super) has_preload_file: bool,
}

#[derive(Default)]
struct HostMounts {
    /// Of several at one place the last, which is the one that is seen.
    by_point: HashMap<Vec<u8>, HostMount>,
    /// The last parts of the places of file systems that are not looked into.
    others: Vec<Vec<u8>>,
}

struct HostMount {
    fs_type: Vec<u8>,
    options: Vec<u8>,
}

impl HostMounts {
    fn add(&mut self, mount: &MountinfoLine<'_>) {
        let is_overlay = mount.fs_type == OVERLAY;
        if !is_overlay && !LOOKED_INTO.contains(&mount.fs_type) {
            let last = mount.point.rsplit(|byte| *byte == b'/').next();
            self.others.extend(last.map(<[u8]>::to_owned));
        }
        let options = if is_overlay { mount.options } else { b"" };
        let kept = HostMount { fs_type: mount.fs_type.to_owned(), options: options.to_owned() };
        self.by_point.insert(mount.point.to_owned(), kept);
    }
}

impl<'h> Mounts<'h> {
    pub(super) fn of(host: &'h Host) -> Self {
        Mounts {
            host,
            own_users: process::host_namespace(host, "user"),
            own: OnceCell::new(),
            by_place: HashMap::new(),
        }
    }

    /// What the mounts of a process say; none where they cannot be read. The table of a mount namespace is read once for
    /// each root: it may have 100,000 lines, and shows what is below the root.
    pub(super) fn of_process(&mut self, process: &ContainerProcess) -> Option<Mounted> {
        let root = self.host.link(&proc_dir(process.pid).join("root"));
        let place = process.mounts.clone().map(|namespace| (namespace, root.ok().flatten()));
        let known = place.as_ref().and_then(|place| self.by_place.get(place));
        if let Some(known) = known {
            return Some(*known);
        }
        let read = self.read(process.pid)?;
        self.by_place.extend(place.map(|place| (place, read)));
        Some(read)
    }

    /// Whether a file of the host is on a file system that answers by itself. Its path holds no links.
    pub(super) fn answers(&self, file: &Path) -> bool {
        self.is_layer_good(file.as_os_str().as_bytes(), DEPTH)
    }

    fn read(&self, pid: u32) -> Option<Mounted> {
        let wanted = |line: &[u8]| {
            let point = line.split(|byte| *byte == b' ').nth(4);
            point.is_some_and(|point| is_looked_at(point) || point == PRELOAD_FILE)
        };
        let path = proc_dir(pid).join("mountinfo");
        let lines = self.host.lines(&path, &wanted).ok()??;
        let is_of_user = process::namespace_link(self.host, pid, "user") != self.own_users;
        let may_look = |mount: &MountinfoLine<'_>| match mount.fs_type {
            OVERLAY => {
                !(is_of_user && self.has_users_fuse()) && self.are_layers_good(mount.options, DEPTH)
            }
            kind => LOOKED_INTO.contains(&kind),
        };
        let looked_at = || parse(&lines).filter(|mount| is_looked_at(mount.point));
        // A process whose root is below a mount does not see that one in its table.
        let has_root = looked_at().any(|mount| mount.point == b"/");
        Some(Mounted {
            may_look: has_root && looked_at().all(|mount| may_look(&mount)),
            has_preload_file: parse(&lines).any(|mount| mount.point == PRELOAD_FILE),
        })
    }

    fn are_layers_good(&self, options: &[u8], depth: usize) -> bool {
        let options = options.split(|byte| *byte == b',');
        let layers = options.filter_map(|option| {
            let at = option.iter().position(|byte| *byte == b'=')?;
            let (key, value) = (&option[..at], &option[at + 1..]);
            LAYERS.contains(&key).then_some(value)
        });
        let mut layers = layers
            .flat_map(|layers| layers.split(|byte| *byte == b':'))
            .filter(|layer| !layer.is_empty())
            .peekable();
        // One that has no layers, or whose layers have escapes in their names, is nobody's that we know.
        layers.peek().is_some()
            && layers.all(|layer| !layer.contains(&b'\\') && self.is_layer_good(layer, depth))
    }

    /// Whether the directory of a layer is on a file system of the host that is looked into.
    fn is_layer_good(&self, layer: &[u8], depth: usize) -> bool {
        let own = self.own.get_or_init(|| host_mounts(self.host));
        if !layer.starts_with(b"/") {
            // Engines shorten long lists of layers, and where these begin is not known: no other file system may be
            // mounted at such a place.
            let parts = || layer.split(|byte| *byte == b'/');
            return !own.others.iter().any(|last| parts().any(|part| part == last));
        }
        let mut place = layer;
        let mount = loop {
            if let Some(mount) = own.by_point.get(place) {
                break mount;
            }
            match place.iter().rposition(|byte| *byte == b'/') {
                Some(at) if place != b"/" => place = &place[..at.max(1)],
                _ => return false,
            }
        };
        match mount.fs_type.as_slice() {
            OVERLAY => depth > 0 && self.are_layers_good(&mount.options, depth - 1),
            kind => LOOKED_INTO.contains(&kind),
        }
    }

    /// Whether a user other than root has a FUSE file system somewhere. Who owns a user namespace can put one below an
    /// overlay where no table of ours shows it.
    fn has_users_fuse(&self) -> bool {
        let owner = |directory: OwnedFd| rustix::fs::fstat(directory).ok().map(|stat| stat.st_uid);
        match self.host.entry(Path::new(FUSE)) {
            Ok(None) => return false,
            Ok(Some(_)) => {}
            Err(_) => return true,
        }
        let Ok(connections) = self.host.list(Path::new(FUSE_CONNECTIONS)) else {
            return true;
        };
        let mut connections = connections.names.iter();
        connections.any(|name| {
            let path = Path::new(FUSE_CONNECTIONS).join(name);
            let directory = self.host.directory(&path);
            // One that has gone meanwhile is nobody's.
            directory.ok().flatten().and_then(owner).is_some_and(|owner| owner != 0)
        })
    }
}

/// Whether something is looked at where that is mounted.
fn is_looked_at(point: &[u8]) -> bool {
    const PLACES: [&[u8]; 6] =
        [b"/", b"/dev", b"/sys", b"/sys/class", b"/sys/class/net", b"/sys/class/infiniband"];
    let is_node = |below: &[u8]| {
        let directories: [&[u8]; 2] = [b"infiniband/", b"vfio/"];
        !below.contains(&b'/') || directories.iter().any(|directory| below.starts_with(directory))
    };
    PLACES.contains(&point) || point.strip_prefix(b"/dev/").is_some_and(is_node)
}

/// The mounts of the host's first process, or of this one where the first is not ours to see; none where neither can
/// be read.
fn host_mounts(host: &Host) -> HostMounts {
    let tables = ["/proc/1/mountinfo", "/proc/self/mountinfo"];
    let mut tables = tables.iter().filter_map(|path| host.file(Path::new(path)).ok()?);
    let mut mounts = HostMounts::default();
    let read = tables.next().map(|table| {
        each_line(table, &mut |line| {
            parse(line).for_each(|mount| mounts.add(&mount));
            Ok(())
        })
    });
    match read {
        Some(Ok(())) => mounts,
        _ => HostMounts::default(),
    }
}
