//! What the scheduler gave a claim of our devices, and what was said of them.

use k8s_openapi::api::resource::v1::{
    DeviceAllocationConfiguration, DeviceRequestAllocationResult, ResourceClaim,
};
use onload_core::lease::ClaimUid;

use super::error::PrepareError;
use super::parameters::{Author, Parameters};
use crate::dra::DRIVER;

/// `source` of a configuration that stands in the DeviceClass.
const FROM_CLASS: &str = "FromClass";

/// What a claim was given of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) devices: Vec<Allocated>,
}

/// A device that a claim was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allocated {
    /// The request, without the alternative of it that was chosen.
    pub(crate) request: String,
    pub(crate) pool: String,
    pub(crate) device: String,
    /// Which share of a device that several claims have.
    pub(crate) share_id: Option<String>,
    /// Whether it is for watching alone: other claims may have the device for themselves.
    pub(crate) is_admin: bool,
    /// What is said of it.
    pub(crate) parameters: Parameters,
}

impl Allocation {
    /// What stands in a claim, if it is the one of that uid.
    ///
    /// # Errors
    /// [`PrepareError`] for another claim, one without an allocation, and parameters that are not understood.
    pub(crate) fn of(claim: ResourceClaim, uid: &ClaimUid) -> Result<Allocation, PrepareError> {
        let found = claim.metadata.uid.unwrap_or_default();
        if found != uid.as_str() {
            let wanted = uid.to_string();
            return Err(PrepareError::Another { found, wanted });
        }
        let allocation = claim.status.and_then(|status| status.allocation);
        let devices = allocation.ok_or(PrepareError::NotAllocated)?.devices;
        let devices = devices.unwrap_or_default();
        let said = said(devices.config.unwrap_or_default())?;
        let results = devices.results.unwrap_or_default();
        let results = results.into_iter().filter(|result| result.driver == DRIVER);
        let devices = results.map(|result| allocated(result, &said)).collect();
        Ok(Allocation { devices })
    }
}

/// Parameters, and the requests that they are for.
struct Said {
    requests: Vec<String>,
    parameters: Parameters,
}

/// What was said to this driver, what the classes say first.
fn said(config: Vec<DeviceAllocationConfiguration>) -> Result<Vec<Said>, PrepareError> {
    let is_of_class = |entry: &DeviceAllocationConfiguration| entry.source == FROM_CLASS;
    let (of_class, of_claim): (Vec<_>, Vec<_>) = config.into_iter().partition(is_of_class);
    let of_class = of_class.into_iter().map(|entry| (Author::Class, entry));
    let of_claim = of_claim.into_iter().map(|entry| (Author::Claim, entry));
    let mut said = Vec::new();
    for (of, entry) in of_class.chain(of_claim) {
        let Some(opaque) = entry.opaque.filter(|opaque| opaque.driver == DRIVER) else {
            continue;
        };
        let parameters = Parameters::parse(&opaque.parameters.0, of);
        said.push(Said {
            requests: entry.requests.unwrap_or_default(),
            parameters: parameters.map_err(|source| PrepareError::Parameters { of, source })?,
        });
    }
    Ok(said)
}

fn allocated(result: DeviceRequestAllocationResult, said: &[Said]) -> Allocated {
    let base = base(&result.request);
    let mut parameters = Parameters::default();
    for said in said {
        let names_it = |request: &String| *request == result.request || request == base;
        let is_named = said.requests.iter().any(names_it);
        if said.requests.is_empty() || is_named {
            parameters.override_by(&said.parameters, is_named);
        }
    }
    Allocated {
        request: base.to_owned(),
        pool: result.pool,
        device: result.device,
        share_id: result.share_id,
        is_admin: result.admin_access == Some(true),
        parameters,
    }
}

/// The request without the alternative: `REQUEST/ALTERNATIVE` of a prioritized list (KEP-4816).
fn base(request: &str) -> &str {
    request
        .split_once('/')
        .map_or(request, |(request, _)| request)
}

#[cfg(test)]
// json! takes references of what it is given.
#[allow(clippy::needless_pass_by_value)]
mod tests {
    use onload_core::text::Chain;
    use serde_json::{Value, json};

    use super::*;

    const UID: &str = "0d7e3c1a-5c0f-4c57-9a4e-2b1f8f0f8f11";

    fn claim(results: Value, config: Value) -> ResourceClaim {
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

    fn of(results: Value, config: Value) -> Result<Vec<Allocated>, String> {
        let allocation = Allocation::of(claim(results, config), &UID.parse().unwrap());
        allocation
            .map(|allocation| allocation.devices)
            .map_err(|error| Chain(&error).to_string())
    }

    fn profiles(devices: &[Allocated]) -> Vec<Option<&str>> {
        let profiles = devices.iter().map(|device| &device.parameters.profile);
        profiles
            .map(|profile| Some(profile.as_ref()?.value.as_str()))
            .collect()
    }

    #[test]
    fn results_of_other_drivers_are_passed_over() {
        let gpu =
            json!({"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "gpu0"});
        let devices = of(json!([gpu, result("nic", "ens1")]), json!([])).unwrap();
        assert_eq!(devices.len(), 1);
        assert_eq!(
            (devices[0].request.as_str(), devices[0].device.as_str()),
            ("nic", "ens1")
        );
        assert!(of(json!([gpu]), json!([])).unwrap().is_empty());
    }

    #[test]
    fn an_alternative_of_a_request_goes_by_the_request() {
        let devices = of(json!([result("nic/small", "ens1")]), json!([])).unwrap();
        assert_eq!(devices[0].request, "nic");
    }

    #[test]
    fn shares_and_admin_access_are_kept() {
        let mut shared = result("nic", "ens1");
        shared["shareID"] = json!("a671734a-e8e5-11e4-8fde-42010af09327");
        shared["adminAccess"] = json!(true);
        let devices = of(json!([shared, result("b", "ens2")]), json!([])).unwrap();
        assert_eq!(
            devices[0].share_id.as_deref(),
            Some("a671734a-e8e5-11e4-8fde-42010af09327")
        );
        assert!(devices[0].is_admin);
        assert_eq!((&devices[1].share_id, devices[1].is_admin), (&None, false));
    }

    #[test]
    fn what_the_claim_says_goes_before_what_its_class_says_wherever_they_stand() {
        let config = json!([
            opaque("FromClaim", &[], json!({"profile": "of-claim"})),
            opaque(
                "FromClass",
                &[],
                json!({"profile": "of-class", "preload": "off"})
            ),
        ]);
        let devices = of(json!([result("nic", "ens1")]), config).unwrap();
        assert_eq!(profiles(&devices), [Some("of-claim")]);
        let preload = devices[0].parameters.preload.as_ref().unwrap();
        assert!(!preload.value, "the class alone says this");
    }

    #[test]
    fn what_is_said_of_a_request_is_for_that_request_and_its_alternatives() {
        let results = json!([
            result("a", "ens1"),
            result("b/x", "ens2"),
            result("b/y", "ens3")
        ]);
        let config = json!([
            opaque("FromClaim", &["b"], json!({"profile": "p"})),
            opaque("FromClaim", &["b/y"], json!({"profile": "q"})),
        ]);
        let devices = of(results, config).unwrap();
        assert_eq!(profiles(&devices), [None, Some("p"), Some("q")]);
    }

    #[test]
    fn parameters_of_other_drivers_are_not_looked_at() {
        let foreign = json!({"source": "FromClaim", "requests": [],
            "opaque": {"driver": "dra.net", "parameters": {"unknown": "x".repeat(10_240)}}});
        let devices = of(json!([result("a", "ens1")]), json!([foreign])).unwrap();
        assert_eq!(devices[0].parameters, Parameters::default());
    }

    #[test]
    fn parameters_that_are_not_understood_say_who_wrote_them() {
        for (source, says) in [
            (
                "FromClass",
                "parameters of the class: unknown key \"colour\"",
            ),
            (
                "FromClaim",
                "parameters of the claim: unknown key \"colour\"",
            ),
        ] {
            let config = json!([opaque(source, &[], json!({"colour": 1}))]);
            let line = of(json!([result("a", "ens1")]), config).unwrap_err();
            assert!(line.starts_with(says), "{line}");
        }
    }

    #[test]
    fn a_claim_of_another_uid_is_refused() {
        let mut other = claim(json!([]), json!([]));
        other.metadata.uid = Some("other\n".to_owned());
        let line = Allocation::of(other, &UID.parse().unwrap())
            .unwrap_err()
            .to_string();
        assert!(
            line.contains("that one has uid \"other\\n\", and the pod waits for 0d7e3c1a"),
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
            let error = Allocation::of(bare, &UID.parse().unwrap()).unwrap_err();
            assert!(matches!(error, PrepareError::NotAllocated), "{error}");
        }
        let mut empty = claim(json!([]), json!([]));
        empty
            .status
            .as_mut()
            .unwrap()
            .allocation
            .as_mut()
            .unwrap()
            .devices = None;
        let allocation = Allocation::of(empty, &UID.parse().unwrap()).unwrap();
        assert!(allocation.devices.is_empty());
    }
}
