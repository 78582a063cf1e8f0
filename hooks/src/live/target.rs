//! Mount targets in the container's root: examined, created where that is safe, and from then on
//! held by descriptor.
//!
//! What is created under a bind mount or volume appears on the host. A target is therefore created
//! only on the root file system's own mount, or on a tmpfs that the container's configuration
//! mounts there. The mount's id and type identify it, through the descriptor of the directory in
//! which the target is created.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use onload_core::mountinfo::MountTable;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, StatxFlags, fstat, mkdirat, openat, statx, unlinkat,
};
use rustix::io::Errno;

use crate::rootfs::container_root::ContainerRoot;
use crate::rootfs::overmount::TargetFileSystem;
use crate::run::record::{Made, TargetType};
use crate::run::targets::removal;

/// Why nothing is mounted at a target.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetError {
    #[error("{action} {path:?} in the container")]
    Step {
        /// What was being done.
        action: &'static str,
        /// The path in the container.
        path: PathBuf,
        source: Errno,
    },
    #[error("{path:?} in the container is not a {wanted}; use another image, or one without it")]
    Kind {
        /// The path in the container.
        path: PathBuf,
        /// What was wanted.
        wanted: &'static str,
    },
    /// Its directory is not on the container's own file system.
    #[error(
        "{path:?} would have to be created on a separate mount ({fs_type}), whose files do not belong to the container; remove that mount or use an image that has the file"
    )]
    Foreign {
        /// The path in the container.
        path: PathBuf,
        /// The file system type there.
        fs_type: String,
    },
    /// The mount there has peers.
    #[error(
        "{path:?} in the container is on a mount that is shared with the host, where the new mount would appear too; do not use rootfsPropagation or shared volumes"
    )]
    Shared {
        /// The path in the container.
        path: PathBuf,
    },
    #[error(
        "the container's root is read-only and has no {path:?} to mount on; use an image that has it, or the engine's --device"
    )]
    ReadOnly {
        /// The path in the container.
        path: PathBuf,
    },
}

impl onload_core::error::Typed for TargetError {}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The path in the container.
    pub path: PathBuf,
    pub kind: TargetType,
    /// The file system of its directory, according to the configuration.
    pub file_system: TargetFileSystem,
}

/// The container's root with its mounts, as seen from its mount namespace.
#[derive(Debug)]
pub(crate) struct Targets<'a> {
    root: &'a ContainerRoot,
    root_mount: u64,
    mounts: &'a MountTable,
}

impl<'a> Targets<'a> {
    /// Examines a root; `mounts` is the mount table of the process that runs in it.
    ///
    /// # Errors
    /// [`TargetError::Step`].
    pub(crate) fn new(
        root: &'a ContainerRoot,
        mounts: &'a MountTable,
    ) -> Result<Self, TargetError> {
        let root_mount = mount_of(root).map_err(step("looking at", Path::new("/")))?;
        Ok(Targets {
            root,
            root_mount,
            mounts,
        })
    }

    /// What would have to be created for a target, outermost first; empty if it exists, or if what
    /// is created disappears with the container.
    ///
    /// # Errors
    /// [`TargetError`] if nothing may be mounted or created there.
    pub(crate) fn look(&self, target: &Target) -> Result<Vec<Made>, TargetError> {
        let mut missing = Vec::new();
        let mut at = target.path.as_path();
        let mut kind = target.kind;
        loop {
            match self.root.find(at) {
                Ok(found) if missing.is_empty() => {
                    self.check_existing(target, &found)?;
                    break;
                }
                Ok(found) => {
                    if kind_of(&found, at)? != TargetType::Directory {
                        return Err(TargetError::Kind {
                            path: at.to_owned(),
                            wanted: TargetType::Directory.name(),
                        });
                    }
                    if !self.check_directory(target, &found)? {
                        missing.clear();
                    }
                    break;
                }
                Err(Errno::NOENT) => missing.push(Made::planned(at, kind)),
                Err(error) => return Err(step("looking up", at)(error)),
            }
            at = at.parent().unwrap_or(Path::new("/"));
            kind = TargetType::Directory;
        }
        missing.reverse();
        Ok(missing)
    }

    /// Opens a target and creates what is missing. Everything created is added to `made` at once.
    ///
    /// # Errors
    /// [`TargetError`].
    pub(crate) fn open(
        &self,
        target: &Target,
        made: &mut Vec<Fresh>,
    ) -> Result<OwnedFd, TargetError> {
        match self.root.find(&target.path) {
            Ok(found) => {
                self.check_existing(target, &found)?;
                Ok(found)
            }
            Err(Errno::NOENT) => self.make(target, &target.path, target.kind, made),
            Err(error) => Err(step("looking up", &target.path)(error)),
        }
    }

    fn make(
        &self,
        target: &Target,
        path: &Path,
        kind: TargetType,
        made: &mut Vec<Fresh>,
    ) -> Result<OwnedFd, TargetError> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(step("making", path)(Errno::INVAL));
        };
        let dir = match self.root.find(above) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => self.make(target, above, TargetType::Directory, made)?,
            Err(error) => return Err(step("looking up", above)(error)),
        };
        let lasts = self.check_directory(target, &dir)?;
        match create(&dir, name, kind) {
            Ok(()) => {}
            Err(Errno::EXIST) => return self.exists(target, path, kind),
            Err(Errno::ROFS) => {
                return Err(TargetError::ReadOnly {
                    path: path.to_owned(),
                });
            }
            Err(error) => return Err(step("making", path)(error)),
        }
        // From here on it exists, whatever happens.
        let at = made.len();
        if lasts {
            made.push(Fresh {
                made: Made::planned(path, kind),
                dir: dir.try_clone().map_err(|error| {
                    let _ = unlinkat(&dir, name, removal(kind));
                    step("making", path)(Errno::from_io_error(&error).unwrap_or(Errno::MFILE))
                })?,
            });
        }
        let failed = step("opening", path);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let new = openat(&dir, name, flags, Mode::empty()).map_err(&failed)?;
        let stat = fstat(&new).map_err(&failed)?;
        if let Some(fresh) = made.get_mut(at) {
            fresh.made.inode = Some(stat.st_ino);
        }
        self.check_existing(
            &Target {
                kind,
                ..target.clone()
            },
            &new,
        )?;
        Ok(new)
    }

    /// Opens what did not exist a moment ago: another container with the same root was faster, or a
    /// link is dangling.
    fn exists(
        &self,
        target: &Target,
        path: &Path,
        kind: TargetType,
    ) -> Result<OwnedFd, TargetError> {
        let target = Target {
            path: path.to_owned(),
            kind,
            ..target.clone()
        };
        match self.root.find(path) {
            Ok(found) => {
                self.check_existing(&target, &found)?;
                Ok(found)
            }
            Err(Errno::NOENT) => Err(TargetError::Kind {
                path: target.path,
                wanted: kind.name(),
            }),
            Err(error) => Err(step("looking up", path)(error)),
        }
    }

    fn check_existing(&self, target: &Target, found: &OwnedFd) -> Result<(), TargetError> {
        if kind_of(found, &target.path)? != target.kind {
            return Err(TargetError::Kind {
                path: target.path.clone(),
                wanted: target.kind.name(),
            });
        }
        let id = mount_of(found).map_err(step("looking at", &target.path))?;
        match self.mounts.find(id) {
            Some(mount) if mount.is_shared => Err(TargetError::Shared {
                path: target.path.clone(),
            }),
            Some(_) => Ok(()),
            None => Err(self.foreign(target, "unknown")),
        }
    }

    /// Checks that something may be created in a directory. Returns whether it would outlive the
    /// container.
    fn check_directory(&self, target: &Target, dir: &OwnedFd) -> Result<bool, TargetError> {
        let id = mount_of(dir).map_err(step("looking at", &target.path))?;
        if id == self.root_mount {
            return Ok(true);
        }
        let Some(mount) = self.mounts.find(id) else {
            return Err(self.foreign(target, "unknown"));
        };
        if target.file_system == TargetFileSystem::FreshTmpfs && mount.is_fresh {
            return Ok(false);
        }
        Err(self.foreign(target, &String::from_utf8_lossy(mount.fs_type)))
    }

    fn foreign(&self, target: &Target, fs_type: &str) -> TargetError {
        TargetError::Foreign {
            path: target.path.clone(),
            fs_type: fs_type.to_owned(),
        }
    }
}

/// Something that was just created.
#[derive(Debug)]
pub(crate) struct Fresh {
    pub made: Made,
    /// The directory in which it was created.
    dir: OwnedFd,
}

impl Fresh {
    /// Removes it. The caller must be outside the container's mount namespace: something may be
    /// mounted on it there, and unlink(2) minds only mounts of the caller's namespace (fs/namei.c,
    /// `vfs_unlink`). It is named by descriptor and name, since a path lookup would find the mount.
    pub(crate) fn remove(&self) {
        if let Some(name) = self.made.path.file_name() {
            // What stays is empty, and the original error is the one to report.
            let _ = unlinkat(&self.dir, name, removal(self.made.kind));
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

fn kind_of(found: &OwnedFd, path: &Path) -> Result<TargetType, TargetError> {
    let stat = fstat(found).map_err(step("looking at", path))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Ok(TargetType::Directory),
        FileType::RegularFile | FileType::CharacterDevice => Ok(TargetType::File),
        _ => Err(TargetError::Kind {
            path: path.to_owned(),
            wanted: "regular file, device node or directory",
        }),
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

fn step(action: &'static str, path: &Path) -> impl Fn(Errno) -> TargetError {
    let path = path.to_owned();
    move |error| TargetError::Step {
        action,
        path: path.clone(),
        source: error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn file(path: &str) -> Target {
        Target {
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
                        let targets = Targets::new(&root, &mounts).unwrap();
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
        let targets = Targets::new(&root, &mounts).unwrap();
        let refused = targets.open(&file("/x.so"), &mut made).unwrap_err();
        assert!(
            refused.to_string().contains("use another image"),
            "{refused}"
        );
        assert!(made.is_empty());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
