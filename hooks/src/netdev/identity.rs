//! Which interface belongs to a PCI function, whatever it is called: the kernel says it of each interface, in every
//! network namespace (`IFLA_PARENT_DEV_NAME`, Linux 5.14), and a container can change nothing of that.

use std::collections::BTreeMap;

use onload_core::pci::PciAddress;

use super::error::NetdevError;
use crate::netlink::link::Link;
use crate::netns::Netns;

/// How interfaces are told apart.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    stand_ins: BTreeMap<u32, PciAddress>,
}

impl Identity {
    /// As [`Identity::default`], and virtual pairs (veth(4)) stand in for functions: by the index of the other end,
    /// which stays where it is. For tests on machines without virtual functions; the programs know none.
    #[must_use]
    pub fn with_stand_ins(stand_ins: BTreeMap<u32, PciAddress>) -> Self {
        Identity { stand_ins }
    }

    fn function(&self, link: &Link) -> Option<PciAddress> {
        let stand_in = || {
            let end = link.lower.filter(|_| link.kind == b"veth")?;
            self.stand_ins.get(&end).copied()
        };
        link.function.or_else(stand_in)
    }

    /// Whether an interface belongs to a function.
    pub(crate) fn is_function(&self, link: &Link) -> bool {
        self.function(link).is_some()
    }

    /// The interface of a function in a namespace; none where it has none there.
    ///
    /// # Errors
    /// [`NetdevError::Several`], and those of [`Netns::links`]. `name` is for messages.
    pub(crate) fn find(
        &self,
        netns: &Netns,
        pci: PciAddress,
        name: &str,
    ) -> Result<Option<Link>, NetdevError> {
        let (links, is_whole) = netns.look()?;
        let mut own = links
            .into_iter()
            .filter(|link| self.function(link) == Some(pci));
        match (own.next(), own.next()) {
            (_, Some(_)) => Err(NetdevError::Several {
                name: name.to_owned(),
                pci,
            }),
            (None, None) if !is_whole => Err(NetdevError::Restless(name.to_owned())),
            (found, None) => Ok(found),
        }
    }
}
