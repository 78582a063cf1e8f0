//! Compares stored slices with written ones.

use k8s_openapi::api::resource::v1::{Device, ResourceSlice, ResourceSliceSpec};
use onload_host::specdir::sha256;

use super::features::DraFeatures;
use crate::names::parse_slot;

/// Returns a fingerprint of a slice's content without its generation. Only this is kept for thousands of devices.
pub fn fingerprint(slice: &ResourceSlice) -> String {
    let mut spec = slice.spec.clone();
    spec.pool.generation = 0;
    spec.pool.resource_slice_count = 0;
    let devices = spec.devices.iter_mut().flatten();
    for taint in devices.flat_map(|device| device.taints.iter_mut().flatten()) {
        // Set by the server.
        taint.time_added = None;
    }
    let owners: Vec<&str> =
        slice.metadata.owner_references.iter().flatten().map(|owner| owner.uid.as_str()).collect();
    // Cannot fail for texts, numbers and lists.
    sha256(&serde_json::to_vec(&(owners, &spec)).unwrap_or_default())
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceSummary {
    pub version: String,
    pub pool: String,
    pub generation: i64,
    pub count: i64,
    pub fingerprint: String,
    /// Whether slots are devices; `None` without a shared device.
    pub is_numbered: Option<bool>,
}

impl SliceSummary {
    pub fn from_slice(slice: &ResourceSlice) -> SliceSummary {
        let pool = &slice.spec.pool;
        SliceSummary {
            version: slice.metadata.resource_version.clone().unwrap_or_default(),
            pool: pool.name.clone(),
            generation: pool.generation,
            count: pool.resource_slice_count,
            fingerprint: fingerprint(slice),
            is_numbered: is_numbered(slice),
        }
    }
}

fn is_numbered(slice: &ResourceSlice) -> Option<bool> {
    let mut devices = slice.spec.devices.iter().flatten();
    devices.find_map(|device| {
        let is_shared = device.allow_multiple_allocations == Some(true);
        let is_slot = parse_slot(&device.name).is_some();
        (is_shared || is_slot).then_some(is_slot)
    })
}

/// Returns the features whose fields the server dropped, and whether anything else differs.
pub fn lost_features(sent: &ResourceSliceSpec, stored: &ResourceSliceSpec) -> (DraFeatures, bool) {
    let devices = |spec: &ResourceSliceSpec| spec.devices.clone().unwrap_or_default();
    let (sent_devices, stored_devices) = (devices(sent), devices(stored));
    let mut lost = DraFeatures::NONE;
    for (sent, stored) in sent_devices.iter().zip(&stored_devices) {
        lost.taints |= sent.taints.is_some() && stored.taints.as_ref().is_none_or(Vec::is_empty);
        let multiple = |device: &Device| device.allow_multiple_allocations == Some(true);
        lost.sharing |= multiple(sent) && !multiple(stored);
        lost.sharing |= has_policy(sent) && !has_policy(stored);
    }
    (lost, without_features(sent) != without_features(stored))
}

fn has_policy(device: &Device) -> bool {
    let mut capacities = device.capacity.iter().flatten().map(|(_, capacity)| capacity);
    capacities.any(|capacity| capacity.request_policy.is_some())
}

/// Returns the content without the fields of features.
fn without_features(spec: &ResourceSliceSpec) -> ResourceSliceSpec {
    let mut spec = spec.clone();
    spec.devices = Some(spec.devices.unwrap_or_default());
    for device in spec.devices.iter_mut().flatten() {
        device.taints = None;
        device.allow_multiple_allocations = None;
        let capacities = device.capacity.iter_mut().flatten();
        for (_, capacity) in capacities {
            capacity.request_policy = None;
        }
    }
    spec
}
