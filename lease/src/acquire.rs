//! Leases devices to a container: all that it requests, or none. Members of pools are chosen, devices
//! by name are checked.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::rc::Rc;

use onload_cdi::DeviceName;

use super::drain::DrainList;
use super::file::{Lease, NODES, parse_file_name};
use super::move_record::MoveRecord;
use super::request::{
    LeaseRequest, MemberCandidate, MemberRequest, none_free_error, pool_requests, select_members,
};
use super::slot::{
    LeaseEntry, SlotChoice, already_holds, choose_slot, in_use_error, other_holders, surplus_slots,
};
use super::store::{LeaseError, Leases};
use super::users;
use onload_core::claim_uid::ClaimUid;
use onload_core::device_id::DeviceId;
use onload_core::pool::Numa;
use onload_core::timestamp;
use onload_sys::error::{Context as _, Error, Result, bail, error};
use onload_sys::fs::atomic::{self, is_temporary_name};

/// Finds a process that uses a device without a lease.
pub type FindUser<'a> = &'a dyn Fn(&DeviceId) -> Option<String>;

/// Members of pools that are used without a lease, and the processes that use them.
type UsedMembers = BTreeMap<DeviceId, String>;

/// A device for a container, and the lease to write.
struct PlannedLease<'a> {
    device_request: &'a MemberRequest,
    device: DeviceId,
    choice: SlotChoice,
    /// The container's own lease, which `lease` replaces.
    previous_lease: Option<Lease>,
    /// `None` if the container's lease is up to date.
    lease: Option<Lease>,
    /// Whether to search for a process that uses the device without a lease.
    needs_user_check: bool,
    /// Slots whose containers have exited, and which are never reused.
    surplus: Vec<u32>,
}

impl PlannedLease<'_> {
    /// Marks this member as in use, so that the next pass chooses another one. Fails for a device that
    /// was requested by name, since no other one would do.
    fn mark_used(&self, process: String, used: &mut UsedMembers) -> Result<()> {
        if self.device_request.is_single_device() {
            bail!("{} is in use by {process}; stop that first", self.device);
        }
        used.insert(self.device.clone(), process);
        Ok(())
    }
}

impl Leases {
    /// Chooses devices that the container could lease now, none of which `find_user` finds in use. Writes nothing and
    /// takes no lock, so another container may be faster.
    pub fn choose(
        &self,
        request: &LeaseRequest<'_>,
        find_user: Option<FindUser<'_>>,
    ) -> Result<Vec<DeviceId>, LeaseError> {
        let mut snapshot = LeaseSnapshot::read(self, request)?;
        let mut used = UsedMembers::new();
        loop {
            let planned_leases = snapshot.plan(&used)?;
            let found = find_user.and_then(|find| snapshot.find_used(&planned_leases, find));
            match found {
                Some((planned, process)) => planned.mark_used(process, &mut used)?,
                None => return Ok(devices(planned_leases)),
            }
        }
    }

    /// Leases all requested devices to the container, or none. The container keeps those that it
    /// already has. Chooses the same members of pools as [`Leases::choose`] unless another container was faster.
    ///
    /// `find_user` is called without the lock, since it may take long, and only once the leases are
    /// written: it may open a device, which would disturb another holder. If a process uses a member
    /// of a pool, another member is chosen.
    pub fn acquire(
        &self,
        request: &LeaseRequest<'_>,
        find_user: FindUser<'_>,
    ) -> Result<Vec<DeviceId>, LeaseError> {
        let mut used = UsedMembers::new();
        loop {
            let lock = self.lock()?;
            let mut snapshot = LeaseSnapshot::read(self, request)?;
            let planned_leases = snapshot.plan(&used)?;
            for name in &snapshot.temporary_files {
                // A file that remains does no harm.
                let _ = atomic::remove(&self.dir, OsStr::new(name));
            }
            self.write_all(&planned_leases)?;
            drop(lock);
            let Some((planned, process)) = snapshot.find_used(&planned_leases, find_user) else {
                return Ok(devices(planned_leases));
            };
            let _lock = self.lock()?;
            self.undo(&planned_leases);
            planned.mark_used(process, &mut used)?;
        }
    }

    fn write_all(&self, planned_leases: &[PlannedLease<'_>]) -> Result<()> {
        for (index, planned) in planned_leases.iter().enumerate() {
            let Some(lease) = &planned.lease else { continue };
            if let Err(error) = self.write_lease(&planned.device, planned.choice, lease) {
                self.undo(&planned_leases[..index]);
                return Err(error);
            }
        }
        for planned in planned_leases {
            for slot in &planned.surplus {
                // A file that remains does no harm.
                let _ = self.remove(&planned.device, *slot);
            }
        }
        Ok(())
    }

    /// Restores the previous leases. Requires the lock. If this process was paused, another container may
    /// own a slot by now; its lease remains.
    fn undo(&self, planned_leases: &[PlannedLease<'_>]) {
        for planned in planned_leases {
            let slot = planned.choice.number();
            if planned.lease.is_none() || self.read_lease(&planned.device, slot) != planned.lease {
                continue;
            }
            // If this fails, the lease ends with its holder.
            let _ = match &planned.previous_lease {
                Some(previous) => self.write_lease(&planned.device, planned.choice, previous),
                None => self.remove(&planned.device, slot),
            };
        }
    }

    /// Returns why containers of a ResourceClaim could not lease a device now; `None` if they could.
    /// `names` are all names under which the device may be leased. Writes nothing, and does not search
    /// for processes that use the device without a lease.
    pub fn check_claim(
        &self,
        names: &[DeviceId],
        share: u32,
        claim: &ClaimUid,
    ) -> Result<Option<Error>> {
        let mut slots = self.read_slots_of(names)?;
        // The hook of the next container restores the device, or reports why it cannot.
        slots.retain(|slot| !slot.is_returning());
        if slots.iter().any(|slot| slot.is_held_by_claim(claim)) {
            return Ok(None);
        }
        let holders = other_holders(&slots, Some(claim));
        let is_full = holders.len() as u64 >= u64::from(share);
        Ok(is_full.then(|| in_use_error(&holders)))
    }
}

fn devices(planned_leases: Vec<PlannedLease<'_>>) -> Vec<DeviceId> {
    planned_leases.into_iter().map(|planned| planned.device).collect()
}

/// Chooses members of pools without consulting leases, for users who cannot read them.
pub fn choose_without_leases(
    device_requests: &[MemberRequest],
    numa: Numa,
    find_user: FindUser<'_>,
) -> Result<Vec<DeviceId>> {
    let members = select_members(device_requests, numa, &mut |candidate| {
        find_user(&candidate.device()).is_none()
    });
    let Some(members) = members else {
        let requests: Vec<String> = device_requests
            .iter()
            .map(|device_request| device_request.describe("too few are unused"))
            .collect();
        return Err(none_free_error(&requests, numa, &[]));
    };
    Ok(members.into_iter().map(MemberCandidate::device).collect())
}

/// The leases of the classes that a container requests. The directory and the boot ID are read once;
/// a lease file is read when its holder matters.
struct LeaseSnapshot<'a> {
    leases: &'a Leases,
    request: &'a LeaseRequest<'a>,
    boot: String,
    drain: DrainList,
    /// The slots that have a file.
    slot_numbers: BTreeMap<DeviceId, Vec<u32>>,
    /// The slots whose files were read.
    slots: BTreeMap<DeviceId, Rc<[LeaseEntry]>>,
    /// Files that a killed process did not finish.
    temporary_files: Vec<String>,
}

impl<'a> LeaseSnapshot<'a> {
    fn read(leases: &'a Leases, request: &'a LeaseRequest<'a>) -> Result<Self> {
        let boot = leases.processes.boot_id()?;
        let mut slot_numbers: BTreeMap<DeviceId, Vec<u32>> = BTreeMap::new();
        let mut temporary_files = Vec::new();
        for name in leases.file_names()? {
            if let Some((device, slot)) = parse_file_name(&name) {
                if request.devices.iter().any(|requested| requested.class == device.class) {
                    slot_numbers.entry(device).or_default().push(slot);
                }
            } else if is_temporary_name(OsStr::new(&name)) {
                temporary_files.push(name);
            }
        }
        Ok(LeaseSnapshot {
            leases,
            request,
            drain: DrainList::read_host(leases.processes.root(), || Some(boot.clone()))?,
            boot,
            slot_numbers,
            slots: BTreeMap::new(),
            temporary_files,
        })
    }

    /// Plans the leases of all requested devices.
    fn plan(&mut self, used: &UsedMembers) -> Result<Vec<PlannedLease<'a>>, LeaseError> {
        let mut planned_leases = Vec::new();
        for member in self.choose_members(used)? {
            planned_leases.push(self.plan_lease(member)?);
        }
        for device_request in self.request.devices {
            if device_request.is_single_device() {
                for candidate in device_request.candidates() {
                    planned_leases.push(self.plan_lease(candidate)?);
                }
            }
        }
        Ok(planned_leases)
    }

    /// Chooses free members of pools. Unless the request has an order, members that have a slot
    /// without a file are preferred, since no lease has to be read for them.
    fn choose_members(
        &mut self,
        used: &UsedMembers,
    ) -> Result<Vec<MemberCandidate<'a>>, LeaseError> {
        let LeaseRequest { devices, numa, .. } = self.request;
        let preferred = select_members(devices, *numa, &mut |candidate| {
            let is_free = candidate.device_request.in_order || self.has_free_slot(candidate);
            is_free && self.is_available(candidate, used)
        });
        preferred
            .or_else(|| {
                select_members(devices, *numa, &mut |candidate| self.is_available(candidate, used))
            })
            .ok_or_else(|| LeaseError::NoneFree(self.none_free_error(used)))
    }

    /// Returns whether the container could lease a member, as far as leases and drains show.
    fn is_available(&mut self, candidate: MemberCandidate<'_>, used: &UsedMembers) -> bool {
        let device = candidate.device();
        if used.contains_key(&device) {
            return false;
        }
        let is_free = self.has_free_slot(candidate)
            || choose_slot(&self.read_slots(&device), self.request, candidate.device_request)
                .is_ok();
        is_free && self.check_drain(candidate).is_ok()
    }

    /// Finds the first of these devices that a process uses, or that another container can open,
    /// without a lease.
    fn find_used<'p>(
        &mut self,
        planned_leases: &'p [PlannedLease<'a>],
        find_user: FindUser<'_>,
    ) -> Option<(&'p PlannedLease<'a>, String)> {
        planned_leases.iter().filter(|planned| planned.needs_user_check).find_map(|planned| {
            let user = self.find_member_opener(planned).or_else(|| find_user(&planned.device))?;
            Some((planned, user))
        })
    }

    /// Returns whether one of a member's slots has no file, and so no holder.
    fn has_free_slot(&self, candidate: MemberCandidate<'_>) -> bool {
        let files = self.slot_numbers.get(&candidate.device()).map_or(0, Vec::len);
        (files as u64) < u64::from(candidate.device_request.pool.share)
    }

    /// Reads the lease files of a device, once.
    fn read_slots(&mut self, device: &DeviceId) -> Rc<[LeaseEntry]> {
        if let Some(slots) = self.slots.get(device) {
            return Rc::clone(slots);
        }
        let mut slots: Vec<LeaseEntry> = self
            .slot_numbers
            .get(device)
            .into_iter()
            .flatten()
            .filter_map(|number| self.leases.read_slot(device, *number, &self.boot))
            .collect();
        slots.sort_unstable_by_key(|slot| slot.number);
        let slots: Rc<[LeaseEntry]> = slots.into();
        self.slots.insert(device.clone(), Rc::clone(&slots));
        slots
    }

    /// Plans the lease of one device. Fails with its holder if it is in use.
    fn plan_lease(&mut self, candidate: MemberCandidate<'a>) -> Result<PlannedLease<'a>> {
        let request = self.request;
        let device_request = candidate.device_request;
        let device = candidate.device();
        let slots = self.read_slots(&device);
        let choice =
            choose_slot(&slots, request, device_request).with_context(|| device.to_string())?;
        self.check_drain(candidate)?;
        let own_lease = slots
            .iter()
            .find(|slot| choice == SlotChoice::Keep(slot.number))
            .and_then(LeaseEntry::parsed);
        // The device's own hook, which names no ResourceClaim, runs after that of the ResourceClaim.
        let claim = request.claim.or(own_lease.and_then(|lease| lease.claim.as_ref()));
        let needs_user_check = !is_shared(&slots, choice.number(), claim);
        if let Some(own_lease) = own_lease
            && own_lease.holder == request.holder
            && own_lease.claim.as_ref() == claim
            && !namespace_changes(own_lease, device_request)
        {
            return Ok(PlannedLease {
                device_request,
                device,
                choice,
                previous_lease: None,
                lease: None,
                // A lease without a claim UID has already been checked for other users.
                needs_user_check: needs_user_check && own_lease.claim.is_some(),
                surplus: Vec::new(),
            });
        }
        self.check_aliases(device_request, &device)?;
        if let Some(numbers) = device_request.facts.get(NODES)
            && let Some(opener) = self.find_node_opener(&device, numbers)
        {
            bail!("{device}: its node may be opened by {opener}; stop that first");
        }
        self.check_addresses(device_request, &device)?;
        let mut surplus = surplus_slots(&slots, device_request.pool.share);
        surplus.retain(|number| *number != choice.number());
        let lease = Lease { claim: claim.cloned(), ..self.new_lease(device_request, own_lease) };
        Ok(PlannedLease {
            device_request,
            device,
            choice,
            previous_lease: own_lease.cloned(),
            lease: Some(lease),
            needs_user_check,
            surplus,
        })
    }

    fn new_lease(&self, device_request: &MemberRequest, own_lease: Option<&Lease>) -> Lease {
        let request = self.request;
        let own_ticket = own_lease.and_then(|lease| lease.ticket.as_ref());
        let own_record = own_lease.and_then(|lease| lease.moved.as_ref());
        Lease {
            boot: self.boot.clone(),
            container: request.container.clone(),
            bundle: request.bundle.to_owned(),
            holder: request.holder.clone(),
            claim: request.claim.cloned(),
            entry_point: request.entry_point.to_owned(),
            since: timestamp::unix_seconds(),
            facts: device_request.facts.clone(),
            ticket: device_request.ticket.as_ref().or(own_ticket).cloned(),
            moved: merge_move_records(own_record, device_request.moved.as_ref()),
        }
    }

    /// Fails if the device is drained, unless the container already has it.
    fn check_drain(&mut self, candidate: MemberCandidate<'_>) -> Result<()> {
        if self.drain.is_empty() {
            return Ok(());
        }
        let device = candidate.device();
        let device_request = candidate.device_request;
        let Some(entry) = [&device]
            .into_iter()
            .chain(&device_request.aliases)
            .find_map(|name| self.drain.find(name.class, name.name.as_str()))
        else {
            return Ok(());
        };
        let refusal = error!("it is {entry}");
        if already_holds(&self.read_slots(&device), self.request, device_request) {
            return Ok(());
        }
        Err(refusal).with_context(|| device.to_string())
    }

    /// Fails if another container holds the device by another of its names.
    fn check_aliases(&mut self, device_request: &MemberRequest, device: &DeviceId) -> Result<()> {
        for alias in device_request.aliases.iter().filter(|alias| *alias != device) {
            for slot in self.read_slots(alias).iter() {
                let is_own = slot.parsed().is_some_and(|lease| is_related(self.request, lease));
                if let Some(holder) = slot.describe_holder().filter(|_| !is_own) {
                    return Err(in_use_error(&[format!("{holder} as {alias}")]))
                        .with_context(|| device.to_string());
                }
            }
        }
        Ok(())
    }

    /// Finds a container that can open a pool's member as another device. For devices by name,
    /// [`LeaseSnapshot::plan_lease`] does that.
    fn find_member_opener(&mut self, planned: &PlannedLease<'_>) -> Option<String> {
        if planned.device_request.is_single_device() {
            return None;
        }
        let facts = users::facts(self.leases.processes.root(), &planned.device);
        self.find_node_opener(&planned.device, facts.get(NODES)?)
    }

    /// Finds a container that can open nodes with these numbers as those of another device. When a
    /// device leaves its driver, the kernel reuses the number of its node (`ida_alloc_max` in
    /// drivers/vfio/group.c), but the node and the cgroup of a container keep it.
    fn find_node_opener(&mut self, device: &DeviceId, numbers: &str) -> Option<String> {
        let numbers: Vec<&str> = numbers.split(' ').collect();
        for other in self.other_devices(device) {
            for lease in self.read_slots(&other).iter().filter_map(LeaseEntry::live_lease) {
                let can_open = lease.facts.get(NODES).is_some_and(|other_numbers| {
                    other_numbers.split(' ').any(|number| numbers.contains(&number))
                });
                if can_open && !is_related(self.request, lease) {
                    return Some(format!(
                        "{lease}, which got {other} when that had the number of the node"
                    ));
                }
            }
        }
        None
    }

    /// Fails if another interface in a container has an address that this one would get. Containers in
    /// one network namespace share the interface and so its address.
    fn check_addresses(&mut self, device_request: &MemberRequest, device: &DeviceId) -> Result<()> {
        let Some(moved) = &device_request.moved else {
            return Ok(());
        };
        if moved.addresses.is_empty() {
            return Ok(());
        }
        for other in self.other_devices(device) {
            for slot in self.read_slots(&other).iter() {
                let address = slot.moved_device().and_then(|other_move| {
                    other_move.addresses.iter().find(|address| moved.addresses.contains(address))
                });
                if let Some(address) = address {
                    bail!(
                        "{device}: the address {address} is that of {other}, which is in use by \
                         {}; use another address",
                        slot.describe_holder().unwrap_or_default()
                    );
                }
            }
        }
        Ok(())
    }

    /// Returns the other devices of the same class that have lease files.
    fn other_devices(&self, device: &DeviceId) -> Vec<DeviceId> {
        self.slot_numbers
            .keys()
            .filter(|other| other.class == device.class && *other != device)
            .cloned()
            .collect()
    }

    fn none_free_error(&mut self, used: &UsedMembers) -> Error {
        let mut holders = BTreeMap::new();
        let mut requests = Vec::new();
        for device_request in pool_requests(self.request.devices) {
            let mut free = 0;
            for candidate in device_request.candidates() {
                if self.is_available(candidate, used) {
                    free += 1;
                }
                holders.extend(self.describe_state(candidate, used));
            }
            let members = device_request.pool.members.len();
            requests.push(device_request.describe(&format!("{free} free of {members}")));
        }
        let holders: Vec<String> =
            holders.iter().map(|(name, state)| format!("{name} {state}")).collect();
        none_free_error(&requests, self.request.numa, &holders)
    }

    /// Describes why a member is not free; `None` if it is.
    fn describe_state(
        &mut self,
        candidate: MemberCandidate<'_>,
        used: &UsedMembers,
    ) -> Option<(DeviceName, String)> {
        let name = candidate.member.name.clone();
        let device = candidate.device();
        if let Some(user) = used.get(&device) {
            return Some((name, format!("is in use by {user}")));
        }
        if let Some(holder) = self.read_slots(&device).iter().find_map(LeaseEntry::describe_holder)
        {
            return Some((name, format!("is in use by {holder}")));
        }
        let state = format!("is {}", self.drain.find(device.class, name.as_str())?);
        Some((name, state))
    }
}

/// Returns whether another container of the ResourceClaim has the device, and so may be using it.
fn is_shared(slots: &[LeaseEntry], own_number: u32, claim: Option<&ClaimUid>) -> bool {
    let Some(claim) = claim else {
        return false;
    };
    slots.iter().any(|slot| slot.number != own_number && slot.is_held_by_claim(claim))
}

/// Returns whether a lease belongs to the same container or ResourceClaim.
fn is_related(request: &LeaseRequest<'_>, lease: &Lease) -> bool {
    let is_same_claim = request.claim.is_some() && request.claim == lease.claim.as_ref();
    is_same_claim || request.is_same_container(lease) || request.owns(lease)
}

/// Returns whether the device moves to another namespace than the container's lease records. The hook
/// that moves an interface runs after one that only leases it, which may have found the lease of an
/// earlier start.
fn namespace_changes(own_lease: &Lease, device_request: &MemberRequest) -> bool {
    let Some(moved) = &device_request.moved else {
        return false;
    };
    own_lease.moved.as_ref().is_none_or(|own_move| own_move.namespace != moved.namespace)
}

/// Merges the record of an earlier start of the container, whose device was not restored, with that of
/// this start: the earlier settings are to be restored, in the new namespace.
fn merge_move_records(
    earlier: Option<&MoveRecord>,
    now: Option<&MoveRecord>,
) -> Option<MoveRecord> {
    match (earlier, now) {
        (Some(earlier), Some(now)) if earlier.saved.must_return() => {
            Some(MoveRecord { saved: earlier.saved.merge_later(&now.saved), ..now.clone() })
        }
        (earlier, now) => now.or(earlier).cloned(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::super::file::Holder;
    use super::super::test_host::{Host, bundle, claimed, vfio};
    use super::*;
    use onload_core::class::Class;
    use onload_core::pool::{Pool, PoolMember};
    use onload_core::token::Token;

    /// What the two hooks of a device of a claim do, one after the other: the claim's, which knows no node, and
    /// the device's own, which knows who uses it.
    fn start(host: &Host, id: &str, pid: u32, uid: &str, user: Option<&str>) -> Result<(), String> {
        let holder = host.start(pid, 10);
        for (claim, user) in [(Some(uid), None), (None, user)] {
            let uid = claim.map(|uid| uid.parse().unwrap());
            let request = LeaseRequest {
                devices: &[claimed(vfio())],
                numa: Numa::Any,
                container: &id.parse().unwrap(),
                bundle: &bundle(id),
                holder: holder.clone(),
                token: None,
                claim: uid.as_ref(),
                entry_point: "createRuntime",
            };
            let user = |_: &DeviceId| user.map(str::to_owned);
            let claimed = host.leases.acquire(&request, &user);
            claimed.map_err(|error| format!("{error:#}"))?;
        }
        Ok(())
    }

    fn claims(host: &Host) -> Vec<Option<String>> {
        let listed = host.leases.list().unwrap().into_iter();
        let claim = |listed: LeaseEntry| listed.lease.unwrap().claim;
        listed.map(|listed| claim(listed).map(String::from)).collect()
    }

    #[test]
    fn containers_of_a_claim_hold_a_device_together_until_the_last_has_ended() {
        let host = Host::new();
        start(&host, "one", 1, "u1", None).unwrap();
        start(&host, "two", 2, "u1", None).unwrap();
        assert_eq!(host.files(), ["vfio=0000:81:10.0#0", "vfio=0000:81:10.0#1"]);
        assert_eq!(claims(&host), [Some("u1".to_owned()), Some("u1".to_owned())]);
        host.end(1);
        let line = start(&host, "three", 3, "u2", None).unwrap_err();
        assert!(line.contains("in use by container two (process 2, "), "{line}");
        assert!(line.contains(" of claim u1 since "), "{line}");
        host.end(2);
        start(&host, "three", 3, "u2", None).unwrap();
    }

    #[test]
    fn containers_of_a_claim_that_come_and_go_leave_no_files_while_a_fellow_lives() {
        let host = Host::new();
        start(&host, "lives", 1, "u1", None).unwrap();
        for pid in 2..9 {
            let id = format!("c{pid}");
            start(&host, &id, pid, "u1", None).unwrap();
            assert_eq!(host.files().len(), 2, "{:?}", host.files());
            assert_eq!(claims(&host).len(), 2);
            host.end(pid);
        }
        assert_eq!(host.files()[0], "vfio=0000:81:10.0#0");
    }

    #[test]
    fn who_uses_a_device_without_a_lease_stops_the_first_container_of_a_claim_alone() {
        let host = Host::new();
        let user = Some("process 7 (\"qemu\")");
        let line = start(&host, "one", 1, "u1", user).unwrap_err();
        assert!(line.ends_with("is in use by process 7 (\"qemu\"); stop that first"), "{line}");
        host.end(1);
        start(&host, "one", 2, "u1", None).unwrap();
        // The user is the first container now.
        start(&host, "two", 3, "u1", user).unwrap();
    }

    #[test]
    fn whoever_is_refused_never_looks_at_the_device_that_another_has() {
        let host = Host::new();
        host.claim("one", &host.start(1, 10)).unwrap();
        let ask = |id: &str, devices: &[MemberRequest]| {
            let asked = Cell::new(0);
            let request = LeaseRequest {
                devices,
                numa: Numa::Any,
                container: &id.parse().unwrap(),
                bundle: &bundle(id),
                holder: host.start(2, 20),
                token: None,
                claim: None,
                entry_point: "createRuntime",
            };
            let user = |_: &DeviceId| {
                asked.set(asked.get() + 1);
                None
            };
            let claimed = host.leases.acquire(&request, &user).is_ok();
            (claimed, asked.get())
        };
        let free = || claimed("vfio:0000:81:10.2".parse().unwrap());
        assert_eq!(ask("two", &[claimed(vfio())]), (false, 0));
        assert_eq!(ask("two", &[free(), claimed(vfio())]), (false, 0));
        // Nor by the name of another function of its group.
        let of_its_group = MemberRequest { aliases: vec![vfio()], ..free() };
        assert_eq!(ask("two", &[of_its_group]), (false, 0));
        assert_eq!(ask("two", &[free()]), (true, 1));
    }

    #[test]
    fn what_a_container_would_be_refused_for_is_said_and_nothing_is_written() {
        let host = Host::new();
        let would = |id: &str, user: Option<&str>| {
            let request = LeaseRequest {
                devices: &[claimed(vfio())],
                numa: Numa::Any,
                container: &id.parse().unwrap(),
                bundle: &bundle(id),
                holder: Holder::new_reservation([0; 16].into(), None),
                token: None,
                claim: None,
                entry_point: "container explain",
            };
            let user = |_: &DeviceId| user.map(str::to_owned);
            let would = host.leases.choose(&request, Some(&user));
            would.map(drop).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(would("one", None), Ok(()));
        assert!(would("one", Some("process 7")).is_err());
        assert_eq!(host.files(), [""; 0]);
        host.claim("one", &host.start(1, 10)).unwrap();
        let line = would("two", None).unwrap_err();
        assert!(line.contains("in use by container one "), "{line}");
    }

    #[test]
    fn a_claim_says_who_else_has_a_device_and_writes_nothing() {
        let host = Host::new();
        let held = |uid: &str, most| {
            let found = host.leases.check_claim(&[vfio()], most, &uid.parse().unwrap());
            found.unwrap().map(|refusal| refusal.to_string())
        };
        assert_eq!(held("u1", 1), None);
        start(&host, "one", 1, "u1", None).unwrap();
        assert_eq!(held("u1", 1), None);
        assert!(held("u2", 1).unwrap().starts_with("in use by container one "));
        assert_eq!(held("u2", 2), None);
        assert_eq!(host.files().len(), 1);
        host.end(1);
        assert_eq!(held("u2", 1), None);
    }

    /// `count` members of the pool `fast` of class vfio.
    fn device_request(count: u32, members: &[&str], share: u32) -> MemberRequest {
        let member =
            |name: &&str| PoolMember { name: (*name).try_into().unwrap(), numa_node: None };
        let members = members.iter().map(member).collect();
        let name = "fast".try_into().unwrap();
        MemberRequest::for_pool(Class::Vfio, name, count, Pool { members, share })
    }

    fn take(
        host: &Host,
        id: &str,
        holder: Holder,
        device_request: MemberRequest,
    ) -> Result<Vec<String>, String> {
        take_beside(host, id, holder, device_request, &|_| None)
    }

    /// As [`take`], where some devices are used without a lease.
    fn take_beside(
        host: &Host,
        id: &str,
        holder: Holder,
        device_request: MemberRequest,
        user: FindUser<'_>,
    ) -> Result<Vec<String>, String> {
        let request = LeaseRequest {
            devices: &[device_request],
            numa: Numa::Any,
            container: &id.parse().unwrap(),
            bundle: &bundle(id),
            holder,
            token: None,
            claim: None,
            entry_point: "onload-container-runtime",
        };
        let would = host.leases.choose(&request, Some(user)).map_err(Error::from);
        let taken = host.leases.acquire(&request, user);
        let text = |result: Result<Vec<DeviceId>>| {
            result
                .map(|devices| devices.iter().map(ToString::to_string).collect())
                .map_err(|error| format!("{error:#}"))
        };
        let taken = text(taken.map_err(Error::from));
        assert_eq!(text(would), taken);
        taken
    }

    #[test]
    fn a_container_gets_members_that_are_free() {
        let host = Host::new();
        let holder = |pid| host.start(pid, 10);
        let two = device_request(2, &["a", "b", "c"], 1);
        let taken = take(&host, "one", holder(1), two.clone()).unwrap();
        assert_eq!(taken, ["vfio:a", "vfio:b"]);
        let line = take(&host, "two", holder(2), two).unwrap_err();
        for part in [
            "2 wanted of pool vfio=fast, which has 1 free of 3; a is in use by container one \
             (process 1, ",
            "; b is in use by container one (",
            "; \"onload-ctk lease list\" shows all",
        ] {
            assert!(line.contains(part), "{line}");
        }
        assert_eq!(host.files(), ["vfio=a#0", "vfio=b#0"], "nothing of the second");
        let one = device_request(1, &["a", "b", "c"], 1);
        assert_eq!(take(&host, "two", holder(2), one).unwrap(), ["vfio:c"]);
    }

    /// Writes that these are drained; nothing removes the file.
    fn drain(host: &Host, names: &[&str]) {
        let entries: Vec<String> = names
            .iter()
            .map(|name| {
                format!(r#"{{"class":"vfio","name":"{name}","since":0,"reason":"new firmware"}}"#)
            })
            .collect();
        let text = format!(r#"{{"version":1,"drained":[{}]}}"#, entries.join(","));
        host.file("etc/onload-ctk/drain.json", text);
    }

    const DRAINED: &str = "drained since 1970-01-01T00:00:00Z: new firmware; \"onload-ctk undrain vfio=0000:81:10.0\" offers it again";

    #[test]
    fn a_drained_device_is_refused_to_a_container_whose_hook_comes_after() {
        let host = Host::new();
        // It was created before, and has not begun.
        let late = host.start(1, 10);
        drain(&host, &["0000:81:10.0"]);
        let line = host.claim("late", &late).unwrap_err();
        assert_eq!(line, format!("vfio:0000:81:10.0: it is {DRAINED}"));
        assert_eq!(host.files(), [""; 0]);
        host.remove("etc/onload-ctk/drain.json");
        host.claim("late", &late).unwrap();
    }

    #[test]
    fn who_has_a_device_keeps_it_when_it_is_drained_and_the_next_start_is_refused() {
        let host = Host::new();
        let token: Token = "0123456789abcdef0123456789abcdef".parse().unwrap();
        let reserved = Holder::new_reservation(token.clone(), None);
        host.claim_by("web", reserved, None).unwrap();
        drain(&host, &["0000:81:10.0"]);
        let web = host.start(1, 10);
        host.claim_by("web", web.clone(), Some(&token)).unwrap();
        // Its own hook comes a second time.
        host.claim("web", &web).unwrap();
        host.end(1);
        assert!(host.release("web"), "its end needs no offer");
        let line = host.claim("web", &host.start(2, 20)).unwrap_err();
        assert!(line.contains(DRAINED), "{line}");
    }

    #[test]
    fn a_reservation_that_is_over_gives_no_drained_device() {
        let host = Host::new();
        let token: Token = "0123456789abcdef0123456789abcdef".parse().unwrap();
        let over = Holder::Reservation { token: token.clone(), expires_ms: 0, maker: None };
        host.claim_by("web", over, None).unwrap();
        let web = host.start(1, 10);
        drain(&host, &["0000:81:10.0"]);
        let line = host.claim_by("web", web.clone(), Some(&token)).unwrap_err();
        assert!(line.contains(DRAINED), "{line}");
        host.remove("etc/onload-ctk/drain.json");
        host.claim_by("web", web, Some(&token)).unwrap();
    }

    #[test]
    fn containers_of_a_claim_that_has_a_drained_device_come_and_go() {
        let host = Host::new();
        start(&host, "one", 1, "u1", None).unwrap();
        drain(&host, &["0000:81:10.0"]);
        start(&host, "two", 2, "u1", None).unwrap();
        host.end(1);
        host.end(2);
        assert!(start(&host, "three", 3, "u1", None).is_err());
    }

    #[test]
    fn a_group_is_drained_by_whichever_of_its_names_it_is_leased() {
        let host = Host::new();
        drain(&host, &["0000:81:10.0"]);
        let mut device_request = claimed("vfio:0000:81:10.2".parse().unwrap());
        let claim = |pid: u32, device_request: &MemberRequest| {
            let device_requests = std::slice::from_ref(device_request);
            host.claim_all("web", host.start(pid, 10), None, device_requests)
        };
        claim(1, &device_request).unwrap();
        host.end(1);
        device_request.aliases = vec![vfio()];
        assert!(claim(2, &device_request).unwrap_err().contains(DRAINED));
    }

    #[test]
    fn a_device_whose_node_has_the_number_of_another_one_is_refused_while_a_container_may_open_that()
     {
        let host = Host::new();
        let with_nodes = |name: &str, nodes: &str| {
            let mut device_request = claimed(name.parse().unwrap());
            device_request.facts.insert(NODES.to_owned(), nodes.to_owned());
            device_request
        };
        let first = with_nodes("vfio:0000:81:10.0", "241:0 511:3");
        let ask = |id: &str, holder: &Holder, device_request: &MemberRequest| {
            host.claim_all(id, holder.clone(), None, std::slice::from_ref(device_request))
        };
        let (web, other) = (host.start(1, 10), host.start(2, 20));
        ask("web", &web, &first).unwrap();
        // Only a whole number is the same.
        ask("other", &other, &with_nodes("vfio:0000:81:10.1", "241:00 51:3 241:1")).unwrap();
        let given_anew = with_nodes("vfio:0000:81:10.2", "241:0");
        let line = ask("other", &other, &given_anew).unwrap_err();
        assert!(
            line.starts_with(
                "vfio:0000:81:10.2: its node may be opened by container web (process 1"
            ) && line.ends_with(
                ", which got vfio:0000:81:10.0 when that had the number of the node; stop that \
                 first"
            ),
            "{line}"
        );
        // The lease is its own, and free after its end.
        ask("web", &web, &given_anew).unwrap();
        host.end(1);
        ask("other", &other, &given_anew).unwrap();
    }

    #[test]
    fn a_list_of_what_is_drained_that_is_not_understood_stops_who_leases() {
        let host = Host::new();
        host.file("etc/onload-ctk/drain.json", "{}");
        let line = host.claim("web", &host.start(1, 10)).unwrap_err();
        assert!(line.starts_with("reading /etc/onload-ctk/drain.json: "), "{line}");
    }

    #[test]
    fn members_of_holders_that_ended_are_taken_over_when_no_other_is_left() {
        let host = Host::new();
        let one = || device_request(1, &["a", "b"], 1);
        assert_eq!(take(&host, "one", host.start(1, 10), one()).unwrap(), ["vfio:a"]);
        host.end(1);
        assert_eq!(take(&host, "two", host.start(2, 10), one()).unwrap(), ["vfio:b"]);
        assert_eq!(take(&host, "three", host.start(3, 10), one()).unwrap(), ["vfio:a"]);
        assert!(take(&host, "four", host.start(4, 10), one()).is_err());
        assert_eq!(host.files().len(), 2);
    }

    #[test]
    fn the_nearest_member_is_taken_over_although_a_farther_one_has_no_file() {
        let host = Host::new();
        let near = || MemberRequest { in_order: true, ..device_request(1, &["a", "b"], 1) };
        let held = take(&host, "one", host.start(1, 10), near());
        assert_eq!(held.unwrap(), ["vfio:a"]);
        host.end(1);
        let again = take(&host, "two", host.start(2, 10), near());
        assert_eq!(again.unwrap(), ["vfio:a"]);
        // One that is held is passed over.
        let farther = take(&host, "three", host.start(3, 10), near());
        assert_eq!(farther.unwrap(), ["vfio:b"]);
    }

    #[test]
    fn drained_members_are_passed_over_and_named_where_no_other_is_free() {
        let host = Host::new();
        drain(&host, &["0000:81:10.0"]);
        let two = |count| device_request(count, &["0000:81:10.0", "b"], 1);
        let taken = take(&host, "one", host.start(1, 10), two(1)).unwrap();
        assert_eq!(taken, ["vfio:b"]);
        let line = take(&host, "two", host.start(2, 10), two(1)).unwrap_err();
        for part in [
            "1 wanted of pool vfio=fast, which has 0 free of 2; 0000:81:10.0 is drained since ",
            "; b is in use by container one (",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }

    #[test]
    fn a_shared_member_is_given_as_often_as_its_pool_says() {
        let host = Host::new();
        let one = || device_request(1, &["a", "b"], 2);
        let taken: Vec<String> = (1..=4)
            .map(|pid| take(&host, &format!("c{pid}"), host.start(pid, 10), one()).unwrap())
            .map(|taken| taken[0].clone())
            .collect();
        assert_eq!(taken, ["vfio:a", "vfio:a", "vfio:b", "vfio:b"]);
        assert!(take(&host, "c5", host.start(5, 10), one()).is_err());
        host.end(2);
        assert_eq!(take(&host, "c5", host.start(5, 10), one()).unwrap(), ["vfio:a"]);
        assert_eq!(host.files(), ["vfio=a#0", "vfio=a#1", "vfio=b#0", "vfio=b#1"]);
    }

    #[test]
    fn a_member_that_somebody_uses_without_a_lease_is_passed_over() {
        let host = Host::new();
        let user = |device: &DeviceId| {
            let is_used = device.name.as_str() != "c";
            is_used.then(|| "process 7 (\"qemu\")".to_owned())
        };
        let take = |id: &str, pid| {
            let one = device_request(1, &["a", "b", "c"], 1);
            take_beside(&host, id, host.start(pid, 10), one, &user)
        };
        assert_eq!(take("one", 1).unwrap(), ["vfio:c"]);
        let line = take("two", 2).unwrap_err();
        assert!(
            line.contains("has 0 free of 3; a is in use by process 7 (\"qemu\"); b is in use"),
            "{line}"
        );
    }

    #[test]
    fn a_member_whose_node_another_container_may_open_is_passed_over() {
        let host = Host::new();
        let mut gone = claimed("vfio:gone".parse().unwrap());
        gone.facts.insert(NODES.to_owned(), "241:0".to_owned());
        let web = host.start(1, 10);
        host.claim_all("web", web, None, &[gone]).unwrap();
        for (member, group, number) in [("a", "15", "241:0"), ("b", "16", "241:1")] {
            let link = format!("sys/bus/pci/devices/{member}/iommu_group");
            host.link(&link, &format!("../../../../kernel/iommu_groups/{group}"));
            host.file(&format!("sys/class/vfio/{group}/dev"), number);
        }
        let one = device_request(1, &["a", "b"], 1);
        assert_eq!(take(&host, "one", host.start(2, 20), one).unwrap(), ["vfio:b"]);
    }

    #[test]
    fn a_lease_that_is_not_understood_counts_as_held() {
        let host = Host::new();
        host.file("run/@leases/vfio=a#0", "{");
        let taken = take(&host, "one", host.start(1, 10), device_request(1, &["a", "b"], 1));
        assert_eq!(taken.unwrap(), ["vfio:b"]);
        let line =
            take(&host, "two", host.start(2, 10), device_request(1, &["a", "b"], 1)).unwrap_err();
        assert!(line.contains("a is in use by an unknown container"), "{line}");
    }

    #[test]
    fn of_a_long_list_of_holders_a_few_are_named() {
        let host = Host::new();
        let members = ["a", "b", "c", "d", "e"];
        take(&host, "one", host.start(1, 10), device_request(5, &members, 1)).unwrap();
        let line =
            take(&host, "two", host.start(2, 10), device_request(1, &members, 1)).unwrap_err();
        assert!(line.contains("; c is in use by container one"), "{line}");
        assert!(line.contains("; 2 more are held; \"onload-ctk lease list\""), "{line}");
    }

    #[test]
    fn members_and_devices_by_name_are_given_together_or_not_at_all() {
        let host = Host::new();
        let device_requests = [device_request(1, &["a", "b"], 1), claimed(vfio())];
        let ask =
            |id: &str, pid: u32| host.claim_all(id, host.start(pid, 10), None, &device_requests);
        ask("one", 1).unwrap();
        assert_eq!(host.files(), ["vfio=0000:81:10.0#0", "vfio=a#0"]);
        let line = ask("two", 2).unwrap_err();
        assert!(line.starts_with("vfio:0000:81:10.0: in use by"), "{line}");
        assert_eq!(host.files().len(), 2, "nothing of the second");
    }

    #[test]
    fn a_device_is_the_container_s_before_it_is_asked_who_uses_it() {
        let host = Host::new();
        let found = RefCell::new(Vec::new());
        let user = |device: &DeviceId| {
            let taken = host.claim_all("two", host.start(2, 20), None, &[claimed(device.clone())]);
            found.borrow_mut().push(taken.unwrap_err());
            None
        };
        take_once(&host, "one", &[claimed(vfio())], &user).unwrap();
        take_once(&host, "one", &[device_request(1, &["a"], 1)], &user).unwrap();
        let found = found.into_inner();
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|line| line.contains("in use by container one ")), "{found:?}");
    }

    #[test]
    fn a_reservation_stays_as_it_was_where_its_device_turns_out_to_be_in_use() {
        let host = Host::new();
        let token: Token = [5; 16].into();
        let reservation = Holder::new_reservation(token.clone(), None);
        host.claim_by("one", reservation.clone(), None).unwrap();
        let request = LeaseRequest {
            token: Some(&token),
            devices: &[claimed(vfio())],
            numa: Numa::Any,
            container: &"one".parse().unwrap(),
            bundle: &bundle("one"),
            holder: host.start(1, 10),
            claim: None,
            entry_point: "createRuntime",
        };
        let busy = |_: &DeviceId| Some("process 7".to_owned());
        assert!(host.leases.acquire(&request, &busy).is_err());
        let kept = host.leases.list().unwrap().remove(0).lease.unwrap();
        assert_eq!(kept.holder, reservation);
        host.leases.acquire(&request, &|_| None).unwrap();
    }

    #[test]
    fn what_another_took_meanwhile_is_not_given_back() {
        let host = Host::new();
        let user = |device: &DeviceId| {
            // As if the first had been stopped until its reservation expired.
            host.leases.release_all(device).unwrap();
            host.claim("two", &host.start(2, 20)).unwrap();
            Some("process 7".to_owned())
        };
        let line = take_once(&host, "one", &[claimed(vfio())], &user).unwrap_err();
        assert!(line.contains("is in use by process 7"), "{line}");
        assert_eq!(host.holder().as_deref(), Some("two"));
    }

    #[test]
    fn reserves_another_member_if_another_container_was_faster() {
        let host = Host::new();
        let container = "one".parse().unwrap();
        let bundle = bundle("one");
        let asked = [device_request(1, &["a", "b"], 1)];
        let request = LeaseRequest {
            devices: &asked,
            numa: Numa::Any,
            container: &container,
            bundle: &bundle,
            holder: Holder::new_reservation(Token::new().unwrap(), None),
            token: None,
            claim: None,
            entry_point: "onload-container-runtime",
        };
        let choice = host.leases.choose(&request, None).unwrap();
        assert_eq!(choice, ["vfio:a".parse().unwrap()]);
        assert_eq!(host.files(), [""; 0]);
        take_once(&host, "two", &asked, &|_| None).unwrap();
        let reserved = host.leases.acquire(&request, &|_| None).unwrap();
        assert_eq!(reserved, ["vfio:b".parse().unwrap()]);
        let none_free = host.leases.acquire(&request, &|_| None);
        assert!(matches!(none_free, Err(LeaseError::NoneFree(_))), "{none_free:?}");
    }

    #[test]
    fn as_many_containers_as_members_start_at_once() {
        const COUNT: u32 = 100;
        let host = Host::new();
        let names: Vec<String> = (0..COUNT).map(|number| format!("m{number}")).collect();
        let members: Vec<&str> = names.iter().map(String::as_str).collect();
        let asked = [device_request(1, &members, 1)];
        let start = |number: u32, is_refused: bool| {
            let id = format!("c{number}");
            let request = LeaseRequest {
                devices: &asked,
                numa: Numa::Any,
                container: &id.parse().unwrap(),
                bundle: &bundle(&id),
                holder: Holder::new_reservation(Token::new().unwrap(), None),
                token: None,
                claim: None,
                entry_point: "onload-container-runtime",
            };
            let leases = host.open_leases();
            leases.choose(&request, None).unwrap();
            if is_refused {
                return Vec::new();
            }
            leases.acquire(&request, &|_| None).unwrap()
        };
        let mut reserved: Vec<DeviceId> = std::thread::scope(|scope| {
            let starts: Vec<_> =
                (1..COUNT).map(|number| scope.spawn(move || start(number, false))).collect();
            // A container whose image is refused starts again and again, and disturbs none of them.
            for _ in 0..10 {
                start(0, true);
            }
            starts.into_iter().flat_map(|start| start.join().unwrap()).collect()
        });
        reserved.extend(start(0, false));
        reserved.sort();
        reserved.dedup();
        assert_eq!(reserved.len(), members.len());
    }

    /// Reserves for a container without choosing first.
    fn take_once(
        host: &Host,
        id: &str,
        device_requests: &[MemberRequest],
        user: FindUser<'_>,
    ) -> Result<(), String> {
        let request = LeaseRequest {
            devices: device_requests,
            numa: Numa::Any,
            container: &id.parse().unwrap(),
            bundle: &bundle(id),
            holder: Holder::new_reservation(Token::new().unwrap(), None),
            token: None,
            claim: None,
            entry_point: "onload-container-runtime",
        };
        let taken = host.leases.acquire(&request, user);
        taken.map(drop).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn containers_that_take_at_once_share_no_member() {
        let host = Host::new();
        let members: Vec<String> = (0..16).map(|number| format!("m{number}")).collect();
        let members: Vec<&str> = members.iter().map(String::as_str).collect();
        let holders: Vec<Holder> = (1..=40).map(|pid| host.start(pid, 10)).collect();
        let taken: Vec<Result<Vec<DeviceId>, LeaseError>> = std::thread::scope(|scope| {
            let tries: Vec<_> = holders
                .iter()
                .enumerate()
                .map(|(index, holder)| {
                    let (host, device_request) = (&host, device_request(1, &members, 1));
                    scope.spawn(move || {
                        let id = format!("c{index}");
                        let request = LeaseRequest {
                            devices: &[device_request],
                            numa: Numa::Any,
                            container: &id.parse().unwrap(),
                            bundle: &bundle(&id),
                            holder: holder.clone(),
                            token: None,
                            claim: None,
                            entry_point: "onload-container-runtime",
                        };
                        host.leases.acquire(&request, &|_| None)
                    })
                })
                .collect();
            tries.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let (given, refused): (Vec<_>, Vec<_>) = taken.into_iter().partition(Result::is_ok);
        let mut given: Vec<DeviceId> = given.into_iter().flat_map(Result::unwrap).collect();
        given.sort();
        given.dedup();
        assert_eq!((given.len(), refused.len()), (16, 24));
        assert!(refused.iter().all(|result| matches!(result, Err(LeaseError::NoneFree(_)))));
    }
}
