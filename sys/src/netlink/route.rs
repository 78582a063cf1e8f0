//! Routes (`struct rtmsg`, include/uapi/linux/rtnetlink.h).

use std::iter;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::address::{INET, INET6, address_family, address_octets, parse_octets};
use super::message::{encode_attribute, find_attribute, parse_attributes, u16_at, u32_at};

pub const NEW: u16 = 24; // RTM_NEWROUTE
pub const GET: u16 = 26; // RTM_GETROUTE
pub const GET_NEXT_HOPS: u16 = 106; // RTM_GETNEXTHOP
const HEADER: usize = 12; // struct rtmsg
const DESTINATION: u16 = 1;
const INTERFACE: u16 = 4;
const GATEWAY: u16 = 5;
const SEVERAL: u16 = 9;
const OBJECT: u16 = 30; // RTA_NH_ID
const NEXT_HOP: usize = 8; // struct rtnexthop
/// `struct nhmsg`, `NHA_ID`, `NHA_GROUP`, `NHA_OIF` and `struct nexthop_grp` (include/uapi/linux/nexthop.h).
const OBJECT_HEADER: usize = 8;
const OBJECT_ID: u16 = 1;
const OBJECT_GROUP: u16 = 2;
const OBJECT_INTERFACE: u16 = 5;
const OBJECT_MEMBER: usize = 8;
const MAIN: u8 = 254; // RT_TABLE_MAIN
const STATIC: u8 = 4; // RTPROT_STATIC
const UNIVERSE: u8 = 0; // RT_SCOPE_UNIVERSE
const LINK: u8 = 253; // RT_SCOPE_LINK
const UNICAST: u8 = 1; // RTN_UNICAST

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub interfaces: Vec<u32>,
    /// The destination network and its prefix length in bits.
    pub destination: (IpAddr, u8),
    /// The gateway. `None` if the hosts are on the link, or if the route has several next hops.
    pub via: Option<IpAddr>,
    pub protocol: u8,
    /// The ID of the next hop object that the route uses. With `net.ipv4.nexthop_compat_mode=0` the kernel reports this
    /// ID and no interface (net/ipv4/fib_semantics.c, `fib_dump_info`).
    pub next_hop_id: Option<u32>,
}

/// A next hop object (ip-nexthop(8)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    pub id: u32,
    /// `None` for a group and for a blackhole.
    pub interface: Option<u32>,
    /// The IDs of a group's members.
    pub members: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewRoute {
    pub index: u32,
    /// The destination network and its prefix length in bits.
    pub network: (IpAddr, u8),
    pub via: Option<IpAddr>,
}

pub fn dump_payload() -> Vec<u8> {
    vec![0; HEADER]
}

/// Returns the payload of [`GET`] that asks which route the kernel uses for an address.
pub fn lookup_payload(destination: IpAddr) -> Vec<u8> {
    let address = address_octets(destination);
    let bits = u8::try_from(address.len() * 8).unwrap_or(u8::MAX);
    let mut message = vec![0; HEADER];
    message.splice(..2, [address_family(destination), bits]);
    message.extend(encode_attribute(DESTINATION, &address));
    message
}

/// Parses an `RTM_NEWROUTE` message. Returns `None` if it is malformed or neither IPv4 nor IPv6.
pub fn parse(payload: &[u8]) -> Option<Route> {
    let header = payload.get(..HEADER)?;
    let [family, prefix, _, _, _, protocol, ..] = *header.first_chunk::<HEADER>()?;
    let mut destination = match family {
        INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let (mut interfaces, mut via, mut next_hop_id) = (Vec::new(), None, None);
    for (kind, value) in parse_attributes(payload.get(HEADER..)?) {
        match kind {
            DESTINATION => {
                destination =
                    parse_octets(value).filter(|address| address_family(*address) == family)?;
            }
            GATEWAY => via = parse_octets(value),
            INTERFACE => interfaces.extend(u32_at(value, 0)),
            SEVERAL => interfaces.extend(next_hops(value)),
            OBJECT => next_hop_id = u32_at(value, 0),
            _ => {}
        }
    }
    Some(Route { interfaces, destination: (destination, prefix), via, protocol, next_hop_id })
}

/// Returns the payload that lists all next hop objects.
pub fn dump_next_hops_payload() -> Vec<u8> {
    vec![0; OBJECT_HEADER]
}

/// Parses an `RTM_NEWNEXTHOP` message. Returns `None` if it is malformed.
pub fn parse_next_hop(payload: &[u8]) -> Option<NextHop> {
    let attributes = payload.get(OBJECT_HEADER..)?;
    let (members, _) =
        find_attribute(attributes, OBJECT_GROUP).unwrap_or_default().as_chunks::<OBJECT_MEMBER>();
    Some(NextHop {
        id: u32_at(find_attribute(attributes, OBJECT_ID)?, 0)?,
        interface: find_attribute(attributes, OBJECT_INTERFACE).and_then(|index| u32_at(index, 0)),
        members: members.iter().filter_map(|member| u32_at(member, 0)).collect(),
    })
}

impl Route {
    /// Returns true if the interfaces are known only from the next hop object.
    pub fn is_unresolved(&self) -> bool {
        self.next_hop_id.is_some() && self.interfaces.is_empty()
    }

    /// Sets the interfaces from the next hop object. Returns `None` if `next_hops` lacks it or one of its members.
    pub fn resolve(&mut self, next_hops: &[NextHop]) -> Option<()> {
        let find = |id| next_hops.iter().find(|next_hop| next_hop.id == id);
        let next_hop = find(self.next_hop_id?)?;
        let members: Option<Vec<&NextHop>> = next_hop.members.iter().map(|id| find(*id)).collect();
        let all = iter::once(next_hop).chain(members?);
        self.interfaces = all.filter_map(|next_hop| next_hop.interface).collect();
        Some(())
    }
}

/// Iterates over the interfaces in `RTA_MULTIPATH`.
fn next_hops(mut bytes: &[u8]) -> impl Iterator<Item = u32> {
    iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let index = u32_at(bytes, 4)?;
        let rest = bytes.get(length.next_multiple_of(4)..);
        bytes = rest.filter(|_| length >= NEXT_HOP).unwrap_or_default();
        Some(index)
    })
}

pub fn add_payload(new: NewRoute) -> Vec<u8> {
    let (network, prefix) = new.network;
    let scope = if new.via.is_some() { UNIVERSE } else { LINK };
    let mut message = vec![address_family(network), prefix, 0, 0, MAIN, STATIC, scope, UNICAST];
    message.extend(0u32.to_ne_bytes());
    if prefix > 0 {
        message.extend(encode_attribute(DESTINATION, &address_octets(network)));
    }
    if let Some(via) = new.via {
        message.extend(encode_attribute(GATEWAY, &address_octets(via)));
    }
    message.extend(encode_attribute(INTERFACE, &new.index.to_ne_bytes()));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(network: &str, prefix: u8, via: Option<&str>) -> NewRoute {
        let via = via.map(|via| via.parse().unwrap());
        NewRoute { index: 7, network: (network.parse().unwrap(), prefix), via }
    }

    #[test]
    fn a_route_is_read_with_where_it_goes_and_each_of_its_interfaces() {
        let made = add_payload(new("198.51.100.0", 24, Some("192.0.2.1")));
        let wanted = Route {
            interfaces: vec![7],
            destination: ("198.51.100.0".parse().unwrap(), 24),
            via: Some("192.0.2.1".parse().unwrap()),
            protocol: STATIC,
            next_hop_id: None,
        };
        assert_eq!(parse(&made), Some(wanted));
        for (network, via) in [("0.0.0.0", "192.0.2.1"), ("::", "fe80::1")] {
            let everywhere = add_payload(new(network, 0, Some(via)));
            assert_eq!(parse(&everywhere).unwrap().destination, (network.parse().unwrap(), 0));
        }
        let hop = |index: u32| [&[8, 0, 0, 0][..], &index.to_ne_bytes()].concat();
        let hops = encode_attribute(SEVERAL, &[hop(3), hop(4)].concat());
        let several = [&made[..HEADER], &hops].concat();
        assert_eq!(parse(&several).unwrap().interfaces, [3, 4]);
        let mut of_groups = made;
        of_groups[0] = 129;
        assert_eq!(parse(&of_groups), None);
    }

    fn object(id: u32, more: &[u8]) -> Vec<u8> {
        [dump_next_hops_payload(), encode_attribute(OBJECT_ID, &id.to_ne_bytes()), more.to_vec()]
            .concat()
    }

    #[test]
    fn a_route_by_next_hops_of_their_own_leads_over_the_interfaces_of_these() {
        let over = |index: u32| encode_attribute(OBJECT_INTERFACE, &index.to_ne_bytes());
        let group = |ids: &[u32]| {
            let members: Vec<u8> = ids
                .iter()
                .copied()
                .flat_map(|id| [&id.to_ne_bytes()[..], &[0; 4]].concat())
                .collect();
            encode_attribute(OBJECT_GROUP, &members)
        };
        let objects = [
            object(30, &over(7)),
            object(31, &over(8)),
            object(32, &group(&[30, 31])),
            object(33, &encode_attribute(4, &[])), // NHA_BLACKHOLE
            object(34, &group(&[30, 99])),
        ];
        let objects = objects.map(|bytes| parse_next_hop(&bytes).unwrap());
        let made = &add_payload(new("0.0.0.0", 0, None))[..HEADER];
        let over = |id: u32| {
            let by_object = [made, &encode_attribute(OBJECT, &id.to_ne_bytes())].concat();
            let mut route = parse(&by_object).unwrap();
            assert!(route.is_unresolved());
            route.resolve(&objects).map(|()| route.interfaces)
        };
        assert_eq!(over(30), Some(vec![7]));
        assert_eq!(over(32), Some(vec![7, 8]));
        assert_eq!(over(33), Some(vec![]));
        assert_eq!([over(34), over(99)], [None, None]);
        // With the usual setting the kernel says both.
        let both = encode_attribute(OBJECT, &30u32.to_ne_bytes());
        let both = [add_payload(new("0.0.0.0", 0, None)), both].concat();
        assert!(!parse(&both).unwrap().is_unresolved());
    }

    #[test]
    fn the_way_to_an_address_is_asked_for_with_all_its_bits() {
        for (text, bits) in [("192.0.2.1", 32), ("2001:db8::1", 128)] {
            let address = text.parse().unwrap();
            let asked = parse(&lookup_payload(address)).unwrap();
            assert_eq!((asked.destination, asked.interfaces), ((address, bits), vec![]));
        }
    }

    #[test]
    fn what_is_cut_short_never_hangs() {
        let whole = add_payload(new("198.51.100.0", 24, Some("192.0.2.1")));
        for end in 0..whole.len() {
            assert_eq!(parse(&whole[..end]).is_some(), end >= HEADER);
        }
        assert_eq!(next_hops(&[0; 64]).count(), 1);
        let whole = object(30, &encode_attribute(OBJECT_GROUP, &[0; 13]));
        assert_eq!(parse_next_hop(&whole).unwrap().members, [0]);
        for end in 0..whole.len() {
            let id = parse_next_hop(&whole[..end]).map(|object| object.id);
            assert_eq!(id, (end >= OBJECT_HEADER + 8).then_some(30), "{end}");
        }
    }
}
