//! Combines the data on each device from discovery, specifications, pools and leases.

use std::collections::{BTreeMap, BTreeSet};

use onload_cdi::Registry;
use onload_core::class::Class;
use onload_core::gpu_name;
use onload_core::pool::{ANY, UNCOUNTED};
use onload_lease::LeaseEntry;

use super::current_nodes::CurrentNodes;
use super::exclusion_reasons::ExclusionReasons;
use super::spec_devices::{GENERATE, SpecDevices};
use crate::devices::inventory::Inventory;
use crate::devices::{
    DeviceLease, FunctionIndex, Health, HostDevice, Sharing, attributes, group_inseparable,
    missing_device,
};
use crate::pools::PoolSet;

/// Returns the devices of a host, sorted by class and name: those that discovery offers, and those that a specification
/// still has. `specs` are those that the engine reads, `pools` those of the inventory, and `leases` all leases of the
/// host.
pub fn build_offers(
    inventory: &Inventory,
    specs: &Registry,
    pools: &PoolSet,
    leases: &[LeaseEntry],
) -> Vec<HostDevice> {
    let builder = OfferBuilder {
        inventory,
        function_index: FunctionIndex::from_inventory(inventory),
        spec_devices: SpecDevices::new(specs),
        exclusion_reasons: ExclusionReasons::new(inventory),
        nodes: CurrentNodes::new(inventory),
        leases: by_device(leases),
        memberships: pool_memberships(pools),
        pools,
    };
    Class::ALL.into_iter().flat_map(|class| builder.build_class(class)).collect()
}

#[derive(Clone, Debug, Default)]
struct PoolMembership {
    pools: Vec<String>,
    /// The number of containers that may have it at once, in the strictest of its pools.
    share: Option<u32>,
}

fn pool_memberships(pools: &PoolSet) -> BTreeMap<(Class, &str), PoolMembership> {
    let mut memberships: BTreeMap<(Class, &str), PoolMembership> = BTreeMap::new();
    let named_pools = pools.offered.iter().chain(&pools.drained);
    for named_pool in named_pools.filter(|named_pool| named_pool.name.as_str() != ANY) {
        let share = Some(named_pool.pool.share).filter(|share| *share != UNCOUNTED);
        for member in &named_pool.pool.members {
            let key = (named_pool.class, member.name.as_str());
            let membership = memberships.entry(key).or_default();
            membership.pools.push(named_pool.name.to_string());
            membership.share = min_share(membership.share, share);
        }
    }
    for membership in memberships.values_mut() {
        membership.pools.sort();
    }
    memberships
}

fn min_share(one: Option<u32>, other: Option<u32>) -> Option<u32> {
    one.into_iter().chain(other).min()
}

fn by_device(leases: &[LeaseEntry]) -> BTreeMap<(Class, &str), Vec<&LeaseEntry>> {
    let mut by_device: BTreeMap<(Class, &str), Vec<&LeaseEntry>> = BTreeMap::new();
    for entry in leases.iter().filter(|entry| !entry.has_ended()) {
        let key = (entry.device.class, entry.device.name.as_str());
        by_device.entry(key).or_default().push(entry);
    }
    by_device
}

fn device_lease(entry: &LeaseEntry) -> DeviceLease {
    DeviceLease {
        slot: entry.number,
        lease: entry.lease.as_ref().ok().cloned(),
        text: match &entry.lease {
            Ok(lease) => lease.to_string(),
            Err(reason) => format!("an unknown container ({reason})"),
        },
    }
}

struct OfferBuilder<'a> {
    inventory: &'a Inventory,
    function_index: FunctionIndex<'a>,
    spec_devices: SpecDevices<'a>,
    exclusion_reasons: ExclusionReasons<'a>,
    nodes: CurrentNodes,
    /// Active leases by the name of their device.
    leases: BTreeMap<(Class, &'a str), Vec<&'a LeaseEntry>>,
    memberships: BTreeMap<(Class, &'a str), PoolMembership>,
    pools: &'a PoolSet,
}

impl OfferBuilder<'_> {
    fn build_class(&self, class: Class) -> Vec<HostDevice> {
        let host_devices: Vec<&HostDevice> =
            self.inventory.with_drained().filter(|device| device.class == class).collect();
        let known: BTreeSet<&str> =
            host_devices.iter().map(|device| device.name.as_str()).collect();
        let missing: Vec<HostDevice> = self
            .spec_devices
            .names(class)
            .filter(|name| !known.contains(name))
            .filter(|name| class != Class::Rdma || !gpu_name::is_gpu_name(name))
            .filter_map(|name| self.missing_device(class, name))
            .collect();
        let mut all = group_inseparable(host_devices.into_iter());
        all.extend(missing.iter().map(|device| vec![device]));
        let mut devices: Vec<HostDevice> =
            all.iter().filter_map(|devices| self.build(devices)).collect();
        devices.sort_by(|one, other| one.name.cmp(&other.name));
        devices
    }

    fn missing_device(&self, class: Class, name: &str) -> Option<HostDevice> {
        let mut trouble = self.exclusion_reasons.find(class, name);
        // A device in a container's network namespace will return.
        let is_away = self.is_per_namespace(class) && self.leases.contains_key(&(class, name));
        if trouble.is_none() && !is_away {
            trouble =
                Some(format!("this host no longer has this device; bring it back, or {GENERATE}"));
        }
        Some(HostDevice {
            health: Health::from_trouble(trouble),
            ..missing_device(class, name, &self.function_index)?
        })
    }

    /// Combines the devices that a container gets together into the first of them.
    fn build(&self, devices: &[&HostDevice]) -> Option<HostDevice> {
        let first = *devices.first()?;
        let class = first.class;
        let membership =
            self.memberships.get(&(class, first.name.as_str())).cloned().unwrap_or_default();
        let max = min_share(self.pools.shares.share(class), membership.share);
        let is_exclusive = max == Some(1) || self.is_per_namespace(class);
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        let aliases: Vec<String> =
            devices.iter().flat_map(|device| &device.aliases).map(ToString::to_string).collect();
        let mut leases: Vec<DeviceLease> = names
            .iter()
            .copied()
            .chain(aliases.iter().map(String::as_str))
            .filter_map(|name| self.leases.get(&(class, name)))
            .flatten()
            .map(|entry| device_lease(entry))
            .collect();
        leases.sort_by_key(|lease| lease.slot);
        let kind = class.cdi_kind();
        let mut device = first.clone();
        device.nodes = Vec::new();
        device.attributes = attributes(first, &self.function_index);
        device.cdi = names
            .iter()
            .filter(|name| self.spec_devices.has_device(class, name))
            .map(|name| format!("{kind}={name}"))
            .collect();
        device.pools = membership.pools;
        device.health = self.judge_health(first, &names);
        device.slots = max.filter(|_| !is_exclusive);
        if is_exclusive {
            device.sharing = Sharing::Exclusive;
        }
        device.leases = leases;
        Some(device)
    }

    /// Returns whether each device of a class is in a single network namespace at a time.
    fn is_per_namespace(&self, class: Class) -> bool {
        let is_rdma = class == Class::Rdma && self.inventory.is_rdma_exclusive();
        is_rdma || class == Class::Netdev
    }

    fn judge_health(&self, device: &HostDevice, names: &[&str]) -> Health {
        let class = device.class;
        if device.health != Health::Healthy {
            return device.health.clone();
        }
        let missing = names.iter().find_map(|name| self.spec_devices.missing_reason(class, name));
        Health::from_trouble(missing.or_else(|| {
            names.iter().find_map(|name| {
                self.nodes.stale_reason(&self.spec_devices.device_expectations(class, name))
            })
        }))
    }
}
