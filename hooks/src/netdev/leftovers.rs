//! What a container left on an interface: other interfaces that stand on it and take its packets, and BPF programs.
//! Both stay on it when it moves. A container may have put the other interfaces into another namespace, so they are
//! looked for in all that can be found.

use rustix::io::Errno;

use super::error::NetdevError;
use super::programs;
use crate::netlink::link::Link;
use crate::netns::{self, Depth, Netns};

/// An interface that stands on another one, and where it is.
pub(super) struct Upper {
    /// Where it is, and who keeps that.
    pub(super) place: netns::Found,
    /// The interface.
    pub(super) link: Link,
}

/// What stands on an interface of `base` in other namespaces.
///
/// # Errors
/// [`NetdevError`]: it cannot be said.
pub(super) fn uppers_elsewhere(
    base: &Netns,
    index: u32,
    depth: Depth,
) -> Result<Vec<Upper>, NetdevError> {
    let mut uppers = Vec::new();
    for place in netns::others(base, depth) {
        let place = place.map_err(NetdevError::looking)?;
        let links = match (place.netns.look(), depth) {
            (Ok((links, _)), _) => links,
            // Whoever fills a namespace must not keep others from starting.
            (Err(_), Depth::Processes) => continue,
            (Err(source), Depth::Descriptors) => {
                let keeper = place.keeper.to_string();
                return Err(NetdevError::Unseen { keeper, source });
            }
        };
        let stand = |link: &&Link| {
            let number = link.lower_namespace;
            number.is_some() && link.stands_in(number, index)
        };
        let mut found = links.iter().filter(stand).peekable();
        if found.peek().is_none() {
            continue;
        }
        let number = place.netns.number_of(base).map_err(NetdevError::looking)?;
        let own = found.filter(|link| link.lower_namespace == number);
        for link in own.cloned().collect::<Vec<Link>>() {
            let place = place.again().map_err(NetdevError::looking)?;
            uppers.push(Upper { place, link });
        }
    }
    Ok(uppers)
}

/// Deletes what stands on an interface of `base`, there and elsewhere.
///
/// # Errors
/// [`NetdevError`] names what stays.
pub(super) fn delete_uppers(base: &Netns, index: u32, depth: Depth) -> Result<(), NetdevError> {
    let (links, _) = base.look()?;
    for upper in links.iter().filter(|other| other.stands_on(index)) {
        delete(base, upper)?;
    }
    for upper in uppers_elsewhere(base, index, depth)? {
        delete(&upper.place.netns, &upper.link)?;
    }
    Ok(())
}

fn delete(netns: &Netns, upper: &Link) -> Result<(), NetdevError> {
    match netns.delete(upper.index) {
        Err(error) if Errno::from_io_error(&error) != Some(Errno::NODEV) => {
            let moving = NetdevError::moving(&upper.name, "away, which stood on another");
            Err(moving(error))
        }
        _ => Ok(()),
    }
}

/// Takes from an interface of the host whatever a container left on it.
///
/// # Errors
/// [`NetdevError`] names what stays.
pub(super) fn clear(home: &Netns, link: &Link) -> Result<(), NetdevError> {
    delete_uppers(home, link.index, Depth::Descriptors)?;
    programs::clear(link).map_err(|error| NetdevError::Programs {
        name: link.shown(),
        source: error.into(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use crate::netdev::test_namespace::{self, Child};

    #[test]
    fn nothing_hides_in_a_namespace_whose_interfaces_come_and_go() {
        if !test_namespace::can_be("moving interfaces") {
            return;
        }
        let (one, two) = (Child::new(), Child::new());
        one.ip("link add moves index 7 type veth");
        // More than one datagram of the kernel's has.
        for number in 0..60 {
            one.ip(&format!("link add b{number} type bridge"));
        }
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (one, two) = (one.netns(), two.netns());
                while !is_done.load(Relaxed) {
                    one.give(7, &two, None).unwrap();
                    two.give(7, &one, None).unwrap();
                }
            });
            let netns = one.netns();
            let fewer = (0..20).find_map(|_| {
                let (links, _) = netns.look().unwrap();
                let bridges = links.iter().filter(|link| link.kind == b"bridge");
                Some(bridges.count()).filter(|count| *count != 60)
            });
            is_done.store(true, Relaxed);
            assert_eq!(fewer, None);
        });
    }
}
