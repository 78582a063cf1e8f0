//! Whose a network namespace is: it belongs to a user namespace, and that to the user who made it (ioctl_nsfs(2)).

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use onload_sys::netns;

use super::namespace::{inode, open};

const OWN_USER_NAMESPACE: &str = "/proc/self/ns/user";

/// Whose a network namespace is, in the order of what it takes to make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NetnsOwner {
    /// This process's own user namespace, in which one needs a capability to make it; or what is not known.
    Host,
    /// Another user namespace that user 0 made: any process of that user can, in a container too.
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
