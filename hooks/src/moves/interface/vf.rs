//! Sets up the virtual function of an interface for a container. If the physical function sets another hardware
//! address, the interface has to adopt it.

use onload_lease::{SavedInterface, SavedVf};
use onload_sys::error::{Context as _, Result, bail};
use onload_sys::netlink::link::{Link, LinkChange, UP, format_hwaddr, parse_hwaddr};

use super::ops::find_saved;
use crate::moves::lifecycle::{MoveRequest, RestoreError};
use crate::moves::netns::Netns;
use crate::moves::vf;

/// Checks everything that may fail before changing anything.
pub(super) fn check_vf(host_netns: &Netns, request: &MoveRequest<'_>) -> Result<Option<SavedVf>> {
    let Some(vf_config) = &request.vf else {
        return Ok(None);
    };
    let saved = vf::examine(host_netns, request.pci, vf_config);
    Ok(Some(saved.with_context(|| format!("interface {}", request.name))?))
}

/// Sets up the virtual function while its interface is on the host.
pub(super) fn set_up_vf(host_netns: &Netns, link: &Link, saved: &SavedInterface) -> Result<()> {
    let Some(vf_settings) = &saved.vf else {
        return Ok(());
    };
    let name = &saved.name;
    if let Some(mac) = vf_settings.given.mac {
        // Some drivers accept a new address only until the physical function has set one.
        set_address_while_down(host_netns, link.index, &mac);
    }
    let set = vf::set_up(host_netns, saved.pci, vf_settings);
    set.with_context(|| format!("interface {name}"))?;
    match vf_settings.given.mac {
        Some(mac) if !apply_address(host_netns, saved, &mac)? => bail!(
            "interface {name}: its driver rejects the hardware address {} of its physical \
             function; remove mac from [netdev.NAME.vf]",
            format_hwaddr(&mac)
        ),
        _ => Ok(()),
    }
}

/// Restores the virtual function, once nothing of the container is left on the interface.
pub(super) fn restore_vf(host_netns: &Netns, saved: &SavedInterface) -> Result<(), RestoreError> {
    let Some(vf_settings) = &saved.vf else {
        return Ok(());
    };
    vf::restore_settings(host_netns, saved.pci, vf_settings)?;
    if let Some(address) = parse_hwaddr(&saved.mac).filter(|_| vf_settings.given.mac.is_some()) {
        // A failure shows up later among the settings of the interface that were not restored.
        apply_address(host_netns, saved, &address)?;
    }
    Ok(())
}

/// Makes an interface adopt its function's hardware address. Drivers adopt it when it is set, or when the interface
/// goes down.
fn apply_address(host_netns: &Netns, saved: &SavedInterface, address: &[u8]) -> Result<bool> {
    for bounces in [false, true] {
        match find_saved(host_netns, saved)? {
            None => return Ok(false),
            Some(link) if link.address == address => return Ok(true),
            Some(link) => {
                if bounces {
                    let up = LinkChange::Flags { mask: UP, flags: UP };
                    let _ = host_netns.change_link(link.index, &up);
                }
                set_address_while_down(host_netns, link.index, address);
            }
        }
    }
    Ok(find_saved(host_netns, saved)?.is_some_and(|link| link.address == address))
}

/// Ignores failures, since the address is compared afterwards.
fn set_address_while_down(host_netns: &Netns, index: u32, address: &[u8]) {
    let down = LinkChange::Flags { mask: UP, flags: 0 };
    for change in [down, LinkChange::Address(address.to_vec())] {
        let _ = host_netns.change_link(index, &change);
    }
}
