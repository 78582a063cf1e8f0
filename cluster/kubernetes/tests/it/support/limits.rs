//! What an API server refuses of a ResourceSlice (`ValidateResourceSlice` in pkg/apis/resource/validation of
//! Kubernetes 1.36).

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicyRange, Device, DeviceAttribute, DeviceCapacity, ResourceSlice,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

pub(crate) fn problems(slice: &ResourceSlice) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |is_good: bool, what: String| {
        if !is_good {
            found.push(what);
        }
    };
    let name = slice.metadata.name.as_deref().unwrap_or_default();
    check(is_subdomain(name), format!("metadata.name {name:?}"));
    let spec = &slice.spec;
    check(
        is_subdomain(&spec.driver) && spec.driver.len() <= 63,
        format!("driver {:?}", spec.driver),
    );
    let places = [
        spec.node_name.is_some(),
        spec.node_selector.is_some(),
        spec.all_nodes.is_some(),
        spec.per_device_node_selection.is_some(),
    ];
    check(places.iter().filter(|is_set| **is_set).count() == 1, "exactly one place".to_owned());
    let pool = &spec.pool;
    let is_pool = pool.name.len() <= 253 && pool.name.split('/').all(is_subdomain);
    check(is_pool, format!("pool {:?}", pool.name));
    check(pool.generation >= 0, "generation".to_owned());
    check(pool.resource_slice_count > 0, "resourceSliceCount".to_owned());
    let devices = spec.devices.as_deref().unwrap_or_default();
    let most = if devices.iter().any(|device| device.taints.is_some()) { 64 } else { 128 };
    check(devices.len() <= most, format!("{} devices of {most}", devices.len()));
    let names: BTreeSet<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    check(names.len() == devices.len(), "two devices of one name".to_owned());
    for device in devices {
        for problem in of_device(device) {
            check(false, format!("device {:?}: {problem}", device.name));
        }
    }
    found
}

fn of_device(device: &Device) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |is_good: bool, what: String| {
        if !is_good {
            found.push(what);
        }
    };
    check(is_label(&device.name), "its name".to_owned());
    let attributes = device.attributes.iter().flatten();
    let capacities = device.capacity.iter().flatten();
    let number = attributes.clone().count() + capacities.clone().count();
    check(number <= 32, format!("{number} attributes and capacities"));
    for (name, value) in attributes {
        check(is_qualified(name), format!("attribute {name:?}"));
        check(is_value(value), format!("attribute {name:?} is {value:?}"));
    }
    for (name, capacity) in capacities {
        check(is_qualified(name), format!("capacity {name:?}"));
        let number = capacity.value.0.parse::<u64>();
        check(number.is_ok(), format!("capacity {:?}", capacity.value));
        let is_shared = device.allow_multiple_allocations == Some(true);
        let policy = capacity.request_policy.as_ref();
        check(policy.is_none() || is_shared, "requestPolicy without sharing".to_owned());
        let is_policy = is_range_of(capacity).unwrap_or(true);
        check(is_policy, format!("requestPolicy {policy:?}"));
    }
    for taint in device.taints.iter().flatten() {
        let effect = ["NoSchedule", "NoExecute", "None"].contains(&taint.effect.as_str());
        check(effect && is_prefixed(&taint.key), format!("taint {taint:?}"));
    }
    found
}

/// `validateRequestPolicyRange`, for quantities without a unit; none without a range.
fn is_range_of(capacity: &DeviceCapacity) -> Option<bool> {
    let number = |quantity: &Quantity| quantity.0.parse::<u64>().unwrap_or(u64::MAX / 2);
    let policy = capacity.request_policy.as_ref()?;
    let CapacityRequestPolicyRange { min, max, step } = policy.valid_range.as_ref()?;
    let (value, min) = (number(&capacity.value), number(min));
    let default = policy.default.as_ref().map(number);
    let max = max.as_ref().map(number);
    let is_range = min <= value && max.is_none_or(|max| (min..=value).contains(&max));
    let is_in_it = |default: u64| min <= default && max.is_none_or(|max| default <= max);
    let is_step = |step: u64| {
        let mut numbers = default.into_iter().chain(max);
        min + step <= value && numbers.all(|number| number.abs_diff(min) % step == 0)
    };
    let step = step.as_ref().map(number);
    Some(is_range && default.is_some_and(is_in_it) && step.is_none_or(is_step))
}

fn is_value(value: &DeviceAttribute) -> bool {
    let values = [
        value.bool.is_some(),
        value.int.is_some(),
        value.string.as_ref().is_some_and(|text| text.len() <= 64),
        value.version.as_ref().is_some_and(|text| text.len() <= 64 && is_semver(text)),
    ];
    let set = [
        value.bool.is_some(),
        value.int.is_some(),
        value.string.is_some(),
        value.version.is_some(),
    ];
    set.iter().filter(|is_set| **is_set).count() == 1 && values == set
}

/// Without what comes behind `-` and `+`, which is not written here.
fn is_semver(text: &str) -> bool {
    let parts: Vec<&str> = text.split('.').collect();
    let is_number = |part: &&str| {
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        digits && (part.len() == 1 || !part.starts_with('0'))
    };
    parts.len() == 3 && parts.iter().all(is_number)
}

fn is_qualified(name: &str) -> bool {
    match name.split_once('/') {
        Some((domain, name)) => is_subdomain(domain) && domain.len() <= 63 && is_identifier(name),
        None => is_identifier(name),
    }
}

fn is_prefixed(key: &str) -> bool {
    key.split_once('/').is_some_and(|(domain, name)| is_subdomain(domain) && is_label(name))
}

fn is_identifier(name: &str) -> bool {
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    let rest = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    first && rest && name.len() <= 32
}

fn is_subdomain(name: &str) -> bool {
    !name.is_empty() && name.len() <= 253 && name.split('.').all(is_part)
}

fn is_part(part: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
}

pub(crate) fn is_label(label: &str) -> bool {
    is_part(label) && label.len() <= 63
}
