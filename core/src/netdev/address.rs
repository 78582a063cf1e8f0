//! Interface addresses, `ADDRESS/PREFIX`, of IPv4 and IPv6, and the networks that bound them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use onload_sys::error::{Error, Result, bail, read_as_text, written_as_text};
use onload_sys::text::{Quoted, parse_decimal};

/// An interface's address with the length of its network's prefix.
///
/// It is an address that a host can have: not unspecified, loopback or multicast, and neither the
/// address nor the broadcast address of its network (RFC 1122, 3.2.1.3; for IPv6 not the
/// subnet-router anycast address, RFC 4291, 2.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct InterfaceAddress {
    address: IpAddr,
    prefix: u8,
}

/// A network: all addresses with the same prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// Returns the length of an address in bits: 32 or 128.
fn bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// Returns the address as a number, aligned to the most significant bit.
fn to_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Returns a mask of the bits after the prefix, in the alignment of [`to_number`].
fn host_mask(prefix: u8, address: IpAddr) -> u128 {
    let all_bits = u128::MAX << (128 - u32::from(bits(address)));
    let network_bits = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or_default();
    all_bits & !network_bits
}

fn network_address(address: IpAddr, prefix: u8) -> IpAddr {
    let network_bits = to_number(address) & !host_mask(prefix, address);
    match address {
        // The shifted number has 32 bits.
        IpAddr::V4(_) => {
            IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(network_bits >> 96).unwrap_or_default()))
        }
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(network_bits)),
    }
}

/// Splits `ADDRESS/PREFIX`, both in their usual notation.
fn split(text: &str) -> Result<(IpAddr, u8)> {
    let quoted = Quoted(text);
    let Some((address, prefix)) = text.split_once('/').and_then(|(address, prefix)| {
        Some((address.parse::<IpAddr>().ok()?, parse_decimal(prefix)?))
    }) else {
        bail!("{quoted} is not ADDRESS/PREFIX, as 192.0.2.10/24 and 2001:db8::10/64 are");
    };
    let max = bits(address);
    match u8::try_from(prefix) {
        Ok(prefix) if (1..=max).contains(&prefix) => Ok((address, prefix)),
        _ => bail!("{quoted}: a prefix is from 1 to {max} here"),
    }
}

/// Returns the reason if no interface can have the address in any network.
fn unusable_reason(address: IpAddr) -> Option<&'static str> {
    if address.is_unspecified() {
        return Some("the unspecified address");
    }
    if address.is_loopback() {
        return Some("a loopback address");
    }
    if address.is_multicast() {
        return Some("a multicast address");
    }
    match address {
        IpAddr::V4(address) if address.octets()[0] == 0 => Some("an address of \"this network\""),
        IpAddr::V4(address) if address.octets()[0] >= 240 => Some("a reserved address"),
        IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => {
            Some("an IPv4-mapped IPv6 address")
        }
        _ => None,
    }
}

impl Network {
    /// Returns the reason if no host of this network can have the address. All addresses of a
    /// network of one or two are usable (RFC 3021, RFC 6164).
    fn reserved_reason(self, address: IpAddr) -> Option<&'static str> {
        let hosts = host_mask(self.prefix, self.address);
        if bits(self.address) - self.prefix < 2 {
            return None;
        }
        let host = to_number(address) & hosts;
        match address {
            _ if host == 0 => Some("the address of its network"),
            IpAddr::V4(_) if host == hosts => Some("the broadcast address of its network"),
            _ => None,
        }
    }

    /// Returns whether the address belongs to this network. The address's own network may not be
    /// larger than this one.
    pub fn contains(&self, address: &InterfaceAddress) -> bool {
        self.contains_network(&address.network()) && self.reserved_reason(address.address).is_none()
    }

    /// Returns whether another network is a part of this one.
    pub fn contains_network(&self, other: &Network) -> bool {
        other.prefix >= self.prefix
            && other.address.is_ipv4() == self.address.is_ipv4()
            && network_address(other.address, self.prefix) == self.address
    }

    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the length of the prefix in bits.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }
}

impl InterfaceAddress {
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the length of the network's prefix in bits.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    pub fn network(&self) -> Network {
        Network { address: network_address(self.address, self.prefix), prefix: self.prefix }
    }
}

impl FromStr for InterfaceAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (address, prefix) = split(text)?;
        let parsed = InterfaceAddress { address, prefix };
        if let Some(reason) =
            unusable_reason(address).or_else(|| parsed.network().reserved_reason(address))
        {
            bail!("{} is {reason}, which no interface can have", Quoted(text));
        }
        Ok(parsed)
    }
}

impl FromStr for Network {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (address, prefix) = split(text)?;
        let network = Network { address: network_address(address, prefix), prefix };
        if network.address != address {
            let text = Quoted(text);
            bail!("{text} is no network: its prefix ends before its last bit; write {network}");
        }
        Ok(network)
    }
}

read_as_text!(InterfaceAddress Network);
written_as_text!(InterfaceAddress);

impl fmt::Display for InterfaceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> InterfaceAddress {
        text.parse().unwrap()
    }

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    fn refusal(text: &str) -> String {
        text.parse::<InterfaceAddress>().unwrap_err().to_string()
    }

    #[test]
    fn an_address_survives_a_round_trip() {
        for text in [
            "192.0.2.10/24",
            "192.0.2.10/32",
            "192.0.2.0/31",
            "192.0.2.255/31",
            "10.255.255.254/8",
            "2001:db8::10/64",
            "2001:db8::/128",
            "2001:db8::/127",
            "2001:db8:0:1:ffff:ffff:ffff:ffff/64",
            "fe80::1/64",
        ] {
            assert_eq!(address(text).to_string(), text);
        }
        assert_eq!(address("2001:DB8:0::10/64").to_string(), "2001:db8::10/64");
        let parsed = address("192.0.2.10/24");
        assert_eq!((parsed.prefix(), parsed.network()), (24, network("192.0.2.0/24")));
    }

    #[test]
    fn invalid_addresses_are_rejected() {
        for text in [
            "",
            "/",
            "192.0.2.10",
            "192.0.2.10/",
            "192.0.2.10/024",
            "192.0.2.10/+24",
            "192.0.2.10/-1",
            "192.0.2.10/24/24",
            "192.0.2.10 /24",
            "192.0.2.010/24",
            "192.0.2/24",
            "0xc0.0.2.1/24",
            "fe80::1%eth0/64",
            "2001:db8::10::/64",
            "host.example/24",
            "192.0.2.10/24\n",
            "192.0.2.10/99999999999",
        ] {
            let message = Quoted(text).to_string()
                + " is not ADDRESS/PREFIX, as 192.0.2.10/24 and 2001:db8::10/64 are";
            assert_eq!(refusal(text), message);
        }
        let prefix = "\"192.0.2.10/33\": a prefix is from 1 to 32 here";
        assert_eq!(refusal("192.0.2.10/33"), prefix);
        assert!(refusal("192.0.2.10/0").contains("from 1 to 32"));
        assert!(refusal("192.0.2.10/264").contains("from 1 to 32"));
        assert!(refusal("2001:db8::1/129").contains("from 1 to 128"));
    }

    #[test]
    fn an_unusable_address_is_rejected_with_the_reason() {
        for (text, what) in [
            ("192.0.2.0/24", "the address of its network"),
            ("192.0.2.255/24", "the broadcast address of its network"),
            ("192.0.2.3/30", "the broadcast address of its network"),
            ("2001:db8::/64", "the address of its network"),
            ("0.0.0.0/8", "the unspecified address"),
            ("0.0.0.1/8", "an address of \"this network\""),
            ("127.0.0.1/8", "a loopback address"),
            ("224.0.0.1/24", "a multicast address"),
            ("255.255.255.255/32", "a reserved address"),
            ("240.0.0.1/24", "a reserved address"),
            ("::/128", "the unspecified address"),
            ("::1/128", "a loopback address"),
            ("ff02::1/64", "a multicast address"),
            ("::ffff:192.0.2.1/128", "an IPv4-mapped IPv6 address"),
        ] {
            let message = format!("{text:?} is {what}, which no interface can have");
            assert_eq!(refusal(text), message);
        }
    }

    #[test]
    fn a_network_contains_addresses_whose_own_network_is_no_larger() {
        for (outer, text, is_within) in [
            ("192.0.2.0/24", "192.0.2.10/24", true),
            ("192.0.2.0/24", "192.0.2.10/25", true),
            ("192.0.2.0/24", "192.0.2.10/32", true),
            ("192.0.2.0/24", "192.0.2.10/23", false),
            ("192.0.2.0/24", "192.0.3.10/24", false),
            ("192.0.2.0/24", "2001:db8::10/64", false),
            // The network's own two, with a prefix that makes them look like a host's.
            ("192.0.2.0/24", "192.0.2.0/32", false),
            ("192.0.2.0/24", "192.0.2.255/32", false),
            ("192.0.2.7/32", "192.0.2.7/32", true),
            ("192.0.2.6/31", "192.0.2.6/31", true),
            ("2001:db8::/64", "2001:db8::10/64", true),
            ("2001:db8::/64", "2001:db8::/128", false),
            ("2001:db8::/64", "2001:db8:0:1::10/64", false),
            ("2001:db8::/64", "2001:db8::10/63", false),
            ("c000:200::/24", "192.0.2.10/24", false),
        ] {
            let (within, address) = (network(outer), address(text));
            assert_eq!(within.contains(&address), is_within, "{outer} {text}");
        }
    }

    #[test]
    fn a_network_with_host_bits_is_rejected_with_the_correct_network() {
        let error = "192.0.2.1/24".parse::<Network>().unwrap_err().to_string();
        assert!(error.ends_with("write 192.0.2.0/24"), "{error}");
        let error = "2001:db8::1/32".parse::<Network>().unwrap_err().to_string();
        assert!(error.ends_with("write 2001:db8::/32"), "{error}");
        for text in ["192.0.2.0", "192.0.2.0/0", "192.0.2.0/33", "any"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
