//! Features of network interfaces that drivers report by generic netlink (Documentation/netlink/specs/netdev.yaml and
//! ethtool.yaml): XDP, flow filters, channels. A capture stores them as text.

use std::collections::BTreeMap;
use std::io;

use anyhow::Context;
use onload_sys::netlink::message::{
    encode_nested, encode_text, find_attribute as within, parse_attributes, u16_at, u32_at, u64_at,
    until_nul,
};
use onload_sys::netlink::socket::NetlinkSocket;
use rustix::net::netlink::GENERIC;

const HEADER: usize = 4;
// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY` and attributes (include/uapi/linux/genetlink.h).
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
// include/uapi/linux/netdev.h.
const NETDEV: &str = "netdev";
const DEV_GET: u8 = 1;
const DEV_IFINDEX: u16 = 1;
const DEV_XDP_FEATURES: u16 = 3;
/// `NETDEV_XDP_ACT_BASIC | NETDEV_XDP_ACT_REDIRECT`, which AF_XDP programs need.
const BASIC_AND_REDIRECT: u64 = 0b11;
// include/uapi/linux/ethtool_netlink.h.
const ETHTOOL: &str = "ethtool";
const FEATURES_GET: u8 = 11;
const CHANNELS_GET: u8 = 17;
/// The attribute with the interface, in each message of ethtool's.
const INTERFACE: u16 = 1;
const DEV_INDEX: u16 = 1;
const DEV_NAME: u16 = 2;
const FEATURES_HW: u16 = 2;
const FEATURES_ACTIVE: u16 = 4;
const BITSET_BITS: u16 = 3;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;
const RX_COUNT: u16 = 6;
const COMBINED_COUNT: u16 = 9;
/// The feature `NETIF_F_NTUPLE` (net/ethtool/common.c).
const NTUPLE: &[u8] = b"rx-ntuple-filter";
const UNKNOWN: &str = "-";
/// The words of a capture.
const XDP_WORDS: [(Option<bool>, &str); 3] =
    [(Some(true), "xdp"), (Some(false), "no-xdp"), (None, UNKNOWN)];
const FILTER_WORDS: [(Option<FlowFilters>, &str); 4] = [
    (Some(FlowFilters::On), "on"),
    (Some(FlowFilters::Off), "off"),
    (Some(FlowFilters::Absent), "none"),
    (None, UNKNOWN),
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceFeatures {
    pub xdp: Option<bool>,
    pub flow_filters: Option<FlowFilters>,
    pub channels: Option<u32>,
}

/// Whether a card supports flow filters to queues (`ethtool -k`, ntuple-filters).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowFilters {
    On,
    Off,
    Absent,
}

/// Parses the output of [`to_text`].
pub(crate) fn parse(text: &str) -> anyhow::Result<BTreeMap<String, InterfaceFeatures>> {
    let mut all = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let (name, features) = parse_line(line).with_context(|| {
            let line = index + 1;
            format!("line {line} is no interface with its XDP, flow filters and channels")
        })?;
        all.insert(name, features);
    }
    Ok(all)
}

fn parse_line(line: &str) -> Option<(String, InterfaceFeatures)> {
    let words: Vec<&str> = line.split(' ').collect();
    let [name, xdp, filters, channels] = words[..] else {
        return None;
    };
    let features = InterfaceFeatures {
        xdp: XDP_WORDS.iter().find(|(_, word)| *word == xdp)?.0,
        flow_filters: FILTER_WORDS.iter().find(|(_, word)| *word == filters)?.0,
        channels: match channels {
            UNKNOWN => None,
            channels => Some(channels.parse().ok()?),
        },
    };
    (!name.is_empty()).then(|| (name.to_owned(), features))
}

/// Formats a line for each interface. Interface names contain no white space.
pub(crate) fn to_text(all: &BTreeMap<String, InterfaceFeatures>) -> String {
    let mut text = String::new();
    for (name, features) in all {
        let channels =
            features.channels.map_or(UNKNOWN.to_owned(), |channels| channels.to_string());
        text += &format!(
            "{name} {} {} {channels}\n",
            word_of(&features.xdp, &XDP_WORDS),
            word_of(&features.flow_filters, &FILTER_WORDS)
        );
    }
    text
}

fn word_of<T: PartialEq>(value: &T, words: &[(T, &'static str)]) -> &'static str {
    words.iter().find(|(known, _)| known == value).map_or(UNKNOWN, |(_, word)| word)
}

/// Reads the features of all interfaces in this network namespace. Kernels without a netlink family do not report its
/// features.
pub(crate) fn read() -> io::Result<BTreeMap<String, InterfaceFeatures>> {
    let Ok(socket) = NetlinkSocket::open(Some(GENERIC)) else {
        return Ok(BTreeMap::new());
    };
    // The names come from ethtool, since the other family reports only indexes.
    let Some(ethtool) = find_family(&socket, ETHTOOL)? else {
        return Ok(BTreeMap::new());
    };
    let mut by_index: BTreeMap<u32, (String, InterfaceFeatures)> = BTreeMap::new();
    let every = encode_nested(INTERFACE, &[]);
    let request = |command: u8| {
        let payload = [header(command).to_vec(), every.clone()].concat();
        socket.list(ethtool, &payload, &|answer| parse_ethtool(command, answer))
    };
    for (index, name, features) in request(FEATURES_GET)?.into_iter().chain(request(CHANNELS_GET)?)
    {
        let (_, known) = by_index.entry(index).or_insert((name, InterfaceFeatures::default()));
        known.flow_filters = known.flow_filters.or(features.flow_filters);
        known.channels = known.channels.or(features.channels);
    }
    if let Some(netdev) = find_family(&socket, NETDEV)? {
        for (index, xdp) in socket.list(netdev, &header(DEV_GET), &parse_xdp)? {
            if let Some((_, known)) = by_index.get_mut(&index) {
                known.xdp = Some(xdp);
            }
        }
    }
    Ok(by_index.into_values().collect())
}

fn header(command: u8) -> [u8; HEADER] {
    [command, 1, 0, 0]
}

fn find_family(socket: &NetlinkSocket, name: &str) -> io::Result<Option<u16>> {
    let payload = [header(GET_FAMILY).to_vec(), encode_text(FAMILY_NAME, name.as_bytes())];
    let number = |answer: &[u8]| u16_at(attribute_value(answer, FAMILY_ID)?, 0);
    match socket.get(CONTROL, &payload.concat(), &number) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        number => number,
    }
}

fn attribute_value(payload: &[u8], kind: u16) -> Option<&[u8]> {
    within(payload.get(HEADER..)?, kind)
}

fn parse_ethtool(command: u8, payload: &[u8]) -> Option<(u32, String, InterfaceFeatures)> {
    let interface = attribute_value(payload, INTERFACE)?;
    let index = u32_at(within(interface, DEV_INDEX)?, 0)?;
    let name = std::str::from_utf8(until_nul(within(interface, DEV_NAME)?)).ok()?;
    let mut features = InterfaceFeatures::default();
    if command == FEATURES_GET {
        let is_active =
            attribute_value(payload, FEATURES_ACTIVE).and_then(|bits| has_ntuple(bits, false));
        let is_there =
            attribute_value(payload, FEATURES_HW).and_then(|bits| has_ntuple(bits, true));
        features.flow_filters = match (is_active, is_there) {
            (Some(true), _) => Some(FlowFilters::On),
            (Some(false), Some(true)) => Some(FlowFilters::Off),
            (Some(false), Some(false)) => Some(FlowFilters::Absent),
            _ => None,
        };
    } else {
        let count = |kind| attribute_value(payload, kind).and_then(|count| u32_at(count, 0));
        let (alone, combined) = (count(RX_COUNT), count(COMBINED_COUNT));
        let counts = alone.into_iter().chain(combined);
        features.channels = counts.reduce(u32::saturating_add);
    }
    (!name.is_empty()).then(|| (index, name.to_owned(), features))
}

/// Returns whether a named bit set has the bit for flow filters. With a mask, listed bits have a value.
fn has_ntuple(bits: &[u8], has_mask: bool) -> Option<bool> {
    for (_, bit) in parse_attributes(within(bits, BITSET_BITS)?) {
        if within(bit, BIT_NAME).is_some_and(|name| until_nul(name) == NTUPLE) {
            return Some(!has_mask || within(bit, BIT_VALUE).is_some());
        }
    }
    Some(false)
}

fn parse_xdp(payload: &[u8]) -> Option<(u32, bool)> {
    let index = u32_at(attribute_value(payload, DEV_IFINDEX)?, 0)?;
    let features = u64_at(attribute_value(payload, DEV_XDP_FEATURES)?, 0)?;
    Some((index, features & BASIC_AND_REDIRECT == BASIC_AND_REDIRECT))
}

#[cfg(fuzzing)]
pub(super) fn fuzz(bytes: &[u8]) {
    for command in [FEATURES_GET, CHANNELS_GET] {
        let parsed = parse_ethtool(command, bytes);
        assert!(parsed.is_none_or(|(_, name, _)| !name.is_empty()));
    }
    let _ = parse_xdp(bytes);
    if let Some(all) = std::str::from_utf8(bytes).ok().and_then(|text| parse(text).ok()) {
        assert_eq!(parse(&to_text(&all)).ok(), Some(all));
    }
}

#[cfg(test)]
mod tests {
    use onload_sys::netlink::message::encode_attribute;

    use super::*;

    fn interface() -> Vec<u8> {
        let index = encode_attribute(DEV_INDEX, &7_u32.to_ne_bytes());
        encode_nested(INTERFACE, &[index, encode_text(DEV_NAME, b"ens1")].concat())
    }

    fn bits(names: &[(&str, bool)]) -> Vec<u8> {
        let bit = |(name, has_value): &(&str, bool)| {
            let value = has_value.then(|| encode_attribute(BIT_VALUE, &[]));
            let name = encode_text(BIT_NAME, name.as_bytes());
            encode_nested(1, &[name, value.unwrap_or_default()].concat())
        };
        let bits: Vec<Vec<u8>> = names.iter().map(bit).collect();
        encode_nested(BITSET_BITS, &bits.concat())
    }

    fn features(hardware: &[(&str, bool)], active: &[(&str, bool)]) -> Option<FlowFilters> {
        let message = [
            header(FEATURES_GET).to_vec(),
            interface(),
            encode_nested(FEATURES_HW, &bits(hardware)),
            encode_nested(FEATURES_ACTIVE, &bits(active)),
        ];
        let (index, name, found) = parse_ethtool(FEATURES_GET, &message.concat()).unwrap();
        assert_eq!((index, name.as_str()), (7, "ens1"));
        found.flow_filters
    }

    #[test]
    fn a_driver_has_flow_filters_that_are_on_or_off_or_none() {
        let other = ("rx-gro", true);
        let ntuple = |has_value| ("rx-ntuple-filter", has_value);
        let on = features(&[other, ntuple(true)], &[other, ntuple(false)]);
        assert_eq!(on, Some(FlowFilters::On));
        let off = features(&[other, ntuple(true)], &[other]);
        assert_eq!(off, Some(FlowFilters::Off));
        // Each feature of the kernel's is in the mask.
        let absent = features(&[other, ntuple(false)], &[other]);
        assert_eq!(absent, Some(FlowFilters::Absent));
        let without = [header(FEATURES_GET).to_vec(), interface()].concat();
        let (_, _, found) = parse_ethtool(FEATURES_GET, &without).unwrap();
        assert_eq!(found, InterfaceFeatures::default());
    }

    #[test]
    fn channels_that_receive_are_counted() {
        let count = |kind, count: u32| encode_attribute(kind, &count.to_ne_bytes());
        let channels = |counts: &[Vec<u8>]| {
            let message = [header(CHANNELS_GET).to_vec(), interface(), counts.concat()];
            let found = parse_ethtool(CHANNELS_GET, &message.concat());
            found.unwrap().2.channels
        };
        assert_eq!(channels(&[count(COMBINED_COUNT, 8)]), Some(8));
        let both = [count(RX_COUNT, 2), count(COMBINED_COUNT, 0)];
        assert_eq!(channels(&both), Some(2));
        assert_eq!(channels(&[]), None);
    }

    #[test]
    fn xdp_for_af_xdp_runs_programs_and_redirects() {
        let message = |features: u64| {
            let index = encode_attribute(DEV_IFINDEX, &7_u32.to_ne_bytes());
            let features = encode_attribute(DEV_XDP_FEATURES, &features.to_ne_bytes());
            [header(2).to_vec(), index, features].concat()
        };
        assert_eq!(parse_xdp(&message(0b1011)), Some((7, true)));
        assert_eq!(parse_xdp(&message(0b1)), Some((7, false)));
        assert_eq!(parse_xdp(&message(0)), Some((7, false)));
        let whole = message(3);
        for end in 0..whole.len() {
            assert_eq!(parse_xdp(&whole[..end]), None, "{end}");
        }
    }

    #[test]
    fn a_text_is_read_as_it_was_written() {
        let lines = "ens1 xdp on 4\nens2 no-xdp none -\nens3 - off 1\nlo - - -\n";
        let all = parse(lines).unwrap();
        assert_eq!(all.len(), 4);
        assert_eq!(all["ens2"].flow_filters, Some(FlowFilters::Absent));
        assert_eq!(to_text(&all), lines);
        for wrong in ["ens1", "ens1 yes on 4", "ens1 xdp on four", " - - -"] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.starts_with("line 1 is no interface"), "{error}");
        }
    }
}
