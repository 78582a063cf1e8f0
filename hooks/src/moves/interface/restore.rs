//! Restores an interface that is on the host again.

use onload_lease::{ONLOAD_REGISTRATION, SavedInterface};
use onload_sys::bpf;
use onload_sys::error::{Context as _, Result, error};
use onload_sys::netlink::link::{Link, LinkChange, PROMISCUOUS, UP};

use super::ops::{InterfaceOps, find_saved};
use super::queues::Origin;
use super::rebind::{RebindableFunction, wait_for_interface};
use super::saved;
use super::{onload, queues, sysctl, uppers, vf};
use crate::moves::lifecycle::{RestoreError, ReturningDevice, not_on_host_error};
use crate::moves::netns::{Netns, SearchDepth};
use crate::moves::transit_name::{is_transit_name, transit_name};

/// Limit for attempts: udev may rename an interface at the same time.
const ROUNDS: u32 = 4;

/// Removes everything that a container left on an interface. The driver of a virtual function is rebound, which deletes
/// the interface and what is stacked on it, in all network namespaces, and creates a new one. If the function has other
/// devices, which containers may have without a lease, this happens only if what is left cannot be found: any user can make
/// that search time out. It happens once: udev calls for each new interface, and would do so forever if something else
/// cannot be restored.
pub(super) fn clear(
    host_netns: &Netns,
    link: &Link,
    returning: &ReturningDevice<'_, InterfaceOps>,
    function: Option<&RebindableFunction>,
) -> Result<Origin, RestoreError> {
    if returning.record.rebound.is_some_and(|before| before != link.index) {
        return Ok(Origin::Driver);
    }
    let has_other_devices = function.is_some_and(RebindableFunction::has_other_devices);
    let mut obstacle = None;
    let mut rebind_if = |is_due: bool| -> Result<bool, RestoreError> {
        let Some(function) = function.filter(|_| is_due) else {
            return Ok(false);
        };
        obstacle = rebind(host_netns, link, returning, function)?;
        Ok(obstacle.is_none())
    };
    if rebind_if(!has_other_devices)? {
        return Ok(Origin::Driver);
    }
    bpf::interface::detach_all(link).with_context(|| {
        let name = link.display_name();
        format!("removing BPF programs from interface {name}; `bpftool net` shows them")
    })?;
    let (depth, timeout) = (SearchDepth::Descriptors, uppers::LONG);
    let Err(error) = uppers::delete_uppers(host_netns, link, depth, timeout) else {
        return Ok(Origin::Container);
    };
    if rebind_if(has_other_devices)? {
        return Ok(Origin::Driver);
    }
    let obstacle = obstacle.map_or_else(String::new, |obstacle| format!(", and {obstacle}"));
    Err(error!("{error:#}{obstacle}").into())
}

/// Rebinds the driver of a function, unless there is a reason against it, which is returned. The lease records the index of
/// the interface before, so that after a kill the next process can tell by the index whether it was done.
fn rebind(
    host_netns: &Netns,
    link: &Link,
    returning: &ReturningDevice<'_, InterfaceOps>,
    function: &RebindableFunction,
) -> Result<Option<String>, RestoreError> {
    let obstacle = function.find_obstacle(&link.display_name(), &returning.leases.list()?);
    if obstacle.is_some() {
        return Ok(obstacle);
    }
    returning.leases.update_moves(returning.device, &|record| record.rebound = Some(link.index))?;
    let SavedInterface { name, pci, .. } = &returning.saved;
    function
        .rebind()
        .with_context(|| format!("rebinding the driver of interface {name} ({pci})"))?;
    wait_for_interface(host_netns, &returning.saved)?;
    Ok(None)
}

/// Restores an interface on the host and removes what a container left on it, by `clear`. Its name is restored first,
/// because any user can delay `clear` or make it fail. The interface goes up last, after `clear` and with its settings
/// restored: otherwise the host would accept the next router advertisement on the link.
pub(super) fn clear_and_restore(
    host_netns: &Netns,
    link: Link,
    saved: &SavedInterface,
    clear: &dyn Fn(&Link) -> Result<Origin, RestoreError>,
) -> Result<(), RestoreError> {
    // Steps that an attached program prevents are repeated below, or reported.
    let _ =
        restore(host_netns, link, &SavedInterface { flags: saved.flags & !UP, ..saved.clone() });
    let origin = clear(&reread(host_netns, saved)?)?;
    let differences = sysctl::restore(host_netns, &reread(host_netns, saved)?, saved);
    if !differences.is_empty() {
        return Err(not_restored_error(saved, &differences.join(", "), ""));
    }
    vf::restore_vf(host_netns, saved)?;
    let link = reread(host_netns, saved)?;
    clear_promiscuous(host_netns, &link, saved);
    restore(host_netns, link, saved)?;
    let link = reread(host_netns, saved)?;
    let mut differences = queues::restore(host_netns, &link, saved, origin);
    if !differences.is_empty() && saved.flags & UP == 0 {
        // Some drivers accept `threaded` only while the interface is up.
        run_while_up(host_netns, &link, UP, || {
            differences = queues::restore(host_netns, &link, saved, origin);
        });
    }
    if !differences.is_empty() {
        return Err(not_restored_error(saved, &differences.join(", "), ""));
    }
    onload::restore(host_netns, saved)
        .map_err(|error| RestoreError { error, differs: Some(ONLOAD_REGISTRATION.to_owned()) })
}

/// Restores the settings that differ.
fn restore(host_netns: &Netns, mut link: Link, saved: &SavedInterface) -> Result<(), RestoreError> {
    let mut cause = None;
    if free_name(host_netns, &link, saved)? {
        link = reread(host_netns, saved)?;
    }
    for _ in 0..ROUNDS {
        let plan = saved::plan_restore(&link, saved);
        if plan.is_empty() {
            return Ok(());
        }
        for (_, change) in plan {
            cause = host_netns.change_link(link.index, &change).err().or(cause);
        }
        link = reread(host_netns, saved)?;
    }
    let plan = saved::plan_restore(&link, saved);
    if plan.is_empty() {
        return Ok(());
    }
    let mut differences: Vec<&str> = plan.into_iter().map(|(what, _)| what).collect();
    differences.dedup();
    let links = host_netns.links().unwrap_or_default();
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
fn reread(host_netns: &Netns, saved: &SavedInterface) -> Result<Link> {
    find_saved(host_netns, saved)?
        .ok_or_else(|| not_on_host_error::<InterfaceOps>(host_netns, saved.pci, &saved.name))
}

/// Renames the interface to a transit name if another one has its original name. Returns whether it did. A container
/// may have swapped the names of two interfaces, which would block each other.
fn free_name(host_netns: &Netns, link: &Link, saved: &SavedInterface) -> Result<bool> {
    let name = saved.name.as_bytes();
    if link.name == name || is_transit_name(&link.name) {
        return Ok(false);
    }
    let (host_links, _) = host_netns.snapshot()?;
    if !host_links.iter().any(|other| other.index != link.index && other.has_name(name)) {
        return Ok(false);
    }
    // Before Linux 6.2 an interface cannot be renamed while it is up.
    let down = LinkChange::Flags { mask: UP, flags: 0 };
    for change in [down, LinkChange::Name(transit_name().as_bytes())] {
        // A failure shows up later as a name that was not restored.
        let _ = host_netns.change_link(link.index, &change);
    }
    Ok(true)
}

/// Clears promiscuous mode that a stacked interface left behind. If that interface is deleted while this one is down,
/// the mode stays until this one is set up again (`__dev_set_rx_mode` in net/core/dev.c). A program on the host may
/// have requested the mode too, so [`saved::plan_restore`] does not compare it. A request by the container is withdrawn
/// at the same time.
fn clear_promiscuous(host_netns: &Netns, link: &Link, saved: &SavedInterface) {
    let requested = u32::from(link.flags & PROMISCUOUS != 0);
    let is_left = link.promiscuity > requested && link.flags & UP == 0;
    if is_left && saved.flags & (UP | PROMISCUOUS) == 0 {
        run_while_up(host_netns, link, UP | PROMISCUOUS, || {});
    }
}

/// Runs `action` while the interface is up, and then sets it down and clears the flags in `mask`.
fn run_while_up(host_netns: &Netns, link: &Link, mask: u32, action: impl FnOnce()) {
    let set = |flags| {
        let _ = host_netns.change_link(link.index, &LinkChange::Flags { mask, flags });
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
    use onload_lease::{Holder, LeaseRequest, Leases, MemberRequest, MoveRecord, SavedState};
    use onload_sys::error::Error;
    use onload_sys::pci::PciAddress;
    use onload_sys::processes::Processes;
    use onload_test_tree::network::{self, Child};

    use super::*;
    use crate::moves::interface::move_home::{delete_impostors, move_home};
    use crate::moves::netns::test_namespace::netns;
    use crate::moves::stand_ins::install_interfaces;

    /// A network namespace in place of the host's, with a veth interface in place of a virtual function's.
    struct Host {
        child: Child,
    }

    impl Host {
        /// Returns `None` if this machine cannot create namespaces.
        fn new() -> Option<Self> {
            install_interfaces([(51, pci())].into());
            network::can_be("moving interfaces").then(|| Host { child: Child::of_root() })
        }

        /// Also creates the interface.
        fn with_interface(name: &str) -> Option<Self> {
            let host = Host::new()?;
            host.add_interface(name, "");
            Some(host)
        }

        fn add_interface(&self, name: &str, options: &str) {
            self.ip(&format!("link add {name} index 50 {options}type veth peer name end index 51"));
        }

        fn ip(&self, words: &str) {
            self.child.ip(words);
        }

        fn host_netns(&self) -> Netns {
            netns(&self.child)
        }

        /// Finds the interface under any name.
        fn find(&self) -> Link {
            let saved = saved::save_interface(&expected_link(), pci());
            find_saved(&self.host_netns(), &saved).unwrap().unwrap()
        }
    }

    fn pci() -> PciAddress {
        "0000:03:10.0".parse().unwrap()
    }

    /// The interface as first observed. Another interface has its index by now.
    fn expected_link() -> Link {
        Link { index: 77, name: b"ens1v0".to_vec(), ..Link::default() }
    }

    fn names(netns: &Netns) -> Vec<String> {
        netns.links().unwrap().iter().map(Link::display_name).collect()
    }

    #[test]
    fn removes_an_impostor_from_the_host() {
        let Some(host) = Host::new() else { return };
        let (host_netns, container) = (host.host_netns(), Child::of_root());
        let expected = expected_link();
        let saved = saved::save_interface(&expected, pci());
        for (name, kind, alternative_name) in [
            ("ens1v0", "veth", None),
            ("eth7", "veth", None),
            ("ens1v0", "bridge", None),
            // Its own name makes the kernel fail a rename after the move.
            ("eth7", "veth", Some("ens1v0")),
        ] {
            container.ip(&format!("link add {name} index 77 type {kind}"));
            if let Some(alternative_name) = alternative_name {
                container.ip(&format!("link property add dev {name} altname {alternative_name}"));
            }
            let from = netns(&container);
            let message = move_home(&from, &expected, &host_netns, &saved).unwrap_err();
            let message = message.to_string();
            let is_known = message.contains("was replaced by another one")
                || message.starts_with("moving interface");
            assert!(is_known, "{message}");
            assert_eq!(names(&host_netns), ["lo"], "{kind} {name}");
            let left = names(&from).into_iter().find(|name| name != "lo");
            container.ip(&format!("link del {}", left.unwrap()));
        }
    }

    #[test]
    fn removes_an_impostor_of_an_interface_that_has_already_returned() {
        let Some(host) = Host::with_interface("eth3") else {
            return;
        };
        let (host_netns, container) = (host.host_netns(), Child::of_root());
        container.ip("link add eth7 index 77 type veth");
        let expected = expected_link();
        let saved = saved::save_interface(&expected, pci());
        move_home(&netns(&container), &expected, &host_netns, &saved).unwrap();
        assert_eq!(names(&host_netns), ["lo", "eth3", "end"]);
    }

    #[test]
    fn restores_the_name_but_stays_down_until_the_interface_is_cleared() {
        let Some(host) = Host::with_interface("ens1v0") else {
            return;
        };
        let host_netns = host.host_netns();
        host.ip("link set ens1v0 up");
        let find = |name: &str| {
            let here = host_netns.links().unwrap();
            here.into_iter().find(|link| link.display_name() == name).unwrap()
        };
        let saved = saved::save_interface(&find("ens1v0"), pci());
        host.ip("link set ens1v0 down");
        host.ip("link set ens1v0 name eth7");
        host.ip("link set eth7 up");
        let failed = || Err(Error::new("not found").into());
        clear_and_restore(&host_netns, find("eth7"), &saved, &|_| failed()).unwrap_err();
        assert_eq!(find("ens1v0").flags & UP, 0);
        clear_and_restore(&host_netns, find("ens1v0"), &saved, &|_| Ok(Origin::Container)).unwrap();
        assert_eq!(find("ens1v0").flags & UP, UP);
    }

    #[test]
    fn restores_sysctls_before_the_interface_goes_up() {
        const SET: [(&str, &str); 3] = [
            ("ipv4/conf/ens1v0/arp_ignore", "1"),
            ("ipv6/conf/ens1v0/accept_ra", "0"),
            ("ipv6/conf/ens1v0/disable_ipv6", "1"),
        ];
        let Some(host) = Host::with_interface("ens1v0") else {
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
        let (host_netns, container) = (host.host_netns(), Child::of_root());
        host.child.within(|| {
            for (name, value) in SET {
                std::fs::write(file(name), value).unwrap();
            }
        });
        host.ip("link set ens1v0 up");
        let link = host.find();
        let saved = SavedInterface {
            sysctls: sysctl::save_sysctls(&host_netns, &link).unwrap(),
            ..saved::save_interface(&link, pci())
        };
        let from = netns(&container);
        host_netns.move_link(link.index, &from, None).unwrap();
        let mut there = from.links().unwrap().into_iter();
        let there = there.find(|link| link.name == b"ens1v0").unwrap();
        move_home(&from, &there, &host_netns, &saved).unwrap();
        // If a setting cannot be restored, the interface stays down.
        let unsettable = [("ipv6/addr_gen_mode".to_owned(), "77".to_owned())];
        let unsettable = SavedInterface { sysctls: unsettable.into(), ..saved.clone() };
        let cleared = |_: &Link| Ok(Origin::Container);
        let error = clear_and_restore(&host_netns, host.find(), &unsettable, &cleared).unwrap_err();
        let left = "its addr_gen_mode below net.ipv6.conf";
        assert_eq!(error.differs.as_deref(), Some(left));
        assert_eq!((are_set(), host.find().flags & UP), ([false; 3], 0));
        clear_and_restore(&host_netns, host.find(), &saved, &cleared).unwrap();
        assert_eq!((are_set(), host.find().flags & UP), ([true; 3], UP));
    }

    #[test]
    fn restores_an_interface_that_its_driver_recreated() {
        let Some(host) = Host::new() else { return };
        let host_netns = host.host_netns();
        host.add_interface("ens1v0", "address 02:00:00:00:10:01 ");
        host.ip("link set ens1v0 mtu 1400");
        let before = host.find();
        let saved = saved::save_interface(&before, pci());
        // Rebinding also deletes a macvlan that no search has found.
        host.ip("link add link ens1v0 name mac0 type macvlan");
        let rebind = |_: &Link| {
            host.ip("link del ens1v0");
            host.add_interface("eth0", "address 02:00:00:00:66:66 ");
            wait_for_interface(&host_netns, &saved)?;
            Ok(Origin::Driver)
        };
        clear_and_restore(&host_netns, before, &saved, &rebind).unwrap();
        let after = host.find();
        assert_eq!(after.display_name(), "ens1v0");
        assert_eq!(
            (after.mtu, saved::save_interface(&after, pci()).mac),
            (1400, saved.mac.clone())
        );
        assert!(!names(&host_netns).contains(&"mac0".to_owned()));
    }

    /// A PCI bus in sysfs with one virtual function whose driver binds.
    fn pci_bus() -> tempfile::TempDir {
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
    fn rebinds_once_and_records_it_in_the_lease() {
        let Some(host) = Host::with_interface("ens1v0") else {
            return;
        };
        let host_netns = host.host_netns();
        let (dir, bus) = (tempfile::tempdir().unwrap(), pci_bus());
        let device: DeviceId = "netdev:ens1v0".parse().unwrap();
        let leases =
            lease_interface(dir.path(), &device, saved::save_interface(&host.find(), pci()));
        let moved = || {
            let listed = leases.list().unwrap().remove(0).lease.unwrap();
            listed.moved.unwrap()
        };
        let back = |moved: &MoveRecord| returning(&leases, &device, moved.clone());
        let first = moved();
        assert_eq!(first.rebound, None);
        let function = RebindableFunction::find(bus.path(), pci()).unwrap();
        let origin = clear(&host_netns, &host.find(), &back(&first), Some(&function)).unwrap();
        assert_eq!(origin, Origin::Driver);
        let again = moved();
        assert_eq!(again.rebound, Some(50));
        // The process was killed before it unbound the driver, so the next one searches for stacked interfaces.
        let has_macvlan = || names(&host_netns).contains(&"mac0".to_owned());
        host.ip("link add link ens1v0 name mac0 type macvlan");
        drop(clear(&host_netns, &host.find(), &back(&again), None));
        assert!(!has_macvlan());
        host.ip("link del ens1v0");
        host.ip("link add ens1v0 index 60 type veth peer name end index 51");
        // A macvlan on the new interface belongs to the host.
        host.ip("link add link ens1v0 name mac0 type macvlan");
        let origin = clear(&host_netns, &host.find(), &back(&again), Some(&function)).unwrap();
        assert_eq!(origin, Origin::Driver);
        assert!(has_macvlan());
    }

    #[test]
    fn searches_for_stacked_interfaces_if_the_driver_must_not_be_rebound() {
        let Some(host) = Host::with_interface("ens1v0") else {
            return;
        };
        let host_netns = host.host_netns();
        let (dir, bus) = (tempfile::tempdir().unwrap(), pci_bus());
        let device: DeviceId = "netdev:ens1v0".parse().unwrap();
        let leases =
            lease_interface(dir.path(), &device, saved::save_interface(&host.find(), pci()));
        let moved = || leases.list().unwrap().remove(0).lease.unwrap().moved.unwrap();
        let function_dir = bus.path().join("devices").join(pci().to_string());
        let function = RebindableFunction::find(bus.path(), pci()).unwrap();
        let clear = || {
            host.ip("link add link ens1v0 name mac0 type macvlan");
            let back = returning(&leases, &device, moved());
            let origin = clear(&host_netns, &host.find(), &back, Some(&function)).unwrap();
            assert!(!names(&host_netns).contains(&"mac0".to_owned()));
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

    fn returning<'a>(
        leases: &'a Leases,
        device: &'a DeviceId,
        record: MoveRecord,
    ) -> ReturningDevice<'a, InterfaceOps> {
        let SavedState::Interface(saved) = record.saved.clone() else {
            panic!("{record:?}");
        };
        ReturningDevice { leases, device, record, saved }
    }

    fn lease_interface(run: &Path, device: &DeviceId, saved: SavedInterface) -> Leases {
        let run = RunDir::find(run).unwrap().unwrap();
        let leases = Leases::open(&run, Processes::default()).unwrap();
        let moved =
            MoveRecord { returning: true, ..MoveRecord::new(SavedState::Interface(saved), 7) };
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
    fn sets_an_interface_up_for_a_moment() {
        let Some(host) = Host::with_interface("ens1v0") else {
            return;
        };
        let host_netns = host.host_netns();
        host.ip("link set ens1v0 promisc on");
        let flags = || host.find().flags & (UP | PROMISCUOUS);
        let mut within = 0;
        run_while_up(&host_netns, &host.find(), UP, || within = flags());
        assert_eq!((within, flags()), (UP | PROMISCUOUS, PROMISCUOUS));
        run_while_up(&host_netns, &host.find(), UP | PROMISCUOUS, || within = flags());
        assert_eq!((within, flags()), (UP, 0));
    }

    #[test]
    fn deletes_impostors_that_a_killed_process_left_on_the_host() {
        let Some(host) = Host::with_interface("ctkffffffffffff") else {
            return;
        };
        let host_netns = host.host_netns();
        for name in ["ctk0123456789ab", "ctk-lan", "ctk0123456789AB"] {
            host.ip(&format!("link add {name} type bridge"));
        }
        delete_impostors(&host_netns).unwrap();
        let mut here = names(&host_netns);
        here.sort();
        let stay = ["ctk-lan", "ctk0123456789AB", "ctkffffffffffff", "end", "lo"];
        assert_eq!(here, stay);
    }
}
