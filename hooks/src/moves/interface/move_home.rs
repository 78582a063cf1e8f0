//! Moves an interface out of a container's network namespace. Processes in there may interfere, and may put another
//! interface in its place.

use onload_lease::SavedInterface;
use onload_sys::error::{Context as _, Result, bail};
use onload_sys::netlink::link::{Link, LinkChange, UP};

use super::ops::{find_saved, is_function_interface};
use super::uppers::{self, move_context};
use crate::moves::netns::{Netns, SearchDepth};
use crate::moves::transit_name::{is_transit_name, transit_name};

/// Moves an interface out of a namespace, whatever was done to it there. A container may keep changing it, so only the
/// result of the move counts.
pub(super) fn move_home(
    from: &Netns,
    link: &Link,
    host_netns: &Netns,
    saved: &SavedInterface,
) -> Result<()> {
    let (before, _) = from.snapshot()?;
    strip_settings(from, link, &before);
    // The name is random: if an impostor had it as an alternative name, the kernel would move it, fail to rename it,
    // and leave it on the host under a name that the container chose.
    let name = transit_name();
    let moved = from.move_link(link.index, host_netns, Some(name.as_bytes()));
    let saved_name = saved.name.as_bytes();
    moved.with_context(|| move_context(saved_name, "back to the host"))?;
    return_impostor(host_netns, from, saved, name.as_bytes())
}

/// Removes from an interface what could prevent the move. Ignores failures.
fn strip_settings(from: &Netns, link: &Link, before: &[Link]) {
    let state = |flags| LinkChange::Flags { mask: UP, flags };
    // Deleting stacked interfaces while this one is up leaves neither their addresses nor promiscuous mode behind.
    if before.iter().any(|other| other.is_upper_of(link.index)) {
        let _ = from.change_link(link.index, &state(UP));
    }
    let _ = uppers::delete_uppers(from, link, SearchDepth::Root, uppers::SHORT);
    let _ = from.change_link(link.index, &state(0));
    for mode in link.xdp_modes {
        let _ = from.change_link(link.index, &LinkChange::NoXdp(*mode));
    }
    // Since Linux 6.6 an alternative name that the host has too makes the move fail.
    for name in &link.alternative_names {
        let _ = from.change_link(link.index, &LinkChange::AlternativeName { name, is_set: false });
    }
}

/// Moves an interface that arrived on the host back, unless it is the expected one: the container may have put its own
/// interface in its place, with the same index.
fn return_impostor(
    host_netns: &Netns,
    from: &Netns,
    saved: &SavedInterface,
    name: &[u8],
) -> Result<()> {
    let returned = find_saved(host_netns, saved)?;
    let (host_links, _) = host_netns.snapshot()?;
    let own_index = returned.as_ref().map(|returned| returned.index);
    let impostor =
        host_links.iter().find(|link| link.name == name && Some(link.index) != own_index);
    if let Some(impostor) = impostor {
        let moved_away =
            host_netns.move_link(impostor.index, from, Some(transit_name().as_bytes()));
        moved_away
            .or_else(|_| uppers::delete(host_netns, impostor.index))
            .with_context(|| move_context(name, "away, which is another one"))?;
    }
    if returned.is_none() {
        bail!(
            "interface {} was replaced by another one in its container's network namespace while it was fetched; stop what runs there, then run \"onload-ctk lease restore\"",
            saved.name
        );
    }
    Ok(())
}

/// Deletes interfaces that a container put in the place of others, and that stayed on the host because the process that
/// moved them was killed. Otherwise only interfaces of drivers arrive under a transit name, and these are not deleted.
pub(super) fn delete_impostors(host_netns: &Netns) -> Result<()> {
    let (host_links, _) = host_netns.snapshot()?;
    for link in host_links {
        let is_virtual = !link.kind.is_empty() && !is_function_interface(&link);
        if is_virtual && is_transit_name(&link.name) {
            // An impostor that cannot be deleted must not block the return of an interface.
            let _ = host_netns.delete(link.index);
        }
    }
    Ok(())
}
