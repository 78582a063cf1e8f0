//! Identity and owner of a network namespace. Its inode number does not identify it, since the kernel reuses the number
//! for the next namespace as soon as this one is gone.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `NS_GET_USERNS` and `NS_GET_OWNER_UID` (include/uapi/linux/nsfs.h).
const GET_USER_NAMESPACE: libc::Ioctl = 0xb701;
const GET_OWNER: libc::Ioctl = 0xb704;

/// Returns the cookie of a socket's network namespace, which is unique since boot (SO_NETNS_COOKIE, net/core/sock.c).
/// Fails with ENOPROTOOPT before Linux 5.14.
#[expect(unsafe_code, reason = "no library in the tree has SO_NETNS_COOKIE")]
pub fn cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0u64;
    let mut length = libc::socklen_t::try_from(size_of::<u64>()).unwrap_or_default();
    // SAFETY: the kernel writes at most `length` bytes to `cookie`, which has as many, and the length written to
    // `length`; both live through the call. Any eight bytes are a u64.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    match result {
        0 if usize::try_from(length) == Ok(size_of::<u64>()) => Ok(cookie),
        0 => Err(io::ErrorKind::InvalidData.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the user namespace that owns a namespace (ioctl_nsfs(2)). `None` if it is an ancestor of this process's own.
#[expect(unsafe_code, reason = "no library in the tree has NS_GET_USERNS")]
pub fn user_namespace(namespace: BorrowedFd<'_>) -> Option<OwnedFd> {
    // SAFETY: the call takes no argument and writes nothing of this process.
    let number = unsafe { libc::ioctl(namespace.as_raw_fd(), GET_USER_NAMESPACE) };
    // SAFETY: a number that is not negative is a new descriptor, which nothing else owns.
    (number >= 0).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

/// Returns the user who created a user namespace.
#[expect(unsafe_code, reason = "no library in the tree has NS_GET_OWNER_UID")]
pub fn owner_uid(namespace: BorrowedFd<'_>) -> Option<u32> {
    let mut uid: libc::uid_t = 0;
    // SAFETY: the kernel writes a uid_t to `uid`, which lives through the call.
    let result = unsafe { libc::ioctl(namespace.as_raw_fd(), GET_OWNER, &raw mut uid) };
    (result == 0).then_some(uid)
}
