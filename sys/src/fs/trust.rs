//! Trusted files of the host: every directory on the path, every symbolic link and the file itself belong to root, and
//! no other user can write to them.
//!
//! In the user namespace of a rootless engine other users may create entries in a directory on the path, if it is
//! sticky. Only their entries are rejected.
//!
//! Each component is opened relative to its parent's descriptor and checked by fstat(2), and the file is read through
//! the checked descriptor, so that a path is looked up only once.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, openat, readlinkat};
use rustix::io::Errno;

use super::list::each_name;
use super::open::{MAX_LINKS, is_mount_root, reversed_components};
use super::regular::read_sized;
use crate::error::{Context as _, Error, TypedError, bail, error};

/// A file that is not trusted or cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("opening {path:?}")]
    Open { path: PathBuf, source: io::Error },
    #[error(
        "{path:?} belongs to user {owner}; it and each directory above it must belong to root: `chown root:root` it"
    )]
    Owner { path: PathBuf, owner: u32 },
    #[error("{path:?} has mode {mode:04o}, so others can change it; `chmod go-w` it")]
    Writable { path: PathBuf, mode: u32 },
    #[error(transparent)]
    Other(#[from] Error),
}

impl TypedError for TrustError {}

/// S_ISVTX: in a directory, only an entry's owner and the directory's may rename or remove it (inode(7)).
const STICKY: u32 = 0o1000;

const REGULAR: &str = "regular file";
const DIRECTORY: &str = "directory";

fn wrong_type_error(path: &Path, expected: &str) -> TrustError {
    error!("{path:?} is not a {expected}").into()
}

impl TrustError {
    /// Returns whether the file or a directory above it does not exist.
    pub fn is_absent(&self) -> bool {
        matches!(self, TrustError::Open { source: error, .. } if error.kind() == io::ErrorKind::NotFound)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedOwners {
    users: Vec<u32>,
    /// The owners whose entries are trusted in a sticky, world-writable directory of a trusted owner, where no other
    /// user can replace them. rootlesskit mounts such a tmpfs over /etc and /run and fills it with links.
    in_sticky: Vec<u32>,
}

impl TrustedOwners {
    /// Trusts only root of the initial user namespace.
    pub fn root() -> Self {
        TrustedOwners::from_users(&[0])
    }

    /// Returns the owners to trust in another user namespace. There, a process cannot distinguish root from other
    /// unmapped users: the kernel shows all of them as the overflow user (user_namespaces(7)). The process trusts that
    /// user and the user `caller` who started it, whose privileges it does not exceed.
    pub fn rootless(caller: u32, overflow: u32) -> Self {
        TrustedOwners {
            users: vec![0, caller, overflow],
            // The overflow user is left out: it may be any unmapped user, even a container's user with the same ID.
            in_sticky: vec![0, caller],
        }
    }

    /// Trusts the given users, for trees that represent a host.
    pub fn from_users(users: &[u32]) -> Self {
        TrustedOwners { users: users.to_vec(), in_sticky: Vec::new() }
    }

    /// Returns whether this is a sticky directory of a trusted owner, in which the owner of an entry shows who created
    /// it.
    fn is_trusted_sticky_dir(&self, dir: &Stat) -> bool {
        let mode = dir.st_mode & 0o7777;
        mode & 0o022 != 0 && mode & STICKY != 0 && self.in_sticky.contains(&dir.st_uid)
    }
}

/// A tree in which paths are looked up, and the owners that are trusted there.
#[derive(Debug)]
pub struct TrustedTree {
    root: OwnedFd,
    /// Whether the root has been checked, which is necessary only once for all paths.
    is_checked: AtomicBool,
    owners: TrustedOwners,
}

#[derive(Debug)]
pub struct TrustedFile {
    pub file: File,
    pub path: PathBuf,
    stat: Stat,
}

impl TrustedFile {
    /// Returns the file's size in bytes when it was opened.
    pub fn size(&self) -> u64 {
        u64::try_from(self.stat.st_size).unwrap_or(u64::MAX)
    }

    pub fn is_executable(&self) -> bool {
        self.stat.st_mode & 0o111 != 0
    }

    /// Reads the file. Fails if it is longer than `limit` bytes.
    pub fn read(self, limit: u64) -> Result<Vec<u8>, TrustError> {
        let (path, size) = (&self.path, self.size());
        let in_memory = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut bytes = Vec::new();
        if size <= limit {
            bytes = read_sized(&self.file, in_memory(size), in_memory(limit + 1))
                .with_context(|| format!("reading {path:?}"))?;
        }
        if size.max(bytes.len() as u64) > limit {
            bail!("{path:?} is larger than {limit} bytes");
        }
        Ok(bytes)
    }
}

impl TrustedTree {
    pub fn for_host(owners: TrustedOwners) -> Result<Self, TrustError> {
        TrustedTree::for_tree(Path::new("/"), owners)
    }

    /// Opens a tree that represents a host. Absolute links in it are relative to its root.
    pub fn for_tree(root: &Path, owners: TrustedOwners) -> Result<Self, TrustError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(root, flags, Mode::empty())
            .map_err(|error| open_error(root.to_owned(), error))?;
        Ok(TrustedTree { root, is_checked: AtomicBool::new(false), owners })
    }

    pub fn open(&self, path: &Path) -> Result<TrustedFile, TrustError> {
        Ok(self.open_resolved(path)?.0)
    }

    /// Opens a file and returns its path without links.
    pub fn open_resolved(&self, path: &Path) -> Result<(TrustedFile, PathBuf), TrustError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let (fd, stat, resolved) = self.walk(path, flags)?;
        if file_type(&stat) != FileType::RegularFile {
            return Err(wrong_type_error(path, REGULAR));
        }
        let opened = TrustedFile { file: File::from(fd), path: path.to_owned(), stat };
        Ok((opened, resolved))
    }

    /// Checks a regular file without opening it for reading. Returns its device and inode.
    pub fn check(&self, path: &Path) -> Result<(u64, u64), TrustError> {
        let (_, stat, _) = self.walk(path, OFlags::PATH)?;
        if file_type(&stat) != FileType::RegularFile {
            return Err(wrong_type_error(path, REGULAR));
        }
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Returns a path with all links resolved.
    pub fn resolve(&self, path: &Path) -> Result<PathBuf, TrustError> {
        Ok(self.walk(path, OFlags::PATH)?.2)
    }

    pub fn open_dir(&self, path: &Path) -> Result<TrustedDir<'_>, TrustError> {
        let (fd, stat, _) = self.walk(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        if file_type(&stat) != FileType::Directory {
            return Err(wrong_type_error(path, DIRECTORY));
        }
        Ok(TrustedDir { fd, path: path.to_owned(), owners: &self.owners })
    }

    /// Opens a regular file for appending, or creates it with mode 0600. Fails if the last component is a symbolic
    /// link; links before it are followed. Does not block.
    pub fn append(&self, path: &Path) -> Result<TrustedFile, TrustError> {
        match (path.parent(), path.file_name()) {
            (Some(dir), Some(name)) => self.open_dir(dir)?.append(name),
            _ => Err(wrong_type_error(path, REGULAR)),
        }
    }

    /// Walks a path, checking each component, and opens the last one with `flags`. The third value is the path without
    /// links.
    fn walk(&self, path: &Path, flags: OFlags) -> Result<(OwnedFd, Stat, PathBuf), TrustError> {
        let mut links = 0;
        let mut pending = reversed_components(path.as_os_str());
        // The parent directories, so that `..` needs no lookup, and whether other users may create entries in them.
        let mut parents: Vec<(OwnedFd, bool)> = Vec::new();
        let mut current = PathBuf::from("/");
        if !self.is_checked.load(Ordering::Relaxed) {
            check_owner_and_mode(&self.owners, &current, &stat_of(&self.root, &current)?)?;
            self.is_checked.store(true, Ordering::Relaxed);
        }
        while let Some(name) = pending.pop() {
            if name == ".." {
                parents.pop();
                current.pop();
                continue;
            }
            let (dir, is_shared) = match parents.last() {
                Some((fd, is_shared)) => (fd.as_fd(), *is_shared),
                None => (self.root.as_fd(), false),
            };
            current.push(&name);
            let last = pending.is_empty();
            let opened = match open_component(dir, &name, if last { flags } else { OFlags::PATH }) {
                Err(Errno::LOOP) => open_component(dir, &name, OFlags::PATH),
                opened => opened,
            };
            let fd = opened.map_err(|error| open_error(current.clone(), error))?;
            let stat = stat_of(&fd, &current)?;
            // A mount is trusted, since only a privileged user can mount there.
            if is_shared && !is_mount_root(&fd).unwrap_or(false) {
                check_owner(&self.owners.in_sticky, &current, &stat)?;
            }
            match file_type(&stat) {
                FileType::Symlink => {
                    links += 1;
                    if links > MAX_LINKS {
                        bail!("{path:?}: more than {MAX_LINKS} symbolic links");
                    }
                    check_owner(&self.owners.users, &current, &stat)?;
                    let target = readlinkat(&fd, "", Vec::new())
                        .map_err(|error| open_error(current.clone(), error))?;
                    current.pop();
                    if target.as_bytes().starts_with(b"/") {
                        parents.clear();
                        current = PathBuf::from("/");
                    }
                    pending.extend(reversed_components(OsStr::from_bytes(target.as_bytes())));
                }
                FileType::Directory if !last && self.owners.is_trusted_sticky_dir(&stat) => {
                    parents.push((fd, true));
                }
                kind => {
                    check_owner_and_mode(&self.owners, &current, &stat)?;
                    if last {
                        return Ok((fd, stat, current));
                    }
                    if kind != FileType::Directory {
                        return Err(wrong_type_error(&current, DIRECTORY));
                    }
                    parents.push((fd, false));
                }
            }
        }
        // The path ended at a directory that was already checked: `/`, or `..` after a link.
        let dir = parents.last().map_or(self.root.as_fd(), |(fd, _)| fd.as_fd());
        let fd = open_component(dir, OsStr::new("."), flags)
            .map_err(|error| open_error(current.clone(), error))?;
        let stat = stat_of(&fd, &current)?;
        check_owner_and_mode(&self.owners, &current, &stat)?;
        Ok((fd, stat, current))
    }
}

#[derive(Debug)]
pub struct TrustedDir<'a> {
    fd: OwnedFd,
    path: PathBuf,
    owners: &'a TrustedOwners,
}

impl AsFd for TrustedDir<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<TrustedDir<'_>> for OwnedFd {
    fn from(dir: TrustedDir<'_>) -> Self {
        dir.fd
    }
}

impl TrustedDir<'_> {
    /// Returns the names in the directory that `is_wanted` accepts, sorted. Fails if there are more than `limit`.
    pub fn list_names(
        &self,
        is_wanted: impl Fn(&[u8]) -> bool,
        limit: usize,
    ) -> Result<Vec<OsString>, TrustError> {
        let reading = || format!("reading {:?}", self.path);
        let mut names = Vec::new();
        let listed = each_name(&self.fd, &mut |name| {
            if is_wanted(name) {
                names.push(OsStr::from_bytes(name).to_owned());
            }
            names.len() <= limit
        });
        listed.with_context(reading)?;
        if names.len() > limit {
            bail!("{}: more than {limit} matching files", reading());
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Opens a regular file in the directory. Fails for a symbolic link.
    pub fn open(&self, name: &OsStr) -> Result<TrustedFile, TrustError> {
        self.open_regular(name, OFlags::RDONLY)
    }

    /// Opens a regular file in the directory for appending; see [`TrustedTree::append`].
    fn append(&self, name: &OsStr) -> Result<TrustedFile, TrustError> {
        let file = self.open_regular(name, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)?;
        // The file could be a hard link to a file that another program uses.
        if file.stat.st_nlink > 1 {
            let path = file.path;
            bail!("{path:?} has several hard links; replace it with a separate copy");
        }
        Ok(file)
    }

    fn open_regular(&self, name: &OsStr, flags: OFlags) -> Result<TrustedFile, TrustError> {
        let path = self.path.join(name);
        let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = open_component(self.fd.as_fd(), name, flags).map_err(|error| match error {
            // LOOP is a symbolic link. For writing, ISDIR is a directory and NXIO a pipe or socket without a reader.
            Errno::LOOP | Errno::ISDIR | Errno::NXIO => wrong_type_error(&path, REGULAR),
            error => open_error(path.clone(), error),
        })?;
        let stat = stat_of(&fd, &path)?;
        if file_type(&stat) != FileType::RegularFile {
            return Err(wrong_type_error(&path, REGULAR));
        }
        check_owner_and_mode(self.owners, &path, &stat)?;
        Ok(TrustedFile { file: File::from(fd), path, stat })
    }
}

/// Opens one component. A new file is accessible only to its owner.
fn open_component(dir: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mode = Mode::RUSR | Mode::WUSR;
    openat(dir, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode)
}

fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn stat_of(fd: impl AsFd, path: &Path) -> Result<Stat, TrustError> {
    fstat(fd).map_err(|error| open_error(path.to_owned(), error))
}

fn open_error(path: PathBuf, error: Errno) -> TrustError {
    TrustError::Open { path, source: error.into() }
}

fn check_owner_and_mode(
    owners: &TrustedOwners,
    path: &Path,
    stat: &Stat,
) -> Result<(), TrustError> {
    check_owner(&owners.users, path, stat)?;
    let mode = stat.st_mode & 0o7777;
    if mode & 0o022 != 0 {
        return Err(TrustError::Writable { path: path.to_owned(), mode });
    }
    Ok(())
}

fn check_owner(users: &[u32], path: &Path, stat: &Stat) -> Result<(), TrustError> {
    if users.contains(&stat.st_uid) {
        return Ok(());
    }
    Err(TrustError::Owner { path: path.to_owned(), owner: stat.st_uid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use onload_test_tree::Tree;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, lchown, symlink};

    /// A tree whose owner, the user who runs the tests, takes root's place.
    struct OwnedTree(Tree);

    impl OwnedTree {
        fn new() -> Self {
            let tree = OwnedTree(Tree::new());
            for dir in ["etc/cdi", "run"] {
                tree.0.directory(dir);
            }
            tree.file("etc/config.toml", 0o644);
            tree
        }

        fn path(&self, path: &str) -> PathBuf {
            self.0.path(path)
        }

        fn chmod(&self, path: &str, mode: u32) {
            self.0.chmod(path, mode);
        }

        fn file(&self, path: &str, mode: u32) {
            self.0.file(path, "text").chmod(path, mode);
        }

        fn trusted(&self) -> TrustedTree {
            let owner = fs::metadata(self.0.root()).unwrap().uid();
            TrustedTree::for_tree(self.0.root(), TrustedOwners::from_users(&[owner])).unwrap()
        }

        fn read(&self, path: &str) -> Result<Vec<u8>, TrustError> {
            self.trusted().open(Path::new(path))?.read(100)
        }

        fn refusal(&self, path: &str) -> String {
            self.read(path).unwrap_err().to_string()
        }
    }

    #[test]
    fn a_file_that_only_its_owner_writes_is_read() {
        let tree = OwnedTree::new();
        assert_eq!(tree.read("/etc/config.toml").unwrap(), b"text");
        assert_eq!(tree.read("/etc/../etc/./cdi/../config.toml").unwrap(), b"text");
    }

    #[test]
    fn what_is_absent_is_told_from_what_is_wrong() {
        let tree = OwnedTree::new();
        assert!(tree.read("/etc/none").unwrap_err().is_absent());
        assert!(tree.read("/none/none").unwrap_err().is_absent());
        tree.chmod("etc", 0o777);
        assert!(!tree.read("/etc/none").unwrap_err().is_absent());
    }

    #[test]
    fn a_file_or_directory_that_others_can_write_is_refused_at_every_level() {
        for path in ["", "etc", "etc/config.toml"] {
            for mode in [0o775, 0o757, 0o1777] {
                let tree = OwnedTree::new();
                tree.chmod(path, mode);
                let message = tree.refusal("/etc/config.toml");
                assert!(message.contains("others can change it"), "{path} {mode:o}: {message}");
            }
        }
    }

    #[test]
    fn a_file_of_somebody_else_is_refused_at_every_level() {
        let tree = OwnedTree::new();
        let trusted =
            TrustedTree::for_tree(tree.0.root(), TrustedOwners::from_users(&[4_000_000])).unwrap();
        let message = trusted.open(Path::new("/etc/config.toml")).unwrap_err().to_string();
        assert!(message.contains("\"/\" belongs to user"), "{message}");
    }

    #[test]
    fn links_are_followed_inside_the_tree_and_judged_on_the_way() {
        let tree = OwnedTree::new();
        symlink("/etc", tree.path("var/absolute")).unwrap();
        symlink("../etc/cdi/..", tree.path("var/relative")).unwrap();
        symlink("config.toml", tree.path("etc/link")).unwrap();
        for path in ["/var/absolute/config.toml", "/var/relative/config.toml", "/etc/link"] {
            assert_eq!(tree.read(path).unwrap(), b"text", "{path}");
            let resolved = tree.trusted().resolve(Path::new(path)).unwrap();
            assert_eq!(resolved, Path::new("/etc/config.toml"), "{path}");
        }
        tree.chmod("var", 0o777);
        assert!(tree.refusal("/var/absolute/config.toml").contains("\"/var\" has mode"));
        tree.chmod("var", 0o755);
        tree.chmod("etc/cdi", 0o775);
        assert!(tree.refusal("/var/relative/config.toml").contains("\"/etc/cdi\" has mode"));
    }

    #[test]
    fn a_link_that_leads_to_a_writable_directory_is_refused() {
        let tree = OwnedTree::new();
        fs::create_dir(tree.path("open")).unwrap();
        tree.chmod("open", 0o777);
        tree.file("open/config.toml", 0o644);
        symlink("/open", tree.path("etc/d")).unwrap();
        assert!(tree.refusal("/etc/d/config.toml").contains("\"/open\" has mode"));
    }

    /// The /etc that rootlesskit makes, except that no mount is below it.
    fn copied_up() -> OwnedTree {
        let tree = OwnedTree::new();
        tree.0.directory("etc/.ro1/onload-ctk");
        tree.file("etc/.ro1/onload-ctk/config.toml", 0o644);
        symlink(".ro1/onload-ctk", tree.path("etc/onload-ctk")).unwrap();
        tree.chmod("etc", 0o1777);
        tree
    }

    fn rootless(tree: &OwnedTree, path: &str) -> Result<Vec<u8>, TrustError> {
        let owner = fs::metadata(tree.0.root()).unwrap().uid();
        let owners = TrustedOwners::rootless(owner, 65534);
        let trusted = TrustedTree::for_tree(tree.0.root(), owners).unwrap();
        trusted.open(Path::new(path))?.read(100)
    }

    const CONFIG: &str = "/etc/onload-ctk/config.toml";

    #[test]
    fn only_a_rootless_engine_walks_through_a_sticky_directory_of_its_own() {
        let tree = copied_up();
        assert_eq!(rootless(&tree, CONFIG).unwrap(), b"text");
        assert_eq!(rootless(&tree, "/etc/.ro1/../onload-ctk/config.toml").unwrap(), b"text");
        assert!(rootless(&tree, "/etc/none").unwrap_err().is_absent());
        assert!(tree.refusal(CONFIG).contains("\"/etc\" has mode 1777"));
    }

    #[test]
    fn what_is_opened_in_the_end_is_writable_to_nobody_else_there_either() {
        let tree = copied_up();
        symlink("..", tree.path("etc/cdi/up")).unwrap();
        let owner = fs::metadata(tree.0.root()).unwrap().uid();
        let trusted =
            TrustedTree::for_tree(tree.0.root(), TrustedOwners::rootless(owner, 65534)).unwrap();
        for path in ["/etc", "/etc/cdi/up"] {
            let message = trusted.open_dir(Path::new(path)).unwrap_err().to_string();
            assert!(message.contains("\"/etc\" has mode 1777"), "{message}");
        }
        for (path, mode) in [
            ("etc", 0o777),
            ("etc/.ro1/onload-ctk", 0o777),
            ("etc/.ro1/onload-ctk/config.toml", 0o1666),
        ] {
            let tree = copied_up();
            tree.chmod(path, mode);
            let message = rootless(&tree, CONFIG).unwrap_err().to_string();
            assert!(message.contains("others can change it"), "{message}");
        }
    }

    #[test]
    fn what_a_stranger_made_in_a_sticky_directory_is_refused_and_not_taken_for_absent() {
        if !onload_test_needs::root("giving a file away") {
            return;
        }
        // The overflow user may be one of a container.
        for stranger in [1000, 65534] {
            for path in ["etc/onload-ctk", "etc/.ro1", "etc/config.toml"] {
                let tree = copied_up();
                lchown(tree.path(path), Some(stranger), None).unwrap();
                let asked = if path.ends_with("toml") { "/etc/config.toml" } else { CONFIG };
                let error = rootless(&tree, asked).unwrap_err();
                let says = format!("\"/{path}\" belongs to user {stranger}");
                assert!(error.to_string().contains(&says), "{error}");
                assert!(!error.is_absent());
            }
        }
        // Elsewhere the overflow user is how the host's root looks.
        let tree = copied_up();
        let give = |path: &str| lchown(tree.path(path), Some(65534), None).unwrap();
        give("etc/.ro1/onload-ctk");
        assert_eq!(rootless(&tree, CONFIG).unwrap(), b"text");
        // In such a directory of the host, the entries' owners cannot be told apart.
        give("etc");
        let message = rootless(&tree, CONFIG).unwrap_err().to_string();
        assert!(message.contains("\"/etc\" has mode 1777"), "{message}");
    }

    #[test]
    fn loops_end() {
        let tree = OwnedTree::new();
        symlink("b", tree.path("etc/a")).unwrap();
        symlink("a", tree.path("etc/b")).unwrap();
        assert!(tree.refusal("/etc/a").contains("more than 40 symbolic links"));
    }

    #[test]
    fn only_regular_files_of_a_real_size_are_read() {
        let tree = OwnedTree::new();
        assert!(tree.refusal("/etc/cdi").contains("not a regular file"));
        assert!(tree.refusal("/").contains("not a regular file"));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            tree.path("etc/fifo"),
            FileType::Fifo,
            Mode::from_raw_mode(0o644),
            0,
        )
        .unwrap();
        assert!(tree.refusal("/etc/fifo").contains("not a regular file"));
        fs::write(tree.path("etc/config.toml"), [b'x'; 101]).unwrap();
        assert!(tree.refusal("/etc/config.toml").contains("larger than 100 bytes"));
        let sparse = File::create(tree.path("etc/config.toml")).unwrap();
        sparse.set_len(10 << 30).unwrap();
        assert!(tree.refusal("/etc/config.toml").contains("larger than 100 bytes"));
    }

    #[test]
    fn a_file_in_the_way_is_no_directory() {
        let tree = OwnedTree::new();
        assert!(tree.refusal("/etc/config.toml/x").contains("not a directory"));
    }

    #[test]
    fn the_names_of_a_directory_are_sorted_and_counted() {
        let tree = OwnedTree::new();
        for name in ["b.json", "a.json", "c.yaml"] {
            tree.file(&format!("etc/cdi/{name}"), 0o644);
        }
        let trusted = tree.trusted();
        let dir = trusted.open_dir(Path::new("/etc/cdi")).unwrap();
        let json = |name: &[u8]| name.ends_with(b".json");
        assert_eq!(dir.list_names(json, 2).unwrap(), ["a.json", "b.json"]);
        assert!(
            crate::text::ErrorChain(&dir.list_names(json, 1).unwrap_err())
                .to_string()
                .contains("more than 1")
        );
        assert!(trusted.open_dir(Path::new("/etc/config.toml")).is_err());
    }

    #[test]
    fn a_file_of_a_directory_is_judged_and_no_link() {
        let tree = OwnedTree::new();
        tree.file("etc/cdi/a.json", 0o644);
        tree.file("etc/cdi/b.json", 0o664);
        symlink("a.json", tree.path("etc/cdi/c.json")).unwrap();
        let trusted = tree.trusted();
        let dir = trusted.open_dir(Path::new("/etc/cdi")).unwrap();
        assert_eq!(dir.open(OsStr::new("a.json")).unwrap().read(9).unwrap(), b"text");
        let error = |name| dir.open(OsStr::new(name)).unwrap_err().to_string();
        assert!(error("b.json").contains("others can change it"));
        assert!(error("c.json").contains("not a regular file"));
    }

    fn appended(tree: &OwnedTree, path: &str) -> Result<(), TrustError> {
        use std::io::Write;
        let mut file = tree.trusted().append(Path::new(path))?;
        file.file.write_all(b"+").unwrap();
        Ok(())
    }

    #[test]
    fn a_file_is_made_for_its_owner_alone_and_appended_to() {
        let tree = OwnedTree::new();
        for _ in 0..2 {
            appended(&tree, "/var/log").unwrap();
        }
        appended(&tree, "/etc/config.toml").unwrap();
        assert_eq!(fs::read(tree.path("var/log")).unwrap(), b"++");
        assert_eq!(fs::read(tree.path("etc/config.toml")).unwrap(), b"text+");
        let mode = fs::metadata(tree.path("var/log")).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o600);
        symlink("/var", tree.path("run/dir")).unwrap();
        appended(&tree, "/run/dir/log").unwrap();
        assert_eq!(fs::read(tree.path("var/log")).unwrap(), b"+++");
        let file = tree.trusted().append(Path::new("/var/log")).unwrap();
        assert_eq!(file.size(), 3);
        assert!(
            rustix::io::fcntl_getfd(&file.file).unwrap().contains(rustix::io::FdFlags::CLOEXEC)
        );
    }

    #[test]
    fn what_somebody_else_could_have_put_there_is_not_appended_to() {
        let tree = OwnedTree::new();
        fs::create_dir(tree.path("open")).unwrap();
        tree.chmod("open", 0o1777);
        tree.file("etc/loose", 0o666);
        tree.file("etc/two", 0o600);
        fs::hard_link(tree.path("etc/two"), tree.path("etc/names")).unwrap();
        symlink("config.toml", tree.path("etc/link")).unwrap();
        symlink("/open", tree.path("var/way")).unwrap();
        for (path, says) in [
            ("/open/log", "others can change it"),
            ("/var/way/log", "others can change it"),
            ("/etc/loose", "others can change it"),
            ("/etc/two", "several hard links"),
            ("/etc/link", "not a regular file"),
            ("/etc/cdi", "not a regular file"),
            ("/", "not a regular file"),
            ("/etc/..", "not a regular file"),
            ("/etc/config.toml/log", "not a directory"),
            ("/none/log", "opening \"/none\""),
        ] {
            let error = appended(&tree, path).unwrap_err().to_string();
            assert!(error.contains(says), "{path}: {error}");
        }
        let others =
            TrustedTree::for_tree(tree.0.root(), TrustedOwners::from_users(&[4_000_000])).unwrap();
        let error = others.append(Path::new("/var/log")).unwrap_err();
        assert!(error.to_string().contains("belongs to user"), "{error}");
        assert!(!tree.path("var/log").exists() && !tree.path("open/log").exists());
        assert_eq!(fs::read(tree.path("etc/config.toml")).unwrap(), b"text");
    }

    #[test]
    fn a_pipe_in_the_place_of_a_file_holds_nobody_up() {
        let tree = OwnedTree::new();
        let (path, mode) = (tree.path("var/log"), Mode::from_raw_mode(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0).unwrap();
        let refusal = || appended(&tree, "/var/log").unwrap_err().to_string();
        assert!(refusal().contains("not a regular file"), "nobody reads it");
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let _reader = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
        assert!(refusal().contains("not a regular file"), "somebody reads it");
        fs::remove_file(&path).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(refusal().contains("not a regular file"), "a socket");
    }
}
