//! Virtual functions that are alike, folded into one line.

use std::collections::{BTreeMap, BTreeSet};

use onload_core::class::Class;
use onload_core::container_id;

use super::model::{Occupancy, TopologyDevice, TopologyFunction};
use onload_sys::cpu_list;
use onload_sys::text::join_first;

const NAMED: usize = 3;

/// Characters of an id that an engine makes.
const ID: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FunctionGroup {
    pub(super) count: usize,
    pub(super) numbers: String,
    pub(super) driver: Option<String>,
    pub(super) classes: Vec<Class>,
    pub(super) state: Occupancy,
    pub(super) holders: Vec<String>,
}

impl FunctionGroup {
    /// Its driver and functions: `vfio-pci VF 0-15`.
    pub(super) fn name(&self) -> String {
        let driver = self.driver.as_deref().unwrap_or("no driver");
        format!("{driver} VF {}", self.numbers)
    }

    /// The devices that containers get of it: `16 free as vfio`.
    pub(super) fn describe(&self) -> String {
        let classes: Vec<&str> = self.classes.iter().map(|class| class.as_str()).collect();
        let (count, state) = (self.count, self.state.as_str());
        match (classes.is_empty(), self.state) {
            (false, Occupancy::Free | Occupancy::Held | Occupancy::Drained) => {
                format!("{count} {state} as {}", classes.join(", "))
            }
            _ => format!("{count} {state}"),
        }
    }
}

/// Returns a device with its state and holders, for example `nic ens1: shared, held by redis`.
pub(super) fn describe_device(device: &TopologyDevice) -> String {
    let state = match describe_holders(&device.holders) {
        Some(held) if device.state == Occupancy::Held => held,
        // A shared device in use is not called free.
        Some(held) if device.state == Occupancy::Free => format!("shared, {held}"),
        Some(held) => format!("{}, {held}", device.state.as_str()),
        None => device.state.as_str().to_owned(),
    };
    format!("{} {}: {state}", device.class, device.name)
}

pub(super) fn describe_holders(holders: &[String]) -> Option<String> {
    let names = holders.iter().map(|holder| match holder.as_str() {
        // An id as people type it; a name stays.
        id if id.len() == ID && id.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            container_id::short_id(id).to_owned()
        }
        name => name.to_owned(),
    });
    let names: Vec<String> = names.collect();
    (!names.is_empty()).then(|| format!("held by {}", join_first(&names, NAMED)))
}

/// Folds virtual functions, in the order of the first of each group.
pub(super) fn group_functions(functions: &[TopologyFunction]) -> Vec<FunctionGroup> {
    type GroupKey<'f> = (Option<&'f str>, BTreeSet<Class>, Occupancy);
    let mut groups: BTreeMap<GroupKey<'_>, Vec<(usize, &TopologyFunction)>> = BTreeMap::new();
    for (position, function) in functions.iter().enumerate() {
        let classes: BTreeSet<Class> =
            function.informative_devices().map(|device| device.class).collect();
        let key = (function.driver.as_deref(), classes, function.state());
        groups.entry(key).or_default().push((position, function));
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, members)| members.first().map(|(position, _)| *position));
    let groups = groups.into_iter().map(|((driver, classes, state), members)| {
        let numbers: BTreeSet<u32> = members
            .iter()
            .map(|(position, function)| {
                function.index.unwrap_or(u32::try_from(*position).unwrap_or(u32::MAX))
            })
            .collect();
        let holders: BTreeSet<&String> = members
            .iter()
            .flat_map(|(_, function)| function.informative_devices())
            .flat_map(|device| &device.holders)
            .collect();
        FunctionGroup {
            count: members.len(),
            numbers: cpu_list::format_list(&numbers),
            driver: driver.map(str::to_owned),
            classes: classes.into_iter().collect(),
            state,
            holders: holders.into_iter().cloned().collect(),
        }
    });
    groups.collect()
}
