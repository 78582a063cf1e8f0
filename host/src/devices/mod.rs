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

use crate::discover::movable::may_offer_interfaces;
use crate::drain;
use crate::host::Host;
use crate::leases::{self, LeaseComparison};
pub use attributes::{Attribute, Attributes};
pub(crate) use choice::pool_nearness;
pub(crate) use device::group_inseparable;
pub use device::{DeviceLease, GpuAlias, Health, HostDevice, LOOPBACK, Sharing};
pub(crate) use family::{attributes, missing_device};
use inventory::Inventory;
use look::read_host;
pub use moving::{BRING_BACK, HELD, RETURNING, lost_reason};
pub(crate) use places::FunctionIndex;
pub(crate) use selection::{Selection, select};
pub use set_up::exclude_without_hook;

/// Discovers everything that a host has. What cannot be read becomes a warning of the inventory,
/// and appears in its `unread` if it would have decided something.
pub fn discover(host: &Host, config: &Config) -> Inventory {
    // What cannot be read now is not read afterwards either, which says why.
    let before =
        if may_move_devices(config) { leases::list(host).unwrap_or_default() } else { Vec::new() };
    let mut inventory = read_host(host, config);
    if may_offer_interfaces(config) || inventory.is_rdma_exclusive() {
        let leases = leases::list(host).map(|now| LeaseComparison::new(before, now));
        moving::add_interfaces(&leases, &mut inventory, config);
        rdma_away::add_away_devices(&leases, &mut inventory);
    }
    moving::warn_of_absent(&mut inventory, config);
    leave_bundles_open(&mut inventory, config);
    inventory.devices = devices(&inventory);
    drained::apply_drain(drain::read(host), &mut inventory);
    set_up::apply_vf_configs(&mut inventory, config);
    gpu::add_gpu_aliases(&mut inventory);
    inventory.not_offered.sort();
    inventory.unread.sort();
    inventory.warnings.sort();
    inventory
}

/// The devices of an inventory, by class.
pub(crate) fn devices(inventory: &Inventory) -> Vec<HostDevice> {
    let places = FunctionIndex::from_inventory(inventory);
    let classes = Class::ALL.into_iter();
    classes.flat_map(|class| family::devices(class, &places)).collect()
}

/// Whether devices may be in containers that this host does not see: a device that is not there has a lease, and one
/// that comes back loses it while the host is looked at.
fn may_move_devices(config: &Config) -> bool {
    may_offer_interfaces(config) || config.host.rdma_netns == Some(RdmaNetns::Exclusive)
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
