//! The virtual function of an interface that is set up for a container. The physical function may give it another hardware
//! address, which the interface has to take too.

use onload_core::lease::{SavedInterface, SavedVf};
use onload_sys::bail;
use onload_sys::error::{Context as _, Result};
use onload_sys::netlink::link::{Link, LinkChange, UP, format_hwaddr, parse_hwaddr};

use super::ops::{InterfaceHostNetns, InterfaceOps};
use crate::moves::lifecycle::{MoveRequest, RestoreError};
use crate::moves::netns::Netns;

/// Everything that may be wrong, before anything is changed.
pub(super) fn check_vf(
    identity: &InterfaceOps,
    home: &Netns,
    request: &MoveRequest<'_>,
) -> Result<Option<SavedVf>> {
    let Some(wanted) = &request.vf else {
        return Ok(None);
    };
    let facts = identity.functions.examine(home, request.pci, wanted);
    Ok(Some(facts.with_context(|| format!("interface {}", request.name))?))
}

/// Sets it up, while the interface is on the host.
pub(super) fn set_up_vf(
    home: &InterfaceHostNetns<'_>,
    link: &Link,
    facts: &SavedInterface,
) -> Result<()> {
    let Some(vf) = &facts.vf else {
        return Ok(());
    };
    let name = &facts.name;
    if let Some(mac) = vf.given.mac {
        let (_, change) = (set_link_state(home, link.index, 0), LinkChange::Address(mac.to_vec()));
        // Some drivers take another one only until the physical function has set one.
        let _ = home.netns.change_link(link.index, &change);
    }
    let set = home.kind.functions.set_up(&home.netns, facts.pci, vf);
    set.with_context(|| format!("interface {name}"))?;
    match vf.given.mac {
        Some(mac) if !apply_address(home, facts, &mac)? => bail!(
            "interface {name}: its driver does not take the hardware address {} that its physical function gives it; leave mac out of [netdev.NAME.vf]",
            format_hwaddr(&mac)
        ),
        _ => Ok(()),
    }
}

/// Has it as it was, when nothing of a container is on the interface any more.
pub(super) fn restore_vf(
    home: &InterfaceHostNetns<'_>,
    facts: &SavedInterface,
) -> Result<(), RestoreError> {
    let Some(vf) = &facts.vf else {
        return Ok(());
    };
    let functions = &home.kind.functions;
    functions.restore_settings(&home.netns, facts.pci, vf)?;
    if let Some(own) = parse_hwaddr(&facts.mac).filter(|_| vf.given.mac.is_some()) {
        // Where it is not taken, that is told with what else of the interface is not as it was.
        apply_address(home, facts, &own)?;
    }
    Ok(())
}

/// Has an interface take the address that its function has. A driver takes it when it is told, or asks for it when the
/// interface goes down.
fn apply_address(
    home: &InterfaceHostNetns<'_>,
    facts: &SavedInterface,
    address: &[u8],
) -> Result<bool> {
    let mut is_taken = false;
    for bounces in [false, true] {
        let Some(link) = home.find(facts)? else {
            return Ok(false);
        };
        is_taken = link.address == address;
        if is_taken {
            break;
        }
        if bounces {
            set_link_state(home, link.index, UP);
        }
        set_link_state(home, link.index, 0);
        let change = LinkChange::Address(address.to_vec());
        let _ = home.netns.change_link(link.index, &change);
        let found = home.find(facts)?;
        is_taken = found.is_some_and(|link| link.address == address);
    }
    Ok(is_taken)
}

fn set_link_state(home: &InterfaceHostNetns<'_>, index: u32, flags: u32) {
    let _ = home.netns.change_link(index, &LinkChange::Flags { mask: UP, flags });
}
