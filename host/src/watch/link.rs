//! What the kernel says of network interfaces (rtnetlink(7), `rtnl_fill_ifinfo` in net/core/rtnetlink.c).

use onload_sys::netlink::message::{attributes, padded, u16_at, u32_at};

/// The group of messages about interfaces (`RTMGRP_LINK`, include/uapi/linux/rtnetlink.h).
pub(super) const GROUP: u32 = 1;
const HEADER: usize = 16;
const LINK_HEADER: usize = 16;
const NEW_LINK: u16 = 16;
const DELETED_LINK: u16 = 17;
// include/uapi/linux/if_link.h
const LINK_INFO: u16 = 18;
const INFO_KIND: u16 = 1;
/// A kind of interface that stands on a device all the same.
const IPOIB: &[u8] = b"ipoib\0";

/// Whether one of these messages is about the interface of a device. Virtual ones have a kind, such as
/// `veth`: each container that starts makes some.
pub(super) fn is_of_interest(mut bytes: &[u8]) -> bool {
    while let Some(length) = u32_at(bytes, 0) {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some(payload) = bytes.get(HEADER..length) else {
            return false;
        };
        let kind = u16_at(bytes, 4);
        let is_link = kind == Some(NEW_LINK) || kind == Some(DELETED_LINK);
        if is_link && is_on_device(payload) {
            return true;
        }
        bytes = bytes.get(padded(length)..).unwrap_or_default();
    }
    false
}

fn is_on_device(payload: &[u8]) -> bool {
    let Some(of_link) = payload.get(LINK_HEADER..) else {
        return false;
    };
    let info = attributes(of_link).filter(|(kind, _)| *kind == LINK_INFO);
    let mut kinds = info.flat_map(|(_, info)| attributes(info));
    kinds.all(|(kind, value)| kind != INFO_KIND || value == IPOIB)
}

#[cfg(fuzzing)]
pub(super) fn fuzz(bytes: &[u8]) {
    assert!(!is_of_interest(bytes) || bytes.len() >= HEADER + LINK_HEADER);
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + value.len()).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(padded(bytes.len()), 0);
        bytes
    }

    fn message(kind: u16, attributes: &[Vec<u8>]) -> Vec<u8> {
        let payload = [vec![0; LINK_HEADER], attributes.concat()].concat();
        let length = u32::try_from(HEADER + payload.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(HEADER, 0);
        bytes.extend(payload);
        bytes
    }

    fn of_kind(kind: &[u8]) -> Vec<u8> {
        attribute(LINK_INFO, &attribute(INFO_KIND, kind))
    }

    /// A message about an interface with a device.
    pub(in super::super) fn of_device() -> Vec<u8> {
        message(NEW_LINK, &[attribute(3, b"ens1\0")])
    }

    #[test]
    fn interfaces_of_devices_are_of_interest() {
        assert!(is_of_interest(&of_device()));
        assert!(is_of_interest(&message(DELETED_LINK, &[])));
        assert!(is_of_interest(&message(NEW_LINK, &[of_kind(b"ipoib\0")])));
        let veth = message(NEW_LINK, &[of_kind(b"veth\0")]);
        assert!(is_of_interest(&[veth, of_device()].concat()));
    }

    #[test]
    fn virtual_interfaces_and_other_messages_are_not() {
        assert!(!is_of_interest(&message(NEW_LINK, &[of_kind(b"veth\0")])));
        assert!(!is_of_interest(&message(20, &[])));
        for end in 0..of_device().len() {
            assert!(!is_of_interest(&of_device()[..end]), "{end}");
        }
        assert!(!is_of_interest(&[0; 64]));
        assert!(!is_of_interest(&[0xff; 64]));
    }
}
