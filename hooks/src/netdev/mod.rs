//! An interface of the host that moves into a container's network namespace, and comes back.
//!
//! Nothing moves that has not been written down: a lease keeps what the interface was, and ends when it is that again.
//! So whoever is killed at any point leaves something that the next look puts right: the next container that wants
//! the interface, `onload-ctk lease restore`, or udev's rule that runs that.

mod back;
mod error;
mod facts;
mod give;
mod home;
pub(crate) mod identity;
mod inside;
mod leftovers;
mod onload;
mod programs;
mod queues;
mod rebind;
mod settle;
#[cfg(test)]
mod test_namespace;
mod usage;

use std::time::Duration;

use onload_core::class::Class;
use onload_core::hook_arguments::HookArguments;
use onload_core::lease::{Device, Leases};

pub use error::NetdevError;
use give::Asked;
use home::Home;
pub use identity::Identity;
use inside::Wanted;

use crate::host::{HostView, ThisHost};
use crate::returning::{self, DYING_PATIENCE, Gone, MOVING_PATIENCE, Restored};
use crate::run::lease::{self, Container};

/// The interfaces that a hook is to move, each with its device and with what it is to have.
///
/// # Errors
/// [`NetdevError::NoLease`], and those of the configuration.
fn asked<'a>(arguments: &'a HookArguments, host: &ThisHost) -> Result<Vec<Asked<'a>>, NetdevError> {
    if arguments.netdev.is_empty() {
        return Ok(Vec::new());
    }
    let configured = host.settings()?.config.netdev;
    let asked = arguments.netdev.iter().map(|interface| {
        let name = interface.name.to_string();
        let pci = interface.pci.to_string();
        let is_its = |device: &&Device| {
            let named = device.name.as_str();
            device.class == Class::Netdev && (named == name || named == pci)
        };
        let device = arguments.lease.iter().find(is_its);
        let device = device.ok_or_else(|| NetdevError::NoLease(interface.to_string()))?;
        let settings = configured.get(device.name.as_str());
        let settings = settings.cloned().unwrap_or_default();
        let given = arguments.address.iter();
        let given = given.filter(|given| given.interface == interface.name);
        let given: Vec<_> = given.map(|given| given.address).collect();
        let addresses = match given.is_empty() {
            true => settings.addresses.clone(),
            false => given,
        };
        let wanted = Wanted {
            addresses,
            settings,
        };
        Ok(Asked {
            interface,
            device,
            wanted,
        })
    });
    let mut asked = asked.collect::<Result<Vec<_>, NetdevError>>()?;
    // Two containers that want the same two must not wait for each other.
    asked.sort_by_key(|one| one.device);
    Ok(asked)
}

/// Brings back what earlier containers have left of interfaces, so that they can be leased.
///
/// # Errors
/// [`NetdevError`]: one cannot be brought back now.
fn settle_all(devices: &[Device], host: &ThisHost, identity: &Identity) -> Result<(), NetdevError> {
    let mut moving = devices
        .iter()
        .filter(|device| device.class == Class::Netdev);
    let Some(leases) = moving
        .clone()
        .next()
        .map(|_| lease::find())
        .transpose()?
        .flatten()
    else {
        return Ok(());
    };
    if !host.is_initial_namespace() {
        return Ok(());
    }
    moving.try_for_each(|device| {
        let _moving = leases.lock_moving(device, MOVING_PATIENCE)?;
        settle::one(&leases, device, identity, DYING_PATIENCE).map(drop)
    })
}

/// Leases to a container what a hook's arguments name, and moves interfaces to it last: their way back is longer.
/// Returns warnings.
///
/// # Errors
/// [`NetdevError`]: the container must not start.
pub(crate) fn claim(
    arguments: &HookArguments,
    container: Container<'_>,
    entry_point: &str,
    host: &ThisHost,
    identity: &Identity,
) -> Result<Vec<String>, NetdevError> {
    let moving = asked(arguments, host)?;
    let is_moving = |device: &Device| moving.iter().any(|one| one.device == device);
    let leased = arguments.lease.iter().filter(|device| !is_moving(device));
    let leased: Vec<Device> = leased.cloned().collect();
    let wanted = lease::Wanted {
        devices: &leased,
        expect: &arguments.expect,
        token: arguments.token.as_ref(),
        claim: arguments.claim.as_ref(),
        entry_point,
        moved: None,
    };
    settle_all(&leased, host, identity)?;
    let warning = match leased.is_empty() {
        true => None,
        false => lease::claim(wanted, container, host)?,
    };
    let mut warnings = give::give(&moving, wanted, container, host, identity)?;
    warnings.extend(warning);
    Ok(warnings)
}

/// Ends what a container that is gone has of interfaces, and brings back those of which it was the last one of its
/// namespace.
///
/// # Errors
/// [`NetdevError`]: the first of them. What does not come back now stays with its lease.
pub(crate) fn take_back(
    leased: &[Device],
    gone: &Gone<'_>,
    identity: &Identity,
) -> Result<(), NetdevError> {
    returning::take_back(
        leased,
        Class::Netdev,
        gone,
        &|leases, device, moved, hint| {
            let home = Home::open(identity)?;
            back::bring_leased(leases, device, &home, moved, hint, DYING_PATIENCE)
        },
    )
}

/// Brings back and restores every interface whose containers have ended. One that somebody moves right now is left to
/// that. Nothing is waited for: udev calls again when the kernel gives an interface back.
///
/// # Errors
/// [`NetdevError`]: the leases cannot be read.
pub fn restore(
    leases: &Leases,
    identity: &Identity,
) -> Result<Vec<Restored<NetdevError>>, NetdevError> {
    restore_those(leases, &|_| true, identity, Duration::ZERO)
}

/// Brings back members of pools before a container is refused one. Which of them do not come, and why, says the
/// refusal.
pub(crate) fn fetch(leases: &Leases, is_wanted: &dyn Fn(&Device) -> bool) {
    let _ = restore_those(leases, is_wanted, &Identity::default(), DYING_PATIENCE);
}

fn restore_those(
    leases: &Leases,
    is_wanted: &dyn Fn(&Device) -> bool,
    identity: &Identity,
    patience: Duration,
) -> Result<Vec<Restored<NetdevError>>, NetdevError> {
    let is_wanted = |device: &Device| device.class == Class::Netdev && is_wanted(device);
    returning::restore(leases, &is_wanted, &|device| {
        settle::one(leases, device, identity, patience)
    })
}
