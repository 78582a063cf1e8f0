//! Finds the interface of a PCI function, under any name. The kernel reports the function of each interface in every
//! network namespace (`IFLA_PARENT_DEV_NAME`, Linux 5.14), and a container cannot change it.

use std::collections::BTreeMap;

use onload_sys::error::{Result, bail};
use onload_sys::netlink::link::Link;
use onload_sys::pci::PciAddress;

use crate::moves::lifecycle;
use crate::moves::netns::Netns;
use crate::moves::vf::VfAccess;

pub(super) type InterfaceHostNetns<'a> = lifecycle::HostNetns<'a, InterfaceOps>;

#[derive(Clone, Debug, Default)]
pub struct InterfaceOps {
    /// For tests on machines without virtual functions: the functions that veth(4) pairs represent, by the index of the
    /// peer, which does not move.
    pub stand_ins: BTreeMap<u32, PciAddress>,
    /// Access to the virtual functions of interfaces.
    pub vf_access: VfAccess,
}

impl InterfaceOps {
    fn pci_function(&self, link: &Link) -> Option<PciAddress> {
        link.function.or_else(|| {
            let peer = link.lower.filter(|_| link.kind == b"veth")?;
            self.stand_ins.get(&peer).copied()
        })
    }

    pub(super) fn is_function_interface(&self, link: &Link) -> bool {
        self.pci_function(link).is_some()
    }

    /// Returns the interface of a function in a namespace. `name` is for messages.
    pub(super) fn find_interface(
        &self,
        netns: &Netns,
        pci: PciAddress,
        name: &str,
    ) -> Result<Option<Link>> {
        let (links, is_whole) = netns.snapshot()?;
        let mut matching = links.into_iter().filter(|link| self.pci_function(link) == Some(pci));
        match (matching.next(), matching.next()) {
            (_, Some(_)) => bail!(
                "interface {name}: PCI function {pci} has more than one interface, so a returning \
                 one could not be identified"
            ),
            (None, None) if !is_whole => bail!(
                "looking for interface {name} in a network namespace whose interfaces keep \
                 changing"
            ),
            (link, None) => Ok(link),
        }
    }
}
