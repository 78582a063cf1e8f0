//! Devices for one container, members of pools and devices by their names alike, claimed under one lock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::rc::Rc;

use onload_cdi::DeviceName;

use super::file::{Lease, NODES, parse_file_name};
use super::move_record::MoveRecord;
use super::request::{
    LeaseRequest, MemberCandidate, MemberRequest, none_free_error, pool_requests, select_members,
};
use super::slot::{
    HolderState, Slot, SlotChoice, already_holds, choose_slot, in_use_error, other_holders,
    surplus_slots,
};
use super::store::{LeaseError, Leases};
use crate::drain::DrainList;
use onload_core::claim_uid::ClaimUid;
use onload_core::device_id::DeviceId;
use onload_core::pool::Numa;
use onload_core::timestamp;
use onload_sys::error::{Context as _, Error, Result, bail, error};
use onload_sys::fs::atomic::{self, is_temporary_name};

/// Tells who uses a device without a lease of it.
type UserLookup<'a> = &'a dyn Fn(&DeviceId, &LeaseSnapshot<'_>) -> Option<String>;

/// Who uses which members of pools without a lease.
pub type UsedMembers = BTreeMap<DeviceId, String>;

/// What a container gets.
struct PlannedLease<'a> {
    device_request: &'a MemberRequest,
    device: DeviceId,
    choice: SlotChoice,
    /// The lease that stands there and is this container's.
    previous_lease: Option<Lease>,
    /// What is written there; none where it stands there already.
    lease: Option<Lease>,
    /// Whether it is asked who uses the device without a lease.
    needs_user_check: bool,
    /// Slots that nobody uses any more.
    surplus: Vec<u32>,
}

impl Leases {
    /// What a container could get now, each as a device request for just that. Nothing is written and no lock taken, so another
    /// container may be faster with it.
    pub fn choose(
        &self,
        request: &LeaseRequest<'_>,
        used: &UsedMembers,
    ) -> Result<Vec<MemberRequest>, LeaseError> {
        let snapshot = LeaseSnapshot::read(self, request.devices)?;
        let planned_leases = snapshot.grants(request, used)?.into_iter();
        Ok(planned_leases
            .map(|planned| planned.device_request.narrowed_to(&planned.device.name))
            .collect())
    }

    /// Gives a container all that it asks for, or none of it. What it holds already it keeps. `user` is asked without the
    /// lock, since the answer may take its time, and not before the device is this container's: it may open the device,
    /// which another holder would notice. A member that is in use is given back, and another taken.
    pub fn claim(
        &self,
        request: &LeaseRequest<'_>,
        find_user: UserLookup<'_>,
    ) -> Result<Vec<DeviceId>, LeaseError> {
        let mut used = UsedMembers::new();
        loop {
            let lock = self.lock()?;
            let snapshot = LeaseSnapshot::read(self, request.devices)?;
            let planned_leases = snapshot.grants(request, &used)?;
            snapshot.sweep();
            self.publish_all(&planned_leases)?;
            drop(lock);
            let Some((planned, process)) = snapshot.first_used(&planned_leases, find_user) else {
                return Ok(devices(planned_leases));
            };
            let _lock = self.lock()?;
            self.undo(&planned_leases);
            planned.pass_over(process, &mut used)?;
        }
    }

    /// What [`Leases::claim`] would give now; nothing is written. A device by its name that the container holds itself, be
    /// it by another reservation, is among it.
    pub fn would_claim(
        &self,
        request: &LeaseRequest<'_>,
        find_user: UserLookup<'_>,
    ) -> Result<Vec<DeviceId>> {
        let snapshot = LeaseSnapshot::read(self, request.devices)?;
        let is_own = |device_request: &&MemberRequest| {
            let is_of_container =
                |slot: &Slot| slot.lease().is_some_and(|lease| request.is_same_container(lease));
            let mut devices = device_request.candidates().map(MemberCandidate::device);
            device_request.is_single_device()
                && devices.any(|device| snapshot.slots(&device).iter().any(is_of_container))
        };
        let (held_requests, other_requests): (Vec<&MemberRequest>, Vec<&MemberRequest>) =
            request.devices.iter().partition(is_own);
        let held_candidates = held_requests.into_iter().flat_map(MemberRequest::candidates);
        let other_requests: Vec<MemberRequest> = other_requests.into_iter().cloned().collect();
        let request = LeaseRequest { devices: &other_requests, ..request.clone() };
        let mut used = UsedMembers::new();
        loop {
            let planned_leases = snapshot.grants(&request, &used)?;
            match snapshot.first_used(&planned_leases, find_user) {
                Some((planned, process)) => planned.pass_over(process, &mut used)?,
                None => {
                    let granted = devices(planned_leases).into_iter();
                    return Ok(granted
                        .chain(held_candidates.map(MemberCandidate::device))
                        .collect());
                }
            }
        }
    }

    fn publish_all(&self, planned_leases: &[PlannedLease<'_>]) -> Result<()> {
        for (index, planned) in planned_leases.iter().enumerate() {
            let Some(lease) = &planned.lease else { continue };
            if let Err(error) = self.write_lease(&planned.device, planned.choice, lease) {
                self.undo(planned_leases.split_at(index).0);
                return Err(error);
            }
        }
        for planned in planned_leases {
            for slot in &planned.surplus {
                // It is in nobody's way.
                let _ = self.remove(&planned.device, *slot);
            }
        }
        Ok(())
    }

    /// Has the leases as they were before; the lock is held. Who was stopped meanwhile may find another's in its slot.
    fn undo(&self, planned_leases: &[PlannedLease<'_>]) {
        for planned in planned_leases {
            let slot = planned.choice.number();
            if planned.lease.is_none() || self.read_lease(&planned.device, slot) != planned.lease {
                continue;
            }
            // Where that fails, the lease ends with its holder.
            let _ = match &planned.previous_lease {
                Some(previous) => self.write_lease(&planned.device, planned.choice, previous),
                None => self.remove(&planned.device, slot).map(drop),
            };
        }
    }

    /// Why the containers of a claim would not get devices now, each of which so many may have at once, and which
    /// may be leased by any of their names; `None` if they would. Nothing is written. Who uses a device without a
    /// lease is not looked for.
    pub fn held_beside(
        &self,
        device_ids: &[DeviceId],
        share: u32,
        claim: &ClaimUid,
    ) -> Result<Option<Error>> {
        let slots = self.read_slots_where(&|device| device_ids.contains(device))?;
        let mut slots: Vec<Slot> = slots.into_iter().map(|(_, slot)| slot).collect();
        // The hook of the next container brings it back, or says why it does not come.
        slots.retain(|slot| slot.state != HolderState::Returning);
        if slots.iter().any(|slot| slot.is_held_by_claim(claim)) {
            return Ok(None);
        }
        let holders = other_holders(&slots, Some(claim));
        let is_full = holders.len() >= usize::try_from(share).unwrap_or(usize::MAX);
        Ok(is_full.then(|| in_use_error(&holders)))
    }
}

impl PlannedLease<'_> {
    /// Has another member taken in the place of one that is in use. A device by its name is a pool of one.
    fn pass_over(&self, process: String, used: &mut UsedMembers) -> Result<()> {
        if self.device_request.is_single_device() {
            bail!("{} is in use by {process}; stop that first", self.device);
        }
        used.insert(self.device.clone(), process);
        Ok(())
    }
}

fn devices(planned_leases: Vec<PlannedLease<'_>>) -> Vec<DeviceId> {
    planned_leases.into_iter().map(|planned| planned.device).collect()
}

/// The members that a container would get if nobody held a lease: for a user who cannot see leases.
pub fn take_unleased(
    device_requests: &[MemberRequest],
    numa: Numa,
    find_user: &dyn Fn(&DeviceId) -> Option<String>,
) -> Result<Vec<DeviceId>> {
    let picked = select_members(device_requests, numa, &mut |candidate| {
        find_user(&candidate.device()).is_none()
    });
    let Some(picked) = picked else {
        let requests = device_requests.iter();
        let requests =
            requests.map(|device_request| device_request.describe("too few that are not in use"));
        return Err(none_free_error(&requests.collect::<Vec<_>>(), numa, &[]));
    };
    Ok(picked.into_iter().map(MemberCandidate::device).collect())
}

/// Who holds what, of the classes that a container asks for. The directory is listed and the boot's id read once.
pub struct LeaseSnapshot<'a> {
    leases: &'a Leases,
    boot: String,
    /// What nobody new gets.
    drain: DrainList,
    /// The slots with a file.
    slot_numbers: BTreeMap<DeviceId, Vec<u32>>,
    /// What stands in the slots of those that had to be looked at.
    cached_slots: RefCell<BTreeMap<DeviceId, Rc<[Slot]>>>,
    /// What a killed process left half written.
    half_written: Vec<String>,
}

impl<'a> LeaseSnapshot<'a> {
    fn read(leases: &'a Leases, device_requests: &[MemberRequest]) -> Result<Self> {
        let boot = leases.processes.boot_id()?;
        let mut slot_numbers: BTreeMap<DeviceId, Vec<u32>> = BTreeMap::new();
        let mut half_written = Vec::new();
        for name in leases.file_names()? {
            match parse_file_name(&name) {
                Some((device, slot))
                    if device_requests
                        .iter()
                        .any(|device_request| device_request.class == device.class) =>
                {
                    slot_numbers.entry(device).or_default().push(slot);
                }
                None if is_temporary_name(OsStr::new(&name)) => half_written.push(name),
                _ => {}
            }
        }
        Ok(LeaseSnapshot {
            leases,
            drain: DrainList::read_host(leases.processes.root(), || Some(boot.clone()))?,
            boot,
            slot_numbers,
            cached_slots: RefCell::default(),
            half_written,
        })
    }

    /// Removes what is half written; the lock is held.
    fn sweep(&self) {
        for name in &self.half_written {
            // It is in nobody's way.
            let _ = atomic::remove(&self.leases.dir, OsStr::new(name));
        }
    }

    /// What a container gets of all that it asks for.
    fn grants<'w>(
        &self,
        request: &LeaseRequest<'w>,
        used: &UsedMembers,
    ) -> Result<Vec<PlannedLease<'w>>, LeaseError> {
        let mut planned_leases = self.members(request, used)?;
        for device_request in
            request.devices.iter().filter(|device_request| device_request.is_single_device())
        {
            for candidate in device_request.candidates() {
                planned_leases.push(self.grant(request, candidate)?);
            }
        }
        Ok(planned_leases)
    }

    /// Members of pools. Those with a slot that has no file come first, since nobody has to be judged for them;
    /// not where the order says more.
    fn members<'w>(
        &self,
        request: &LeaseRequest<'w>,
        used: &UsedMembers,
    ) -> Result<Vec<PlannedLease<'w>>, LeaseError> {
        let (device_requests, numa) = (request.devices, request.numa);
        let is_unused = |candidate: MemberCandidate<'_>| {
            let is_used = !used.is_empty() && used.contains_key(&candidate.device());
            !is_used && self.check_drain(request, candidate).is_ok()
        };
        let is_free = |candidate: MemberCandidate<'_>| {
            self.is_free(request, candidate) && is_unused(candidate)
        };
        // A slot without a file is free, whoever has the others.
        let is_preferred = |candidate: MemberCandidate<'_>| {
            if candidate.device_request.in_order {
                is_free(candidate)
            } else {
                self.has_slot(candidate) && is_unused(candidate)
            }
        };
        let picked =
            select_members(device_requests, numa, &mut |candidate| is_preferred(candidate))
                .or_else(|| {
                    select_members(device_requests, numa, &mut |candidate| is_free(candidate))
                });
        let Some(picked) = picked else {
            return Err(LeaseError::NoneFree(self.none_free(request, used)));
        };
        let mut planned_leases = Vec::new();
        for candidate in picked {
            planned_leases.push(self.grant(request, candidate)?);
        }
        Ok(planned_leases)
    }

    fn first_used<'g, 'w>(
        &self,
        planned_leases: &'g [PlannedLease<'w>],
        find_user: UserLookup<'_>,
    ) -> Option<(&'g PlannedLease<'w>, String)> {
        let mut unchecked = planned_leases.iter().filter(|planned| planned.needs_user_check);
        unchecked.find_map(|planned| Some((planned, find_user(&planned.device, self)?)))
    }

    fn numbers(&self, device: &DeviceId) -> &[u32] {
        self.slot_numbers.get(device).map_or(&[], Vec::as_slice)
    }

    /// Whether a candidate has a slot without a file.
    fn has_slot(&self, candidate: MemberCandidate<'_>) -> bool {
        let share = usize::try_from(candidate.device_request.pool.share).unwrap_or(usize::MAX);
        self.numbers(&candidate.device()).len() < share
    }

    /// That a device is not drained, unless the container has it already: what began before goes on.
    fn check_drain(
        &self,
        request: &LeaseRequest<'_>,
        candidate: MemberCandidate<'_>,
    ) -> Result<()> {
        if self.drain.is_empty() {
            return Ok(());
        }
        let device = candidate.device();
        for name in [&device].into_iter().chain(&candidate.device_request.aliases) {
            if let Some(entry) = self.drain.find(name.class, name.name.as_str())
                && !already_holds(&self.slots(&device), request, candidate.device_request)
            {
                return Err(error!("it is {entry}")).with_context(|| device.to_string());
            }
        }
        Ok(())
    }

    fn is_free(&self, request: &LeaseRequest<'_>, candidate: MemberCandidate<'_>) -> bool {
        self.has_slot(candidate)
            || choose_slot(&self.slots(&candidate.device()), request, candidate.device_request)
                .is_ok()
    }

    /// What stands in the slots of a device.
    fn slots(&self, device: &DeviceId) -> Rc<[Slot]> {
        if let Some(slots) = self.cached_slots.borrow().get(device) {
            return Rc::clone(slots);
        }
        let mut slots = Vec::new();
        for number in self.numbers(device) {
            slots.extend(self.leases.read_slot(device, *number, &self.boot));
        }
        slots.sort_unstable_by_key(|slot| slot.number);
        let slots: Rc<[Slot]> = slots.into();
        let cached = Rc::clone(&slots);
        self.cached_slots.borrow_mut().insert(device.clone(), cached);
        slots
    }

    /// What a container gets of one candidate, or who holds that.
    fn grant<'w>(
        &self,
        request: &LeaseRequest<'w>,
        candidate: MemberCandidate<'w>,
    ) -> Result<PlannedLease<'w>> {
        let (device_request, device) = (candidate.device_request, candidate.device());
        if self.has_slot(candidate) && !device_request.is_single_device() {
            let numbers = self.numbers(&device);
            let free_number =
                (0..device_request.pool.share).find(|number| !numbers.contains(number));
            return Ok(PlannedLease {
                device_request,
                device,
                choice: SlotChoice::Create(free_number.unwrap_or_default()),
                previous_lease: None,
                lease: Some(self.lease(request, device_request, None)),
                needs_user_check: true,
                surplus: Vec::new(),
            });
        }
        let slots = self.slots(&device);
        let choice =
            choose_slot(&slots, request, device_request).with_context(|| device.to_string())?;
        self.check_drain(request, candidate)?;
        let own_slot = slots.iter().find(|slot| choice == SlotChoice::Keep(slot.number));
        let own_lease = own_slot.and_then(Slot::lease);
        // The hook of a claim comes first and the device's own after it, which names no claim.
        let claim = request.claim.or(own_lease.and_then(|lease| lease.claim.as_ref()));
        // The hook that moves an interface comes after one that leases it alone, which may have found what an earlier
        // start left.
        let namespace = |moved: &MoveRecord| moved.namespace;
        let previous_namespace = own_lease.and_then(|lease| lease.moved.as_ref()).map(namespace);
        let namespace_changes = device_request.moved.is_some()
            && device_request.moved.as_ref().map(namespace) != previous_namespace;
        let is_unchanged =
            |lease: &Lease| lease.holder == request.holder && lease.claim.as_ref() == claim;
        let needs_user_check = !is_shared(&slots, choice.number(), claim);
        if let Some(unchanged_lease) =
            own_lease.filter(|lease| is_unchanged(lease) && !namespace_changes)
        {
            return Ok(PlannedLease {
                device_request,
                device,
                choice,
                previous_lease: None,
                lease: None,
                // What has it without a claim is its own user by now. The hook of a claim knows no nodes, so who
                // uses them comes out with the device's own.
                needs_user_check: needs_user_check && unchanged_lease.claim.is_some(),
                surplus: Vec::new(),
            });
        }
        self.check_aliases(request, device_request, &device)?;
        self.check_nodes(request, device_request, &device)?;
        self.check_addresses(device_request, &device)?;
        let mut surplus = surplus_slots(&slots, device_request.pool.share);
        surplus.retain(|number| *number != choice.number());
        Ok(PlannedLease {
            device_request,
            device,
            choice,
            previous_lease: own_lease.cloned(),
            lease: Some(Lease {
                claim: claim.cloned(),
                ..self.lease(request, device_request, own_lease)
            }),
            needs_user_check,
            surplus,
        })
    }

    fn lease(
        &self,
        request: &LeaseRequest<'_>,
        device_request: &MemberRequest,
        own_lease: Option<&Lease>,
    ) -> Lease {
        let ticket = own_lease.and_then(|lease| lease.ticket.as_ref());
        Lease {
            boot: self.boot.clone(),
            container: request.container.clone(),
            bundle: request.bundle.to_owned(),
            holder: request.holder.clone(),
            claim: request.claim.cloned(),
            entry_point: request.entry_point.to_owned(),
            since: timestamp::unix_seconds(),
            facts: device_request.facts.clone(),
            ticket: device_request.ticket.as_ref().or(ticket).cloned(),
            moved: moved(
                own_lease.and_then(|lease| lease.moved.as_ref()),
                device_request.moved.as_ref(),
            ),
        }
    }

    /// That nobody else holds a device by another of its names.
    fn check_aliases(
        &self,
        request: &LeaseRequest<'_>,
        device_request: &MemberRequest,
        device: &DeviceId,
    ) -> Result<()> {
        for alias in device_request.aliases.iter().filter(|alias| *alias != device) {
            for slot in self.slots(alias).iter() {
                let is_own = slot.lease().is_some_and(|lease| is_fellow(request, lease));
                if let Some(holder) = slot.describe_holder().filter(|_| !is_own) {
                    let holder = format!("{holder} as {alias}");
                    return Err(in_use_error(&[holder])).with_context(|| device.to_string());
                }
            }
        }
        Ok(())
    }

    /// That nobody may open its nodes for those of another device.
    fn check_nodes(
        &self,
        request: &LeaseRequest<'_>,
        device_request: &MemberRequest,
        device: &DeviceId,
    ) -> Result<()> {
        let nodes = device_request.facts.get(NODES);
        if let Some(opener) = nodes.and_then(|nodes| self.opener(request, device, nodes)) {
            bail!("{device}: its node may be opened by {opener}; stop that first");
        }
        Ok(())
    }

    /// Who may open a device's nodes, which have these numbers, for those of another device. The kernel gives the number of
    /// a node anew when a device has left its driver (`ida_alloc_max` in drivers/vfio/group.c), and the node and the cgroup
    /// of a container stay as they are.
    pub fn opener(
        &self,
        request: &LeaseRequest<'_>,
        device: &DeviceId,
        nodes: &str,
    ) -> Option<String> {
        let has_one = |other_nodes: &str| {
            other_nodes.split(' ').any(|other_node| nodes.split(' ').any(|node| node == other_node))
        };
        let is_other = |other: &&DeviceId| other.class == device.class && *other != device;
        for other in self.slot_numbers.keys().filter(is_other) {
            for lease in self.slots(other).iter().filter_map(Slot::live_lease) {
                let other_nodes = lease.facts.get(NODES);
                if other_nodes.is_some_and(|other_nodes| has_one(other_nodes))
                    && !is_fellow(request, lease)
                {
                    return Some(format!(
                        "{lease}, which was given {other} when that had the number of the node"
                    ));
                }
            }
        }
        None
    }

    /// That no other interface that a container has carries an address that this one is to have. Containers of the same
    /// network namespace share the interface, and with it the address.
    fn check_addresses(&self, device_request: &MemberRequest, device: &DeviceId) -> Result<()> {
        let addresses = device_request.moved.as_ref().map(|moved| &moved.addresses);
        let Some(addresses) = addresses.filter(|addresses| !addresses.is_empty()) else {
            return Ok(());
        };
        let is_other = |other: &&DeviceId| other.class == device.class && *other != device;
        for other in self.slot_numbers.keys().filter(is_other) {
            for slot in self.slots(other).iter() {
                let mut other_addresses =
                    slot.moved_device().into_iter().flat_map(|moved| &moved.addresses);
                if let Some(address) = other_addresses.find(|address| addresses.contains(address)) {
                    bail!(
                        "{device}: the address {address} is that of {other}, which is held by {}; give this one another",
                        slot.describe_holder().unwrap_or_default()
                    );
                }
            }
        }
        Ok(())
    }

    fn none_free(&self, request: &LeaseRequest<'_>, used: &UsedMembers) -> Error {
        let mut holders = BTreeMap::new();
        let mut requests = Vec::new();
        for device_request in pool_requests(request.devices) {
            let is_free = |candidate: &MemberCandidate<'_>| {
                !used.contains_key(&candidate.device())
                    && self.is_free(request, *candidate)
                    && self.check_drain(request, *candidate).is_ok()
            };
            let free = device_request.candidates().filter(is_free).count();
            requests.push(
                device_request
                    .describe(&format!("{free} free of {}", device_request.pool.members.len())),
            );
            holders.extend(
                device_request.candidates().filter_map(|candidate| self.holder(candidate, used)),
            );
        }
        let holders = holders.iter().map(|(name, state)| format!("{name} {state}"));
        none_free_error(&requests, request.numa, &holders.collect::<Vec<_>>())
    }

    /// Who has a member, for people.
    fn holder(
        &self,
        candidate: MemberCandidate<'_>,
        used: &UsedMembers,
    ) -> Option<(DeviceName, String)> {
        let name = candidate.member.name.clone();
        if let Some(user) = used.get(&candidate.device()) {
            return Some((name, format!("is in use by {user}")));
        }
        if let Some(holder) = self.slots(&candidate.device()).iter().find_map(Slot::describe_holder)
        {
            return Some((name, format!("is held by {holder}")));
        }
        let entry = self.drain.find(candidate.device_request.class, name.as_str())?;
        Some((name.clone(), format!("is {entry}")))
    }
}

/// Whether another container of a claim has the device too: then that one may use it.
fn is_shared(slots: &[Slot], own_number: u32, claim: Option<&ClaimUid>) -> bool {
    let is_fellow = |slot: &Slot| {
        slot.number != own_number && claim.is_some_and(|uid| slot.is_held_by_claim(uid))
    };
    slots.iter().any(is_fellow)
}

/// Whether a lease under another name is this container's, or of its claim.
fn is_fellow(request: &LeaseRequest<'_>, lease: &Lease) -> bool {
    let is_of_claim = request.claim.is_some() && request.claim == lease.claim.as_ref();
    is_of_claim || request.is_same_container(lease) || request.owns(lease)
}

/// Where a device is that an earlier start of the container may have had, which was not brought back: it was then what it
/// has to be again, and is with the new start.
fn moved(earlier: Option<&MoveRecord>, now: Option<&MoveRecord>) -> Option<MoveRecord> {
    match (earlier, now) {
        (Some(earlier), Some(now)) if earlier.saved.must_return() => {
            Some(MoveRecord { saved: earlier.saved.merge_later(&now.saved), ..now.clone() })
        }
        (earlier, now) => now.or(earlier).cloned(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

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
            let user = |_: &DeviceId, _: &LeaseSnapshot<'_>| user.map(str::to_owned);
            let claimed = host.leases.claim(&request, &user);
            claimed.map_err(|error| format!("{error:#}"))?;
        }
        Ok(())
    }

    fn claims(host: &Host) -> Vec<Option<String>> {
        let listed = host.leases.list().unwrap().into_iter();
        let claim = |listed: super::super::LeaseEntry| listed.lease.unwrap().claim;
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
        assert!(line.contains("it is held by container two (process 2, "), "{line}");
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
    fn a_container_without_a_claim_shares_with_none() {
        let host = Host::new();
        start(&host, "one", 1, "u1", None).unwrap();
        let line = host.claim("two", &host.start(2, 20)).unwrap_err();
        assert!(line.contains("it is held by container one "), "{line}");
        host.end(1);
        host.claim("two", &host.start(2, 20)).unwrap();
        assert!(start(&host, "three", 3, "u1", None).is_err());
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
            let user = |_: &DeviceId, _: &LeaseSnapshot<'_>| {
                asked.set(asked.get() + 1);
                None
            };
            let claimed = host.leases.claim(&request, &user).is_ok();
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
            let user = |_: &DeviceId, _: &LeaseSnapshot<'_>| user.map(str::to_owned);
            let would = host.leases.would_claim(&request, &user);
            would.map(drop).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(would("one", None), Ok(()));
        assert!(would("one", Some("process 7")).is_err());
        assert_eq!(host.files(), [""; 0]);
        host.claim("one", &host.start(1, 10)).unwrap();
        let line = would("two", None).unwrap_err();
        assert!(line.contains("it is held by container one "), "{line}");
        assert_eq!(would("one", Some("process 7")), Ok(()), "it is its own");
    }

    #[test]
    fn a_claim_says_who_else_has_a_device_and_writes_nothing() {
        let host = Host::new();
        let held = |uid: &str, most| {
            let found = host.leases.held_beside(&[vfio()], most, &uid.parse().unwrap());
            found.unwrap().map(|refusal| refusal.to_string())
        };
        assert_eq!(held("u1", 1), None);
        start(&host, "one", 1, "u1", None).unwrap();
        assert_eq!(held("u1", 1), None);
        assert!(held("u2", 1).unwrap().starts_with("it is held by container one "));
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
        take_beside(host, id, holder, device_request, &|_, _| None)
    }

    /// As [`take`], where some devices are used without a lease.
    fn take_beside(
        host: &Host,
        id: &str,
        holder: Holder,
        device_request: MemberRequest,
        user: UserLookup<'_>,
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
        let would = host.leases.would_claim(&request, user);
        let taken = host.leases.claim(&request, user);
        let text = |result: Result<Vec<DeviceId>>| {
            let names = |devices: Vec<DeviceId>| devices.iter().map(ToString::to_string).collect();
            result.map(names).map_err(|error| format!("{error:#}"))
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
            "2 wanted of pool vfio=fast, which has 1 free of 3; a is held by container one (process 1, ",
            "; b is held by container one (",
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
        let entries = names.iter().map(|name| {
            format!(r#"{{"class":"vfio","name":"{name}","since":0,"reason":"new firmware"}}"#)
        });
        let entries: Vec<String> = entries.collect();
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
            line.starts_with("vfio:0000:81:10.2: its node may be opened by container web (process 1") && line.ends_with(
                ", which was given vfio:0000:81:10.0 when that had the number of the node; stop that first"
            ),
            "{line}"
        );
        // It is its own, and with its end nobody's.
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
            "; b is held by container one (",
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
    fn a_slot_from_when_more_were_allowed_is_not_used_again() {
        let host = Host::new();
        let holder = host.start(1, 10);
        for id in ["one", "two", "three"] {
            take(&host, id, holder.clone(), device_request(1, &["a"], 3)).unwrap();
        }
        host.end(1);
        let taken = take(&host, "four", host.start(2, 10), device_request(1, &["a"], 1));
        assert_eq!(taken.unwrap(), ["vfio:a"]);
        assert!(take(&host, "five", host.start(3, 10), device_request(1, &["a"], 1)).is_err());
    }

    #[test]
    fn a_member_that_somebody_uses_without_a_lease_is_passed_over() {
        let host = Host::new();
        let user = |device: &DeviceId, _: &LeaseSnapshot<'_>| {
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
        let device_requests = [device_request(1, &["a", "b"], 1)];
        let request = LeaseRequest {
            devices: &device_requests,
            numa: Numa::Any,
            container: &"one".parse().unwrap(),
            bundle: &bundle("one"),
            holder: host.start(2, 20),
            token: None,
            claim: None,
            entry_point: "onload-container-runtime",
        };
        let numbers = |device: &DeviceId| match device.name.as_str() {
            "a" => "241:0",
            _ => "241:1",
        };
        let user = |device: &DeviceId, holders: &LeaseSnapshot<'_>| {
            holders.opener(&request, device, numbers(device))
        };
        let given = host.leases.claim(&request, &user).unwrap();
        assert_eq!(given, ["vfio:b".parse().unwrap()]);
    }

    #[test]
    fn a_lease_that_is_not_understood_counts_as_held() {
        let host = Host::new();
        host.file("run/@leases/vfio=a#0", "{");
        let taken = take(&host, "one", host.start(1, 10), device_request(1, &["a", "b"], 1));
        assert_eq!(taken.unwrap(), ["vfio:b"]);
        let line =
            take(&host, "two", host.start(2, 10), device_request(1, &["a", "b"], 1)).unwrap_err();
        assert!(line.contains("a is held by an unknown container"), "{line}");
    }

    #[test]
    fn of_a_long_list_of_holders_a_few_are_named() {
        let host = Host::new();
        let members = ["a", "b", "c", "d", "e"];
        take(&host, "one", host.start(1, 10), device_request(5, &members, 1)).unwrap();
        let line =
            take(&host, "two", host.start(2, 10), device_request(1, &members, 1)).unwrap_err();
        assert!(line.contains("; c is held by container one"), "{line}");
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
        assert!(line.starts_with("vfio:0000:81:10.0: it is held by"), "{line}");
        assert_eq!(host.files().len(), 2, "nothing of the second");
    }

    #[test]
    fn a_device_is_the_container_s_before_it_is_asked_who_uses_it() {
        let host = Host::new();
        let found = RefCell::new(Vec::new());
        let user = |device: &DeviceId, _: &LeaseSnapshot<'_>| {
            let taken = host.claim_all("two", host.start(2, 20), None, &[claimed(device.clone())]);
            found.borrow_mut().push(taken.unwrap_err());
            None
        };
        take_once(&host, "one", &[claimed(vfio())], &user).unwrap();
        take_once(&host, "one", &[device_request(1, &["a"], 1)], &user).unwrap();
        let found = found.into_inner();
        assert_eq!(found.len(), 2);
        assert!(
            found.iter().all(|line| line.contains("it is held by container one ")),
            "{found:?}"
        );
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
        let busy = |_: &DeviceId, _: &LeaseSnapshot<'_>| Some("process 7".to_owned());
        assert!(host.leases.claim(&request, &busy).is_err());
        let kept = host.leases.list().unwrap().remove(0).lease.unwrap();
        assert_eq!(kept.holder, reservation);
        host.leases.claim(&request, &|_, _| None).unwrap();
    }

    #[test]
    fn what_another_took_meanwhile_is_not_given_back() {
        let host = Host::new();
        let user = |device: &DeviceId, _: &LeaseSnapshot<'_>| {
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
    fn what_is_chosen_is_free_for_others_until_it_is_claimed() {
        let host = Host::new();
        let container = "one".parse().unwrap();
        let bundle = bundle("one");
        let request_for = |device_requests| LeaseRequest {
            devices: device_requests,
            numa: Numa::Any,
            container: &container,
            bundle: &bundle,
            holder: Holder::new_reservation(Token::new().unwrap(), None),
            token: None,
            claim: None,
            entry_point: "onload-container-runtime",
        };
        let asked = [device_request(1, &["a", "b"], 1)];
        let chosen = host.leases.choose(&request_for(&asked), &UsedMembers::new()).unwrap();
        assert_eq!(host.files(), [""; 0]);
        take_once(&host, "two", &asked, &|_, _| None).unwrap();
        assert_eq!(host.files(), ["vfio=a#0"]);
        let late = host.leases.claim(&request_for(&chosen), &|_, _| None);
        assert!(matches!(late, Err(LeaseError::NoneFree(_))), "{late:?}");
        let chosen = host.leases.choose(&request_for(&asked), &UsedMembers::new()).unwrap();
        let given = host.leases.claim(&request_for(&chosen), &|_, _| None).unwrap();
        assert_eq!(given, ["vfio:b".parse().unwrap()]);
    }

    /// What a reservation for a container gives, without asking first what it would.
    fn take_once(
        host: &Host,
        id: &str,
        device_requests: &[MemberRequest],
        user: UserLookup<'_>,
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
        let taken = host.leases.claim(&request, user);
        taken.map(drop).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn containers_that_take_at_once_share_no_member() {
        let host = Host::new();
        let members: Vec<String> = (0..16).map(|number| format!("m{number}")).collect();
        let members: Vec<&str> = members.iter().map(String::as_str).collect();
        let holders: Vec<Holder> = (1..=40).map(|pid| host.start(pid, 10)).collect();
        let taken: Vec<Result<Vec<DeviceId>, LeaseError>> = std::thread::scope(|scope| {
            let tries = holders.iter().enumerate().map(|(index, holder)| {
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
                    host.leases.claim(&request, &|_, _| None)
                })
            });
            let tries: Vec<_> = tries.collect();
            tries.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let (given, refused): (Vec<_>, Vec<_>) = taken.into_iter().partition(Result::is_ok);
        let mut given: Vec<DeviceId> = given.into_iter().flat_map(Result::unwrap).collect();
        given.sort();
        given.dedup();
        assert_eq!((given.len(), refused.len()), (16, 24));
        let is_none_free =
            |result: &Result<_, LeaseError>| matches!(result, Err(LeaseError::NoneFree(_)));
        assert!(refused.iter().all(is_none_free));
    }
}
