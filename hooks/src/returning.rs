//! Devices that come back from containers: what interfaces and RDMA devices have in common.

use std::time::Duration;

use onload_core::fs::lock::START_PATIENCE;
use onload_core::lease::{Device, Facts, LeaseError, Leases, Moved};

/// How long a container's start or end waits for somebody else who moves the same device.
pub(crate) const MOVING_PATIENCE: Duration = Duration::from_secs(5);
/// How long it waits for a device whose namespace has ended: the kernel takes its time to give it back.
pub(crate) const DYING_PATIENCE: Duration = Duration::from_secs(1);

/// What became of one device that was to come back.
#[derive(Debug)]
pub struct Restored<E> {
    /// The device.
    pub device: Device,
    /// Whether it is back, and why not.
    pub result: Result<(), E>,
}

/// Brings back what earlier containers have left of a device, for who has its lock; whether there was something.
///
/// # Errors
/// It cannot be brought back now.
pub(crate) fn settle<F: TryFrom<Facts>, E: From<LeaseError>>(
    leases: &Leases,
    device: &Device,
    bring: &dyn Fn(&Moved<F>) -> Result<(), E>,
) -> Result<bool, E> {
    let Some(moved) = leases.returning(device, START_PATIENCE)? else {
        return Ok(false);
    };
    bring(&moved)?;
    leases.returned(device, START_PATIENCE)?;
    Ok(true)
}

/// Settles each of those devices whose containers have ended, under its lock.
///
/// # Errors
/// The leases cannot be read.
pub(crate) fn restore<E: From<LeaseError>>(
    leases: &Leases,
    is_wanted: &dyn Fn(&Device) -> bool,
    settle: &dyn Fn(&Device) -> Result<bool, E>,
) -> Result<Vec<Restored<E>>, E> {
    let listed = leases.list()?.into_iter();
    let returning = listed.filter(|one| one.is_returning && is_wanted(&one.device));
    let mut devices: Vec<Device> = returning.map(|one| one.device).collect();
    devices.sort();
    devices.dedup();
    let restored = devices.into_iter().filter_map(|device| {
        let moving = leases.lock_moving(&device, MOVING_PATIENCE);
        let settled = moving.map_err(E::from).and_then(|_moving| settle(&device));
        let result = match settled {
            Ok(false) => return None,
            settled => settled.map(drop),
        };
        Some(Restored { device, result })
    });
    Ok(restored.collect())
}
