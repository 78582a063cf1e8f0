//! The mount targets that were made in a container's root, taken away again.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, openat, unlinkat};
use rustix::io::Errno;

use super::record::{Kind, Made};
use crate::rootfs::container_root::ContainerRoot;

/// How unlinkat(2) removes it.
pub(crate) fn removal(kind: Kind) -> AtFlags {
    match kind {
        Kind::File => AtFlags::empty(),
        Kind::Directory => AtFlags::REMOVEDIR,
    }
}

/// Takes away what was made, the last first, where it is still what was made and empty.
pub(crate) fn remove(root: &ContainerRoot, made: &[Made]) {
    for made in made.iter().rev() {
        // What stays is empty, and the error that led here is the one to tell.
        let _ = remove_one(root, made);
    }
}

fn remove_one(root: &ContainerRoot, made: &Made) -> Result<(), Errno> {
    let (Some(above), Some(name)) = (made.path.parent(), made.path.file_name()) else {
        return Ok(());
    };
    // Below another mount nothing was made that lasts.
    let dir = root.find_on_own_mount(above)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = openat(&dir, name, flags, Mode::empty())?;
    let stat = fstat(&found)?;
    if made.inode.is_some_and(|inode| inode != stat.st_ino) {
        return Ok(());
    }
    match (made.kind, FileType::from_raw_mode(stat.st_mode)) {
        (Kind::File, FileType::RegularFile) if stat.st_size == 0 => {
            unlinkat(&dir, name, removal(made.kind))
        }
        // A directory that holds something stays.
        (Kind::Directory, FileType::Directory) => unlinkat(&dir, name, removal(made.kind)),
        _ => Ok(()),
    }
}
