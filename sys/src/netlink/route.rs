//! Routes (`struct rtmsg`, include/uapi/linux/rtnetlink.h).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::address::{INET, INET6, address, family, octets};
use super::message::{attribute, attributes, u16_at, u32_at};

pub const NEW: u16 = 24; // RTM_NEWROUTE
pub const GET: u16 = 26; // RTM_GETROUTE
const HEADER: usize = 12; // struct rtmsg
const DESTINATION: u16 = 1;
const INTERFACE: u16 = 4;
const GATEWAY: u16 = 5;
const SEVERAL: u16 = 9;
const NEXT_HOP: usize = 8; // struct rtnexthop
const MAIN: u8 = 254; // RT_TABLE_MAIN
const STATIC: u8 = 4; // RTPROT_STATIC
const UNIVERSE: u8 = 0; // RT_SCOPE_UNIVERSE
const LINK: u8 = 253; // RT_SCOPE_LINK
const UNICAST: u8 = 1; // RTN_UNICAST

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub interfaces: Vec<u32>,
    /// Where it goes, and the bits of the prefix.
    pub destination: (IpAddr, u8),
    pub protocol: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct New {
    pub index: u32,
    /// The network and the bits of its prefix.
    pub network: (IpAddr, u8),
    pub via: Option<IpAddr>,
}

pub fn all() -> Vec<u8> {
    vec![0; HEADER]
}

/// One route, of a message about it; none of another family than IPv4 and IPv6.
pub fn parse(payload: &[u8]) -> Option<Route> {
    let header = payload.get(..HEADER)?;
    let [of_family, prefix, _, _, _, protocol, ..] = *header.first_chunk::<HEADER>()?;
    let mut destination = match of_family {
        INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let mut interfaces = Vec::new();
    for (kind, value) in attributes(payload.get(HEADER..)?) {
        match kind {
            DESTINATION => {
                destination = address(value).filter(|address| family(*address) == of_family)?;
            }
            INTERFACE => interfaces.extend(u32_at(value, 0)),
            SEVERAL => interfaces.extend(next_hops(value)),
            _ => {}
        }
    }
    Some(Route {
        interfaces,
        destination: (destination, prefix),
        protocol,
    })
}

/// The interfaces of `RTA_MULTIPATH`.
fn next_hops(mut bytes: &[u8]) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let index = u32_at(bytes, 4)?;
        let behind = bytes.get(length.next_multiple_of(4)..);
        bytes = behind.filter(|_| length >= NEXT_HOP).unwrap_or_default();
        Some(index)
    })
}

pub fn payload(new: New) -> Vec<u8> {
    let (network, prefix) = new.network;
    let scope = if new.via.is_some() { UNIVERSE } else { LINK };
    let mut message = vec![family(network), prefix, 0, 0, MAIN, STATIC, scope, UNICAST];
    message.extend(0u32.to_ne_bytes());
    if prefix > 0 {
        message.extend(attribute(DESTINATION, &octets(network)));
    }
    if let Some(via) = new.via {
        message.extend(attribute(GATEWAY, &octets(via)));
    }
    message.extend(attribute(INTERFACE, &new.index.to_ne_bytes()));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(network: &str, prefix: u8, via: Option<&str>) -> New {
        let via = via.map(|via| via.parse().unwrap());
        New {
            index: 7,
            network: (network.parse().unwrap(), prefix),
            via,
        }
    }

    #[test]
    fn a_route_is_read_with_where_it_goes_and_each_of_its_interfaces() {
        let made = payload(new("198.51.100.0", 24, Some("192.0.2.1")));
        let wanted = Route {
            interfaces: vec![7],
            destination: ("198.51.100.0".parse().unwrap(), 24),
            protocol: STATIC,
        };
        assert_eq!(parse(&made), Some(wanted));
        for (network, via) in [("0.0.0.0", "192.0.2.1"), ("::", "fe80::1")] {
            let everywhere = payload(new(network, 0, Some(via)));
            assert_eq!(
                parse(&everywhere).unwrap().destination,
                (network.parse().unwrap(), 0)
            );
        }
        let hop = |index: u32| [&[8, 0, 0, 0][..], &index.to_ne_bytes()].concat();
        let hops = attribute(SEVERAL, &[hop(3), hop(4)].concat());
        let several = [&made[..HEADER], &hops].concat();
        assert_eq!(parse(&several).unwrap().interfaces, [3, 4]);
        let mut of_groups = made;
        of_groups[0] = 129;
        assert_eq!(parse(&of_groups), None);
    }

    #[test]
    fn what_is_cut_short_never_hangs() {
        let whole = payload(new("198.51.100.0", 24, Some("192.0.2.1")));
        for end in 0..whole.len() {
            assert_eq!(parse(&whole[..end]).is_some(), end >= HEADER);
        }
        assert_eq!(next_hops(&[0; 64]).count(), 1);
    }
}
