//! Devices that come back from containers: what interfaces and RDMA devices have in common.

use std::path::{Path, PathBuf};
use std::time::Duration;

use onload_core::class::Class;
use onload_core::container_id::ContainerId;
use onload_core::error::{Error, Result};
use onload_core::fs::lock::START_PATIENCE;
use onload_core::lease::{Device, Facts, Leases, Left, Moved, Token};

use crate::config_json::namespace;
use crate::run::lease;

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

#[derive(Debug)]
pub struct Restored {
    pub device: Device,
    pub result: Result<()>,
}

/// Brings back what earlier containers have left of a device, for who has its lock; whether there was something.
pub(crate) fn settle<F: TryFrom<Facts>>(
    leases: &Leases,
    device: &Device,
    bring: &dyn Fn(&Moved<F>) -> Result<()>,
) -> Result<bool> {
    let Some(moved) = leases.returning(device, START_PATIENCE)? else {
        return Ok(false);
    };
    bring(&moved)?;
    leases.returned(device, START_PATIENCE)?;
    Ok(true)
}

/// Names a file that may be of the network namespace where a device is.
pub(crate) type Hint<'a> = &'a dyn Fn() -> Option<PathBuf>;

type Bring<'a, F> = dyn Fn(&Leases, &Device, &Moved<F>, Hint<'_>) -> Result<()> + 'a;

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
/// its namespace. Those that did not move are released. `bring` is given a file that may be of that namespace. What does
/// not come back now stays with its lease, and the first of these errors is returned.
pub(crate) fn take_back<F: TryFrom<Facts>>(
    leased: &[Device],
    class: Class,
    gone: &Gone<'_>,
    bring: &Bring<'_, F>,
) -> Result<()> {
    let own = leased.iter().filter(|device| device.class == class);
    let own: Vec<&Device> = own.collect();
    if own.is_empty() {
        return Ok(());
    }
    let Some(leases) = lease::find()? else {
        return Ok(());
    };
    let bundle = lease::was_canonical(gone.bundle);
    let take_one = |device: &Device| {
        // Most devices do not move, and a lock leaves a file.
        let _moving = if leases.is_away(device, START_PATIENCE)? {
            Some(leases.lock_moving(device, MOVING_PATIENCE)?)
        } else {
            None
        };
        let left = leases.leave(device, gone.container, &bundle, gone.token, START_PATIENCE)?;
        if let Left::Last(moved) = left {
            bring(&leases, device, &moved, &|| gone.namespace())?;
            leases.returned(device, START_PATIENCE)?;
        }
        Ok(())
    };
    each(own, &take_one)
}

/// Does it for each device, and once more for those that failed where another one did not: that one may have had the
/// name of another, which is free then. The first error that stays.
fn each(devices: Vec<&Device>, act: &dyn Fn(&Device) -> Result<()>) -> Result<()> {
    let failed = |device| act(device).err().map(|error| (device, error));
    let all = devices.len();
    let mut left: Vec<(&Device, Error)> = devices.into_iter().filter_map(failed).collect();
    if left.len() < all {
        let devices = left.into_iter().map(|(device, _)| device);
        left = devices.filter_map(failed).collect();
    }
    match left.into_iter().next() {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

/// At which of so many devices a look begins: a random one. Each may take its time, and whoever looks may be stopped
/// before the last one, which is not to be the same each time.
fn beginning(many: usize) -> usize {
    let mut bytes = [0; size_of::<usize>()];
    // Without random bytes it begins at the first, as good as any other.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    usize::from_ne_bytes(bytes).checked_rem(many).unwrap_or(0)
}

/// Settles each of those devices whose containers have ended, under its lock. An error says that the leases cannot be read.
pub(crate) fn restore(
    leases: &Leases,
    is_wanted: &dyn Fn(&Device) -> bool,
    settle: &dyn Fn(&Device) -> Result<bool>,
) -> Result<Vec<Restored>> {
    let listed = leases.list()?.into_iter();
    let returning = listed.filter(|one| one.is_returning && is_wanted(&one.device));
    let mut devices: Vec<Device> = returning.map(|one| one.device).collect();
    devices.sort();
    devices.dedup();
    let beginning = beginning(devices.len());
    devices.rotate_left(beginning);
    let mut restored = Vec::new();
    for device in devices {
        let moving = leases.lock_moving(&device, MOVING_PATIENCE);
        let settled = moving.and_then(|_moving| settle(&device));
        if !matches!(settled, Ok(false)) {
            let result = settled.map(drop);
            restored.push(Restored { device, result });
        }
    }
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
