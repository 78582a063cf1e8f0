//! The saved state of an interface, and the changes that restore it. This module neither reads nor changes the
//! interface.

use std::collections::BTreeMap;

use onload_lease::SavedInterface;
use onload_sys::pci::PciAddress;

use onload_sys::netlink::link::{
    Link, LinkChange, SETTABLE_FLAGS, UP, format_hwaddr, parse_hwaddr,
};

/// Returns the netlink state of an interface for its lease. Names that are not UTF-8 are left out.
pub(super) fn save_interface(link: &Link, pci: PciAddress) -> SavedInterface {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let address = |bytes: &[u8]| (!bytes.is_empty()).then(|| format_hwaddr(bytes));
    SavedInterface {
        name: link.display_name(),
        alternative_names: link.alternative_names.iter().filter_map(|name| text(name)).collect(),
        mac: address(&link.address).unwrap_or_default(),
        permanent_mac: address(&link.permanent_address),
        mtu: link.mtu,
        queue_length: link.queue_length,
        alias: text(&link.alias).filter(|alias| !alias.is_empty()),
        flags: link.flags,
        broadcast: address(&link.broadcast),
        link_mode: link.link_mode,
        words: link.words.clone(),
        sysctls: BTreeMap::new(),
        queues: None,
        onload: None,
        vf: None,
        pci,
    }
}

/// A step of restoring an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RestoreStep<'a> {
    Change(LinkChange<'a>),
    AlternativeName { name: &'a [u8], is_set: bool },
}

/// Returns the settings that differ, each with its name and the steps to restore it. The order matters: an address
/// changes while the interface is down, and an alternative name is removed before it becomes the name.
pub(super) fn plan_restore<'a>(
    link: &'a Link,
    saved: &'a SavedInterface,
) -> Vec<(&'static str, Vec<RestoreStep<'a>>)> {
    let mut plan: Vec<(&'static str, Vec<RestoreStep<'a>>)> = Vec::new();
    let mut add = |what, steps: Vec<RestoreStep<'a>>| {
        if !steps.is_empty() {
            plan.push((what, steps));
        }
    };
    let step_if = |differs: bool, change| optional_step(differs.then_some(change));
    let no_xdp = link.xdp_modes.iter().map(|mode| RestoreStep::Change(LinkChange::NoXdp(*mode)));
    add("its XDP program", no_xdp.collect());
    let names = &saved.alternative_names;
    let other_names = link
        .alternative_names
        .iter()
        .filter(|name| !names.iter().any(|saved_name| saved_name.as_bytes() == **name))
        .map(|name| RestoreStep::AlternativeName { name, is_set: false });
    add("its other names", other_names.collect());
    let name = saved.name.as_bytes();
    let address = parse_hwaddr(&saved.mac).filter(|address| *address != link.address);
    let (renamed, resized) = (link.name != name, link.mtu != saved.mtu);
    let is_taken_down = renamed || resized || address.is_some();
    let down = LinkChange::Flags { mask: UP, flags: 0 };
    add("its state", step_if(is_taken_down && link.flags & UP != 0, down));
    add("its name", step_if(renamed, LinkChange::Name(name)));
    let missing = names
        .iter()
        .map(String::as_bytes)
        .filter(|name| !link.alternative_names.iter().any(|current_name| current_name == name))
        .map(|name| RestoreStep::AlternativeName { name, is_set: true });
    add("its other names", missing.collect());
    add("its address", optional_step(address.map(LinkChange::Address)));
    add("its MTU", step_if(resized, LinkChange::Mtu(saved.mtu)));
    let length = saved.queue_length;
    let is_other = link.queue_length != length;
    add("the length of its queue", step_if(is_other, LinkChange::QueueLength(length)));
    let alias = saved.alias.as_deref().unwrap_or_default().as_bytes();
    add("its alias", step_if(link.alias != alias, LinkChange::Alias(alias)));
    let broadcast =
        saved.broadcast.as_deref().and_then(parse_hwaddr).filter(|bytes| *bytes != link.broadcast);
    add("its broadcast address", optional_step(broadcast.map(LinkChange::Broadcast)));
    let mode = saved.link_mode.filter(|mode| Some(*mode) != link.link_mode);
    add("its link mode", optional_step(mode.map(LinkChange::LinkMode)));
    // The kernel derives some of these from others, so they are set in this order.
    let words = saved
        .words
        .iter()
        .filter(|(kind, word)| link.words.get(kind).is_some_and(|now| now != *word))
        .map(|(kind, word)| LinkChange::Word { kind: *kind, word: *word });
    add("its group or the limits of its offloads", words.map(RestoreStep::Change).collect());
    let flags = LinkChange::Flags { mask: SETTABLE_FLAGS, flags: saved.flags };
    let differs = (link.flags ^ saved.flags) & SETTABLE_FLAGS != 0;
    add("its flags", step_if(differs, flags.clone()));
    // An interface that was set down for a change is set up again.
    let went_down = is_taken_down && link.flags & saved.flags & UP != 0;
    add("its flags", step_if(went_down, flags));
    plan
}

fn optional_step(change: Option<LinkChange<'_>>) -> Vec<RestoreStep<'_>> {
    change.map(RestoreStep::Change).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> Link {
        Link {
            index: 7,
            flags: UP | 0x1000,
            name: b"ens1v0".to_vec(),
            alternative_names: vec![b"enp3s0v0".to_vec()],
            address: vec![2, 0, 0, 0, 0, 1],
            mtu: 1500,
            queue_length: 1000,
            alias: b"rack 7".to_vec(),
            broadcast: vec![255; 6],
            link_mode: Some(0),
            words: BTreeMap::from([(27, 0), (41, 65536)]),
            ..Link::default()
        }
    }

    fn facts() -> SavedInterface {
        save_interface(&link(), "0000:03:10.0".parse().unwrap())
    }

    fn wrong(link: &Link) -> Vec<&'static str> {
        plan_restore(link, &facts()).into_iter().map(|(what, _)| what).collect()
    }

    #[test]
    fn an_interface_that_is_as_it_was_is_left_alone() {
        assert_eq!(plan_restore(&link(), &facts()), []);
        // Values that the kernel sets by itself were not chosen.
        let running = Link { flags: link().flags | 0x1_0040, index: 9, ..link() };
        assert_eq!(plan_restore(&running, &facts()), []);
    }

    #[test]
    fn whatever_a_container_changed_is_mended_in_an_order_that_works() {
        let theirs = Link {
            name: b"eth7".to_vec(),
            alternative_names: vec![b"ens1v0".to_vec(), b"\xff".to_vec()],
            address: vec![2, 0, 0, 0, 0, 9],
            mtu: 900,
            queue_length: 1,
            alias: b"mine".to_vec(),
            flags: UP | 0x1100,
            xdp_modes: &[2, 4, 8],
            broadcast: vec![255, 255, 255, 255, 255, 0],
            link_mode: Some(1),
            words: BTreeMap::from([(27, 7), (41, 3000), (63, 1)]),
            ..link()
        };
        let facts = facts();
        let plan = plan_restore(&theirs, &facts);
        let steps: Vec<RestoreStep<'_>> = plan.into_iter().flat_map(|(_, steps)| steps).collect();
        let other = |name, is_set| RestoreStep::AlternativeName { name, is_set };
        let flags = LinkChange::Flags { mask: SETTABLE_FLAGS, flags: facts.flags };
        let wanted = [
            RestoreStep::Change(LinkChange::NoXdp(2)),
            RestoreStep::Change(LinkChange::NoXdp(4)),
            RestoreStep::Change(LinkChange::NoXdp(8)),
            other(b"ens1v0", false),
            other(b"\xff", false),
            RestoreStep::Change(LinkChange::Flags { mask: UP, flags: 0 }),
            RestoreStep::Change(LinkChange::Name(b"ens1v0")),
            other(b"enp3s0v0", true),
            RestoreStep::Change(LinkChange::Address(vec![2, 0, 0, 0, 0, 1])),
            RestoreStep::Change(LinkChange::Mtu(1500)),
            RestoreStep::Change(LinkChange::QueueLength(1000)),
            RestoreStep::Change(LinkChange::Alias(b"rack 7")),
            RestoreStep::Change(LinkChange::Broadcast(vec![255; 6])),
            RestoreStep::Change(LinkChange::LinkMode(0)),
            RestoreStep::Change(LinkChange::Word { kind: 27, word: 0 }),
            RestoreStep::Change(LinkChange::Word { kind: 41, word: 65536 }),
            RestoreStep::Change(flags.clone()),
            RestoreStep::Change(flags),
        ];
        assert_eq!(steps, wanted);
    }

    #[test]
    fn each_thing_that_differs_is_named() {
        assert_eq!(wrong(&Link { mtu: 9, flags: 0x1000, ..link() }), ["its MTU", "its flags"]);
        assert_eq!(wrong(&Link { flags: 0x1000, ..link() }), ["its flags"]);
        assert_eq!(wrong(&Link { alias: Vec::new(), ..link() }), ["its alias"]);
        assert_eq!(wrong(&Link { alternative_names: Vec::new(), ..link() }), ["its other names"]);
        let xdp = Link { xdp_modes: &[4], ..link() };
        assert_eq!(wrong(&xdp), ["its XDP program"]);
    }

    #[test]
    fn an_interface_without_alias_or_address_gets_none() {
        let plain = Link { alias: Vec::new(), address: Vec::new(), ..link() };
        let facts = save_interface(&plain, "0000:03:10.0".parse().unwrap());
        assert_eq!((facts.alias.as_deref(), facts.mac.as_str()), (None, ""));
        assert_eq!(plan_restore(&plain, &facts), []);
        let named = link();
        let steps = plan_restore(&named, &facts);
        assert_eq!(steps, [("its alias", vec![RestoreStep::Change(LinkChange::Alias(b""))])]);
    }
}
