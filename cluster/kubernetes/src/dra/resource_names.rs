//! Resources with names from the operator, and those of pools. The device plugin offers them by the configuration of
//! its node; with DRA each needs a DeviceClass, which is cluster-wide and which a node's daemon must not write.

use std::collections::{BTreeMap, BTreeSet};

use onload_core::class::Class;
use onload_core::kubernetes_settings::{
    KubernetesSettings, OWN_PREFIX, OfferMethod, ResourceName, ResourceSettings, ResourceSource,
};
use onload_host::offers::HostDevice;
use serde_json::{Value, json};

use super::DRIVER;
use super::classes::DeviceClasses;
use super::pool_selectors::PoolSelectors;
use crate::names::is_allocatable;
use crate::resources::{device_class_name, matches_source};
use crate::snapshot::KubernetesSnapshot;

/// Returns the resources with devices of a class, except the resource of the class itself. A resource of a pool comes
/// with the pool's name.
pub(super) fn other_resources(
    snapshot: &KubernetesSnapshot,
    class: Class,
) -> BTreeMap<ResourceName, Option<String>> {
    let pools: Vec<&String> = snapshot
        .devices
        .iter()
        .filter(|device| device.class == class)
        .flat_map(|device| &device.pools)
        .collect();
    let settings = &snapshot.config.kubernetes.resources;
    let named = settings.iter().filter_map(|(name, resource)| match resource.source()? {
        ResourceSource::Class(of) => (of == class).then(|| (name.clone(), None)),
        ResourceSource::Pool(pool) => {
            pools.iter().any(|other| *other == pool).then(|| (name.clone(), Some(pool.to_owned())))
        }
    });
    let mut resources: BTreeMap<ResourceName, Option<String>> = named.collect();
    for pool in pools {
        let is_named = resources.values().flatten().any(|other| other == pool);
        if let Ok(name) = ResourceName::onload_dev(pool)
            && !is_named
            && Class::from_name(pool).is_none()
        {
            resources.entry(name).or_insert_with(|| Some(pool.clone()));
        }
    }
    let conflicting = &snapshot.plan.conflicting;
    resources.retain(|name, _| name.as_str() != class.cdi_kind() && !conflicting.contains(name));
    resources
}

/// Returns all resources with devices of a class.
pub(super) fn class_resources(snapshot: &KubernetesSnapshot, class: Class) -> Vec<ResourceName> {
    let own = ResourceName::try_from(class.cdi_kind()).ok();
    own.into_iter().chain(other_resources(snapshot, class).into_keys()).collect()
}

/// Returns the classes that a resource's devices may belong to. Empty for another vendor's resource.
pub(super) fn classes_of(name: &str, snapshot: &KubernetesSnapshot) -> BTreeSet<Class> {
    let Ok(own) = ResourceName::try_from(name.to_owned()) else {
        return BTreeSet::new();
    };
    if let Some(resource) = snapshot.plan.resources.get(&own) {
        return resource.devices.iter().map(|device| device.class).collect();
    }
    let named = snapshot.config.kubernetes.resources.get(&own);
    if let Some(ResourceSource::Class(class)) = named.and_then(ResourceSettings::source) {
        return BTreeSet::from([class]);
    }
    if let Some(class) = Class::ALL.into_iter().find(|class| class.cdi_kind() == name) {
        return BTreeSet::from([class]);
    }
    // A pool, or one of an earlier configuration, may have had devices of any class.
    let is_pool = named.is_some() || name.split('/').next() == Some(OWN_PREFIX);
    if is_pool { BTreeSet::from(Class::ALL) } else { BTreeSet::new() }
}

/// The classes whose resources lack DeviceClasses, with these resources.
pub(super) type MissingClasses = BTreeMap<Class, Vec<ResourceName>>;

/// Warns once of resources of classes by DRA that no DeviceClass serves, with the manifest that adds them.
pub(super) fn log_missing(
    snapshot: &KubernetesSnapshot,
    device_classes: &DeviceClasses,
    logged: &mut MissingClasses,
) {
    let offer = &snapshot.config.kubernetes.offer;
    let mut missing = MissingClasses::new();
    for class in Class::ALL {
        if offer.method(class) != OfferMethod::Dra {
            continue;
        }
        let mut resources = other_resources(snapshot, class);
        resources.retain(|name, _| device_classes.is_served(name.as_str()) == Some(false));
        if resources.is_empty() {
            continue;
        }
        let names: Vec<ResourceName> = resources.keys().cloned().collect();
        if logged.get(&class) != Some(&names) {
            let texts: Vec<&str> = names.iter().map(ResourceName::as_str).collect();
            let reason =
                format!("no DeviceClass has the extendedResourceName {}", texts.join(", "));
            let selectors = PoolSelectors::new(class, &snapshot.devices);
            let apply = device_class_manifest(class, &resources, &selectors).to_string();
            let message = "pods that request a resource by name stay pending";
            tracing::warn!(%class, %reason, apply, message);
        }
        missing.insert(class, names);
    }
    *logged = missing;
}

/// Returns whether pods may get a device, by either interface: its class is listed, or an operator's resource or a pool
/// contains it.
pub(super) fn is_offered(device: &HostDevice, settings: &KubernetesSettings) -> bool {
    let mut named = settings.resources.values();
    is_allocatable(device)
        && (settings.classes.as_slice().contains(&device.class)
            || !device.pools.is_empty()
            || named.any(|resource| resource.class == Some(device.class)))
}

/// Returns the resource of a device by the device plugin's rules: an operator's resource, or else that of its first
/// pool, or else that of its class.
pub(super) fn resource_name(
    device: &HostDevice,
    settings: &KubernetesSettings,
) -> Option<ResourceName> {
    for (name, resource) in &settings.resources {
        if resource.source().is_some_and(|source| matches_source(device, source)) {
            return Some(name.clone());
        }
    }
    let pool = device.pools.iter().find(|pool| Class::from_name(pool).is_none());
    ResourceName::onload_dev(pool.map_or(device.class.as_str(), String::as_str)).ok()
}

/// Returns the manifest for `kubectl apply` with the DeviceClasses of these resources, without pools that cannot be
/// requested.
fn device_class_manifest(
    class: Class,
    resources: &BTreeMap<ResourceName, Option<String>>,
    selectors: &PoolSelectors,
) -> Value {
    let items = resources.iter().filter_map(|(name, pool)| match pool {
        None => Some(device_class(class, name, None)),
        Some(pool) => Some(device_class(class, name, Some(selectors.expression(pool)?))),
    });
    json!({"apiVersion": "v1", "kind": "List", "items": items.collect::<Vec<Value>>()})
}

fn device_class(class: Class, name: &ResourceName, pool_expression: Option<String>) -> Value {
    let mut expression =
        format!("device.driver == {DRIVER:?} && device.attributes[{DRIVER:?}].kind == \"{class}\"");
    if let Some(pool_expression) = pool_expression {
        expression += &format!(" && {pool_expression}");
    }
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": device_class_name(name)},
        "spec": {
            "extendedResourceName": name.as_str(),
            "selectors": [{"cel": {"expression": expression}}],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::test_offers::{offer, snapshot};

    fn beside_of(class: Class, settings: &str) -> Vec<(String, Option<String>)> {
        let settings: KubernetesSettings = serde_json::from_str(settings).unwrap();
        let of_pools = |class, name, pools: &[&str]| HostDevice {
            pools: pools.iter().map(|pool| (*pool).to_owned()).collect(),
            ..offer(class, name)
        };
        let devices = vec![
            of_pools(Class::Nic, "ens1", &[]),
            of_pools(Class::Vfio, "0000:81:10.0", &["fast", "vfio"]),
            of_pools(Class::Vfio, "0000:81:10.1", &["slow"]),
        ];
        other_resources(&snapshot(devices, settings), class)
            .into_iter()
            .map(|(name, pool)| (name.to_string(), pool))
            .collect()
    }

    #[test]
    fn a_device_is_one_of_the_resource_that_the_device_plugin_would_have_it_in() {
        let name_in = |pools: &[&str], settings: &str| {
            let device = HostDevice {
                pools: pools.iter().map(|pool| (*pool).to_owned()).collect(),
                ..offer(Class::Vfio, "0000:81:10.0")
            };
            let settings = serde_json::from_str(settings).unwrap();
            resource_name(&device, &settings).unwrap().to_string()
        };
        assert_eq!(name_in(&[], "{}"), "onload.dev/vfio");
        assert_eq!(name_in(&["vfio"], "{}"), "onload.dev/vfio");
        assert_eq!(name_in(&["fast", "slow"], "{}"), "onload.dev/fast");
        let named = r#"{"resources": {"example.com/s": {"pool": "slow"}, "intel.com/vf": {"class": "vfio"}}}"#;
        assert_eq!(name_in(&["fast", "slow"], named), "example.com/s");
        assert_eq!(name_in(&["fast"], named), "intel.com/vf");
    }

    #[test]
    fn a_device_is_offered_where_its_class_is_listed_or_a_resource_or_a_pool_has_it() {
        let is = |pools: &[&str], settings: &str| {
            let device = HostDevice {
                pools: pools.iter().map(|pool| (*pool).to_owned()).collect(),
                ..offer(Class::Vfio, "0000:81:10.0")
            };
            is_offered(&device, &serde_json::from_str(settings).unwrap())
        };
        assert!(is(&[], "{}"));
        assert!(is(&[], r#"{"classes": ["vfio"]}"#));
        assert!(!is(&[], r#"{"classes": ["nic"]}"#));
        assert!(is(&["fast"], r#"{"classes": ["nic"]}"#));
        let named = |source: &str| {
            format!(r#"{{"classes": ["nic"], "resources": {{"amd.com/vf": {source}}}}}"#)
        };
        assert!(is(&[], &named(r#"{"class": "vfio"}"#)));
        assert!(!is(&[], &named(r#"{"class": "rdma"}"#)));
        assert!(!is(&[], &named(r#"{"pool": "fast"}"#)));
        let loopback = HostDevice::new(Class::Nic, "loopback").unwrap();
        assert!(!is_offered(&loopback, &KubernetesSettings::default()));
    }

    #[test]
    fn every_class_that_is_a_resource_is_offered_and_no_other() {
        let settings = KubernetesSettings::default();
        let classes = Class::ALL.into_iter();
        let offered = classes.filter(|class| is_offered(&offer(*class, "a"), &settings));
        assert_eq!(offered.collect::<Vec<_>>(), settings.classes.as_slice());
    }

    fn named(name: &str, pool: Option<&str>) -> (String, Option<String>) {
        (name.to_owned(), pool.map(str::to_owned))
    }

    #[test]
    fn a_class_has_the_resources_of_the_operator_and_of_pools_with_its_devices() {
        let settings = r#"{"resources": {
            "amd.com/onload": {"class": "nic", "slots": 100},
            "onload.dev/nic": {"class": "nic"},
            "example.com/fast": {"pool": "fast"},
            "example.com/none": {"pool": "none"}
        }}"#;
        assert_eq!(beside_of(Class::Nic, settings), [named("amd.com/onload", None)]);
        assert_eq!(
            beside_of(Class::Vfio, settings),
            [named("example.com/fast", Some("fast")), named("onload.dev/slow", Some("slow"))]
        );
        assert_eq!(beside_of(Class::Rdma, settings), []);
        assert_eq!(beside_of(Class::Nic, "{}"), []);
    }

    #[test]
    fn a_resource_becomes_a_device_class_with_its_name() {
        let resources = BTreeMap::from([
            (ResourceName::try_from("amd.com/onload".to_owned()).unwrap(), None),
            (
                ResourceName::try_from("rdma/Hca_fast.1".to_owned()).unwrap(),
                Some("fast".to_owned()),
            ),
        ]);
        let device = HostDevice { pools: vec!["fast".to_owned()], ..offer(Class::Nic, "ens1") };
        let selectors = PoolSelectors::new(Class::Nic, &[device]);
        let list = device_class_manifest(Class::Nic, &resources, &selectors);
        let class_at = |at: usize| {
            let item = &list["items"][at];
            let expression = &item["spec"]["selectors"][0]["cel"]["expression"];
            (
                item["metadata"]["name"].as_str().unwrap(),
                item["spec"]["extendedResourceName"].as_str().unwrap(),
                expression.as_str().unwrap(),
            )
        };
        let nic =
            r#"device.driver == "onload.dev" && device.attributes["onload.dev"].kind == "nic""#;
        assert_eq!(class_at(0), ("onload.amd.com", "amd.com/onload", nic));
        let fast = format!(
            r#"{nic} && "pool_fast" in device.attributes["onload.dev"] && device.attributes["onload.dev"].pool_fast"#
        );
        assert_eq!(class_at(1), ("hca-fast-1.rdma", "rdma/Hca_fast.1", fast.as_str()));
    }
}
