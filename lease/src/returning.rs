//! Leases of devices that move. They end when the device is restored, not when the holder has ended.

use std::collections::BTreeSet;
use std::slice;
use std::time::Duration;

use super::file::{Holder, Lease};
use super::move_record::{MoveRecord, NOT_MOVED};
use super::request::LeasedContainer;
use super::slot::{HolderState, LeaseEntry, SlotChoice, in_use_error};
use super::store::Leases;
use onload_core::class::Class;
use onload_core::device_id::DeviceId;
use onload_core::token::Token;
use onload_sys::error::{Context as _, Error, Result};
use onload_sys::fs::lock::Lock;
use onload_sys::pci::PciAddress;

/// The time that a container's start or end waits for another process that moves the same device.
const MOVE_LOCK_TIMEOUT: Duration = Duration::from_secs(5);

impl Leases {
    /// Locks a device that moves. A process that moves or restores it holds this lock from its first look at
    /// the device until the lease is final, and acquires the lock of all leases while it does.
    pub fn lock_device(&self, device: &DeviceId) -> Result<Lock> {
        self.lock_device_within(device, MOVE_LOCK_TIMEOUT)
    }

    /// Like [`Leases::lock_device`], but waits no longer than `remaining`.
    pub fn lock_device_within(&self, device: &DeviceId, remaining: Duration) -> Result<Lock> {
        let name = format!(".moving-{}={}", device.class, device.name);
        self.lock_named(&name, remaining.min(MOVE_LOCK_TIMEOUT))
    }

    /// Locks a PCI function, whatever the names under which its interface is leased. A process that moves
    /// it into a container acquires this lock after that of the device.
    pub fn lock_function(&self, pci: PciAddress) -> Result<Lock> {
        self.lock_named(&format!(".moving-{pci}"), MOVE_LOCK_TIMEOUT)
    }

    /// Ends the leases that an exited container has of a device. If it was the last container in its network
    /// namespace, marks the lease `returning` instead, and returns the record to restore;
    /// [`Leases::end_returned`] ends it.
    pub fn release_exited(
        &self,
        device: &DeviceId,
        exited: &LeasedContainer<'_>,
    ) -> Result<Option<MoveRecord>> {
        let _lock = self.lock()?;
        let (own_slots, other_slots): (Vec<LeaseEntry>, Vec<LeaseEntry>) =
            self.read_slots(device)?.into_iter().partition(|slot| self.is_of_exited(slot, exited));
        let mut last = None;
        for slot in own_slots {
            let only_record = slot.parsed().and_then(Lease::device_to_return).filter(|moved| {
                !other_slots.iter().any(|other| other.moved_device_in(moved.namespace).is_some())
            });
            match only_record {
                Some(moved) => {
                    self.change_move(&slot, &|moved| moved.returning = true)?;
                    last = Some(moved.clone());
                }
                None => self.remove(device, slot.number)?,
            }
        }
        Ok(last)
    }

    fn is_of_exited(&self, slot: &LeaseEntry, exited: &LeasedContainer<'_>) -> bool {
        let is_same_start = |lease: &Lease| match slot.state {
            HolderState::Ended | HolderState::Returning => true,
            HolderState::InitExited | HolderState::Alive => {
                lease.bundle == exited.bundle && self.is_same_start(lease, exited.token)
            }
        };
        slot.parsed().filter(|lease| lease.container == *exited.id).is_some_and(is_same_start)
    }

    /// Ends a container's leases of devices that did not move for it. A lease with the only record of how
    /// to restore its device remains. The init process may be alive.
    pub fn release_unmoved(
        &self,
        devices: &[DeviceId],
        container: &LeasedContainer<'_>,
    ) -> Result<()> {
        let _lock = self.lock()?;
        let (mut own_slots, other_slots): (Vec<LeaseEntry>, Vec<LeaseEntry>) = self
            .read_slots_of(devices)?
            .into_iter()
            .partition(|slot| is_of_container(slot, container));
        own_slots.retain(|slot| {
            slot.parsed().and_then(Lease::device_to_return).is_none_or(|moved| {
                other_slots.iter().any(|other| {
                    other.device == slot.device && other.moved_device_in(moved.namespace).is_some()
                })
            })
        });
        self.remove_each(&own_slots)
    }

    /// Marks a container's leases `returning` after a failed start. The init process may be alive.
    pub fn mark_returning(&self, device: &DeviceId, container: &LeasedContainer<'_>) -> Result<()> {
        let _lock = self.lock()?;
        for slot in self.read_slots(device)? {
            if is_of_container(&slot, container) {
                self.change_move(&slot, &|moved| moved.returning = true)?;
            }
        }
        Ok(())
    }

    /// Changes the move records in all leases of a device.
    pub fn update_moves(&self, device: &DeviceId, change: &dyn Fn(&mut MoveRecord)) -> Result<()> {
        let _lock = self.lock()?;
        for slot in self.read_slots(device)? {
            self.change_move(&slot, change)?;
        }
        Ok(())
    }

    /// Changes the move record in a lease, if it has one.
    fn change_move(&self, slot: &LeaseEntry, change: &dyn Fn(&mut MoveRecord)) -> Result<()> {
        let mut lease = match &slot.lease {
            Ok(lease) if lease.moved.is_some() => lease.clone(),
            _ => return Ok(()),
        };
        lease.moved.iter_mut().for_each(change);
        self.write_lease(&slot.device, SlotChoice::Keep(slot.number), &lease)
    }

    /// Returns what must be restored: a device that exited containers left behind, and that no other
    /// container has.
    pub fn find_returning(&self, device: &DeviceId) -> Result<Option<MoveRecord>> {
        let _lock = self.lock()?;
        let slots = self.read_slots(device)?;
        let moved = slots.iter().find_map(returning_move);
        // A device that stays on the host has no record from a new holder until it is restored.
        let stays = moved.is_some_and(|moved| moved.namespace == NOT_MOVED);
        let is_held = slots.iter().any(|slot| match slot.state {
            HolderState::Ended | HolderState::Returning => false,
            HolderState::InitExited | HolderState::Alive => {
                slot.parsed().is_none_or(|lease| !stays || lease.moved.is_some())
            }
        });
        Ok(moved.filter(|_| !is_held).cloned())
    }

    /// Returns the record of a device that running containers have in a network namespace.
    pub fn find_moved_to(&self, device: &DeviceId, namespace: u64) -> Result<Option<MoveRecord>> {
        let _lock = self.lock()?;
        let slots = self.read_slots(device)?;
        let moved = slots.iter().find_map(|slot| slot.moved_device_in(namespace));
        Ok(moved.cloned())
    }

    /// Returns whether a container's ResourceClaim has set the device up for it.
    pub fn is_set_up_for_claim(
        &self,
        device: &DeviceId,
        container: &LeasedContainer<'_>,
    ) -> Result<bool> {
        let LeasedContainer { id, bundle, .. } = container;
        let _lock = self.lock()?;
        Ok(self.read_slots(device)?.iter().filter_map(LeaseEntry::live_lease).any(|lease| {
            lease.moved.is_some() && lease.claim.is_some() && lease.belongs_to(id, bundle)
        }))
    }

    /// Returns those of the devices that have moved to a container, or must be restored. To end a lease of such a
    /// device, acquire [`Leases::lock_device`] first.
    pub fn moved_devices(&self, devices: &[DeviceId]) -> Result<BTreeSet<DeviceId>> {
        let _lock = self.lock()?;
        let mut slots = self.read_slots_of(devices)?;
        slots.retain(|slot| slot.parsed().is_some_and(|lease| lease.moved.is_some()));
        Ok(slots.into_iter().map(|slot| slot.device).collect())
    }

    /// Returns the names under which a PCI function has moved to containers and is not restored.
    pub fn find_by_function(&self, pci: PciAddress) -> Result<Vec<DeviceId>> {
        let mut slots = self.read_slots_where(&|device| device.class == Class::Netdev)?;
        slots.retain(|slot| {
            let moved = returning_move(slot).or(slot.moved_device());
            moved.is_some_and(|moved| moved.saved.pci() == pci)
        });
        Ok(slots.into_iter().map(|slot| slot.device).collect())
    }

    /// Returns an error that names the holders of a device, if it has any, except the container's own
    /// reservation with this token.
    pub fn holders_error(&self, device: &DeviceId, token: Option<&Token>) -> Result<Option<Error>> {
        let _lock = self.lock()?;
        let mut slots = self.read_slots(device)?;
        slots.retain(|slot| match slot.parsed().map(|lease| &lease.holder) {
            Some(Holder::Reservation { token: held_token, .. }) => Some(held_token) != token,
            _ => true,
        });
        let holders: Vec<String> = slots.iter().filter_map(LeaseEntry::describe_holder).collect();
        if holders.is_empty() {
            return Ok(None);
        }
        let result: Result<()> = Err(in_use_error(&holders)).with_context(|| device.to_string());
        Ok(result.err())
    }

    /// Ends the leases of a device that is restored.
    pub fn end_returned(&self, device: &DeviceId) -> Result<()> {
        self.remove_slots(slice::from_ref(device), &|slot, _| returning_move(slot).is_some())
    }
}

fn is_of_container(slot: &LeaseEntry, container: &LeasedContainer<'_>) -> bool {
    slot.parsed()
        .is_some_and(|lease| lease.container == *container.id && lease.bundle == container.bundle)
}

fn returning_move(slot: &LeaseEntry) -> Option<&MoveRecord> {
    slot.parsed().filter(|_| slot.is_returning())?.moved.as_ref()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::path::Path;

    use super::super::move_record::{
        SavedFunction, SavedInterface, SavedRdma, SavedState, SavedVf,
    };
    use super::*;
    use crate::test_host::{Host, bundle, claimed, leased, vfio};
    use crate::{LeaseRequest, MemberRequest};
    use onload_core::pool::Numa;
    use onload_sys::netlink::vf::{VfSettings, VlanTag};

    const NAMESPACE: u64 = 4711;

    fn vf() -> DeviceId {
        "netdev:ens1f0v3".parse().unwrap()
    }

    fn moved(namespace: u64) -> MoveRecord {
        let saved = SavedInterface {
            name: "ens1f0v3".to_owned(),
            alternative_names: vec!["enp3s2v3".to_owned()],
            mac: "02:00:00:00:10:01".to_owned(),
            permanent_mac: None,
            mtu: 1500,
            flags: 0x1003,
            settings: vec![(27, vec![0; 4])],
            sysctls: std::collections::BTreeMap::new(),
            queues: None,
            onload: None,
            vf: None,
            pci: "0000:03:02.3".parse().unwrap(),
        };
        MoveRecord::new(SavedState::Interface(saved), namespace)
    }

    fn interface(moved: &mut MoveRecord) -> &mut SavedInterface {
        match &mut moved.saved {
            SavedState::Interface(facts) => facts,
            other => panic!("{other:?}"),
        }
    }

    /// A container takes the interface to a namespace.
    fn take(host: &Host, id: &str, pid: u32, namespace: u64) -> Result<(), String> {
        let device = MemberRequest { moved: Some(moved(namespace)), ..claimed(vf()) };
        host.claim_all(id, host.start(pid, 10), None, &[device])
    }

    fn leave(host: &Host, id: &str) -> Option<MoveRecord> {
        let container = id.parse().unwrap();
        let left = host.leases.release_exited(&vf(), &leased(&container, &bundle(id)));
        left.unwrap()
    }

    fn returning(host: &Host) -> Option<MoveRecord> {
        host.leases.find_returning(&vf()).unwrap()
    }

    fn listed(host: &Host) -> Vec<(bool, bool)> {
        host.leases
            .list()
            .unwrap()
            .iter()
            .map(|one| (one.has_ended(), one.is_returning()))
            .collect()
    }

    #[test]
    fn the_last_container_of_a_namespace_leaves_it_to_come_back() {
        let host = Host::new();
        take(&host, "one", 1, NAMESPACE).unwrap();
        take(&host, "two", 2, NAMESPACE).unwrap();
        let other = take(&host, "three", 3, 8).unwrap_err();
        assert!(other.contains("in use by container one (process 1, "), "{other}");
        host.end(1);
        assert_eq!(leave(&host, "one"), None);
        assert_eq!(returning(&host), None);
        host.end(2);
        assert_eq!(leave(&host, "two"), Some(moved(NAMESPACE)));
        let back = MoveRecord { returning: true, ..moved(NAMESPACE) };
        assert_eq!(returning(&host), Some(back));
        host.leases.end_returned(&vf()).unwrap();
        assert_eq!((returning(&host), host.files().len()), (None, 0));
        take(&host, "three", 3, 8).unwrap();
    }

    #[test]
    fn what_is_said_of_it_later_stands_in_each_lease_of_it() {
        let host = Host::new();
        take(&host, "one", 1, NAMESPACE).unwrap();
        take(&host, "two", 2, NAMESPACE).unwrap();
        let record = |moved: &mut MoveRecord| moved.left = Some("its MTU".to_owned());
        host.leases.update_moves(&vf(), &record).unwrap();
        let recorded = || -> Vec<_> {
            let moved = host
                .leases
                .list()
                .unwrap()
                .into_iter()
                .map(|one| one.lease.unwrap().moved.unwrap());
            moved.map(|moved| (moved.left, moved.namespace)).collect()
        };
        let both = vec![(Some("its MTU".to_owned()), NAMESPACE); 2];
        assert_eq!(recorded(), both);
        host.end(1);
        host.end(2);
        leave(&host, "one");
        leave(&host, "two");
        assert_eq!(returning(&host).unwrap().left.as_deref(), Some("its MTU"));
        // Of one that did not move there is nothing to say.
        let other = "netdev:other".parse().unwrap();
        host.leases.update_moves(&other, &record).unwrap();
    }

    #[test]
    fn what_a_killed_engine_left_is_to_come_back_before_anybody_gets_it() {
        let host = Host::new();
        take(&host, "one", 1, NAMESPACE).unwrap();
        assert_eq!(listed(&host), [(false, false)]);
        host.end(1);
        assert_eq!(listed(&host), [(false, true)]);
        let refused = take(&host, "two", 2, 8).unwrap_err();
        assert!(refused.contains("(ended, not back yet)"), "{refused}");
        assert!(take(&host, "two", 2, NAMESPACE).is_err(), "even in the same namespace");
        assert_eq!(returning(&host), Some(moved(NAMESPACE)));
        // The hook of a claim's container brings it back first.
        let claim = "u1".parse().unwrap();
        assert_eq!(host.leases.check_claim(&[vf()], 1, &claim), Ok(None));
    }

    #[test]
    fn nothing_but_its_return_or_the_operator_ends_the_lease() {
        let host = Host::new();
        take(&host, "one", 1, NAMESPACE).unwrap();
        let release = || {
            let id = "one".parse().unwrap();
            host.leases.release(&[vf()], &leased(&id, &bundle("one"))).unwrap();
            host.files().len()
        };
        assert_eq!(release(), 1);
        host.end_process(1);
        assert_eq!(release(), 1, "its process has ended, and its cgroup has others");
        std::fs::remove_dir_all(host.path("sys/fs/cgroup/1")).unwrap();
        assert_eq!(release(), 1);
        assert_eq!(host.leases.release_all(&vf()).unwrap(), 1);
    }

    #[test]
    fn a_function_that_is_away_is_told_by_whatever_name_it_was_leased() {
        let host = Host::new();
        take(&host, "one", 1, NAMESPACE).unwrap();
        let as_what = |pci: &str| host.leases.find_by_function(pci.parse().unwrap()).unwrap();
        assert_eq!(as_what("0000:03:02.3"), [vf()]);
        assert_eq!(as_what("0000:03:02.4"), []);
        host.end(1);
        assert_eq!(as_what("0000:03:02.3"), [vf()], "it is not back yet");
        host.leases.end_returned(&vf()).unwrap();
        assert_eq!(as_what("0000:03:02.3"), []);
    }

    #[test]
    fn a_container_that_gives_up_what_it_has_alone_keeps_the_lease_until_it_is_back() {
        let host = Host::new();
        let abandon = |id: &str| {
            let container = id.parse().unwrap();
            host.leases.release_unmoved(&[vf()], &leased(&container, &bundle(id))).unwrap();
        };
        take(&host, "one", 1, NAMESPACE).unwrap();
        take(&host, "one", 1, NAMESPACE).unwrap();
        abandon("one");
        assert_eq!(listed(&host), [(false, false)]);
        // Another container of the namespace has what it was, too.
        take(&host, "two", 2, NAMESPACE).unwrap();
        abandon("two");
        assert_eq!(host.files().len(), 1);
        host.end(1);
        assert_eq!(returning(&host), Some(moved(NAMESPACE)));
    }

    #[test]
    fn what_did_not_move_for_a_container_is_given_up_at_once() {
        let host = Host::new();
        let abandon = |id: &str, device: MemberRequest| {
            let (class, name) = (device.class, device.name.clone());
            let id_of_device = DeviceId { class, name };
            host.claim_all(id, host.start(1, 10), None, slice::from_ref(&device)).unwrap();
            let container = id.parse().unwrap();
            host.leases.release_unmoved(&[id_of_device], &leased(&container, &bundle(id))).unwrap();
            assert!(host.files().is_empty(), "{:?}", host.files());
        };
        abandon("plain", claimed(vf()));
        let facts = SavedRdma {
            name: "mlx5_0".to_owned(),
            pci: "0000:03:02.3".parse().unwrap(),
            index: 3,
            moved_by_other: true,
        };
        let moved = MoveRecord::new(SavedState::Rdma(facts), NAMESPACE);
        let by_other =
            MemberRequest { moved: Some(moved), ..claimed("rdma:mlx5_0".parse().unwrap()) };
        abandon("other", by_other);
    }

    #[test]
    fn another_boot_brings_every_interface_home() {
        let mut host = Host::new();
        take(&host, "one", 1, NAMESPACE).unwrap();
        host.boot_again();
        assert_eq!(returning(&host), None);
        take(&host, "two", 2, 8).unwrap();
    }

    #[test]
    fn what_was_written_of_it_first_stays() {
        let host = Host::new();
        let one = host.start(1, 10);
        // The hook of a claim comes first, and knows of no interface.
        host.claim_all("one", one.clone(), None, &[claimed(vf())]).unwrap();
        let with = |mtu: u32| {
            let mut moved = moved(NAMESPACE);
            interface(&mut moved).mtu = mtu;
            MemberRequest { moved: Some(moved), ..claimed(vf()) }
        };
        host.claim_all("one", one.clone(), None, &[with(1500)]).unwrap();
        host.claim_all("one", one, None, &[with(9000)]).unwrap();
        let found = |namespace| -> Option<MoveRecord> {
            let found = host.leases.find_moved_to(&vf(), namespace);
            found.unwrap()
        };
        let mut now = found(NAMESPACE).unwrap();
        assert_eq!(interface(&mut now).mtu, 1500);
        assert_eq!(found(8), None);
    }

    #[test]
    fn a_container_that_starts_anew_has_it_in_its_new_namespace_and_as_it_was_at_first() {
        let host = Host::new();
        let with = |namespace: u64, mtu: u32, address: &str| {
            let mut moved = moved(namespace);
            interface(&mut moved).mtu = mtu;
            moved.addresses = vec![address.parse().unwrap()];
            MemberRequest { moved: Some(moved), ..claimed(vf()) }
        };
        let found = |namespace| -> Option<MoveRecord> {
            let found = host.leases.find_moved_to(&vf(), namespace);
            found.unwrap()
        };
        let start = |pid, devices: &[MemberRequest]| {
            host.claim_all("one", host.start(pid, 10), None, devices).unwrap();
        };
        start(1, &[with(1, 1500, "192.0.2.1")]);
        host.end_process(1);
        start(2, &[with(2, 9000, "192.0.2.2")]);
        assert_eq!(found(1), None);
        let mut now = found(2).unwrap();
        assert_eq!(interface(&mut now).mtu, 1500);
        assert_eq!(now.addresses, ["192.0.2.2".parse::<IpAddr>().unwrap()]);
        // The hook of a claim comes first, and knows of no interface.
        host.end_process(2);
        start(3, &[claimed(vf())]);
        start(3, &[with(3, 9000, "192.0.2.3")]);
        assert_eq!(found(2), None);
        assert_eq!(interface(&mut found(3).unwrap()).mtu, 1500);
    }

    #[test]
    fn what_another_moved_for_an_earlier_start_comes_back_after_one_that_it_was_moved_for() {
        let host = Host::new();
        take_rdma(&host, "one", 1, true).unwrap();
        host.end_process(1);
        take_rdma(&host, "one", 2, false).unwrap();
        host.end(2);
        assert!(leave_rdma(&host, "one").is_some());
    }

    /// A virtual function of class vfio that is set up, with the VLANs that it has and had.
    fn function(given: u16, before: u16) -> MoveRecord {
        let vlan = |id| VfSettings {
            vlan: Some(VlanTag { id, ..VlanTag::default() }),
            ..VfSettings::default()
        };
        let vf = SavedVf { given: vlan(given), before: vlan(before) };
        let pci = "0000:81:10.0".parse().unwrap();
        MoveRecord::new(SavedState::Function(SavedFunction { pci, vf }), NOT_MOVED)
    }

    #[test]
    fn a_function_comes_back_before_one_that_is_to_share_it_has_it() {
        let host = Host::new();
        let device_request = |moved: Option<MoveRecord>| MemberRequest {
            moved,
            ..MemberRequest::for_device(vfio(), 2)
        };
        let take = |id: &str, pid, moved| {
            let holder = host.start(pid, 10);
            host.claim_all(id, holder, None, &[device_request(moved)]).unwrap();
        };
        let returning = || -> Option<MoveRecord> { host.leases.find_returning(&vfio()).unwrap() };
        take("one", 1, Some(function(100, 7)));
        take("two", 2, Some(function(100, 7)));
        host.end(1);
        assert_eq!(returning(), None, "the other has it still");
        let one = "one".parse().unwrap();
        let leave = host.leases.release_exited(&vfio(), &leased(&one, &bundle("one")));
        assert_eq!(leave.unwrap(), None);
        host.end(2);
        take("three", 3, None);
        assert_eq!(returning(), Some(function(100, 7)));
    }

    #[test]
    fn a_function_that_is_set_up_anew_for_the_same_container_was_what_it_was_at_first() {
        let host = Host::new();
        let take = |pid, vf: SavedVf| {
            let mut moved = moved(u64::from(pid));
            interface(&mut moved).vf = Some(Box::new(vf));
            let device_request = MemberRequest { moved: Some(moved), ..claimed(self::vf()) };
            let holder = host.start(pid, 10);
            host.claim_all("one", holder, None, &[device_request]).unwrap();
            host.end_process(pid);
        };
        let facts = |moved: MoveRecord| *moved.saved.vf().unwrap();
        let (first, second) = (facts(function(100, 7)), facts(function(200, 100)));
        take(1, first);
        let with_trust = |vf: VfSettings, trust| VfSettings { trust: Some(trust), ..vf };
        let given = with_trust(second.given, true);
        let before = with_trust(second.before, false);
        take(2, SavedVf { given, before });
        let had: Option<MoveRecord> = host.leases.find_moved_to(&vf(), 2).unwrap();
        let before = with_trust(first.before, false);
        assert_eq!(facts(had.unwrap()), SavedVf { given, before });
    }

    #[test]
    fn a_function_that_a_claim_has_set_up_is_told_for_its_container_alone() {
        let host = Host::new();
        let is_for_claim = |id: &str| {
            let container = id.parse().unwrap();
            let found = host.leases.is_set_up_for_claim(&vfio(), &leased(&container, &bundle(id)));
            found.unwrap()
        };
        let claim = |id: &str, pid, uid: Option<&str>, moved: Option<MoveRecord>| {
            let uid = uid.map(|uid| uid.parse().unwrap());
            let device_request = MemberRequest { moved, ..MemberRequest::for_device(vfio(), 3) };
            let request = LeaseRequest {
                devices: &[device_request],
                numa: Numa::Any,
                container: &id.parse().unwrap(),
                bundle: &bundle(id),
                holder: host.start(pid, 10),
                token: None,
                claim: uid.as_ref(),
                entry_point: "createRuntime",
            };
            host.leases.acquire(&request, &|_| None).unwrap();
        };
        claim("one", 1, Some("u1"), None);
        assert!(!is_for_claim("one"), "it is not set up yet");
        claim("one", 1, Some("u1"), Some(function(100, 7)));
        claim("two", 2, Some("u1"), None);
        claim("three", 3, None, Some(function(100, 7)));
        let all = ["one", "two", "three", "four"].map(is_for_claim);
        assert_eq!(all, [true, false, false, false]);
        (1..=3).for_each(|pid| host.end(pid));
        assert!(!is_for_claim("one"), "it is to be put back");
    }

    fn ibdev() -> DeviceId {
        "rdma:mlx5_3".parse().unwrap()
    }

    /// A container has an RDMA device in a namespace.
    fn take_rdma(host: &Host, id: &str, pid: u32, moved_by_other: bool) -> Result<(), String> {
        let facts = SavedRdma {
            name: "mlx5_3".to_owned(),
            pci: "0000:3b:00.3".parse().unwrap(),
            index: 3,
            moved_by_other,
        };
        let moved = MoveRecord::new(SavedState::Rdma(facts), NAMESPACE);
        let device = MemberRequest { moved: Some(moved), ..claimed(ibdev()) };
        host.claim_all(id, host.start(pid, 10), None, &[device])
    }

    fn leave_rdma(host: &Host, id: &str) -> Option<MoveRecord> {
        let container = id.parse().unwrap();
        let left = host.leases.release_exited(&ibdev(), &leased(&container, &bundle(id)));
        left.unwrap()
    }

    #[test]
    fn an_rdma_device_comes_back_like_an_interface() {
        let host = Host::new();
        take_rdma(&host, "one", 1, false).unwrap();
        host.end(1);
        assert!(take_rdma(&host, "two", 2, false).is_err());
        let is_it = |moved: &MoveRecord| matches!(&moved.saved, SavedState::Rdma(facts) if facts.index == 3);
        assert!(leave_rdma(&host, "one").is_some_and(|moved| is_it(&moved)));
        let back = host.leases.find_returning(&ibdev()).unwrap();
        assert!(is_it(&back.unwrap()));
        host.leases.end_returned(&ibdev()).unwrap();
        take_rdma(&host, "two", 2, false).unwrap();
    }

    #[test]
    fn what_another_moved_is_no_longer_leased_once_its_containers_have_ended() {
        let host = Host::new();
        take_rdma(&host, "one", 1, true).unwrap();
        take_rdma(&host, "two", 2, true).unwrap();
        host.end(1);
        assert_eq!(leave_rdma(&host, "one"), None);
        assert_eq!(host.files().len(), 1);
        // No poststop ran for this one.
        host.end(2);
        let back: Option<MoveRecord> = host.leases.find_returning(&ibdev()).unwrap();
        assert_eq!(back, None);
        assert!(!host.leases.list().unwrap()[0].is_returning());
        take_rdma(&host, "three", 3, false).unwrap();
    }

    /// A container takes an interface of this name to a namespace, where it gets an address.
    fn take_with(host: &Host, id: &str, name: &str, pid: u32, address: &str) -> Result<(), String> {
        let moved =
            MoveRecord { addresses: vec![address.parse().unwrap()], ..moved(u64::from(pid)) };
        let device: DeviceId = format!("netdev:{name}").parse().unwrap();
        let device = MemberRequest { moved: Some(moved), ..claimed(device) };
        host.claim_all(id, host.start(pid, 10), None, &[device])
    }

    #[test]
    fn an_address_has_one_holder_until_its_interface_is_on_its_way_back() {
        let host = Host::new();
        take_with(&host, "one", "ens1f0v3", 1, "192.0.2.10").unwrap();
        let refused = take_with(&host, "two", "ens1f0v4", 2, "192.0.2.10").unwrap_err();
        let message = "netdev:ens1f0v4: the address 192.0.2.10 is that of netdev:ens1f0v3, which \
            is in use by container one";
        assert!(refused.contains(message), "{refused}");
        assert_eq!(host.files().len(), 1, "nothing is written of who is refused");
        take_with(&host, "three", "ens1f0v4", 3, "192.0.2.11").unwrap();
        host.end(1);
        take_with(&host, "four", "ens1f0v5", 4, "192.0.2.10").unwrap();
        assert!(take_with(&host, "five", "ens1f0v6", 5, "192.0.2.10").is_err());
    }

    #[test]
    fn a_lease_from_before_addresses_were_kept_is_read() {
        let text = serde_json::to_string(&moved(NAMESPACE)).unwrap();
        assert!(!text.contains("addresses"), "{text}");
        assert_eq!(serde_json::from_str::<MoveRecord>(&text).unwrap(), moved(NAMESPACE));
    }

    #[test]
    fn a_move_that_failed_is_given_up_while_its_container_lives() {
        let host = Host::new();
        take(&host, "one", 1, NAMESPACE).unwrap();
        let id = "one".parse().unwrap();
        host.leases.mark_returning(&vf(), &leased(&id, &bundle("one"))).unwrap();
        assert!(returning(&host).unwrap().returning);
        host.leases.end_returned(&vf()).unwrap();
        take(&host, "two", 2, 8).unwrap();
        host.leases.release_unmoved(&[vf()], &leased(&id, &bundle("one"))).unwrap();
        assert_eq!(host.holder().as_deref(), Some("two"));
    }

    #[test]
    fn the_end_of_another_start_or_engine_brings_nothing_back() {
        let host = Host::new();
        take(&host, "one", 1, NAMESPACE).unwrap();
        assert_eq!(leave(&host, "one"), None, "its process lives");
        assert_eq!(leave(&host, "two"), None);
        host.end_process(1);
        let elsewhere = Path::new("/elsewhere/one");
        let id = "one".parse().unwrap();
        let left = host.leases.release_exited(&vf(), &leased(&id, elsewhere)).unwrap();
        assert_eq!(left, None);
        assert_eq!(listed(&host), [(false, false)]);
    }
}
