//! Three messages to the kernel: virtual functions are read (RTM_GETLINK) and changed (RTM_SETLINK,
//! `IFLA_VFINFO_LIST`, rtnetlink(7)), and RDMA's mode of network namespaces is set
//! (`RDMA_NLDEV_CMD_SYS_SET`, include/uapi/rdma/rdma_netlink.h). Numbers are of the host's byte order.

use std::collections::BTreeMap;
use std::io;

use onload_core::host_settings::{MacAddress, RdmaNetns};
use onload_sys::netlink::message::{attribute, attributes, u32_at};
use onload_sys::netlink::nldev::{self, NetnsMode};
use onload_sys::netlink::socket::Socket;
use rustix::net::netdevice::name_to_index;
use rustix::net::netlink;

use super::kernel::{VfChange, VfSettings};

// include/uapi/linux/rtnetlink.h and if_link.h
const GET_LINK: u16 = 18;
const SET_LINK: u16 = 19;
/// `struct ifinfomsg`.
const LINK_HEADER: usize = 16;
const VF_INFO_LIST: u16 = 22;
const EXT_MASK: u16 = 29;
/// `RTEXT_FILTER_VF | RTEXT_FILTER_SKIP_STATS`.
const VFS_WITHOUT_STATISTICS: u32 = 0x1 | 0x8;
const VF_INFO: u16 = 1;
const VF_MAC: u16 = 1;
const VF_VLAN: u16 = 2;
const VF_SPOOF_CHECK: u16 = 4;
const VF_TRUST: u16 = 9;
/// `mac` in `struct ifla_vf_mac`, for the longest addresses that there are.
const MAC_BYTES: usize = 32;
pub(super) struct Netlink(Socket);

impl Netlink {
    pub(super) fn route() -> io::Result<Self> {
        Ok(Netlink(Socket::open(None)?))
    }

    pub(super) fn rdma() -> io::Result<Self> {
        Ok(Netlink(Socket::open(Some(netlink::RDMA))?))
    }

    pub(super) fn vf_settings(&self, interface: &str) -> io::Result<BTreeMap<u32, VfSettings>> {
        let index = name_to_index(&self.0, interface)?;
        let mask = attribute(EXT_MASK, &VFS_WITHOUT_STATISTICS.to_ne_bytes());
        let payload = [link_header(index), mask].concat();
        let found = self.0.ask(GET_LINK, &payload, &parse_link)?;
        Ok(found.unwrap_or_default())
    }

    pub(super) fn set_vf(&self, interface: &str, vf: u32, change: VfChange) -> io::Result<()> {
        let index = name_to_index(&self.0, interface)?;
        let payload = [link_header(index), vf_list(vf, change)].concat();
        self.0.tell(SET_LINK, 0, &payload)
    }

    pub(super) fn set_rdma_netns(&self, mode: RdmaNetns) -> io::Result<()> {
        let payload = nldev::netns_mode(match mode {
            RdmaNetns::Shared => NetnsMode::Shared,
            RdmaNetns::Exclusive => NetnsMode::Exclusive,
        });
        self.0.tell(nldev::SYS_SET, 0, &payload)
    }
}

fn link_header(index: u32) -> Vec<u8> {
    let mut bytes = vec![0; LINK_HEADER];
    if let Some(place) = bytes.get_mut(4..8) {
        place.copy_from_slice(&index.to_ne_bytes());
    }
    bytes
}

fn vf_list(vf: u32, change: VfChange) -> Vec<u8> {
    let words = |words: &[u32]| -> Vec<u8> {
        let all = [&[vf], words].concat();
        all.iter().flat_map(|word| word.to_ne_bytes()).collect()
    };
    let (kind, value) = match change {
        VfChange::Mac(mac) => {
            let mut value = [&vf.to_ne_bytes()[..], &mac.bytes()].concat();
            value.resize(4 + MAC_BYTES, 0);
            (VF_MAC, value)
        }
        // The third word is the priority of the frames.
        VfChange::Vlan(vlan) => (VF_VLAN, words(&[u32::from(vlan.number()), 0])),
        VfChange::SpoofCheck(on) => (VF_SPOOF_CHECK, words(&[u32::from(on)])),
        VfChange::Trust(on) => (VF_TRUST, words(&[u32::from(on)])),
    };
    attribute(VF_INFO_LIST, &attribute(VF_INFO, &attribute(kind, &value)))
}

/// The virtual functions in a message about an interface; none where it is none.
fn parse_link(payload: &[u8]) -> Option<BTreeMap<u32, VfSettings>> {
    let of_link = attributes(payload.get(LINK_HEADER..)?);
    let lists = of_link.filter(|(kind, _)| *kind == VF_INFO_LIST);
    let vfs = lists.flat_map(|(_, list)| attributes(list));
    let vfs = vfs.filter(|(kind, _)| *kind == VF_INFO);
    Some(vfs.filter_map(|(_, vf)| parse_vf(vf)).collect())
}

fn parse_vf(bytes: &[u8]) -> Option<(u32, VfSettings)> {
    let mut settings = VfSettings::default();
    let mut number = None;
    for (kind, value) in attributes(bytes) {
        let word = u32_at(value, 4);
        // All bits are set where the driver does not say.
        let switch = || word.filter(|word| *word <= 1).map(|word| word == 1);
        match kind {
            VF_MAC => settings.mac = value.get(4..10).and_then(mac),
            VF_VLAN => settings.vlan = word.and_then(|word| word.try_into().ok()),
            VF_SPOOF_CHECK => settings.spoof_check = switch(),
            VF_TRUST => settings.trust = switch(),
            _ => continue,
        }
        number = u32_at(value, 0);
    }
    Some((number?, settings))
}

fn mac(bytes: &[u8]) -> Option<MacAddress> {
    Some(MacAddress::told(bytes.try_into().ok()?))
}

#[cfg(fuzzing)]
pub(super) fn fuzz(bytes: &[u8]) {
    let _ = parse_link(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vlan(number: u16) -> VfChange {
        VfChange::Vlan(number.try_into().unwrap())
    }

    fn address() -> MacAddress {
        "02:00:00:00:10:01".to_owned().try_into().unwrap()
    }

    /// `strace -e trace=sendmsg ip link set eth0 vf 1 vlan 100` shows the same list.
    #[test]
    #[cfg(target_endian = "little")]
    fn a_change_is_a_list_with_one_function_in_it() {
        assert_eq!(
            vf_list(1, vlan(100)),
            [
                24, 0, 22, 0, 20, 0, 1, 0, 16, 0, 2, 0, 1, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0
            ]
        );
        let mac = vf_list(0, VfChange::Mac(address()));
        assert_eq!(mac.len(), 4 + 4 + 4 + 4 + MAC_BYTES);
        assert_eq!(mac[12..22], [0, 0, 0, 0, 2, 0, 0, 0, 0x10, 1]);
    }

    #[test]
    fn what_is_set_is_read_back_whatever_stands_around_it() {
        let changes = [
            VfChange::Mac(address()),
            vlan(7),
            VfChange::SpoofCheck(false),
            VfChange::Trust(true),
        ];
        let of = |vf: u32| -> Vec<u8> {
            let inner = changes.iter().flat_map(|change| {
                let list = vf_list(vf, *change);
                list[8..].to_vec()
            });
            let unknown = attribute(77, &[1, 2, 3]);
            attribute(VF_INFO | 0x8000, &inner.chain(unknown).collect::<Vec<u8>>())
        };
        let list = attribute(VF_INFO_LIST | 0x8000, &[of(0), of(5)].concat());
        let payload = [link_header(3), attribute(3, b"ens1\0"), list].concat();
        let found = parse_link(&payload).unwrap();
        let wanted = VfSettings {
            mac: Some(address()),
            vlan: Some(7),
            spoof_check: Some(false),
            trust: Some(true),
        };
        assert_eq!(found, BTreeMap::from([(0, wanted), (5, wanted)]));
    }

    #[test]
    fn what_a_driver_does_not_say_is_unset() {
        let unknown = [&2u32.to_ne_bytes()[..], &[0xff; 4]].concat();
        let vf = [
            attribute(VF_SPOOF_CHECK, &unknown),
            attribute(VF_TRUST, &unknown),
        ];
        assert_eq!(parse_vf(&vf.concat()), Some((2, VfSettings::default())));
        assert_eq!(parse_vf(&attribute(77, &unknown)), None);
    }

    #[test]
    fn what_is_cut_short_is_left_out_and_nothing_panics() {
        let whole = [link_header(3), vf_list(1, vlan(3))].concat();
        for end in 0..whole.len() {
            let _ = parse_link(&whole[..end]);
        }
        for bytes in [
            &[0, 0, 1, 0][..],
            &[3, 0, 1, 0],
            &[4, 0, 1, 0],
            &[255, 255, 1, 0],
        ] {
            assert!(attributes(bytes).count() <= 1);
        }
    }

    /// The loopback interface of every machine has no virtual functions.
    #[test]
    fn the_kernel_understands_the_question() {
        let netlink = Netlink::route().unwrap();
        assert_eq!(netlink.vf_settings("lo").unwrap(), BTreeMap::new());
        assert!(netlink.vf_settings("no-such-thing").is_err());
    }
}
