//! Restores an interface that is on the host again.

use onload_lease::{ONLOAD_REGISTRATION, SavedInterface};
use onload_sys::error;
use onload_sys::error::{Context as _, Result};
use onload_sys::netlink::link::{Link, LinkChange, PROMISCUOUS, UP};

use super::ops::{InterfaceHostNetns, InterfaceOps};
use super::queues::Origin;
use super::rebind::{RebindableFunction, wait_for_interface};
use super::saved::{self, RestoreStep};
use super::{onload, queues, sysctl, uppers, vf};
use crate::moves::lifecycle::{RestoreError, ReturningDevice};
use crate::moves::netns::SearchDepth;
use crate::moves::transit_name::{is_transit_name, transit_name};

/// Limit for attempts: udev may rename an interface at the same time.
const ROUNDS: u32 = 4;

/// Removes everything that a container left on an interface. The driver of a virtual function is rebound, which deletes
/// the interface and what is stacked on it, in all network namespaces, and creates a new one. If the function has other
/// devices, which containers may have without a lease, this happens only if what is left cannot be found: any user can make
/// that search time out. It happens once: udev calls for each new interface, and would do so forever if something else
/// cannot be restored.
pub(super) fn clear(
    host_netns: &InterfaceHostNetns<'_>,
    link: &Link,
    returning: &ReturningDevice<'_, InterfaceOps>,
    function: Option<&RebindableFunction>,
) -> Result<Origin, RestoreError> {
    if returning.record.rebound.is_some_and(|before| before != link.index) {
        return Ok(Origin::Driver);
    }
    let mut obstacle = None;
    if let Some(function) = function.filter(|function| !function.has_other_devices()) {
        obstacle = rebind(host_netns, link, returning, function)?;
        if obstacle.is_none() {
            return Ok(Origin::Driver);
        }
    }
    uppers::detach_programs(link)?;
    let (depth, timeout) = (SearchDepth::Descriptors, uppers::LONG);
    let Err(error) = uppers::delete_uppers(&host_netns.netns, link, depth, timeout) else {
        return Ok(Origin::Container);
    };
    if obstacle.is_none()
        && let Some(function) = function
    {
        obstacle = rebind(host_netns, link, returning, function)?;
        if obstacle.is_none() {
            return Ok(Origin::Driver);
        }
    }
    let obstacle = obstacle.map_or_else(String::new, |obstacle| format!(", and {obstacle}"));
    Err(error!("{error:#}{obstacle}").into())
}

/// Rebinds the driver of a function, unless there is a reason against it, which is returned. The lease records the index of
/// the interface before, so that after a kill the next process can tell by the index whether it was done.
fn rebind(
    host_netns: &InterfaceHostNetns<'_>,
    link: &Link,
    returning: &ReturningDevice<'_, InterfaceOps>,
    function: &RebindableFunction,
) -> Result<Option<String>, RestoreError> {
    let obstacle = function.find_obstacle(&link.display_name(), &returning.leases.list()?);
    if obstacle.is_some() {
        return Ok(obstacle);
    }
    returning.update_record(&|record| record.rebound = Some(link.index))?;
    let SavedInterface { name, pci, .. } = &returning.saved;
    let rebound = function.rebind();
    rebound.with_context(|| format!("rebinding the driver of interface {name} ({pci})"))?;
    wait_for_interface(host_netns, &returning.saved)?;
    Ok(None)
}

/// Restores an interface on the host and removes what a container left on it, by `clear`. Its name is restored first,
/// because any user can delay `clear` or make it fail. It is set up last, after `clear` and with its settings restored:
/// otherwise the host would accept the next router advertisement on the link.
pub(super) fn clear_and_restore(
    host_netns: &InterfaceHostNetns<'_>,
    link: Link,
    saved: &SavedInterface,
    clear: &dyn Fn(&Link) -> Result<Origin, RestoreError>,
) -> Result<(), RestoreError> {
    // Steps that an attached program prevents are repeated below, or reported.
    let _ = restore(host_netns, link, &with_link_down(saved));
    let origin = clear(&reread(host_netns, saved)?)?;
    let differences = sysctl::restore(&host_netns.netns, &reread(host_netns, saved)?, saved);
    if !differences.is_empty() {
        return Err(not_restored_error(saved, &differences.join(", "), ""));
    }
    vf::restore_vf(host_netns, saved)?;
    let link = reread(host_netns, saved)?;
    clear_promiscuous(host_netns, &link, saved);
    restore(host_netns, link, saved)?;
    let link = reread(host_netns, saved)?;
    let mut differences = queues::restore(&host_netns.netns, &link, saved, origin);
    if !differences.is_empty() && saved.flags & UP == 0 {
        // Some drivers accept `threaded` only while the interface is up.
        run_while_up(host_netns, &link, UP, || {
            differences = queues::restore(&host_netns.netns, &link, saved, origin);
        });
    }
    if !differences.is_empty() {
        return Err(not_restored_error(saved, &differences.join(", "), ""));
    }
    onload::restore(&host_netns.netns, saved)
        .map_err(|error| RestoreError { error, differs: Some(ONLOAD_REGISTRATION.to_owned()) })
}

fn with_link_down(saved: &SavedInterface) -> SavedInterface {
    SavedInterface { flags: saved.flags & !UP, ..saved.clone() }
}

/// Restores the settings that differ.
fn restore(
    host_netns: &InterfaceHostNetns<'_>,
    mut link: Link,
    saved: &SavedInterface,
) -> Result<(), RestoreError> {
    let mut cause = None;
    if free_name(host_netns, &link, saved)? {
        link = reread(host_netns, saved)?;
    }
    for _ in 0..ROUNDS {
        let plan = saved::plan_restore(&link, saved);
        if plan.is_empty() {
            return Ok(());
        }
        for step in plan.into_iter().flat_map(|(_, steps)| steps) {
            let result = match step {
                RestoreStep::Change(change) => host_netns.netns.change_link(link.index, &change),
                RestoreStep::AlternativeName { name, is_set } => {
                    host_netns.netns.set_alternative(link.index, name, is_set)
                }
            };
            cause = result.err().or(cause);
        }
        link = reread(host_netns, saved)?;
    }
    let plan = saved::plan_restore(&link, saved);
    if plan.is_empty() {
        return Ok(());
    }
    let differences: Vec<&str> = plan.into_iter().map(|(what, _)| what).collect();
    let links = host_netns.netns.links().unwrap_or_default();
    let cause = cause.map_or_else(String::new, |cause| format!(" ({cause})"));
    let hint = if differences.contains(&"its name")
        && links.iter().any(|link| link.has_name(saved.name.as_bytes()))
    {
        "; another interface has that name: rename it, then run \"onload-ctk lease restore\""
    } else {
        ""
    };
    Err(not_restored_error(saved, &differences.join(", "), &format!("{cause}{hint}")))
}

/// Reads the interface again.
fn reread(host_netns: &InterfaceHostNetns<'_>, saved: &SavedInterface) -> Result<Link> {
    let link = host_netns.find(saved)?;
    link.ok_or_else(|| host_netns.not_on_host_error(saved.pci, &saved.name))
}

/// Renames the interface to a transit name if another one has its original name. Returns whether it did. A container
/// may have swapped the names of two interfaces, which would block each other.
fn free_name(
    host_netns: &InterfaceHostNetns<'_>,
    link: &Link,
    saved: &SavedInterface,
) -> Result<bool> {
    let name = saved.name.as_bytes();
    if link.name == name || is_transit_name(&link.name) {
        return Ok(false);
    }
    let (host_links, _) = host_netns.netns.snapshot()?;
    if !host_links.iter().any(|other| other.index != link.index && other.has_name(name)) {
        return Ok(false);
    }
    // Before Linux 6.2 an interface cannot be renamed while it is up.
    let down = LinkChange::Flags { mask: UP, flags: 0 };
    for change in [down, LinkChange::Name(transit_name().as_bytes())] {
        // A failure shows up later as a name that was not restored.
        let _ = host_netns.netns.change_link(link.index, &change);
    }
    Ok(true)
}

/// Clears promiscuous mode that a stacked interface left behind. If that interface is deleted while this one is down,
/// the mode stays until this one is set up again (`__dev_set_rx_mode` in net/core/dev.c). A program on the host may
/// have requested the mode too, so [`saved::plan_restore`] does not compare it. A request by the container is withdrawn
/// at the same time.
fn clear_promiscuous(host_netns: &InterfaceHostNetns<'_>, link: &Link, saved: &SavedInterface) {
    let requested = u32::from(link.flags & PROMISCUOUS != 0);
    let is_left = link.promiscuity > requested && link.flags & UP == 0;
    if is_left && saved.flags & (UP | PROMISCUOUS) == 0 {
        run_while_up(host_netns, link, UP | PROMISCUOUS, || {});
    }
}

/// Runs `action` while the interface is up, and then sets it down and clears the flags in `mask`.
fn run_while_up(
    host_netns: &InterfaceHostNetns<'_>,
    link: &Link,
    mask: u32,
    action: impl FnOnce(),
) {
    let set = |flags| {
        let _ = host_netns.netns.change_link(link.index, &LinkChange::Flags { mask, flags });
    };
    set(UP);
    action();
    set(0);
}

fn not_restored_error(saved: &SavedInterface, differences: &str, hint: &str) -> RestoreError {
    let SavedInterface { name, pci, .. } = saved;
    RestoreError {
        error: error!(
            "restoring interface {name} ({pci}): {differences} could not be restored{hint}"
        ),
        differs: Some(differences.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use onload_core::device_id::DeviceId;
    use onload_core::pool::Numa;
    use onload_core::token::Token;
    use onload_lease::run_dir::RunDir;
    use onload_lease::{Holder, LeaseRequest, Leases, MemberRequest, MoveRecord};
    use onload_sys::error::Error;
    use onload_sys::pci::PciAddress;
    use onload_sys::processes::Processes;
    use onload_test_tree::network::{self, Child};

    use super::*;
    use crate::moves::interface::move_home::{delete_impostors, move_home};
    use crate::moves::netns::Netns;
    use crate::moves::netns::test_namespace::netns;
    use crate::moves::rdma::RdmaOps;

    /// A host where an interface of a virtual function may be.
    struct Host {
        child: Child,
        identity: InterfaceOps,
    }

    impl Host {
        /// None where namespaces cannot be made here.
        fn new() -> Option<Self> {
            network::can_be("moving interfaces").then(|| Host {
                child: Child::of_root(),
                identity: InterfaceOps {
                    stand_ins: [(51, pci())].into(),
                    ..InterfaceOps::default()
                },
            })
        }

        /// With the interface, under a name.
        fn with(name: &str) -> Option<Self> {
            let host = Host::new()?;
            host.make(name, "");
            Some(host)
        }

        fn make(&self, name: &str, more: &str) {
            self.ip(&format!("link add {name} index 50 {more}type veth peer name end index 51"));
        }

        fn ip(&self, words: &str) {
            self.child.ip(words);
        }

        fn home(&self) -> InterfaceHostNetns<'_> {
            InterfaceHostNetns { netns: netns(&self.child), ops: &self.identity }
        }

        /// The interface, whatever it is called.
        fn find(&self) -> Link {
            let found = self.home().find(&saved::save_interface(&seen(), pci()));
            found.unwrap().unwrap()
        }
    }

    fn pci() -> PciAddress {
        "0000:03:10.0".parse().unwrap()
    }

    /// What the first look saw, whose number another one has now.
    fn seen() -> Link {
        Link { index: 77, name: b"ens1v0".to_vec(), ..Link::default() }
    }

    fn names(netns: &Netns) -> Vec<String> {
        netns.links().unwrap().iter().map(Link::display_name).collect()
    }

    #[test]
    fn an_interface_that_a_container_put_in_the_place_of_another_does_not_stay_on_the_host() {
        let Some(host) = Host::new() else { return };
        let (home, container) = (host.home(), Child::of_root());
        let seen = seen();
        let facts = saved::save_interface(&seen, pci());
        for (came_as, kind, other) in [
            ("ens1v0", "veth", None),
            ("eth7", "veth", None),
            ("ens1v0", "bridge", None),
            // Its own name makes the kernel fail a rename after the move.
            ("eth7", "veth", Some("ens1v0")),
        ] {
            container.ip(&format!("link add {came_as} index 77 type {kind}"));
            if let Some(other) = other {
                container.ip(&format!("link property add dev {came_as} altname {other}"));
            }
            let from = netns(&container);
            let message = move_home(&from, &seen, &home, &facts).unwrap_err();
            let message = message.to_string();
            let is_known = message.contains("was replaced by another one")
                || message.starts_with("moving interface");
            assert!(is_known, "{message}");
            assert_eq!(names(&home.netns), ["lo"], "{kind} {came_as}");
            let left = names(&from).into_iter().find(|name| name != "lo");
            container.ip(&format!("link del {}", left.unwrap()));
        }
    }

    #[test]
    fn what_came_in_the_place_of_an_interface_that_is_back_already_goes_too() {
        let Some(host) = Host::with("eth3") else {
            return;
        };
        let (home, container) = (host.home(), Child::of_root());
        container.ip("link add eth7 index 77 type veth");
        let seen = seen();
        let facts = saved::save_interface(&seen, pci());
        move_home(&netns(&container), &seen, &home, &facts).unwrap();
        assert_eq!(names(&home.netns), ["lo", "eth3", "end"]);
    }

    #[test]
    fn an_interface_has_its_name_and_is_down_while_what_is_left_on_it_cannot_be_found() {
        let Some(host) = Host::with("ens1v0") else {
            return;
        };
        let home = host.home();
        host.ip("link set ens1v0 up");
        let find = |name: &str| {
            let here = home.netns.links().unwrap();
            here.into_iter().find(|link| link.display_name() == name).unwrap()
        };
        let facts = saved::save_interface(&find("ens1v0"), pci());
        host.ip("link set ens1v0 down");
        host.ip("link set ens1v0 name eth7");
        host.ip("link set eth7 up");
        let failed = || Err(Error::new("not found").into());
        clear_and_restore(&home, find("eth7"), &facts, &|_| failed()).unwrap_err();
        assert_eq!(find("ens1v0").flags & UP, 0);
        clear_and_restore(&home, find("ens1v0"), &facts, &|_| Ok(Origin::Container)).unwrap();
        assert_eq!(find("ens1v0").flags & UP, UP);
    }

    #[test]
    fn what_sysctl_says_of_an_interface_is_as_it_was_before_that_is_up() {
        const SET: [(&str, &str); 3] = [
            ("ipv4/conf/ens1v0/arp_ignore", "1"),
            ("ipv6/conf/ens1v0/accept_ra", "0"),
            ("ipv6/conf/ens1v0/disable_ipv6", "1"),
        ];
        let Some(host) = Host::with("ens1v0") else {
            return;
        };
        let file = |name| Path::new("/proc/sys/net").join(name);
        let are_set = || {
            let mut are_set = [false; 3];
            host.child.within(|| {
                let now = SET.map(|(name, _)| std::fs::read_to_string(file(name)).unwrap());
                are_set = std::array::from_fn(|at| now[at].trim_end() == SET[at].1);
            });
            are_set
        };
        let (home, container) = (host.home(), Child::of_root());
        host.child.within(|| {
            for (name, value) in SET {
                std::fs::write(file(name), value).unwrap();
            }
        });
        host.ip("link set ens1v0 up");
        let link = host.find();
        let facts = SavedInterface {
            sysctls: sysctl::save_sysctls(&home.netns, &link).unwrap(),
            ..saved::save_interface(&link, pci())
        };
        let from = netns(&container);
        home.netns.move_link(link.index, &from, None).unwrap();
        let mut there = from.links().unwrap().into_iter();
        let there = there.find(|link| link.name == b"ens1v0").unwrap();
        move_home(&from, &there, &home, &facts).unwrap();
        // Where one of them cannot be set, it stays down.
        let odd = [("ipv6/addr_gen_mode".to_owned(), "77".to_owned())];
        let odd = SavedInterface { sysctls: odd.into(), ..facts.clone() };
        let cleared = |_: &Link| Ok(Origin::Container);
        let error = clear_and_restore(&home, host.find(), &odd, &cleared).unwrap_err();
        let left = "its addr_gen_mode below net.ipv6.conf";
        assert_eq!(error.differs.as_deref(), Some(left));
        assert_eq!((are_set(), host.find().flags & UP), ([false; 3], 0));
        clear_and_restore(&home, host.find(), &facts, &cleared).unwrap();
        assert_eq!((are_set(), host.find().flags & UP), ([true; 3], UP));
    }

    #[test]
    fn an_interface_that_was_made_anew_is_what_it_was() {
        let Some(host) = Host::new() else { return };
        let home = host.home();
        host.make("ens1v0", "address 02:00:00:00:10:01 ");
        host.ip("link set ens1v0 mtu 1400");
        let before = host.find();
        let facts = saved::save_interface(&before, pci());
        // What its driver does, and a macvlan that no search has found goes with it.
        host.ip("link add link ens1v0 name mac0 type macvlan");
        let anew = |_: &Link| {
            host.ip("link del ens1v0");
            host.make("eth0", "address 02:00:00:00:66:66 ");
            wait_for_interface(&home, &facts)?;
            Ok(Origin::Driver)
        };
        clear_and_restore(&home, before, &facts, &anew).unwrap();
        let after = host.find();
        assert_eq!(after.display_name(), "ens1v0");
        assert_eq!(
            (after.mtu, saved::save_interface(&after, pci()).mac),
            (1400, facts.mac.clone())
        );
        assert!(!names(&home.netns).contains(&"mac0".to_owned()));
    }

    /// A bus with one virtual function whose driver binds.
    fn bus() -> tempfile::TempDir {
        let bus = tempfile::tempdir().unwrap();
        let function = bus.path().join("devices").join(pci().to_string());
        let driver = bus.path().join("drivers/igbvf");
        for dir in [&function.join("physfn"), &driver] {
            std::fs::create_dir_all(dir).unwrap();
        }
        std::fs::write(function.join("driver_override"), "(null)\n").unwrap();
        std::os::unix::fs::symlink(driver, function.join("driver")).unwrap();
        bus
    }

    #[test]
    fn an_interface_is_made_anew_once_and_its_lease_says_so() {
        let Some(host) = Host::with("ens1v0") else {
            return;
        };
        let home = host.home();
        let (dir, bus) = (tempfile::tempdir().unwrap(), bus());
        let device: DeviceId = "netdev:ens1v0".parse().unwrap();
        let leases = leased(dir.path(), &device, saved::save_interface(&host.find(), pci()));
        let moved = || {
            let listed = leases.list().unwrap().remove(0).lease.unwrap();
            listed.moved.unwrap()
        };
        let back =
            |moved: &MoveRecord| ReturningDevice::new(&leases, &device, moved.clone()).unwrap();
        let first = moved();
        assert!(ReturningDevice::<RdmaOps>::new(&leases, &device, first.clone()).is_none());
        assert_eq!(first.rebound, None);
        let function = RebindableFunction::find(bus.path(), pci()).unwrap();
        let origin = clear(&home, &host.find(), &back(&first), Some(&function)).unwrap();
        assert_eq!(origin, Origin::Driver);
        let again = moved();
        assert_eq!(again.rebound, Some(50));
        // Whoever did that was killed before it was unbound: what is left on it is looked for.
        let is_left = || names(&home.netns).contains(&"mac0".to_owned());
        host.ip("link add link ens1v0 name mac0 type macvlan");
        drop(clear(&home, &host.find(), &back(&again), None));
        assert!(!is_left());
        host.ip("link del ens1v0");
        host.ip("link add ens1v0 index 60 type veth peer name end index 51");
        // What stands on it now is the host's own.
        host.ip("link add link ens1v0 name mac0 type macvlan");
        let origin = clear(&home, &host.find(), &back(&again), Some(&function)).unwrap();
        assert_eq!(origin, Origin::Driver);
        assert!(is_left());
    }

    #[test]
    fn what_is_left_on_a_function_that_must_not_be_rebound_is_looked_for() {
        let Some(host) = Host::with("ens1v0") else {
            return;
        };
        let home = host.home();
        let (dir, bus) = (tempfile::tempdir().unwrap(), bus());
        let device: DeviceId = "netdev:ens1v0".parse().unwrap();
        let leases = leased(dir.path(), &device, saved::save_interface(&host.find(), pci()));
        let moved = || leases.list().unwrap().remove(0).lease.unwrap().moved.unwrap();
        let function_dir = bus.path().join("devices").join(pci().to_string());
        let function = RebindableFunction::find(bus.path(), pci()).unwrap();
        let clear = || {
            host.ip("link add link ens1v0 name mac0 type macvlan");
            let back = ReturningDevice::new(&leases, &device, moved()).unwrap();
            let origin = clear(&home, &host.find(), &back, Some(&function)).unwrap();
            assert!(!names(&home.netns).contains(&"mac0".to_owned()));
            assert_eq!((origin, moved().rebound), (Origin::Container, None));
        };
        std::fs::write(function_dir.join("driver_override"), "vfio-pci\n").unwrap();
        clear();
        std::fs::write(function_dir.join("driver_override"), "(null)\n").unwrap();
        // A container may have this device without a lease.
        std::fs::create_dir_all(function_dir.join("infiniband/mlx5_3")).unwrap();
        clear();
        assert!(!bus.path().join("drivers/igbvf/unbind").exists());
    }

    fn leased(run: &Path, device: &DeviceId, facts: SavedInterface) -> Leases {
        let run = RunDir::find(run).unwrap().unwrap();
        let leases = Leases::open(&run, Processes::default()).unwrap();
        let moved = MoveRecord {
            saved: facts.into(),
            namespace: 7,
            addresses: Vec::new(),
            returning: true,
            left: None,
            rebound: None,
        };
        let device_request =
            MemberRequest { moved: Some(moved), ..MemberRequest::for_device(device.clone(), 1) };
        let request = LeaseRequest {
            devices: &[device_request],
            numa: Numa::Any,
            container: &"one".parse().unwrap(),
            bundle: Path::new("/bundle"),
            holder: Holder::new_reservation(Token::new().unwrap(), None),
            token: None,
            claim: None,
            entry_point: "createRuntime",
        };
        leases.acquire(&request, &|_| None).unwrap();
        leases
    }

    #[test]
    fn an_interface_that_was_down_is_up_for_a_moment() {
        let Some(host) = Host::with("ens1v0") else {
            return;
        };
        let home = host.home();
        host.ip("link set ens1v0 promisc on");
        let flags = || host.find().flags & (UP | PROMISCUOUS);
        let mut within = 0;
        run_while_up(&home, &host.find(), UP, || within = flags());
        assert_eq!((within, flags()), (UP | PROMISCUOUS, PROMISCUOUS));
        run_while_up(&home, &host.find(), UP | PROMISCUOUS, || within = flags());
        assert_eq!((within, flags()), (UP, 0));
    }

    #[test]
    fn what_a_killed_process_left_on_the_host_in_the_place_of_an_interface_is_deleted() {
        let Some(host) = Host::with("ctkffffffffffff") else {
            return;
        };
        let home = host.home();
        for name in ["ctk0123456789ab", "ctk-lan", "ctk0123456789AB"] {
            host.ip(&format!("link add {name} type bridge"));
        }
        delete_impostors(&home).unwrap();
        let mut here = names(&home.netns);
        here.sort();
        let stay = ["ctk-lan", "ctk0123456789AB", "ctkffffffffffff", "end", "lo"];
        assert_eq!(here, stay);
    }
}
