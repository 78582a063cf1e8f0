//! Moves interfaces, and RDMA devices in netns mode exclusive, into a container's network namespace and back, and sets
//! up virtual functions for a container. [`lifecycle`] has the steps for one device; this module is the entry to them.

mod interface;
mod lifecycle;
mod netns;
mod rdma;
mod returning;
/// Devices that tests on machines without such devices use. The feature is only for tests.
#[cfg(feature = "stand-ins")]
#[path = "../../examples/stand-ins/devices.rs"]
pub mod stand_ins;
mod transit_name;
mod vf;

use onload_cdi::deduplicate;
use onload_core::class::Class;
use onload_core::device_id::DeviceId;
use onload_core::hook_arguments::{HookArguments, InterfaceValue};
use onload_core::host_settings::InterfaceName;
use onload_core::netdev::settings::NetdevSettings;
use onload_lease::{MoveRecord, NOT_MOVED, SavedState};
use onload_sys::error::{Error, Result, bail, error};
use onload_sys::netlink::nldev::RdmaChardev;
use onload_sys::pci::PciAddress;

use interface::InterfaceOps;
use lifecycle::{ContainerDevice, MoveContext, MoveOps, MoveRequest};
pub use netns::Netns;
pub use rdma::NetnsRdmaDevice;
use rdma::RdmaOps;
pub use returning::{RestoreResult, restore};
pub(crate) use returning::{fetch, release_devices};
use returning::{return_leftover_at_start, return_leftovers, undo_move};

use crate::decide::host_view::{HostView, LocalHost};
use crate::record::lease::{self, ContainerInit, InitLeaseRequest};

/// Splits a hook's arguments: the RDMA devices that move, with their leases, are second.
pub(crate) fn split(arguments: &HookArguments) -> (HookArguments, HookArguments) {
    let (moving, other_devices) = arguments.lease.iter().cloned().partition(|device| {
        arguments
            .rdma_netns
            .iter()
            .any(|rdma| is_lease_of(device, Class::Rdma, &rdma.ibdev, rdma.pci))
    });
    let rest = HookArguments { lease: other_devices, rdma_netns: Vec::new(), ..arguments.clone() };
    let moving = HookArguments {
        lease: moving,
        token: arguments.token.clone(),
        claim: arguments.claim.clone(),
        rdma_netns: arguments.rdma_netns.clone(),
        ..HookArguments::default()
    };
    (rest, moving)
}

/// Returns whether a lease is for this device. Leases name a device or its PCI function.
fn is_lease_of(device: &DeviceId, class: Class, name: &str, pci: PciAddress) -> bool {
    let leased = device.name.as_str();
    device.class == class && (leased == name || leased == pci.to_string())
}

/// Returns the request to move a device, with the name of its lease.
fn move_request<'a>(
    arguments: &'a HookArguments,
    class: Class,
    name: String,
    pci: PciAddress,
) -> Result<MoveRequest<'a>> {
    for device in &arguments.lease {
        if is_lease_of(device, class, &name, pci) {
            return Ok(MoveRequest {
                device,
                name,
                pci,
                new_name: None,
                requested: NetdevSettings::default(),
                settings: NetdevSettings::default(),
                vf: None,
            });
        }
    }
    let flag = if class == Class::Rdma { "rdma-netns" } else { "netdev" };
    bail!(
        "--{flag} {name}@{pci} has no matching --lease {class}:NAME; generate the specifications again"
    );
}

/// Returns the requests for interfaces, with their settings in the container.
fn interface_requests<'a>(
    arguments: &'a HookArguments,
    host: &LocalHost,
) -> Result<Vec<MoveRequest<'a>>> {
    if arguments.netdev.is_empty() {
        return Ok(Vec::new());
    }
    let configured = host.settings()?.config.netdev;
    let mut requests = Vec::new();
    for interface in &arguments.netdev {
        let name = interface.name.to_string();
        let mut request = move_request(arguments, Class::Netdev, name, interface.pci)?;
        request.vf = arguments
            .vf
            .iter()
            .find(|argument| argument.device == *request.device)
            .map(|argument| argument.vf.clone());
        let interface_name = &interface.name;
        let requested = NetdevSettings {
            addresses: values_for(&arguments.address, interface_name).copied().collect(),
            routes: values_for(&arguments.route, interface_name).copied().collect(),
            mtu: values_for(&arguments.mtu, interface_name).next().copied(),
            ..NetdevSettings::default()
        };
        let mut settings =
            configured.get(request.device.name.as_str()).cloned().unwrap_or_default();
        replace(&mut settings.addresses, &requested.addresses);
        replace(&mut settings.routes, &requested.routes);
        settings.mtu = requested.mtu.or(settings.mtu);
        (request.requested, request.settings) = (requested, settings);
        request.new_name = values_for(&arguments.rename, interface_name).next();
        requests.push(request);
    }
    Ok(requests)
}

/// Returns the requests for virtual functions of class vfio.
fn vf_requests(arguments: &HookArguments) -> Result<Vec<MoveRequest<'_>>> {
    let mut requests = Vec::new();
    for argument in &arguments.vf {
        if argument.device.class == Class::Vfio {
            let name = argument.device.name.to_string();
            let pci = name.parse()?;
            let mut request = move_request(arguments, Class::Vfio, name, pci)?;
            request.vf = Some(argument.vf.clone());
            requests.push(request);
        }
    }
    Ok(requests)
}

/// Returns the values for an interface among a hook's arguments.
fn values_for<'a, T>(
    values: &'a [InterfaceValue<T>],
    interface: &InterfaceName,
) -> impl Iterator<Item = &'a T> {
    values.iter().filter(move |value| value.interface == *interface).map(|entry| &entry.value)
}

/// Overrides a list unless the replacement is empty.
fn replace<T: Clone>(current: &mut Vec<T>, replacement: &[T]) {
    if !replacement.is_empty() {
        *current = replacement.to_vec();
    }
}

/// Returns the requests for RDMA devices.
fn rdma_requests(arguments: &HookArguments) -> Result<Vec<MoveRequest<'_>>> {
    arguments
        .rdma_netns
        .iter()
        .map(|rdma| move_request(arguments, Class::Rdma, rdma.ibdev.clone(), rdma.pci))
        .collect()
}

/// The devices that a container has acquired. Moved devices stay locked until this is finished or withdrawn.
pub(crate) struct AcquiredDevices<'a> {
    container: ContainerInit<'a>,
    entry_point: &'a str,
    leased: Vec<DeviceId>,
    /// Devices that moved or were set up.
    devices: Vec<ContainerDevice<'a>>,
    /// The nodes of moved RDMA devices that the container gets.
    pub(crate) nodes: Vec<RdmaChardev>,
    warnings: Vec<String>,
}

/// Leases the devices in the hooks' arguments to a container and moves those that have to move: all of them or none.
pub(crate) fn acquire<'a>(
    lease_arguments: &'a [HookArguments],
    moves: &'a [HookArguments],
    container: ContainerInit<'a>,
    entry_point: &'a str,
) -> Result<AcquiredDevices<'a>> {
    let mut acquired = AcquiredDevices {
        container,
        entry_point,
        leased: Vec::new(),
        devices: Vec::new(),
        nodes: Vec::new(),
        warnings: Vec::new(),
    };
    match acquired.acquire_all(lease_arguments, moves) {
        Ok(()) => Ok(acquired),
        Err(failed) => Err(acquired.withdraw(failed)),
    }
}

impl<'a> AcquiredDevices<'a> {
    fn acquire_all(
        &mut self,
        lease_arguments: &'a [HookArguments],
        moves: &'a [HookArguments],
    ) -> Result<()> {
        // A fixed order prevents deadlocks between containers that request the same devices.
        let by_lease = |arguments: &'a [HookArguments]| {
            let mut arguments: Vec<&HookArguments> = arguments.iter().collect();
            arguments.sort_by_key(|arguments| &arguments.lease);
            arguments
        };
        for arguments in by_lease(lease_arguments) {
            self.acquire_leases(arguments)?;
        }
        for arguments in by_lease(moves) {
            let lease_request = InitLeaseRequest::new(self.container, arguments, "createRuntime");
            let found = self.move_devices::<RdmaOps>(rdma_requests(arguments)?, lease_request)?;
            if !found.is_empty() {
                let container_netns = Netns::open_init(self.container.init)?;
                self.nodes.extend(rdma::collect_nodes(&container_netns, &found)?);
            }
        }
        self.nodes = deduplicate(std::mem::take(&mut self.nodes));
        Ok(())
    }

    /// Interfaces move last, since returning them takes longest.
    fn acquire_leases(&mut self, arguments: &'a HookArguments) -> Result<()> {
        let moving = interface_requests(arguments, self.container.host)?;
        let set_up = vf_requests(arguments)?;
        let mut leased = arguments.lease.clone();
        leased
            .retain(|device| !moving.iter().chain(&set_up).any(|request| request.device == device));
        let lease_request = InitLeaseRequest::new(self.container, arguments, self.entry_point);
        if !leased.is_empty() {
            if self.container.host.is_initial_namespace() {
                return_leftovers(&leased)?;
            }
            let lease_request = InitLeaseRequest { devices: &leased, ..lease_request };
            self.warnings.extend(lease::claim(lease_request)?);
            self.leased.extend(leased);
        }
        self.set_up_functions(set_up, lease_request)?;
        self.move_devices::<InterfaceOps>(moving, lease_request).map(drop)
    }

    /// Moves devices of one kind to the container. Returns what was found of them, with their names on the host.
    fn move_devices<K: MoveOps>(
        &mut self,
        mut requests: Vec<MoveRequest<'a>>,
        lease_request: InitLeaseRequest<'a>,
    ) -> Result<Vec<(String, K::Observation)>> {
        let mut found = Vec::new();
        let opened = MoveContext::open(&mut requests, K::WORD, K::NEEDS, lease_request)?;
        let Some(context) = opened else {
            return Ok(found);
        };
        for request in requests {
            K::check_movable(&context, &request.name)?;
            let lock = context.leases.lock_device(request.device)?;
            return_leftover_at_start(&context.leases, request.device)?;
            let observation = request.fulfill::<K>(&context, lock, &mut self.devices)?;
            found.push((request.name, observation));
        }
        Ok(found)
    }

    /// Sets up virtual functions of class vfio, which stay on the host.
    fn set_up_functions(
        &mut self,
        mut requests: Vec<MoveRequest<'a>>,
        lease_request: InitLeaseRequest<'a>,
    ) -> Result<()> {
        let opened = MoveContext::open(&mut requests, vf::WORD, vf::NEEDS, lease_request)?;
        let Some(context) = opened else {
            return Ok(());
        };
        for request in requests {
            let (leases, device) = (&context.leases, request.device);
            let lock = leases.lock_device(device)?;
            return_leftover_at_start(leases, device)?;
            let mut container_device = ContainerDevice::new(device, vec![lock]);
            if let Some(record) = leases.find_moved_to(device, NOT_MOVED)? {
                if let Err(error) = request.check_same_settings(&record)
                    && !context.is_set_up_by_claim(device)?
                {
                    return Err(error);
                }
                context.lease_device(device, Some(&record), false)?;
                self.devices.push(container_device);
                continue;
            }
            let saved = vf::examine_function(&request, &context.host_netns)?;
            let record = MoveRecord::new(SavedState::Function(saved.clone()), NOT_MOVED);
            context.lease_device(device, Some(&record), false)?;
            container_device.record = Some(record);
            self.devices.push(container_device);
            vf::set_up_function(&request, &context.host_netns, &saved)?;
        }
        Ok(())
    }

    /// Releases the locks and returns the warnings.
    pub(crate) fn finish(self) -> Vec<String> {
        let warnings = self.devices.into_iter().filter_map(|device| device.warning);
        warnings.chain(self.warnings).collect()
    }

    /// Returns all devices after a failure. Returns the error to report.
    pub(crate) fn withdraw(mut self, mut failed: Error) -> Error {
        while let Some(device) = self.devices.pop() {
            if let Err(return_error) = self.withdraw_device(device) {
                failed = error!(
                    "{failed:#}; then returning it: {return_error}; run \"onload-ctk lease restore\""
                );
            }
        }
        lease::abandon(&self.leased, self.container);
        failed
    }

    /// Returns a device that moved for this container. Otherwise only its lease ends.
    fn withdraw_device(&self, device: ContainerDevice<'_>) -> Result<()> {
        let Some(leases) = lease::find()? else {
            return Ok(());
        };
        match device.record {
            Some(record) => undo_move(&leases, device.device, record, self.container),
            None => leases
                .release_unmoved(std::slice::from_ref(device.device), &self.container.to_leased()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use onload_core::pool::Numa;
    use onload_core::token::Token;
    use onload_lease::run_dir::RunDir;
    use onload_lease::{Holder, LeaseRequest, Leases, MemberRequest};
    use onload_sys::processes::Processes;
    use onload_test_tree::Tree;

    use super::*;

    fn parsed(text: &str) -> HookArguments {
        let words: Vec<std::ffi::OsString> = text.split(' ').map(Into::into).collect();
        HookArguments::parse(&words).unwrap()
    }

    #[test]
    fn a_hook_s_arguments_are_those_that_move_and_the_rest() {
        let asked = parsed(
            "--memlock unlimited --lease rdma:mlx5_0 --lease vfio:0000:81:10.0 --lease rdma:mlx5_1 --rdma-netns mlx5_0@0000:3b:00.0",
        );
        let (rest, moving) = split(&asked);
        let texts = |all: &[DeviceId]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(texts(&rest.lease), ["vfio:0000:81:10.0", "rdma:mlx5_1"]);
        assert_eq!(texts(&moving.lease), ["rdma:mlx5_0"]);
        assert!(rest.rdma_netns.is_empty() && rest.memlock.is_some());
        assert!(moving.memlock.is_none());
    }

    #[test]
    fn a_device_that_somebody_moves_is_waited_for_no_longer_than_there_is_time() {
        let tree = Tree::new();
        tree.directory("run");
        let run = RunDir::find(&tree.path("run")).unwrap().unwrap();
        let leases = || Leases::open(&run, Processes::default()).unwrap();
        let device: DeviceId = "rdma:mlx5_3".parse().unwrap();
        let moved = r#"{"rdma":{"name":"mlx5_3","pci":"0000:3b:00.3","index":3},"namespace":7,"returning":true}"#;
        let device_request = MemberRequest {
            moved: Some(serde_json::from_str(moved).unwrap()),
            ..MemberRequest::for_device(device.clone(), 1)
        };
        let request = LeaseRequest {
            devices: &[device_request],
            numa: Numa::Any,
            container: &"one".parse().unwrap(),
            bundle: Path::new("/bundle"),
            holder: Holder::new_reservation(Token::new().unwrap(), None),
            token: None,
            claim: None,
            entry_point: "createRuntime",
        };
        leases().acquire(&request, &|_| None).unwrap();
        assert!(leases().list().unwrap()[0].is_returning());
        let _moving = leases().lock_device(&device).unwrap();
        let begun = Instant::now();
        let asked = Cell::new(0);
        fetch(&leases(), &|one| {
            asked.set(asked.get() + i32::from(*one == device));
            Some(Duration::from_millis(50))
        });
        assert_eq!(asked.get(), 1);
        assert!(begun.elapsed() < Duration::from_secs(3));
    }

    #[test]
    fn a_device_is_leased_by_its_name_or_by_its_function() {
        for name in ["mlx5_0", "0000:3b:00.0"] {
            let asked = parsed(&format!("--lease rdma:{name} --rdma-netns mlx5_0@0000:3b:00.0"));
            assert_eq!(rdma_requests(&asked).unwrap().len(), 1);
        }
        for other in ["rdma:mlx5_1", "netdev:mlx5_0"] {
            let asked = parsed(&format!("--lease {other} --rdma-netns mlx5_0@0000:3b:00.0"));
            let refused = rdma_requests(&asked).unwrap_err().to_string();
            assert!(refused.contains("has no matching --lease rdma:NAME"), "{refused}");
        }
    }
}
