//! The class netdev: interfaces that move into the container's network namespace. All that a specification has of
//! one is a hook, which moves it, and the same at the end, which brings it back.

use onload_cdi::{ContainerEdits, DeviceName};
use onload_core::class::Class;
use onload_core::config::{Config, Mover};
use onload_core::hook_arguments::{GivenAddress, HookArguments, MovedInterface};
use onload_core::host_settings::Interface;

use super::edits::Writer;
use super::offer::{Entry, Offer};
use crate::discover::inventory::Inventory;
use crate::discover::movable::Netdev;
use crate::pools::NamedPool;

/// None of them without the hook: nothing else moves them.
pub(super) fn offer(
    inventory: &Inventory,
    pools: &[NamedPool],
    config: &Config,
    writer: &Writer<'_>,
) -> Offer {
    let entries = inventory.netdevs.iter();
    let entries = entries.filter_map(|netdev| {
        if is_left_to_cni(netdev, pools, config) {
            Some((netdev.device.clone(), ContainerEdits::default()))
        } else {
            entry(netdev, config, writer)
        }
    });
    Offer {
        devices: entries.collect(),
        ..Offer::default()
    }
}

/// Whether a pool that has it says that a CNI plugin moves its members.
fn is_left_to_cni(netdev: &Netdev, pools: &[NamedPool], config: &Config) -> bool {
    let pools = pools.iter().filter(|pool| pool.class == Class::Netdev);
    let mut by_cni = pools.filter(|pool| {
        let settings = config.pools.get(pool.name.as_str());
        settings.is_some_and(|settings| settings.mover == Mover::Cni)
    });
    by_cni.any(|pool| {
        let mut members = pool.pool.members.iter();
        members.any(|member| member.name.as_str() == netdev.device)
    })
}

fn entry(netdev: &Netdev, config: &Config, writer: &Writer<'_>) -> Option<Entry> {
    let interface = Interface::try_from(netdev.name.clone()).ok()?;
    let name = DeviceName::try_from(netdev.device.as_str()).ok()?;
    let settings = config.netdev.get(netdev.device.as_str());
    let addresses = settings
        .into_iter()
        .flat_map(|settings| &settings.addresses);
    let address = addresses.map(|address| GivenAddress {
        interface: interface.clone(),
        address: *address,
    });
    let hooks = writer.moving_hooks(&HookArguments {
        lease: writer.leased(Class::Netdev, [name.as_str()].into_iter()),
        address: address.collect(),
        netdev: vec![MovedInterface {
            name: interface,
            pci: netdev.pci_address,
        }],
        ..HookArguments::default()
    });
    let edits = ContainerEdits {
        hooks,
        ..ContainerEdits::default()
    };
    (!edits.hooks.is_empty()).then_some((netdev.device.clone(), edits))
}
