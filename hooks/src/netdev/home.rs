//! The host's own network namespace, where interfaces come from and go back to.

use onload_core::lease::InterfaceFacts;

use super::error::NetdevError;
use super::identity::Identity;
use crate::netlink::link::Link;
use crate::netns::Netns;

/// The host's own network namespace.
#[derive(Debug)]
pub(crate) struct Home<'a> {
    pub(crate) netns: Netns,
    pub(crate) identity: &'a Identity,
}

impl<'a> Home<'a> {
    /// That of this process, which is the host's.
    ///
    /// # Errors
    /// [`NetdevError::Elsewhere`] where it is not.
    pub(crate) fn open(identity: &'a Identity) -> Result<Self, NetdevError> {
        let netns = Netns::own()?;
        match netns.is_first() {
            true => Ok(Home { netns, identity }),
            false => Err(NetdevError::Elsewhere("of this host".to_owned())),
        }
    }

    /// The interface that is to be restored, if it is here.
    ///
    /// # Errors
    /// As for [`Identity::find`].
    pub(crate) fn find(&self, facts: &InterfaceFacts) -> Result<Option<Link>, NetdevError> {
        self.identity.find(&self.netns, facts.pci, &facts.name)
    }
}
