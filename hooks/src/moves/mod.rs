//! Devices of the host that move into a container's network namespace, and come back: interfaces, and RDMA devices in
//! netns mode exclusive. What happens to one, and in which order, is [`journey`]; here are its doors.

mod interface;
mod journey;
mod netns;
mod passing;
mod rdma;

use std::time::Duration;

use onload_core::class::Class;
use onload_core::hook_arguments::HookArguments;
use onload_core::lease::{Device, Leases};
use onload_core::netdev::settings::NetdevSettings;
use onload_sys::bail;
use onload_sys::error::Result;
use onload_sys::pci::PciAddress;

pub use interface::Identity;
pub(crate) use journey::Gone;
pub use journey::Restored;
use journey::{DYING_PATIENCE, Grants, MOVING_PATIENCE, Request};
pub(crate) use rdma::Node;
pub use rdma::{Devices, StandIn};

use crate::decide::host::{HostView, ThisHost};
use crate::record::lease::{self, Container};

/// How devices are found that move: tests on machines without any have others stand in for them, the programs know none.
#[derive(Clone, Debug, Default)]
pub struct StandIns {
    pub interfaces: Identity,
    pub rdma: Devices,
}

/// A hook's arguments as two: what else there is to do, and the RDMA devices that move, with their leases.
pub(crate) fn split(arguments: &HookArguments) -> (HookArguments, HookArguments) {
    let moves = |device: &&Device| {
        let mut rdma = arguments.rdma_netns.iter();
        rdma.any(|rdma| is_lease_of(device, Class::Rdma, &rdma.ibdev, rdma.pci))
    };
    let (moving, others): (Vec<&Device>, Vec<&Device>) = arguments.lease.iter().partition(moves);
    let rest = HookArguments {
        lease: others.into_iter().cloned().collect(),
        rdma_netns: Vec::new(),
        ..arguments.clone()
    };
    let moving = HookArguments {
        lease: moving.into_iter().cloned().collect(),
        token: arguments.token.clone(),
        claim: arguments.claim.clone(),
        rdma_netns: arguments.rdma_netns.clone(),
        ..HookArguments::default()
    };
    (rest, moving)
}

/// A device is leased by its name or by its function.
fn is_lease_of(device: &Device, class: Class, name: &str, pci: PciAddress) -> bool {
    let leased = device.name.as_str();
    device.class == class && (leased == name || leased == pci.to_string())
}

/// What a hook is to move, and under which name it is leased.
fn request<'a>(
    arguments: &'a HookArguments,
    class: Class,
    name: String,
    pci: PciAddress,
) -> Result<Request<'a>> {
    for device in &arguments.lease {
        if is_lease_of(device, class, &name, pci) {
            return Ok(Request {
                device,
                name,
                pci,
                addresses: Vec::new(),
                settings: NetdevSettings::default(),
            });
        }
    }
    let flag = if class == Class::Rdma {
        "rdma-netns"
    } else {
        "netdev"
    };
    bail!(
        "--{flag} {name}@{pci} has no --lease {class}:NAME beside it; write the specification anew"
    );
}

/// The interfaces that a hook is to move, each with what it is to have there.
fn interfaces<'a>(arguments: &'a HookArguments, host: &ThisHost) -> Result<Vec<Request<'a>>> {
    if arguments.netdev.is_empty() {
        return Ok(Vec::new());
    }
    let configured = host.settings()?.config.netdev;
    let mut requests = Vec::new();
    for interface in &arguments.netdev {
        let name = interface.name.to_string();
        let mut request = request(arguments, Class::Netdev, name, interface.pci)?;
        let settings = configured.get(request.device.name.as_str());
        request.settings = settings.cloned().unwrap_or_default();
        let given = arguments.address.iter();
        let given = given.filter(|given| given.interface == interface.name);
        request.addresses = given.map(|given| given.address).collect();
        if request.addresses.is_empty() {
            let addresses = &request.settings.addresses;
            request.addresses.clone_from(addresses);
        }
        requests.push(request);
    }
    Ok(requests)
}

/// The RDMA devices that a hook is to move.
fn rdma_devices(arguments: &HookArguments) -> Result<Vec<Request<'_>>> {
    let asked = arguments.rdma_netns.iter();
    asked
        .map(|rdma| request(arguments, Class::Rdma, rdma.ibdev.clone(), rdma.pci))
        .collect()
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
    let moving = interfaces(arguments, host)?;
    let is_moving = |device: &&Device| moving.iter().any(|one| one.device == *device);
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
    let grants = Grants::new(moving, wanted, container, host, identity)?;
    let mut warnings = grants.map_or_else(Vec::new, Grants::finish);
    warnings.extend(warning);
    Ok(warnings)
}

/// Brings back what earlier containers have left of interfaces, so that they can be leased.
fn settle_all(devices: &[Device], host: &ThisHost, identity: &Identity) -> Result<()> {
    let moving = devices.iter();
    let moving: Vec<&Device> = moving.filter(|one| one.class == Class::Netdev).collect();
    if moving.is_empty() || !host.is_initial_namespace() {
        return Ok(());
    }
    let Some(leases) = lease::find()? else {
        return Ok(());
    };
    for device in moving {
        let _moving = leases.lock_moving(device, MOVING_PATIENCE)?;
        journey::settle(&leases, device, identity, DYING_PATIENCE)?;
    }
    Ok(())
}

/// Gives a container RDMA devices in its network namespace, all of them or none; also the nodes that it is to have of
/// them.
pub(crate) fn give_rdma<'a>(
    arguments: &'a HookArguments,
    entry_point: &'a str,
    container: Container<'a>,
    host: &'a ThisHost,
    devices: &'a Devices,
) -> Result<Option<(Grants<'a, Devices>, Vec<Node>)>> {
    let claim = lease::Wanted {
        devices: &[],
        expect: &[],
        token: arguments.token.as_ref(),
        claim: arguments.claim.as_ref(),
        entry_point,
        moved: None,
    };
    let requests = rdma_devices(arguments)?;
    let Some(grants) = Grants::new(requests, claim, container, host, devices)? else {
        return Ok(None);
    };
    match rdma::nodes(&grants, devices) {
        Ok(nodes) => Ok(Some((grants, nodes))),
        Err(failed) => Err(grants.withdraw(failed)),
    }
}

/// Ends what a container that is gone has of these RDMA devices and interfaces, and brings back those of which it was the
/// last one of its namespace. What goes wrong with the one kind keeps nothing from the other.
pub(crate) fn take_back(
    rdma: &[Device],
    interfaces: &[Device],
    gone: &Gone<'_>,
    stand_ins: &StandIns,
) -> Result<()> {
    let devices = journey::take_back(rdma, gone, &stand_ins.rdma);
    journey::take_back(interfaces, gone, &stand_ins.interfaces)?;
    devices
}

/// Brings back and restores every interface whose containers have ended. One that somebody moves right now is left to
/// that. Nothing is waited for: udev calls again when the kernel gives an interface back.
pub fn restore_interfaces(leases: &Leases, identity: &Identity) -> Result<Vec<Restored>> {
    journey::restore(leases, &|_| true, identity, Duration::ZERO)
}

/// As [`restore_interfaces`].
pub fn restore_rdma(leases: &Leases, devices: &Devices) -> Result<Vec<Restored>> {
    journey::restore(leases, &|_| true, devices, Duration::ZERO)
}

/// Brings back members of pools before a container is refused one. The refusal says which of them do not come, and why.
pub(crate) fn fetch(leases: &Leases, is_wanted: &dyn Fn(&Device) -> bool) {
    let identity = Identity::default();
    let _ = journey::restore(leases, is_wanted, &identity, DYING_PATIENCE);
}

#[cfg(test)]
mod tests {
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
        let of = |all: &[Device]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(of(&rest.lease), ["vfio:0000:81:10.0", "rdma:mlx5_1"]);
        assert_eq!(of(&moving.lease), ["rdma:mlx5_0"]);
        assert!(rest.rdma_netns.is_empty() && rest.memlock.is_some());
        assert!(moving.memlock.is_none());
    }

    #[test]
    fn a_device_is_leased_by_its_name_or_by_its_function() {
        for name in ["mlx5_0", "0000:3b:00.0"] {
            let asked = parsed(&format!(
                "--lease rdma:{name} --rdma-netns mlx5_0@0000:3b:00.0"
            ));
            assert_eq!(rdma_devices(&asked).unwrap().len(), 1);
        }
        for other in ["rdma:mlx5_1", "netdev:mlx5_0"] {
            let asked = parsed(&format!("--lease {other} --rdma-netns mlx5_0@0000:3b:00.0"));
            let refused = rdma_devices(&asked).unwrap_err().to_string();
            assert!(refused.contains("has no --lease rdma:NAME"), "{refused}");
        }
    }
}
