//! Which of a device's slots a container gets. Nothing is read or written here.

use super::file::{ClaimUid, Holder, Lease};
use super::moved::{Moved, STAYS};
use super::wish::{Claim, Wish};
use onload_sys::error::{Error, Result, error};

/// The reservation that a container was made with is gone.
const EXPIRED: &str = "its reservation has expired, and the device may have been given to another container; let the engine create the container again, or make config.json anew where you start its bundle yourself";

/// How it stands with the holder of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It has ended.
    Over,
    /// It has ended, while the interface that moved to it is not known to be back.
    Returning,
    /// Its first process has ended, while others of its cgroup live. It counts as held, but not for the same container
    /// when that starts again.
    Remains,
    /// It lives, or may live.
    Held,
}

/// Why a file is not understood; its slot counts as held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable {
    pub(crate) why: String,
    /// Whether as much of it is understood as to tell that its holder may live.
    pub(crate) may_live: bool,
}

/// A slot of a device that has a file; a device that has one holder has slot 0 alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Its number, from 0.
    pub(crate) number: u32,
    pub(crate) state: State,
    /// What stands in it.
    pub(crate) read: Result<Lease, Unreadable>,
}

/// Where a lease is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// In a slot that has no file.
    New(u32),
    /// Over the file of a slot whose holder has ended.
    Over(u32),
    Kept(u32),
}

impl Choice {
    pub(crate) fn slot(self) -> u32 {
        let (Choice::New(slot) | Choice::Over(slot) | Choice::Kept(slot)) = self;
        slot
    }
}

impl Slot {
    /// Who has it, for people; none where nobody has.
    pub(crate) fn holder(&self) -> Option<String> {
        match (&self.read, self.state) {
            (_, State::Over) => None,
            (Ok(lease), State::Returning) => Some(format!("{lease} (ended, not back yet)")),
            (Ok(lease), _) => Some(lease.to_string()),
            (Err(Unreadable { why, .. }), _) => Some(format!("an unknown container ({why})")),
        }
    }

    /// Whether a container of this claim has it.
    pub(crate) fn is_held_for(&self, claim: &ClaimUid) -> bool {
        let living = self.living();
        living.is_some_and(|lease| lease.claim.as_ref() == Some(claim))
    }

    /// What a living container of this network namespace has of it.
    pub(crate) fn moved_to(&self, namespace: u64) -> Option<&Moved> {
        self.given().filter(|moved| moved.namespace == namespace)
    }

    /// What a living container has of it.
    pub(crate) fn given(&self) -> Option<&Moved> {
        self.living()?.moved.as_ref()
    }

    /// The lease in it, if it is understood.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.read.as_ref().ok()
    }

    /// The same of a holder that lives, or may live.
    pub(crate) fn living(&self) -> Option<&Lease> {
        let lives = matches!(self.state, State::Remains | State::Held);
        self.lease().filter(|_| lives)
    }
}

/// Who holds a device besides one claim and one network namespace, for people; containers of one claim are one
/// holder.
pub(crate) fn holders_beside(
    found: &[Slot],
    claim: Option<&ClaimUid>,
    namespace: Option<u64>,
) -> Vec<String> {
    let mut claims: Vec<&ClaimUid> = Vec::new();
    let mut holders = Vec::new();
    for slot in found {
        let Some(holder) = slot.holder() else {
            continue;
        };
        if namespace.is_some_and(|namespace| slot.moved_to(namespace).is_some()) {
            continue;
        }
        if let Some(other) = slot.lease().and_then(|lease| lease.claim.as_ref()) {
            if claim == Some(other) || claims.contains(&other) {
                continue;
            }
            claims.push(other);
        }
        holders.push(holder);
    }
    holders
}

/// That a device has all the holders that it may have.
pub fn held(holders: &[String]) -> Error {
    let holders = holders.join(", ");
    error!("it is held by {holders}; \"onload-ctk lease list\" shows all")
}

/// Chooses a slot of a device that is wished for, among those with a file.
pub(crate) fn choose(found: &[Slot], claim: &Claim<'_>, wish: &Wish) -> Result<Choice> {
    let most = wish.pool.share;
    if let Some(own) = own(found, claim) {
        return Ok(Choice::Kept(own.number));
    }
    if claim.token.is_some() {
        return Err(Error::new(EXPIRED));
    }
    let holders = holders_beside(found, claim.claim, namespace(wish));
    // Slots above the last may be left from when more containers were allowed.
    if !joins(found, claim, wish) && holders.len() >= usize::try_from(most).unwrap_or(usize::MAX) {
        return Err(held(&holders));
    }
    let is_over = |slot: &&Slot| slot.number < most && slot.state == State::Over;
    if let Some(over) = found.iter().find(is_over) {
        return Ok(Choice::Over(over.number));
    }
    // A claim has a slot for each of its containers.
    let is_new = |number: &u32| found.iter().all(|slot| slot.number != *number);
    let new = (0..u32::MAX).find(is_new).map(Choice::New);
    new.ok_or_else(|| held(&holders))
}

/// Whether a container has a device already, or those have it that it belongs to.
pub(crate) fn is_holder(found: &[Slot], claim: &Claim<'_>, wish: &Wish) -> bool {
    own(found, claim).is_some_and(|own| own.holder().is_some()) || joins(found, claim, wish)
}

fn own<'s>(found: &'s [Slot], claim: &Claim<'_>) -> Option<&'s Slot> {
    let is_own = |slot: &Slot, lease: &Lease| match slot.state {
        State::Over | State::Held => claim.holds(lease),
        // A runtime has one container of an id and a bundle at a time: what is left is its earlier start's.
        State::Remains => claim.is_same_container(lease),
        State::Returning => false,
    };
    let mut found = found.iter();
    found.find(|slot| slot.lease().is_some_and(|lease| is_own(slot, lease)))
}

/// Whether other containers of its claim or of its network namespace have a device.
fn joins(found: &[Slot], claim: &Claim<'_>, wish: &Wish) -> bool {
    let has_fellow = |of: &ClaimUid| found.iter().any(|slot| slot.is_held_for(of));
    let moved_to = |namespace: u64| found.iter().any(|slot| slot.moved_to(namespace).is_some());
    claim.claim.is_some_and(has_fellow) || namespace(wish).is_some_and(moved_to)
}

fn namespace(wish: &Wish) -> Option<u64> {
    let namespace = wish.moved.as_ref().map(|moved| moved.namespace);
    namespace.filter(|namespace| *namespace != STAYS)
}

/// The slots above the last of a device that `most` containers may have at once, whose holder has ended: nobody
/// is given one of them again. What a container has yet to name stays.
pub(crate) fn leftover(found: &[Slot], most: u32) -> Vec<u32> {
    let is_left = |slot: &&Slot| {
        let of_init = |lease: &Lease| matches!(lease.holder, Holder::Init { .. });
        slot.number >= most && slot.state == State::Over && slot.lease().is_some_and(of_init)
    };
    found
        .iter()
        .filter(is_left)
        .map(|slot| slot.number)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::file::Token;
    use super::super::wish::Numa;
    use super::*;
    use onload_sys::processes::Process;

    fn init(pid: u32) -> Holder {
        let process = Process {
            pid,
            start_time: 7,
            pid_namespace: 1,
        };
        let cgroup = None;
        Holder::Init { process, cgroup }
    }

    fn token(digit: &str) -> Token {
        digit.repeat(32).parse().unwrap()
    }

    fn reserved(digit: &str) -> Holder {
        Holder::Reservation {
            token: token(digit),
            expires_ms: 1,
            maker: None,
        }
    }

    fn lease(container: &str, holder: Holder) -> Lease {
        Lease {
            boot: "b".to_owned(),
            container: container.parse().unwrap(),
            bundle: format!("/bundles/{container}").into(),
            holder,
            claim: None,
            entry_point: "createRuntime".to_owned(),
            since: 0,
            facts: std::collections::BTreeMap::new(),
            ticket: None,
            moved: None,
        }
    }

    fn slot(number: u32, state: State, lease: Lease) -> Slot {
        let read = Ok(lease);
        Slot {
            number,
            state,
            read,
        }
    }

    fn unreadable(why: &str) -> Slot {
        let (why, may_live) = (why.to_owned(), false);
        Slot {
            number: 0,
            state: State::Held,
            read: Err(Unreadable { why, may_live }),
        }
    }

    fn chosen_of(
        found: &[Slot],
        (id, holder): (&str, &Holder),
        (token, of): (Option<&Token>, Option<&ClaimUid>),
        most: u32,
    ) -> Result<Choice> {
        let wish = Wish::of_device("vfio:a".parse().unwrap(), most);
        let bundle = format!("/bundles/{id}");
        let claim = Claim {
            wishes: std::slice::from_ref(&wish),
            numa: Numa::Any,
            container: &id.parse().unwrap(),
            bundle: Path::new(&bundle),
            holder: holder.clone(),
            token,
            claim: of,
            entry_point: "createRuntime",
        };
        choose(found, &claim, &wish)
    }

    /// What container `id`, with this holder and token, is given.
    fn chosen(
        found: &[Slot],
        id: &str,
        holder: &Holder,
        token: Option<&Token>,
        most: u32,
    ) -> Result<Choice> {
        chosen_of(found, (id, holder), (token, None), most)
    }

    /// What a container of a claim is given.
    fn chosen_for(found: &[Slot], id: &str, claim: &str, most: u32) -> Result<Choice> {
        let of = claim.parse().unwrap();
        chosen_of(found, (id, &init(99)), (None, Some(&of)), most)
    }

    fn lease_for(container: &str, pid: u32, claim: &str) -> Lease {
        Lease {
            claim: Some(claim.parse().unwrap()),
            ..lease(container, init(pid))
        }
    }

    #[test]
    fn a_free_device_is_given() {
        assert_eq!(chosen(&[], "a", &init(1), None, 1), Ok(Choice::New(0)));
    }

    #[test]
    fn a_held_device_is_refused_with_its_holder() {
        let found = [slot(0, State::Held, lease("b", init(2)))];
        let line = chosen(&found, "a", &init(1), None, 1)
            .unwrap_err()
            .to_string();
        assert_eq!(
            line,
            "it is held by container b (process 2) since 1970-01-01T00:00:00Z; \"onload-ctk lease list\" shows all"
        );
    }

    #[test]
    fn a_device_whose_holder_has_ended_is_given() {
        let found = [slot(0, State::Over, lease("b", init(2)))];
        assert_eq!(chosen(&found, "a", &init(1), None, 1), Ok(Choice::Over(0)));
    }

    #[test]
    fn what_is_not_understood_counts_as_held() {
        let found = [unreadable("it is of version 9")];
        let line = chosen(&found, "a", &init(1), None, 1)
            .unwrap_err()
            .to_string();
        assert!(
            line.contains("an unknown container (it is of version 9)"),
            "{line}"
        );
    }

    #[test]
    fn the_same_container_with_the_same_init_keeps_it() {
        let found = [slot(0, State::Held, lease("a", init(1)))];
        assert_eq!(chosen(&found, "a", &init(1), None, 1), Ok(Choice::Kept(0)));
    }

    #[test]
    fn what_is_left_of_its_earlier_start_does_not_keep_a_container_from_its_device() {
        let found = [slot(0, State::Remains, lease("a", init(2)))];
        assert_eq!(chosen(&found, "a", &init(1), None, 1), Ok(Choice::Kept(0)));
        assert!(chosen(&found, "b", &init(1), None, 1).is_err());
    }

    #[test]
    fn the_name_of_another_s_container_is_no_key_to_its_device() {
        let mut elsewhere = lease("a", init(1));
        elsewhere.bundle = "/elsewhere/a".into();
        for held in [lease("a", init(2)), elsewhere, lease("a", reserved("1"))] {
            let found = [slot(0, State::Held, held)];
            let refused = chosen(&found, "a", &init(1), None, 1).unwrap_err();
            assert!(refused.to_string().starts_with("it is held by"));
        }
    }

    #[test]
    fn a_reservation_becomes_a_lease_by_its_token_alone() {
        let found = [slot(3, State::Held, lease("a", reserved("1")))];
        let by = |id: &str, digit: &str| chosen(&found, id, &init(1), Some(&token(digit)), 1);
        assert_eq!(by("a", "1"), Ok(Choice::Kept(3)));
        assert_eq!(by("a", "2"), Err(error!("{EXPIRED}")));
        assert_eq!(by("b", "1"), Err(error!("{EXPIRED}")));
    }

    #[test]
    fn a_reservation_that_expired_serves_until_another_takes_the_device() {
        let found = [slot(0, State::Over, lease("a", reserved("1")))];
        let by = |found: &[Slot]| chosen(found, "a", &init(1), Some(&token("1")), 1);
        assert_eq!(by(&found), Ok(Choice::Kept(0)));
        assert_eq!(
            by(&[slot(0, State::Held, lease("b", init(2)))]),
            Err(error!("{EXPIRED}"))
        );
        assert_eq!(by(&[]), Err(error!("{EXPIRED}")));
    }

    #[test]
    fn a_hook_that_runs_twice_finds_its_own_lease_the_second_time() {
        let found = [slot(0, State::Held, lease("a", init(1)))];
        let again = chosen(&found, "a", &init(1), Some(&token("1")), 1);
        assert_eq!(again, Ok(Choice::Kept(0)));
    }

    #[test]
    fn a_shared_device_has_as_many_holders_as_it_may() {
        let held = |number: u32| {
            let id = format!("c{number}");
            slot(number, State::Held, lease(&id, init(100 + number)))
        };
        let found = [held(0), held(2)];
        assert_eq!(chosen(&found, "a", &init(1), None, 3), Ok(Choice::New(1)));
        assert!(chosen(&[held(0), held(1), held(2)], "a", &init(1), None, 3).is_err());
    }

    #[test]
    fn containers_of_one_claim_share_what_one_may_have() {
        let found = [slot(0, State::Held, lease_for("a", 1, "u1"))];
        assert_eq!(chosen_for(&found, "b", "u1", 1), Ok(Choice::New(1)));
        assert!(chosen_for(&found, "b", "u2", 1).is_err());
        assert!(chosen(&found, "b", &init(2), None, 1).is_err());
        let ended = [slot(0, State::Over, lease_for("a", 1, "u1"))];
        assert_eq!(chosen_for(&ended, "b", "u2", 1), Ok(Choice::Over(0)));
    }

    #[test]
    fn a_claim_does_not_join_a_container_without_one_nor_what_is_not_understood() {
        let found = [slot(0, State::Held, lease("a", init(1)))];
        assert!(chosen_for(&found, "b", "u1", 1).is_err());
        assert!(chosen_for(&[unreadable("it is cut short")], "b", "u1", 1).is_err());
    }

    #[test]
    fn a_claim_counts_once_however_many_containers_it_has() {
        let of = |number, claim| {
            let lease = lease_for(&format!("c{number}"), number, claim);
            slot(number, State::Held, lease)
        };
        let found = [of(0, "u1"), of(1, "u1"), of(2, "u1")];
        assert_eq!(chosen_for(&found, "b", "u2", 2), Ok(Choice::New(3)));
        let found = [of(0, "u1"), of(1, "u1"), of(2, "u2")];
        assert!(chosen_for(&found, "b", "u3", 2).is_err());
        assert_eq!(
            holders_beside(&found, Some(&"u1".parse().unwrap()), None).len(),
            1
        );
    }

    #[test]
    fn what_is_above_the_last_slot_and_has_ended_is_left_over() {
        let found = [
            slot(0, State::Over, lease("a", init(1))),
            slot(1, State::Over, lease("b", init(2))),
            slot(2, State::Over, lease("c", reserved("1"))),
            slot(3, State::Held, lease("d", init(4))),
            slot(4, State::Remains, lease("e", init(5))),
            slot(5, State::Over, lease("f", init(6))),
        ];
        assert_eq!(leftover(&found, 1), [1, 5]);
        assert_eq!(leftover(&found, 2), [5]);
        assert!(leftover(&found, 6).is_empty());
    }

    #[test]
    fn holders_from_when_more_were_allowed_count() {
        let found = [
            slot(0, State::Over, lease("b", init(2))),
            slot(4, State::Held, lease("c", init(3))),
        ];
        assert!(chosen(&found, "a", &init(1), None, 1).is_err());
        assert_eq!(chosen(&found, "a", &init(1), None, 2), Ok(Choice::Over(0)));
    }
}
