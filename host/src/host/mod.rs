//! The only module that reads the host: files, links and device nodes below a root directory, so
//! that a captured tree is a host like the running one.

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::{Context, anyhow};
use onload_cdi::oci::{HostNode, NodeKind};
use onload_core::netdev::usage::NetworkState;
use onload_lease::run_dir::set_mode;
use onload_sys::fs::open::open_in_root;
use onload_sys::fs::trust::{TrustError, TrustedOwners, TrustedTree};
use onload_sys::mountinfo::each_line;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::netlink::features::{self, InterfaceFeatures};
use crate::netlink::netns_links;
use crate::netlink::rdma_ports::{self, RdmaPortInterfaces};
use crate::spec_index::SpecIndex;

/// The kernel returns one page at most (`Documentation/filesystems/sysfs.rst`).
pub(crate) const MAX_ATTRIBUTE_BYTES: u64 = 4096;
/// Limit for texts and for the kept part of a table, in bytes.
pub(crate) const MAX_TEXT_BYTES: u64 = 4 * 1024 * 1024;

/// The file with a captured host's device nodes, which archives do not contain.
pub const DEVICE_TABLE: &str = "dev.table";
/// The file with a captured host's network, as read by netlink.
pub const NETWORK_TABLE: &str = "network.table";
/// The file with a captured host's interface features, as read by netlink.
const FEATURES_TABLE: &str = "interfaces.table";
/// The file with the interface of each RDMA port of a captured host, as read by netlink.
const RDMA_TABLE: &str = "rdma.table";
/// Mode of created directories.
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
const SYSFS: &str = "/sys";
/// The file system type of sysfs in statfs(2) (include/uapi/linux/magic.h).
pub const SYSFS_MAGIC: rustix::fs::FsWord = 0x6265_6572;

/// A host, seen from its root directory. Paths are absolute paths on that host. Symbolic links, including absolute
/// ones, are followed inside the root and never lead out of it (openat2(2), `RESOLVE_IN_ROOT`).
#[derive(Debug)]
pub struct Host {
    root: PathBuf,
    directory: OwnedFd,
    running: bool,
    table: BTreeMap<PathBuf, HostNode>,
    recording: Option<Mutex<BTreeMap<PathBuf, RecordedPath>>>,
    observer: Option<ReadObserver>,
    spec_index: Arc<SpecIndex>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    Directory,
    File {
        executable: bool,
    },
    /// A device node, socket or pipe.
    Other,
}

/// The result of reading a path, for a capture. Absent paths are not recorded, since they are absent in the captured
/// tree too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedPath {
    /// The kind of the target when links are followed. `None` if only the link itself was read.
    pub entry: Option<EntryKind>,
    /// The content of a text. Empty if the kernel had no value.
    pub content: Option<Vec<u8>>,
    /// Whether it was opened as a program or library, whose content is not kept.
    pub opened: bool,
    pub names: Vec<String>,
    pub node: Option<HostNode>,
}

/// Called for each file or directory that is read, with the path for messages.
pub type ReadObserver = fn(&Path);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirListing {
    /// Sorted.
    pub names: Vec<String>,
    /// The names that are not UTF-8.
    pub not_text: Vec<OsString>,
}

/// A path of the host could not be read. An absent path is not an error.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("reading {}", .path.display())]
    Read {
        path: PathBuf,
        /// The system's error, or the reason why the text is invalid.
        source: std::io::Error,
    },
    #[error("asking the kernel by netlink for interfaces, addresses, routes and RDMA ports")]
    Netlink(#[source] std::io::Error),
    #[error(transparent)]
    Other(anyhow::Error),
}

impl HostError {
    /// Returns the path whose content is unknown. `None` if the error shows what is there, such as a directory in place
    /// of a file.
    pub fn unread_path(&self) -> Option<&Path> {
        const WRONG_KIND: [Errno; 3] = [Errno::ISDIR, Errno::NOTDIR, Errno::NAMETOOLONG];
        match self {
            HostError::Read { path, source } => {
                let errno = Errno::from_io_error(source);
                let is_other = errno.is_some_and(|errno| WRONG_KIND.contains(&errno));
                (!is_other).then_some(path)
            }
            // Used as a path in messages.
            HostError::Netlink(_) => Some(Path::new("netlink")),
            HostError::Other(_) => None,
        }
    }

    /// Returns whether another user may be allowed to read it.
    pub(crate) fn is_denied(&self) -> bool {
        matches!(self, HostError::Read { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied)
    }

    /// Returns whether the kernel refuses the content to this process although it may open the file.
    pub(crate) fn is_not_permitted(&self) -> bool {
        matches!(self, HostError::Read { source, .. } if Errno::from_io_error(source) == Some(Errno::PERM))
    }
}

/// The root directory, which is the only open descriptor.
impl AsFd for Host {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

pub(crate) fn not_text_error(path: &Path) -> HostError {
    HostError::Other(anyhow!("reading {}: not UTF-8 text", path.display()))
}

impl Host {
    /// Opens a host. If the root has a file `dev.table`, it lists the host's nodes.
    pub fn open(root: &Path) -> Result<Host, HostError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(root, flags, Mode::empty())
            .with_context(|| format!("opening host root {}", root.display()))
            .map_err(HostError::Other)?;
        let running = root == Path::new("/");
        let mut host = Host {
            root: root.to_owned(),
            directory,
            running,
            table: BTreeMap::new(),
            recording: None,
            observer: None,
            spec_index: Arc::default(),
        };
        if !running && let Some(text) = host.text(Path::new(DEVICE_TABLE))? {
            host.table = parse_device_table(&text).map_err(|line| {
                let path = root.join(DEVICE_TABLE);
                HostError::Other(anyhow!(
                    "reading {}: line {line}: expected \"path type major minor mode uid gid\"",
                    path.display()
                ))
            })?;
        }
        Ok(host)
    }

    pub fn start_recording(&mut self) {
        self.recording = Some(Mutex::default());
    }

    /// Returns everything that was read since [`Host::start_recording`], sorted.
    pub fn stop_recording(&mut self) -> BTreeMap<PathBuf, RecordedPath> {
        self.recording
            .take()
            .unwrap_or_default()
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub fn watch(&mut self, observer: ReadObserver) {
        self.observer = Some(observer);
    }

    fn notify(&self, path: &Path) {
        if let Some(observer) = self.observer {
            observer(&self.outside_path(path));
        }
    }

    fn record(&self, path: &Path, add: impl FnOnce(&mut RecordedPath)) {
        if let Some(recording) = &self.recording {
            let mut recording = recording.lock().unwrap_or_else(PoisonError::into_inner);
            add(recording.entry(path.to_owned()).or_default());
        }
    }

    pub fn is_running(&self) -> bool {
        self.running
    }

    /// Returns what this process remembers of the host's CDI files. Keep the host to use it again.
    pub fn spec_index(&self) -> &Arc<SpecIndex> {
        &self.spec_index
    }

    /// Returns the interfaces, addresses and routes of this process's network namespace, or those of a captured host.
    /// `None` for a capture without them, and for a host whose root is mounted in a container with its own network.
    pub fn network(&self) -> Result<Option<NetworkState>, HostError> {
        let (text, parse) = (NetworkState::to_text, NetworkState::parse);
        self.kernel_table(NETWORK_TABLE, netns_links::read, text, parse)
    }

    /// Returns the features of interfaces, with the same rules as [`Host::network`]. Unknown features are left out.
    pub fn interface_features(&self) -> Result<BTreeMap<String, InterfaceFeatures>, HostError> {
        let table =
            self.kernel_table(FEATURES_TABLE, features::read, features::to_text, features::parse)?;
        Ok(table.unwrap_or_default())
    }

    /// Returns the interfaces of RDMA ports, with the same rules as [`Host::network`].
    pub(crate) fn rdma_port_interfaces(&self) -> Result<Option<RdmaPortInterfaces>, HostError> {
        self.kernel_table(RDMA_TABLE, rdma_ports::read, rdma_ports::to_text, rdma_ports::parse)
    }

    /// Reads data by netlink, or from a captured host's file.
    fn kernel_table<T, E: Into<Box<dyn Error + Send + Sync>>>(
        &self,
        table: &str,
        read: fn() -> std::io::Result<T>,
        text: fn(&T) -> String,
        parse: fn(&str) -> Result<T, E>,
    ) -> Result<Option<T>, HostError> {
        let path = Path::new("/").join(table);
        if self.has_our_network() {
            let value = read().map_err(HostError::Netlink)?;
            self.record(&path, |recorded| recorded.content = Some(text(&value).into_bytes()));
            return Ok(Some(value));
        }
        let captured = self.text(&path)?;
        let parsed = captured.map(|text| parse(&text)).transpose();
        parsed.map_err(|error| self.read_error(&path, std::io::Error::other(error)))
    }

    /// Returns whether its devices are those of the running kernel: it is the running host, or its root is mounted in a
    /// container, including the kernel's sysfs.
    pub fn is_live(&self) -> bool {
        self.running || self.sysfs_device().is_some()
    }

    /// Returns whether it is in this process's network namespace: it is the running host, or its root is mounted in a
    /// container without its own network. Each network namespace has its own sysfs (fs/sysfs/mount.c).
    fn has_our_network(&self) -> bool {
        let own = || rustix::fs::stat(SYSFS).ok().map(|stat| stat.st_dev);
        self.running || self.sysfs_device().is_some_and(|device| own() == Some(device))
    }

    /// Returns the device number of its sysfs. `None` if its /sys is not a sysfs, as in a capture.
    fn sysfs_device(&self) -> Option<u64> {
        let sysfs = self.open_at(Path::new(SYSFS), PATH_ONLY).ok()??;
        let is_sysfs = rustix::fs::fstatfs(&sysfs).ok()?.f_type == SYSFS_MAGIC;
        let device = rustix::fs::fstat(&sysfs).ok()?.st_dev;
        is_sysfs.then_some(device)
    }

    pub fn outside_path(&self, path: &Path) -> PathBuf {
        if self.running { path.to_owned() } else { self.root.join(relative_path(path)) }
    }

    /// Returns its files as a trusted tree, in which only root can have changed them. A captured tree belongs to the
    /// user who created it, so the caller is trusted like root.
    pub fn trusted(&self) -> Result<TrustedTree, TrustError> {
        let owners = if self.running {
            TrustedOwners::root()
        } else {
            TrustedOwners::from_users(&[0, geteuid().as_raw()])
        };
        TrustedTree::for_tree(&self.outside_path(Path::new("/")), owners)
    }

    /// Reads an attribute without surrounding white space. `None` if it does not exist or has no value (reading `speed`
    /// of a link that is down fails with EINVAL). Fails if it is longer than a page.
    pub fn attribute(&self, path: &Path) -> Result<Option<String>, HostError> {
        let bytes = self.bytes(path, MAX_ATTRIBUTE_BYTES)?;
        let text = bytes.map(|bytes| self.to_utf8(path, bytes)).transpose()?;
        Ok(text.map(|text| text.trim().to_owned()))
    }

    /// Reads a text. `None` if it does not exist. Fails if it is longer than [`MAX_TEXT_BYTES`].
    pub fn text(&self, path: &Path) -> Result<Option<String>, HostError> {
        let bytes = self.bytes(path, MAX_TEXT_BYTES)?;
        bytes.map(|bytes| self.to_utf8(path, bytes)).transpose()
    }

    /// Reads a file. `None` if it does not exist. Fails if it is longer than `limit` bytes.
    pub fn bytes(&self, path: &Path, limit: u64) -> Result<Option<Vec<u8>>, HostError> {
        let Some(file) = self.open_file(path)? else {
            return Ok(None);
        };
        self.notify(path);
        let mut bytes = Vec::new();
        let read = file.take(limit + 1).read_to_end(&mut bytes);
        if read.as_ref().err().is_none_or(has_no_value) {
            self.record_content(path, limit, &bytes);
        }
        match read {
            Ok(read) if read as u64 > limit => Err(self.too_long_error(path, limit)),
            Ok(_) => Ok(Some(bytes)),
            Err(error) if has_no_value(&error) => Ok(None),
            Err(error) => Err(self.read_error(path, error)),
        }
    }

    /// Returns the lines of a kernel table that `is_wanted` accepts, as bytes, since names in it may be arbitrary. The
    /// table may be longer than other files. `None` if it does not exist. Fails if more than [`MAX_TEXT_BYTES`] are
    /// kept.
    pub fn lines(
        &self,
        path: &Path,
        is_wanted: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Option<Vec<u8>>, HostError> {
        let Some(file) = self.open_file(path)? else {
            return Ok(None);
        };
        self.notify(path);
        let mut content = Vec::new();
        let read = each_line(file, &mut |line| {
            if is_wanted(line) {
                content.extend_from_slice(line);
                content.push(b'\n');
            }
            if content.len() as u64 > MAX_TEXT_BYTES {
                return Err(std::io::ErrorKind::FileTooLarge.into());
            }
            Ok(())
        });
        match read {
            Ok(()) => {
                self.record(path, |recorded| recorded.content = Some(content.clone()));
                Ok(Some(content))
            }
            Err(error) if error.kind() == std::io::ErrorKind::FileTooLarge => {
                Err(self.too_long_error(path, MAX_TEXT_BYTES))
            }
            Err(error) => Err(self.read_error(path, error)),
        }
    }

    /// Records the content of texts. Longer files are libraries, which are not recorded.
    fn record_content(&self, path: &Path, limit: u64, bytes: &[u8]) {
        self.record(path, |recorded| {
            match (limit > MAX_TEXT_BYTES, bytes.len() as u64 > limit) {
                (true, _) => recorded.opened = true,
                // Keeps only the length, since its reader rejects it as too long.
                (false, true) => recorded.content = Some(vec![b' '; bytes.len()]),
                (false, false) => recorded.content = Some(bytes.to_vec()),
            }
        });
    }

    /// Opens a file. `None` if it does not exist. Does not block on a pipe.
    pub fn file(&self, path: &Path) -> Result<Option<File>, HostError> {
        let file = self.open_file(path)?;
        if file.is_some() {
            self.notify(path);
            self.record(path, |recorded| recorded.opened = true);
        }
        Ok(file)
    }

    fn open_file(&self, path: &Path) -> Result<Option<File>, HostError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        Ok(self.open_at(path, flags)?.map(File::from))
    }

    /// Lists a directory. The listing is empty if the directory does not exist.
    pub fn list(&self, path: &Path) -> Result<DirListing, HostError> {
        let Some(directory) = self.directory(path)? else {
            return Ok(DirListing::default());
        };
        self.notify(path);
        let mut listing = DirListing::default();
        let entries =
            rustix::fs::Dir::new(directory).map_err(|error| self.read_error(path, error))?;
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Errno::NOENT | Errno::NODEV) => break,
                Err(error) => return Err(self.read_error(path, error)),
            };
            match entry.file_name().to_bytes() {
                b"." | b".." => {}
                bytes => match std::str::from_utf8(bytes) {
                    Ok(name) => listing.names.push(name.to_owned()),
                    Err(_) => listing.not_text.push(os_string(bytes)),
                },
            }
        }
        listing.names.sort();
        listing.not_text.sort();
        self.record(path, |recorded| {
            recorded.entry = Some(EntryKind::Directory);
            recorded.names.clone_from(&listing.names);
        });
        Ok(listing)
    }

    /// `None` if it does not exist.
    pub fn directory(&self, path: &Path) -> Result<Option<OwnedFd>, HostError> {
        self.open_at(path, DIRECTORY)
    }

    /// Opens a directory, creating it and its parents with mode 0755 if they are missing.
    pub fn create_directory(&self, path: &Path) -> Result<OwnedFd, HostError> {
        let mut current = PathBuf::from("/");
        for part in relative_path(path).components() {
            let parent = current.clone();
            current.push(part);
            // A directory may be behind a dangling link: /var/run to /run.
            if self.directory(&current)?.is_none() {
                let target = self.link(&current)?.map(|link| parent.join(link));
                self.make_directory(target.as_deref().unwrap_or(&current))?;
            }
        }
        self.directory(&current)?.ok_or_else(|| self.read_error(path, Errno::NOENT))
    }

    fn make_directory(&self, path: &Path) -> Result<(), HostError> {
        let parent = self
            .directory(path.parent().unwrap_or(Path::new("/")))?
            .ok_or_else(|| self.read_error(path, Errno::NOENT))?;
        let name = path.file_name().unwrap_or_default();
        let made = rustix::fs::mkdirat(&parent, name, DIRECTORY_MODE).and_then(|()| {
            let directory =
                rustix::fs::openat(&parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
            // Other users must be able to read files there, regardless of the caller's umask.
            set_mode(directory, DIRECTORY_MODE)
        });
        match made {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => {
                let path = self.outside_path(path);
                let what = format!("making directory {}", path.display());
                Err(HostError::Other(anyhow::Error::new(error).context(what)))
            }
        }
    }

    /// Returns the last component of a symbolic link's target, by which sysfs names a driver or a group.
    pub(crate) fn link_name(&self, path: &Path) -> Result<Option<String>, HostError> {
        let target = self.link(path)?;
        let Some(name) = target.as_deref().and_then(Path::file_name) else {
            return Ok(None);
        };
        match name.to_str() {
            Some(name) => Ok(Some(name.to_owned())),
            None => Err(not_text_error(&self.outside_path(path))),
        }
    }

    /// Reads a symbolic link. `None` if it does not exist or is not a link.
    pub fn link(&self, path: &Path) -> Result<Option<PathBuf>, HostError> {
        let Some(link) = self.open_at(path, PATH_ONLY | OFlags::NOFOLLOW)? else {
            return Ok(None);
        };
        match rustix::fs::readlinkat(&link, "", Vec::new()) {
            Ok(target) => {
                self.record(path, |_| {});
                Ok(Some(PathBuf::from(os_string(target.as_bytes()))))
            }
            // The descriptor is not a link.
            Err(Errno::NOENT | Errno::INVAL) => Ok(None),
            Err(error) => Err(self.read_error(path, error)),
        }
    }

    /// Resolves all links of a path. `None` if the target does not exist.
    pub fn resolve(&self, path: &Path) -> Result<Option<PathBuf>, HostError> {
        let Some(descriptor) = self.open_at(path, PATH_ONLY)? else {
            return Ok(None);
        };
        let inside = self.path_inside(&descriptor).map_err(|error| self.read_error(path, error))?;
        if self.recording.is_some() {
            self.record_entry(path, self.kind_of(path, &descriptor)?);
        }
        Ok(Some(inside))
    }

    fn path_inside(&self, descriptor: &OwnedFd) -> Result<PathBuf, Errno> {
        let link_target = |fd: &OwnedFd| {
            let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
            let target = rustix::fs::readlink(link, Vec::new())?;
            Ok::<PathBuf, Errno>(PathBuf::from(os_string(target.as_bytes())))
        };
        let full = link_target(descriptor)?;
        if self.running {
            return Ok(full);
        }
        let root = link_target(&self.directory)?;
        let inside = full.strip_prefix(&root).map_err(|_| Errno::XDEV)?;
        Ok(Path::new("/").join(inside))
    }

    /// Returns the kind of a file, following links. `None` if it does not exist.
    pub fn entry(&self, path: &Path) -> Result<Option<EntryKind>, HostError> {
        let Some(descriptor) = self.open_at(path, PATH_ONLY)? else {
            // Records a dangling link too.
            self.record(path, |_| {});
            return Ok(None);
        };
        let kind = self.kind_of(path, &descriptor)?;
        self.record_entry(path, kind);
        Ok(Some(kind))
    }

    fn record_entry(&self, path: &Path, kind: EntryKind) {
        self.record(path, |recorded| recorded.entry = Some(kind));
    }

    fn kind_of(&self, path: &Path, descriptor: &OwnedFd) -> Result<EntryKind, HostError> {
        let stat = rustix::fs::fstat(descriptor).map_err(|error| self.read_error(path, error))?;
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => EntryKind::Directory,
            FileType::RegularFile => EntryKind::File { executable: stat.st_mode & 0o111 != 0 },
            _ => EntryKind::Other,
        })
    }

    pub fn table_names(&self, directory: &Path) -> impl Iterator<Item = String> {
        self.table
            .keys()
            .filter(move |node| node.parent() == Some(directory))
            .filter_map(|node| node.file_name()?.to_str().map(str::to_owned))
    }

    pub fn modified(&self, path: &Path) -> Result<Option<SystemTime>, HostError> {
        let Some(descriptor) = self.open_at(path, PATH_ONLY)? else {
            return Ok(None);
        };
        let modified = File::from(descriptor).metadata().and_then(|metadata| metadata.modified());
        modified.map(Some).map_err(|error| self.read_error(path, error))
    }

    /// Returns a device node, without following a link in its place. `None` if there is none.
    pub fn device_node(&self, path: &Path) -> Result<Option<HostNode>, HostError> {
        let node = self.find_node(path)?;
        if node.is_some() {
            self.record(path, |recorded| recorded.node = node);
        }
        Ok(node)
    }

    /// Returns the nodes of a captured host, which has no device files.
    pub fn captured_nodes(&self) -> &BTreeMap<PathBuf, HostNode> {
        &self.table
    }

    fn find_node(&self, path: &Path) -> Result<Option<HostNode>, HostError> {
        if let Some(node) = self.table.get(path) {
            return Ok(Some(*node));
        }
        let Some(descriptor) = self.open_at(path, PATH_ONLY | OFlags::NOFOLLOW)? else {
            return Ok(None);
        };
        let stat = rustix::fs::fstat(&descriptor).map_err(|error| self.read_error(path, error))?;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::CharacterDevice => NodeKind::Char,
            FileType::BlockDevice => NodeKind::Block,
            _ => return Ok(None),
        };
        let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        Ok(Some(HostNode { kind, major, minor, mode: stat.st_mode & 0o7777 }))
    }

    fn open_at(&self, path: &Path, flags: OFlags) -> Result<Option<OwnedFd>, HostError> {
        let name = relative_path(path);
        let opened = if self.running {
            rustix::fs::openat(&self.directory, name, flags, Mode::empty())
        } else {
            open_in_root(&self.directory, &name, flags, ResolveFlags::empty())
        };
        match opened {
            Ok(descriptor) => Ok(Some(descriptor)),
            // A dangling link opened without O_PATH, or a device that has just disappeared.
            Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => Ok(None),
            // A component of the path is a file, so nothing is at this path. A file in place of a
            // directory is an error to report, though.
            Err(Errno::NOTDIR) if !flags.contains(OFlags::DIRECTORY) => Ok(None),
            Err(error) => Err(self.read_error(path, error)),
        }
    }

    fn to_utf8(&self, path: &Path, bytes: Vec<u8>) -> Result<String, HostError> {
        String::from_utf8(bytes).map_err(|_| not_text_error(&self.outside_path(path)))
    }

    fn read_error(&self, path: &Path, error: impl Into<std::io::Error>) -> HostError {
        HostError::Read { path: self.outside_path(path), source: error.into() }
    }

    fn too_long_error(&self, path: &Path, limit: u64) -> HostError {
        let path = self.outside_path(path);
        HostError::Other(anyhow!("reading {}: longer than {limit} bytes", path.display()))
    }
}

/// Returns the path relative to the root: joining an absolute path would discard the root.
fn relative_path(path: &Path) -> PathBuf {
    let below: PathBuf = path
        .components()
        .filter(|part| !matches!(part, Component::RootDir | Component::CurDir))
        .collect();
    if below.as_os_str().is_empty() { PathBuf::from(".") } else { below }
}

fn os_string(bytes: &[u8]) -> OsString {
    use std::os::unix::ffi::OsStringExt;
    OsString::from_vec(bytes.to_vec())
}

/// Returns whether the error means that an attribute has no value now or its device has disappeared.
fn has_no_value(error: &std::io::Error) -> bool {
    let none = [Errno::INVAL, Errno::NODEV, Errno::NXIO, Errno::OPNOTSUPP, Errno::NOENT];
    Errno::from_io_error(error).is_some_and(|error| none.contains(&error))
}

/// Parses `dev.table`. Fails with the number of the invalid line, from 1.
fn parse_device_table(text: &str) -> Result<BTreeMap<PathBuf, HostNode>, usize> {
    let lines = text.lines().enumerate();
    let entries = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    entries.map(|(index, line)| parse_device_line(line).ok_or(index + 1)).collect()
}

fn parse_device_line(line: &str) -> Option<(PathBuf, HostNode)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [path, kind, major, minor, mode, _uid, _gid] = fields[..] else {
        return None;
    };
    let kind = match kind {
        "c" => NodeKind::Char,
        "b" => NodeKind::Block,
        _ => return None,
    };
    let node = HostNode {
        kind,
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
        mode: u32::from_str_radix(mode, 8).ok()?,
    };
    Some((PathBuf::from(path), node))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs;
    use std::os::unix::fs::symlink;

    use onload_sys::text::ErrorChain;

    use super::*;

    fn tree() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir_all(root.join("sys/class/net/eth0")).unwrap();
        fs::write(root.join("sys/class/net/eth0/speed"), "1000\n").unwrap();
        fs::write(directory.path().join("secret"), "outside").unwrap();
        (directory, root)
    }

    #[test]
    fn an_attribute_is_read_without_its_newline() {
        let (_keep, root) = tree();
        let host = Host::open(&root).unwrap();
        let speed = host.attribute(Path::new("/sys/class/net/eth0/speed")).unwrap();
        assert_eq!(speed.as_deref(), Some("1000"));
    }

    #[test]
    fn what_is_not_there_is_no_error() {
        let (_keep, root) = tree();
        let host = Host::open(&root).unwrap();
        assert!(host.attribute(Path::new("/sys/nothing")).unwrap().is_none());
        assert!(host.attribute(Path::new("/sys/class/net/eth0/speed/below")).unwrap().is_none());
        assert_eq!(host.list(Path::new("/sys/nothing")).unwrap(), DirListing::default());
        assert!(host.link(Path::new("/sys/class/net/eth0/speed")).unwrap().is_none());
        assert!(host.device_node(Path::new("/sys/class/net/eth0/speed")).unwrap().is_none());
    }

    #[test]
    fn what_is_looked_at_is_noted_only_while_that_is_asked_for() {
        let (_keep, root) = tree();
        symlink("sys/class", root.join("class")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        fs::write(root.join("dev.table"), "/dev/onload c 243 0 0666 0 0\n").unwrap();
        fs::write(root.join("library"), "text").unwrap();
        let mut host = Host::open(&root).unwrap();
        let speed = Path::new("/sys/class/net/eth0/speed");
        host.list(Path::new("/sys")).unwrap();
        host.start_recording();
        host.attribute(speed).unwrap();
        host.list(Path::new("/class/net")).unwrap();
        host.link(Path::new("/class")).unwrap();
        host.entry(Path::new("/dangling")).unwrap();
        host.attribute(Path::new("/sys/nothing")).unwrap();
        host.bytes(Path::new("/library"), 2 * MAX_TEXT_BYTES).unwrap();
        host.device_node(Path::new("/dev/onload")).unwrap();
        host.device_node(Path::new("/dev/none")).unwrap();
        let seen = host.stop_recording();
        let paths: Vec<&str> = seen.keys().filter_map(|path| path.to_str()).collect();
        assert_eq!(
            paths,
            [
                "/class",
                "/class/net",
                "/dangling",
                "/dev/onload",
                "/library",
                "/sys/class/net/eth0/speed"
            ]
        );
        assert_eq!(seen[speed].content.as_deref(), Some(&b"1000\n"[..]));
        assert_eq!(seen[Path::new("/class/net")].names, ["eth0"]);
        let library = &seen[Path::new("/library")];
        assert!(library.opened && library.content.is_none());
        assert_eq!(seen[Path::new("/class")], RecordedPath::default());
        host.attribute(speed).unwrap();
        assert!(host.stop_recording().is_empty());
    }

    #[test]
    fn a_watcher_is_told_of_each_file_and_directory_that_is_read() {
        thread_local! {
            static REPORTED: RefCell<Vec<PathBuf>> = const { RefCell::new(Vec::new()) };
        }
        let (_keep, root) = tree();
        let mut host = Host::open(&root).unwrap();
        let speed = Path::new("/sys/class/net/eth0/speed");
        host.attribute(speed).unwrap();
        host.watch(|path| REPORTED.with_borrow_mut(|reported| reported.push(path.to_owned())));
        host.list(Path::new("/sys/class/net")).unwrap();
        host.attribute(speed).unwrap();
        host.attribute(Path::new("/sys/nothing")).unwrap();
        host.list(Path::new("/sys/nothing")).unwrap();
        host.entry(speed).unwrap();
        let expected = [root.join("sys/class/net"), root.join("sys/class/net/eth0/speed")];
        assert_eq!(REPORTED.take(), expected);
    }

    #[test]
    fn an_absolute_link_leads_inside_the_root() {
        let (_keep, root) = tree();
        symlink("/sys/class/net/eth0", root.join("eth")).unwrap();
        let host = Host::open(&root).unwrap();
        assert_eq!(host.attribute(Path::new("/eth/speed")).unwrap().as_deref(), Some("1000"));
        let resolved = host.resolve(Path::new("/eth")).unwrap().unwrap();
        assert_eq!(resolved, Path::new("/sys/class/net/eth0"));
    }

    #[test]
    fn a_link_never_leads_out_of_the_root() {
        let (keep, root) = tree();
        symlink("../secret", root.join("up")).unwrap();
        symlink(keep.path().join("secret"), root.join("away")).unwrap();
        let host = Host::open(&root).unwrap();
        assert!(host.attribute(Path::new("/up")).unwrap().is_none());
        assert!(host.attribute(Path::new("/away")).unwrap().is_none());
        assert!(host.attribute(Path::new("/../secret")).unwrap().is_none());
    }

    #[test]
    fn a_dangling_link_is_nothing_and_a_loop_is_an_error() {
        let (_keep, root) = tree();
        symlink("nowhere", root.join("dangling")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let host = Host::open(&root).unwrap();
        assert!(host.attribute(Path::new("/dangling")).unwrap().is_none());
        assert_eq!(host.link(Path::new("/dangling")).unwrap(), Some(PathBuf::from("nowhere")));
        let error = ErrorChain(&host.attribute(Path::new("/loop")).unwrap_err()).to_string();
        assert!(error.contains("/root/loop: Too many levels"), "{error}");
    }

    #[test]
    fn an_attribute_that_is_too_long_or_not_text_is_refused_with_its_path() {
        let (_keep, root) = tree();
        fs::write(root.join("long"), vec![b'a'; 1_000_000]).unwrap();
        fs::write(root.join("binary"), [0xff, 0xfe]).unwrap();
        let host = Host::open(&root).unwrap();
        let long = host.attribute(Path::new("/long")).unwrap_err().to_string();
        assert!(long.ends_with("/root/long: longer than 4096 bytes"), "{long}");
        let binary = host.attribute(Path::new("/binary")).unwrap_err().to_string();
        assert!(binary.ends_with("/root/binary: not UTF-8 text"), "{binary}");
    }

    #[test]
    fn a_directory_is_no_attribute_and_a_file_no_directory() {
        let (_keep, root) = tree();
        let host = Host::open(&root).unwrap();
        assert!(host.attribute(Path::new("/sys/class")).is_err());
        assert!(host.list(Path::new("/sys/class/net/eth0/speed")).is_err());
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let (_keep, root) = tree();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            root.join("pipe"),
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let host = Host::open(&root).unwrap();
        assert_eq!(host.attribute(Path::new("/pipe")).unwrap().as_deref(), Some(""));
    }

    #[test]
    fn names_that_are_not_text_are_listed_apart() {
        let (_keep, root) = tree();
        fs::write(root.join("sys/class").join(os_string(b"a\xff")), "").unwrap();
        let host = Host::open(&root).unwrap();
        let listing = host.list(Path::new("/sys/class")).unwrap();
        assert_eq!(listing.names, ["net"]);
        assert_eq!(listing.not_text, [os_string(b"a\xff")]);
    }

    #[test]
    fn a_captured_hosts_nodes_come_from_its_table() {
        let (_keep, root) = tree();
        fs::write(root.join("dev.table"), "# comment\n/dev/onload c 243 0 0666 0 991\n").unwrap();
        let host = Host::open(&root).unwrap();
        let node = HostNode { kind: NodeKind::Char, major: 243, minor: 0, mode: 0o666 };
        assert_eq!(host.device_node(Path::new("/dev/onload")).unwrap(), Some(node));
        assert!(host.device_node(Path::new("/dev/other")).unwrap().is_none());
    }

    #[test]
    fn a_table_of_nodes_that_is_not_understood_is_refused_with_its_line() {
        let (_keep, root) = tree();
        fs::write(root.join("dev.table"), "/dev/onload c 243 0 0666 0 991\n/dev/x z 1 1 1 1 1\n")
            .unwrap();
        let error = Host::open(&root).unwrap_err().to_string();
        assert!(error.contains("dev.table: line 2: expected"), "{error}");
    }

    #[test]
    fn a_directory_is_made_inside_the_root_even_behind_a_link_to_nothing_yet() {
        let (_keep, root) = tree();
        fs::create_dir(root.join("var")).unwrap();
        symlink("/run", root.join("var/run")).unwrap();
        let host = Host::open(&root).unwrap();
        host.create_directory(Path::new("/var/run/cdi")).unwrap();
        assert!(root.join("run/cdi").is_dir());
        host.create_directory(Path::new("/var/run/cdi")).unwrap();
    }

    #[test]
    fn a_directory_below_a_file_is_refused_with_its_path() {
        let (_keep, root) = tree();
        let host = Host::open(&root).unwrap();
        let error = host.create_directory(Path::new("/sys/class/net/eth0/speed/cdi")).unwrap_err();
        assert!(ErrorChain(&error).to_string().contains("eth0/speed: Not a directory"), "{error}");
    }

    #[test]
    fn a_root_that_is_not_there_is_refused_and_the_cause_is_told_by_the_chain_alone() {
        let error = Host::open(Path::new("/nonexistent/root")).unwrap_err();
        assert_eq!(error.to_string(), "opening host root /nonexistent/root");
        assert_eq!(
            ErrorChain(&error).to_string(),
            "opening host root /nonexistent/root: No such file or directory (os error 2)"
        );
    }
}
