//! The lifecycle of a device that moves into a container's network namespace and back: an interface or an RDMA device.
//! The states are types.
//!
//! ```text
//! MoveRequest ──▶ ContainerDevice ──▶ ReturningDevice ──▶ ReturnedDevice ──▶ the lease has ended
//! ```
//!
//! A virtual function that is set up for a container and stays on the host has the same lifecycle, in [`super::vf`].
//!
//! The process may be killed at any point. The lease, which is written before the device moves and ends once the device
//! is restored, survives: the next process finds a [`ReturningDevice`].

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{iter, slice, thread};

use onload_core::device_id::DeviceId;
use onload_core::netdev::address::InterfaceAddress;
use onload_core::netdev::new_name::NewInterfaceName;
use onload_core::netdev::settings::NetdevSettings;
use onload_core::vf_config::VfConfig;
use onload_lease::{Leases, MoveRecord, SavedState};
use onload_sys::error::{Context as _, Error, Result, bail, error};
use onload_sys::fs::lock::Lock;
use onload_sys::pci::PciAddress;
use onload_sys::processes::Processes;

use super::netns::{self, Netns};
use crate::record::container_dir::open_run;
use crate::record::lease::{self, ContainerInit, InitLeaseRequest};

/// Limit for waiting, at a container's start or end, for a device whose namespace has ended: the kernel returns it with
/// a delay.
pub(super) const DYING_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause between two checks of a namespace that is being destroyed.
pub(super) const PAUSE: Duration = Duration::from_millis(20);
/// Limit for attempts to move a device out of a container that keeps changing it.
const MAX_RETRIEVALS: u32 = 4;
/// Time limit for starting another attempt. A process in the device's namespace, or in any other one, can slow each
/// attempt down.
const RETRIEVE_TIMEOUT: Duration = Duration::from_secs(4);

/// The operations that differ between interfaces and RDMA devices.
pub(crate) trait MoveOps: Sized {
    /// The noun before a device's name in messages.
    const WORD: &'static str;
    /// The requirements for moving from a user namespace, for messages.
    const NEEDS: &'static str;
    /// The device's state that a lease records, and its variant.
    type Saved: Clone;
    const TO_STATE: fn(Self::Saved) -> SavedState;
    /// The state of the device in the network namespace where it was found.
    type Observation;

    /// Fails if no device can move from the host to this container.
    fn check_movable(context: &MoveContext<'_>, name: &str) -> Result<()>;
    /// Takes further locks that the move requires. Fails if the device is leased under another name.
    fn reserve(_: &Leases, _: &MoveRequest<'_>) -> Result<Option<Lock>> {
        Ok(None)
    }
    /// Returns the device that a hook names, or `None` if the namespace does not have it.
    fn find_requested(
        netns: &Netns,
        request: &MoveRequest<'_>,
    ) -> Result<Option<Self::Observation>>;
    /// Checks everything that may fail before changing anything. Returns the device's state and a warning.
    fn examine(
        observation: &Self::Observation,
        request: &MoveRequest<'_>,
        context: &MoveContext<'_>,
    ) -> Result<(Self::Saved, Option<String>)>;
    /// Fails if the device is already in the container's namespace with other settings than requested.
    fn check_existing(_: &Netns, _: &Self::Observation, _: &MoveRequest<'_>) -> Result<()> {
        Ok(())
    }
    /// Returns the state of a device in the container's namespace for which no lease records the state on the host.
    fn stray_state(
        observation: &Self::Observation,
        request: &MoveRequest<'_>,
    ) -> Result<Self::Saved>;
    /// Moves a leased device to the container.
    fn send(
        observation: &Self::Observation,
        request: &MoveRequest<'_>,
        saved: &Self::Saved,
        context: &MoveContext<'_>,
    ) -> Result<()>;

    /// Finds the device of a lease in a namespace, under any name.
    fn find(netns: &Netns, saved: &Self::Saved) -> Result<Option<Self::Observation>>;
    /// Returns whether a namespace has a device of a PCI function.
    fn is_in_netns(netns: &Netns, pci: PciAddress, name: &str) -> bool;
    /// Prepares the return of a device, for example by binding its driver.
    fn prepare(_host_netns: &Netns, _: &Self::Saved) -> Result<()> {
        Ok(())
    }
    /// Moves the device out of a namespace, whatever the container did to it. Succeeds if the device is no longer there.
    fn move_home(
        from: &Netns,
        observation: &Self::Observation,
        host_netns: &Netns,
        saved: &Self::Saved,
    ) -> Result<()>;
    /// Restores the state of a device that is on the host again.
    fn restore(returned: ReturnedDevice<'_, Self>, host_netns: &Netns) -> Result<(), RestoreError>;
}

/// Opens the network namespace of this process. Fails if it is not the host's. `word` and `name` are for messages.
pub(super) fn open_host_netns(word: &str, name: &str) -> Result<Netns> {
    let netns = Netns::open_own()?;
    if !netns.is_initial() {
        bail!(
            "{word} {name} cannot move: the engine is not in this host's own network and PID namespaces, and has no devices of it"
        );
    }
    Ok(netns)
}

/// Returns an error that says where a device is that is not on the host.
pub(super) fn not_on_host_error<K: MoveOps>(
    host_netns: &Netns,
    pci: PciAddress,
    name: &str,
) -> Error {
    let hint =
        match find_elsewhere::<K>(host_netns, name, &|netns| K::is_in_netns(netns, pci, name)) {
            Ok(Some(namespace)) => {
                format!("; it is in a network namespace that {} keeps", namespace.keeper)
            }
            Ok(None) => "; is its function bound to its driver?".to_owned(),
            Err(error) => return error,
        };
    error!("{} {name} ({pci}) not found on this host{hint}", K::WORD)
}

/// Returns the network namespace that has the device. Fails if the search timed out.
fn find_elsewhere<K: MoveOps>(
    host_netns: &Netns,
    name: &str,
    has_device: &dyn Fn(&Netns) -> bool,
) -> Result<Option<netns::FoundNetns>> {
    netns::find_netns(host_netns, has_device)
        .with_context(|| format!("{} {name}: looking at other network namespaces", K::WORD))
}

/// Context for moving devices of one kind from the host to a container.
pub(crate) struct MoveContext<'a> {
    pub(super) host_netns: Netns,
    pub(super) container_netns: Netns,
    pub(super) leases: Leases,
    /// The lease request of the container, without devices.
    lease_request: InitLeaseRequest<'a>,
}

impl<'a> MoveContext<'a> {
    /// Sorts the requests: a fixed order prevents deadlocks between containers that request the same devices. Returns
    /// `None` without requests. The texts are for messages: see [`MoveOps`].
    pub(super) fn open(
        requests: &mut [MoveRequest<'_>],
        word: &str,
        needs: &str,
        lease_request: InitLeaseRequest<'a>,
    ) -> Result<Option<Self>> {
        requests.sort_unstable_by_key(|request| request.device);
        let Some(MoveRequest { name, .. }) = requests.first() else {
            return Ok(None);
        };
        let ContainerInit { init, host, .. } = lease_request.container;
        if !host.is_initial_namespace() {
            bail!(
                "{word} {name} cannot move: the engine is in a user namespace (rootless); {needs}"
            );
        }
        Ok(Some(MoveContext {
            host_netns: open_host_netns(word, name)?,
            container_netns: Netns::open_init(init)?,
            leases: Leases::open(&open_run(host.trusted())?, Processes::default())?,
            lease_request,
        }))
    }

    /// Leases a device to the container. `record` has the device's state on the host, unless it stays there. `alone`
    /// is that of [`InitLeaseRequest`].
    pub(super) fn lease_device(
        &self,
        device: &DeviceId,
        move_record: Option<&MoveRecord>,
        alone: bool,
    ) -> Result<()> {
        let devices = slice::from_ref(device);
        let request = InitLeaseRequest { devices, move_record, alone, ..self.lease_request };
        lease::claim(request).map(drop)
    }

    /// Returns whether the hook of a ResourceClaim has already set up the device for this container. The device's own
    /// hook, which runs after it and names no claim, must not change that.
    pub(super) fn is_set_up_by_claim(&self, device: &DeviceId) -> Result<bool> {
        Ok(self.lease_request.arguments.claim.is_none()
            && self
                .leases
                .is_set_up_for_claim(device, &self.lease_request.container.to_leased())?)
    }
}

/// A request to move a device that a hook names.
#[derive(Clone, Debug)]
pub(crate) struct MoveRequest<'a> {
    /// The device under the name of its lease.
    pub(super) device: &'a DeviceId,
    /// Its name on the host.
    pub(super) name: String,
    pub(super) pci: PciAddress,
    /// The name in the container, or `None` to keep the host's.
    pub(super) new_name: Option<&'a NewInterfaceName>,
    /// Settings from the hook's arguments.
    pub(super) requested: NetdevSettings,
    /// Settings from the hook's arguments, completed by config.toml.
    pub(super) settings: NetdevSettings,
    /// Settings of the virtual function.
    pub(super) vf: Option<VfConfig>,
}

impl<'a> MoveRequest<'a> {
    /// Finds, checks, leases and moves the device. It is added to `acquired` as soon as it is leased, so the caller
    /// returns it after a failure of this or another device. `lock` is that of the device.
    pub(super) fn fulfill<K: MoveOps>(
        &self,
        context: &MoveContext<'_>,
        lock: Lock,
        acquired: &mut Vec<ContainerDevice<'a>>,
    ) -> Result<K::Observation> {
        let MoveContext { host_netns, container_netns, leases, .. } = context;
        let locks = iter::once(lock).chain(K::reserve(leases, self)?).collect();
        let mut container_device = ContainerDevice::new(self.device, locks);
        let Some(observation) = K::find_requested(host_netns, self)? else {
            let observation = self.join_others::<K>(context)?;
            acquired.push(container_device);
            return Ok(observation);
        };
        if container_netns.is_same(host_netns) {
            // A container with the host's network uses the device where it is.
            context.lease_device(self.device, None, true)?;
            acquired.push(container_device);
            return Ok(observation);
        }
        let (saved, warning) = K::examine(&observation, self, context)?;
        let addresses = self.settings.addresses.iter().map(InterfaceAddress::address).collect();
        let record = MoveRecord {
            addresses,
            ..MoveRecord::new((K::TO_STATE)(saved.clone()), container_netns.cookie())
        };
        context.lease_device(self.device, Some(&record), true)?;
        (container_device.record, container_device.warning) = (Some(record), warning);
        acquired.push(container_device);
        K::send(&observation, self, &saved, context)?;
        Ok(observation)
    }

    /// Fails if another container has the device with other settings of the virtual function.
    pub(super) fn check_same_settings(&self, record: &MoveRecord) -> Result<()> {
        let requested = self.vf.as_ref().map(VfConfig::to_settings).transpose()?;
        let current = record.saved.vf().map(|vf| vf.given);
        if requested != current {
            bail!(
                "{}: another container has it too, and its virtual function is set up otherwise; \
                 request the same VLAN, or for another device",
                self.device
            );
        }
        Ok(())
    }

    /// Leases a device that is already in the container's namespace, because another container of the namespace has it
    /// or another program moved it there.
    fn join_others<K: MoveOps>(&self, context: &MoveContext<'_>) -> Result<K::Observation> {
        let MoveContext { host_netns, container_netns, leases, lease_request } = context;
        let Some(observation) = K::find_requested(container_netns, self)? else {
            let error =
                leases.holders_error(self.device, lease_request.arguments.token.as_ref())?;
            return Err(
                error.unwrap_or_else(|| not_on_host_error::<K>(host_netns, self.pci, &self.name))
            );
        };
        let namespace = container_netns.cookie();
        let (saved, addresses): (SavedState, Vec<IpAddr>) =
            match leases.find_moved_to(self.device, namespace)? {
                Some(record) => {
                    self.check_same_settings(&record)?;
                    K::check_existing(container_netns, &observation, self)?;
                    (record.saved, record.addresses)
                }
                None => ((K::TO_STATE)(K::stray_state(&observation, self)?), Vec::new()),
            };
        let record = MoveRecord { addresses, ..MoveRecord::new(saved, namespace) };
        context.lease_device(self.device, Some(&record), true)?;
        Ok(observation)
    }
}

/// A device that was leased to the container.
pub(crate) struct ContainerDevice<'a> {
    pub(super) device: &'a DeviceId,
    /// Held until all devices are granted, so that no other process touches the device.
    _locks: Vec<Lock>,
    /// The record in its lease, with its state on the host. `None` if the device did not move for this container: the
    /// container has the host's network, or other containers of the namespace keep the device.
    pub(super) record: Option<MoveRecord>,
    /// A warning about a check that could not be completed.
    pub(super) warning: Option<String>,
}

impl<'a> ContainerDevice<'a> {
    pub(super) fn new(device: &'a DeviceId, locks: Vec<Lock>) -> Self {
        ContainerDevice { device, _locks: locks, record: None, warning: None }
    }
}

/// A device that has to return: its lease says so, or no container has it any more. It remains in this state after an
/// error, and the next attempt continues from there.
pub(super) struct ReturningDevice<'a, K: MoveOps> {
    pub(super) leases: &'a Leases,
    pub(super) device: &'a DeviceId,
    pub(super) record: MoveRecord,
    /// The device's state on the host.
    pub(super) saved: K::Saved,
}

impl<'a, K: MoveOps> ReturningDevice<'a, K> {
    /// Returns the device to the host, restores it and ends its lease. `hint` is a file that may refer to its network
    /// namespace.
    pub(super) fn retrieve_and_end(self, hint: Option<&Path>, timeout: Duration) -> Result<()> {
        let host_netns = open_host_netns(K::WORD, self.device.name.as_str())?;
        let (leases, device) = (self.leases, self.device);
        let returned = self.retrieve(&host_netns, hint, timeout)?;
        end_lease(leases, device, K::restore(returned, &host_netns))
    }

    /// Moves the device to the host from wherever it is. Next: [`ReturnedDevice`].
    fn retrieve(
        self,
        host_netns: &Netns,
        hint: Option<&Path>,
        timeout: Duration,
    ) -> Result<ReturnedDevice<'a, K>> {
        let started = Instant::now();
        let mut fetched = 0;
        // A namespace that was not found will not be found later, since no process is in it.
        let mut is_somewhere = true;
        let mut failed = None;
        K::prepare(host_netns, &self.saved)?;
        loop {
            if let Some(observation) = K::find(host_netns, &self.saved)? {
                return Ok(ReturnedDevice { returning: self, observation });
            }
            let is_in_time = fetched == 0 || started.elapsed() < RETRIEVE_TIMEOUT;
            if is_somewhere && fetched < MAX_RETRIEVALS && is_in_time {
                fetched += 1;
                // A process in that namespace may interfere, and may be too late the next time.
                match self.move_home(host_netns, hint) {
                    Ok(is_found) => is_somewhere = is_found,
                    Err(error) => failed = Some(error),
                }
                continue;
            }
            if started.elapsed() >= timeout {
                let (pci, name) = (self.record.saved.pci(), self.record.saved.name());
                return Err(failed.unwrap_or_else(|| not_on_host_error::<K>(host_netns, pci, name)));
            }
            thread::sleep(PAUSE);
        }
    }

    /// Moves the device out of the namespace that it was moved to, or to which the container moved it further. Returns
    /// false if it was not found.
    fn move_home(&self, host_netns: &Netns, hint: Option<&Path>) -> Result<bool> {
        let saved = &self.saved;
        // If this search times out, the one below fails too and reports it.
        if let Ok(Some(namespace)) = netns::find_by_cookie(self.record.namespace, hint)
            && let Some(observation) = K::find(&namespace.netns, saved)?
        {
            K::move_home(&namespace.netns, &observation, host_netns, saved)?;
            return Ok(true);
        }
        let has_device = |netns: &Netns| matches!(K::find(netns, saved), Ok(Some(_)));
        let found = find_elsewhere::<K>(host_netns, self.record.saved.name(), &has_device)?;
        let Some(namespace) = found else {
            return Ok(false);
        };
        if let Some(observation) = K::find(&namespace.netns, saved)? {
            K::move_home(&namespace.netns, &observation, host_netns, saved)?;
        }
        Ok(true)
    }
}

/// A device that is on the host again and may differ from its original state.
pub(crate) struct ReturnedDevice<'a, K: MoveOps> {
    pub(super) returning: ReturningDevice<'a, K>,
    pub(super) observation: K::Observation,
}

/// Ends the lease of a device that was restored. After a failure the lease records what differs.
pub(super) fn end_lease(
    leases: &Leases,
    device: &DeviceId,
    restored: Result<(), RestoreError>,
) -> Result<()> {
    let Err(RestoreError { error, differs }) = restored else {
        return leases.end_returned(device);
    };
    if differs.is_some() {
        // The error says the same.
        let _ = leases.update_moves(device, &|record| record.left.clone_from(&differs));
    }
    Err(error)
}

/// A device could not be restored.
#[derive(Debug)]
pub(crate) struct RestoreError {
    pub(super) error: Error,
    /// The differences, if the device is on the host. `None` if it is not, or if other interfaces may be stacked on it.
    pub(super) differs: Option<String>,
}

impl From<Error> for RestoreError {
    fn from(error: Error) -> Self {
        RestoreError { error, differs: None }
    }
}
