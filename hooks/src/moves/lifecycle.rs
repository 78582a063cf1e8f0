//! The lifecycle of a device that moves into a container's network namespace and back: an interface or an RDMA device.
//! The states are types. Their methods are the transitions, and each names the state that comes next.
//!
//! ```text
//! MoveRequest ──▶ ContainerDevice ──▶ ReturningDevice ──▶ ReturnedDevice ──▶ the lease has ended
//!    │                                      ▲
//!    └──────────────────────────────────────┘ the device could not be moved
//! ```
//!
//! A virtual function that is set up for a container and stays on the host has the same lifecycle.
//!
//! The process may be killed at any point. The lease, which is written before the device moves and ends once the device
//! is restored, survives: the next process finds a [`ReturningDevice`].

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{slice, thread};

use onload_core::class::Class;
use onload_core::container_id::ContainerId;
use onload_core::device_id::DeviceId;
use onload_core::netdev::address::InterfaceAddress;
use onload_core::netdev::new_name::NewInterfaceName;
use onload_core::netdev::settings::NetdevSettings;
use onload_core::token::Token;
use onload_core::vf_config::VfConfig;
use onload_lease::{Leases, MoveRecord, NOT_MOVED, SavedState};
use onload_sys::error::{Context as _, Error, Result, bail, error};
use onload_sys::fs::lock::Lock;
use onload_sys::pci::PciAddress;
use onload_sys::processes::Processes;

use super::netns::{self, Netns};
use crate::config::config_file;
use crate::record::container_dir::open_run;
use crate::record::lease::{self, ContainerInit, InitLeaseRequest};
use crate::record::listing::random_index;

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

/// The operations that differ between interfaces, RDMA devices and virtual functions.
pub(crate) trait MoveOps: Sized {
    const CLASS: Class;
    /// The noun before a device's name in messages, and the noun with an article.
    const WORD: &'static str;
    const NOUN: &'static str;
    /// The requirements for moving from a user namespace, for messages.
    const NEEDS: &'static str;
    /// Whether the device leaves the host's network namespace.
    const MOVES: bool = true;
    /// The device's state that a lease records.
    type Saved: Clone + Into<SavedState>;
    /// The state of the device in the network namespace where it was found.
    type Observation;

    /// Fails if no device can move from the host to this container.
    fn check_movable(
        &self,
        _host_netns: &Netns,
        _container_netns: &Netns,
        _name: &str,
    ) -> Result<()> {
        Ok(())
    }
    /// Takes further locks that the move requires. Fails if the device is leased under another name.
    fn reserve(&self, _: &Leases, _: &MoveRequest<'_>) -> Result<Option<Lock>> {
        Ok(None)
    }
    /// Returns the device that a hook names, or `None` if the namespace does not have it.
    fn find_requested(
        &self,
        netns: &Netns,
        request: &MoveRequest<'_>,
    ) -> Result<Option<Self::Observation>>;
    /// Checks everything that may fail before changing anything. Returns the device's state and a warning.
    fn examine(
        &self,
        observation: &Self::Observation,
        request: &MoveRequest<'_>,
        context: &MoveContext<'_, Self>,
    ) -> Result<(Self::Saved, Option<String>)>;
    /// Fails if the device is already in the container's namespace with other settings than requested.
    fn check_existing(
        &self,
        _container_netns: &Netns,
        _observation: &Self::Observation,
        _: &MoveRequest<'_>,
    ) -> Result<()> {
        Ok(())
    }
    /// Returns the state of a device in the container's namespace for which no lease records the state on the host.
    fn stray_state(
        &self,
        observation: &Self::Observation,
        request: &MoveRequest<'_>,
    ) -> Result<Self::Saved>;
    /// Moves a leased device to the container.
    fn send(
        &self,
        container_device: &ContainerDevice<'_, Self>,
        saved: &Self::Saved,
        context: &MoveContext<'_, Self>,
    ) -> Result<()>;

    /// Returns the recorded state if it is of this kind.
    fn downcast_saved(saved: &SavedState) -> Option<&Self::Saved>;
    /// Finds the device of a lease in a namespace, under any name.
    fn find(&self, netns: &Netns, saved: &Self::Saved) -> Result<Option<Self::Observation>>;
    /// Returns whether a namespace has a device of a PCI function.
    fn is_in_netns(&self, netns: &Netns, pci: PciAddress, name: &str) -> bool;
    /// Prepares the return of a device, for example by binding its driver.
    fn prepare(&self, _: &HostNetns<'_, Self>, _: &Self::Saved) -> Result<()> {
        Ok(())
    }
    /// Moves the device out of a namespace, whatever the container did to it. Succeeds if the device is no longer there.
    fn move_home(
        &self,
        from: &Netns,
        observation: &Self::Observation,
        host_netns: &HostNetns<'_, Self>,
        saved: &Self::Saved,
    ) -> Result<()>;
    /// Restores the state of a device that is on the host again.
    fn restore(
        &self,
        returned: ReturnedDevice<'_, Self>,
        host_netns: &HostNetns<'_, Self>,
    ) -> Result<(), RestoreError>;
}

/// The host's network namespace.
pub(crate) struct HostNetns<'a, K> {
    pub(super) netns: Netns,
    pub(super) ops: &'a K,
}

impl<'a, K: MoveOps> HostNetns<'a, K> {
    /// Opens the namespace of this process. Fails if it is not the host's. `name` is for messages.
    fn open(ops: &'a K, name: &str) -> Result<Self> {
        let netns = Netns::open_own()?;
        if !netns.is_initial() {
            bail!(
                "{} {name} cannot move: the engine is not in this host's own network and PID namespaces, and has no {} of it",
                K::WORD,
                K::NOUN
            );
        }
        Ok(HostNetns { netns, ops })
    }

    /// Finds the device of a lease on the host.
    pub(super) fn find(&self, saved: &K::Saved) -> Result<Option<K::Observation>> {
        self.ops.find(&self.netns, saved)
    }

    /// Returns an error that says where a device is that is not on the host.
    pub(super) fn not_on_host_error(&self, pci: PciAddress, name: &str) -> Error {
        let hint = match self.find_elsewhere(name, &|netns| self.ops.is_in_netns(netns, pci, name))
        {
            Ok(Some(namespace)) => {
                format!("; it is in a network namespace that {} keeps", namespace.keeper)
            }
            Ok(None) => "; is its function bound to its driver?".to_owned(),
            Err(error) => return error,
        };
        error!("{} {name} ({pci}) not found on this host{hint}", K::WORD)
    }

    /// Returns the network namespace that has the device. Fails if the search timed out.
    fn find_elsewhere(
        &self,
        name: &str,
        has_device: &dyn Fn(&Netns) -> bool,
    ) -> Result<Option<netns::FoundNetns>> {
        netns::find_netns(&self.netns, has_device)
            .with_context(|| format!("{} {name}: looking at other network namespaces", K::WORD))
    }
}

/// Context for moving devices of one kind from the host to a container.
pub(crate) struct MoveContext<'a, K> {
    pub(super) host_netns: HostNetns<'a, K>,
    pub(super) container_netns: Netns,
    pub(super) leases: Leases,
    /// The lease request of the container, without devices.
    lease_request: InitLeaseRequest<'a>,
}

impl<'a, K: MoveOps> MoveContext<'a, K> {
    /// `name` is for messages.
    fn open(name: &str, lease_request: InitLeaseRequest<'a>, ops: &'a K) -> Result<Self> {
        let ContainerInit { init, host, .. } = lease_request.container;
        if !host.is_initial_namespace() {
            bail!(
                "{} {name} cannot move: the engine is in a user namespace (rootless); {}",
                K::WORD,
                K::NEEDS
            );
        }
        let host_netns = HostNetns::open(ops, name)?;
        let container_netns = Netns::open_init(init)?;
        ops.check_movable(&host_netns.netns, &container_netns, name)?;
        let leases = Leases::open(&open_run(host.trusted())?, Processes::default())?;
        Ok(MoveContext { host_netns, container_netns, leases, lease_request })
    }

    fn container_id(&self) -> &'a ContainerId {
        self.lease_request.container.id
    }

    /// Returns the bundle of the container, without symbolic links.
    fn bundle(&self) -> Result<PathBuf> {
        lease::canonical(self.lease_request.container.bundle)
    }

    /// Leases a device to the container. `record` has the device's state on the host, unless it stays there.
    fn lease_device(&self, device: &DeviceId, record: Option<&MoveRecord>) -> Result<()> {
        let devices = slice::from_ref(device);
        let (move_record, alone) = (record, K::MOVES);
        let request = InitLeaseRequest { devices, move_record, alone, ..self.lease_request };
        lease::claim(request).map(drop)
    }

    /// Returns whether the hook of a ResourceClaim has already set up the device for this container. The device's own
    /// hook, which runs after it and names no claim, must not change that.
    fn is_set_up_by_claim(&self, device: &DeviceId) -> Result<bool> {
        if self.lease_request.arguments.claim.is_some() {
            return Ok(false);
        }
        self.leases.is_set_up_for_claim(device, self.container_id(), &self.bundle()?)
    }

    /// Returns the record of a device in the container's namespace.
    fn new_record(&self, saved: SavedState, addresses: Vec<IpAddr>) -> MoveRecord {
        MoveRecord {
            saved,
            namespace: if K::MOVES { self.container_netns.cookie() } else { NOT_MOVED },
            addresses,
            returning: false,
            left: None,
            rebound: None,
        }
    }

    /// Returns a device to the host after its move failed.
    fn return_device(&self, device: &DeviceId, saved: K::Saved) -> Result<()> {
        self.leases.mark_returning(device, self.container_id(), &self.bundle()?)?;
        // An earlier start of the container may have left the device changed. In that case the lease has its original
        // state.
        let (leases, ops) = (&self.leases, self.host_netns.ops);
        let kept = leases
            .find_returning(device)?
            .and_then(|record| ReturningDevice::new(leases, device, record));
        let returning = kept.unwrap_or_else(|| ReturningDevice {
            leases,
            device,
            record: self.new_record(saved.clone().into(), Vec::new()),
            saved,
        });
        if let Some(observation) = ops.find(&self.container_netns, &returning.saved)? {
            ops.move_home(&self.container_netns, &observation, &self.host_netns, &returning.saved)?;
        }
        returning.retrieve(&self.host_netns, None, DYING_TIMEOUT)?.end(&self.host_netns)
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
    /// Next: [`ContainerDevice`]. A failure before the lease has changed nothing. A failure afterwards is undone.
    fn fulfill<K: MoveOps>(self, context: &MoveContext<'_, K>) -> Result<ContainerDevice<'a, K>> {
        let (ops, leases) = (context.host_netns.ops, &context.leases);
        let mut locks = vec![leases.lock_device(self.device)?];
        return_leftovers(leases, self.device, ops, DYING_TIMEOUT)?;
        locks.extend(ops.reserve(leases, &self)?);
        let Some(observation) = ops.find_requested(&context.host_netns.netns, &self)? else {
            return self.join_others(context, locks);
        };
        let container_device = ContainerDevice::new(self, observation, locks);
        if !K::MOVES {
            let device = container_device.request.device;
            if let Some(record) = leases.find_moved_to(device, NOT_MOVED)? {
                if let Err(error) = container_device.request.check_same_settings(&record)
                    && !context.is_set_up_by_claim(device)?
                {
                    return Err(error);
                }
                return container_device.lease_in_place(context, Some(&record));
            }
        } else if context.container_netns.is_same(&context.host_netns.netns) {
            // A container with the host's network uses the device where it is.
            return container_device.lease_in_place(context, None);
        }
        container_device.send(context)
    }

    /// Fails if another container has the device with other settings of the virtual function.
    fn check_same_settings(&self, record: &MoveRecord) -> Result<()> {
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
    /// or another program moved it there. Next: [`ContainerDevice`].
    fn join_others<K: MoveOps>(
        self,
        context: &MoveContext<'_, K>,
        locks: Vec<Lock>,
    ) -> Result<ContainerDevice<'a, K>> {
        let (ops, leases) = (context.host_netns.ops, &context.leases);
        let Some(observation) = ops.find_requested(&context.container_netns, &self)? else {
            let error = leases
                .holders_error(self.device, context.lease_request.arguments.token.as_ref())?;
            return Err(
                error.unwrap_or_else(|| context.host_netns.not_on_host_error(self.pci, &self.name))
            );
        };
        let record = leases.find_moved_to(self.device, context.container_netns.cookie())?;
        let (saved, addresses) = match record {
            Some(record) => {
                self.check_same_settings(&record)?;
                ops.check_existing(&context.container_netns, &observation, &self)?;
                (record.saved, record.addresses)
            }
            None => (ops.stray_state(&observation, &self)?.into(), Vec::new()),
        };
        let record = context.new_record(saved, addresses);
        ContainerDevice::new(self, observation, locks).lease_in_place(context, Some(&record))
    }
}

/// A device that the container has or is about to get.
pub(crate) struct ContainerDevice<'a, K: MoveOps> {
    pub(super) request: MoveRequest<'a>,
    /// The device when it was found.
    pub(super) observation: K::Observation,
    /// Held until all devices are granted, so that no other process touches the device.
    _locks: Vec<Lock>,
    /// The state on the host. `None` if the device did not move for this container.
    saved: Option<K::Saved>,
    /// A warning about a check that could not be completed.
    warning: Option<String>,
}

impl<'a, K: MoveOps> ContainerDevice<'a, K> {
    /// Must be leased next.
    fn new(request: MoveRequest<'a>, observation: K::Observation, locks: Vec<Lock>) -> Self {
        ContainerDevice { request, observation, _locks: locks, saved: None, warning: None }
    }

    /// Leases a device that is already in the container's namespace.
    fn lease_in_place(
        self,
        context: &MoveContext<'_, K>,
        record: Option<&MoveRecord>,
    ) -> Result<Self> {
        context.lease_device(self.request.device, record)?;
        Ok(self)
    }

    /// Leases the device with its present state and then moves it. On failure, next: [`ReturningDevice`].
    fn send(mut self, context: &MoveContext<'_, K>) -> Result<Self> {
        let (request, ops) = (&self.request, context.host_netns.ops);
        let (saved, warning) = ops.examine(&self.observation, request, context)?;
        let addresses = request.settings.addresses.iter().map(InterfaceAddress::address).collect();
        let record = context.new_record(saved.clone().into(), addresses);
        context.lease_device(request.device, Some(&record))?;
        if let Err(failed) = ops.send(&self, &saved, context) {
            return Err(combine_errors(failed, context.return_device(request.device, saved)));
        }
        (self.saved, self.warning) = (Some(saved), warning);
        Ok(self)
    }

    /// Next: [`ReturningDevice`], if the device moved for this container. Otherwise only its lease ends: the container
    /// has the host's network, or other containers of the namespace keep the device.
    fn withdraw(self, context: &MoveContext<'_, K>) -> Result<()> {
        let device = self.request.device;
        if let Some(saved) = self.saved {
            return context.return_device(device, saved);
        }
        let devices = slice::from_ref(device);
        context.leases.release_unmoved(devices, context.container_id(), &context.bundle()?)
    }
}

/// All devices of one kind that a container is granted.
pub(crate) struct ContainerDevices<'a, K: MoveOps> {
    context: MoveContext<'a, K>,
    devices: Vec<ContainerDevice<'a, K>>,
}

impl<'a, K: MoveOps> ContainerDevices<'a, K> {
    /// Moves all requested devices, or none: after a failure the moved devices are back, or the error says that they
    /// are not.
    pub(super) fn new(
        mut requests: Vec<MoveRequest<'a>>,
        lease_request: InitLeaseRequest<'a>,
        ops: &'a K,
    ) -> Result<Option<Self>> {
        // A fixed order prevents deadlocks between containers that request the same devices.
        requests.sort_unstable_by_key(|request| request.device);
        let Some(first) = requests.first() else {
            return Ok(None);
        };
        let context = MoveContext::open(&first.name, lease_request, ops)?;
        let mut container_devices = ContainerDevices { context, devices: Vec::new() };
        for request in requests {
            match request.fulfill(&container_devices.context) {
                Ok(container_device) => container_devices.devices.push(container_device),
                Err(failed) => return Err(container_devices.withdraw(failed)),
            }
        }
        Ok(Some(container_devices))
    }

    pub(super) fn container_netns(&self) -> &Netns {
        &self.context.container_netns
    }

    /// Returns the devices with their names on the host.
    pub(super) fn observations(&self) -> impl Iterator<Item = (&str, &K::Observation)> {
        self.devices.iter().map(|device| (device.request.name.as_str(), &device.observation))
    }

    /// Releases the locks and returns the warnings.
    pub(super) fn finish(self) -> Vec<String> {
        self.devices.into_iter().filter_map(|device| device.warning).collect()
    }

    /// Returns all devices after a failure. Returns the error to report.
    pub(crate) fn withdraw(self, mut failed: Error) -> Error {
        for device in self.devices.into_iter().rev() {
            failed = combine_errors(failed, device.withdraw(&self.context));
        }
        failed
    }
}

/// Combines the errors of a failed move and of the failed return.
fn combine_errors(failed: Error, return_result: Result<()>) -> Error {
    match return_result {
        Ok(()) => failed,
        Err(return_error) => {
            error!(
                "{failed:#}; then returning it: {return_error}; run \"onload-ctk lease restore\""
            )
        }
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
    /// Returns `None` for a device of another kind.
    pub(super) fn new(
        leases: &'a Leases,
        device: &'a DeviceId,
        record: MoveRecord,
    ) -> Option<Self> {
        let saved = K::downcast_saved(&record.saved)?.clone();
        Some(ReturningDevice { leases, device, record, saved })
    }

    fn retrieve_and_end(
        self,
        ops: &K,
        exited: Option<&ExitedContainer<'_>>,
        timeout: Duration,
    ) -> Result<()> {
        let host_netns = HostNetns::open(ops, self.device.name.as_str())?;
        self.retrieve(&host_netns, exited, timeout)?.end(&host_netns)
    }

    /// Moves the device to the host from wherever it is. Next: [`ReturnedDevice`].
    fn retrieve(
        self,
        host_netns: &HostNetns<'_, K>,
        exited: Option<&ExitedContainer<'_>>,
        timeout: Duration,
    ) -> Result<ReturnedDevice<'a, K>> {
        let saved = &self.saved;
        let started = Instant::now();
        let mut fetched = 0;
        // A namespace that was not found will not be found later, since no process is in it.
        let mut is_somewhere = true;
        let mut failed = None;
        host_netns.ops.prepare(host_netns, saved)?;
        loop {
            if let Some(observation) = host_netns.find(saved)? {
                return Ok(ReturnedDevice { returning: self, observation });
            }
            let is_in_time = fetched == 0 || started.elapsed() < RETRIEVE_TIMEOUT;
            if is_somewhere && fetched < MAX_RETRIEVALS && is_in_time {
                fetched += 1;
                // A process in that namespace may interfere, and may be too late the next time.
                match self.move_home(
                    host_netns,
                    exited.and_then(ExitedContainer::network_namespace).as_deref(),
                ) {
                    Ok(is_found) => is_somewhere = is_found,
                    Err(error) => failed = Some(error),
                }
                continue;
            }
            if started.elapsed() >= timeout {
                let (pci, name) = (self.record.saved.pci(), self.record.saved.name());
                return Err(failed.unwrap_or_else(|| host_netns.not_on_host_error(pci, name)));
            }
            thread::sleep(PAUSE);
        }
    }

    /// Moves the device out of the namespace that it was moved to, or to which the container moved it further. Returns
    /// false if it was not found.
    fn move_home(&self, host_netns: &HostNetns<'_, K>, hint: Option<&Path>) -> Result<bool> {
        let (ops, saved) = (host_netns.ops, &self.saved);
        // If this search times out, the one below fails too and reports it.
        if let Ok(Some(namespace)) = netns::find_by_cookie(self.record.namespace, hint)
            && let Some(observation) = ops.find(&namespace.netns, saved)?
        {
            ops.move_home(&namespace.netns, &observation, host_netns, saved)?;
            return Ok(true);
        }
        let has_device = |netns: &Netns| matches!(ops.find(netns, saved), Ok(Some(_)));
        let Some(namespace) = host_netns.find_elsewhere(self.record.saved.name(), &has_device)?
        else {
            return Ok(false);
        };
        if let Some(observation) = ops.find(&namespace.netns, saved)? {
            ops.move_home(&namespace.netns, &observation, host_netns, saved)?;
        }
        Ok(true)
    }
}

/// A device that is on the host again and may differ from its original state.
pub(crate) struct ReturnedDevice<'a, K: MoveOps> {
    pub(super) returning: ReturningDevice<'a, K>,
    pub(super) observation: K::Observation,
}

impl<K: MoveOps> ReturnedDevice<'_, K> {
    /// Restores the device and ends its lease. On failure the lease records what differs.
    fn end(self, host_netns: &HostNetns<'_, K>) -> Result<()> {
        let ReturningDevice { leases, device, .. } = self.returning;
        match host_netns.ops.restore(self, host_netns) {
            Ok(()) => leases.end_returned(device),
            Err(RestoreError { error, differs }) => {
                if differs.is_some() {
                    // The error says the same.
                    let _ = leases.update_moves(device, &|record| record.left.clone_from(&differs));
                }
                Err(error)
            }
        }
    }
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

/// Returns a device that an earlier container left behind. The caller holds its lock. Returns whether there was one.
pub(super) fn return_leftovers<K: MoveOps>(
    leases: &Leases,
    device: &DeviceId,
    ops: &K,
    timeout: Duration,
) -> Result<bool> {
    let record = leases.find_returning(device)?;
    let Some(returning) = record.and_then(|record| ReturningDevice::new(leases, device, record))
    else {
        return Ok(false);
    };
    returning.retrieve_and_end(ops, None, timeout).map(|()| true)
}

/// A container that has exited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExitedContainer<'a> {
    pub(crate) container: &'a ContainerId,
    pub(crate) token: Option<&'a Token>,
    /// The bundle's path as the engine named it, with links: it contains config.json.
    pub(crate) bundle: &'a Path,
}

impl ExitedContainer<'_> {
    /// Returns the network namespace's file that config.json names.
    fn network_namespace(&self) -> Option<PathBuf> {
        config_file::network_namespace(self.bundle)
    }
}

/// Ends an exited container's leases of devices of one kind that moved, and returns the devices to the host if it was the
/// last container of its namespace. A device that cannot be returned now keeps its lease, and the first such error is
/// returned.
pub(super) fn release_devices<K: MoveOps>(
    leased: &[DeviceId],
    exited: &ExitedContainer<'_>,
    ops: &K,
) -> Result<()> {
    if leased.iter().all(|device| device.class != K::CLASS) {
        return Ok(());
    }
    let Some(leases) = lease::find()? else {
        return Ok(());
    };
    let bundle = lease::was_canonical(exited.bundle);
    retry_each(leases.moved_devices(leased, K::CLASS)?, &|device| {
        let _moving = leases.lock_device(device)?;
        let record = leases.release_exited(device, exited.container, &bundle, exited.token)?;
        match record.and_then(|record| ReturningDevice::new(&leases, device, record)) {
            Some(returning) => returning.retrieve_and_end(ops, Some(exited), DYING_TIMEOUT),
            None => Ok(()),
        }
    })
}

/// Runs `action` for each device. If it succeeds for some, runs it again for those that failed: a device that was
/// restored may have had the name of another one. Returns the first error that remains.
fn retry_each(devices: BTreeSet<DeviceId>, action: &dyn Fn(&DeviceId) -> Result<()>) -> Result<()> {
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

/// Returns and restores devices of exited containers, each under its lock, if `timeout_for` grants it time when its turn
/// comes. Fails only if the leases cannot be read.
pub(super) fn restore<K: MoveOps>(
    leases: &Leases,
    timeout_for: lease::DeviceTimeout<'_>,
    ops: &K,
    timeout: Duration,
) -> Result<Vec<RestoreResult>> {
    let mut devices: Vec<DeviceId> = leases
        .list()?
        .into_iter()
        .filter(|entry| entry.is_returning && entry.device.class == K::CLASS)
        .map(|entry| entry.device)
        .collect();
    devices.sort_unstable();
    devices.dedup();
    // Begins at a random device: restoring one may take long, and if this process is stopped before the last one, the next
    // run begins elsewhere.
    let start = random_index().checked_rem(devices.len()).unwrap_or(0);
    devices.rotate_left(start);
    let mut restored = Vec::new();
    for device in devices {
        let Some(remaining) = timeout_for(&device) else {
            continue;
        };
        let moving = leases.lock_device_within(&device, remaining);
        let returned = moving.and_then(|_moving| return_leftovers(leases, &device, ops, timeout));
        if !matches!(returned, Ok(false)) {
            let result = returned.map(drop);
            restored.push(RestoreResult { device, result });
        }
    }
    restored.sort_unstable_by(|one, other| one.device.cmp(&other.device));
    Ok(restored)
}
