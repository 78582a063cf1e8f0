//! Sets up an interface in the container: addresses, routes, MTU, and the up state.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use onload_core::netdev::settings::NetdevSettings;
use onload_sys::error::{Context as _, Result};
use onload_sys::netlink::address::Address;
use onload_sys::netlink::link::{Link, LinkChange, UP};
use onload_sys::netlink::route::NewRoute;
use onload_sys::text::Quoted;
use rustix::io::Errno;

use super::sysctl;
use crate::moves::lifecycle::MoveRequest;
use crate::moves::netns::Netns;

pub(super) fn set(netns: &Netns, link: &Link, request: &MoveRequest<'_>) -> Result<()> {
    let index = link.index;
    let setting = |what: String| {
        let name = link.display_name();
        move || format!("setting {what} of interface {name} in the container")
    };
    if let Some(mtu) = request.settings.mtu {
        let set = netns.change_link(index, &LinkChange::Mtu(mtu.get()));
        set.with_context(setting(format!("the MTU {}", mtu.get())))?;
    }
    if has_ipv6(&request.settings) {
        sysctl::enable_ipv6(netns, link).with_context(setting("disable_ipv6".to_owned()))?;
    }
    let up = LinkChange::Flags { mask: UP, flags: UP };
    netns.change_link(index, &up).with_context(setting("the state".to_owned()))?;
    for address in &request.settings.addresses {
        let added = netns.add_address(Address {
            index,
            address: address.address(),
            prefix: address.prefix(),
        });
        added.with_context(setting(format!("the address {address}")))?;
    }
    for route in &request.settings.routes {
        let network = (route.network.address(), route.network.prefix());
        let via = route.via;
        let added = netns.add_route(NewRoute { index, network, via });
        added.with_context(setting(format!("the route {route}")))?;
    }
    for via in &request.settings.gateway {
        let everywhere = match via {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let added = netns.add_route(NewRoute { index, network: (everywhere, 0), via: Some(*via) });
        let code = added.as_ref().err().and_then(Errno::from_io_error);
        let hint = match code {
            Some(Errno::EXIST) => " in addition to the container's own, which its engine set,",
            _ => "",
        };
        added.with_context(setting(format!("the gateway {via}{hint}")))?;
    }
    Ok(())
}

/// Returns a requested setting that an interface in the container's network does not have. Settings from config.toml
/// apply only to the first container of a network.
pub(super) fn find_difference(
    netns: &Netns,
    link: &Link,
    request: &MoveRequest<'_>,
) -> Result<Option<String>> {
    let (index, requested) = (link.index, &request.requested);
    if let Some(name) = request.new_name.filter(|name| name.as_str().as_bytes() != link.name) {
        return Ok(Some(format!("its name is {} and not {name}", Quoted(&link.display_name()))));
    }
    if let Some(mtu) = requested.mtu.filter(|mtu| mtu.get() != link.mtu) {
        return Ok(Some(format!("its MTU is {} and not {mtu}", link.mtu)));
    }
    if !requested.addresses.is_empty() {
        let addresses = netns.addresses()?;
        for requested in &requested.addresses {
            let (address, prefix) = (requested.address(), requested.prefix());
            if !addresses.contains(&Address { index, address, prefix }) {
                return Ok(Some(format!("it does not have the address {requested}")));
            }
        }
    }
    if !requested.routes.is_empty() {
        let routes = netns.routes()?;
        for requested in &requested.routes {
            let destination = (requested.network.address(), requested.network.prefix());
            if !routes.iter().any(|route| {
                (route.destination, route.via) == (destination, requested.via)
                    && route.interfaces == [index]
            }) {
                return Ok(Some(format!("the route {requested} does not lead over it")));
            }
        }
    }
    Ok(None)
}

fn has_ipv6(settings: &NetdevSettings) -> bool {
    settings.addresses.iter().any(|address| address.address().is_ipv6())
        || settings.routes.iter().any(|route| route.network.address().is_ipv6())
        || settings.gateway.iter().any(IpAddr::is_ipv6)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::UdpSocket;

    use onload_test_tree::network::{self, Child};

    use super::*;
    use crate::moves::netns::test_namespace::netns;

    /// Gives the interface `d0` of a namespace these addresses.
    fn set_addresses(child: &Child, addresses: &[&str]) -> Result<()> {
        let netns = netns(child);
        let link = netns.links().unwrap().into_iter().find(|link| link.name == b"d0").unwrap();
        let addresses = addresses.iter().map(|text| text.parse().unwrap());
        let request = MoveRequest {
            device: &"netdev:d0".parse().unwrap(),
            name: "d0".to_owned(),
            pci: "0000:03:10.0".parse().unwrap(),
            new_name: None,
            requested: NetdevSettings::default(),
            settings: NetdevSettings {
                addresses: addresses.collect(),
                ..NetdevSettings::default()
            },
            vf: None,
        };
        set(&netns, &link, &request)
    }

    #[test]
    fn a_program_can_bind_each_address_at_once() {
        if !network::can_be("setting addresses") {
            return;
        }
        let child = Child::of_root();
        child.ip("link add d0 type veth peer name d1");
        child.ip("link set d1 up");
        set_addresses(&child, &["192.0.2.10/24", "2001:db8::10/64"]).unwrap();
        child.within(|| {
            for address in ["192.0.2.10:0", "[2001:db8::10]:0"] {
                UdpSocket::bind(address).unwrap();
            }
        });
    }

    /// As docker before 26.0 does with a network that has no IPv6.
    #[test]
    fn an_ipv6_address_is_set_where_the_container_s_network_has_no_ipv6_by_its_engine() {
        if !network::can_be("setting addresses") {
            return;
        }
        let child = Child::of_root();
        child.ip("link add d0 type veth peer name d1");
        child.within(|| fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap());
        let disabled = |wanted: [&str; 2]| {
            child.within(|| {
                let read = |name| {
                    fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"))
                };
                assert_eq!(["d0", "d1"].map(|name| read(name).unwrap()), wanted);
            });
        };
        set_addresses(&child, &["192.0.2.10/24"]).unwrap();
        disabled(["1\n", "1\n"]);
        set_addresses(&child, &["192.0.2.10/24", "2001:db8::10/64"]).unwrap();
        disabled(["0\n", "1\n"]);
        child.within(|| drop(UdpSocket::bind("[2001:db8::10]:0").unwrap()));
    }
}
