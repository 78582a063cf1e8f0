//! Mounts as descriptors: open_tree(2), mount_setattr(2), move_mount(2). The one of them that the
//! system call library lacks is called here and nowhere else.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags};

/// `MOUNT_ATTR_…` of include/uapi/linux/mount.h.
pub(crate) mod attr {
    /// Nothing is written through it.
    pub(crate) const RDONLY: u64 = 0x1;
    /// No set-user-id takes effect.
    pub(crate) const NOSUID: u64 = 0x2;
    /// No device node can be opened.
    pub(crate) const NODEV: u64 = 0x4;
    /// No program can be executed.
    pub(crate) const NOEXEC: u64 = 0x8;
}

/// `struct mount_attr` of include/uapi/linux/mount.h, as of its first size
/// (`MOUNT_ATTR_SIZE_VER0`).
#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// A copy of a mount, attached nowhere. Dropped, it is gone.
///
/// # Errors
/// Those of open_tree(2).
pub(crate) fn clone_tree(
    dir: BorrowedFd<'_>,
    path: &Path,
    is_recursive: bool,
) -> Result<OwnedFd, Errno> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if is_recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    rustix::mount::open_tree(dir, path, flags)
}

/// Sets attributes of a copy, and takes it out of every peer group: a mount that stays shared
/// carries what is mounted on it in the container to the host, and the other way round.
///
/// # Errors
/// Those of mount_setattr(2); ENOSYS before Linux 5.12.
#[expect(unsafe_code, reason = "the library has no mount_setattr(2)")]
pub(crate) fn set_private(
    tree: &OwnedFd,
    attributes: u64,
    is_recursive: bool,
) -> Result<(), Errno> {
    let attr = MountAttr {
        attr_set: attributes,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    let flags = if is_recursive {
        libc::AT_EMPTY_PATH | libc::AT_RECURSIVE
    } else {
        libc::AT_EMPTY_PATH
    };
    // SAFETY: mount_setattr(2) takes a descriptor, a NUL-terminated path, flags, and a structure
    // that it reads `size` bytes of; all of them live until it returns, and it keeps no pointer.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(last_error())
    }
}

/// Puts a copy onto a file or directory, both by descriptor.
///
/// # Errors
/// Those of move_mount(2).
pub(crate) fn attach(tree: &OwnedFd, target: impl AsFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(tree, "", target, "", flags)
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
