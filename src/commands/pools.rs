//! Pools as commands show them: which members are free, and which containers have the rest.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use onload_cdi::Registry;
use onload_core::class::Class;
use onload_core::container_id::short_id;
use onload_core::device_id::DeviceId;
use onload_core::nearness::Nearness;
use onload_core::pool::{Pool, PoolMember, UNCOUNTED};
use onload_host::host::Host;
use onload_host::leases;
use onload_host::pools::NamedPool;
use onload_lease::LeaseEntry;
use onload_report::status::find_names;
use onload_sys::pci::PciAddress;
use onload_sys::text::{ErrorChain, ShortList, format_count};
use serde_json::{Value, json};

use super::reasons::{format_ranges, name_pattern};
use crate::layout::format_table;
use crate::printer::{HEADING, Printer, escape_controls};

/// Holders of one member that are named; of more only their number is shown.
const NAMED: usize = 3;
/// Free members of one bus that are listed one by one.
const MAX_LISTED: usize = 8;

/// Returns the bus of a PCI address, which the virtual functions of a physical function share, or a name without its numbers.
fn bus_pattern(name: &str) -> String {
    match (name.parse::<PciAddress>(), name.rsplit_once(':')) {
        (Ok(_), Some((bus, _))) => bus.to_owned(),
        _ => name_pattern(name),
    }
}

/// The names of containers by ID, as their engines keep them.
#[derive(Debug, Default)]
pub(super) struct HolderNames(BTreeMap<String, String>);

impl HolderNames {
    pub(super) fn read(host: &Host, entries: &[LeaseEntry]) -> HolderNames {
        let leases = entries.iter().filter_map(|entry| entry.lease.as_ref().ok());
        let ids: BTreeSet<&str> = leases.map(|lease| lease.container.as_str()).collect();
        if ids.is_empty() {
            return HolderNames::default();
        }
        HolderNames(find_names(host, &ids).unwrap_or_default())
    }

    /// Returns the name of a container, or the start of an ID that an engine made.
    pub(super) fn display_name(&self, id: &str) -> String {
        match self.0.get(id) {
            Some(name) => escape_controls(name),
            None if is_engine_id(id) => short_id(id).to_owned(),
            None => id.to_owned(),
        }
    }
}

/// Shortens an ID that an engine made in the path of the container's control group.
pub(super) fn shorten_engine_id(path: &str, id: &str) -> String {
    if is_engine_id(id) {
        path.replace(id, &format!("{}…", short_id(id)))
    } else {
        path.to_owned()
    }
}

fn is_engine_id(id: &str) -> bool {
    id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[derive(Debug)]
pub(super) struct PoolHolders {
    /// The IDs of the containers that hold a device. `None` if that is unknown.
    by_device: Option<BTreeMap<DeviceId, Vec<String>>>,
    pub(super) names: HolderNames,
}

impl PoolHolders {
    /// The holders by the leases of a host, where there are pools. Prints the reason if they cannot be read.
    pub(super) fn read(host: &Host, pools: &[NamedPool], printer: &mut Printer) -> PoolHolders {
        if pools.is_empty() {
            return PoolHolders::new(&[], HolderNames::default());
        }
        match leases::list(host) {
            Ok(entries) => PoolHolders::new(&entries, HolderNames::read(host, &entries)),
            Err(error) => {
                printer.warning(format_args!(
                    "could not determine which pool members are free: {error:#}"
                ));
                PoolHolders { by_device: None, names: HolderNames::default() }
            }
        }
    }

    pub(super) fn new(entries: &[LeaseEntry], names: HolderNames) -> PoolHolders {
        let mut holders: BTreeMap<DeviceId, Vec<String>> = BTreeMap::new();
        for entry in entries.iter().filter(|entry| !entry.has_ended()) {
            let container = match &entry.lease {
                Ok(lease) => lease.container.to_string(),
                Err(_) => "unknown".to_owned(),
            };
            let device_holders = holders.entry(entry.device.clone()).or_default();
            device_holders.push(container);
        }
        PoolHolders { by_device: Some(holders), names }
    }
}

#[derive(Debug)]
pub(super) struct PoolView<'a> {
    pub(super) named_pool: &'a NamedPool,
    pub(super) holders: &'a PoolHolders,
    /// No specification has it.
    pub(super) is_left_out: bool,
}

impl<'a> PoolView<'a> {
    pub(super) fn new(named_pool: &'a NamedPool, holders: &'a PoolHolders) -> PoolView<'a> {
        PoolView { named_pool, holders, is_left_out: false }
    }

    /// `None` where that is not known.
    fn holders(&self, member: &PoolMember) -> Option<&'a [String]> {
        let device = DeviceId { class: self.named_pool.class, name: member.name.clone() };
        Some(self.holders.by_device.as_ref()?.get(&device).map_or(&[], Vec::as_slice))
    }

    fn free_count(&self) -> Option<usize> {
        if self.is_left_out {
            return Some(0);
        }
        let max = usize::try_from(self.named_pool.pool.share).unwrap_or(usize::MAX);
        self.named_pool
            .pool
            .members
            .iter()
            .map(|member| Some(self.holders(member)?.len()))
            .map(|count| count.map(|count| usize::from(count < max)))
            .sum()
    }

    pub(super) fn to_row(&self) -> [String; 4] {
        [
            self.named_pool.class.to_string(),
            self.named_pool.name.to_string(),
            self.free_text(),
            self.members_text(),
        ]
    }

    pub(super) fn to_text(&self) -> String {
        format!("pool, {} free: {}", self.free_text(), self.members_text())
    }

    fn free_text(&self) -> String {
        if self.is_left_out {
            return "left out".to_owned();
        }
        let free = self.free_count().map(|free| free.to_string()).unwrap_or_else(|| "?".to_owned());
        format!("{free} of {}", self.named_pool.pool.members.len())
    }

    fn members_text(&self) -> String {
        let all = &self.named_pool.pool.members;
        let mut members: Vec<String> = all.iter().map(|member| self.member_text(member)).collect();
        if members.len() > MAX_LISTED {
            let (held, free): (Vec<_>, Vec<_>) =
                all.iter().partition(|member| self.is_held(member));
            let free: Vec<&str> = free.iter().map(|member| member.name.as_str()).collect();
            members = format_ranges(&free, MAX_LISTED, bus_pattern);
            members.extend(held.iter().map(|member| self.member_text(member)));
        }
        let share = match self.named_pool.pool.share {
            1 => String::new(),
            UNCOUNTED => "; each for any number of containers".to_owned(),
            share => format!("; each for {share} containers"),
        };
        format!("{}{share}", ShortList(&members))
    }

    fn is_held(&self, member: &PoolMember) -> bool {
        self.holders(member).is_some_and(|holders| !holders.is_empty())
    }

    fn member_text(&self, member: &PoolMember) -> String {
        match self.holders(member) {
            None | Some([]) => member.name.to_string(),
            Some(holders) if holders.len() > NAMED => {
                format!(
                    "{} ({})",
                    member.name,
                    format_count(holders.len(), "container", "containers")
                )
            }
            Some(holders) => {
                let names = holders.iter().map(|id| self.holders.names.display_name(id));
                format!("{} ({})", member.name, names.collect::<Vec<_>>().join(", "))
            }
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let members = self.named_pool.pool.members.iter().map(|member| {
            let holders = self.holders(member).filter(|holders| !holders.is_empty());
            json!({
                "name": member.name.as_str(),
                "numa_node": member.numa_node,
                "holder": holders.map(|holders| holders.join(", ")),
            })
        });
        let share = Some(self.named_pool.pool.share).filter(|share| *share != UNCOUNTED);
        json!({
            "class": self.named_pool.class.as_str(),
            "name": self.named_pool.name.as_str(),
            "share": share,
            "free": self.free_count(),
            "members": members.collect::<Vec<_>>(),
        })
    }
}

/// Prints a table of pools, if there are any. `gap` separates it from earlier output.
pub(super) fn print_pools(gap: &str, pools: &[PoolView<'_>], printer: &mut Printer) -> Result<()> {
    if pools.is_empty() {
        return Ok(());
    }
    let columns = printer.columns();
    printer.print(format_args!("{gap}{HEADING}Pools{HEADING:#}\n"))?;
    let header = ["CLASS", "NAME", "FREE", "MEMBERS"];
    printer.print(format_table(header, pools.iter().map(PoolView::to_row), columns))?;
    Ok(())
}

/// Returns the pools in specifications, by class and name. Prints entries that should be pools but are invalid.
pub(super) fn read_pools(registry: &Registry, printer: &mut Printer) -> Vec<NamedPool> {
    let mut pools = Vec::new();
    for device in registry.devices() {
        let kind = &device.name.kind;
        let mut classes = Class::ALL.into_iter();
        let Some(class) = classes.find(|class| class.cdi_kind() == kind.as_str()) else { continue };
        match Pool::from_annotations(&device.device.annotations) {
            Ok(Some(pool)) => pools.push(NamedPool {
                class,
                name: device.name.device.clone(),
                pool,
                nearness: Nearness::default(),
            }),
            Ok(None) => {}
            Err(error) => printer.warning(format_args!(
                "{}: {} is no pool: {}",
                device.path.display(),
                device.name,
                ErrorChain(&error)
            )),
        }
    }
    pools.sort_by(|one, other| (one.class, &one.name).cmp(&(other.class, &other.name)));
    pools
}
