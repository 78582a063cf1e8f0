//! The class netdev: interfaces that move into the container's network namespace. All that a specification has of
//! one is a hook, which moves it, and the same at the end, which brings it back.

use onload_cdi::ContainerEdits;
use onload_core::class::Class;
use onload_core::config::{Config, Mover};
use onload_core::hook_arguments::{Given, HookArguments, MovedInterface};
use onload_core::host_settings::Interface;

use super::edits::Writer;
use super::offer::{Entry, Offer};
use crate::devices::Device;
use crate::pools::NamedPool;

/// None of them without the hook: nothing else moves them.
pub(super) fn offer(
    devices: &[&Device],
    pools: &[NamedPool],
    config: &Config,
    writer: &Writer<'_>,
) -> Offer {
    let entries = devices.iter().filter_map(|netdev| {
        if is_left_to_cni(netdev, pools, config) {
            Some((netdev.name.clone(), ContainerEdits::default()))
        } else {
            entry(netdev, config, writer)
        }
    });
    Offer { devices: entries.collect(), ..Offer::default() }
}

/// Whether a pool that has it says that a CNI plugin moves its members.
fn is_left_to_cni(netdev: &Device, pools: &[NamedPool], config: &Config) -> bool {
    let pools = pools.iter().filter(|pool| pool.class == Class::Netdev);
    let mut by_cni = pools.filter(|pool| {
        let settings = config.pools.get(pool.name.as_str());
        settings.is_some_and(|settings| settings.mover == Mover::Cni)
    });
    by_cni.any(|pool| {
        let mut members = pool.pool.members.iter();
        members.any(|member| member.name == netdev.name)
    })
}

fn entry(netdev: &Device, config: &Config, writer: &Writer<'_>) -> Option<Entry> {
    let interface = Interface::try_from(netdev.interfaces.first()?.clone()).ok()?;
    let settings = config.netdev.get(netdev.name.as_str());
    let addresses = settings.into_iter().flat_map(|settings| &settings.addresses);
    let address = addresses.map(|address| Given { interface: interface.clone(), value: *address });
    let hooks = writer.hooks(&HookArguments {
        address: address.collect(),
        netdev: vec![MovedInterface { name: interface, pci: netdev.pci? }],
        ..writer.leased(&[netdev])
    });
    let edits = ContainerEdits { hooks, ..ContainerEdits::default() };
    (!edits.hooks.is_empty()).then(|| (netdev.name.clone(), edits))
}
