//! The devices of this driver that a claim was allocated, and their configuration.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use onload_core::claim_uid::ClaimUid;
use onload_core::kubernetes_settings::ResourceName;
use onload_sys::text::Quoted;

use super::parameters::{Author, Parameters};
use crate::dra::api::{AllocationConfig, AllocationResult, ClaimObject, MAX_CONFIGS, MAX_RESULTS};

/// `source` of a configuration from the DeviceClass.
const FROM_CLASS: &str = "FromClass";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllocatedDevice {
    /// The request, without the chosen alternative.
    pub(crate) request: String,
    /// The request with the chosen alternative, as `REQUEST/ALTERNATIVE`.
    pub(crate) chosen: String,
    pub(crate) pool: String,
    pub(crate) device: String,
    /// The extended resource that the pod requested instead of a claim.
    pub(crate) resource: Option<ResourceName>,
    /// The share of a device that several claims have.
    pub(crate) share_id: Option<String>,
    /// Whether access is for monitoring only (admin access), so that other claims may have the device exclusively.
    pub(crate) is_admin: bool,
    pub(crate) parameters: Parameters,
}

/// Returns the devices that a claim was allocated, if it has this uid. `resource` returns the extended resource of a
/// DeviceClass.
pub(crate) fn allocated_devices(
    claim: ClaimObject,
    uid: &ClaimUid,
    resource: impl Fn(&str) -> Option<String>,
) -> Result<Vec<AllocatedDevice>> {
    let found_uid = claim.metadata.uid.as_deref().unwrap_or_default();
    if found_uid != uid.as_str() {
        bail!(
            "it was deleted and replaced by a claim with uid {}, but the pod waits for {uid}; \
             delete the pod",
            Quoted(found_uid)
        );
    }
    let resources = if is_resource_claim(&claim) {
        resources_by_request(&claim, resource)
    } else {
        BTreeMap::new()
    };
    let allocation = claim
        .status
        .and_then(|status| status.allocation)
        .context("it is not allocated; is its pod scheduled?")?;
    let config = allocation
        .devices
        .config
        .entries()
        .with_context(|| format!("it has more than {MAX_CONFIGS} parameters"))?;
    let configs = parse_config(config)?;
    let results = allocation
        .devices
        .results
        .entries()
        .with_context(|| format!("it has more than {MAX_RESULTS} devices"))?;
    Ok(results.into_iter().map(|result| allocated_device(result, &configs, &resources)).collect())
}

fn is_resource_claim(claim: &ClaimObject) -> bool {
    let annotations = claim.metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.extended_resource_claim.as_deref() == Some("true"))
}

fn resources_by_request(
    claim: &ClaimObject,
    resource: impl Fn(&str) -> Option<String>,
) -> BTreeMap<String, ResourceName> {
    let requests =
        claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten()).filter_map(
            |request| {
                let class = &request.exactly.as_ref()?.device_class_name;
                let resource = resource(class)?.try_into().ok()?;
                Some((request.name.clone(), resource))
            },
        );
    requests.collect()
}

struct ConfigParameters {
    requests: Vec<String>,
    parameters: Parameters,
}

/// Parses the configuration for this driver, starting with that of the classes.
fn parse_config(mut config: Vec<AllocationConfig>) -> Result<Vec<ConfigParameters>> {
    // The sort is stable: the entries of the classes, and those of the claim, stay in their order.
    config.sort_by_key(|entry| entry.source != FROM_CLASS);
    let mut configs = Vec::new();
    for entry in config {
        let Some(opaque) = entry.opaque else {
            continue;
        };
        let author = if entry.source == FROM_CLASS { Author::Class } else { Author::Claim };
        let parameters = Parameters::parse_json(opaque.parameters.get(), author);
        configs.push(ConfigParameters {
            requests: entry.requests.unwrap_or_default(),
            parameters: parameters.with_context(|| format!("parameters of {author}"))?,
        });
    }
    Ok(configs)
}

fn allocated_device(
    result: AllocationResult,
    configs: &[ConfigParameters],
    resources: &BTreeMap<String, ResourceName>,
) -> AllocatedDevice {
    // `REQUEST/ALTERNATIVE` of a prioritized list (KEP-4816).
    let mut parts = result.request.split('/');
    let request = parts.next().unwrap_or_default();
    let mut parameters = Parameters::default();
    for config in configs {
        let is_named =
            config.requests.iter().any(|named| *named == result.request || named == request);
        if config.requests.is_empty() || is_named {
            parameters.override_with(&config.parameters, is_named);
        }
    }
    AllocatedDevice {
        request: request.to_owned(),
        resource: resources.get(&result.request).cloned(),
        chosen: result.request,
        pool: result.pool,
        device: result.device,
        share_id: result.share_id,
        is_admin: result.admin_access == Some(true),
        parameters,
    }
}

// json! takes references of what it is given.
#[allow(clippy::needless_pass_by_value)]
#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::dra::api::ClaimAllocation;

    const UID: &str = "0d7e3c1a-5c0f-4c57-9a4e-2b1f8f0f8f11";

    fn nothing(_: &str) -> Option<String> {
        None
    }

    fn claim(results: Value, config: Value) -> ClaimObject {
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "c", "namespace": "default", "uid": UID},
            "spec": {},
            "status": {"allocation": {"devices": {"results": results, "config": config}}},
        });
        serde_json::from_value(claim).unwrap()
    }

    fn result(request: &str, device: &str) -> Value {
        json!({"request": request, "driver": "onload.dev", "pool": "n1/nic", "device": device})
    }

    fn opaque(source: &str, requests: &[&str], parameters: Value) -> Value {
        json!({"source": source, "requests": requests,
            "opaque": {"driver": "onload.dev", "parameters": parameters}})
    }

    fn parse_devices(results: Value, config: Value) -> Result<Vec<AllocatedDevice>, String> {
        let devices = allocated_devices(claim(results, config), &UID.parse().unwrap(), nothing);
        devices.map_err(|error| format!("{error:#}"))
    }

    fn profiles(devices: &[AllocatedDevice]) -> Vec<Option<&str>> {
        devices
            .iter()
            .map(|device| &device.parameters.profile)
            .map(|profile| Some(profile.as_ref()?.value.as_str()))
            .collect()
    }

    #[test]
    fn results_of_other_drivers_are_passed_over() {
        let gpu =
            json!({"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "gpu0"});
        let devices = parse_devices(json!([gpu, result("nic", "ens1")]), json!([])).unwrap();
        assert_eq!(devices.len(), 1);
        assert_eq!((devices[0].request.as_str(), devices[0].device.as_str()), ("nic", "ens1"));
        assert!(parse_devices(json!([gpu]), json!([])).unwrap().is_empty());
    }

    #[test]
    fn an_alternative_of_a_request_goes_by_the_request() {
        let devices = parse_devices(json!([result("nic/small", "ens1")]), json!([])).unwrap();
        assert_eq!(devices[0].request, "nic");
    }

    #[test]
    fn shares_and_admin_access_are_kept() {
        let mut shared = result("nic", "ens1");
        shared["shareID"] = json!("a671734a-e8e5-11e4-8fde-42010af09327");
        shared["adminAccess"] = json!(true);
        let devices = parse_devices(json!([shared, result("b", "ens2")]), json!([])).unwrap();
        assert_eq!(devices[0].share_id.as_deref(), Some("a671734a-e8e5-11e4-8fde-42010af09327"));
        assert!(devices[0].is_admin);
        assert_eq!((&devices[1].share_id, devices[1].is_admin), (&None, false));
    }

    #[test]
    fn the_resource_of_a_pod_is_known_for_a_claim_of_the_scheduler_s_alone() {
        // As kubectl showed it (tests/recorded/dra-1.36.2/transcripts/07-extended.txt), except for the results.
        let mut claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
                "generateName": "e1-extended-resources-", "name": "e1-extended-resources-8q82d",
                "namespace": "default", "uid": UID},
            "spec": {"devices": {"requests": [
                {"exactly": {"allocationMode": "ExactCount", "count": 2, "deviceClassName": "rdma.onload.dev"},
                    "name": "container-0-request-0"},
                {"exactly": {"allocationMode": "ExactCount", "count": 1, "deviceClassName": "gone.example.com"},
                    "name": "container-0-request-1"}]}},
            "status": {"allocation": {"devices": {"results": [
                result("container-0-request-0", "rxe0"), result("container-0-request-1", "ens1")]}}},
        });
        let resources = |claim: &Value| {
            let claim = serde_json::from_value(claim.clone()).unwrap();
            allocated_devices(claim, &UID.parse().unwrap(), |class: &str| {
                (class == "rdma.onload.dev").then(|| "rdma/hca".to_owned())
            })
            .unwrap()
            .into_iter()
            .map(|device| device.resource.map(|name| name.to_string()))
            .collect::<Vec<Option<String>>>()
        };
        assert_eq!(resources(&claim), [Some("rdma/hca".to_owned()), None]);
        claim["metadata"]["annotations"] = json!({});
        assert_eq!(resources(&claim), [None, None]);
    }

    #[test]
    fn what_the_claim_says_goes_before_what_its_class_says_wherever_they_stand() {
        let config = json!([
            opaque("FromClaim", &[], json!({"profile": "of-claim"})),
            opaque("FromClass", &[], json!({"profile": "of-class", "preload": "off"})),
        ]);
        let devices = parse_devices(json!([result("nic", "ens1")]), config).unwrap();
        assert_eq!(profiles(&devices), [Some("of-claim")]);
        let preload = devices[0].parameters.preload.as_ref().unwrap();
        assert!(!preload.value, "the class alone says this");
    }

    #[test]
    fn what_is_said_of_a_request_is_for_that_request_and_its_alternatives() {
        let results = json!([result("a", "ens1"), result("b/x", "ens2"), result("b/y", "ens3")]);
        let config = json!([
            opaque("FromClaim", &["b"], json!({"profile": "p"})),
            opaque("FromClaim", &["b/y"], json!({"profile": "q"})),
        ]);
        let devices = parse_devices(results, config).unwrap();
        assert_eq!(profiles(&devices), [None, Some("p"), Some("q")]);
    }

    #[test]
    fn parameters_of_other_drivers_are_not_looked_at() {
        let foreign = json!({"source": "FromClaim", "requests": [],
            "opaque": {"driver": "dra.net", "parameters": {"unknown": "x".repeat(10_240)}}});
        let devices = parse_devices(json!([result("a", "ens1")]), json!([foreign])).unwrap();
        assert_eq!(devices[0].parameters, Parameters::default());
    }

    #[test]
    fn more_than_a_server_accepts_is_refused_if_it_is_for_this_driver() {
        let devices = |count| vec![result("a", "ens1"); count];
        assert_eq!(parse_devices(json!(devices(32)), json!([])).unwrap().len(), 32);
        let line = parse_devices(json!(devices(33)), json!([])).unwrap_err();
        assert_eq!(line, "it has more than 32 devices");
        let mut foreign = result("a", "gpu0");
        foreign["driver"] = json!("gpu.example.com");
        let of_both = [devices(32), vec![foreign; 5_000]].concat();
        assert_eq!(parse_devices(json!(of_both), json!([])).unwrap().len(), 32);
        let long = json!({"profile": "x".repeat(20_000)});
        let line =
            parse_devices(json!(devices(1)), json!([opaque("FromClaim", &[], long)])).unwrap_err();
        assert_eq!(line, "parameters of the claim: they are longer than 10240 bytes");
    }

    #[test]
    fn parameters_that_are_not_understood_say_who_wrote_them() {
        for (source, says) in [
            ("FromClass", "parameters of the class: unknown key \"colour\""),
            ("FromClaim", "parameters of the claim: unknown key \"colour\""),
        ] {
            let config = json!([opaque(source, &[], json!({"colour": 1}))]);
            let line = parse_devices(json!([result("a", "ens1")]), config).unwrap_err();
            assert!(line.starts_with(says), "{line}");
        }
    }

    #[test]
    fn a_claim_of_another_uid_is_refused() {
        let mut other = claim(json!([]), json!([]));
        other.metadata.uid = Some("other\n".to_owned());
        let line =
            allocated_devices(other, &UID.parse().unwrap(), nothing).unwrap_err().to_string();
        assert!(
            line.contains(
                "replaced by a claim with uid \"other\\n\", but the pod waits for 0d7e3c1a"
            ),
            "{line}"
        );
    }

    #[test]
    fn a_claim_without_an_allocation_is_refused() {
        for cut in ["status", "allocation"] {
            let mut bare = claim(json!([]), json!([]));
            match cut {
                "status" => bare.status = None,
                _ => bare.status.as_mut().unwrap().allocation = None,
            }
            let error = allocated_devices(bare, &UID.parse().unwrap(), nothing).unwrap_err();
            assert!(error.to_string().starts_with("it is not allocated"), "{error}");
        }
        let mut empty = claim(json!([]), json!([]));
        empty.status.as_mut().unwrap().allocation = Some(ClaimAllocation::default());
        let devices = allocated_devices(empty, &UID.parse().unwrap(), nothing).unwrap();
        assert!(devices.is_empty());
    }
}
