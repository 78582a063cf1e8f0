//! Whose a network namespace is: that of the user who made the user namespace that it belongs to (ioctl_nsfs(2)).

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `NS_GET_USERNS` and `NS_GET_OWNER_UID` (include/uapi/linux/nsfs.h).
const GET_USER_NAMESPACE: libc::Ioctl = 0xb701;
const GET_OWNER: libc::Ioctl = 0xb704;

/// Whether a namespace belongs to the initial user namespace or to one that root made. What is not known is root's.
pub(super) fn is_root_s(namespace: &File) -> bool {
    let owner = user_namespace(namespace.as_fd()).and_then(|users| owner(users.as_fd()));
    owner.is_none_or(|uid| uid == 0)
}

#[expect(unsafe_code, reason = "no library in the tree has NS_GET_USERNS")]
fn user_namespace(namespace: BorrowedFd<'_>) -> Option<OwnedFd> {
    // SAFETY: the call takes no argument and writes nothing of this process.
    let number = unsafe { libc::ioctl(namespace.as_raw_fd(), GET_USER_NAMESPACE) };
    // SAFETY: a number that is not negative is a new descriptor, which nothing else owns.
    (number >= 0).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

#[expect(unsafe_code, reason = "no library in the tree has NS_GET_OWNER_UID")]
fn owner(users: BorrowedFd<'_>) -> Option<u32> {
    let mut uid: libc::uid_t = 0;
    // SAFETY: the kernel writes a uid_t to `uid`, which lives through the call.
    let result = unsafe { libc::ioctl(users.as_raw_fd(), GET_OWNER, &raw mut uid) };
    (result == 0).then_some(uid)
}
