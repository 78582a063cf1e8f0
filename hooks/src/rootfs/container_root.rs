//! The root file system of a container that is not running yet. The image's author controls its
//! content.
//!
//! Files in it are opened by openat2(2) with RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS, so no link
//! and no `..` leads out of it. Only regular files are read.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use onload_core::fs::open::{MAX_LINKS, PATH_MAX, components, open_in_root, open_resolved};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, StatxAttributes, StatxFlags, fstat,
    openat, readlinkat, stat, statx,
};
use rustix::io::Errno;

/// Components of one path that still have to be walked, with links expanded; PATH_MAX allows half
/// as many.
const MAX_COMPONENTS: usize = 4096;

/// Components that are looked up in one root, for all paths together. A container has a few dozen
/// mounts with a few components each. Links that lead up and down again could turn each into a
/// hundred thousand.
const MAX_LOOKS: usize = 50_000;

/// Why something in a container's root cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// The root itself cannot be opened.
    #[error("opening the container's root {path:?}")]
    Open {
        /// Its path on the host.
        path: PathBuf,
        source: io::Error,
    },
    /// It is the host's root.
    #[error("the container's root {path:?} is the host's own: nothing is mounted there")]
    HostRoot {
        /// Its path on the host.
        path: PathBuf,
    },
    #[error(
        "the container's root {path:?} is not a mount in the container's mount namespace, so files created there would not belong to the container; call this hook as createRuntime or prestart"
    )]
    NotMounted {
        /// Its path on the host.
        path: PathBuf,
    },
    /// A lookup in it failed.
    #[error("looking up {path:?} in the container's root")]
    Lookup {
        /// The path in the container.
        path: PathBuf,
        source: io::Error,
    },
    /// It is not a regular file.
    #[error("{path:?} in the container is not a regular file")]
    NotRegular {
        /// The path in the container.
        path: PathBuf,
    },
}

impl onload_core::error::Typed for RootError {}

impl RootError {
    /// Whether there is simply no such file.
    #[must_use]
    pub(crate) fn is_absent(&self) -> bool {
        let kinds = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
        matches!(self, RootError::Lookup { source: error, .. } if kinds.contains(&error.kind()))
    }

    /// Whether another mount is on the way to it.
    #[must_use]
    pub(crate) fn is_elsewhere(&self) -> bool {
        matches!(self, RootError::Lookup { source: error, .. } if error.kind() == io::ErrorKind::CrossesDevices)
    }
}

/// An open root.
#[derive(Debug)]
pub(crate) struct ContainerRoot {
    fd: OwnedFd,
    /// How a path is walked. Before the runtime has mounted anything, an existing mount is not part
    /// of the root file system; afterwards, the mounts of the configuration are on the path.
    step: ResolveFlags,
    /// How a file to be read is looked up. Once the configuration's mounts are in place, what is on
    /// them is not from the image, may be readable to nobody in the container, and may never
    /// answer.
    files: ResolveFlags,
    looks_left: Cell<usize>,
}

impl ContainerRoot {
    /// Opens the root that a configuration names. The engine chose that path, not the image.
    ///
    /// # Errors
    /// [`RootError`], also if it is the host's root.
    pub(crate) fn open(path: &Path) -> Result<Self, RootError> {
        let fd = open_root(
            path,
            || rustix::fs::open(path, ROOT, Mode::empty()),
            || stat("/"),
        )?;
        Ok(ContainerRoot {
            fd,
            step: ResolveFlags::NO_XDEV,
            files: ResolveFlags::empty(),
            looks_left: Cell::new(MAX_LOOKS),
        })
    }

    /// Opens the root that a configuration names and the runtime has mounted, as a process with the
    /// root directory `above` sees it.
    ///
    /// # Errors
    /// [`RootError`], also if it is that directory itself, or is not mounted.
    pub(crate) fn open_below(above: &OwnedFd, path: &Path) -> Result<Self, RootError> {
        let open = || open_in_root(above, path, ROOT, ResolveFlags::empty());
        let fd = open_root(path, open, || fstat(above))?;
        let stat = statx(&fd, "", AtFlags::EMPTY_PATH, StatxFlags::empty());
        let stat = stat.map_err(|error| not_opened(path, error))?;
        if !stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
            return Err(RootError::NotMounted {
                path: path.to_owned(),
            });
        }
        Ok(ContainerRoot {
            fd,
            step: ResolveFlags::empty(),
            files: ResolveFlags::NO_XDEV,
            looks_left: Cell::new(MAX_LOOKS),
        })
    }

    /// Opens what a path leads to.
    ///
    /// # Errors
    /// The errors of openat2(2).
    pub(crate) fn find(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.lookup(path)
    }

    /// Whether there is nothing at a path. A link that leads nowhere is something, and so is what cannot
    /// be looked at.
    #[must_use]
    pub(crate) fn lacks(&self, path: &Path) -> bool {
        let mut at = path;
        loop {
            match self.find(at) {
                Err(Errno::NOENT) => {}
                // What leads to it is there, and the next name below is not: unless as such a link.
                Ok(above) if at != path => return is_nothing(&above, path, at),
                _ => return false,
            }
            let Some(above) = at.parent() else {
                return false;
            };
            at = above;
        }
    }

    /// What a path leads to, no mount crossed on the way.
    ///
    /// # Errors
    /// The errors of openat2(2); EXDEV if another mount is on the way.
    pub(crate) fn find_on_own_mount(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.lookup_with(path, ResolveFlags::NO_XDEV)
    }

    /// Opens a regular file for reading. The file type is checked first, since merely opening a
    /// device or a FIFO can have effects.
    ///
    /// # Errors
    /// [`RootError`].
    pub(crate) fn open_file(&self, path: &Path) -> Result<File, RootError> {
        let failed = |error: io::Error| RootError::Lookup {
            path: path.to_owned(),
            source: error,
        };
        let found = self.lookup_with(path, self.files);
        let found = found.map_err(|error| failed(error.into()))?;
        let kind = fstat(&found).map_err(|error| failed(error.into()))?.st_mode;
        if FileType::from_raw_mode(kind) != FileType::RegularFile {
            return Err(RootError::NotRegular {
                path: path.to_owned(),
            });
        }
        // Reopens the same file for reading (proc(5), /proc/self/fd).
        let again = format!("/proc/self/fd/{}", found.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file =
            rustix::fs::open(again, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        Ok(File::from(file))
    }

    fn lookup(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.lookup_with(path, ResolveFlags::empty())
    }

    fn lookup_with(&self, path: &Path, more: ResolveFlags) -> Result<OwnedFd, Errno> {
        open_in_root(&self.fd, path, OFlags::PATH, more)
    }

    /// Follows every link of a path and returns where it leads. `mounted` says which paths the
    /// runtime will have mounted over by then. Nothing is looked up below them, since what is there
    /// now will be hidden.
    ///
    /// # Errors
    /// [`RootError::Lookup`], also for loops, for a `..` below such a mount, for a path that
    /// crosses another mount, and for a path longer than PATH_MAX.
    pub(crate) fn resolve(
        &self,
        path: &Path,
        mounted: &dyn Fn(&ContainerPath) -> bool,
    ) -> Result<ContainerPath, RootError> {
        self.walk(path, mounted).map_err(|error| RootError::Lookup {
            path: shown(path),
            source: error.into(),
        })
    }

    fn walk(
        &self,
        path: &Path,
        mounted: &dyn Fn(&ContainerPath) -> bool,
    ) -> Result<ContainerPath, Errno> {
        if path.as_os_str().len() > PATH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let mut links = 0;
        let mut ahead = components(path.as_os_str());
        let mut at = ContainerPath::default();
        // One descriptor per component of `at`; empty once nothing can be looked up any more.
        let mut above: Vec<OwnedFd> = Vec::new();
        let mut blind = mounted(&at);
        while let Some(name) = ahead.pop() {
            if name == ".." {
                if blind {
                    return Err(Errno::XDEV);
                }
                at.pop();
                above.pop();
                continue;
            }
            if at.0.len() + name.len() > PATH_MAX {
                return Err(Errno::NAMETOOLONG);
            }
            // It would count as two names.
            if name.as_bytes().contains(&0) {
                return Err(Errno::INVAL);
            }
            if blind {
                at.push(&name);
                continue;
            }
            let dir = above.last().map_or(self.fd.as_fd(), AsFd::as_fd);
            let left = self.looks_left.get().checked_sub(1).ok_or(Errno::LOOP)?;
            self.looks_left.set(left);
            match look(dir, &name, self.step)? {
                Component::Absent => {
                    at.push(&name);
                    blind = true;
                }
                Component::Link(target) => {
                    links += 1;
                    if links > MAX_LINKS || ahead.len() > MAX_COMPONENTS {
                        return Err(Errno::LOOP);
                    }
                    if target.as_bytes().starts_with(b"/") {
                        at = ContainerPath::default();
                        above.clear();
                        blind = mounted(&at);
                    }
                    ahead.extend(components(&target));
                }
                Component::Other(fd) => {
                    at.push(&name);
                    above.push(fd);
                    blind = mounted(&at);
                }
            }
        }
        Ok(at)
    }
}

/// A path in a root: its names, each preceded by a NUL. NUL sorts before every byte of a name, so
/// whatever lies below a path follows it directly. It is one allocation, since a configuration can
/// name a hundred thousand.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ContainerPath(Vec<u8>);

impl ContainerPath {
    /// Where a path of a container leads if nothing on it is a link, for an image that is not there yet.
    ///
    /// # Errors
    /// [`RootError::Lookup`] for `..`, for a path longer than PATH_MAX, and for one with a NUL.
    pub(crate) fn without_links(path: &Path) -> Result<ContainerPath, RootError> {
        let walked = || {
            if path.as_os_str().len() > PATH_MAX {
                return Err(Errno::NAMETOOLONG);
            }
            let mut at = ContainerPath::default();
            for name in components(path.as_os_str()).iter().rev() {
                if name == ".." {
                    return Err(Errno::XDEV);
                }
                if name.as_bytes().contains(&0) {
                    return Err(Errno::INVAL);
                }
                at.push(name);
            }
            Ok(at)
        };
        walked().map_err(|error| RootError::Lookup {
            path: shown(path),
            source: error.into(),
        })
    }

    fn push(&mut self, name: &OsStr) {
        self.0.push(0);
        self.0.extend(name.as_bytes());
    }

    fn pop(&mut self) {
        let end = self.0.iter().rposition(|byte| *byte == 0);
        self.0.truncate(end.unwrap_or_default());
    }

    /// Its parent directory; the root is its own parent.
    #[must_use]
    pub(crate) fn parent(&self) -> ContainerPath {
        let mut parent = self.clone();
        parent.pop();
        parent
    }

    /// The names, each preceded by a NUL; empty for the root.
    #[must_use]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its ancestors and itself, the root first.
    pub(crate) fn downward(&self) -> impl Iterator<Item = &[u8]> {
        let is_end = |end: &usize| self.0.get(*end).is_none_or(|byte| *byte == 0);
        let ends = (0..=self.0.len()).filter(is_end);
        ends.map(|end| &self.0[..end])
    }

    /// It as a path in the container.
    #[must_use]
    pub(crate) fn to_path(&self) -> PathBuf {
        let names = self.0.split(|byte| *byte == 0).skip(1);
        Path::new("/").join(names.map(OsStr::from_bytes).collect::<PathBuf>())
    }
}

impl std::borrow::Borrow<[u8]> for ContainerPath {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

/// Whether a directory has nothing by the name that follows it in a path.
fn is_nothing(dir: &OwnedFd, path: &Path, at: &Path) -> bool {
    let below = path.strip_prefix(at).ok();
    let Some(name) = below.and_then(|below| below.components().next()) else {
        return false;
    };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = openat(dir, name.as_os_str(), flags, Mode::empty());
    matches!(found, Err(Errno::NOENT))
}

/// A path for a message: as much of it as a path can have.
fn shown(path: &Path) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    OsStr::from_bytes(&bytes[..bytes.len().min(PATH_MAX)]).into()
}

impl AsFd for ContainerRoot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// How a root is opened: only to look things up from it.
const ROOT: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a root through `open`, and refuses that of the host.
fn open_root(
    path: &Path,
    open: impl FnOnce() -> Result<OwnedFd, Errno>,
    host: impl FnOnce() -> Result<Stat, Errno>,
) -> Result<OwnedFd, RootError> {
    let failed = |error: Errno| not_opened(path, error);
    if path.as_os_str().len() > PATH_MAX {
        return Err(failed(Errno::NAMETOOLONG));
    }
    let fd = open().map_err(failed)?;
    let own = fstat(&fd).map_err(failed)?;
    let host = host().map_err(failed)?;
    if (own.st_dev, own.st_ino) == (host.st_dev, host.st_ino) {
        return Err(RootError::HostRoot {
            path: path.to_owned(),
        });
    }
    Ok(fd)
}

fn not_opened(path: &Path, error: Errno) -> RootError {
    RootError::Open {
        path: shown(path),
        source: error.into(),
    }
}

enum Component {
    Absent,
    Link(OsString),
    Other(OwnedFd),
}

fn look(dir: BorrowedFd<'_>, name: &OsStr, step: ResolveFlags) -> Result<Component, Errno> {
    let fd = match open_resolved(dir, name, OFlags::PATH | OFlags::NOFOLLOW, step) {
        Ok(fd) => fd,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Component::Absent),
        Err(error) => return Err(error),
    };
    if FileType::from_raw_mode(fstat(&fd)?.st_mode) != FileType::Symlink {
        return Ok(Component::Other(fd));
    }
    let target = readlinkat(&fd, "", Vec::new())?;
    Ok(Component::Link(
        OsStr::from_bytes(target.as_bytes()).to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    struct Root(tempfile::TempDir);

    impl Root {
        fn new() -> Self {
            let root = Root(tempfile::tempdir().unwrap());
            fs::create_dir_all(root.0.path().join("usr/lib")).unwrap();
            fs::create_dir_all(root.0.path().join("etc")).unwrap();
            fs::write(root.0.path().join("etc/file"), "inside").unwrap();
            root
        }

        fn link(&self, target: &str, name: &str) {
            symlink(target, self.0.path().join(name)).unwrap();
        }

        fn open(&self) -> ContainerRoot {
            ContainerRoot::open(self.0.path()).unwrap()
        }

        fn read(&self, path: &str) -> Result<String, RootError> {
            let mut text = String::new();
            self.open()
                .open_file(Path::new(path))?
                .read_to_string(&mut text)
                .unwrap();
            Ok(text)
        }

        fn resolve(&self, path: &str, mounted: &[&str]) -> Result<String, RootError> {
            let covered = |at: &ContainerPath| mounted.contains(&at.to_path().to_str().unwrap());
            let place = self.open().resolve(Path::new(path), &covered)?;
            Ok(place.to_path().to_str().unwrap().to_owned())
        }
    }

    #[test]
    fn links_stay_inside() {
        let root = Root::new();
        root.link("/etc", "abs");
        root.link("../../../../../../etc", "usr/up");
        for path in [
            "/etc/file",
            "etc/file",
            "/abs/file",
            "/usr/up/file",
            "/../../etc/file",
        ] {
            assert_eq!(root.read(path).unwrap(), "inside", "{path}");
        }
        root.link("/etc/passwd", "passwd");
        assert!(
            root.read("/passwd").unwrap_err().is_absent(),
            "the host has one"
        );
    }

    #[test]
    fn only_a_place_with_nothing_at_it_is_lacked() {
        let root = Root::new();
        root.link("/nowhere", "usr/dangling");
        root.link("loop", "usr/loop");
        root.link("usr/lib", "lib");
        let open = root.open();
        for path in ["/usr/lib64", "/lib/x/y", "/nowhere", "/a/b/c"] {
            assert!(open.lacks(Path::new(path)), "{path}");
        }
        for path in [
            "/",
            "/lib",
            "/etc/file",
            "/etc/file/below",
            "/usr/dangling",
            "/usr/dangling/below/it",
            "/usr/loop",
        ] {
            assert!(!open.lacks(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn magic_links_are_not_followed() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "host").unwrap();
        // A container root with a /proc in it, as if it were mounted there.
        let root = Root(tempfile::tempdir().unwrap());
        fs::create_dir(root.0.path().join("proc")).unwrap();
        let open = ContainerRoot::open(Path::new("/proc/self")).unwrap();
        assert!(open.open_file(Path::new("/root/etc/passwd")).is_err());
        assert!(open.open_file(Path::new("/cwd/Cargo.toml")).is_err());
    }

    /// Another thread keeps replacing a directory with a link that leads out while the path is
    /// looked up.
    #[test]
    fn a_directory_that_is_swapped_for_a_link_never_leads_out() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("file"), "outside").unwrap();
        let root = Root::new();
        let path = |name: &str| root.0.path().join(name);
        symlink(outside.path(), path("link")).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        let swap = || {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                fs::rename(path("etc"), path("away")).unwrap();
                fs::rename(path("link"), path("etc")).unwrap();
                fs::rename(path("etc"), path("link")).unwrap();
                fs::rename(path("away"), path("etc")).unwrap();
            }
        };
        let mut inside = 0;
        std::thread::scope(|scope| {
            scope.spawn(swap);
            for _ in 0..20_000 {
                match root.read("/etc/file") {
                    Ok(text) => {
                        assert_eq!(text, "inside");
                        inside += 1;
                    }
                    Err(error) => assert!(matches!(error, RootError::Lookup { .. }), "{error}"),
                }
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert!(inside > 0);
    }

    #[test]
    fn only_regular_files_are_opened() {
        let root = Root::new();
        assert!(matches!(
            root.read("/etc"),
            Err(RootError::NotRegular { .. })
        ));
        let mode = Mode::from_raw_mode(0o644);
        let fifo = root.0.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, fifo, FileType::Fifo, mode, 0).unwrap();
        assert!(matches!(
            root.read("/fifo"),
            Err(RootError::NotRegular { .. })
        ));
        root.link("a", "b");
        root.link("b", "a");
        assert!(matches!(root.read("/a"), Err(RootError::Lookup { .. })));
    }

    #[test]
    fn the_host_s_root_is_no_container_s() {
        assert!(matches!(
            ContainerRoot::open(Path::new("/")),
            Err(RootError::HostRoot { .. })
        ));
        assert!(matches!(
            ContainerRoot::open(Path::new("/..")),
            Err(RootError::HostRoot { .. })
        ));
        let dir = tempfile::tempdir().unwrap();
        symlink("/", dir.path().join("r")).unwrap();
        assert!(matches!(
            ContainerRoot::open(&dir.path().join("r")),
            Err(RootError::HostRoot { .. })
        ));
        assert!(matches!(
            ContainerRoot::open(Path::new("/nonexistent")),
            Err(RootError::Open { .. })
        ));
    }

    #[test]
    fn a_way_through_links_is_resolved() {
        let root = Root::new();
        root.link("usr/lib", "lib64");
        root.link("/data", "usr/lib/x");
        root.link("../../etc", "usr/lib/rel");
        assert_eq!(root.resolve("/lib64/a.so", &[]).unwrap(), "/usr/lib/a.so");
        assert_eq!(root.resolve("/lib64/x/a.so", &[]).unwrap(), "/data/a.so");
        assert_eq!(root.resolve("/lib64/rel/a", &[]).unwrap(), "/etc/a");
        assert_eq!(root.resolve("/../../none/./a", &[]).unwrap(), "/none/a");
        assert_eq!(root.resolve("/", &[]).unwrap(), "/");
    }

    #[test]
    fn below_a_mount_nothing_is_looked_up() {
        let root = Root::new();
        root.link("/elsewhere", "usr/lib/x");
        assert_eq!(
            root.resolve("/usr/lib/x/a", &["/usr/lib"]).unwrap(),
            "/usr/lib/x/a"
        );
        assert_eq!(
            root.resolve("/usr/lib/x/a", &["/usr/lib/x/y"]).unwrap(),
            "/elsewhere/a"
        );
        root.link("/usr/lib/../q", "way");
        assert!(root.resolve("/way/a", &["/usr/lib"]).is_err());
        assert_eq!(root.resolve("/etc/file", &["/"]).unwrap(), "/etc/file");
    }

    #[test]
    fn loops_and_endless_ways_end() {
        let root = Root::new();
        root.link("b", "a");
        root.link("a", "b");
        assert!(root.resolve("/a/x", &[]).is_err());
        root.link("s/s", "s");
        assert!(root.resolve("/s", &[]).is_err());
    }
}
