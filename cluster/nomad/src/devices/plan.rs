//! Which groups the offers of a host make.

use std::collections::{BTreeMap, BTreeSet};

use onload_cdi::QualifiedName;
use onload_core::class::Class;
use onload_core::lease::Lease;
use onload_host::offers::{Attribute, Health, LOOPBACK, Offer, Sharing};

use super::attributes;
use super::group::{Counted, Group};
use super::id::Type;
use crate::settings::{Runtime, Settings};

/// The name of Onload without an interface, as nomad-onload has it.
pub const NONE: &str = "none";
/// The vendor of interfaces of Onload's own drivers, as nomad-onload has it.
const AMD: &str = "amd";
/// The vendor of interfaces that Onload reaches by AF_XDP.
const XDP: &str = "xdp";
/// The vendor of what nomad-onload does not have.
const OWN: &str = "onload.dev";

/// What is published, and what is not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The groups, sorted by type and name.
    pub groups: Vec<Group>,
    /// What is offered and not published, with the reason and what to do.
    pub left_out: BTreeSet<String>,
}

/// Makes groups of offers. `is_own` says whether a task of Nomad's holds a lease: who holds a device from
/// elsewhere keeps it from all tasks.
#[must_use]
pub fn plan(offers: &[Offer], settings: &Settings, is_own: impl Fn(&Lease) -> bool) -> Plan {
    let planning = Planning {
        offers,
        settings,
        is_own: &is_own,
    };
    let mut plan = Plan::default();
    for r#type in Type::ALL {
        for offers in planning.candidates(r#type) {
            match offers
                .iter()
                .find_map(|offer| planning.needs_runtime(offer))
            {
                Some(why) => drop(plan.left_out.insert(left_out(r#type, offers[0], why))),
                None => plan.groups.push(planning.group(r#type, &offers)),
            }
        }
    }
    plan.groups.retain(|group| group.slots > 0);
    plan.groups
        .sort_by(|one, other| (one.r#type, &one.key).cmp(&(other.r#type, &other.key)));
    plan
}

fn left_out(r#type: Type, offer: &Offer, why: &str) -> String {
    let name = published_key(offer);
    format!(
        "{type} {name} is not published: {why}, which Nomad cannot carry; let the docker driver run all tasks with the runtime \"onload\", and set runtime = \"onload\" in the plugin's configuration"
    )
}

struct Planning<'p> {
    offers: &'p [Offer],
    settings: &'p Settings,
    is_own: &'p dyn Fn(&Lease) -> bool,
}

impl<'p> Planning<'p> {
    fn of_class(&self, class: Class) -> impl Iterator<Item = &'p Offer> {
        self.offers.iter().filter(move |offer| offer.class == class)
    }

    /// The class that gives Onload with or without the preload.
    fn onload_class(&self) -> Class {
        match self.settings.set_preload {
            true => Class::Nic,
            false => Class::NicPlain,
        }
    }

    fn is_ignored(&self, name: &str) -> bool {
        let ignored = &self.settings.ignored_interfaces;
        ignored.iter().any(|other| other == name)
    }

    /// The accelerated interfaces of a class that are wanted.
    fn interfaces(&self, class: Class) -> impl Iterator<Item = &'p Offer> {
        let probe = self.settings.probe;
        let offers = self.of_class(class).filter(|offer| !is_loopback(offer));
        offers.filter(move |offer| {
            let is_wanted = match is_by_xdp(offer) {
                true => probe.xdp,
                false => probe.nic,
            };
            is_wanted
                && !self.is_ignored(interface_name(offer))
                && !self.is_ignored(offer.name.as_str())
        })
    }

    /// The offers that a task gets together as one device of a type. There is at least one in each.
    fn candidates(&self, r#type: Type) -> Vec<Vec<&'p Offer>> {
        match r#type {
            Type::Onload => self.onload().map(|offer| vec![offer]).collect(),
            Type::Zf => self
                .interfaces(Class::Zf)
                .map(|offer| vec![offer])
                .collect(),
            Type::OnloadZf => self.onload_and_tcpdirect(),
            _ => self.others(r#type).map(|offer| vec![offer]).collect(),
        }
    }

    fn onload(&self) -> impl Iterator<Item = &'p Offer> {
        let class = self.onload_class();
        let has_interface = self.interfaces(class).any(is_accelerated);
        // A job that asks for Onload must not be placed without an interface where there is one.
        let is_wanted = !has_interface && !self.settings.need_nic && !self.is_ignored(NONE);
        let loopback = self.of_class(class);
        let loopback = loopback.filter(move |offer| is_wanted && is_loopback(offer));
        self.interfaces(class).chain(loopback)
    }

    fn onload_and_tcpdirect(&self) -> Vec<Vec<&'p Offer>> {
        let tcpdirect = self.interfaces(Class::Zf);
        let tcpdirect: BTreeMap<&str, &Offer> = tcpdirect
            .map(|offer| (offer.name.as_str(), offer))
            .collect();
        let both = self.interfaces(self.onload_class()).filter_map(|onload| {
            let tcpdirect = tcpdirect.get(onload.name.as_str())?;
            Some(vec![onload, *tcpdirect])
        });
        both.collect()
    }

    /// The devices of the other types.
    fn others(&self, r#type: Type) -> impl Iterator<Item = &'p Offer> {
        let probe = self.settings.probe;
        let class = match r#type {
            Type::Ptp => Some(Class::Ptp).filter(|_| probe.ptp),
            Type::Pps => Some(Class::Pps).filter(|_| probe.pps),
            Type::Rdma => Some(Class::Rdma).filter(|_| probe.rdma),
            Type::Vfio => Some(Class::Vfio).filter(|_| probe.vfio),
            Type::Netdev => Some(Class::Netdev).filter(|_| probe.netdev),
            Type::Hugepages => Some(Class::Hugepages).filter(|_| probe.hugepages),
            Type::Profile => Some(Class::Profile).filter(|_| probe.profile),
            Type::Onload | Type::Zf | Type::OnloadZf => None,
        };
        let offers = class.into_iter().flat_map(|class| self.of_class(class));
        offers.filter(move |offer| {
            // The clock of an ignored interface is a device of its own.
            let interface = (r#type == Type::Rdma).then(|| interface_name(offer));
            let names = [Some(offer.name.as_str()), interface];
            !names
                .into_iter()
                .flatten()
                .any(|name| self.is_ignored(name))
        })
    }

    /// What only our runtime can give, where nobody says that tasks run with it.
    fn needs_runtime(&self, offer: &Offer) -> Option<&'static str> {
        if self.settings.runtime == Runtime::Onload {
            return None;
        }
        match (offer.class, offer.sharing) {
            (Class::Hugepages, _) => Some("a task gets a file system of its own"),
            (_, Sharing::Exclusive) => Some("one task has it at a time, and a lease says which"),
            _ => None,
        }
    }

    /// The group of offers that a task gets together; the first one names it.
    fn group(&self, r#type: Type, offers: &[&Offer]) -> Group {
        let offer = offers[0];
        let counted = offers.iter().filter_map(|offer| offer.most()).min();
        let is_exclusive = offers
            .iter()
            .any(|offer| offer.sharing == Sharing::Exclusive);
        let members = offers.iter().map(|offer| {
            let names = offer
                .cdi
                .iter()
                .filter_map(|name| name.parse::<QualifiedName>().ok());
            (offer.class, names.collect())
        });
        let health = offers.iter().map(|offer| offer.health_beside(self.is_own));
        let health = health.fold(Health::Healthy, |sum, one| match sum {
            Health::Healthy => one,
            unhealthy => unhealthy,
        });
        Group {
            r#type,
            vendor: vendor(r#type, offer),
            name: published_name(offer).to_owned(),
            key: published_key(offer).to_owned(),
            slots: counted.unwrap_or_else(|| self.slots(r#type)),
            pci: offer.pci,
            health,
            attributes: attributes::of(offer),
            members: members.collect(),
            is_exclusive,
            counted: counted_of(r#type, offer),
        }
    }

    fn slots(&self, r#type: Type) -> u32 {
        let slots = self.settings.slots;
        match r#type {
            Type::Onload | Type::Zf | Type::OnloadZf => slots.nic,
            Type::Ptp => slots.ptp,
            Type::Pps => slots.pps,
            Type::Rdma => slots.rdma,
            Type::Hugepages => slots.hugepages,
            Type::Profile => slots.profile,
            Type::Vfio | Type::Netdev => 1,
        }
    }
}

fn is_loopback(offer: &Offer) -> bool {
    offer.name.as_str() == LOOPBACK
}

fn text<'o>(offer: &'o Offer, attribute: &str) -> Option<&'o str> {
    match offer.attributes.get(attribute) {
        Some(Attribute::Text(text)) if !text.is_empty() => Some(text),
        _ => None,
    }
}

fn is_by_xdp(offer: &Offer) -> bool {
    text(offer, "datapath") == Some("af_xdp")
}

fn is_accelerated(offer: &Offer) -> bool {
    offer.attributes.get("accelerated") == Some(&Attribute::Bool(true))
}

/// The name of the interface: that of the offer is its PCI address if CDI does not allow it.
fn interface_name(offer: &Offer) -> &str {
    text(offer, "interface").unwrap_or(offer.name.as_str())
}

fn published_name(offer: &Offer) -> &str {
    match offer.class {
        Class::Nic | Class::NicPlain | Class::Zf if is_loopback(offer) => NONE,
        Class::Nic | Class::NicPlain | Class::Zf => interface_name(offer),
        _ => text(offer, "name").unwrap_or(offer.name.as_str()),
    }
}

/// The name in ids, which is unique in its class.
fn published_key(offer: &Offer) -> &str {
    match is_loopback(offer) {
        true => NONE,
        false => offer.name.as_str(),
    }
}

fn vendor(r#type: Type, offer: &Offer) -> &'static str {
    match r#type {
        Type::Onload | Type::Zf | Type::OnloadZf if is_loopback(offer) => NONE,
        Type::Onload | Type::Zf | Type::OnloadZf if is_by_xdp(offer) => XDP,
        Type::Onload | Type::Zf | Type::OnloadZf => AMD,
        Type::Ptp | Type::Pps => NONE,
        Type::Rdma | Type::Vfio | Type::Netdev | Type::Hugepages | Type::Profile => OWN,
    }
}

fn counted_of(r#type: Type, offer: &Offer) -> Counted {
    let interface = || text(offer, "interface").map(str::to_owned);
    match r#type {
        Type::Onload | Type::Zf | Type::OnloadZf => Counted {
            interface: interface(),
            stacks: true,
            ..Counted::default()
        },
        Type::Rdma => Counted {
            interface: interface(),
            rdma: Some(published_name(offer).to_owned()),
            ..Counted::default()
        },
        Type::Hugepages => Counted {
            page_kib: match offer.attributes.get("pageKib") {
                Some(Attribute::Int(kib)) => u64::try_from(*kib).ok(),
                _ => None,
            },
            ..Counted::default()
        },
        Type::Ptp | Type::Pps | Type::Vfio | Type::Netdev | Type::Profile => Counted::default(),
    }
}
