//! Devices that come back from containers: what interfaces and RDMA devices have in common.

use std::path::{Path, PathBuf};
use std::time::Duration;

use onload_core::class::Class;
use onload_core::container_id::ContainerId;
use onload_core::fs::lock::START_PATIENCE;
use onload_core::lease::{Device, Facts, LeaseError, Leases, Left, Moved, Token};

use crate::config_json::namespace;
use crate::run::lease::{self, ClaimError};

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

/// Names a file that may be of the network namespace where a device is.
pub(crate) type Hint<'a> = &'a dyn Fn() -> Option<PathBuf>;

/// Brings a device back, and makes it what it was.
type Bring<'a, F, E> = dyn Fn(&Device, &Moved<F>, Hint<'_>) -> Result<(), E> + 'a;

/// A container that is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone<'a> {
    pub(crate) container: &'a ContainerId,
    pub(crate) token: Option<&'a Token>,
    /// As it was named, links and all: config.json is below it.
    pub(crate) bundle: &'a Path,
}

impl Gone<'_> {
    /// The file of the network namespace that config.json names.
    fn namespace(&self) -> Option<PathBuf> {
        namespace::network(&self.bundle.join("config.json"))
    }
}

/// Ends what a container that is gone has of devices of a class, and brings back those of which it was the last one of
/// its namespace. Those that did not move are released. `bring` is given a file that may be of that namespace.
///
/// # Errors
/// The first of them. What does not come back now stays with its lease.
pub(crate) fn take_back<F: TryFrom<Facts>, E: From<LeaseError> + From<ClaimError>>(
    leased: &[Device],
    class: Class,
    gone: &Gone<'_>,
    bring: &Bring<'_, F, E>,
) -> Result<(), E> {
    let own = leased.iter().filter(|device| device.class == class);
    let mut own = own.peekable();
    if own.peek().is_none() {
        return Ok(());
    }
    let Some(leases) = lease::find()? else {
        return Ok(());
    };
    let bundle = lease::was_canonical(gone.bundle);
    let take_one = |device: &Device| -> Result<(), E> {
        // Most devices do not move, and a lock leaves a file.
        let _moving = match leases.is_away(device, START_PATIENCE)? {
            true => Some(leases.lock_moving(device, MOVING_PATIENCE)?),
            false => None,
        };
        match leases.leave(device, gone.container, &bundle, gone.token, START_PATIENCE)? {
            Left::Nothing | Left::Others => Ok(()),
            Left::Last(moved) => {
                bring(device, &moved, &|| gone.namespace())?;
                Ok(leases.returned(device, START_PATIENCE)?)
            }
        }
    };
    own.map(take_one).fold(Ok(()), Result::and)
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
