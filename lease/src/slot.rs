//! Chooses the slot of a device in which a container's lease is written. Does no I/O.
//!
//! Every container that uses a device has a lease file in one of the device's slots. Containers of the
//! same ResourceClaim have a slot each but count as one holder, and so do containers in the network
//! namespace that the device moved to.

use super::file::{Holder, Lease};
use super::move_record::{MoveRecord, NOT_MOVED};
use super::request::{LeaseRequest, MemberRequest};
use onload_core::claim_uid::ClaimUid;
use onload_core::device_id::DeviceId;
use onload_sys::error::{Error, Result, error};

const RESERVATION_EXPIRED: &str = "its reservation has expired, so another container may have the \
    device; let the engine create the container again, or regenerate config.json if you start the \
    bundle yourself";

/// Whether the holder of a lease still uses the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderState {
    /// The container has exited, or its reservation is no longer valid. The slot can be reused.
    Ended,
    /// The device was moved into the container or configured for it, and must be restored before it
    /// can be leased again.
    Returning,
    /// The container's init process has exited, but other processes in its cgroup may still be running.
    /// Only a restart of the same container can reuse the slot. Also the state of an unreadable lease whose holder has
    /// ended or is unknown: an operator can release the device.
    InitExited,
    /// The container is running or being created, or its state could not be determined.
    Alive,
}

/// A lease file in one of a device's slots, with the state of its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseEntry {
    pub device: DeviceId,
    /// The number of the slot, from 0.
    pub number: u32,
    pub state: HolderState,
    /// The lease, or why its file could not be read or parsed. Such a slot counts as in use.
    pub lease: Result<Lease, String>,
}

/// The slot in which a lease is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotChoice {
    /// A slot that has no file.
    Create(u32),
    /// A slot whose holder has ended.
    TakeOver(u32),
    /// The slot that the container already has.
    Keep(u32),
}

impl SlotChoice {
    pub(crate) fn number(self) -> u32 {
        match self {
            SlotChoice::Create(number)
            | SlotChoice::TakeOver(number)
            | SlotChoice::Keep(number) => number,
        }
    }
}

impl LeaseEntry {
    /// Returns whether the holder has ended, and the device needs no restoring.
    pub fn has_ended(&self) -> bool {
        self.state == HolderState::Ended
    }

    /// Returns whether the holder has ended, and the device must still be restored.
    pub fn is_returning(&self) -> bool {
        self.state == HolderState::Returning
    }

    /// Describes the holder for messages. Returns `None` if the holder has ended.
    pub(crate) fn describe_holder(&self) -> Option<String> {
        match (&self.lease, self.state) {
            (_, HolderState::Ended) => None,
            (Err(reason), _) => Some(format!("an unknown container ({reason})")),
            (Ok(lease), HolderState::Returning) => Some(format!("{lease} (ended, not back yet)")),
            (Ok(lease), HolderState::InitExited | HolderState::Alive) => Some(lease.to_string()),
        }
    }

    /// Returns the lease, if its file could be parsed.
    pub(crate) fn parsed(&self) -> Option<&Lease> {
        self.lease.as_ref().ok()
    }

    /// Returns the lease of a container that still uses the device.
    pub(crate) fn live_lease(&self) -> Option<&Lease> {
        match self.state {
            HolderState::Ended | HolderState::Returning => None,
            HolderState::InitExited | HolderState::Alive => self.parsed(),
        }
    }

    /// Returns the record of the device's move, if its container still uses it.
    pub(crate) fn moved_device(&self) -> Option<&MoveRecord> {
        self.live_lease()?.moved.as_ref()
    }

    /// Like [`LeaseEntry::moved_device`], but only for the given network namespace.
    pub(crate) fn moved_device_in(&self, namespace: u64) -> Option<&MoveRecord> {
        self.moved_device().filter(|moved| moved.namespace == namespace)
    }

    /// Returns whether a container of this ResourceClaim still uses the device.
    pub(crate) fn is_held_by_claim(&self, claim: &ClaimUid) -> bool {
        self.live_lease().is_some_and(|lease| lease.claim.as_ref() == Some(claim))
    }
}

/// Chooses the slot for a container's lease of one device.
///
/// Fails if as many holders as the pool allows already have the device, or if the request names a
/// reservation that no longer exists.
pub(crate) fn choose_slot(
    slots: &[LeaseEntry],
    request: &LeaseRequest<'_>,
    device: &MemberRequest,
) -> Result<SlotChoice> {
    if let Some(slot) = find_own_slot(slots, request) {
        return Ok(SlotChoice::Keep(slot.number));
    }
    if request.token.is_some() {
        return Err(Error::new(RESERVATION_EXPIRED));
    }
    let share = device.pool.share;
    let holders = other_holders(slots, request.claim);
    // Holders in slots numbered `share` or higher count too: the operator may have lowered `share`.
    if holders.len() as u64 >= u64::from(share) && !may_share(slots, request, device) {
        return Err(in_use_error(&holders));
    }
    let reusable =
        slots.iter().find(|slot| slot.number < share && slot.state == HolderState::Ended);
    if let Some(slot) = reusable {
        return Ok(SlotChoice::TakeOver(slot.number));
    }
    // The number can exceed `share`, since every container of a ResourceClaim has its own slot.
    (0..u32::MAX)
        .find(|number| slots.iter().all(|slot| slot.number != *number))
        .map(SlotChoice::Create)
        .ok_or_else(|| in_use_error(&holders))
}

/// Returns whether the container already has the device, or may share it with a current holder.
pub(crate) fn already_holds(
    slots: &[LeaseEntry],
    request: &LeaseRequest<'_>,
    device: &MemberRequest,
) -> bool {
    find_own_slot(slots, request).is_some_and(|slot| slot.state != HolderState::Ended)
        || may_share(slots, request, device)
}

/// Describes the holders of a device. Containers of the same ResourceClaim are described once, and those
/// of `claim` only if the device must be restored before it can be leased again.
pub(crate) fn other_holders(slots: &[LeaseEntry], claim: Option<&ClaimUid>) -> Vec<String> {
    let mut seen_claims = Vec::new();
    let mut holders = Vec::new();
    for slot in slots {
        let Some(holder) = slot.describe_holder() else {
            continue;
        };
        if let Some(slot_claim) = slot.parsed().and_then(|lease| lease.claim.as_ref()) {
            let is_own = Some(slot_claim) == claim && slot.state != HolderState::Returning;
            if is_own || seen_claims.contains(&slot_claim) {
                continue;
            }
            seen_claims.push(slot_claim);
        }
        holders.push(holder);
    }
    holders
}

/// Returns the slots numbered `share` or higher whose container has exited. They are never reused, so
/// their files can be removed. Expired reservations are kept, because their containers can still use
/// them.
pub(crate) fn surplus_slots(slots: &[LeaseEntry], share: u32) -> Vec<u32> {
    slots
        .iter()
        .filter(|slot| slot.number >= share && slot.state == HolderState::Ended)
        .filter(|slot| {
            slot.parsed().is_some_and(|lease| matches!(lease.holder, Holder::Init { .. }))
        })
        .map(|slot| slot.number)
        .collect()
}

/// Returns the error for a device that has as many holders as it may have.
pub fn in_use_error(holders: &[String]) -> Error {
    let holders = holders.join(", ");
    error!("in use by {holders}; \"onload-ctk lease list\" shows all")
}

/// Finds the slot that the container already has.
fn find_own_slot<'a>(
    slots: &'a [LeaseEntry],
    request: &LeaseRequest<'_>,
) -> Option<&'a LeaseEntry> {
    slots.iter().find(|slot| {
        let Some(lease) = slot.parsed() else {
            return false;
        };
        match slot.state {
            // A container can use an expired reservation until another container replaces it.
            HolderState::Ended | HolderState::Alive => request.owns(lease),
            // A runtime has at most one container with this ID and bundle, so an earlier start of the
            // container left these processes.
            HolderState::InitExited => request.is_same_container(lease),
            HolderState::Returning => false,
        }
    })
}

/// Returns whether the container may share the device with a current holder: one of its ResourceClaim,
/// or one in the network namespace that the device moves to.
fn may_share(slots: &[LeaseEntry], request: &LeaseRequest<'_>, device: &MemberRequest) -> bool {
    let namespace = device
        .moved
        .as_ref()
        .map(|moved| moved.namespace)
        .filter(|namespace| *namespace != NOT_MOVED);
    slots.iter().any(|slot| {
        request.claim.is_some_and(|claim| slot.is_held_by_claim(claim))
            || namespace.is_some_and(|namespace| slot.moved_device_in(namespace).is_some())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use serde_json::json;

    use super::HolderState::{Alive, Ended, InitExited, Returning};
    use super::SlotChoice::{Create, Keep, TakeOver};
    use super::*;
    use onload_core::pool::Numa;
    use onload_core::token::Token;
    use onload_sys::processes::ProcessId;

    /// A container that requests a device, or has a slot of it.
    #[derive(Clone, Copy)]
    struct Container {
        id: &'static str,
        pid: u32,
        /// The token of its reservation is this digit, repeated.
        token: Option<char>,
        claim: Option<&'static str>,
        namespace: Option<u64>,
    }

    const A: Container = container("a", 1);
    const B: Container = container("b", 2);
    const C: Container = container("c", 3);
    const D: Container = container("d", 4);

    const fn container(id: &'static str, pid: u32) -> Container {
        Container { id, pid, token: None, claim: None, namespace: None }
    }

    impl Container {
        fn with_token(mut self, digit: char) -> Self {
            self.token = Some(digit);
            self
        }

        fn with_claim(mut self, uid: &'static str) -> Self {
            self.claim = Some(uid);
            self
        }

        fn in_namespace(mut self, namespace: u64) -> Self {
            self.namespace = Some(namespace);
            self
        }

        fn bundle(self) -> PathBuf {
            format!("/bundles/{}", self.id).into()
        }

        fn token(self) -> Option<Token> {
            self.token.map(|digit| digit.to_string().repeat(32).parse().unwrap())
        }

        fn claim_uid(self) -> Option<ClaimUid> {
            self.claim.map(|uid| uid.parse().unwrap())
        }

        fn moved(self) -> Option<MoveRecord> {
            let rdma = json!({"name": "m0", "pci": "0000:03:02.3", "index": 3});
            self.namespace.map(|namespace| {
                serde_json::from_value(json!({"rdma": rdma, "namespace": namespace})).unwrap()
            })
        }

        fn holder(self) -> Holder {
            Holder::Init {
                process: ProcessId { pid: self.pid, start_time: 7, pid_namespace: 1 },
                cgroup: None,
            }
        }

        fn lease(self) -> Lease {
            Lease {
                boot: "b".to_owned(),
                container: self.id.parse().unwrap(),
                bundle: self.bundle(),
                holder: self.holder(),
                claim: self.claim_uid(),
                entry_point: "createRuntime".to_owned(),
                since: 0,
                facts: BTreeMap::new(),
                ticket: None,
                moved: self.moved(),
            }
        }

        /// Returns a slot with the container's lease.
        fn slot(self, number: u32, state: HolderState) -> LeaseEntry {
            slot(number, state, self.lease())
        }

        /// Returns a slot with a reservation for the container.
        fn reserved_slot(self, number: u32, state: HolderState) -> LeaseEntry {
            let mut lease = self.lease();
            lease.holder =
                Holder::Reservation { token: self.token().unwrap(), expires_ms: 1, maker: None };
            slot(number, state, lease)
        }

        fn try_choose(self, slots: &[LeaseEntry], share: u32) -> Result<SlotChoice> {
            let device = MemberRequest {
                moved: self.moved(),
                ..MemberRequest::for_device("rdma:m0".parse().unwrap(), share)
            };
            let (token, claim) = (self.token(), self.claim_uid());
            let request = LeaseRequest {
                devices: std::slice::from_ref(&device),
                numa: Numa::Any,
                container: &self.id.parse().unwrap(),
                bundle: &self.bundle(),
                holder: self.holder(),
                token: token.as_ref(),
                claim: claim.as_ref(),
                entry_point: "createRuntime",
            };
            choose_slot(slots, &request, &device)
        }

        /// Returns the slot that the container gets, or `None` if the device is in use.
        fn choose(self, slots: &[LeaseEntry], share: u32) -> Option<SlotChoice> {
            let chosen = self.try_choose(slots, share);
            if let Err(error) = &chosen {
                assert!(error.to_string().starts_with("in use by "), "{error}");
            }
            chosen.ok()
        }
    }

    fn slot(number: u32, state: HolderState, lease: Lease) -> LeaseEntry {
        LeaseEntry { device: "rdma:m0".parse().unwrap(), number, state, lease: Ok(lease) }
    }

    fn unreadable_slot() -> LeaseEntry {
        LeaseEntry {
            device: "rdma:m0".parse().unwrap(),
            number: 0,
            state: InitExited,
            lease: Err("it is of version 9".to_owned()),
        }
    }

    #[test]
    fn takes_a_free_slot_of_an_exclusive_device() {
        assert_eq!(A.choose(&[], 1), Some(Create(0)));
        assert_eq!(A.choose(&[B.slot(0, Ended)], 1), Some(TakeOver(0)));
        for state in [Alive, InitExited, Returning] {
            assert_eq!(A.choose(&[B.slot(0, state)], 1), None, "{state:?}");
        }
        assert_eq!(A.choose(&[unreadable_slot()], 1), None);
    }

    #[test]
    fn keeps_the_slot_of_the_same_container() {
        let earlier_start = container("a", 9).slot(0, InitExited);
        assert_eq!(A.choose(&[A.slot(0, Alive)], 1), Some(Keep(0)));
        assert_eq!(A.choose(&[earlier_start], 1), Some(Keep(0)));
        assert_eq!(A.choose(&[A.slot(0, Returning)], 1), None);
    }

    #[test]
    fn a_container_with_the_same_id_does_not_get_the_slot() {
        let other_process = container("a", 9).slot(0, Alive);
        let other_bundle = Lease { bundle: "/elsewhere/a".into(), ..A.lease() };
        let reserved = A.with_token('1').reserved_slot(0, Alive);
        for held in [other_process, slot(0, Alive, other_bundle), reserved] {
            assert_eq!(A.choose(&[held], 1), None);
        }
    }

    #[test]
    fn names_the_holder_of_a_device_in_use() {
        let refusal = |slot| A.try_choose(&[slot], 1).unwrap_err().to_string();
        assert_eq!(
            refusal(B.slot(0, Alive)),
            "in use by container b (process 2) since 1970-01-01T00:00:00Z; \"onload-ctk lease \
             list\" shows all"
        );
        let line = refusal(unreadable_slot());
        assert!(line.contains("an unknown container (it is of version 9)"), "{line}");
    }

    #[test]
    fn accepts_a_reservation_until_another_container_replaces_it() {
        let container = A.with_token('1');
        let reserved = |state| [container.reserved_slot(3, state)];
        assert_eq!(container.try_choose(&reserved(Alive), 1), Ok(Keep(3)));
        assert_eq!(container.try_choose(&reserved(Ended), 1), Ok(Keep(3)));
        // The hook runs a second time.
        assert_eq!(container.try_choose(&[A.slot(0, Alive)], 1), Ok(Keep(0)));
        for (container, slots) in [
            (A.with_token('2'), &reserved(Alive)[..]),
            (B.with_token('1'), &reserved(Alive)),
            (container, &[B.slot(0, Alive)]),
            (container, &[]),
        ] {
            let refused = Err(Error::new(RESERVATION_EXPIRED));
            assert_eq!(container.try_choose(slots, 1), refused, "{slots:?}");
        }
    }

    #[test]
    fn limits_the_holders_of_a_shared_device() {
        let [b, c, d] = [B.slot(0, Alive), C.slot(1, Alive), D.slot(2, Alive)];
        assert_eq!(A.choose(&[b.clone(), d.clone()], 3), Some(Create(1)));
        assert_eq!(A.choose(&[b, c, d], 3), None);
    }

    #[test]
    fn counts_slots_above_a_lowered_share_but_does_not_reuse_them() {
        let slots = [B.slot(0, Ended), C.slot(4, Alive)];
        assert_eq!(A.choose(&slots, 1), None);
        assert_eq!(A.choose(&slots, 2), Some(TakeOver(0)));
        assert_eq!(A.choose(&[B.slot(4, Ended)], 1), Some(Create(0)));
    }

    #[test]
    fn shares_a_device_within_a_claim() {
        let held = [A.with_claim("u1").slot(0, Alive)];
        assert_eq!(B.with_claim("u1").choose(&held, 1), Some(Create(1)));
        assert_eq!(B.with_claim("u2").choose(&held, 1), None);
        assert_eq!(B.choose(&held, 1), None);
        let ended = [A.with_claim("u1").slot(0, Ended)];
        assert_eq!(B.with_claim("u2").choose(&ended, 1), Some(TakeOver(0)));
        for held_without_claim in [A.slot(0, Alive), unreadable_slot()] {
            assert_eq!(B.with_claim("u1").choose(&[held_without_claim], 1), None);
        }
    }

    #[test]
    fn a_claim_does_not_share_a_device_that_must_be_restored_first() {
        let returning = [A.with_claim("u1").slot(0, Returning)];
        assert_eq!(B.with_claim("u1").choose(&returning, 1), None);
        assert_eq!(A.with_claim("u1").choose(&returning, 1), None);
        let shared = [A.with_claim("u1").slot(0, Returning), B.with_claim("u1").slot(1, Alive)];
        assert_eq!(C.with_claim("u1").choose(&shared, 1), Some(Create(2)));
    }

    #[test]
    fn counts_a_claim_as_one_holder() {
        let slots = |third| {
            [A.with_claim("u1"), B.with_claim("u1"), C.with_claim(third)]
                .map(|container| container.slot(container.pid - 1, Alive))
        };
        assert_eq!(D.with_claim("u2").choose(&slots("u1"), 2), Some(Create(3)));
        assert_eq!(D.with_claim("u3").choose(&slots("u2"), 2), None);
        let others = other_holders(&slots("u2"), Some(&"u1".parse().unwrap()));
        assert_eq!(others.len(), 1);
    }

    #[test]
    fn shares_a_moved_device_within_a_network_namespace() {
        let moved = |state| [A.in_namespace(7).slot(0, state)];
        assert_eq!(B.in_namespace(7).choose(&moved(Alive), 1), Some(Create(1)));
        assert_eq!(B.in_namespace(8).choose(&moved(Alive), 1), None);
        assert_eq!(B.in_namespace(7).choose(&moved(Returning), 1), None);
        let on_host = [A.in_namespace(NOT_MOVED).slot(0, Alive)];
        assert_eq!(B.in_namespace(NOT_MOVED).choose(&on_host, 1), None);
    }

    #[test]
    fn lists_surplus_slots() {
        let slots = [
            A.slot(0, Ended),
            B.slot(1, Ended),
            C.with_token('1').reserved_slot(2, Ended),
            D.slot(3, Alive),
            D.slot(4, InitExited),
            D.slot(5, Ended),
        ];
        assert_eq!(surplus_slots(&slots, 1), [1, 5]);
        assert_eq!(surplus_slots(&slots, 2), [5]);
        assert!(surplus_slots(&slots, 6).is_empty());
    }
}
