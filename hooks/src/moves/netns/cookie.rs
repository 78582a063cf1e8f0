//! What names a network namespace: SO_NETNS_COOKIE (net/core/sock.c, Linux 5.14). The number of its file goes to the
//! next namespace as soon as it is gone.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};

/// The cookie of the namespace that a socket was made in; ENOPROTOOPT before Linux 5.14.
#[expect(unsafe_code, reason = "no library in the tree has SO_NETNS_COOKIE")]
pub(super) fn of_socket(socket: &OwnedFd) -> io::Result<u64> {
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
