//! Mounts as descriptors: open_tree(2), mount_setattr(2), move_mount(2). rustix lacks the second
//! one, so it is called here and nowhere else.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags};

/// `MOUNT_ATTR_…` of include/uapi/linux/mount.h.
pub(crate) mod attr {
    /// Nothing can be written through it.
    pub(crate) const RDONLY: u64 = 0x1;
    /// Set-user-ID bits have no effect.
    pub(crate) const NOSUID: u64 = 0x2;
    /// No device node can be opened.
    pub(crate) const NODEV: u64 = 0x4;
    /// No program can be executed.
    pub(crate) const NOEXEC: u64 = 0x8;
}

/// `struct mount_attr` of include/uapi/linux/mount.h in its first version (`MOUNT_ATTR_SIZE_VER0`).
#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// A detached copy of a mount. Dropping it removes it.
///
/// # Errors
/// The errors of open_tree(2).
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

/// Sets attributes of a copy, and removes it from its peer group: a mount that stays shared
/// propagates what is mounted on it in the container to the host, and the other way round.
///
/// # Errors
/// The errors of mount_setattr(2); ENOSYS before Linux 5.12.
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
    // SAFETY: mount_setattr(2) takes a descriptor, a NUL-terminated path, flags, and a structure of
    // which it reads `size` bytes. All of them live until it returns, and it keeps no pointer.
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

/// Mounts a copy onto a file or directory, both given as descriptors.
///
/// # Errors
/// The errors of move_mount(2).
pub(crate) fn attach(tree: &OwnedFd, target: impl AsFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(tree, "", target, "", flags)
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
