//! The devices that a host offers, as one type for all families, [`HostDevice`]. Each file here creates the devices of
//! a family from the data of [`crate::discover`] and from the leases of devices in containers.

mod attributes;
mod classes;
mod device;
mod drain;
mod function_index;
pub mod gpu_nics;
mod interfaces;
pub mod inventory;
mod nearest_nics;
mod nic;
mod rdma;
mod read_host;
mod selection;
mod vf_configs;

use std::collections::BTreeSet;

use onload_core::class::Class;
use onload_core::config::Config;
use onload_core::host_settings::RdmaNetns;

use crate::discover::movable_interface::may_offer_interfaces;
use crate::host::Host;
use crate::leases;
pub use attributes::{Attribute, Attributes};
pub(crate) use classes::{attributes, missing_device};
pub(crate) use device::group_inseparable;
pub use device::{
    DeviceLease, GpuAlias, Health, HostDevice, LOOPBACK, RETURNING, STATE_HELD, Sharing,
};
pub(crate) use function_index::FunctionIndex;
pub use interfaces::{RETRIEVE_REMEDY, absent_af_xdp, lost_reason};
use inventory::Inventory;
pub(crate) use nearest_nics::pool_nearness;
use read_host::read_host;
pub(crate) use selection::{Selection, select};
pub use vf_configs::exclude_without_hook;

/// Discovers the devices of a host. A path that cannot be read becomes a warning of the inventory, and is added to its
/// `unread` if a class depends on it.
pub fn discover(host: &Host, config: &Config) -> Inventory {
    // A failure here is ignored, since the second read fails too and reports it.
    let before =
        if may_move_devices(config) { leases::list(host).unwrap_or_default() } else { Vec::new() };
    let mut inventory = read_host(host, config);
    if may_offer_interfaces(config) || inventory.is_rdma_exclusive() {
        let leases = leases::list(host).map(|now| leases::compare(before, now));
        interfaces::add_interfaces(&leases, &mut inventory, config);
        interfaces::add_rdma_devices(&leases, &mut inventory);
    }
    interfaces::warn_of_absent(&mut inventory, config);
    leave_bundles_open(&mut inventory, config);
    inventory.devices = devices(&inventory);
    drain::apply_drain(crate::drain::read(host), &mut inventory);
    vf_configs::apply_vf_configs(&mut inventory, config);
    nearest_nics::add_gpu_aliases(&mut inventory);
    inventory.not_offered.sort();
    inventory.unread.sort();
    inventory.warnings.sort();
    inventory
}

/// Returns the devices of an inventory by class.
pub(crate) fn devices(inventory: &Inventory) -> Vec<HostDevice> {
    let function_index = FunctionIndex::from_inventory(inventory);
    Class::ALL.into_iter().flat_map(|class| classes::devices(class, &function_index)).collect()
}

/// Returns whether devices may be in containers, invisible to the host. A missing device then has a lease, and a
/// returning one loses it while the host is read.
fn may_move_devices(config: &Config) -> bool {
    may_offer_interfaces(config) || config.host.rdma_netns == Some(RdmaNetns::Exclusive)
}

/// Marks bundles as undecided if a class of their devices is.
fn leave_bundles_open(inventory: &mut Inventory, config: &Config) {
    let classes: BTreeSet<Class> =
        config.bundles.values().flat_map(|bundle| bundle.devices.keys().copied()).collect();
    for unread in &mut inventory.unread {
        if unread.kinds.iter().any(|class| classes.contains(class)) {
            unread.kinds.insert(Class::Bundle);
        }
    }
}
