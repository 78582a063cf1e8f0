//! The interfaces, addresses and routes of a network namespace (`RTM_GETLINK`, `RTM_GETADDR`, `RTM_GETROUTE`,
//! rtnetlink(7)), reduced to what shows the use of an interface.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

use onload_core::netdev::usage::{LinkRoute, NetworkState};
use onload_sys::netlink::socket::NetlinkSocket;
use onload_sys::netlink::{address, link, route};
use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const STACK: usize = 256 * 1024;
const OWN_NETNS: &str = "/proc/self/ns/net";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetnsLinks {
    pub links: Vec<link::Link>,
    /// The `nsid` of this process's namespace in that one: lower interfaces may be in it.
    pub own_id: Option<i32>,
}

/// Lists the interfaces of a network namespace, in a new thread that enters it and ends.
pub fn list_links(file: &Path) -> io::Result<NetnsLinks> {
    let open = |path: &Path| {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty())
    };
    let (netns, own_netns) = (open(file)?, open(Path::new(OWN_NETNS))?);
    let read = || {
        move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))?;
        let socket = NetlinkSocket::open(None)?;
        // Listing interfaces makes the kernel assign an `nsid` to the namespaces of their lower interfaces.
        let links = socket.list(link::GET, &link::dump_payload(), &link::parse)?;
        let number = link::namespace_id_payload(own_netns.as_fd());
        let own_id = socket.get(link::GET_NAMESPACE, &number, &link::parse_namespace_number)?;
        Ok(NetnsLinks { links, own_id })
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, read)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread has died")))
    })
}

/// Returns the index of the interface that this network namespace uses for an address. `None` if it has no route to it.
pub fn route_interface(address: IpAddr) -> Option<u32> {
    let first = |payload: &[u8]| route::parse(payload)?.interfaces.first().copied();
    let socket = NetlinkSocket::open(None).ok()?;
    socket.get(route::GET, &route::lookup_payload(address), &first).ok()?
}

pub(crate) fn read() -> io::Result<NetworkState> {
    let socket = NetlinkSocket::open(None)?;
    Ok(NetworkState {
        links: socket.list(link::GET, &link::dump_payload(), &parse_link)?,
        addresses: socket.list(address::GET, &address::dump_payload(), &address::parse)?,
        routes: socket.list_routes()?.into_iter().flat_map(LinkRoute::from_route).collect(),
    })
}

/// Parses a link. Returns `None` for one without a name.
fn parse_link(payload: &[u8]) -> Option<link::Link> {
    link::parse(payload).filter(|link| !link.name.is_empty())
}

#[cfg(fuzzing)]
pub(super) fn fuzz(bytes: &[u8]) {
    assert!(parse_link(bytes).is_none_or(|link| !link.name.is_empty()));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of such a message are tested where they are parsed.
    #[test]
    fn an_interface_without_a_name_is_none() {
        let mut nameless = vec![0; 16];
        nameless[4] = 1;
        assert_eq!(parse_link(&nameless), None);
    }

    /// The own one is another one's too, and has no number of its own unless one was requested.
    #[test]
    fn a_namespace_is_entered_by_a_thread_and_this_process_stays() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: entering a network namespace needs root");
            return;
        }
        let before = std::fs::read_link(OWN_NETNS).unwrap();
        let found = list_links(Path::new("/proc/self/ns/net")).unwrap();
        assert!(found.links.iter().any(|link| link.has_name(b"lo")));
        assert_eq!(std::fs::read_link(OWN_NETNS).unwrap(), before);
        assert!(list_links(Path::new("/proc/self/ns/mnt")).is_err());
        assert!(list_links(Path::new("/dev/null")).is_err());
    }

    #[test]
    fn the_kernel_says_by_which_of_two_interfaces_it_sends_to_a_network() {
        if !onload_test_tree::network::can_be("making network interfaces") {
            return;
        }
        let there = onload_test_tree::network::Child::of_root();
        for (at, name) in ["one", "two"].iter().enumerate() {
            there.ip(&format!("link add {name} type veth peer name {name}-end"));
            there.ip(&format!("link set {name} up"));
            there.ip(&format!("address add 192.0.2.{}/24 dev {name}", 10 + at));
        }
        there.within(|| {
            let namespace = read().unwrap();
            let by = |address: &str| route_interface(address.parse().unwrap());
            let first = namespace.link("one").map(|link| link.index);
            assert_eq!(by("192.0.2.1"), first);
            // It has no other route.
            assert_eq!(by("198.51.100.1"), None);
            assert_eq!(by("2001:db8::1"), None);
        });
    }

    /// Every machine has a loopback interface.
    #[test]
    fn the_kernel_says_what_this_namespace_has() {
        let namespace = read().unwrap();
        let loopback = namespace.link("lo").unwrap();
        assert_eq!((loopback.master, loopback.xdp_modes), (None, &[][..]));
    }
}
