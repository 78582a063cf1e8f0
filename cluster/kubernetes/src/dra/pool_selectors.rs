//! How claims select the devices of a pool: by a boolean attribute for each pool. Pools for which a device has no room are
//! selected by the attribute `pools`, a list of names that has to be short.

use std::collections::{BTreeMap, BTreeSet};

use onload_core::class::Class;
use onload_host::offers::HostDevice;

use super::DRIVER;
use crate::names::hash;
use crate::resources::replace_punctuation;

/// The most attributes and capacities of a device (`ResourceSliceMaxAttributesAndCapacitiesPerDevice`).
const MAX_ENTRIES: usize = 32;
/// Entries that a device may have in addition to its own attributes and those of pools: `pools`, `slot`, seven of other
/// domains, and the capacity `slots`.
const OTHER_ENTRIES: usize = 10;
/// The most bytes of an attribute's name, a C identifier (`DeviceMaxIDLength`).
const MAX_IDENTIFIER: usize = 32;
const PREFIX: &str = "pool_";
const HASH_DIGITS: usize = 8;
/// The most bytes of a text (`DeviceAttributeMaxValueLength`).
pub(super) const MAX_TEXT: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct PoolSelectors {
    /// The attribute of each pool that has one. All devices of the class have all of them.
    attributes: BTreeMap<String, String>,
    /// The pools that are selected by the text.
    by_text: BTreeSet<String>,
    /// Pools without an attribute that matter to the operator, each with the reason.
    left_out: Vec<String>,
}

impl PoolSelectors {
    /// `devices`: those of the host.
    pub(crate) fn new(class: Class, devices: &[HostDevice]) -> PoolSelectors {
        let devices: Vec<&HostDevice> =
            devices.iter().filter(|device| device.class == class).collect();
        let own_attributes = devices.iter().map(|device| device.attributes.len()).max();
        let room = MAX_ENTRIES.saturating_sub(OTHER_ENTRIES + own_attributes.unwrap_or(0));
        let mut selectors = PoolSelectors::default();
        let mut owners: BTreeMap<String, &String> = BTreeMap::new();
        let pools: BTreeSet<&String> = devices.iter().flat_map(|device| &device.pools).collect();
        for pool in pools {
            let name = attribute_name(pool);
            let reason = match owners.get(&name) {
                Some(other) => format!("its attribute {name} is also that of pool {other}"),
                None if owners.len() == room => {
                    format!("{MAX_ENTRIES} attributes per device allow only {room} pools")
                }
                None => {
                    selectors.attributes.insert(pool.clone(), name.clone());
                    owners.insert(name, pool);
                    continue;
                }
            };
            let mut members = devices.iter().filter(|device| device.pools.contains(pool));
            if members.all(|device| pools_text(device).split(',').any(|p| p == pool)) {
                selectors.by_text.insert(pool.clone());
            } else {
                selectors.left_out.push(format!(
                    "pool {pool} of class {class} cannot be requested: {reason}, and the names of all pools of a device have more than {MAX_TEXT} bytes together; give the pools shorter names, or a device fewer pools"
                ));
            }
        }
        selectors
    }

    pub(crate) fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Returns whether a device is in each pool, by the names of the attributes.
    pub(super) fn memberships<'s>(
        &'s self,
        device: &'s HostDevice,
    ) -> impl Iterator<Item = (&'s String, bool)> {
        self.attributes.iter().map(|(pool, name)| (name, device.pools.contains(pool)))
    }

    /// Returns the CEL expression for the devices of a pool, if it can be requested. A node where the pool has no devices may
    /// lack the attribute, and a missing one is an error for the whole pod.
    pub(super) fn expression(&self, pool: &str) -> Option<String> {
        let attributes = format!("device.attributes[{DRIVER:?}]");
        match self.attributes.get(pool) {
            Some(name) => Some(format!("{name:?} in {attributes} && {attributes}.{name}")),
            None => self
                .by_text
                .contains(pool)
                .then(|| format!("{attributes}.pools.split(\",\").exists(pool, pool == {pool:?})")),
        }
    }
}

/// Returns the names of a device's pools, as many as fit whole.
pub(super) fn pools_text(device: &HostDevice) -> String {
    let mut text = String::new();
    for pool in &device.pools {
        let separator = if text.is_empty() { "" } else { "," };
        if text.len() + separator.len() + pool.len() <= MAX_TEXT {
            text += separator;
            text += pool;
        }
    }
    text
}

fn attribute_name(pool: &str) -> String {
    let mut name = format!("{PREFIX}{}", replace_punctuation(pool, '_'));
    if name.len() > MAX_IDENTIFIER {
        name.truncate(MAX_IDENTIFIER - HASH_DIGITS - 1);
        name = format!("{name}_{}", hash(pool, HASH_DIGITS));
    }
    name
}

#[cfg(test)]
mod tests {
    use onload_host::offers::Attribute;

    use super::*;
    use crate::dra::test_offers::offer;

    fn selectors(pools: &[&str]) -> PoolSelectors {
        let device = HostDevice {
            pools: pools.iter().map(|pool| (*pool).to_owned()).collect(),
            ..offer(Class::Vfio, "0000:81:10.0")
        };
        PoolSelectors::new(Class::Vfio, &[device, offer(Class::Nic, "ens1")])
    }

    #[test]
    fn each_pool_has_an_attribute_whose_name_is_a_short_identifier() {
        let pools = ["trading-latency-critical", "trading-market-data", "backup-replication", "ci"];
        let selectors = selectors(&pools);
        assert_eq!(selectors.left_out(), [""; 0]);
        for pool in pools {
            let name = format!("pool_{}", pool.replace('-', "_"));
            let attributes = r#"device.attributes["onload.dev"]"#;
            let expression = format!("{name:?} in {attributes} && {attributes}.{name}");
            assert_eq!(selectors.expression(pool), Some(expression));
        }
        assert_eq!(selectors.expression("other"), None);
        let device = HostDevice { pools: vec!["ci".to_owned()], ..offer(Class::Vfio, "a") };
        let is_member: Vec<bool> = selectors.memberships(&device).map(|(_, is)| is).collect();
        assert_eq!(is_member, [false, true, false, false]);
    }

    #[test]
    fn the_name_of_a_pool_with_a_long_name_ends_with_its_hash() {
        let names = ["a", "b"].map(|end| attribute_name(&format!("{}{end}", "x".repeat(40))));
        assert!(names.iter().all(|name| name.len() == 32 && name.starts_with("pool_xxx")));
        assert_ne!(names[0], names[1]);
    }

    #[test]
    fn the_text_has_whole_names_only() {
        let pools = ["a".repeat(40), "b".repeat(30), "c".repeat(23)];
        let device = HostDevice { pools: pools.to_vec(), ..offer(Class::Vfio, "a") };
        assert_eq!(pools_text(&device), format!("{},{}", pools[0], pools[2]));
    }

    #[test]
    fn pools_without_an_attribute_are_selected_by_the_text_or_reported() {
        let by_text = selectors(&["a-b", "a_b"]);
        assert_eq!(by_text.left_out(), [""; 0]);
        let expression = by_text.expression("a_b").unwrap();
        assert!(expression.ends_with(r#".pools.split(",").exists(pool, pool == "a_b")"#));
        let (one, two) = (format!("{}-b", "x".repeat(20)), format!("{}_b", "x".repeat(20)));
        let reported = selectors(&[&"a".repeat(30), &one, &two]);
        let line = &reported.left_out()[0];
        assert!(
            line.starts_with(&format!("pool {two} of class vfio cannot be requested: ")),
            "{line}"
        );
        assert!(line.contains(&format!("is also that of pool {one}")), "{line}");
    }

    #[test]
    fn there_are_only_as_many_attributes_as_a_device_has_room_for() {
        let pools: Vec<String> = (10..40).map(|n| format!("pool-{n}")).collect();
        let keys = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
        let device = HostDevice {
            pools: pools.clone(),
            attributes: keys.map(|key| (key, Attribute::Bool(true))).into(),
            ..offer(Class::Vfio, "a")
        };
        let selectors = PoolSelectors::new(Class::Vfio, &[device]);
        assert_eq!(selectors.attributes.len(), MAX_ENTRIES - OTHER_ENTRIES - keys.len());
        assert_eq!(selectors.left_out().len(), 30 - 10);
        let line = &selectors.left_out()[0];
        assert!(line.contains("pool-20") && line.contains("allow only 10 pools"), "{line}");
        assert_eq!(selectors.expression("pool-20"), None);
    }
}
