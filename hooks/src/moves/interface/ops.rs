//! Finds the interface of a PCI function, under any name. The kernel reports the function of each interface in every
//! network namespace (`IFLA_PARENT_DEV_NAME`, Linux 5.14), and a container cannot change it.

use onload_lease::SavedInterface;
use onload_sys::error::{Result, bail};
use onload_sys::netlink::link::Link;
use onload_sys::pci::PciAddress;

use crate::moves::netns::Netns;
#[cfg(feature = "stand-ins")]
use crate::moves::stand_ins::pci_function;

#[derive(Debug)]
pub(crate) struct InterfaceOps;

#[cfg(not(feature = "stand-ins"))]
fn pci_function(link: &Link) -> Option<PciAddress> {
    link.function
}

pub(super) fn is_function_interface(link: &Link) -> bool {
    pci_function(link).is_some()
}

/// Returns the interface of a function in a namespace. `name` is for messages.
pub(super) fn find_interface(netns: &Netns, pci: PciAddress, name: &str) -> Result<Option<Link>> {
    let (links, is_whole) = netns.snapshot()?;
    let mut matching = links.into_iter().filter(|link| pci_function(link) == Some(pci));
    match (matching.next(), matching.next()) {
        (_, Some(_)) => bail!(
            "interface {name}: PCI function {pci} has more than one interface, so a returning \
             one could not be identified"
        ),
        (None, None) if !is_whole => {
            bail!(
                "looking for interface {name} in a network namespace whose interfaces keep changing"
            )
        }
        (link, None) => Ok(link),
    }
}

/// Returns the interface of a lease in a namespace.
pub(super) fn find_saved(netns: &Netns, saved: &SavedInterface) -> Result<Option<Link>> {
    find_interface(netns, saved.pci, &saved.name)
}
