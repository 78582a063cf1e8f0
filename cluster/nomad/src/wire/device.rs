//! What a device plugin is asked (plugins/device/proto/device.proto).

use std::collections::BTreeMap;

use super::structs::{Attribute, Duration, StatObject, StatValue, Timestamp};

/// All devices of the host; it takes the place of what was said before.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FingerprintResponse {
    #[prost(message, repeated, tag = "1")]
    pub device_group: Vec<DeviceGroup>,
}

/// Devices that a job cannot tell from each other.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceGroup {
    /// Who made them.
    #[prost(string, tag = "1")]
    pub vendor: String,
    #[prost(string, tag = "2")]
    pub device_type: String,
    #[prost(string, tag = "3")]
    pub device_name: String,
    #[prost(message, repeated, tag = "4")]
    pub devices: Vec<DetectedDevice>,
    /// What they are selected by.
    #[prost(btree_map = "string, message", tag = "5")]
    pub attributes: BTreeMap<String, Attribute>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DetectedDevice {
    /// What it is reserved by.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Whether a task can be given it.
    #[prost(bool, tag = "2")]
    pub healthy: bool,
    #[prost(string, tag = "3")]
    pub health_description: String,
    /// Where it is.
    #[prost(message, optional, tag = "4")]
    pub hw_locality: Option<DeviceLocality>,
}

/// Where a device is.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DeviceLocality {
    #[prost(string, tag = "1")]
    pub pci_bus_id: String,
}

/// A task is about to start.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ReserveRequest {
    /// The devices that it gets, all of one group.
    #[prost(string, repeated, tag = "1")]
    pub device_ids: Vec<String>,
}

/// What the task is given.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ReserveResponse {
    #[prost(message, optional, tag = "1")]
    pub container_res: Option<ContainerReservation>,
}

/// What a task is given.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerReservation {
    #[prost(btree_map = "string, string", tag = "1")]
    pub envs: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "2")]
    pub mounts: Vec<Mount>,
    #[prost(message, repeated, tag = "3")]
    pub devices: Vec<DeviceSpec>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Mount {
    /// Where it is in the task.
    #[prost(string, tag = "1")]
    pub task_path: String,
    /// Where it is on the host.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// Whether the task can only read it.
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DeviceSpec {
    /// Where it is in the task.
    #[prost(string, tag = "1")]
    pub task_path: String,
    /// Where it is on the host.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// What the task may do with it: some of `rwm`.
    #[prost(string, tag = "3")]
    pub permissions: String,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct StatsRequest {
    #[prost(message, optional, tag = "1")]
    pub collection_interval: Option<Duration>,
}

/// The statistics of all devices.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatsResponse {
    #[prost(message, repeated, tag = "1")]
    pub groups: Vec<DeviceGroupStats>,
}

/// The statistics of a group.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceGroupStats {
    #[prost(string, tag = "1")]
    pub vendor: String,
    #[prost(string, tag = "2")]
    pub r#type: String,
    #[prost(string, tag = "3")]
    pub name: String,
    /// The statistics, by the device's id.
    #[prost(btree_map = "string, message", tag = "4")]
    pub instance_stats: BTreeMap<String, DeviceStats>,
}

/// The statistics of a device.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceStats {
    /// The one value that is shown first.
    #[prost(message, optional, tag = "1")]
    pub summary: Option<StatValue>,
    #[prost(message, optional, tag = "2")]
    pub stats: Option<StatObject>,
    #[prost(message, optional, tag = "3")]
    pub timestamp: Option<Timestamp>,
}
