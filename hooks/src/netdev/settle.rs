//! What stands before everything else: an interface that an earlier container left comes back.

use std::time::Duration;

use onload_core::lease::{Device, Leases};

use super::back;
use super::error::NetdevError;
use super::home::Home;
use super::identity::Identity;
use crate::returning;

/// Brings back what earlier containers have left of a device, for who has its lock; whether there was something.
///
/// # Errors
/// [`NetdevError`]: it cannot be brought back now.
pub(super) fn one(
    leases: &Leases,
    device: &Device,
    identity: &Identity,
    patience: Duration,
) -> Result<bool, NetdevError> {
    returning::settle(leases, device, &|moved| {
        let home = Home::open(identity)?;
        back::bring_leased(leases, device, &home, moved, &|| None, patience)
    })
}
