//! The root file system of a container, mostly of one that is not running yet. Files in it are opened by openat2(2)
//! with RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS, so no link and no `..` leads out of it. Only regular
//! files are read.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{Context, Result, bail};
use crate::fs::list::each_name;
use crate::fs::open::{
    MAX_LINKS, PATH_MAX, is_mount_root, open_in_root, open_resolved, reversed_components,
};
use rustix::fs::{
    FileType, Mode, OFlags, ResolveFlags, Stat, StatVfsMountFlags, fstat, fstatvfs, openat,
    readlinkat, stat,
};
use rustix::io::Errno;

/// Limit for the components of one path that are left to walk, with links expanded; PATH_MAX allows half as many.
const MAX_COMPONENTS: usize = 4096;

/// Limit for the components that are looked up with one system call.
const MAX_COMPONENTS_AT_ONCE: usize = 32;

/// Limit for the components that are looked up in one root, for all paths together. A container has a few dozen mounts,
/// and links that lead up and down again could turn each into a hundred thousand lookups.
const MAX_LOOKUPS: usize = 50_000;

/// A file in a container's root that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("looking up {0:?} in the container's root")]
    Lookup(PathBuf, #[source] Errno),
    #[error("{0:?} in the container is not a regular file")]
    NotRegular(PathBuf),
}

impl FileError {
    /// Returns whether the file does not exist.
    pub fn is_absent(&self) -> bool {
        matches!(self, FileError::Lookup(_, Errno::NOENT | Errno::NOTDIR))
    }

    /// Returns whether another mount is on the path.
    pub fn is_behind_mount(&self) -> bool {
        matches!(self, FileError::Lookup(_, Errno::XDEV))
    }
}

#[derive(Debug)]
pub struct ContainerRoot {
    fd: OwnedFd,
    /// Flags for walking a path. Before the runtime has mounted anything, an existing mount is not part of the root
    /// file system; afterwards, the mounts of the configuration are on the path.
    step: ResolveFlags,
    /// Flags for opening a file to read. Once the configuration's mounts are in place, files on them are not from the
    /// image, may be unreadable in the container, and may be on a file system that never answers.
    files: ResolveFlags,
    lookups_left: Cell<usize>,
}

impl ContainerRoot {
    /// Opens the root that a configuration names. The engine chose that path, not the image. Fails for the host's own
    /// root.
    pub fn open(path: &Path) -> Result<Self> {
        let fd = open_root(path, || rustix::fs::open(path, ROOT, Mode::empty()), || stat("/"))?;
        Ok(ContainerRoot::new(fd, ResolveFlags::NO_XDEV, ResolveFlags::empty()))
    }

    /// Like [`ContainerRoot::open`], after the runtime has mounted it. `path` is relative to the root directory
    /// `above`.
    pub fn open_below(above: &OwnedFd, path: &Path) -> Result<Self> {
        let fd = open_root(
            path,
            || open_in_root(above, path, ROOT, ResolveFlags::empty()),
            || fstat(above),
        )?;
        if !is_mount_root(&fd).with_context(|| open_context(path))? {
            bail!(
                "the container's root {path:?} is not a mount in the container's mount namespace, so files created there would not belong to the container; call this hook as createRuntime or prestart"
            );
        }
        Ok(ContainerRoot::new(fd, ResolveFlags::empty(), ResolveFlags::NO_XDEV))
    }

    /// Wraps the root directory of a running process. Its mounts are part of the tree and may never answer.
    pub fn from_process(fd: OwnedFd) -> Self {
        ContainerRoot::new(fd, ResolveFlags::empty(), ResolveFlags::empty())
    }

    fn new(fd: OwnedFd, step: ResolveFlags, files: ResolveFlags) -> Self {
        ContainerRoot { fd, step, files, lookups_left: Cell::new(MAX_LOOKUPS) }
    }

    pub fn find(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.lookup(path, ResolveFlags::empty())
    }

    /// Returns whether the root is an empty directory. Returns false if it cannot be read.
    pub fn is_empty(&self) -> bool {
        let mut is_empty = true;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listed = openat(&self.fd, ".", flags, Mode::empty()).and_then(|dir| {
            each_name(dir, &mut |_| {
                is_empty = false;
                false
            })
        });
        listed.is_ok() && is_empty
    }

    /// Returns whether the file system is read-only, as an image is without a writable layer.
    pub fn is_read_only(&self) -> bool {
        let mount = fstatvfs(&self.fd);
        mount.is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::RDONLY))
    }

    /// Returns whether nothing exists at a path. A dangling link exists, and an entry that cannot be examined counts as
    /// existing.
    pub fn is_missing(&self, path: &Path) -> bool {
        let mut current = path;
        loop {
            match self.find(current) {
                Err(Errno::NOENT) => {}
                // The parent exists, so the next name is missing or a dangling link.
                Ok(parent) if current != path => return is_missing_entry(&parent, path, current),
                _ => return false,
            }
            match current.parent() {
                Some(parent) => current = parent,
                None => return false,
            }
        }
    }

    /// Like [`ContainerRoot::find`], but fails with EXDEV if another mount is on the path.
    pub fn find_on_own_mount(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.lookup(path, ResolveFlags::NO_XDEV)
    }

    /// Opens a regular file for reading and returns its size in bytes. Checks the file type first, since merely opening
    /// a device or a FIFO can have side effects.
    pub fn open_file(&self, path: &Path) -> Result<(File, u64), FileError> {
        let failed = |error| FileError::Lookup(path.to_owned(), error);
        let fd = self.lookup(path, self.files).map_err(failed)?;
        let stat = fstat(&fd).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(FileError::NotRegular(path.to_owned()));
        }
        // Reopens the same file for reading (proc(5), /proc/self/fd).
        let fd_path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::open(fd_path, flags, Mode::empty()).map_err(failed)?;
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        Ok((File::from(file), size))
    }

    /// Returns the path of `pending` below `dir`, which is `current`, if no link and no `..` is on it. Takes one system
    /// call instead of three for each component.
    ///
    /// Uses at most as many lookups as walking would. A failed attempt is free: there is one for each path and for each
    /// link, and walking these uses a lookup.
    fn find_without_links(
        &self,
        dir: BorrowedFd<'_>,
        current: &ContainerPath,
        pending: &[OsString],
        is_mounted: &dyn Fn(&ContainerPath) -> bool,
    ) -> Option<ContainerPath> {
        if pending.is_empty() || pending.len() > MAX_COMPONENTS_AT_ONCE {
            return None;
        }
        let (mut found, mut visible) = (current.clone(), PathBuf::new());
        let mut is_blind = false;
        for name in pending.iter().rev() {
            if name == ".." || name.as_bytes().contains(&0) {
                return None;
            }
            found.push(name);
            if !is_blind {
                visible.push(name);
                is_blind = is_mounted(&found);
            }
        }
        if found.0.len() > PATH_MAX {
            return None;
        }
        let flags = self.step | ResolveFlags::NO_SYMLINKS;
        let lookups = match open_resolved(dir, &visible, OFlags::PATH, flags) {
            Ok(_) => visible.iter().count(),
            Err(Errno::NOENT | Errno::NOTDIR) => 1,
            Err(_) => return None,
        };
        self.lookups_left.set(self.lookups_left.get().checked_sub(lookups)?);
        Some(found)
    }

    fn lookup(&self, path: &Path, more: ResolveFlags) -> Result<OwnedFd, Errno> {
        open_in_root(&self.fd, path, OFlags::PATH, more)
    }
}

/// A path in a root: its names, each preceded by a NUL. NUL sorts before every byte of a name, so that descendants of a
/// path follow it directly. Each path is a single allocation, since a configuration can have a hundred thousand.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContainerPath(Vec<u8>);

impl ContainerPath {
    /// Follows every link of a path and returns the target. Without a root, for an image that is not mounted yet, no
    /// component is a link. `mounted` returns whether the runtime will mount something at a path. Nothing is looked up
    /// below such a path, since its present content will be hidden. Fails for loops, for `..` below such a mount, and
    /// for a path that crosses another mount.
    pub fn resolve(
        root: Option<&ContainerRoot>,
        path: &Path,
        is_mounted: &dyn Fn(&ContainerPath) -> bool,
    ) -> Result<ContainerPath> {
        let walked = ContainerPath::walk(root, path, is_mounted);
        walked.with_context(|| {
            format!("looking up {:?} in the container's root", truncate_for_message(path))
        })
    }

    fn walk(
        root: Option<&ContainerRoot>,
        path: &Path,
        is_mounted: &dyn Fn(&ContainerPath) -> bool,
    ) -> Result<ContainerPath, Errno> {
        if path.as_os_str().len() > PATH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let mut links = 0;
        let mut pending = reversed_components(path.as_os_str());
        let mut current = ContainerPath::default();
        // One descriptor per component of `current`. Empty once no further component can be looked up.
        let mut parents: Vec<OwnedFd> = Vec::new();
        let mut is_blind = root.is_none() || is_mounted(&current);
        if let Some(root) = root.filter(|_| !is_blind)
            && let Some(found) =
                root.find_without_links(root.as_fd(), &current, &pending, is_mounted)
        {
            return Ok(found);
        }
        while let Some(name) = pending.pop() {
            if name == ".." {
                if is_blind {
                    return Err(Errno::XDEV);
                }
                current.pop();
                parents.pop();
                continue;
            }
            if current.0.len() + name.len() > PATH_MAX {
                return Err(Errno::NAMETOOLONG);
            }
            // A NUL would split it into two names.
            if name.as_bytes().contains(&0) {
                return Err(Errno::INVAL);
            }
            let Some(root) = root.filter(|_| !is_blind) else {
                current.push(&name);
                continue;
            };
            let dir = parents.last().map_or(root.fd.as_fd(), AsFd::as_fd);
            let remaining = root.lookups_left.get().checked_sub(1).ok_or(Errno::LOOP)?;
            root.lookups_left.set(remaining);
            match open_component(dir, &name, root.step)? {
                Component::Absent => {
                    current.push(&name);
                    is_blind = true;
                }
                Component::Link(target) => {
                    links += 1;
                    if links > MAX_LINKS || pending.len() > MAX_COMPONENTS {
                        return Err(Errno::LOOP);
                    }
                    if target.as_bytes().starts_with(b"/") {
                        current = ContainerPath::default();
                        parents.clear();
                        is_blind = is_mounted(&current);
                    }
                    pending.extend(reversed_components(&target));
                    let dir = parents.last().map_or(root.as_fd(), AsFd::as_fd);
                    if !is_blind
                        && let Some(found) =
                            root.find_without_links(dir, &current, &pending, is_mounted)
                    {
                        return Ok(found);
                    }
                }
                Component::Other(fd) => {
                    current.push(&name);
                    parents.push(fd);
                    is_blind = is_mounted(&current);
                }
            }
        }
        Ok(current)
    }

    fn push(&mut self, name: &OsStr) {
        self.0.push(0);
        self.0.extend(name.as_bytes());
    }

    fn pop(&mut self) {
        let end = self.0.iter().rposition(|byte| *byte == 0);
        self.0.truncate(end.unwrap_or_default());
    }

    /// Returns the parent directory. The root is its own parent.
    pub fn parent(&self) -> ContainerPath {
        let mut parent = self.clone();
        parent.pop();
        parent
    }

    /// Returns the encoded path, which is empty for the root.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Iterates over the ancestors and the path itself, starting with the root.
    pub fn prefixes(&self) -> impl Iterator<Item = &[u8]> {
        (0..=self.0.len())
            .filter(|end| self.0.get(*end).is_none_or(|byte| *byte == 0))
            .map(|end| &self.0[..end])
    }

    pub fn to_path(&self) -> PathBuf {
        let names = self.0.split(|byte| *byte == 0).skip(1);
        Path::new("/").join(names.map(OsStr::from_bytes).collect::<PathBuf>())
    }
}

impl std::borrow::Borrow<[u8]> for ContainerPath {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

/// Returns whether the directory lacks the component that follows `ancestor` in `path`.
fn is_missing_entry(dir: &OwnedFd, path: &Path, ancestor: &Path) -> bool {
    let relative = path.strip_prefix(ancestor).ok();
    let Some(name) = relative.and_then(|relative| relative.components().next()) else {
        return false;
    };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let result = openat(dir, name.as_os_str(), flags, Mode::empty());
    matches!(result, Err(Errno::NOENT))
}

fn open_context(path: &Path) -> String {
    format!("opening the container's root {:?}", truncate_for_message(path))
}

/// Truncates a path for a message to PATH_MAX bytes.
fn truncate_for_message(path: &Path) -> &Path {
    let bytes = path.as_os_str().as_bytes();
    Path::new(OsStr::from_bytes(&bytes[..bytes.len().min(PATH_MAX)]))
}

impl AsFd for ContainerRoot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Flags to open a root as a starting point for lookups.
const ROOT: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a root through `open`. Fails for the host's own root.
fn open_root(
    path: &Path,
    open: impl FnOnce() -> Result<OwnedFd, Errno>,
    host: impl FnOnce() -> Result<Stat, Errno>,
) -> Result<OwnedFd> {
    let opened = || {
        if path.as_os_str().len() > PATH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let fd = open()?;
        let (root_stat, host) = (fstat(&fd)?, host()?);
        Ok((fd, (root_stat.st_dev, root_stat.st_ino) == (host.st_dev, host.st_ino)))
    };
    let (fd, is_host) = opened().with_context(|| open_context(path))?;
    if is_host {
        bail!("the container's root {path:?} is the host's own: nothing is mounted there");
    }
    Ok(fd)
}

enum Component {
    Absent,
    Link(OsString),
    Other(OwnedFd),
}

fn open_component(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    step: ResolveFlags,
) -> Result<Component, Errno> {
    let fd = match open_resolved(dir, name, OFlags::PATH | OFlags::NOFOLLOW, step) {
        Ok(fd) => fd,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Component::Absent),
        Err(error) => return Err(error),
    };
    if FileType::from_raw_mode(fstat(&fd)?.st_mode) != FileType::Symlink {
        return Ok(Component::Other(fd));
    }
    let target = readlinkat(&fd, "", Vec::new())?;
    Ok(Component::Link(OsStr::from_bytes(target.as_bytes()).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onload_test_tree::Tree;
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    struct Root(Tree);

    impl Root {
        fn new() -> Self {
            let root = Root(Tree::new());
            root.0.directory("usr/lib").file("etc/file", "inside");
            root
        }

        fn link(&self, target: &str, name: &str) {
            self.0.link(name, target);
        }

        fn open(&self) -> ContainerRoot {
            ContainerRoot::open(self.0.root()).unwrap()
        }

        fn read(&self, path: &str) -> Result<String, FileError> {
            let mut text = String::new();
            self.open().open_file(Path::new(path))?.0.read_to_string(&mut text).unwrap();
            Ok(text)
        }

        fn resolve(&self, path: &str, mounted: &[&str]) -> Result<String> {
            let covered = |at: &ContainerPath| mounted.contains(&at.to_path().to_str().unwrap());
            let place = ContainerPath::resolve(Some(&self.open()), Path::new(path), &covered)?;
            Ok(place.to_path().to_str().unwrap().to_owned())
        }
    }

    #[test]
    fn links_stay_inside() {
        let root = Root::new();
        root.link("/etc", "abs");
        root.link("../../../../../../etc", "usr/up");
        for path in ["/etc/file", "etc/file", "/abs/file", "/usr/up/file", "/../../etc/file"] {
            assert_eq!(root.read(path).unwrap(), "inside", "{path}");
        }
        root.link("/etc/passwd", "passwd");
        assert!(root.read("/passwd").unwrap_err().is_absent(), "the host has one");
    }

    #[test]
    fn only_a_place_with_nothing_at_it_is_lacked() {
        let root = Root::new();
        root.link("/nowhere", "usr/dangling");
        root.link("loop", "usr/loop");
        root.link("usr/lib", "lib");
        let open = root.open();
        for path in ["/usr/lib64", "/lib/x/y", "/nowhere", "/a/b/c"] {
            assert!(open.is_missing(Path::new(path)), "{path}");
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
            assert!(!open.is_missing(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn a_root_with_anything_in_it_is_not_empty() {
        let dir = tempfile::tempdir().unwrap();
        let root = ContainerRoot::open(dir.path()).unwrap();
        assert!(root.is_empty());
        symlink("nowhere", dir.path().join(".hidden")).unwrap();
        assert!(!root.is_empty());
    }

    #[test]
    fn magic_links_are_not_followed() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "host").unwrap();
        // A container root with a /proc in it, as if it were mounted there.
        let root = Root(Tree::new());
        root.0.directory("proc");
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
        let path = |name: &str| root.0.path(name);
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
                    Err(error) => assert!(matches!(error, FileError::Lookup(..)), "{error}"),
                }
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert!(inside > 0);
    }

    #[test]
    fn only_regular_files_are_opened() {
        let root = Root::new();
        assert!(matches!(root.read("/etc"), Err(FileError::NotRegular(_))));
        let mode = Mode::from_raw_mode(0o644);
        let fifo = root.0.path("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, fifo, FileType::Fifo, mode, 0).unwrap();
        assert!(matches!(root.read("/fifo"), Err(FileError::NotRegular(_))));
        root.link("a", "b");
        root.link("b", "a");
        assert!(matches!(root.read("/a"), Err(FileError::Lookup(..))));
    }

    #[test]
    fn the_host_s_root_is_no_container_s() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("r");
        symlink("/", &link).unwrap();
        for path in [Path::new("/"), Path::new("/.."), &link] {
            let refused = ContainerRoot::open(path).unwrap_err().to_string();
            assert!(refused.contains("is the host's own"), "{refused}");
        }
        let absent = ContainerRoot::open(Path::new("/nonexistent")).unwrap_err();
        let sentence = "opening the container's root \"/nonexistent\"";
        assert_eq!(absent.to_string(), sentence);
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
        assert_eq!(root.resolve("/usr/lib/x/a", &["/usr/lib"]).unwrap(), "/usr/lib/x/a");
        assert_eq!(root.resolve("/usr/lib/x/a", &["/usr/lib/x/y"]).unwrap(), "/elsewhere/a");
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

    #[test]
    fn many_mounts_on_missing_directories_do_not_use_up_the_lookups() {
        let root = Root::new();
        let missing = PathBuf::from("/usr/lib/".to_owned() + &"missing/".repeat(30));
        let existing = Path::new("/usr/lib");
        let open = root.open();
        let resolve = |path: &Path| ContainerPath::resolve(Some(&open), path, &|_| false);
        for _ in 0..MAX_LOOKUPS - 3 {
            resolve(&missing).unwrap();
        }
        assert_eq!(resolve(existing).unwrap().to_path(), existing);
        assert!(resolve(existing).is_err(), "one lookup is left for two directories");
    }
}
