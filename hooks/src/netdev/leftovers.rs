//! What a container left on an interface: other interfaces that stand on it and take its packets, and BPF programs.
//! Both stay on it when it moves. A container may have put the other interfaces into another namespace, so they are
//! looked for in all that can be found.

use std::io;
use std::time::Duration;

use rustix::io::Errno;

use super::error::NetdevError;
use super::programs;
use crate::netlink::link::Link;
use crate::netns::{self, Depth, Netns, NetnsError, Unseen};

/// How long namespaces that are not the host's are looked at before an interface moves, and where there is another way.
pub(super) const SHORT: Duration = Duration::from_secs(2);
/// And how long where nothing may be left on an interface.
pub(super) const LONG: Duration = Duration::from_secs(6);

/// An interface that stands on another one, and where it is.
pub(super) struct Upper {
    /// Where it is, and who keeps that.
    pub(super) place: netns::Found,
    pub(super) link: Link,
}

/// What stands on an interface in other namespaces.
#[derive(Default)]
pub(super) struct Uppers {
    pub(super) found: Vec<Upper>,
    /// Why there may be more.
    pub(super) unseen: Option<NetdevError>,
}

/// What stands on an interface of `base` in other namespaces.
///
/// # Errors
/// [`NetdevError`]: not even all namespaces of the host could be looked at.
pub(super) fn uppers_elsewhere(
    base: &Netns,
    lower: &Link,
    depth: Depth,
    patience: Duration,
) -> Result<Uppers, NetdevError> {
    let mut uppers = Uppers::default();
    for place in netns::others(base, depth, patience) {
        let place = match place {
            Ok(place) => place,
            Err(Unseen::Host(source)) => return Err(looking(lower)(source)),
            Err(Unseen::Others(source)) => {
                uppers.unseen = Some(looking(lower)(source));
                break;
            }
        };
        match uppers_in(base, lower, &place) {
            Ok(found) => uppers.found.extend(found),
            // Whoever fills a namespace must not keep others from starting, nor hide anything in the next one.
            Err(source) => {
                let keeper = place.keeper.to_string();
                let unseen = || NetdevError::Unseen { keeper, source };
                uppers.unseen.get_or_insert_with(unseen);
            }
        }
    }
    Ok(uppers)
}

fn uppers_in(base: &Netns, lower: &Link, place: &netns::Found) -> Result<Vec<Upper>, NetnsError> {
    let (links, _) = place.netns.look()?;
    let stand = |link: &&Link| {
        let number = link.lower_namespace;
        number.is_some() && link.stands_in(number, lower.index)
    };
    let mut found = links.iter().filter(stand).peekable();
    if found.peek().is_none() {
        return Ok(Vec::new());
    }
    let failed = |source| NetnsError::List("what stands on an interface", source);
    let number = place.netns.number_of(base).map_err(failed)?;
    let own = found.filter(|link| link.lower_namespace == number);
    own.map(|link| {
        let place = place.again().map_err(failed)?;
        let link = link.clone();
        Ok(Upper { place, link })
    })
    .collect()
}

fn looking(link: &Link) -> impl Fn(io::Error) -> NetdevError {
    NetdevError::looking(link.shown())
}

/// Deletes what stands on an interface of `base`, there and elsewhere.
///
/// # Errors
/// [`NetdevError`] names what stays, or why something may.
pub(super) fn delete_uppers(
    base: &Netns,
    lower: &Link,
    depth: Depth,
    patience: Duration,
) -> Result<(), NetdevError> {
    let (links, _) = base.look()?;
    for upper in links.iter().filter(|other| other.stands_on(lower.index)) {
        delete(base, upper)?;
    }
    let uppers = uppers_elsewhere(base, lower, depth, patience)?;
    for upper in uppers.found {
        delete(&upper.place.netns, &upper.link)?;
    }
    uppers.unseen.map_or(Ok(()), Err)
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

/// Detaches the programs that a container left on an interface of the host.
///
/// # Errors
/// [`NetdevError::Programs`].
pub(super) fn detach_programs(link: &Link) -> Result<(), NetdevError> {
    programs::clear(link).map_err(|error| NetdevError::Programs {
        name: link.shown(),
        source: error.into(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::*;
    use crate::netdev::test_namespace::{self, Child};

    #[test]
    fn what_the_host_put_on_it_is_found_and_deleted_though_there_is_no_time_for_others() {
        if !test_namespace::can_be("moving interfaces") {
            return;
        }
        let Some(_stranger) = Child::of_user() else {
            return;
        };
        let (base, two) = (Child::new(), Child::new());
        base.ip("link add d0 type veth peer name d1");
        base.ip("link add link d0 name mac0 type macvlan");
        base.ip(&format!("link set mac0 netns {}", two.pid()));
        let netns = base.netns();
        let mut links = netns.links().unwrap().into_iter();
        let link = links.find(|link| link.name == b"d0").unwrap();
        let find = || {
            let depth = Depth::Processes;
            uppers_elsewhere(&netns, &link, depth, Duration::ZERO).unwrap()
        };
        // An interface may move then, with a warning.
        let uppers = find();
        assert_eq!(uppers.found.len(), 1);
        let unseen = uppers.unseen.unwrap().to_string();
        assert_eq!(unseen, "interface d0: looking at other network namespaces");
        // And does not come back as it was.
        delete_uppers(&netns, &link, Depth::Processes, Duration::ZERO).unwrap_err();
        assert_eq!(find().found.len(), 0);
    }

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
