//! Finds the holders of drained devices: by leases, granted devices, and nodes that containers have or have open.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::Result;
use onload_core::class::Class;
use onload_core::container_id;
use onload_host::devices::inventory::Inventory;
use onload_host::host::Host;
use onload_host::leases;
use onload_lease::LeaseEntry;
use onload_lease::drain::{DrainList, DrainTarget};
use onload_report::status::{ContainerStatus, Verdict};
use serde::Serialize;

use crate::commands::status::inspect_containers;
use crate::printer::{Printer, escape_controls};

/// The engine shown for a container that is known only by its lease.
const UNKNOWN: &str = "unknown";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct DrainHolder {
    pub(super) engine: &'static str,
    pub(super) container: Option<String>,
    pub(super) id: String,
    /// As CLASS=NAME; a node by its path where it belongs to several.
    pub(super) devices: BTreeSet<String>,
    /// Why it may have any of it, where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unknown: Option<String>,
}

impl DrainHolder {
    /// A container that may have devices if `hidden` says what keeps it from being examined.
    fn new(container: &ContainerStatus, hidden: Option<&Verdict>) -> DrainHolder {
        let user = container.user.map(|user| format!("of user {user}; ")).unwrap_or_default();
        DrainHolder {
            engine: container.engine.as_str(),
            container: container.name.clone(),
            id: container.id.clone(),
            devices: BTreeSet::new(),
            unknown: hidden.map(|hidden| {
                let remedy = hidden.remedy.as_deref().unwrap_or_default();
                format!("{user}{}; {remedy}", hidden.reason)
            }),
        }
    }

    pub(super) fn device_list(&self) -> String {
        self.devices.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn display_name(&self) -> String {
        let id = container_id::short_id(&self.id);
        match &self.container {
            Some(name) => format!("{name} {id}"),
            None => id.to_owned(),
        }
    }
}

impl fmt::Display for DrainHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = escape_controls(self.display_name());
        let holding = match &self.unknown {
            Some(reason) => format!("may use it: {reason}"),
            None => format!("has {}", self.device_list()),
        };
        let holding = escape_controls(holding);
        write!(f, "container {name} ({}), which {holding}", self.engine)
    }
}

pub(super) struct HolderSearch<'s> {
    host: &'s Host,
    inventory: &'s Inventory,
    drain: &'s DrainList,
    /// The nodes whose devices are all drained, each with what they are called.
    nodes: BTreeMap<&'s str, String>,
}

impl<'s> HolderSearch<'s> {
    pub(super) fn new(host: &'s Host, inventory: &'s Inventory, drain: &'s DrainList) -> Self {
        let mut by_node: BTreeMap<&str, BTreeSet<Option<&DrainTarget>>> = BTreeMap::new();
        for device in inventory.with_drained() {
            let entry = drain.find(device.class, device.name.as_str());
            for node in &device.nodes {
                let node_targets = by_node.entry(node.node.path.as_str()).or_default();
                node_targets.insert(entry.map(|entry| &entry.target));
            }
        }
        let nodes = by_node.into_iter().filter_map(|(path, node_targets)| {
            let targets: Vec<&DrainTarget> = node_targets.into_iter().collect::<Option<_>>()?;
            let name = match targets.as_slice() {
                [target] if target.name.is_some() => target.to_string(),
                _ => path.to_owned(),
            };
            Some((path, name))
        });
        HolderSearch { host, inventory, drain, nodes: nodes.collect() }
    }

    pub(super) fn find_holders(&self, printer: &mut Printer) -> Result<Vec<DrainHolder>> {
        let leases = leases::list(self.host)?;
        let status = inspect_containers(self.host, self.inventory, printer)?;
        let mut by_id: BTreeMap<String, DrainHolder> = BTreeMap::new();
        let containers = || status.containers.iter().chain(&status.others);
        for container in containers() {
            let devices = self.container_devices(container);
            if !devices.is_empty() {
                let new = || DrainHolder::new(container, None);
                by_id.entry(container.id.clone()).or_insert_with(new).devices.extend(devices);
            }
        }
        for entry in leases.iter().filter(|entry| !entry.has_ended()) {
            let device = format!("{}={}", entry.device.class, entry.device.name);
            if self.is_drained(&device) {
                let id = lease_holder(entry);
                let holder = by_id.entry(id.clone()).or_insert_with(|| DrainHolder {
                    engine: UNKNOWN,
                    container: None,
                    id,
                    devices: BTreeSet::new(),
                    unknown: None,
                });
                holder.devices.insert(device);
            }
        }
        for container in containers() {
            if let Some(hidden) = &container.hidden {
                let new = || DrainHolder::new(container, Some(hidden));
                by_id.entry(container.id.clone()).or_insert_with(new);
            }
        }
        let mut holders: Vec<DrainHolder> = by_id.into_values().collect();
        holders.sort();
        Ok(holders)
    }

    fn container_devices(&self, container: &ContainerStatus) -> BTreeSet<String> {
        let grants = container.devices.iter().map(|grant| &grant.device);
        let names = container.leases.iter().chain(grants);
        let drained = names.filter(|device| self.is_drained(device)).cloned();
        let mut devices: BTreeSet<String> = drained.collect();
        // Its granted devices are those of its nodes.
        if devices.is_empty() {
            let nodes = container.nodes.iter().chain(&container.open);
            devices.extend(nodes.filter_map(|node| self.nodes.get(node.as_str()).cloned()));
        }
        devices
    }

    fn is_drained(&self, device: &str) -> bool {
        let entry = device.split_once('=').and_then(|(class, name)| {
            let class = Class::from_name(class)?;
            self.drain.find(class, name)
        });
        entry.is_some()
    }
}

/// Returns the container of a lease, or the device's name if the lease cannot be parsed.
fn lease_holder(entry: &LeaseEntry) -> String {
    match &entry.lease {
        Ok(lease) => lease.container.to_string(),
        Err(_) => format!("unknown container of {}", entry.device),
    }
}
