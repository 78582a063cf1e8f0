//! Mount targets in the container's root: examined, created where that is safe, and from then on
//! held by descriptor.
//!
//! Files created under a bind mount or volume appear on the host. A target is therefore created only on the root file
//! system's own mount, or on a tmpfs that the container's configuration mounts there, which the descriptor of its
//! directory tells.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use onload_sys::error::{Context, Error, Result, bail, error};
use onload_sys::mountinfo::MountTable;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, StatxFlags, fstat, mkdirat, openat, statx, unlinkat,
};
use rustix::io::Errno;

use crate::image::overmount::TargetFileSystem;
use crate::record::container_record::{CreatedPath, TargetType};
use crate::record::targets::unlink_flags;
use onload_sys::fs::container_root::ContainerRoot;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountTarget {
    /// In the container.
    pub path: PathBuf,
    pub kind: TargetType,
    /// The file system of its directory, according to the configuration.
    pub file_system: TargetFileSystem,
}

#[derive(Debug)]
pub(crate) struct TargetChecker<'a> {
    root: &'a ContainerRoot,
    root_mount: u64,
    mounts: &'a MountTable,
}

impl<'a> TargetChecker<'a> {
    /// `mounts` is the mount table of the process that runs in the root.
    pub(crate) fn new(root: &'a ContainerRoot, mounts: &'a MountTable) -> Result<Self> {
        let root_mount = mount_of(root).with_context(|| stat_context(Path::new("/")))?;
        Ok(TargetChecker { root, root_mount, mounts })
    }

    /// Returns the paths to create for a target, outermost first. Empty if it exists, or if created files disappear
    /// with the container. Refuses a target where nothing may be mounted.
    pub(crate) fn plan_creation(&self, target: &MountTarget) -> Result<Vec<CreatedPath>> {
        let mut missing = Vec::new();
        let mut path = target.path.as_path();
        let mut kind = target.kind;
        loop {
            match self.root.find(path) {
                Ok(existing) if missing.is_empty() => {
                    self.check_existing(path, kind, &existing)?;
                    break;
                }
                Ok(existing) => {
                    check_kind(&existing, path, TargetType::Directory)?;
                    if !self.check_directory(target, &existing)? {
                        missing.clear();
                    }
                    break;
                }
                Err(Errno::NOENT) => missing.push(CreatedPath::new(path, kind)),
                Err(error) => return Err(error).with_context(|| lookup_context(path)),
            }
            path = path.parent().unwrap_or(Path::new("/"));
            kind = TargetType::Directory;
        }
        missing.reverse();
        Ok(missing)
    }

    /// Opens a target and creates what is missing. Everything created is added to `made` at once.
    pub(crate) fn open(
        &self,
        target: &MountTarget,
        created_targets: &mut Vec<CreatedTarget>,
    ) -> Result<OwnedFd> {
        match self.open_existing(&target.path, target.kind)? {
            Some(existing) => Ok(existing),
            None => self.create_target(target, &target.path, target.kind, created_targets),
        }
    }

    fn open_existing(&self, path: &Path, kind: TargetType) -> Result<Option<OwnedFd>> {
        let existing = match self.root.find(path) {
            Err(Errno::NOENT) => return Ok(None),
            existing => existing.with_context(|| lookup_context(path))?,
        };
        self.check_existing(path, kind, &existing)?;
        Ok(Some(existing))
    }

    fn create_target(
        &self,
        target: &MountTarget,
        path: &Path,
        kind: TargetType,
        created_targets: &mut Vec<CreatedTarget>,
    ) -> Result<OwnedFd> {
        let making = || format!("making {path:?} in the container");
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::INVAL).with_context(making);
        };
        let dir = match self.root.find(above) {
            Err(Errno::NOENT) => {
                self.create_target(target, above, TargetType::Directory, created_targets)?
            }
            dir => dir.with_context(|| lookup_context(above))?,
        };
        let lasts = self.check_directory(target, &dir)?;
        match create(&dir, name, kind) {
            // A container with the same root created it first, or it is a dangling link.
            Err(Errno::EXIST) => {
                let existing = self.open_existing(path, kind)?;
                return existing.ok_or_else(|| wrong_type_error(path, kind.name()));
            }
            Err(Errno::ROFS) => bail!(
                "the container's root is read-only and has no {path:?} to mount on; use an image that has it, or the engine's --device"
            ),
            created => created.with_context(making)?,
        }
        // From here on it exists, whatever happens.
        let index = created_targets.len();
        if lasts {
            let dir = dir.try_clone().inspect_err(|_| {
                let _ = unlinkat(&dir, name, unlink_flags(kind));
            });
            created_targets.push(CreatedTarget {
                created_path: CreatedPath::new(path, kind),
                dir: dir.with_context(making)?,
            });
        }
        let opening = || format!("opening {path:?} in the container");
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(&dir, name, flags, Mode::empty()).with_context(opening)?;
        let stat = fstat(&opened).with_context(opening)?;
        if let Some(created_target) = created_targets.get_mut(index) {
            created_target.created_path.inode = Some(stat.st_ino);
        }
        self.check_existing(&target.path, kind, &opened)?;
        Ok(opened)
    }

    fn check_existing(&self, path: &Path, kind: TargetType, file: &OwnedFd) -> Result<()> {
        check_kind(file, path, kind)?;
        let id = mount_of(file).with_context(|| stat_context(path))?;
        match self.mounts.find(id) {
            Some(mount) if mount.is_shared => bail!(
                "{path:?} in the container is on a mount that is shared with the host, where the new mount would appear too; do not use rootfsPropagation or shared volumes"
            ),
            Some(_) => Ok(()),
            None => Err(foreign_error(path, "unknown")),
        }
    }

    /// Checks that something may be created in a directory. Returns whether it would outlive the
    /// container.
    fn check_directory(&self, target: &MountTarget, dir: &OwnedFd) -> Result<bool> {
        let id = mount_of(dir).with_context(|| stat_context(&target.path))?;
        if id == self.root_mount {
            return Ok(true);
        }
        let Some(mount) = self.mounts.find(id) else {
            return Err(foreign_error(&target.path, "unknown"));
        };
        if target.file_system == TargetFileSystem::FreshTmpfs && mount.is_fresh {
            return Ok(false);
        }
        let fs_type = String::from_utf8_lossy(&mount.fs_type);
        Err(foreign_error(&target.path, &fs_type))
    }
}

fn lookup_context(path: &Path) -> String {
    format!("looking up {path:?} in the container")
}

fn stat_context(path: &Path) -> String {
    format!("looking at {path:?} in the container")
}

fn wrong_type_error(path: &Path, type_name: &str) -> Error {
    error!("{path:?} in the container is not a {type_name}; use another image, or one without it")
}

fn foreign_error(path: &Path, fs_type: &str) -> Error {
    error!(
        "{path:?} would have to be created on a separate mount ({fs_type}), whose files do not belong to the container; remove that mount or use an image that has the file"
    )
}

/// Something that was just created.
#[derive(Debug)]
pub(crate) struct CreatedTarget {
    pub created_path: CreatedPath,
    /// The directory in which it was created.
    dir: OwnedFd,
}

impl CreatedTarget {
    /// Removes it. The caller must be outside the container's mount namespace: something may be
    /// mounted on it there, and unlink(2) minds only mounts of the caller's namespace (fs/namei.c,
    /// `vfs_unlink`). It is named by descriptor and name, since a path lookup would find the mount.
    pub(crate) fn remove(&self) {
        if let Some(name) = self.created_path.path.file_name() {
            // A file that stays is empty, and the original error is the one to report.
            let _ = unlinkat(&self.dir, name, unlink_flags(self.created_path.kind));
        }
    }
}

fn create(dir: &OwnedFd, name: &OsStr, kind: TargetType) -> Result<(), Errno> {
    match kind {
        TargetType::Directory => mkdirat(dir, name, Mode::from_raw_mode(0o755)),
        TargetType::File => {
            let flags =
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            openat(dir, name, flags, Mode::from_raw_mode(0o644)).map(drop)
        }
    }
}

fn check_kind(file: &OwnedFd, path: &Path, expected: TargetType) -> Result<()> {
    let stat = fstat(file).with_context(|| stat_context(path))?;
    match (FileType::from_raw_mode(stat.st_mode), expected) {
        (FileType::Directory, TargetType::Directory)
        | (FileType::RegularFile | FileType::CharacterDevice, TargetType::File) => Ok(()),
        _ => Err(wrong_type_error(path, expected.name())),
    }
}

/// The id of the mount that a file is on (statx(2), Linux 5.8).
fn mount_of(file: impl AsFd) -> Result<u64, Errno> {
    let stat = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    if stat.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(stat.stx_mnt_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn file(path: &str) -> MountTarget {
        MountTarget {
            path: path.into(),
            kind: TargetType::File,
            file_system: TargetFileSystem::Root,
        }
    }

    /// This process's mounts, as if none of them had peers.
    fn mounts() -> MountTable {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        MountTable::read(table.replace(" shared:", " master:").as_bytes()).unwrap()
    }

    #[test]
    fn hooks_that_make_the_same_target_at_once_all_find_it() {
        let mounts = mounts();
        for _ in 0..200 {
            let dir = tempfile::tempdir().unwrap();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let root = ContainerRoot::open(dir.path()).unwrap();
                        let targets = TargetChecker::new(&root, &mounts).unwrap();
                        let opened = targets.open(&file("/usr/lib64/x.so"), &mut Vec::new());
                        opened.unwrap();
                    });
                }
            });
        }
    }

    #[test]
    fn a_link_that_leads_nowhere_is_no_place_for_a_mount() {
        let dir = tempfile::tempdir().unwrap();
        symlink("/nowhere/at/all", dir.path().join("x.so")).unwrap();
        let (mounts, mut made) = (mounts(), Vec::new());
        let root = ContainerRoot::open(dir.path()).unwrap();
        let targets = TargetChecker::new(&root, &mounts).unwrap();
        let refused = targets.open(&file("/x.so"), &mut made).unwrap_err();
        assert!(refused.to_string().contains("use another image"), "{refused}");
        assert!(made.is_empty());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
