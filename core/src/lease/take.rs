//! Members of pools for one container, chosen and claimed under one lock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use onload_cdi::DeviceName;

use super::choice::{Choice, Slot, State};
use super::file::{Device, Holder, Lease};
use super::pick::{Candidate, Numa, Wish, none_free, pick};
use super::store::{LeaseError, Leases};
use crate::class::Class;
use crate::container_id::ContainerId;
use crate::timestamp;
use onload_sys::error::{Error, Result};

/// Members of pools that a container wants.
#[derive(Clone, Debug)]
pub struct Taking<'a> {
    pub wishes: &'a [Wish],
    /// The NUMA node that all come from.
    pub numa: Numa,
    pub container: &'a ContainerId,
    /// Its bundle, without symbolic links.
    pub bundle: &'a Path,
    pub holder: Holder,
    pub entry_point: &'a str,
}

/// Who uses which members without a lease.
type Used = BTreeMap<Device, String>;

/// The slots with a file, by device, of the classes that are wanted.
type Slots = BTreeMap<(Class, DeviceName), Vec<u32>>;

impl Leases {
    /// Gives a container free members of pools, all or none of them ([`LeaseError::NoneFree`]). `user` tells who uses a
    /// device without a lease; such a member is given back, and another taken. It is asked without the lock, since the
    /// answer may take its time.
    pub fn take(
        &self,
        taking: &Taking<'_>,
        user: &dyn Fn(&Device) -> Option<String>,
        patience: Duration,
    ) -> Result<Vec<Device>, LeaseError> {
        let mut used = Used::new();
        loop {
            let taken = self.take_beside(taking, &used, patience)?;
            let found = taken
                .iter()
                .find_map(|(device, _)| Some((device, user(device)?)));
            let Some((device, by)) = found else {
                return Ok(taken.into_iter().map(|(device, _)| device).collect());
            };
            used.insert(device.clone(), by);
            let _lock = self.lock(patience)?;
            self.undo(&taken);
        }
    }

    /// Claims members that are free, but for those that are known to be used.
    fn take_beside(
        &self,
        taking: &Taking<'_>,
        used: &Used,
        patience: Duration,
    ) -> Result<Vec<(Device, u32)>, LeaseError> {
        let boot = self.boot()?;
        let _lock = self.lock(patience)?;
        let members = Members::read(self, taking.wishes, boot, used)?;
        let mut taken: Vec<(Device, u32)> = Vec::new();
        for (candidate, choice) in members.pick(taking).map_err(LeaseError::NoneFree)? {
            let device = candidate.device();
            let lease = members.lease(taking, candidate.wish);
            if let Err(error) = self.publish(&device, choice, &lease) {
                self.undo(&taken);
                return Err(error.into());
            }
            taken.push((device, choice.slot()));
        }
        Ok(taken)
    }

    fn undo(&self, taken: &[(Device, u32)]) {
        for (device, slot) in taken {
            // Where that fails, the lease ends with its holder.
            let _ = self.remove(device, *slot);
        }
    }

    /// What [`Leases::take`] would give now; nothing is written.
    pub fn would_take(
        &self,
        taking: &Taking<'_>,
        user: &dyn Fn(&Device) -> Option<String>,
    ) -> Result<Vec<Device>> {
        let boot = self.boot()?;
        let mut used = Used::new();
        loop {
            let members = Members::read(self, taking.wishes, boot.clone(), &used)?;
            let picked = members.pick(taking)?;
            let picked: Vec<Device> = picked.into_iter().map(|(one, _)| one.device()).collect();
            let found = picked
                .iter()
                .find_map(|device| Some((device.clone(), user(device)?)));
            match found {
                Some((device, by)) => used.insert(device, by),
                None => return Ok(picked),
            };
        }
    }
}

/// The members that a container would get if nobody held a lease: for a user who cannot see leases.
pub fn take_unleased(
    wishes: &[Wish],
    numa: Numa,
    user: &dyn Fn(&Device) -> Option<String>,
) -> Result<Vec<Device>> {
    let picked = pick(wishes, numa, &mut |one| user(&one.device()).is_none());
    let Some(picked) = picked else {
        let wanted = wishes.iter();
        let wanted = wanted.map(|wish| wish.about("too few that are not in use"));
        return Err(none_free(&wanted.collect::<Vec<_>>(), numa, &[]));
    };
    Ok(picked.into_iter().map(Candidate::device).collect())
}

/// The members of the wanted pools, and who holds them.
struct Members<'a> {
    leases: &'a Leases,
    boot: String,
    slots: Slots,
    /// What stands in the slots of those that had to be looked at.
    judged: RefCell<BTreeMap<Device, Rc<[Slot]>>>,
    used: &'a Used,
}

impl<'a> Members<'a> {
    fn read(leases: &'a Leases, wishes: &[Wish], boot: String, used: &'a Used) -> Result<Self> {
        let mut slots = Slots::new();
        for name in leases.names()? {
            let Some((device, slot)) = Device::of_file_name(&name) else {
                continue;
            };
            if wishes.iter().any(|wish| wish.class == device.class) {
                let key = (device.class, device.name);
                slots.entry(key).or_default().push(slot);
            }
        }
        Ok(Members {
            leases,
            boot,
            slots,
            judged: RefCell::default(),
            used,
        })
    }

    /// The members to give, and the slot of each.
    fn pick<'w>(&self, taking: &Taking<'w>) -> Result<Vec<(Candidate<'w>, Choice)>> {
        let picked = pick(taking.wishes, taking.numa, &mut |one| self.has_slot(one))
            .or_else(|| pick(taking.wishes, taking.numa, &mut |one| self.is_free(one)));
        let choices = picked.and_then(|picked| {
            let choices = picked.into_iter().map(|one| Some((one, self.choice(one)?)));
            choices.collect::<Option<Vec<_>>>()
        });
        choices.ok_or_else(|| self.none_free(taking))
    }

    fn is_used(&self, candidate: Candidate<'_>) -> bool {
        !self.used.is_empty() && self.used.contains_key(&candidate.device())
    }

    fn slots(&self, candidate: Candidate<'_>) -> &[u32] {
        let key = (candidate.wish.class, candidate.member.name.clone());
        self.slots.get(&key).map_or(&[], Vec::as_slice)
    }

    /// Whether a member has a slot without a file: then nobody has to be judged.
    fn has_slot(&self, candidate: Candidate<'_>) -> bool {
        let held = self.slots(candidate).len();
        held < share(candidate) && !self.is_used(candidate)
    }

    /// Whether a member has a slot without a file, or one whose holder has ended.
    fn is_free(&self, candidate: Candidate<'_>) -> bool {
        self.has_slot(candidate)
            || !self.is_used(candidate) && self.living(candidate) < share(candidate)
    }

    /// How many hold a member.
    fn living(&self, candidate: Candidate<'_>) -> usize {
        let judged = self.judge(candidate);
        let is_over = |slot: &&Slot| matches!(slot.state, State::Over(_));
        judged.len() - judged.iter().filter(is_over).count()
    }

    fn judge(&self, candidate: Candidate<'_>) -> Rc<[Slot]> {
        let device = candidate.device();
        if let Some(judged) = self.judged.borrow().get(&device) {
            return Rc::clone(judged);
        }
        let numbers = self.slots(candidate).iter();
        let state = |number: &u32| {
            let state = self.leases.state(&device.file_name(*number), &self.boot);
            state.map(|state| Slot {
                number: *number,
                state,
            })
        };
        let judged: Rc<[Slot]> = numbers.filter_map(state).collect();
        let kept = Rc::clone(&judged);
        self.judged.borrow_mut().insert(device, kept);
        judged
    }

    /// Where the lease of a picked member is written.
    fn choice(&self, candidate: Candidate<'_>) -> Option<Choice> {
        let slots = self.slots(candidate);
        let most = candidate.wish.pool.share;
        let is_new = |number: &u32| !slots.contains(number);
        let new = || (0..most).find(is_new).map(Choice::New);
        if self.has_slot(candidate) {
            return new();
        }
        // A slot above the last may be left from when more containers were allowed.
        let judged = self.judge(candidate);
        let over = |slot: &&Slot| slot.number < most && matches!(slot.state, State::Over(_));
        let over = judged.iter().find(over);
        over.map(|slot| Choice::Over(slot.number)).or_else(new)
    }

    fn lease(&self, taking: &Taking<'_>, wish: &Wish) -> Lease {
        Lease {
            boot: self.boot.clone(),
            container: taking.container.clone(),
            bundle: taking.bundle.to_owned(),
            holder: taking.holder.clone(),
            claim: None,
            entry_point: taking.entry_point.to_owned(),
            since: timestamp::now(),
            facts: BTreeMap::from([("pool".to_owned(), wish.name.to_string())]),
            // A ticket names devices, and no pool.
            ticket: None,
            moved: None,
        }
    }

    fn none_free(&self, taking: &Taking<'_>) -> Error {
        let mut holders = BTreeMap::new();
        let mut wanted = Vec::new();
        for wish in taking.wishes {
            let members = wish.pool.members.iter();
            let candidates: Vec<_> = members.map(|member| Candidate { wish, member }).collect();
            let free = candidates.iter().filter(|one| self.is_free(**one)).count();
            wanted.push(wish.about(&format!("{free} free of {}", wish.pool.members.len())));
            for candidate in candidates {
                holders.extend(self.holder(candidate));
            }
        }
        let holders = holders.iter().map(|(name, by)| format!("{name} {by}"));
        none_free(&wanted, taking.numa, &holders.collect::<Vec<_>>())
    }

    /// Who has a member, for people.
    fn holder(&self, candidate: Candidate<'_>) -> Option<(DeviceName, String)> {
        let name = candidate.member.name.clone();
        if let Some(user) = self.used.get(&candidate.device()) {
            return Some((name, format!("is in use by {user}")));
        }
        let judged = self.judge(candidate);
        let by = judged.iter().find_map(Slot::holder)?;
        Some((name, format!("is held by {by}")))
    }
}

fn share(candidate: Candidate<'_>) -> usize {
    usize::try_from(candidate.wish.pool.share).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::test_host::{Host, PATIENCE, bundle};
    use super::*;
    use crate::pool::{Member, Pool};

    /// `count` members of the pool `fast` of class vfio.
    fn wish(count: u32, members: &[&str], share: u32) -> Wish {
        let member = |name: &&str| Member {
            name: (*name).try_into().unwrap(),
            numa_node: None,
        };
        Wish {
            class: Class::Vfio,
            name: "fast".try_into().unwrap(),
            count,
            pool: Pool {
                members: members.iter().map(member).collect(),
                share,
            },
        }
    }

    fn take(host: &Host, id: &str, holder: Holder, wish: Wish) -> Result<Vec<String>, String> {
        take_beside(host, id, holder, wish, &|_| None)
    }

    /// As [`take`], where some devices are used without a lease.
    fn take_beside(
        host: &Host,
        id: &str,
        holder: Holder,
        wish: Wish,
        user: &dyn Fn(&Device) -> Option<String>,
    ) -> Result<Vec<String>, String> {
        let taking = Taking {
            wishes: &[wish],
            numa: Numa::Any,
            container: &id.parse().unwrap(),
            bundle: &bundle(id),
            holder,
            entry_point: "onload-container-runtime",
        };
        let would = host.leases.would_take(&taking, user);
        let taken = host.leases.take(&taking, user, PATIENCE);
        let text = |result: Result<Vec<Device>>| {
            let names = |devices: Vec<Device>| devices.iter().map(ToString::to_string).collect();
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
        let two = wish(2, &["a", "b", "c"], 1);
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
        assert_eq!(
            host.files(),
            ["vfio=a#0", "vfio=b#0"],
            "nothing of the second"
        );
        let one = wish(1, &["a", "b", "c"], 1);
        assert_eq!(take(&host, "two", holder(2), one).unwrap(), ["vfio:c"]);
    }

    #[test]
    fn members_of_holders_that_ended_are_taken_over_when_no_other_is_left() {
        let host = Host::new();
        let one = || wish(1, &["a", "b"], 1);
        assert_eq!(
            take(&host, "one", host.start(1, 10), one()).unwrap(),
            ["vfio:a"]
        );
        host.end(1);
        assert_eq!(
            take(&host, "two", host.start(2, 10), one()).unwrap(),
            ["vfio:b"]
        );
        assert_eq!(
            take(&host, "three", host.start(3, 10), one()).unwrap(),
            ["vfio:a"]
        );
        assert!(take(&host, "four", host.start(4, 10), one()).is_err());
        assert_eq!(host.files().len(), 2);
    }

    #[test]
    fn a_shared_member_is_given_as_often_as_its_pool_says() {
        let host = Host::new();
        let one = || wish(1, &["a", "b"], 2);
        let taken: Vec<String> = (1..=4)
            .map(|pid| take(&host, &format!("c{pid}"), host.start(pid, 10), one()).unwrap())
            .map(|taken| taken[0].clone())
            .collect();
        assert_eq!(taken, ["vfio:a", "vfio:a", "vfio:b", "vfio:b"]);
        assert!(take(&host, "c5", host.start(5, 10), one()).is_err());
        host.end(2);
        assert_eq!(
            take(&host, "c5", host.start(5, 10), one()).unwrap(),
            ["vfio:a"]
        );
        assert_eq!(
            host.files(),
            ["vfio=a#0", "vfio=a#1", "vfio=b#0", "vfio=b#1"]
        );
    }

    #[test]
    fn a_slot_from_when_more_were_allowed_is_not_used_again() {
        let host = Host::new();
        let holder = host.start(1, 10);
        for id in ["one", "two", "three"] {
            take(&host, id, holder.clone(), wish(1, &["a"], 3)).unwrap();
        }
        host.end(1);
        let taken = take(&host, "four", host.start(2, 10), wish(1, &["a"], 1));
        assert_eq!(taken.unwrap(), ["vfio:a"]);
        assert!(take(&host, "five", host.start(3, 10), wish(1, &["a"], 1)).is_err());
    }

    #[test]
    fn a_member_that_somebody_uses_without_a_lease_is_passed_over() {
        let host = Host::new();
        let user = |device: &Device| {
            let is_used = device.name.as_str() != "c";
            is_used.then(|| "process 7 (\"qemu\")".to_owned())
        };
        let take = |id: &str, pid| {
            let one = wish(1, &["a", "b", "c"], 1);
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
    fn a_lease_that_is_not_understood_counts_as_held() {
        let host = Host::new();
        host.file("run/@leases/vfio=a#0", "{");
        let taken = take(&host, "one", host.start(1, 10), wish(1, &["a", "b"], 1));
        assert_eq!(taken.unwrap(), ["vfio:b"]);
        let line = take(&host, "two", host.start(2, 10), wish(1, &["a", "b"], 1)).unwrap_err();
        assert!(line.contains("a is held by an unknown container"), "{line}");
    }

    #[test]
    fn of_a_long_list_of_holders_a_few_are_named() {
        let host = Host::new();
        let members = ["a", "b", "c", "d", "e"];
        take(&host, "one", host.start(1, 10), wish(5, &members, 1)).unwrap();
        let line = take(&host, "two", host.start(2, 10), wish(1, &members, 1)).unwrap_err();
        assert!(line.contains("; c is held by container one"), "{line}");
        assert!(
            line.contains("; 2 more are held; \"onload-ctk lease list\""),
            "{line}"
        );
    }

    #[test]
    fn containers_that_take_at_once_share_no_member() {
        let host = Host::new();
        let members: Vec<String> = (0..16).map(|number| format!("m{number}")).collect();
        let members: Vec<&str> = members.iter().map(String::as_str).collect();
        let holders: Vec<Holder> = (1..=40).map(|pid| host.start(pid, 10)).collect();
        let taken: Vec<Result<Vec<Device>, LeaseError>> = std::thread::scope(|scope| {
            let tries = holders.iter().enumerate().map(|(index, holder)| {
                let (host, wish) = (&host, wish(1, &members, 1));
                scope.spawn(move || {
                    let id = format!("c{index}");
                    let taking = Taking {
                        wishes: &[wish],
                        numa: Numa::Any,
                        container: &id.parse().unwrap(),
                        bundle: &bundle(&id),
                        holder: holder.clone(),
                        entry_point: "onload-container-runtime",
                    };
                    host.leases.take(&taking, &|_| None, PATIENCE)
                })
            });
            let tries: Vec<_> = tries.collect();
            tries.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let (given, refused): (Vec<_>, Vec<_>) = taken.into_iter().partition(Result::is_ok);
        let mut given: Vec<Device> = given.into_iter().flat_map(Result::unwrap).collect();
        given.sort();
        given.dedup();
        assert_eq!((given.len(), refused.len()), (16, 24));
        let is_none_free =
            |result: &Result<_, LeaseError>| matches!(result, Err(LeaseError::NoneFree(_)));
        assert!(refused.iter().all(is_none_free));
    }
}
