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
    plan.groups.extend(planning.onload());
    plan.groups.extend(planning.tcpdirect());
    plan.groups.extend(planning.onload_and_tcpdirect());
    for r#type in [
        Type::Ptp,
        Type::Pps,
        Type::Rdma,
        Type::Vfio,
        Type::Hugepages,
        Type::Profile,
    ] {
        plan.groups
            .extend(planning.of_type(r#type, &mut plan.left_out));
    }
    plan.groups.retain(|group| group.slots > 0);
    plan.groups
        .sort_by(|one, other| (one.r#type, &one.key).cmp(&(other.r#type, &other.key)));
    plan
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

    fn onload(&self) -> Vec<Group> {
        let class = self.onload_class();
        let interfaces = self.interfaces(class);
        let mut groups: Vec<Group> = interfaces
            .map(|offer| self.group(Type::Onload, &[offer]))
            .collect();
        let has_interface = self.interfaces(class).any(is_accelerated);
        // A job that asks for Onload must not be placed without an interface where there is one.
        let is_wanted = !has_interface && !self.settings.need_nic && !self.is_ignored(NONE);
        let loopback = self
            .of_class(class)
            .filter(|offer| is_wanted && is_loopback(offer));
        groups.extend(loopback.map(|offer| self.group(Type::Onload, &[offer])));
        groups
    }

    fn tcpdirect(&self) -> Vec<Group> {
        let interfaces = self.interfaces(Class::Zf);
        interfaces
            .map(|offer| self.group(Type::Zf, &[offer]))
            .collect()
    }

    fn onload_and_tcpdirect(&self) -> Vec<Group> {
        let tcpdirect: BTreeMap<&str, &Offer> = self
            .interfaces(Class::Zf)
            .map(|offer| (offer.name.as_str(), offer))
            .collect();
        let both = self.interfaces(self.onload_class()).filter_map(|onload| {
            let tcpdirect = tcpdirect.get(onload.name.as_str())?;
            Some(self.group(Type::OnloadZf, &[onload, tcpdirect]))
        });
        both.collect()
    }

    /// The devices of the other types.
    fn of_type(&self, r#type: Type, left_out: &mut BTreeSet<String>) -> Vec<Group> {
        let probe = self.settings.probe;
        let (class, is_wanted) = match r#type {
            Type::Ptp => (Class::Ptp, probe.ptp),
            Type::Pps => (Class::Pps, probe.pps),
            Type::Rdma => (Class::Rdma, probe.rdma),
            Type::Vfio => (Class::Vfio, probe.vfio),
            Type::Hugepages => (Class::Hugepages, probe.hugepages),
            Type::Profile => (Class::Profile, probe.profile),
            Type::Onload | Type::Zf | Type::OnloadZf => return Vec::new(),
        };
        let mut groups = Vec::new();
        for offer in self.of_class(class).filter(|_| is_wanted) {
            let name = offer.name.as_str();
            // The clock of an ignored interface is a device of its own.
            let interface = (r#type == Type::Rdma).then(|| interface_name(offer));
            if self.is_ignored(name)
                || interface.is_some_and(|interface| self.is_ignored(interface))
            {
                continue;
            }
            match self.needs_runtime(offer) {
                Some(why) => {
                    left_out.insert(format!(
                        "{type} {name} is not published: {why}, which Nomad cannot carry; let the docker driver run all tasks with the runtime \"onload\", and set runtime = \"onload\" in the plugin's configuration"
                    ));
                }
                None => groups.push(self.group(r#type, &[offer])),
            }
        }
        groups
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
            Type::Vfio => 1,
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
        Type::Rdma | Type::Vfio | Type::Hugepages | Type::Profile => OWN,
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
        Type::Ptp | Type::Pps | Type::Vfio | Type::Profile => Counted::default(),
    }
}
