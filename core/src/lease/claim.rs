//! Devices for one container, by their names, claimed under one lock.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::choice::{Applicant, Choice, Refusal, Slot, State, choose};
use super::file::{Device, Holder, Lease, Token};
use super::store::{LeaseError, Leases, seconds_since_1970};
use crate::container_id::ContainerId;

/// What a container claims.
#[derive(Clone, Debug)]
pub struct Claim<'a> {
    /// The devices.
    pub devices: &'a [Claimed],
    /// The container's id.
    pub container: &'a ContainerId,
    /// Its bundle, without symbolic links.
    pub bundle: &'a Path,
    /// What is to hold them.
    pub holder: Holder,
    /// The token of an earlier reservation that becomes a lease now.
    pub token: Option<&'a Token>,
    /// The program and stage.
    pub entry_point: &'a str,
    /// The ticket that the container is started with. What an earlier reservation says of it stays.
    pub ticket: Option<&'a Token>,
}

/// One device of a claim.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The device.
    pub device: Device,
    /// How many containers may have it at once.
    pub most: u32,
    /// Other names under which it may have been leased: those of the functions in its IOMMU group.
    pub aliases: Vec<Device>,
    /// What discovery knows of it.
    pub facts: BTreeMap<String, String>,
}

/// What is written for one device.
struct Write<'a> {
    claimed: &'a Claimed,
    choice: Choice,
    /// What stands there is replaced, and was this container's.
    is_own: bool,
    /// The ticket of what is replaced.
    ticket: Option<Token>,
}

impl Leases {
    /// Gives a container all of the devices, or none and says who has one. What it holds already it
    /// keeps. `user` tells who uses a device without a lease; it is asked before the lock is taken, since
    /// the answer may take its time.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub fn claim(
        &self,
        claim: &Claim<'_>,
        user: &dyn Fn(&Device) -> Option<String>,
        patience: Duration,
    ) -> Result<(), LeaseError> {
        let boot = self.processes.boot_id()?;
        let users = claim.devices.iter();
        let users: Vec<Option<String>> = users.map(|one| user(&one.device)).collect();
        let _lock = self.lock(patience)?;
        let mut writes = Vec::new();
        for (claimed, user) in claim.devices.iter().zip(users) {
            writes.extend(self.choose_one(claim, claimed, user)?);
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
        Ok(())
    }

    /// Where the lease of one device is written; none where it stands there already.
    fn choose_one<'a>(
        &self,
        claim: &Claim<'_>,
        claimed: &'a Claimed,
        user: Option<String>,
    ) -> Result<Option<Write<'a>>, LeaseError> {
        let applicant = Applicant {
            container: claim.container,
            bundle: claim.bundle,
            holder: &claim.holder,
            token: claim.token,
        };
        let refused = |source| LeaseError::Refused {
            device: claimed.device.to_string(),
            source,
        };
        let found = self.slots(&claimed.device)?;
        let choice = choose(&found, applicant, claimed.most).map_err(refused)?;
        let is_own = matches!(choice, Choice::Kept(_));
        let own = found.iter().find(|slot| slot.number == choice.slot());
        let own = own.and_then(Slot::lease).filter(|_| is_own);
        if own.is_some_and(|own| own.holder == claim.holder) {
            return Ok(None);
        }
        for alias in claimed
            .aliases
            .iter()
            .filter(|alias| **alias != claimed.device)
        {
            let held = |slot: &Slot| match &slot.state {
                State::Over(_) => None,
                _ if slot
                    .lease()
                    .is_some_and(|lease| applicant.is_same_container(lease)) =>
                {
                    None
                }
                _ => Some(format!("{} as {alias}", slot.holder()?)),
            };
            if let Some(holder) = self.slots(alias)?.iter().find_map(held) {
                return Err(refused(Refusal::Held(vec![holder])));
            }
        }
        if let Some(user) = user {
            let device = claimed.device.to_string();
            return Err(LeaseError::Taken { device, user });
        }
        Ok(Some(Write {
            claimed,
            choice,
            is_own,
            ticket: own.and_then(|own| own.ticket.clone()),
        }))
    }
}

fn lease(claim: &Claim<'_>, write: &Write<'_>, boot: &str) -> Lease {
    Lease {
        boot: boot.to_owned(),
        container: claim.container.clone(),
        bundle: claim.bundle.to_owned(),
        holder: claim.holder.clone(),
        entry_point: claim.entry_point.to_owned(),
        since: seconds_since_1970(),
        facts: write.claimed.facts.clone(),
        ticket: claim.ticket.or(write.ticket.as_ref()).cloned(),
    }
}
