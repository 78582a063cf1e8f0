//! Notifications about network interfaces (rtnetlink(7), `rtnl_fill_ifinfo` in net/core/rtnetlink.c).

use onload_sys::netlink::link;
use onload_sys::netlink::message::parse_messages;

/// The group of messages about interfaces (`RTMGRP_LINK`, include/uapi/linux/rtnetlink.h).
pub(super) const GROUP: u32 = 1;
/// A kind of interface that belongs to a device.
const IPOIB: &[u8] = b"ipoib";

/// Returns whether a message is about the interface of a device. Virtual interfaces have a kind, such as `veth`, and
/// are created with every container.
pub(super) fn is_relevant(bytes: &[u8]) -> bool {
    let mut links = parse_messages(bytes)
        .flatten()
        .filter(|message| matches!(message.kind, link::NEW | link::DELETE))
        .filter_map(|message| link::parse(message.payload));
    links.any(|link| link.kind.is_empty() || link.kind == IPOIB)
}

#[cfg(fuzzing)]
pub(super) fn fuzz(bytes: &[u8]) {
    assert!(!is_relevant(bytes) || bytes.len() >= 32);
}

#[cfg(test)]
pub(super) mod tests {
    use onload_sys::netlink::message::{encode_attribute, encode_message};

    use super::*;

    fn about_link(kind: u16, attributes: &[u8]) -> Vec<u8> {
        encode_message(kind, 0, 0, &[&[0; 16], attributes].concat())
    }

    fn of_kind(kind: &[u8]) -> Vec<u8> {
        encode_attribute(18, &encode_attribute(1, kind))
    }

    /// A message about an interface with a device.
    pub(in super::super) fn of_device() -> Vec<u8> {
        about_link(link::NEW, &encode_attribute(3, b"ens1\0"))
    }

    #[test]
    fn interfaces_of_devices_are_of_interest() {
        assert!(is_relevant(&of_device()));
        assert!(is_relevant(&about_link(link::DELETE, &[])));
        assert!(is_relevant(&about_link(link::NEW, &of_kind(b"ipoib\0"))));
        let veth = about_link(link::NEW, &of_kind(b"veth\0"));
        assert!(is_relevant(&[veth, of_device()].concat()));
    }

    #[test]
    fn virtual_interfaces_and_other_messages_are_not() {
        assert!(!is_relevant(&about_link(link::NEW, &of_kind(b"veth\0"))));
        assert!(!is_relevant(&about_link(20, &[])));
        for end in 0..of_device().len() {
            assert!(!is_relevant(&of_device()[..end]), "{end}");
        }
        assert!(!is_relevant(&[0; 64]));
        assert!(!is_relevant(&[0xff; 64]));
    }
}
