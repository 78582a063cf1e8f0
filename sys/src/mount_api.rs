//! Mounts as descriptors: open_tree(2), mount_setattr(2), move_mount(2), fsmount(2). rustix lacks mount_setattr(2),
//! which is called only here.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::error::last_errno;

/// Stack size of the thread that mounts, in bytes.
const STACK: usize = 64 * 1024;

/// `MOUNT_ATTR_…` of include/uapi/linux/mount.h.
pub mod attr {
    pub const RDONLY: u64 = 0x1;
    pub const NOSUID: u64 = 0x2;
    pub const NODEV: u64 = 0x4;
    pub const NOEXEC: u64 = 0x8;
}

/// `struct mount_attr` of include/uapi/linux/mount.h in its first version (`MOUNT_ATTR_SIZE_VER0`).
#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Creates a detached copy of a mount, which is removed with its last descriptor.
pub fn clone_tree(dir: BorrowedFd<'_>, path: &Path, is_recursive: bool) -> Result<OwnedFd, Errno> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if is_recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    rustix::mount::open_tree(dir, path, flags)
}

/// Sets attributes of a copy and removes it from its peer group: a mount that stays shared would propagate mounts
/// between the container and the host. Fails with ENOSYS before Linux 5.12.
#[expect(unsafe_code, reason = "the library has no mount_setattr(2)")]
pub fn set_private(tree: &OwnedFd, attributes: u64, is_recursive: bool) -> Result<(), Errno> {
    let attr = MountAttr {
        attr_set: attributes,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    let recursive = if is_recursive { libc::AT_RECURSIVE } else { 0 };
    let flags = libc::AT_EMPTY_PATH | recursive;
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
        return Ok(());
    }
    Err(last_errno())
}

/// Mounts a copy onto a file or directory.
pub fn attach(tree: &OwnedFd, target: impl AsFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(tree, "", target, "", flags)
}

/// Creates a detached tmpfs whose files have the given SELinux label. It is removed with its last descriptor and its
/// last copy.
pub fn create_tmpfs(label: Option<&str>) -> Result<OwnedFd, Errno> {
    let options = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    if let Some(label) = label {
        // Without SELinux the kernel rejects this option. Runtimes ignore the label then too.
        let _ = fsconfig_set_string(&options, "context", label);
    }
    fsconfig_create(&options)?;
    let attributes = MountAttrFlags::empty();
    fsmount(&options, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Returns detached copies of files in a detached mount. Before Linux 6.15 only an attached mount can be copied
/// (fs/namespace.c, `__do_loopback`), so this attaches it in a private mount namespace of a short-lived thread.
pub fn clone_detached_files(mount: &OwnedFd, names: &[String]) -> Result<Vec<OwnedFd>, Errno> {
    let copy = || {
        unshare_mount_namespace()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open("/", flags, Mode::empty())?;
        set_private(&root, 0, false)?;
        attach(mount, &root)?;
        let mut copies = Vec::new();
        for name in names {
            copies.push(clone_tree(mount.as_fd(), Path::new(name), false)?);
        }
        Ok(copies)
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .stack_size(STACK)
            .spawn_scoped(scope, copy)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        thread.join().unwrap_or(Err(Errno::IO))
    })
}

/// Moves this thread to a new mount namespace, a copy of the present one.
#[expect(unsafe_code, reason = "other flags of unshare(2) are dangerous")]
fn unshare_mount_namespace() -> Result<(), Errno> {
    // SAFETY: a descriptor keeps its meaning in every thread, since the table of descriptors stays shared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }
}
