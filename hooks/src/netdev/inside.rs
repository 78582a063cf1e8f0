//! What an interface has in the container: its addresses, routes and size, and that it is up.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use onload_core::netdev::address::InterfaceAddress;
use onload_core::netdev::settings::NetdevSettings;
use rustix::io::Errno;

use super::error::NetdevError;
use crate::netlink::address::Address;
use crate::netlink::link::{Change, Link, UP};
use crate::netlink::route::New;
use crate::netns::Netns;

/// What it is to have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) addresses: Vec<InterfaceAddress>,
    /// What the operator says of it beside.
    pub(crate) settings: NetdevSettings,
}

impl Wanted {
    /// Its addresses, without their networks.
    pub(super) fn own_addresses(&self) -> Vec<IpAddr> {
        let addresses = self.addresses.iter();
        addresses.map(InterfaceAddress::address).collect()
    }
}

/// Sets all of it.
///
/// # Errors
/// [`NetdevError::Set`] names what the kernel refuses.
pub(super) fn set(netns: &Netns, link: &Link, wanted: &Wanted) -> Result<(), NetdevError> {
    let failed = |what: String| {
        move |source| NetdevError::Set {
            what: what.clone(),
            name: link.shown(),
            source,
        }
    };
    if let Some(mtu) = wanted.settings.mtu {
        let set = netns.change(link.index, &Change::Mtu(mtu.get()));
        set.map_err(failed(format!("the MTU {}", mtu.get())))?;
    }
    let up = Change::Flags {
        mask: UP,
        flags: UP,
    };
    netns
        .change(link.index, &up)
        .map_err(failed("the state".to_owned()))?;
    for address in &wanted.addresses {
        let added = netns.add_address(Address {
            index: link.index,
            address: address.address(),
            prefix: address.prefix(),
        });
        added.map_err(failed(format!("the address {address}")))?;
    }
    for route in &wanted.settings.routes {
        let network = (route.network.address(), route.network.prefix());
        let via = route.via;
        let added = netns.add_route(New {
            index: link.index,
            network,
            via,
        });
        added.map_err(failed(format!("the route {route}")))?;
    }
    for via in &wanted.settings.gateway {
        let everywhere = match via {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let network = (everywhere, 0);
        let added = netns.add_route(New {
            index: link.index,
            network,
            via: Some(*via),
        });
        added.map_err(|error| failed(gateway(*via, &error))(error))?;
    }
    Ok(())
}

fn gateway(via: IpAddr, error: &std::io::Error) -> String {
    let why = match Errno::from_io_error(error) {
        Some(Errno::EXIST) => " beside the container's own, which its engine set,",
        _ => "",
    };
    format!("the gateway {via}{why}")
}
