//! Finds and removes what a container left on an interface: stacked interfaces that receive its packets, and BPF
//! programs. Both stay when the interface moves. A container may have moved stacked interfaces to other namespaces, so
//! all namespaces are searched.

use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use onload_sys::error::{Context as _, Error, Result, bail};
use onload_sys::netlink::link::{GROUP, Link, LinkChange};
use onload_sys::text::Quoted;
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use crate::moves::netns::{self, Netns, SearchDepth};

/// Time limit for searching namespaces of other user namespaces during a move.
pub(super) const SHORT: Duration = Duration::from_secs(2);
/// Time limit after the return, since nothing may be left on the interface.
pub(super) const LONG: Duration = Duration::from_secs(6);

/// Limit for interfaces deleted by one request, which cannot be interrupted.
const BATCH: usize = 200;
/// The lowest group number used for deletion.
const FIRST_GROUP: u32 = 1 << 30;

/// Calls `action` for each namespace with interfaces stacked on an interface of `base`. Each namespace is closed before
/// the next one is opened, since there may be more of them than this process may have descriptors. Returns why the
/// search is incomplete. Fails if not even all namespaces of the host could be examined.
pub(super) fn visit_uppers(
    base: &Netns,
    lower: &Link,
    depth: SearchDepth,
    timeout: Duration,
    action: &mut dyn FnMut(&netns::FoundNetns, &[Link]) -> Result<()>,
) -> Result<Option<Error>> {
    let (mut unseen, mut failed) = (None, None);
    let incomplete = netns::visit_other_netns(base, depth, timeout, &mut |namespace| {
        let uppers = list_uppers(base, lower, &namespace.netns).with_context(|| {
            format!(
                "looking for interfaces that a container left in the network namespace of {}; stop \
                 it if it does not end, then run \"onload-ctk lease restore\"",
                namespace.keeper
            )
        });
        match uppers {
            Ok(uppers) => failed = action(&namespace, &uppers).err(),
            // A user who fills a namespace must neither prevent containers from starting nor hide the interfaces in the
            // next namespace.
            Err(error) => {
                unseen.get_or_insert(error);
            }
        }
        if failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let looking =
        || format!("interface {}: looking at other network namespaces", lower.display_name());
    match incomplete.with_context(looking)? {
        Some(error) => Ok(Err::<(), _>(error).with_context(looking).err()),
        None => Ok(unseen),
    }
}

fn list_uppers(base: &Netns, lower: &Link, netns: &Netns) -> Result<Vec<Link>> {
    let (mut links, _) = netns.snapshot()?;
    links.retain(|link| {
        let namespace_id = link.lower_namespace;
        namespace_id.is_some() && link.is_upper_of_in(namespace_id, lower.index)
    });
    if !links.is_empty() {
        let namespace_id =
            netns.namespace_id(base).context("listing interfaces stacked on an interface")?;
        links.retain(|link| link.lower_namespace == namespace_id);
    }
    Ok(links)
}

/// Deletes the interfaces stacked on an interface of `base`, in all namespaces. Fails if one of them remains or may
/// remain. A container may have created thousands.
pub(super) fn delete_uppers(
    base: &Netns,
    lower: &Link,
    depth: SearchDepth,
    timeout: Duration,
) -> Result<()> {
    let deadline = Instant::now() + timeout;
    let delete_all = |netns: &Netns, uppers: &[Link]| -> Result<()> {
        for (number, batch) in uppers.chunks(BATCH).enumerate() {
            if number > 0 && Instant::now() >= deadline {
                let (name, seconds) = (lower.display_name(), timeout.as_secs());
                bail!(
                    "interface {name}: some interfaces that a container left on it were not \
                     deleted within {seconds} seconds; run \"onload-ctk lease restore\""
                );
            }
            delete_batch(netns, batch)?;
        }
        Ok(())
    };
    let (mut base_uppers, _) = base.snapshot()?;
    base_uppers.retain(|other| other.is_upper_of(lower.index));
    delete_all(base, &base_uppers)?;
    let unseen = visit_uppers(base, lower, depth, timeout, &mut |namespace, uppers| {
        delete_all(&namespace.netns, uppers)
    })?;
    unseen.map_or(Ok(()), Err)
}

/// Deletes interfaces by one request: each request takes about 18 ms, and hardly more for many interfaces.
fn delete_batch(netns: &Netns, batch: &[Link]) -> Result<()> {
    if batch.len() > 1 && delete_as_group(netns, batch).is_ok() {
        return Ok(());
    }
    for upper in batch {
        let deleted = delete(netns, upper.index);
        deleted.with_context(|| move_context(&upper.name, "away, which was on another"))?;
    }
    Ok(())
}

fn delete_as_group(netns: &Netns, batch: &[Link]) -> io::Result<()> {
    let (links, _) = netns.snapshot().map_err(io::Error::other)?;
    let used_groups: BTreeSet<&[u8]> =
        links.iter().filter_map(|link| link.settings.get(&GROUP)).map(Vec::as_slice).collect();
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    // Avoids small numbers, which administrators use, since another program may add an interface to a group at any
    // time.
    let word = u32::from_ne_bytes(bytes) | FIRST_GROUP;
    let value = word.to_ne_bytes();
    if used_groups.contains(value.as_slice()) {
        return Err(Errno::EXIST.into());
    }
    for upper in batch {
        match netns.change_link(upper.index, &LinkChange::Setting { kind: GROUP, value: &value }) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NODEV) => {}
            changed => changed?,
        }
    }
    netns.delete_group(word)
}

/// Describes a move for messages. `direction` is the source or target.
pub(super) fn move_context(name: &[u8], direction: &str) -> String {
    format!("moving interface {} {direction}", Quoted(&String::from_utf8_lossy(name)))
}

/// Deletes an interface. Succeeds if it is already gone.
pub(super) fn delete(netns: &Netns, index: u32) -> io::Result<()> {
    match netns.delete(index) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NODEV) => Ok(()),
        deleted => deleted,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use onload_test_tree::network::{self, Child};

    use super::*;
    use crate::moves::netns::test_namespace::netns;

    #[test]
    fn what_the_host_put_on_it_is_found_and_deleted_though_there_is_no_time_for_others() {
        if !network::can_be("moving interfaces") {
            return;
        }
        let Some(_stranger) = Child::of_user() else {
            return;
        };
        let (base, two) = (Child::of_root(), Child::of_root());
        base.ip("link add d0 type veth peer name d1");
        base.ip("link add link d0 name mac0 type macvlan");
        base.ip(&format!("link set mac0 netns {}", two.pid()));
        let netns = netns(&base);
        let mut links = netns.links().unwrap().into_iter();
        let link = links.find(|link| link.name == b"d0").unwrap();
        let find = || {
            let (mut found, depth) = (0, SearchDepth::Processes);
            let mut count = |_: &netns::FoundNetns, uppers: &[Link]| {
                found += uppers.len();
                Ok(())
            };
            let unseen = visit_uppers(&netns, &link, depth, Duration::ZERO, &mut count);
            (found, unseen.unwrap())
        };
        // An interface may move then, with a warning.
        let (found, unseen) = find();
        assert_eq!(found, 1);
        let unseen = unseen.unwrap().to_string();
        assert_eq!(unseen, "interface d0: looking at other network namespaces");
        // And does not come back as it was.
        delete_uppers(&netns, &link, SearchDepth::Processes, Duration::ZERO).unwrap_err();
        assert_eq!(find().0, 0);
    }

    #[test]
    fn what_there_is_no_time_to_delete_is_an_error_and_the_rest_is_deleted_the_next_time() {
        if !network::can_be("moving interfaces") {
            return;
        }
        let base = Child::of_root();
        base.ip("link add d0 type veth peer name d1");
        for number in 0..BATCH + 2 {
            base.ip(&format!("link add link d0 name mac{number} type macvlan"));
        }
        // An interface of another kind is in no danger, whatever its group.
        base.ip("link set d1 group 7");
        let netns = netns(&base);
        let left = || {
            let links = netns.links().unwrap();
            assert!(links.iter().any(|link| link.name == b"d1"));
            links.iter().filter(|link| link.kind == b"macvlan").count()
        };
        let mut links = netns.links().unwrap().into_iter();
        let link = links.find(|link| link.name == b"d0").unwrap();
        let delete = |timeout| delete_uppers(&netns, &link, SearchDepth::Root, timeout);
        let late = delete(Duration::ZERO).unwrap_err().to_string();
        let wanted = "interface d0: some interfaces that a container left on it were not deleted \
            within 0 seconds; run \"onload-ctk lease restore\"";
        assert_eq!((late.as_str(), left()), (wanted, 2));
        delete(LONG).unwrap();
        assert_eq!(left(), 0);
        // One that goes meanwhile.
        for number in 0..3 {
            base.ip(&format!("link add link d0 name mac{number} type macvlan"));
        }
        let mut batch = netns.links().unwrap();
        batch.retain(|link| link.kind == b"macvlan");
        base.ip("link del mac1");
        delete_batch(&netns, &batch).unwrap();
        assert_eq!(left(), 0);
    }

    #[test]
    fn nothing_hides_in_a_namespace_whose_interfaces_come_and_go() {
        if !network::can_be("moving interfaces") {
            return;
        }
        let (one, two) = (Child::of_root(), Child::of_root());
        one.ip("link add moves index 7 type veth");
        // More than one datagram of the kernel's has.
        for number in 0..60 {
            one.ip(&format!("link add b{number} type bridge"));
        }
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (one, two) = (netns(&one), netns(&two));
                while !is_done.load(Relaxed) {
                    one.move_link(7, &two, None).unwrap();
                    two.move_link(7, &one, None).unwrap();
                }
            });
            let netns = netns(&one);
            let fewer = (0..20).find_map(|_| {
                let (links, _) = netns.snapshot().unwrap();
                let bridges = links.iter().filter(|link| link.kind == b"bridge");
                Some(bridges.count()).filter(|count| *count != 60)
            });
            is_done.store(true, Relaxed);
            assert_eq!(fewer, None);
        });
    }
}
