//! The messages. The numbers are those of api.proto.

use std::collections::BTreeMap;

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Empty {}

/// A plugin that wants to be dialled.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RegisterRequest {
    /// The protocol, [`super::VERSION`].
    #[prost(string, tag = "1")]
    pub version: String,
    /// The file name of its socket in kubelet's directory.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    /// The resource that it offers.
    #[prost(string, tag = "3")]
    pub resource_name: String,
    /// What it wants to be asked.
    #[prost(message, optional, tag = "4")]
    pub options: Option<DevicePluginOptions>,
}

/// What a plugin wants to be asked.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct DevicePluginOptions {
    /// Call PreStartContainer before each start of a container.
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    /// Call GetPreferredAllocation before Allocate.
    #[prost(bool, tag = "2")]
    pub get_preferred_allocation_available: bool,
}

/// All devices of a resource.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListAndWatchResponse {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// What can be allocated once.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Device {
    /// Its id, unique in its resource.
    #[prost(string, tag = "1")]
    pub id: String,
    /// [`super::HEALTHY`] or [`super::UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub health: String,
    /// Where it is, if that is known.
    #[prost(message, optional, tag = "3")]
    pub topology: Option<TopologyInfo>,
}

/// Where a device is.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TopologyInfo {
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<NumaNode>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NumaNode {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// Which devices would be best.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PreferredAllocationRequest {
    /// For each container.
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<ContainerPreferredAllocationRequest>,
}

/// Which devices would be best for a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerPreferredAllocationRequest {
    #[prost(string, repeated, tag = "1")]
    pub available_device_ids: Vec<String>,
    /// Those that it gets in any case.
    #[prost(string, repeated, tag = "2")]
    pub must_include_device_ids: Vec<String>,
    #[prost(int32, tag = "3")]
    pub allocation_size: i32,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PreferredAllocationResponse {
    /// For each container, in the order of the request.
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerPreferredAllocationResponse>,
}

/// The answer for a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerPreferredAllocationResponse {
    /// As many as it gets.
    #[prost(string, repeated, tag = "1")]
    pub device_ids: Vec<String>,
}

/// What containers get with some devices.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AllocateRequest {
    /// For each container.
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<ContainerAllocateRequest>,
}

/// The devices of a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerAllocateRequest {
    /// Their ids, in no order.
    #[prost(string, repeated, tag = "1")]
    pub devices_ids: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AllocateResponse {
    /// For each container, in the order of the request.
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerAllocateResponse>,
}

/// What a container gets. Mounts and device nodes (2 and 3) are left to CDI.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerAllocateResponse {
    #[prost(btree_map = "string, string", tag = "1")]
    pub envs: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub annotations: BTreeMap<String, String>,
    /// CDI devices (Kubernetes 1.28 and later).
    #[prost(message, repeated, tag = "5")]
    pub cdi_devices: Vec<CdiDevice>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CdiDevice {
    #[prost(string, tag = "1")]
    pub name: String,
}

/// A container is about to start.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PreStartContainerRequest {
    #[prost(string, repeated, tag = "1")]
    pub devices_ids: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PreStartContainerResponse {}
