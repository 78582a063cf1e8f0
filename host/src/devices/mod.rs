//! What a host offers: each device as one record, [`Device`], whatever family it is of. A file here makes the records of
//! a family of what [`crate::discover`] has read, and of what the leases say of devices that are with containers.

mod attributes;
mod choice;
mod clock;
mod device;
mod drained;
mod family;
mod gdrcopy;
mod gpu;
mod hugepages;
pub mod inventory;
mod look;
mod moving;
pub mod near;
mod netdev;
mod nic;
mod places;
mod profile;
mod rdma;
mod rdma_away;
mod selection;
mod set_up;
mod vfio;

use std::collections::BTreeSet;

use onload_core::class::Class;
use onload_core::config::Config;
use onload_core::host_settings::RdmaNetns;

use crate::discover::movable::is_wanted;
use crate::drain;
use crate::host::Host;
use crate::leases::{self, Around};
pub use attributes::{Attribute, Attributes};
pub(crate) use choice::nearness;
pub(crate) use device::together;
pub use device::{Device, Health, Held, LOOPBACK, NearGpu, Sharing};
pub(crate) use family::{attributes, gone};
use inventory::Inventory;
use look::look;
pub use moving::{BRING_BACK, HELD, RETURNING, lost};
pub(crate) use places::Places;
pub(crate) use selection::{Selection, select};
pub use set_up::leave_without_hook;

/// Discovers everything that a host has. What cannot be read becomes a warning of the inventory,
/// and appears in its `unread` if it would have decided something.
pub fn discover(host: &Host, config: &Config) -> Inventory {
    // What cannot be read now is not read afterwards either, which says why.
    let before = if moves(config) { leases::list(host).unwrap_or_default() } else { Vec::new() };
    let mut inventory = look(host, config);
    if is_wanted(config) || inventory.is_rdma_exclusive() {
        let leases = leases::list(host).map(|now| Around::of(before, now));
        moving::settle(&leases, &mut inventory, config);
        rdma_away::settle(&leases, &mut inventory);
    }
    moving::warn_of_absent(&mut inventory, config);
    leave_bundles_open(&mut inventory, config);
    inventory.devices = devices(&inventory);
    drained::settle(drain::read(host), &mut inventory);
    set_up::settle(&mut inventory, config);
    gpu::settle(&mut inventory);
    inventory.not_offered.sort();
    inventory.unread.sort();
    inventory.warnings.sort();
    inventory
}

/// The devices of an inventory, by class.
pub(crate) fn devices(inventory: &Inventory) -> Vec<Device> {
    let places = Places::of(inventory);
    let classes = Class::ALL.into_iter();
    classes.flat_map(|class| family::devices(class, &places)).collect()
}

/// Whether devices may be in containers that this host does not see: a device that is not there has a lease, and one
/// that comes back loses it while the host is looked at.
fn moves(config: &Config) -> bool {
    is_wanted(config) || config.host.rdma_netns == Some(RdmaNetns::Exclusive)
}

/// What could not be read of a class leaves open which bundles there are that have devices of it.
fn leave_bundles_open(inventory: &mut Inventory, config: &Config) {
    let bundles = config.bundles.values();
    let classes: BTreeSet<Class> =
        bundles.flat_map(|bundle| bundle.devices.keys().copied()).collect();
    for unread in &mut inventory.unread {
        if unread.kinds.iter().any(|kind| classes.contains(kind)) {
            unread.kinds.push(Class::Bundle);
        }
    }
}
