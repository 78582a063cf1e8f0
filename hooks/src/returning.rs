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

/// What begins the name of a device on its way, and how many random bytes follow, as digits.
const PASSING: &str = "ctk";
const RANDOM: usize = 6;

/// A name that nobody has, for a device on its way.
pub(crate) fn passing() -> String {
    let mut bytes = [0; RANDOM];
    // Without random bytes the name may be taken, and the move fails and is tried again.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    digits.fold(PASSING.to_owned(), |name, pair| name + &pair)
}

/// Whether a name is one that [`passing`] makes.
pub(crate) fn is_passing(name: &[u8]) -> bool {
    let digits = name.strip_prefix(PASSING.as_bytes());
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    digits.is_some_and(|digits| digits.len() == 2 * RANDOM && digits.iter().all(is_digit))
}

/// What became of one device that was to come back.
#[derive(Debug)]
pub struct Restored<E> {
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
type Bring<'a, F, E> = dyn Fn(&Leases, &Device, &Moved<F>, Hint<'_>) -> Result<(), E> + 'a;

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
                bring(&leases, device, &moved, &|| gone.namespace())?;
                Ok(leases.returned(device, START_PATIENCE)?)
            }
        }
    };
    each(own.collect(), &take_one)
}

/// Does it for each device, and once more for those that failed where another one did not: that one may have had the
/// name of another, which makes way for it. The first error that stays.
fn each<E>(devices: Vec<&Device>, act: &dyn Fn(&Device) -> Result<(), E>) -> Result<(), E> {
    let failed = |device| act(device).err().map(|error| (device, error));
    let all = devices.len();
    let mut left: Vec<(&Device, E)> = devices.into_iter().filter_map(failed).collect();
    if left.len() < all {
        let devices = left.into_iter().map(|(device, _)| device);
        left = devices.filter_map(failed).collect();
    }
    left.into_iter()
        .next()
        .map_or(Ok(()), |(_, error)| Err(error))
}

/// At which of so many devices a look begins: at any of them. Each may take its time, and whoever looks may be stopped
/// before the last one; so that one is not the same each time.
fn beginning(many: usize) -> usize {
    let mut bytes = [0; size_of::<usize>()];
    // Without random bytes it begins at the first, as good as any other.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    usize::from_ne_bytes(bytes).checked_rem(many).unwrap_or(0)
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
    let beginning = beginning(devices.len());
    devices.rotate_left(beginning);
    let restored = devices.into_iter().filter_map(|device| {
        let moving = leases.lock_moving(&device, MOVING_PATIENCE);
        let settled = moving.map_err(E::from).and_then(|_moving| settle(&device));
        let result = match settled {
            Ok(false) => return None,
            settled => settled.map(drop),
        };
        Some(Restored { device, result })
    });
    let mut restored: Vec<Restored<E>> = restored.collect();
    restored.sort_by(|one, other| one.device.cmp(&other.device));
    Ok(restored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_may_begin_at_each_device() {
        assert_eq!((beginning(0), beginning(1)), (0, 0));
        let begun: std::collections::BTreeSet<usize> = (0..1000).map(|_| beginning(5)).collect();
        assert_eq!(begun.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    }
}
