//! Puts together what discovery, the specifications, the pools and the leases say of each device.

use std::collections::{BTreeMap, BTreeSet};

use onload_cdi::Registry;
use onload_core::class::Class;
use onload_core::gpu_name;
use onload_core::lease::Listed;
use onload_core::pool::{ANY, UNCOUNTED};

use super::absent::Absence;
use super::published::{GENERATE, Published};
use super::stale::Nodes;
use crate::devices::inventory::Inventory;
use crate::devices::{Device, Health, Held, Places, Sharing, attributes, gone, together};
use crate::pools::Pools;

/// The devices of a host, sorted by class and name: those that discovery offers, and those that a
/// specification still has. `specs` are those that the engine reads, `pools` those of the inventory, and
/// `leases` all that the host has.
pub fn offers(
    inventory: &Inventory,
    specs: &Registry,
    pools: &Pools,
    leases: &[Listed],
) -> Vec<Device> {
    let offering = Offering {
        inventory,
        places: Places::of(inventory),
        published: Published::of(specs),
        absence: Absence::of(inventory),
        nodes: Nodes::of(inventory),
        leases: by_device(leases),
        memberships: memberships(pools),
        pools,
    };
    let classes = Class::ALL.into_iter();
    classes.flat_map(|class| offering.of_class(class)).collect()
}

#[derive(Clone, Debug, Default)]
struct Membership {
    pools: Vec<String>,
    /// How many containers may have it at once, by the strictest of them.
    share: Option<u32>,
}

fn memberships(pools: &Pools) -> BTreeMap<(Class, &str), Membership> {
    let mut memberships: BTreeMap<(Class, &str), Membership> = BTreeMap::new();
    let named = pools.offered.iter().chain(&pools.drained);
    for named in named.filter(|named| named.name.as_str() != ANY) {
        let share = Some(named.pool.share).filter(|share| *share != UNCOUNTED);
        for member in &named.pool.members {
            let key = (named.class, member.name.as_str());
            let membership = memberships.entry(key).or_default();
            membership.pools.push(named.name.to_string());
            membership.share = least(membership.share, share);
        }
    }
    for membership in memberships.values_mut() {
        membership.pools.sort();
    }
    memberships
}

fn least(one: Option<u32>, other: Option<u32>) -> Option<u32> {
    one.into_iter().chain(other).min()
}

fn by_device(leases: &[Listed]) -> BTreeMap<(Class, &str), Vec<&Listed>> {
    let mut by_device: BTreeMap<(Class, &str), Vec<&Listed>> = BTreeMap::new();
    for listed in leases.iter().filter(|listed| !listed.is_over) {
        let key = (listed.device.class, listed.device.name.as_str());
        by_device.entry(key).or_default().push(listed);
    }
    by_device
}

fn held(listed: &Listed) -> Held {
    Held {
        slot: listed.slot,
        lease: listed.lease.as_ref().ok().cloned(),
        text: match &listed.lease {
            Ok(lease) => lease.to_string(),
            Err(why) => format!("an unknown container ({why})"),
        },
    }
}

struct Offering<'a> {
    inventory: &'a Inventory,
    places: Places<'a>,
    published: Published<'a>,
    absence: Absence<'a>,
    nodes: Nodes,
    /// Those that are not over, by what they name.
    leases: BTreeMap<(Class, &'a str), Vec<&'a Listed>>,
    memberships: BTreeMap<(Class, &'a str), Membership>,
    pools: &'a Pools,
}

impl Offering<'_> {
    fn of_class(&self, class: Class) -> Vec<Device> {
        let here = self.inventory.with_drained();
        let here: Vec<&Device> = here.filter(|device| device.class == class).collect();
        let known: BTreeSet<&str> = here.iter().map(|device| device.name.as_str()).collect();
        let names = self.published.names(class);
        let is_other_name = |name: &str| class == Class::Rdma && gpu_name::is_one(name);
        let gone = names.filter(|name| !known.contains(name) && !is_other_name(name));
        let gone: Vec<Device> = gone.filter_map(|name| self.gone(class, name)).collect();
        let mut all = together(here.into_iter());
        all.extend(gone.iter().map(|device| vec![device]));
        let mut offers: Vec<Device> =
            all.iter().filter_map(|devices| self.offer(devices)).collect();
        offers.sort_by(|one, other| one.name.cmp(&other.name));
        offers
    }

    fn gone(&self, class: Class, name: &str) -> Option<Device> {
        let nothing = || {
            let reason = "this host has no such device any more; bring it back, or";
            (!self.is_away(class, name)).then(|| format!("{reason} {GENERATE}"))
        };
        let trouble = self.absence.why(class, name).or_else(nothing);
        Some(Device { health: Health::of(trouble), ..gone(class, name, &self.places)? })
    }

    /// Whether its holder has taken a device to a network namespace, from which it comes back.
    fn is_away(&self, class: Class, name: &str) -> bool {
        self.belongs_to_one_namespace(class) && self.leases.contains_key(&(class, name))
    }

    /// What a container gets together, as the first of these devices.
    fn offer(&self, devices: &[&Device]) -> Option<Device> {
        let first = *devices.first()?;
        let class = first.class;
        let membership = self.memberships.get(&(class, first.name.as_str()));
        let membership = membership.cloned().unwrap_or_default();
        let most = least(self.pools.shares.share(class), membership.share);
        let is_exclusive = most == Some(1) || self.belongs_to_one_namespace(class);
        let aliases: Vec<String> = devices
            .iter()
            .flat_map(|device| device.aliases.iter().map(ToString::to_string))
            .collect();
        let names = devices.iter().map(|device| device.name.as_str());
        let by_alias = aliases.iter().map(String::as_str);
        let by_name = names.clone().chain(by_alias);
        let found = by_name.filter_map(|name| self.leases.get(&(class, name)));
        let mut leases: Vec<Held> = found.flatten().map(|listed| held(listed)).collect();
        leases.sort_by_key(|held| held.slot);
        let kind = class.kind();
        let published = names.clone().filter(|name| self.published.has(class, name));
        let mut offer = first.clone();
        offer.nodes = Vec::new();
        offer.attributes = attributes(first, &self.places);
        offer.cdi = published.map(|name| format!("{kind}={name}")).collect();
        offer.pools = membership.pools;
        offer.health = self.health(first, names);
        offer.slots = most.filter(|_| !is_exclusive);
        if is_exclusive {
            offer.sharing = Sharing::Exclusive;
        }
        offer.leases = leases;
        Some(offer)
    }

    /// One network namespace has each of them at a time.
    fn belongs_to_one_namespace(&self, class: Class) -> bool {
        let is_rdma = class == Class::Rdma && self.inventory.is_rdma_exclusive();
        is_rdma || class == Class::Netdev
    }

    fn health<'n>(&self, device: &Device, names: impl Iterator<Item = &'n str> + Clone) -> Health {
        let class = device.class;
        if device.health != Health::Healthy {
            return device.health.clone();
        }
        let unpublished = names.clone().find_map(|name| self.published.why_not(class, name));
        let stale = || {
            let mut names = names;
            names.find_map(|name| self.nodes.changed(&self.published.expected(class, name)))
        };
        Health::of(unpublished.or_else(stale))
    }
}
