//! Puts together what discovery, the specifications, the pools and the leases say of each device.

use std::collections::{BTreeMap, BTreeSet};

use onload_cdi::{DeviceName, Registry};
use onload_core::class::Class;
use onload_core::lease::Listed;
use onload_core::pool::{ANY, UNCOUNTED};

use super::absent::Absence;
use super::found::Found;
use super::holders::{self, Holders};
use super::offer::{Health, Offer, Sharing};
use super::places::Places;
use super::published::{GENERATE, Published};
use super::stale::Nodes;
use super::{clock, netdev, nic, plain, rdma, vfio};
use crate::discover::inventory::Inventory;
use crate::discover::rdma::NetnsMode;
use crate::pools::Pools;

/// The devices of a host, sorted by class and name: those that discovery offers, and those that a
/// specification still has. `specs` are those that the engine reads, `pools` those of the inventory, and
/// `leases` all that the host has.
#[must_use]
pub fn offers(
    inventory: &Inventory,
    specs: &Registry,
    pools: &Pools,
    leases: &[Listed],
) -> Vec<Offer> {
    let offering = Offering {
        inventory,
        places: Places::of(inventory),
        published: Published::of(specs),
        absence: Absence::of(inventory),
        nodes: Nodes::of(inventory),
        holders: Holders::of(leases),
        memberships: memberships(pools),
        pools,
    };
    // A bundle is none: its devices are.
    let classes = Class::ALL.into_iter();
    let classes = classes.filter(|class| *class != Class::Bundle);
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
    let named = pools.offered.iter();
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

struct Offering<'a> {
    inventory: &'a Inventory,
    places: Places<'a>,
    published: Published<'a>,
    absence: Absence<'a>,
    nodes: Nodes,
    holders: Holders<'a>,
    memberships: BTreeMap<(Class, &'a str), Membership>,
    pools: &'a Pools,
}

impl Offering<'_> {
    fn of_class(&self, class: Class) -> Vec<Offer> {
        let mut found = self.found(class);
        let known: BTreeSet<String> = found.iter().flat_map(|each| each.names.clone()).collect();
        let names = self.published.names(class);
        let gone = names.filter(|name| !known.contains(*name));
        let gone: Vec<Found> = gone.map(|name| self.gone(class, name)).collect();
        found.extend(gone);
        let offers = found.into_iter();
        let mut offers: Vec<Offer> = offers.filter_map(|each| self.offer(class, each)).collect();
        offers.sort_by(|one, other| one.name.cmp(&other.name));
        offers
    }

    fn found(&self, class: Class) -> Vec<Found> {
        match class {
            Class::Nic | Class::NicPlain | Class::NicNodes | Class::Zf => {
                nic::found(class, &self.places)
            }
            Class::Profile => plain::profiles(self.inventory),
            Class::Rdma => rdma::found(&self.places),
            Class::Vfio => vfio::found(&self.places),
            Class::Hugepages => plain::hugepages(self.inventory),
            Class::Netdev => netdev::found(&self.places),
            Class::Ptp | Class::Pps => clock::found(class, &self.places),
            Class::Bundle => Vec::new(),
        }
    }

    fn gone(&self, class: Class, name: &str) -> Found {
        let gone = match class {
            Class::Nic | Class::NicPlain | Class::NicNodes | Class::Zf => {
                nic::gone(class, name, &self.places)
            }
            Class::Profile => plain::gone_profile(name, self.inventory),
            Class::Rdma => rdma::gone(name, &self.places),
            Class::Vfio => vfio::gone(name, &self.places),
            Class::Hugepages => plain::gone_hugepages(name),
            Class::Netdev => netdev::gone(name, &self.places),
            Class::Ptp | Class::Pps => clock::gone(class, name, &self.places),
            Class::Bundle => Found::default(),
        };
        let nothing = || {
            let reason = "this host has no such device any more; bring it back, or";
            let is_away = self.is_away(class, name);
            (!is_away).then(|| format!("{reason} {GENERATE}"))
        };
        Found {
            trouble: self.absence.why(class, name).or_else(nothing),
            ..gone
        }
    }

    /// Whether its holder has taken a device to a network namespace, from which it comes back.
    fn is_away(&self, class: Class, name: &str) -> bool {
        self.belongs_to_one_namespace(class) && self.holders.is_held(class, name)
    }

    /// None where the name is not legal, which no name is that is offered.
    fn offer(&self, class: Class, found: Found) -> Option<Offer> {
        let first = found.names.first()?;
        let membership = self.memberships.get(&(class, first.as_str()));
        let membership = membership.cloned().unwrap_or_default();
        let most = least(self.pools.shares.share(class), membership.share);
        let is_exclusive = most == Some(1) || self.belongs_to_one_namespace(class);
        let leases = self
            .holders
            .holding(class, found.names.iter().chain(&found.aliases));
        let kind = class.kind();
        let published = found.names.iter();
        let published = published.filter(|name| self.published.has(class, name));
        Some(Offer {
            class,
            name: DeviceName::try_from(first.as_str()).ok()?,
            cdi: published.map(|name| format!("{kind}={name}")).collect(),
            pools: membership.pools,
            pcie_root: found.pci.and_then(|pci| self.places.root(pci)),
            pci: found.pci,
            numa_node: found.numa_node,
            sharing: if is_exclusive {
                Sharing::Exclusive
            } else {
                Sharing::Shared
            },
            slots: most.filter(|_| !is_exclusive),
            health: self.health(class, &found),
            holder: holders::text(&leases),
            leases,
            attributes: found.attributes,
        })
    }

    /// One network namespace has each of them at a time.
    fn belongs_to_one_namespace(&self, class: Class) -> bool {
        let mode = self.inventory.rdma_netns_mode;
        let is_rdma = class == Class::Rdma && mode == Some(NetnsMode::Exclusive);
        is_rdma || class == Class::Netdev
    }

    fn health(&self, class: Class, found: &Found) -> Health {
        let mut names = found.names.iter();
        let unpublished = || names.find_map(|name| self.published.why_not(class, name));
        let trouble = found.trouble.clone().or_else(unpublished);
        let stale = || {
            let mut names = found.names.iter();
            names.find_map(|name| self.nodes.changed(&self.published.expected(class, name)))
        };
        match trouble.or_else(stale) {
            Some(reason) => Health::Unhealthy(reason),
            None => Health::Healthy,
        }
    }
}
