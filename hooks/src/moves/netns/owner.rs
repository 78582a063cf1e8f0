//! Whose a network namespace is: it belongs to a user namespace, and that to the user who made it (ioctl_nsfs(2)).

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use super::namespace::{inode, open};

/// `NS_GET_USERNS` and `NS_GET_OWNER_UID` (include/uapi/linux/nsfs.h).
const GET_USER_NAMESPACE: libc::Ioctl = 0xb701;
const GET_OWNER: libc::Ioctl = 0xb704;

const OWN_USER_NAMESPACE: &str = "/proc/self/ns/user";

/// Whose a network namespace is, in the order of what it takes to make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// This process's own user namespace, in which one needs a capability to make it; or what is not known.
    Host,
    /// Another user namespace that user 0 made: any process of that user can, in a container too.
    Root,
    Other,
}

pub(super) fn of(namespace: &File) -> Owner {
    let Some(users) = user_namespace(namespace.as_fd()) else {
        return Owner::Host;
    };
    let own = open(Path::new(OWN_USER_NAMESPACE)).and_then(inode);
    let is_another = matches!((own, inode(&users)), (Ok(own), Ok(its)) if own != its);
    match owner(users.as_fd()) {
        Some(0) if is_another => Owner::Root,
        Some(_) if is_another => Owner::Other,
        _ => Owner::Host,
    }
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
