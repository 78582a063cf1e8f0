//! The owner of a network namespace: it belongs to a user namespace, which belongs to the user who created it
//! (ioctl_nsfs(2)).

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use onload_sys::netns;

use super::namespace::{inode, open};

const OWN_USER_NAMESPACE: &str = "/proc/self/ns/user";

/// The owner of a network namespace, ordered by the privileges needed to create one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NetnsOwner {
    /// This process's user namespace, in which creating one requires a capability. Also used if the owner is unknown.
    Host,
    /// A user namespace of user 0 other than this process's. Any process of that user can create one, also in a
    /// container.
    Root,
    Other,
}

pub(super) fn find_owner(namespace: &File) -> NetnsOwner {
    let Some(users) = netns::user_namespace(namespace.as_fd()) else {
        return NetnsOwner::Host;
    };
    let own = open(Path::new(OWN_USER_NAMESPACE)).and_then(inode);
    let is_another = matches!((own, inode(&users)), (Ok(own), Ok(its)) if own != its);
    match netns::owner_uid(users.as_fd()) {
        Some(0) if is_another => NetnsOwner::Root,
        Some(_) if is_another => NetnsOwner::Other,
        _ => NetnsOwner::Host,
    }
}
