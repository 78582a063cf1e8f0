//! The fields of ResourceClaims that this driver reads. Any user of a namespace can write a claim of a megabyte, so all
//! other fields and the entries of other drivers are skipped.

use std::fmt;
use std::marker::PhantomData;

use k8s_openapi::api::resource::v1::AllocatedDeviceStatus;
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::dra::DRIVER;

/// The most results of an allocation (`AllocationResultsMaxSize` of k8s.io/api/resource/v1), and the most devices in
/// the status of a claim.
pub const MAX_RESULTS: usize = 32;
/// The most configurations of an allocation: 32 of the claim (`DeviceConfigMaxSize`), and as many of the class of each
/// result.
pub const MAX_CONFIGS: usize = 32 * (1 + MAX_RESULTS);

/// A ResourceClaim.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimObject {
    pub metadata: ClaimMetadata,
    pub spec: ClaimSpec,
    pub status: Option<ClaimStatus>,
}

impl ClaimObject {
    pub fn has_uid(&self, uid: &str) -> bool {
        self.metadata.uid.as_deref() == Some(uid)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimMetadata {
    pub namespace: Option<String>,
    pub uid: Option<String>,
    pub annotations: Option<ClaimAnnotations>,
}

#[derive(Debug, Default, Deserialize)]
pub struct ClaimAnnotations {
    /// The pod's name for a claim that was created from a template (`PodResourceClaimAnnotation` of
    /// k8s.io/api/resource).
    #[serde(rename = "resource.kubernetes.io/pod-claim-name")]
    pub pod_claim_name: Option<String>,
    /// `true` for a claim that the scheduler created for a pod's extended resources
    /// (`ExtendedResourceClaimAnnotation`).
    #[serde(rename = "resource.kubernetes.io/extended-resource-claim")]
    pub extended_resource_claim: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimSpec {
    pub devices: Option<ClaimRequests>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimRequests {
    pub requests: Option<Vec<ClaimRequest>>,
}

#[derive(Debug, Deserialize)]
pub struct ClaimRequest {
    pub name: String,
    pub exactly: Option<ExactRequest>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExactRequest {
    pub device_class_name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimStatus {
    pub allocation: Option<ClaimAllocation>,
    pub devices: OwnEntries<AllocatedDeviceStatus, MAX_RESULTS>,
    pub reserved_for: Option<Vec<ClaimConsumer>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimAllocation {
    pub devices: AllocatedResults,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct AllocatedResults {
    pub results: OwnEntries<AllocationResult, MAX_RESULTS>,
    pub config: OwnEntries<AllocationConfig, MAX_CONFIGS>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AllocationResult {
    pub request: String,
    pub driver: String,
    pub pool: String,
    pub device: String,
    #[serde(rename = "shareID")]
    pub share_id: Option<String>,
    pub admin_access: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub struct AllocationConfig {
    pub source: String,
    pub requests: Option<Vec<String>>,
    pub opaque: Option<OpaqueParameters>,
}

#[derive(Debug, Deserialize)]
pub struct OpaqueParameters {
    pub driver: String,
    pub parameters: Box<RawValue>,
}

/// A pod or other object for which a claim is reserved.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimConsumer {
    pub api_group: Option<String>,
    pub resource: String,
    pub name: String,
    pub uid: String,
}

/// Only the devices of a claim, since a page of these is kept in memory.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ClaimHoldings {
    status: Option<HoldingsStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HoldingsStatus {
    allocation: Option<HoldingsAllocation>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HoldingsAllocation {
    devices: HoldingsResults,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HoldingsResults {
    results: OwnEntries<AllocationResult, MAX_RESULTS>,
}

impl ClaimHoldings {
    /// Returns the devices of this driver; none if there are more than a server accepts.
    pub(super) fn results(self) -> Vec<AllocationResult> {
        let allocation = self.status.and_then(|status| status.allocation).unwrap_or_default();
        allocation.devices.results.entries().unwrap_or_default()
    }
}

pub trait DriverEntry {
    fn driver(&self) -> &str;
}

impl DriverEntry for AllocationResult {
    fn driver(&self) -> &str {
        &self.driver
    }
}

impl DriverEntry for AllocationConfig {
    fn driver(&self) -> &str {
        self.opaque.as_ref().map_or("", |opaque| &opaque.driver)
    }
}

impl DriverEntry for AllocatedDeviceStatus {
    fn driver(&self) -> &str {
        &self.driver
    }
}

/// The entries of this driver in a list. Entries of others are dropped while the list is read.
#[derive(Debug)]
pub struct OwnEntries<T, const MAX: usize>(Option<Vec<T>>);

impl<T, const MAX: usize> OwnEntries<T, MAX> {
    /// Returns the entries, or `None` if there are more than `MAX`.
    pub fn entries(self) -> Option<Vec<T>> {
        self.0
    }
}

impl<T, const MAX: usize> Default for OwnEntries<T, MAX> {
    fn default() -> Self {
        OwnEntries(Some(Vec::new()))
    }
}

impl<'de, T: Deserialize<'de> + DriverEntry, const MAX: usize> Deserialize<'de>
    for OwnEntries<T, MAX>
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EntriesVisitor(PhantomData))
    }
}

struct EntriesVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de> + DriverEntry, const MAX: usize> Visitor<'de>
    for EntriesVisitor<T, MAX>
{
    type Value = OwnEntries<T, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(OwnEntries::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut entries: Option<Vec<T>> = Some(Vec::new());
        while let Some(entry) = list.next_element::<T>()? {
            if entry.driver() == DRIVER {
                entries = entries.filter(|entries| entries.len() < MAX);
                if let Some(entries) = &mut entries {
                    entries.push(entry);
                }
            }
        }
        Ok(OwnEntries(entries))
    }
}
