//! The host's own network namespace, where interfaces come from and go back to.

use onload_core::bail;
use onload_core::error::Result;
use onload_core::lease::InterfaceFacts;

use super::identity::Identity;
use crate::netlink::link::Link;
use crate::netns::Netns;

/// What a message calls interfaces whose names do not matter.
pub(super) const ANY: &str = "of this host";

#[derive(Debug)]
pub(crate) struct Home<'a> {
    pub(crate) netns: Netns,
    pub(crate) identity: &'a Identity,
}

impl<'a> Home<'a> {
    /// The namespace of this process, which has to be the host's; `name` is for messages.
    pub(crate) fn open(identity: &'a Identity, name: &str) -> Result<Self> {
        let netns = Netns::own()?;
        if !netns.is_first() {
            bail!(
                "interface {name} cannot move: the engine is not in this host's own network and PID namespaces, and has no interface of it"
            );
        }
        Ok(Home { netns, identity })
    }

    /// The interface that is to be restored, if it is here.
    pub(crate) fn find(&self, facts: &InterfaceFacts) -> Result<Option<Link>> {
        self.identity.find(&self.netns, facts.pci, &facts.name)
    }
}
