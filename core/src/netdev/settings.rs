//! Section `[netdev.NAME]`: settings that an interface has in the container that gets it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::Deserialize;

use super::address::{InterfaceAddress, Network};
use crate::select::deserialize_one_or_more;
use crate::vf_config::VfConfig;
use onload_sys::error::{Context as _, Error, Result, bail, bounded_number, read_as_text};
use onload_sys::text::{Quoted, parse_decimal};

/// Settings of an interface in a container. NAME is the name of the device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "kebab-case")]
pub struct NetdevSettings {
    /// The addresses of the interface. The annotation onload.dev/address replaces them.
    pub addresses: Vec<InterfaceAddress>,
    /// Networks that are reached through the interface. Without "via", their hosts are on its link.
    pub routes: Vec<InterfaceRoute>,
    /// The default gateway: one address, or one each for IPv4 and IPv6.
    #[serde(deserialize_with = "deserialize_one_or_more")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::select::OneOrMore<IpAddr>"))]
    pub gateway: Vec<IpAddr>,
    /// The maximum transmission unit in bytes, from 68 to 65535. Default: the same as on the host.
    pub mtu: Option<Mtu>,
    /// Whether Onload uses the interface through AF_XDP. The hook registers it with Onload in the
    /// container's network namespace before the program starts; if Onload rejects it, the container
    /// does not start. The interface remains registered when it returns to the host.
    pub af_xdp: bool,
    /// Settings of its virtual function while the container has it.
    pub vf: Option<VfConfig>,
}

/// A network that is reached through an interface, as `NETWORK` or `NETWORK via GATEWAY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct InterfaceRoute {
    pub network: Network,
    /// The gateway. `None` if the hosts of the network are on the link.
    pub via: Option<IpAddr>,
}

impl FromStr for InterfaceRoute {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let quoted = Quoted(text);
        let Some((network, gateway)) = text.split_once(' ') else {
            return Ok(InterfaceRoute { network: text.parse()?, via: None });
        };
        let Some(via) = gateway.strip_prefix("via ").and_then(|via| via.parse::<IpAddr>().ok())
        else {
            bail!(
                "{quoted} is not NETWORK, nor NETWORK via GATEWAY, as \"198.51.100.0/24 via 192.0.2.1\" is one"
            );
        };
        let network: Network = network.parse()?;
        if via.is_ipv4() != network.address().is_ipv4() {
            bail!("{quoted}: the network and the gateway are one of IPv4 and one of IPv6");
        }
        Ok(InterfaceRoute { network, via: Some(via) })
    }
}

read_as_text!(InterfaceRoute);

impl fmt::Display for InterfaceRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.network)?;
        self.via.map_or(Ok(()), |via| write!(f, " via {via}"))
    }
}

/// A maximum transmission unit in bytes. 68 is the minimum of IPv4 (RFC 791; `ETH_MIN_MTU` of the
/// kernel).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(serde::Serialize))]
#[serde(try_from = "i64")]
pub struct Mtu(u32);

bounded_number!(Mtu, 68..=65_535, "bytes");

impl Default for Mtu {
    /// Returns the MTU of Ethernet.
    fn default() -> Self {
        Mtu(1500)
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Mtu {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match parse_decimal(text) {
            Some(number) => Mtu::try_from(i64::from(number)),
            None => bail!("{} is not a number of bytes", Quoted(text)),
        }
    }
}

impl NetdevSettings {
    /// Checks that the settings do not contradict each other.
    pub fn check(&self) -> Result<()> {
        if let Some(vf) = &self.vf {
            vf.check().context("vf")?;
        }
        for (index, address) in self.addresses.iter().enumerate() {
            let rest = &self.addresses[index + 1..];
            if rest.iter().any(|other| other.address() == address.address()) {
                bail!("addresses has {} twice", address.address());
            }
        }
        for (index, gateway) in self.gateway.iter().enumerate() {
            let rest = &self.gateway[index + 1..];
            if let Some(other) = rest.iter().find(|other| other.is_ipv4() == gateway.is_ipv4()) {
                bail!(
                    "gateway has {gateway} and {other}; at most one of each IP version is allowed"
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_survives_a_round_trip() {
        for text in
            ["198.51.100.0/24", "198.51.100.0/24 via 192.0.2.1", "2001:db8:1::/48 via fe80::1"]
        {
            assert_eq!(text.parse::<InterfaceRoute>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn invalid_routes_are_rejected() {
        for (text, says) in [
            ("", "not ADDRESS/PREFIX"),
            ("default via 192.0.2.1", "not ADDRESS/PREFIX"),
            ("198.51.100.1/24", "write 198.51.100.0/24"),
            ("198.51.100.0/24 via", "is not NETWORK"),
            ("198.51.100.0/24 via router", "is not NETWORK"),
            ("198.51.100.0/24 dev ens1", "is not NETWORK"),
            ("198.51.100.0/24 via 192.0.2.1 metric 5", "is not NETWORK"),
            ("198.51.100.0/24 via fe80::1", "one of IPv4 and one of IPv6"),
        ] {
            let error = text.parse::<InterfaceRoute>().unwrap_err().to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }

    #[test]
    fn an_mtu_is_between_68_and_65535() {
        for text in ["68", "1500", "65535"] {
            assert_eq!(text.parse::<Mtu>().unwrap().to_string(), text);
        }
        for text in ["67", "65536", "0", "-1", "+1500", "1500 ", "", "1e3", "4294967296"] {
            assert!(text.parse::<Mtu>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn contradictory_settings_are_rejected() {
        let check = |addresses: &[&str], gateway: &[&str]| {
            let settings = NetdevSettings {
                addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
                gateway: gateway.iter().map(|text| text.parse().unwrap()).collect(),
                ..NetdevSettings::default()
            };
            settings.check().map_err(|error| error.to_string())
        };
        let two = ["192.0.2.10/24", "2001:db8::10/64"];
        assert_eq!(check(&two, &["192.0.2.1", "fe80::1"]), Ok(()));
        let twice = check(&["192.0.2.10/24", "192.0.2.10/32"], &[]);
        assert_eq!(twice.unwrap_err(), "addresses has 192.0.2.10 twice");
        let gateways = check(&two, &["192.0.2.1", "fe80::1", "192.0.2.2"]);
        let message = "gateway has 192.0.2.1 and 192.0.2.2; at most one of each IP version is \
            allowed";
        assert_eq!(gateways.unwrap_err(), message);
    }
}
