//! A device of a slice: an offer, or one slot of it.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, DeviceAttribute, DeviceCapacity, DeviceTaint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use onload_core::kubernetes_settings::ResourceName;
use onload_host::offers::{Attribute, Health, HostDevice};
use onload_lease::Lease;

use crate::dra::pool_selectors::{MAX_TEXT, PoolSelectors, pools_text};
use crate::names::truncate;

/// The taint of a device that cannot be used now: its link is down, or it is not what its specification says.
pub const UNHEALTHY: &str = "onload.dev/unhealthy";
/// The taint of a device that a container has without a claim: one outside of this cluster, or a pod's by annotation.
pub const HELD_TAINT: &str = "onload.dev/held";
/// The taint of a device that the operator has drained.
pub const DRAINED: &str = "onload.dev/drained";
const SLOTS: &str = "slots";

/// Returns the taint of a device that must not be allocated now. Use by a claim needs no taint, since the scheduler
/// knows of it. It does not know of a pod that has the device by annotation.
pub(super) fn taint_key(device: &HostDevice) -> Option<&'static str> {
    if device.is_drained {
        return Some(DRAINED);
    }
    if device.health != Health::Healthy {
        return Some(UNHEALTHY);
    }
    let other_health = device.health_excluding(is_claim_lease);
    (other_health != Health::Healthy).then_some(HELD_TAINT)
}

pub(crate) fn is_claim_lease(lease: &Lease) -> bool {
    lease.claim.is_some()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceForm {
    One,
    /// Several containers at once, up to this number.
    Shared(u32),
    Slot(u32),
}

pub(super) fn taint(key: &str) -> DeviceTaint {
    DeviceTaint { key: key.to_owned(), effect: "NoSchedule".to_owned(), ..DeviceTaint::default() }
}

/// Returns the attributes of a device. All devices of a class have the same attributes of our domain, since a selector
/// on a missing one is an error for the whole pod. Attributes of other domains are set only if known, since comparing
/// placeholders would be wrong. `resource` is the device's resource.
pub(crate) fn attributes(
    device: &HostDevice,
    form: DeviceForm,
    resource: Option<&ResourceName>,
    pools: &PoolSelectors,
) -> BTreeMap<String, DeviceAttribute> {
    let mut attributes: BTreeMap<String, DeviceAttribute> = device
        .attributes
        .iter()
        .map(|(name, value)| ((*name).to_owned(), to_attribute(value)))
        .collect();
    attributes.insert("pools".to_owned(), text_attribute(&pools_text(device)));
    let memberships = pools.memberships(device);
    attributes.extend(memberships.map(|(name, is)| (name.clone(), bool_attribute(is))));
    let slot = match form {
        DeviceForm::Slot(slot) => i64::from(slot),
        DeviceForm::One | DeviceForm::Shared(_) => 0,
    };
    attributes.insert("slot".to_owned(), int_attribute(slot));
    if let Some(pci) = device.pci {
        let address = text_attribute(&pci.to_string());
        attributes.insert("dra.net/pciAddress".to_owned(), address.clone());
        // Multus finds the device by a network's resource name, and passes the device id to the CNI plugin.
        if let Some(resource) = resource.filter(|resource| resource.as_str().len() <= MAX_TEXT) {
            attributes.insert("k8s.cni.cncf.io/deviceID".to_owned(), address.clone());
            let resource = text_attribute(resource.as_str());
            attributes.insert("k8s.cni.cncf.io/resourceName".to_owned(), resource);
        }
        attributes.insert("resource.kubernetes.io/pciBusID".to_owned(), address);
    }
    if let Some(root) = &device.pcie_root {
        attributes.insert("resource.kubernetes.io/pcieRoot".to_owned(), text_attribute(root));
    }
    // The standard name exists since Kubernetes 1.37 (KEP-6072). Other drivers use dranet's.
    if let Some(node) = device.numa_node {
        for name in ["dra.net/numaNode", "resource.kubernetes.io/numaNode"] {
            attributes.insert(name.to_owned(), int_attribute(i64::from(node)));
        }
    }
    attributes
}

fn to_attribute(value: &Attribute) -> DeviceAttribute {
    match value {
        Attribute::Text(value) => text_attribute(value),
        Attribute::Int(value) => int_attribute(*value),
        Attribute::Bool(value) => bool_attribute(*value),
        Attribute::Version(value) => {
            DeviceAttribute { version: Some(value.clone()), ..DeviceAttribute::default() }
        }
    }
}

fn bool_attribute(value: bool) -> DeviceAttribute {
    DeviceAttribute { bool: Some(value), ..DeviceAttribute::default() }
}

fn int_attribute(value: i64) -> DeviceAttribute {
    DeviceAttribute { int: Some(value), ..DeviceAttribute::default() }
}

/// Returns a text attribute, truncated to the server's limit.
fn text_attribute(value: &str) -> DeviceAttribute {
    DeviceAttribute {
        string: Some(truncate(value, MAX_TEXT).to_owned()),
        ..DeviceAttribute::default()
    }
}

/// Returns the capacity. A claim consumes one slot by default; without that default it would consume all.
pub(super) fn capacity(form: DeviceForm) -> BTreeMap<String, DeviceCapacity> {
    let quantity = |number: u32| Quantity(number.to_string());
    let capacity = match form {
        DeviceForm::One | DeviceForm::Slot(_) => {
            DeviceCapacity { value: quantity(1), request_policy: None }
        }
        DeviceForm::Shared(slots) => DeviceCapacity {
            value: quantity(slots),
            request_policy: Some(CapacityRequestPolicy {
                default: Some(quantity(1)),
                valid_range: Some(CapacityRequestPolicyRange {
                    min: quantity(1),
                    max: Some(quantity(slots)),
                    // The server rejects a step that exceeds the value (`validateRequestPolicyRange`).
                    step: (slots > 1).then(|| quantity(1)),
                }),
                valid_values: None,
            }),
        },
    };
    BTreeMap::from([(SLOTS.to_owned(), capacity)])
}
