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
        flags: link.flags,
        settings: link.settings.clone().into_iter().collect(),
        sysctls: BTreeMap::new(),
        queues: None,
        onload: None,
        vf: None,
        pci,
    }
}

/// Returns the changes that restore an interface, each with the name of its setting. The order matters: an address
/// changes while the interface is down, and an alternative name is removed before it becomes the name.
pub(super) fn plan_restore<'a>(
    link: &'a Link,
    saved: &'a SavedInterface,
) -> Vec<(&'static str, LinkChange<'a>)> {
    let mut plan = Vec::new();
    plan.extend(link.xdp_modes.iter().map(|mode| ("its XDP program", LinkChange::NoXdp(*mode))));
    for name in &link.alternative_names {
        if !saved.alternative_names.iter().any(|saved_name| saved_name.as_bytes() == name) {
            plan.push(("its other names", LinkChange::AlternativeName { name, is_set: false }));
        }
    }
    let name = saved.name.as_bytes();
    let address = parse_hwaddr(&saved.mac).filter(|address| *address != link.address);
    let (renamed, resized) = (link.name != name, link.mtu != saved.mtu);
    let is_taken_down = renamed || resized || address.is_some();
    if is_taken_down && link.flags & UP != 0 {
        plan.push(("its state", LinkChange::Flags { mask: UP, flags: 0 }));
    }
    plan.extend(renamed.then_some(("its name", LinkChange::Name(name))));
    for name in saved.alternative_names.iter().map(String::as_bytes) {
        if !link.alternative_names.iter().any(|current_name| current_name == name) {
            plan.push(("its other names", LinkChange::AlternativeName { name, is_set: true }));
        }
    }
    plan.extend(address.map(|address| ("its address", LinkChange::Address(address))));
    plan.extend(resized.then_some(("its MTU", LinkChange::Mtu(saved.mtu))));
    // The kernel derives some of these from others, so they are set in this order.
    for (kind, value) in &saved.settings {
        if link.settings.get(kind) != Some(value) {
            let change = LinkChange::Setting { kind: *kind, value };
            plan.push(("its queue length, alias, group or offload limits", change));
        }
    }
    let flags = LinkChange::Flags { mask: SETTABLE_FLAGS, flags: saved.flags };
    if (link.flags ^ saved.flags) & SETTABLE_FLAGS != 0 {
        plan.push(("its flags", flags.clone()));
    }
    // An interface that was set down for a change is set up again.
    if is_taken_down && link.flags & saved.flags & UP != 0 {
        plan.push(("its flags", flags));
    }
    plan
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
            settings: BTreeMap::from([(20, b"rack 7".to_vec()), (27, vec![0; 4])]),
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
            flags: UP | 0x1100,
            xdp_modes: &[2, 4, 8],
            settings: BTreeMap::from([(20, b"mine".to_vec()), (27, vec![7; 4]), (63, vec![1; 4])]),
            ..link()
        };
        let facts = facts();
        let plan = plan_restore(&theirs, &facts);
        let steps: Vec<LinkChange<'_>> = plan.into_iter().map(|(_, change)| change).collect();
        let other = |name, is_set| LinkChange::AlternativeName { name, is_set };
        let flags = LinkChange::Flags { mask: SETTABLE_FLAGS, flags: facts.flags };
        let wanted = [
            LinkChange::NoXdp(2),
            LinkChange::NoXdp(4),
            LinkChange::NoXdp(8),
            other(b"ens1v0", false),
            other(b"\xff", false),
            LinkChange::Flags { mask: UP, flags: 0 },
            LinkChange::Name(b"ens1v0"),
            other(b"enp3s0v0", true),
            LinkChange::Address(vec![2, 0, 0, 0, 0, 1]),
            LinkChange::Mtu(1500),
            LinkChange::Setting { kind: 20, value: b"rack 7" },
            LinkChange::Setting { kind: 27, value: &[0; 4] },
            flags.clone(),
            flags,
        ];
        assert_eq!(steps, wanted);
    }

    #[test]
    fn each_thing_that_differs_is_named() {
        assert_eq!(wrong(&Link { mtu: 9, flags: 0x1000, ..link() }), ["its MTU", "its flags"]);
        assert_eq!(wrong(&Link { flags: 0x1000, ..link() }), ["its flags"]);
        let without_alias = BTreeMap::from([(20, Vec::new()), (27, vec![0; 4])]);
        let settings = ["its queue length, alias, group or offload limits"];
        assert_eq!(wrong(&Link { settings: without_alias, ..link() }), settings);
        assert_eq!(wrong(&Link { alternative_names: Vec::new(), ..link() }), ["its other names"]);
        let xdp = Link { xdp_modes: &[4], ..link() };
        assert_eq!(wrong(&xdp), ["its XDP program"]);
    }

    #[test]
    fn an_interface_without_address_gets_none() {
        let plain = Link { address: Vec::new(), ..link() };
        let facts = save_interface(&plain, "0000:03:10.0".parse().unwrap());
        assert_eq!(facts.mac, "");
        assert_eq!(plan_restore(&plain, &facts), []);
    }
}
