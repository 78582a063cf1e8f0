//! The class netdev: interfaces that move into the container's network namespace. All that a specification has of
//! one is a hook, which moves it, and the same at the end, which brings it back.

use onload_cdi::ContainerEdits;
use onload_core::class::Class;
use onload_core::config::{Config, Mover};
use onload_core::hook_arguments::{Given, HookArguments, MovedInterface};
use onload_core::host_settings::Interface;

use super::edits::{Writer, given_vf};
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
            Some((netdev.name.to_string(), ContainerEdits::default()))
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
    let name = netdev.name.as_str();
    let settings = config.netdev.get(name);
    let addresses = settings
        .into_iter()
        .flat_map(|settings| &settings.addresses);
    let address = addresses.map(|address| Given {
        interface: interface.clone(),
        value: *address,
    });
    let lease = writer.leased(Class::Netdev, [name].into_iter());
    let vf = lease
        .iter()
        .filter_map(|leased| given_vf(leased, &[netdev]));
    let hooks = writer.hooks(&HookArguments {
        vf: vf.collect(),
        lease,
        address: address.collect(),
        netdev: vec![MovedInterface {
            name: interface,
            pci: netdev.pci?,
        }],
        ..HookArguments::default()
    });
    let edits = ContainerEdits {
        hooks,
        ..ContainerEdits::default()
    };
    (!edits.hooks.is_empty()).then_some((name.to_owned(), edits))
}
