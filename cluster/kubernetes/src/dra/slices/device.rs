//! A device of a slice: an offer, or one slot of it.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceAttribute, DeviceCapacity,
    DeviceTaint,
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

/// The taint that says why nobody is to get a device now, if there is a reason. That a claim has it is none: the
/// scheduler knows. It does not know of a pod that has it by annotation.
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
    /// So many at once.
    Shared(u32),
    Slot(u32),
}

pub(super) fn slice_device(
    name: String,
    device: &HostDevice,
    form: DeviceForm,
    (resource, pools): (Option<&ResourceName>, &PoolSelectors),
    trouble: Option<&str>,
) -> Device {
    Device {
        name,
        attributes: Some(attributes(device, form, resource, pools)),
        capacity: Some(capacity(form)),
        allow_multiple_allocations: matches!(form, DeviceForm::Shared(_)).then_some(true),
        taints: trouble.map(|key| vec![taint(key)]),
        ..Device::default()
    }
}

pub(super) fn taint(key: &str) -> DeviceTaint {
    DeviceTaint { key: key.to_owned(), effect: "NoSchedule".to_owned(), ..DeviceTaint::default() }
}

/// Every device of a class has the same ones of ours: a selector that asks for one that is missing is an error
/// for the whole pod. Those of others' domains are there where they are known: who compares them wants no
/// stand-in. `resource` is what the device is one of.
pub(crate) fn attributes(
    device: &HostDevice,
    form: DeviceForm,
    resource: Option<&ResourceName>,
    pools: &PoolSelectors,
) -> BTreeMap<String, DeviceAttribute> {
    let entries = device.attributes.iter();
    let entries = entries.map(|(name, value)| ((*name).to_owned(), to_attribute(value)));
    let mut attributes: BTreeMap<String, DeviceAttribute> = entries.collect();
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
        // Multus looks for the resource that a network names, and gives a CNI plugin the other.
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
    // The standard name comes with Kubernetes 1.37 (KEP-6072); drivers of others use dranet's.
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

/// A text, cut where the server would refuse it.
fn text_attribute(value: &str) -> DeviceAttribute {
    DeviceAttribute {
        string: Some(truncate(value, MAX_TEXT).to_owned()),
        ..DeviceAttribute::default()
    }
}

/// A claim takes one slot unless it asks for more. Without that default it would take all of them.
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
                    // The server refuses a step beyond the value (`validateRequestPolicyRange`).
                    step: (slots > 1).then(|| quantity(1)),
                }),
                valid_values: None,
            }),
        },
    };
    BTreeMap::from([(SLOTS.to_owned(), capacity)])
}
