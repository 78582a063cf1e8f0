//! An interface of the host that moves into a container's network namespace, and comes back. A lease keeps what the
//! interface was before it moves, and ends when it is that again: what a killed process leaves is fixed by the next
//! container that wants the interface, by `onload-ctk lease restore`, or by udev's rule that runs that.

mod back;
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
mod usage;

use std::time::Duration;

use onload_core::class::Class;
use onload_core::error;
use onload_core::error::Result;
use onload_core::hook_arguments::HookArguments;
use onload_core::lease::{Device, Leases};

use give::Asked;
use home::{ANY, Home};
pub use identity::Identity;
use inside::Wanted;

use crate::host::{HostView, ThisHost};
use crate::returning::{self, DYING_PATIENCE, Gone, MOVING_PATIENCE, Restored};
use crate::run::lease::{self, Container};

/// The interfaces that a hook is to move, each with its device and with what it is to have there.
fn asked<'a>(arguments: &'a HookArguments, host: &ThisHost) -> Result<Vec<Asked<'a>>> {
    if arguments.netdev.is_empty() {
        return Ok(Vec::new());
    }
    let configured = host.settings()?.config.netdev;
    let mut asked = Vec::new();
    for interface in &arguments.netdev {
        let (name, pci) = (interface.name.to_string(), interface.pci.to_string());
        let is_its = |device: &&Device| {
            let named = device.name.as_str();
            device.class == Class::Netdev && (named == name || named == pci)
        };
        let device = arguments.lease.iter().find(is_its).ok_or_else(|| {
            error!("--netdev {interface} has no --lease netdev:NAME beside it; write the specification anew")
        })?;
        let settings = configured.get(device.name.as_str());
        let settings = settings.cloned().unwrap_or_default();
        let given = arguments.address.iter();
        let given = given.filter(|given| given.interface == interface.name);
        let mut addresses: Vec<_> = given.map(|given| given.address).collect();
        if addresses.is_empty() {
            addresses.clone_from(&settings.addresses);
        }
        let wanted = Wanted {
            addresses,
            settings,
        };
        asked.push(Asked {
            interface,
            device,
            wanted,
        });
    }
    // Two containers that want the same two must not wait for each other.
    asked.sort_by_key(|one| one.device);
    Ok(asked)
}

/// Brings back what earlier containers have left of interfaces, so that they can be leased.
fn settle_all(devices: &[Device], host: &ThisHost, identity: &Identity) -> Result<()> {
    let moving = devices.iter();
    let moving: Vec<&Device> = moving.filter(|one| one.class == Class::Netdev).collect();
    if moving.is_empty() {
        return Ok(());
    }
    let Some(leases) = lease::find()? else {
        return Ok(());
    };
    if !host.is_initial_namespace() {
        return Ok(());
    }
    for device in moving {
        let _moving = leases.lock_moving(device, MOVING_PATIENCE)?;
        back::settle(&leases, device, identity, DYING_PATIENCE)?;
    }
    Ok(())
}

/// Leases to a container what a hook's arguments name, and moves interfaces to it last: their way back is longer.
/// Returns warnings.
pub(crate) fn claim(
    arguments: &HookArguments,
    container: Container<'_>,
    entry_point: &str,
    host: &ThisHost,
    identity: &Identity,
) -> Result<Vec<String>> {
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
    let warning = if leased.is_empty() {
        None
    } else {
        lease::claim(wanted, container, host)?
    };
    let mut warnings = give::give(&moving, wanted, container, host, identity)?;
    warnings.extend(warning);
    Ok(warnings)
}

/// Ends what a container that is gone has of interfaces, and brings back those of which it was the last one of its
/// namespace. What does not come back now stays with its lease, and the first of these errors is returned.
pub(crate) fn take_back(leased: &[Device], gone: &Gone<'_>, identity: &Identity) -> Result<()> {
    let class = Class::Netdev;
    returning::take_back(leased, class, gone, &|leases, device, moved, hint| {
        let home = Home::open(identity, ANY)?;
        back::bring_leased(leases, device, &home, moved, hint, DYING_PATIENCE)
    })
}

/// Brings back and restores every interface whose containers have ended. One that somebody moves right now is left to
/// that. Nothing is waited for: udev calls again when the kernel gives an interface back.
pub fn restore(leases: &Leases, identity: &Identity) -> Result<Vec<Restored>> {
    restore_those(leases, &|_| true, identity, Duration::ZERO)
}

/// Brings back members of pools before a container is refused one. The refusal says which of them do not come, and why.
pub(crate) fn fetch(leases: &Leases, is_wanted: &dyn Fn(&Device) -> bool) {
    let _ = restore_those(leases, is_wanted, &Identity::default(), DYING_PATIENCE);
}

fn restore_those(
    leases: &Leases,
    is_wanted: &dyn Fn(&Device) -> bool,
    identity: &Identity,
    patience: Duration,
) -> Result<Vec<Restored>> {
    let is_wanted = |device: &Device| device.class == Class::Netdev && is_wanted(device);
    returning::restore(leases, &is_wanted, &|device| {
        back::settle(leases, device, identity, patience)
    })
}
