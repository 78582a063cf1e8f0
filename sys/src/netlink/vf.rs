//! Virtual functions, as the driver of their physical function has them (`IFLA_VFINFO_LIST`, rtnetlink(7), and
//! `struct ifla_vf_info` in include/linux/if_link.h).

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::link::{HEADER, format_hwaddr, header};
use super::message::{
    encode_attribute, encode_nested, find_attribute, parse_attributes, u16_at, u32_at,
};

const VF_COUNT: u16 = 21; // IFLA_NUM_VF
const VF_INFO_LIST: u16 = 22;
const EXT_MASK: u16 = 29;
/// `RTEXT_FILTER_VF | RTEXT_FILTER_SKIP_STATS`.
const VFS_WITHOUT_STATISTICS: u32 = 0x1 | 0x8;
const VF_INFO: u16 = 1;
const VF_MAC: u16 = 1;
const VF_VLAN: u16 = 2;
const VF_SPOOF_CHECK: u16 = 4;
const VF_LINK_STATE: u16 = 5;
const VF_RATE: u16 = 6;
const VF_TRUST: u16 = 9;
const VF_VLAN_LIST: u16 = 12;
const VF_VLAN_INFO: u16 = 1;
/// `mac` in `struct ifla_vf_mac`, for the longest addresses that there are.
const MAC_BYTES: usize = 32;

/// The VLAN that the card puts frames into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VlanTag {
    /// 0: none.
    pub id: u16,
    /// Priority (802.1p).
    #[serde(default)]
    pub priority: u8,
    #[serde(default)]
    pub protocol: VlanProtocol,
}

/// The standard of the tag, with its EtherType.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum VlanProtocol {
    /// A customer's tag.
    #[default]
    #[serde(rename = "802.1q")]
    Q = 0x8100,
    /// A provider's tag, in front of the customer's.
    #[serde(rename = "802.1ad")]
    Ad = 0x88a8,
}

/// The link state of a virtual function, with its number in `VF_LINK_STATE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// The same as that of the physical function.
    Auto,
    /// Always up, even without a cable, so that virtual functions of one card reach each other.
    Enable,
    Disable,
}

impl LinkState {
    const ALL: [LinkState; 3] = [LinkState::Auto, LinkState::Enable, LinkState::Disable];
}

crate::error::shown_as_serialized!(VlanProtocol LinkState);

/// Settings of a virtual function, either requested or as the driver reports them. `None` is not requested or not
/// reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VfSettings {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanTag>,
    /// Hardware address; all zeros if the physical function sets none.
    #[serde(with = "mac_text", skip_serializing_if = "Option::is_none")]
    pub mac: Option<[u8; 6]>,
    /// Whether frames with another source address are dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spoof_check: Option<bool>,
    /// Whether the virtual function may change settings that by default only the physical function may change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust: Option<bool>,
    /// Guaranteed transmit rate in Mbit/s; 0 for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_rate: Option<u32>,
    /// Maximum transmit rate in Mbit/s; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rate: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_state: Option<LinkState>,
}

/// A change to one setting of a virtual function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VfChange {
    Vlan(VlanTag),
    Mac([u8; 6]),
    SpoofCheck(bool),
    Trust(bool),
    Rate { min: u32, max: u32 },
    LinkState(LinkState),
}

impl VfChange {
    /// Returns the name of the setting in config.toml.
    pub fn name(self) -> &'static str {
        match self {
            VfChange::Vlan(_) => "vlan",
            VfChange::Mac(_) => "mac",
            VfChange::SpoofCheck(_) => "spoof-check",
            VfChange::Trust(_) => "trust",
            VfChange::Rate { .. } => "rate",
            VfChange::LinkState(_) => "link-state",
        }
    }

    /// Returns the value of the same setting in `current`. `None` if it is not reported.
    pub fn current_setting(self, current: &VfSettings) -> Option<VfChange> {
        match self {
            VfChange::Vlan(_) => current.vlan.map(VfChange::Vlan),
            VfChange::Mac(_) => current.mac.map(VfChange::Mac),
            VfChange::SpoofCheck(_) => current.spoof_check.map(VfChange::SpoofCheck),
            VfChange::Trust(_) => current.trust.map(VfChange::Trust),
            VfChange::Rate { .. } => {
                let (min, max) = current.min_rate.zip(current.max_rate)?;
                Some(VfChange::Rate { min, max })
            }
            VfChange::LinkState(_) => current.link_state.map(VfChange::LinkState),
        }
    }

    fn to_attribute(self, vf: u32) -> Vec<u8> {
        let words = |words: &[u32]| -> Vec<u8> {
            let all = [&[vf], words].concat();
            all.iter().flat_map(|word| word.to_ne_bytes()).collect()
        };
        let switch = |kind, on| encode_attribute(kind, &words(&[u32::from(on)]));
        match self {
            VfChange::Mac(mac) => {
                let mut value = [&vf.to_ne_bytes()[..], &mac].concat();
                value.resize(4 + MAC_BYTES, 0);
                encode_attribute(VF_MAC, &value)
            }
            VfChange::Vlan(tag) => {
                let value = words(&[tag.id.into(), tag.priority.into()]);
                match tag.protocol {
                    VlanProtocol::Q => encode_attribute(VF_VLAN, &value),
                    protocol => {
                        let number = (protocol as u16).to_be_bytes();
                        let value = [&value[..], &number, &[0; 2]].concat();
                        encode_nested(VF_VLAN_LIST, &encode_attribute(VF_VLAN_INFO, &value))
                    }
                }
            }
            VfChange::SpoofCheck(on) => switch(VF_SPOOF_CHECK, on),
            VfChange::Trust(on) => switch(VF_TRUST, on),
            VfChange::Rate { min, max } => encode_attribute(VF_RATE, &words(&[min, max])),
            VfChange::LinkState(state) => encode_attribute(VF_LINK_STATE, &words(&[state as u32])),
        }
    }
}

impl fmt::Display for VfChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let switch = |on: bool| if on { "on" } else { "off" };
        match self {
            VfChange::Vlan(tag) => {
                write!(f, "vlan {}", tag.id)?;
                if tag.priority != 0 {
                    write!(f, " of priority {}", tag.priority)?;
                }
                match tag.protocol {
                    VlanProtocol::Q => Ok(()),
                    protocol => write!(f, " by {protocol}"),
                }
            }
            VfChange::Mac(mac) => write!(f, "mac {}", format_hwaddr(mac)),
            VfChange::SpoofCheck(on) => write!(f, "spoof-check {}", switch(*on)),
            VfChange::Trust(on) => write!(f, "trust {}", switch(*on)),
            VfChange::Rate { min, max } => write!(f, "rate {min} to {max} Mbit/s"),
            VfChange::LinkState(state) => write!(f, "link-state {state}"),
        }
    }
}

impl VfSettings {
    /// Returns these settings, completed by those of `other`.
    #[must_use]
    pub fn merge_missing(&self, other: &VfSettings) -> VfSettings {
        VfSettings {
            vlan: self.vlan.or(other.vlan),
            mac: self.mac.or(other.mac),
            spoof_check: self.spoof_check.or(other.spoof_check),
            trust: self.trust.or(other.trust),
            min_rate: self.min_rate.or(other.min_rate),
            max_rate: self.max_rate.or(other.max_rate),
            link_state: self.link_state.or(other.link_state),
        }
    }

    /// Returns a change for each requested setting. The driver takes both rates at once, so that a missing one is the
    /// present one.
    pub fn changes(&self, current: &VfSettings) -> impl Iterator<Item = VfChange> + use<> {
        let is_limited = self.min_rate.is_some() || self.max_rate.is_some();
        let rate = |own: Option<u32>, current: Option<u32>| own.or(current).unwrap_or_default();
        let all = [
            self.vlan.map(VfChange::Vlan),
            self.mac.map(VfChange::Mac),
            self.spoof_check.map(VfChange::SpoofCheck),
            self.trust.map(VfChange::Trust),
            is_limited.then(|| VfChange::Rate {
                min: rate(self.min_rate, current.min_rate),
                max: rate(self.max_rate, current.max_rate),
            }),
            self.link_state.map(VfChange::LinkState),
        ];
        all.into_iter().flatten()
    }

    /// Returns the requested changes whose present value differs.
    pub fn differences(&self, current: &VfSettings) -> Vec<VfChange> {
        let changes = self.changes(current);
        changes.filter(|change| change.current_setting(current) != Some(*change)).collect()
    }

    /// Returns the changes to send to the driver: the differences, and the spoof check in any case. ixgbe turns the
    /// spoof check off for a virtual function that requests another address, and still reports it as on
    /// (`ixgbe_set_vf_macvlan_msg`).
    pub fn required_changes(&self, current: &VfSettings) -> Vec<VfChange> {
        let unsure = VfSettings { spoof_check: None, ..*current };
        self.differences(&unsure)
    }

    /// Returns these settings without those that `other` does not set.
    pub fn restricted_to(&self, other: &VfSettings) -> VfSettings {
        let is_limited = other.min_rate.is_some() || other.max_rate.is_some();
        VfSettings {
            vlan: self.vlan.filter(|_| other.vlan.is_some()),
            mac: self.mac.filter(|_| other.mac.is_some()),
            spoof_check: self.spoof_check.filter(|_| other.spoof_check.is_some()),
            trust: self.trust.filter(|_| other.trust.is_some()),
            min_rate: self.min_rate.filter(|_| is_limited),
            max_rate: self.max_rate.filter(|_| is_limited),
            link_state: self.link_state.filter(|_| other.link_state.is_some()),
        }
    }
}

/// Serializes a hardware address as a string. All zeros are allowed.
mod mac_text {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    use crate::netlink::link::{format_hwaddr, parse_hwaddr};

    pub(super) fn serialize<S: Serializer>(
        mac: &Option<[u8; 6]>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        mac.map(|mac| format_hwaddr(&mac)).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<[u8; 6]>, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else {
            return Ok(None);
        };
        match parse_hwaddr(&text).and_then(|bytes| bytes.try_into().ok()) {
            Some(mac) => Ok(Some(mac)),
            None => Err(de::Error::custom("it is no hardware address")),
        }
    }
}

/// Returns the payload of [`super::link::GET`] that requests the virtual functions of an interface.
pub fn get_payload(index: u32) -> Vec<u8> {
    let mask = encode_attribute(EXT_MASK, &VFS_WITHOUT_STATISTICS.to_ne_bytes());
    [header(index, 0, 0), mask].concat()
}

/// The payload of [`super::link::SET`].
pub fn set_payload(index: u32, vf: u32, change: VfChange) -> Vec<u8> {
    let info = encode_attribute(VF_INFO, &change.to_attribute(vf));
    [header(index, 0, 0), encode_attribute(VF_INFO_LIST, &info)].concat()
}

/// The virtual functions in an `RTM_NEWLINK` message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VfList {
    /// Settings by number. Some may be missing: the list's length has 16 bits, and the kernel silently truncates it at
    /// about 330 virtual functions (`nla_nest_end`).
    pub reported: BTreeMap<u32, VfSettings>,
    /// Total number; 0 if the driver reports none.
    pub count: u32,
}

/// Parses an `RTM_NEWLINK` message. Returns `None` if it is malformed.
pub fn parse(payload: &[u8]) -> Option<VfList> {
    let attributes = payload.get(HEADER..)?;
    let Some(list) = find_attribute(attributes, VF_INFO_LIST) else {
        return Some(VfList::default());
    };
    let vfs = parse_attributes(list).filter(|(kind, _)| *kind == VF_INFO);
    let count = find_attribute(attributes, VF_COUNT).and_then(|count| u32_at(count, 0));
    Some(VfList {
        reported: vfs.filter_map(|(_, vf)| parse_vf(vf)).collect(),
        count: count.unwrap_or_default(),
    })
}

fn parse_vf(bytes: &[u8]) -> Option<(u32, VfSettings)> {
    let mut settings = VfSettings::default();
    let (mut number, mut protocol) = (None, Some(VlanProtocol::Q));
    for (kind, value) in parse_attributes(bytes) {
        let word = |offset| u32_at(value, offset);
        // All bits are set if the driver does not report the setting.
        let switch = || word(4).filter(|word| *word <= 1).map(|word| word == 1);
        match kind {
            VF_MAC => settings.mac = value.get(4..10).and_then(|mac| mac.try_into().ok()),
            VF_VLAN => settings.vlan = parse_tag(word(4), word(8)),
            VF_SPOOF_CHECK => settings.spoof_check = switch(),
            VF_TRUST => settings.trust = switch(),
            VF_RATE => (settings.min_rate, settings.max_rate) = (word(4), word(8)),
            VF_LINK_STATE => {
                let state = word(4).and_then(|word| usize::try_from(word).ok());
                settings.link_state = state.and_then(|index| LinkState::ALL.get(index).copied());
            }
            VF_VLAN_LIST => {
                protocol = parse_protocol(value);
                continue;
            }
            _ => continue,
        }
        number = word(0);
    }
    settings.vlan = settings.vlan.zip(protocol).map(|(tag, protocol)| VlanTag { protocol, ..tag });
    Some((number?, settings))
}

fn parse_tag(id: Option<u32>, priority: Option<u32>) -> Option<VlanTag> {
    Some(VlanTag {
        id: id?.try_into().ok()?,
        priority: priority.unwrap_or_default().try_into().ok()?,
        protocol: VlanProtocol::Q,
    })
}

/// Returns `None` for any other protocol, or for several tags.
fn parse_protocol(list: &[u8]) -> Option<VlanProtocol> {
    let mut all = parse_attributes(list).filter(|(kind, _)| *kind == VF_VLAN_INFO);
    let (first, None) = (all.next(), all.next()) else {
        return None;
    };
    let Some((_, info)) = first else {
        return Some(VlanProtocol::Q);
    };
    let ethertype = u16::from_be(u16_at(info, 12)?);
    [VlanProtocol::Q, VlanProtocol::Ad].into_iter().find(|it| *it as u16 == ethertype)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vlan(id: u16) -> VfChange {
        VfChange::Vlan(VlanTag { id, ..VlanTag::default() })
    }

    fn provider() -> VlanTag {
        VlanTag { id: 7, priority: 3, protocol: VlanProtocol::Ad }
    }

    const MAC: [u8; 6] = [2, 0, 0, 0, 0x10, 1];

    /// `strace -e trace=sendmsg ip link set eth0 vf 1 vlan 100` shows the same list.
    #[test]
    #[cfg(target_endian = "little")]
    fn a_change_is_a_list_with_one_function_in_it() {
        let list = |vf, change| set_payload(3, vf, change)[HEADER..].to_vec();
        assert_eq!(
            list(1, vlan(100)),
            [24, 0, 22, 0, 20, 0, 1, 0, 16, 0, 2, 0, 1, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0]
        );
        let mac = list(0, VfChange::Mac(MAC));
        assert_eq!(mac.len(), 4 + 4 + 4 + 4 + MAC_BYTES);
        assert_eq!(mac[12..22], [0, 0, 0, 0, 2, 0, 0, 0, 0x10, 1]);
        // `ip link set eth0 vf 1 vlan 7 qos 3 proto 802.1ad`
        let list = list(1, VfChange::Vlan(provider()));
        assert_eq!(
            list[8..],
            [24, 0, 12, 0x80, 20, 0, 1, 0, 1, 0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 0x88, 0xa8, 0, 0]
        );
    }

    /// As the kernel tells them: the VLAN once as it was of old, and once as a list.
    fn vf_payload(vf: u32, changes: &[VfChange]) -> Vec<u8> {
        let attribute = |change: &VfChange| change.to_attribute(vf);
        let of_old = |change: &VfChange| match change {
            VfChange::Vlan(tag) => {
                VfChange::Vlan(VlanTag { protocol: VlanProtocol::Q, ..*tag }).to_attribute(vf)
            }
            _ => Vec::new(),
        };
        let unknown = encode_attribute(77, &[1, 2, 3]);
        let inner = changes.iter().flat_map(|change| [of_old(change), attribute(change)].concat());
        encode_attribute(VF_INFO | 0x8000, &inner.chain(unknown).collect::<Vec<u8>>())
    }

    #[test]
    fn what_is_set_is_read_back_whatever_stands_around_it() {
        let wanted = VfSettings {
            vlan: Some(provider()),
            mac: Some(MAC),
            spoof_check: Some(false),
            trust: Some(true),
            min_rate: Some(100),
            max_rate: Some(1000),
            link_state: Some(LinkState::Disable),
        };
        let changes: Vec<VfChange> = wanted.changes(&VfSettings::default()).collect();
        assert_eq!(changes.len(), 6);
        let list = [vf_payload(0, &changes), vf_payload(5, &changes)].concat();
        let list = encode_attribute(VF_INFO_LIST | 0x8000, &list);
        let whole = [header(3, 0, 0), encode_attribute(3, b"ens1\0"), list].concat();
        let found = parse(&whole).unwrap();
        assert_eq!(found.reported, BTreeMap::from([(0, wanted), (5, wanted)]));
        assert_eq!(wanted.differences(&wanted), []);
        for end in 0..whole.len() {
            let _ = parse(&whole[..end]);
        }
    }

    #[test]
    fn a_list_that_is_longer_than_the_kernel_can_say_is_seen_to_lack_some() {
        let changes = [VfChange::Mac(MAC), vlan(7)];
        let many = u16::MAX / u16::try_from(vf_payload(0, &changes).len()).unwrap() + 20;
        let list: Vec<u8> = (0..u32::from(many)).flat_map(|vf| vf_payload(vf, &changes)).collect();
        let length = 4 + list.len();
        assert!(length > usize::from(u16::MAX));
        // As `nla_nest_end` does it.
        let length = u16::try_from(length % 0x1_0000).unwrap();
        let head = [length.to_ne_bytes(), VF_INFO_LIST.to_ne_bytes()].concat();
        let count = encode_attribute(VF_COUNT, &u32::from(many).to_ne_bytes());
        let found = parse(&[header(3, 0, 0), count, head, list].concat()).unwrap();
        assert_eq!(found.count, u32::from(many));
        let numbers: Vec<u32> = found.reported.into_keys().collect();
        assert!((1..20).contains(&numbers.len()), "{numbers:?}");
        assert!(numbers.iter().copied().eq(0..numbers.len() as u32), "{numbers:?}");
        // Of an interface whose driver tells of none, such as one that stands for a virtual function.
        let none = [header(3, 0, 0), encode_attribute(VF_COUNT, &many.to_ne_bytes())].concat();
        assert_eq!(parse(&none), Some(VfList::default()));
    }

    #[test]
    fn what_a_driver_does_not_say_is_unset() {
        let unknown = [&2u32.to_ne_bytes()[..], &[0xff; 4]].concat();
        let kinds = [VF_SPOOF_CHECK, VF_TRUST, VF_LINK_STATE];
        let vf = kinds.map(|kind| encode_attribute(kind, &unknown));
        assert_eq!(parse_vf(&vf.concat()), Some((2, VfSettings::default())));
        assert_eq!(parse_vf(&encode_attribute(77, &unknown)), None);
        // Another standard than the two could not be set again.
        let info = [&[0; 12][..], &[0x91, 0, 0, 0]].concat();
        let list = encode_nested(VF_VLAN_LIST, &encode_attribute(VF_VLAN_INFO, &info));
        let of_old = vlan(7).to_attribute(2);
        let (_, settings) = parse_vf(&[of_old, list].concat()).unwrap();
        assert_eq!(settings.vlan, None);
    }

    #[test]
    fn one_rate_keeps_the_other_and_both_are_put_back() {
        let now = VfSettings {
            min_rate: Some(10),
            max_rate: Some(0),
            spoof_check: Some(true),
            ..VfSettings::default()
        };
        let wanted = VfSettings { max_rate: Some(500), ..VfSettings::default() };
        assert_eq!(wanted.differences(&now), [VfChange::Rate { min: 10, max: 500 }]);
        let before = now.restricted_to(&wanted);
        let then = wanted.merge_missing(&now);
        assert_eq!(before.differences(&then), [VfChange::Rate { min: 10, max: 0 }]);
        assert_eq!(before.spoof_check, None);
    }

    #[test]
    fn a_spoof_check_is_told_although_it_reads_the_same() {
        let on =
            VfSettings { spoof_check: Some(true), trust: Some(false), ..VfSettings::default() };
        assert_eq!(on.differences(&on), []);
        assert_eq!(on.required_changes(&on), [VfChange::SpoofCheck(true)]);
        assert_eq!(VfSettings::default().required_changes(&on), []);
    }

    #[test]
    fn settings_are_written_with_what_is_set_alone() {
        let settings =
            VfSettings { vlan: Some(provider()), mac: Some([0; 6]), ..VfSettings::default() };
        let change = |change: Option<VfChange>| change.unwrap().to_string();
        let mut changes = settings.changes(&VfSettings::default());
        assert_eq!(change(changes.next()), "vlan 7 of priority 3 by 802.1ad");
        assert_eq!(change(changes.next()), "mac 00:00:00:00:00:00");
        assert!(changes.next().is_none());
    }
}
