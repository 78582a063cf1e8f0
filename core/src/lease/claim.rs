//! Devices for one container, by their names, claimed under one lock.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::choice::{Applicant, Choice, Slot, choose, held, holders_beside, leftover};
use super::file::{ClaimUid, Device, Holder, Lease, Token};
use super::moved::{Facts, Moved};
use super::store::Leases;
use crate::container_id::ContainerId;
use crate::timestamp;
use onload_sys::error::{Context as _, Error, Result, bail, error};

/// What a container claims.
#[derive(Clone, Debug)]
pub struct Claim<'a> {
    pub devices: &'a [Claimed],
    pub container: &'a ContainerId,
    /// Its bundle, without symbolic links.
    pub bundle: &'a Path,
    pub holder: Holder,
    /// The token of an earlier reservation that becomes a lease now.
    pub token: Option<&'a Token>,
    /// The claim of a cluster engine that the container is for; all containers of it are one holder.
    pub claim: Option<&'a ClaimUid>,
    pub entry_point: &'a str,
}

/// One device of a claim.
#[derive(Clone, Debug)]
pub struct Claimed {
    pub device: Device,
    /// How many containers may have it at once.
    pub most: u32,
    /// Other names under which it may have been leased: those of the functions in its IOMMU group.
    pub aliases: Vec<Device>,
    /// What discovery knows of it.
    pub facts: BTreeMap<String, String>,
    /// The ticket that gives it to the container. What an earlier reservation says of it stays.
    pub ticket: Option<Token>,
    /// The interface that moves to the container. What an earlier lease of the same container says that it was stays.
    pub moved: Option<Moved<Facts>>,
}

/// Who uses each device of a claim without a lease; none where nobody has asked yet.
type Users = Vec<Option<Option<String>>>;

struct Write<'a> {
    claimed: &'a Claimed,
    choice: Choice,
    /// What stands there is replaced, and was this container's.
    is_own: bool,
    ticket: Option<Token>,
    moved: Option<Moved<Facts>>,
    /// Slots that nobody uses any more.
    leftover: Vec<u32>,
}

impl Leases {
    /// Gives a container all of the devices, or none and says who has one. What it holds already it
    /// keeps. `user` tells who uses a device without a lease; it is asked without the lock, since the answer may take its
    /// time, and not before the leases allow the device: it may open the device, which its holder would notice.
    pub fn claim(
        &self,
        claim: &Claim<'_>,
        user: &dyn Fn(&Device) -> Option<String>,
        patience: Duration,
    ) -> Result<()> {
        let boot = self.processes.boot_id()?;
        let mut users: Users = vec![None; claim.devices.len()];
        let (_lock, writes) = loop {
            let lock = self.lock(patience)?;
            let (writes, unasked) = self.choose_all(claim, &users)?;
            if unasked.is_empty() {
                break (lock, writes);
            }
            drop(lock);
            for (one, answer) in claim.devices.iter().zip(&mut users) {
                if unasked.contains(&&one.device) {
                    *answer = Some(user(&one.device));
                }
            }
        };
        for write in &writes {
            self.check_addresses(write.claimed)?;
        }
        for (at, write) in writes.iter().enumerate() {
            let lease = lease(claim, write, &boot);
            if let Err(error) = self.publish(&write.claimed.device, write.choice, &lease) {
                for undo in writes.iter().take(at).filter(|undo| !undo.is_own) {
                    // Where that fails too, the lease ends with its holder.
                    let _ = self.remove(&undo.claimed.device, undo.choice.slot());
                }
                return Err(error);
            }
        }
        for write in &writes {
            for slot in &write.leftover {
                // It is in nobody's way.
                let _ = self.remove(&write.claimed.device, *slot);
            }
        }
        Ok(())
    }

    /// That no other interface that a container has carries an address that this one is to have. Containers of the same
    /// network namespace share the interface, and with it the address.
    fn check_addresses(&self, claimed: &Claimed) -> Result<()> {
        let wanted = claimed.moved.as_ref().map(|moved| &moved.addresses);
        let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) else {
            return Ok(());
        };
        let device = &claimed.device;
        let others = self.slots_of(&|other| other.class == device.class && other != device)?;
        for (other, slot) in others {
            let mut given = slot.given().into_iter().flat_map(|given| &given.addresses);
            if let Some(address) = given.find(|given| wanted.contains(given)) {
                bail!(
                    "{device}: the address {address} is that of {other}, which is held by {}; give this one another",
                    slot.holder().unwrap_or_default()
                );
            }
        }
        Ok(())
    }

    /// What is written for all devices, and of which it is not known yet who uses them.
    fn choose_all<'a>(
        &self,
        claim: &Claim<'a>,
        users: &Users,
    ) -> Result<(Vec<Write<'a>>, Vec<&'a Device>)> {
        let (mut writes, mut unasked) = (Vec::new(), Vec::new());
        for (claimed, known) in claim.devices.iter().zip(users) {
            let is_asked = Cell::new(false);
            let user = || {
                is_asked.set(true);
                known.clone().flatten()
            };
            writes.extend(self.choose_one(claim, claimed, &user)?);
            if is_asked.get() && known.is_none() {
                unasked.push(&claimed.device);
            }
        }
        Ok((writes, unasked))
    }

    /// Why a container would not get devices by their names now; nothing is written. What it holds itself is no reason.
    pub fn would_claim(
        &self,
        claim: &Claim<'_>,
        user: &dyn Fn(&Device) -> Option<String>,
    ) -> Result<()> {
        for claimed in claim.devices {
            let slots = self.slots(&claimed.device)?;
            let mut leases = slots.iter().filter_map(Slot::lease);
            let is_its =
                |lease: &Lease| lease.container == *claim.container && lease.bundle == claim.bundle;
            if !leases.any(is_its) {
                self.choose_one(claim, claimed, &|| user(&claimed.device))?;
            }
        }
        Ok(())
    }

    /// Where the lease of one device is written; none where it stands there already. `user` is asked last.
    fn choose_one<'a>(
        &self,
        claim: &Claim<'_>,
        claimed: &'a Claimed,
        user: &dyn Fn() -> Option<String>,
    ) -> Result<Option<Write<'a>>> {
        let applicant = Applicant {
            container: claim.container,
            bundle: claim.bundle,
            holder: &claim.holder,
            token: claim.token,
            claim: claim.claim,
            namespace: claimed.moved.as_ref().map(|moved| moved.namespace),
        };
        let refused = || claimed.device.to_string();
        let found = self.slots(&claimed.device)?;
        let choice = choose(&found, applicant, claimed.most).with_context(refused)?;
        let is_own = matches!(choice, Choice::Kept(_));
        let own = found.iter().find(|slot| slot.number == choice.slot());
        let own = own.and_then(Slot::lease).filter(|_| is_own);
        // The hook of a claim comes first and the device's own after it, which names no claim.
        let of = claim.claim.or(own.and_then(|own| own.claim.as_ref()));
        let is_shared = is_shared(&found, choice.slot(), of);
        let user = || if is_shared { None } else { user() };
        // The hook that moves an interface comes after one that leases it alone, which may have found what an earlier
        // start left.
        let namespace = |moved: &Moved<Facts>| moved.namespace;
        let had = own.and_then(|own| own.moved.as_ref()).map(namespace);
        let is_new = claimed.moved.is_some() && claimed.moved.as_ref().map(namespace) != had;
        if let Some(own) = own.filter(|own| own.holder == claim.holder)
            && of == own.claim.as_ref()
            && !is_new
        {
            // What has it without a claim is its own user by now. The hook of a claim knows no nodes, so who
            // uses them comes out with the device's own.
            let user = own.claim.as_ref().and_then(|_| user());
            return user.map_or(Ok(None), |user| Err(taken(claimed, &user)));
        }
        let aliases = claimed.aliases.iter();
        for alias in aliases.filter(|alias| **alias != claimed.device) {
            let is_other = |slot: &&Slot| {
                !slot
                    .lease()
                    .is_some_and(|lease| is_fellow(applicant, lease))
            };
            let slots = self.slots(alias)?;
            if let Some(holder) = slots.iter().filter(is_other).find_map(Slot::holder) {
                let holder = format!("{holder} as {alias}");
                return Err(held(&[holder])).with_context(refused);
            }
        }
        if let Some(user) = user() {
            return Err(taken(claimed, &user));
        }
        Ok(Some(Write {
            claimed,
            choice,
            is_own,
            ticket: own.and_then(|own| own.ticket.clone()),
            moved: own.and_then(|own| own.moved.clone()),
            leftover: leftover(&found, claimed.most)
                .into_iter()
                .filter(|number| *number != choice.slot())
                .collect(),
        }))
    }

    /// Why the containers of a claim would not get devices now, each of which so many may have at once, and which
    /// may be leased by any of their names; `None` if they would. Nothing is written. Who uses a device without a
    /// lease is not looked for.
    pub fn held_beside(
        &self,
        names: &[Device],
        most: u32,
        claim: &ClaimUid,
    ) -> Result<Option<Error>> {
        let found = self.slots_of(&|device| names.contains(device))?;
        let found: Vec<Slot> = found.into_iter().map(|(_, slot)| slot).collect();
        if found.iter().any(|slot| slot.is_held_for(claim)) {
            return Ok(None);
        }
        let holders = holders_beside(&found, Some(claim), None);
        let is_full = holders.len() >= usize::try_from(most).unwrap_or(usize::MAX);
        Ok(is_full.then(|| held(&holders)))
    }
}

fn taken(claimed: &Claimed, user: &str) -> Error {
    error!("{} is in use by {user}; stop that first", claimed.device)
}

/// Whether another container of a claim has the device too: then that one may use it.
fn is_shared(found: &[Slot], own: u32, claim: Option<&ClaimUid>) -> bool {
    let is_fellow =
        |slot: &Slot| slot.number != own && claim.is_some_and(|of| slot.is_held_for(of));
    found.iter().any(is_fellow)
}

/// Whether a lease under another name is the applicant's, or of its claim.
fn is_fellow(applicant: Applicant<'_>, lease: &Lease) -> bool {
    let is_of_claim = applicant.claim.is_some() && applicant.claim == lease.claim.as_ref();
    is_of_claim || applicant.is_same_container(lease) || applicant.holds(lease)
}

fn lease(claim: &Claim<'_>, write: &Write<'_>, boot: &str) -> Lease {
    Lease {
        boot: boot.to_owned(),
        container: claim.container.clone(),
        bundle: claim.bundle.to_owned(),
        holder: claim.holder.clone(),
        claim: claim.claim.cloned(),
        entry_point: claim.entry_point.to_owned(),
        since: timestamp::now(),
        facts: write.claimed.facts.clone(),
        ticket: (write.claimed.ticket.as_ref())
            .or(write.ticket.as_ref())
            .cloned(),
        moved: moved(write.moved.as_ref(), write.claimed.moved.as_ref()),
    }
}

/// Where a device is that an earlier start of the container may have had, which was not brought back: it was then what it
/// has to be again, and is with the new start.
fn moved(earlier: Option<&Moved<Facts>>, now: Option<&Moved<Facts>>) -> Option<Moved<Facts>> {
    match (earlier, now) {
        (Some(earlier), Some(now)) if earlier.facts.comes_back() => Some(Moved {
            facts: earlier.facts.clone(),
            ..now.clone()
        }),
        (earlier, now) => now.or(earlier).cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_host::{Host, PATIENCE, bundle, claimed, vfio};
    use super::*;

    /// What the two hooks of a device of a claim do, one after the other: the claim's, which knows no node, and
    /// the device's own, which knows who uses it.
    fn start(host: &Host, id: &str, pid: u32, of: &str, user: Option<&str>) -> Result<(), String> {
        let holder = host.start(pid, 10);
        for (claim, user) in [(Some(of), None), (None, user)] {
            let uid = claim.map(|uid| uid.parse().unwrap());
            let claim = Claim {
                devices: &[claimed(vfio())],
                container: &id.parse().unwrap(),
                bundle: &bundle(id),
                holder: holder.clone(),
                token: None,
                claim: uid.as_ref(),
                entry_point: "createRuntime",
            };
            let user = |_: &Device| user.map(str::to_owned);
            let claimed = host.leases.claim(&claim, &user, PATIENCE);
            claimed.map_err(|error| format!("{error:#}"))?;
        }
        Ok(())
    }

    fn claims(host: &Host) -> Vec<Option<String>> {
        let listed = host.leases.list().unwrap().into_iter();
        let claim = |listed: super::super::Listed| listed.lease.unwrap().claim;
        listed
            .map(|listed| claim(listed).map(String::from))
            .collect()
    }

    #[test]
    fn containers_of_a_claim_hold_a_device_together_until_the_last_has_ended() {
        let host = Host::new();
        start(&host, "one", 1, "u1", None).unwrap();
        start(&host, "two", 2, "u1", None).unwrap();
        assert_eq!(host.files(), ["vfio=0000:81:10.0#0", "vfio=0000:81:10.0#1"]);
        assert_eq!(
            claims(&host),
            [Some("u1".to_owned()), Some("u1".to_owned())]
        );
        host.end(1);
        let line = start(&host, "three", 3, "u2", None).unwrap_err();
        assert!(
            line.contains("it is held by container two (process 2, "),
            "{line}"
        );
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
        assert!(
            line.ends_with("is in use by process 7 (\"qemu\"); stop that first"),
            "{line}"
        );
        host.end(1);
        start(&host, "one", 2, "u1", None).unwrap();
        // The user is the first container now.
        start(&host, "two", 3, "u1", user).unwrap();
    }

    #[test]
    fn whoever_is_refused_never_looks_at_the_device_that_another_has() {
        let host = Host::new();
        host.claim("one", &host.start(1, 10)).unwrap();
        let ask = |id: &str, devices: &[Claimed]| {
            let asked = Cell::new(0);
            let claim = Claim {
                devices,
                container: &id.parse().unwrap(),
                bundle: &bundle(id),
                holder: host.start(2, 20),
                token: None,
                claim: None,
                entry_point: "createRuntime",
            };
            let user = |_: &Device| {
                asked.set(asked.get() + 1);
                None
            };
            let claimed = host.leases.claim(&claim, &user, PATIENCE).is_ok();
            (claimed, asked.get())
        };
        let free = || claimed("vfio:0000:81:10.2".parse().unwrap());
        assert_eq!(ask("two", &[claimed(vfio())]), (false, 0));
        assert_eq!(ask("two", &[free(), claimed(vfio())]), (false, 0));
        // Nor by the name of another function of its group.
        let of_its_group = Claimed {
            aliases: vec![vfio()],
            ..free()
        };
        assert_eq!(ask("two", &[of_its_group]), (false, 0));
        assert_eq!(ask("two", &[free()]), (true, 1));
    }

    #[test]
    fn what_a_container_would_be_refused_for_is_said_and_nothing_is_written() {
        let host = Host::new();
        let would = |id: &str, user: Option<&str>| {
            let claim = Claim {
                devices: &[claimed(vfio())],
                container: &id.parse().unwrap(),
                bundle: &bundle(id),
                holder: Holder::reserved_by([0; 16].into(), None),
                token: None,
                claim: None,
                entry_point: "container explain",
            };
            let user = |_: &Device| user.map(str::to_owned);
            let would = host.leases.would_claim(&claim, &user);
            would.map_err(|error| format!("{error:#}"))
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
            let found = host
                .leases
                .held_beside(&[vfio()], most, &uid.parse().unwrap());
            found.unwrap().map(|refusal| refusal.to_string())
        };
        assert_eq!(held("u1", 1), None);
        start(&host, "one", 1, "u1", None).unwrap();
        assert_eq!(held("u1", 1), None);
        assert!(
            held("u2", 1)
                .unwrap()
                .starts_with("it is held by container one ")
        );
        assert_eq!(held("u2", 2), None);
        assert_eq!(host.files().len(), 1);
        host.end(1);
        assert_eq!(held("u2", 1), None);
    }
}
