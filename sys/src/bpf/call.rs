//! bpf(2): the one place that calls it. Who asks for something brings the attribute of its command.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

pub(super) const PROG_DETACH: libc::c_long = 9;
pub(super) const PROG_GET_FD_BY_ID: libc::c_long = 13;
pub(super) const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
pub(super) const PROG_QUERY: libc::c_long = 16;

/// The attribute structures: plain numbers without padding, so each is exactly what the kernel reads. Each address in
/// one comes from [`address`], of a vector, string or structure of plain numbers that outlives the call and with its
/// length beside it; what the kernel writes to comes from a mutable reference.
pub(super) trait Attr {}

pub(super) fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().unsigned_abs()
}

pub(super) fn address<T>(pointer: *mut T) -> u64 {
    // An address of this process fits, on 32-bit machines too.
    pointer.expose_provenance() as u64
}

#[expect(unsafe_code, reason = "no library in the tree has bpf(2)")]
pub(super) fn call<A: Attr>(command: libc::c_long, attr: &mut A) -> Result<libc::c_long, Errno> {
    // SAFETY: bpf(2) reads and writes at most `size` bytes of the attribute, which lives until the call returns, and
    // the memory that the addresses in it point to, which are as `Attr` says. The kernel writes only through the ones
    // that come from mutable references, and keeps no pointer.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attr),
            size_of::<A>(),
        )
    };
    if result < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(result)
}

/// The descriptor that a command answers with.
#[expect(unsafe_code, reason = "no library in the tree has bpf(2)")]
pub(super) fn descriptor(result: libc::c_long) -> OwnedFd {
    // SAFETY: the commands whose result arrives here return a new close-on-exec descriptor (kernel/bpf/syscall.c,
    // `bpf_prog_new_fd`, `bpf_link_new_fd`) that nothing else owns; it fits an int.
    unsafe { OwnedFd::from_raw_fd(i32::try_from(result).unwrap_or(-1)) }
}
