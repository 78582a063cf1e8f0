//! Versions v1 and v1beta1 of the protocol between kubelet and DRA drivers
//! (staging/src/k8s.io/kubelet/pkg/apis/dra/v1/api.proto of Kubernetes).

use std::collections::BTreeMap;

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Claim {
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// Its uid. A claim that was made anew has the name of the old one, and another uid.
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub name: String,
}

/// Prepare claims for pods of this node.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodePrepareResourcesRequest {
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodePrepareResourcesResponse {
    /// For each claim of the request, by its uid.
    #[prost(btree_map = "string, message", tag = "1")]
    pub claims: BTreeMap<String, NodePrepareResourceResponse>,
}

/// The answer for a claim.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodePrepareResourceResponse {
    /// What containers of the claim get.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
    /// Why it is not prepared; empty if it is.
    #[prost(string, tag = "2")]
    pub error: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Device {
    /// The requests of the claim that it is for; none means all.
    #[prost(string, repeated, tag = "1")]
    pub request_names: Vec<String>,
    #[prost(string, tag = "2")]
    pub pool_name: String,
    #[prost(string, tag = "3")]
    pub device_name: String,
    /// What a container of it gets, fully qualified.
    #[prost(string, repeated, tag = "4")]
    pub cdi_device_ids: Vec<String>,
    /// Which share of a device that several claims have at once. Unknown in v1beta1, and passed over there.
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}

/// No pod of this node needs these claims any more.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodeUnprepareResourcesRequest {
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodeUnprepareResourcesResponse {
    /// For each claim of the request, by its uid.
    #[prost(btree_map = "string, message", tag = "1")]
    pub claims: BTreeMap<String, NodeUnprepareResourceResponse>,
}

/// The answer for a claim.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodeUnprepareResourceResponse {
    /// What went wrong; empty if nothing did.
    #[prost(string, tag = "1")]
    pub error: String,
}
