//! The interfaces, addresses and routes of a network namespace (`RTM_GETLINK`, `RTM_GETADDR`, `RTM_GETROUTE`,
//! rtnetlink(7)), as far as they tell who uses an interface.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

use onload_core::netdev::usage::{Link, LinkRoute, Namespace};
use onload_sys::netlink::address::Address;
use onload_sys::netlink::message::{Message, REQUEST};
use onload_sys::netlink::{address, link, route};
use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::socket::Socket;

const STACK: usize = 256 * 1024;
const OWN: &str = "/proc/self/ns/net";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elsewhere {
    pub links: Vec<link::Link>,
    /// The number by which that namespace tells of this process's own: an interface below one of them may be there.
    pub own: Option<i32>,
}

/// The interfaces of the network namespace of that file, which a thread enters that does nothing else and ends.
pub fn elsewhere(file: &Path) -> io::Result<Elsewhere> {
    let open = |path: &Path| {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty())
    };
    let (there, own) = (open(file)?, open(Path::new(OWN))?);
    let look = || {
        move_into_link_name_space(there.as_fd(), Some(LinkNameSpaceType::Network))?;
        let socket = Socket::open(None)?;
        let add = |all: &mut Vec<link::Link>, message: Message<'_>| {
            let payload = (message.kind == link::NEW).then_some(message.payload);
            all.extend(payload.and_then(link::parse));
        };
        // The kernel numbers the namespaces below interfaces when it lists these.
        let links = socket.dump(link::GET, &link::all(), &add)?;
        let number = link::namespace_number(own.as_fd());
        let answer = socket.ask(link::GET_NAMESPACE, REQUEST, &number)?;
        let own = link::parse_namespace_number(&answer);
        Ok(Elsewhere { links, own })
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK);
        let thread = thread.spawn_scoped(scope, look)?;
        let died = |_| Err(io::Error::other("its thread has died"));
        thread.join().unwrap_or_else(died)
    })
}

pub(crate) fn read() -> io::Result<Namespace> {
    let socket = Socket::open(None)?;
    let add_link = |all: &mut Vec<Link>, message: Message<'_>| all.extend(one_link(message));
    let add_address =
        |all: &mut Vec<Address>, message: Message<'_>| all.extend(one_address(message));
    let add_route = |all: &mut Vec<LinkRoute>, message: Message<'_>| {
        all.extend(routes(message).into_iter().flatten());
    };
    Ok(Namespace {
        links: socket.dump(link::GET, &link::all(), &add_link)?,
        addresses: socket.dump(address::GET, &address::all(), &add_address)?,
        routes: socket.dump(route::GET, &route::all(), &add_route)?,
    })
}

fn one_link(message: Message<'_>) -> Option<Link> {
    let payload = (message.kind == link::NEW).then_some(message.payload)?;
    let found = Link::from(&link::parse(payload)?);
    (!found.name.is_empty()).then_some(found)
}

fn one_address(message: Message<'_>) -> Option<Address> {
    let payload = (message.kind == address::NEW).then_some(message.payload)?;
    address::parse(payload)
}

/// The route over each interface that it leads through. Those of other families than IP are none.
fn routes(message: Message<'_>) -> Option<Vec<LinkRoute>> {
    let payload = (message.kind == route::NEW).then_some(message.payload)?;
    Some(LinkRoute::each(route::parse(payload)?).collect())
}

#[cfg(any(test, fuzzing))]
fn of(kind: u16, payload: &[u8]) -> Message<'_> {
    Message {
        kind,
        flags: 0,
        sequence: 1,
        payload,
    }
}

#[cfg(fuzzing)]
pub(super) fn fuzz(bytes: &[u8]) {
    for kind in [link::NEW, address::NEW, route::NEW] {
        let message = of(kind, bytes);
        let _ = one_address(message);
        assert!(one_link(message).is_none_or(|link| !link.name.is_empty()));
        assert!(routes(message).is_none_or(|routes| routes.len() <= bytes.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the bytes of such a message are is tested where they are read.
    #[test]
    fn a_message_of_another_kind_or_without_a_name_is_nothing() {
        let mut nameless = vec![0; 16];
        nameless[4] = 1;
        for kind in [link::NEW, address::NEW, route::NEW, 99] {
            let message = of(kind, &nameless);
            assert_eq!(one_link(message), None, "{kind}");
        }
        let new = Address {
            index: 3,
            address: "192.0.2.10".parse().unwrap(),
            prefix: 24,
        };
        let bytes = address::payload(new);
        let found = one_address(of(address::NEW, &bytes)).unwrap();
        assert_eq!((found.index, found.prefix), (3, 24));
        assert_eq!(one_address(of(link::NEW, &bytes)), None);
        let new = route::New {
            index: 5,
            network: ("198.51.100.0".parse().unwrap(), 24),
            via: None,
        };
        let bytes = route::payload(new);
        let found = routes(of(route::NEW, &bytes)).unwrap();
        assert_eq!((found.len(), found[0].index, found[0].prefix), (1, 5, 24));
        assert_eq!(routes(of(address::NEW, &bytes)), None);
    }

    /// The own one is another one's too, and has no number of its own unless somebody asked for one.
    #[test]
    fn a_namespace_is_entered_by_a_thread_and_this_process_stays() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: entering a network namespace needs root");
            return;
        }
        let before = std::fs::read_link(OWN).unwrap();
        let found = elsewhere(Path::new("/proc/self/ns/net")).unwrap();
        assert!(found.links.iter().any(|link| link.is_called(b"lo")));
        assert_eq!(std::fs::read_link(OWN).unwrap(), before);
        assert!(elsewhere(Path::new("/proc/self/ns/mnt")).is_err());
        assert!(elsewhere(Path::new("/dev/null")).is_err());
    }

    /// Every machine has a loopback interface.
    #[test]
    fn the_kernel_says_what_this_namespace_has() {
        let namespace = read().unwrap();
        let loopback = namespace.link("lo").unwrap();
        assert_eq!((loopback.master, loopback.has_xdp), (None, false));
    }
}
