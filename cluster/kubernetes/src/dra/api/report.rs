//! Writes the status of claims, and Events.

use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, ResourceClaim};
use kube_client::Resource;
use kube_client::api::{Patch, PatchParams, PostParams};
use kube_client::core::Request;
use serde_json::{Value, json};

use super::{Api, ApiError, ClaimObject, encode_segment};
use crate::dra::DRIVER;

impl Api {
    /// Replaces our devices in the status of a claim; an empty list removes them. Returns the updated claim. Fails with
    /// a conflict if the claim has another uid.
    pub async fn apply_claim_devices(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        devices: &[AllocatedDeviceStatus],
    ) -> Result<ClaimObject, ApiError> {
        let (namespace_segment, segment) = (encode_segment(namespace), encode_segment(name));
        let what = format!("writing the devices of ResourceClaim {namespace_segment}/{segment}");
        let url = ResourceClaim::url_path(&(), Some(&namespace_segment));
        let object = json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "status": {"devices": devices},
        });
        let (params, patch) = (PatchParams::apply(DRIVER).force(), Patch::Apply(object));
        let request = Request::new(url).patch_subresource("status", &segment, &params, &patch);
        self.send_streamed("PATCH", &what, request).await
    }

    pub async fn create_event(&self, namespace: &str, event: &Event) -> Result<(), ApiError> {
        let namespace = encode_segment(namespace);
        let what = format!("writing an Event in namespace {namespace}");
        let events = kube_client::Api::<Event>::namespaced(self.client.clone(), &namespace);
        let params = PostParams::default();
        let request = events.create(&params, event);
        self.send("POST", &what, request).await.map(|_| ())
    }

    /// Changes some fields of an Event.
    pub async fn patch_event(
        &self,
        namespace: &str,
        name: &str,
        change: &Value,
    ) -> Result<(), ApiError> {
        let (namespace, name) = (encode_segment(namespace), encode_segment(name));
        let what = format!("writing Event {namespace}/{name}");
        let events = kube_client::Api::<Event>::namespaced(self.client.clone(), &namespace);
        let (params, patch) = (PatchParams::default(), Patch::Merge(change));
        let request = events.patch(&name, &params, &patch);
        self.send("PATCH", &what, request).await.map(|_| ())
    }
}
