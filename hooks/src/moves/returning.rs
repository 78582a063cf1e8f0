//! Returns devices to the host, restores them and ends their leases: after a container's end, after a failed start, and
//! of containers that ended without `poststop`.

use std::path::Path;
use std::time::{Duration, Instant};

use onload_core::class::Class;
use onload_core::device_id::DeviceId;
use onload_lease::{LeaseEntry, LeasedContainer, Leases, MoveRecord, SavedState};
use onload_sys::error::{Error, Result};

use super::interface::InterfaceOps;
use super::lifecycle::{DYING_TIMEOUT, ReturningDevice};
use super::rdma::RdmaOps;
use super::vf;
use crate::config::config_file;
use crate::record::lease::{
    self, ContainerInit, DeviceTimeout, END_SEARCH_TIMEOUT, START_SEARCH_TIMEOUT,
};
use crate::record::listing::random_index;

/// Time limit for searching /proc for processes that have a virtual function open, while no container waits.
const RESTORE_SEARCH_TIMEOUT: Duration = Duration::from_secs(300);

/// How long returning a device may take.
#[derive(Clone, Copy)]
struct ReturnLimits {
    /// For waiting for a device whose namespace has ended.
    dying: Duration,
    /// For searching /proc for processes that have a virtual function open.
    search_deadline: Instant,
}

impl ReturnLimits {
    fn new(dying: Duration, search: Duration) -> Self {
        ReturnLimits { dying, search_deadline: Instant::now() + search }
    }

    fn at_start() -> Self {
        ReturnLimits::new(DYING_TIMEOUT, START_SEARCH_TIMEOUT)
    }
}

/// Returns a device to the host, restores it and ends its lease. `hint` is a file that may refer to the network namespace
/// of an interface or RDMA device.
fn return_device(
    leases: &Leases,
    device: &DeviceId,
    record: MoveRecord,
    hint: Option<&Path>,
    limits: ReturnLimits,
) -> Result<()> {
    match record.saved.clone() {
        SavedState::Interface(saved) => {
            ReturningDevice::<InterfaceOps> { leases, device, record, saved }
                .retrieve_and_end(hint, limits.dying)
        }
        SavedState::Rdma(saved) => ReturningDevice::<RdmaOps> { leases, device, record, saved }
            .retrieve_and_end(hint, limits.dying),
        SavedState::Function(saved) => {
            let user = vf::wait_until_unused(device, limits.search_deadline);
            vf::put_back(leases, device, &saved, user)
        }
    }
}

/// Returns a device to the host after a failed start of its container.
pub(super) fn undo_move(
    leases: &Leases,
    device: &DeviceId,
    record: MoveRecord,
    container: ContainerInit<'_>,
) -> Result<()> {
    leases.mark_returning(device, &container.to_leased())?;
    // An earlier start of the container may have left the device changed. In that case the lease has its original state.
    let record = leases.find_returning(device)?.unwrap_or(record);
    let namespace = format!("/proc/{}/ns/net", container.init);
    return_device(leases, device, record, Some(Path::new(&namespace)), ReturnLimits::at_start())
}

/// Returns a device that an earlier container left behind. The caller holds its lock. Returns whether there was one.
fn return_leftover(leases: &Leases, device: &DeviceId, limits: ReturnLimits) -> Result<bool> {
    match leases.find_returning(device)? {
        Some(record) => return_device(leases, device, record, None, limits).map(|()| true),
        None => Ok(false),
    }
}

/// Like [`return_leftover`], at the start of a container.
pub(super) fn return_leftover_at_start(leases: &Leases, device: &DeviceId) -> Result<bool> {
    return_leftover(leases, device, ReturnLimits::at_start())
}

/// Returns devices that earlier containers left behind, so that they can be leased.
pub(super) fn return_leftovers(devices: &[DeviceId]) -> Result<()> {
    let Some(leases) = find_leases(devices)? else {
        return Ok(());
    };
    // Most devices have neither moved nor changed, and taking a lock creates a file.
    for device in leases.moved_devices(devices)? {
        let _moving = leases.lock_device(&device)?;
        return_leftover_at_start(&leases, &device)?;
    }
    Ok(())
}

/// Opens the leases. Returns `None` if there are none, or if devices of these classes do not return.
fn find_leases(devices: &[DeviceId]) -> Result<Option<Leases>> {
    match devices.iter().find(|device| order(device.class).is_some()) {
        Some(_) => lease::find(),
        None => Ok(None),
    }
}

/// Ends an exited container's leases of devices that moved or were set up for it. Returns the devices to the host if it
/// was the last container in its namespace, and restores them. A device that cannot be returned now keeps its lease, and
/// the first such error is returned.
pub(crate) fn release_devices(devices: &[DeviceId], exited: &LeasedContainer<'_>) -> Result<()> {
    let Some(leases) = find_leases(devices)? else {
        return Ok(());
    };
    let mut devices: Vec<DeviceId> = leases.moved_devices(devices)?.into_iter().collect();
    if devices.is_empty() {
        return Ok(());
    }
    devices.sort_by_key(|device| order(device.class));
    let namespace = config_file::network_namespace(exited.bundle);
    let limits = ReturnLimits::new(DYING_TIMEOUT, END_SEARCH_TIMEOUT);
    retry_each(devices, &|device| {
        let _moving = leases.lock_device(device)?;
        match leases.release_exited(device, exited)? {
            Some(record) => return_device(&leases, device, record, namespace.as_deref(), limits),
            None => Ok(()),
        }
    })
}

/// Returns the position of a class among those whose devices return. RDMA devices come first, since they depend on
/// interfaces, and virtual functions last, since searching for their users may take long.
fn order(class: Class) -> Option<usize> {
    [Class::Rdma, Class::Netdev, Class::Vfio].iter().position(|returning| *returning == class)
}

/// Runs `action` for each device. If it succeeds for some, runs it again for those that failed: a device that was
/// restored may have had the name of another one. Returns the first error that remains.
fn retry_each(devices: Vec<DeviceId>, action: &dyn Fn(&DeviceId) -> Result<()>) -> Result<()> {
    let failed = |device: DeviceId| action(&device).err().map(|error| (device, error));
    let count = devices.len();
    let mut failures: Vec<(DeviceId, Error)> = devices.into_iter().filter_map(failed).collect();
    if failures.len() < count {
        failures = failures.into_iter().filter_map(|(device, _)| failed(device)).collect();
    }
    failures.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
}

#[derive(Debug)]
pub struct RestoreResult {
    pub device: DeviceId,
    pub result: Result<()>,
}

/// Returns and restores every device whose containers have exited. A device that another process is moving is left to
/// it. This does not wait: udev calls again when the kernel returns an interface. Fails only if the leases cannot be read.
pub fn restore(leases: &Leases) -> Result<Vec<RestoreResult>> {
    let limits = ReturnLimits::new(Duration::ZERO, RESTORE_SEARCH_TIMEOUT);
    restore_within(leases, &|_| Some(Duration::MAX), limits)
}

/// Brings back members of pools before a container is refused one. The refusal names those that could not be returned,
/// and why.
pub(crate) fn fetch(leases: &Leases, timeout_for: DeviceTimeout<'_>) {
    let _ = restore_within(leases, timeout_for, ReturnLimits::at_start());
}

/// Returns and restores devices of exited containers, each under its lock, if `timeout_for` grants it time when its turn
/// comes.
fn restore_within(
    leases: &Leases,
    timeout_for: DeviceTimeout<'_>,
    limits: ReturnLimits,
) -> Result<Vec<RestoreResult>> {
    let mut returning = leases.list()?;
    returning.retain(LeaseEntry::is_returning);
    returning.dedup_by(|one, other| one.device == other.device);
    // Begins at a random device: restoring one may take long, and if this process is stopped before the last one, the next
    // run begins elsewhere.
    let start = random_index().checked_rem(returning.len()).unwrap_or(0);
    returning.rotate_left(start);
    returning.sort_by_key(|entry| order(entry.device.class));
    let mut restored = Vec::new();
    for entry in returning {
        if let Some(remaining) = timeout_for(&entry.device)
            && let Some(result) = restore_entry(leases, &entry, remaining, limits).transpose()
        {
            restored.push(RestoreResult { device: entry.device, result });
        }
    }
    restored.sort_unstable_by(|one, other| one.device.cmp(&other.device));
    Ok(restored)
}

/// Returns and restores a device, unless another process did. Waits for its lock no longer than `remaining`.
fn restore_entry(
    leases: &Leases,
    entry: &LeaseEntry,
    remaining: Duration,
    limits: ReturnLimits,
) -> Result<Option<()>> {
    let device = &entry.device;
    let saved = entry.lease.as_ref().ok().and_then(|lease| Some(&lease.moved.as_ref()?.saved));
    let Some(SavedState::Function(saved)) = saved else {
        let _moving = leases.lock_device_within(device, remaining)?;
        return Ok(return_leftover(leases, device, limits)?.then_some(()));
    };
    // This search may take minutes, so it runs without the lock. While the lease is `returning`, no further process can
    // open the function.
    let user = vf::wait_until_unused(device, limits.search_deadline);
    let _moving = leases.lock_device_within(device, remaining)?;
    // Another process may have restored it meanwhile, or another container of its ResourceClaim has it.
    if !leases.list()?.contains(entry) || leases.find_returning(device)?.is_none() {
        return Ok(None);
    }
    vf::put_back(leases, device, saved, user).map(Some)
}
