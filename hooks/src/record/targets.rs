//! Removes the mount targets that were created in a container's root.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, openat, unlinkat};
use rustix::io::Errno;

use super::container_record::{CreatedPath, TargetType};
use onload_sys::fs::container_root::ContainerRoot;

pub(crate) fn unlink_flags(kind: TargetType) -> AtFlags {
    match kind {
        TargetType::File => AtFlags::empty(),
        TargetType::Directory => AtFlags::REMOVEDIR,
    }
}

/// Removes what was created, the last one first, if it is still the same file and empty.
pub(crate) fn remove(root: &ContainerRoot, created_paths: &[CreatedPath]) {
    for created_path in created_paths.iter().rev() {
        // A file that stays is empty, and the original error is the one to report.
        let _ = remove_one(root, created_path);
    }
}

fn remove_one(root: &ContainerRoot, created_path: &CreatedPath) -> Result<(), Errno> {
    let (Some(above), Some(name)) = (created_path.path.parent(), created_path.path.file_name())
    else {
        return Ok(());
    };
    // Nothing permanent was created below another mount.
    let dir = root.find_on_own_mount(above)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = openat(&dir, name, flags, Mode::empty())?;
    let stat = fstat(&found)?;
    if created_path.inode.is_some_and(|inode| inode != stat.st_ino) {
        return Ok(());
    }
    match (created_path.kind, FileType::from_raw_mode(stat.st_mode)) {
        (TargetType::File, FileType::RegularFile) if stat.st_size == 0 => {
            unlinkat(&dir, name, unlink_flags(created_path.kind))
        }
        // A directory that is not empty stays.
        (TargetType::Directory, FileType::Directory) => {
            unlinkat(&dir, name, unlink_flags(created_path.kind))
        }
        _ => Ok(()),
    }
}
