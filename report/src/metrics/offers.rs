//! What is offered, how well it is, and who holds how much of it, by class.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use onload_core::class::Class;
use onload_core::lease::LeaseEntry;
use onload_host::devices::inventory::Inventory;
use onload_host::offers::{Health, Offer};

use super::family::{Family, Kind, count};
use crate::status::Grantee;

/// Devices whose reason is told. A broken card may take thousands of functions with it.
const MOST_REASONS: usize = 64;
/// Characters of a reason, as the value of a label.
const REASON: usize = 160;

type Counts = BTreeMap<(Class, &'static str), usize>;

pub(super) fn devices(offers: &[Offer]) -> [Family; 3] {
    let mut counts = Counts::new();
    let mut reasons = Vec::new();
    for offer in offers {
        for health in ["healthy", "unhealthy"] {
            counts.entry((offer.class, health)).or_default();
        }
        let health = match &offer.health {
            Health::Healthy => "healthy",
            Health::Unhealthy(reason) => {
                let labels = vec![
                    ("class", offer.class.to_string()),
                    ("device", offer.name.as_str().to_owned()),
                    ("reason", reason.chars().take(REASON).collect()),
                ];
                reasons.push((labels, 1.0));
                "unhealthy"
            }
        };
        *counts.entry((offer.class, health)).or_default() += 1;
    }
    reasons.truncate(MOST_REASONS);
    let held = offers.iter();
    let held = held.map(|offer| (offer.class, usize::from(!offer.leases.is_empty())));
    let counts = counts.into_iter().map(|((class, health), number)| {
        let labels = vec![("class", class.to_string()), ("health", health.to_owned())];
        (labels, count(number))
    });
    [
        Family::new("devices", "Devices that are offered, by health", Kind::Count, counts),
        by_class(
            "devices_held",
            "Devices that are offered and that a container holds by lease",
            held,
        ),
        Family::new(
            "device_unhealthy",
            "A device that no container can use, with the reason; at most 64 are shown",
            Kind::Count,
            reasons,
        ),
    ]
}

pub(super) fn drained(offers: &[Offer]) -> Family {
    let offers = offers.iter();
    by_class(
        "devices_drained",
        "Devices that are drained, so that no container gets them any more",
        offers.map(|offer| (offer.class, usize::from(offer.is_drained))),
    )
}

/// Of each class that which was drained first.
pub(super) fn drained_since(inventory: &Inventory) -> Family {
    let mut since: BTreeMap<Class, u64> = BTreeMap::new();
    for drained in inventory.drain.iter() {
        let first = since.entry(drained.target.class()).or_insert(u64::MAX);
        *first = drained.describe.min(*first);
    }
    let since = since.into_iter().map(|(class, since)| {
        // Exact until long after the year 9999.
        (vec![("class", class.to_string())], since as f64)
    });
    Family::new(
        "drained_since_timestamp",
        "Since when something of a class has been drained",
        Kind::Timestamp,
        since,
    )
}

pub(super) fn leases(leases: &[LeaseEntry]) -> Family {
    let live = leases.iter().filter(|lease| !lease.is_over);
    let classes = live.map(|lease| (lease.device.class, 1));
    by_class("leases", "Leases of containers that live", classes)
}

/// The containers that were made with a device, by class: a lease is nothing that every class has.
pub(super) fn containers(grantees: &[Grantee]) -> Family {
    let classes = grantees.iter().flat_map(|grantee| {
        let devices = grantee.devices.iter();
        let classes = devices.filter_map(|device| Some(device.split_once('=')?.0));
        classes.collect::<BTreeSet<&str>>()
    });
    by_class(
        "containers",
        "Containers that were made with a device, as the configurations of root's engines say",
        classes.map(|class| (class, 1)),
    )
}

pub(super) fn not_offered(inventory: &Inventory) -> Family {
    let entries = inventory.not_offered.iter();
    by_class(
        "not_offered",
        "What was seen and is not offered; onload-ctk discover --explain says why",
        entries.map(|entry| (entry.kind, 1)),
    )
}

/// The sum of each class.
pub(super) fn by_class<C: fmt::Display + Ord>(
    name: &'static str,
    help: &'static str,
    numbers: impl Iterator<Item = (C, usize)>,
) -> Family {
    let mut sums: BTreeMap<C, usize> = BTreeMap::new();
    for (class, number) in numbers {
        *sums.entry(class).or_default() += number;
    }
    let sums = sums.into_iter();
    let sums = sums.map(|(class, sum)| (vec![("class", class.to_string())], count(sum)));
    Family::new(name, help, Kind::Count, sums)
}
