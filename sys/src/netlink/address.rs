//! Addresses of interfaces (`struct ifaddrmsg`, include/uapi/linux/if_addr.h).

use std::net::IpAddr;

use super::message::{encode_attribute, find_attribute, u32_at};

pub const NEW: u16 = 20; // RTM_NEWADDR
pub const GET: u16 = 22; // RTM_GETADDR
const HEADER: usize = 8; // struct ifaddrmsg
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
const BROADCAST: u16 = 4;
const NO_DAD: u8 = 2; // IFA_F_NODAD
pub(super) const INET: u8 = 2; // AF_INET
pub(super) const INET6: u8 = 10; // AF_INET6

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The index of the interface.
    pub index: u32,
    pub address: IpAddr,
    /// Prefix length in bits.
    pub prefix: u8,
}

/// Returns the bytes of an address in network order.
pub(super) fn address_octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

pub(super) fn address_family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => INET,
        IpAddr::V6(_) => INET6,
    }
}

/// Parses four or sixteen bytes in network order.
pub(super) fn parse_octets(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

pub fn dump_payload() -> Vec<u8> {
    vec![0; HEADER]
}

/// Parses an `RTM_NEWADDR` message. Returns `None` if it is malformed.
pub fn parse(payload: &[u8]) -> Option<Address> {
    let [family, prefix] = *payload.first_chunk()?;
    let index = u32_at(payload, 4)?;
    let attributes = payload.get(HEADER..)?;
    // For IPv4, `IFA_LOCAL` is the interface's address and `IFA_ADDRESS` may be that of the peer.
    let bytes =
        find_attribute(attributes, LOCAL).or_else(|| find_attribute(attributes, ADDRESS))?;
    Some(Address {
        index,
        address: parse_octets(bytes).filter(|address| address_family(*address) == family)?,
        prefix,
    })
}

/// Returns the payload that adds an address. Duplicate address detection (RFC 4862, 5.4) is skipped for IPv6, because
/// no program could bind the address for a second or more (net/ipv6/addrconf.c, `addrconf_dad_begin`).
pub fn add_payload(new: Address) -> Vec<u8> {
    let bytes = address_octets(new.address);
    let flags = if new.address.is_ipv6() { NO_DAD } else { 0 };
    let mut message = vec![address_family(new.address), new.prefix, flags, 0];
    message.extend(new.index.to_ne_bytes());
    message.extend(encode_attribute(LOCAL, &bytes));
    message.extend(encode_attribute(ADDRESS, &bytes));
    if let IpAddr::V4(address) = new.address
        && new.prefix < 31
    {
        let hosts = u32::MAX.checked_shr(new.prefix.into()).unwrap_or_default();
        let broadcast = (address.to_bits() | hosts).to_be_bytes();
        message.extend(encode_attribute(BROADCAST, &broadcast));
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_written_and_read_the_same() {
        for (text, prefix) in [("192.0.2.10", 24), ("192.0.2.10", 32), ("2001:db8::10", 64)] {
            let new = Address { index: 7, address: text.parse().unwrap(), prefix };
            assert_eq!(parse(&add_payload(new)), Some(new));
        }
        let new = Address { index: 7, address: "192.0.2.10".parse().unwrap(), prefix: 24 };
        let bytes = add_payload(new);
        let broadcast = find_attribute(&bytes[HEADER..], BROADCAST);
        assert_eq!(broadcast, Some(&[192, 0, 2, 255][..]));
    }

    #[test]
    fn what_is_cut_short_is_no_address() {
        let new = Address { index: 7, address: "192.0.2.10".parse().unwrap(), prefix: 24 };
        let whole = add_payload(new);
        for end in 0..HEADER + 8 {
            assert_eq!(parse(&whole[..end]), None, "{end}");
        }
        // Nor one of another family than the message says.
        for bytes in [&[1, 2, 3][..], &[0; 16]] {
            let odd = [&whole[..HEADER], &encode_attribute(LOCAL, bytes)].concat();
            assert_eq!(parse(&odd), None);
        }
    }
}
