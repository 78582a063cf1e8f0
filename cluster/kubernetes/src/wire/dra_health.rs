//! Version v1alpha1 of the health of allocated devices
//! (staging/src/k8s.io/kubelet/pkg/apis/dra-health/v1alpha1/api.proto of Kubernetes).

/// Tell the health from now on.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NodeWatchResourcesRequest {}

/// The health of all devices. What is left out is unknown.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodeWatchResourcesResponse {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<DeviceHealth>,
}

/// The health of a device.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DeviceHealth {
    #[prost(message, optional, tag = "1")]
    pub device: Option<DeviceIdentifier>,
    #[prost(enumeration = "HealthStatus", tag = "2")]
    pub health: i32,
    /// When that was found out, in seconds after 1970.
    #[prost(int64, tag = "3")]
    pub last_updated_time: i64,
    /// After so many seconds without a word it is unknown; 0 means kubelet's own 30.
    #[prost(int64, tag = "4")]
    pub health_check_timeout_seconds: i64,
    /// Why, for people: at most 1024 bytes.
    #[prost(string, tag = "5")]
    pub message: String,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, prost::Message)]
pub struct DeviceIdentifier {
    #[prost(string, tag = "1")]
    pub pool_name: String,
    #[prost(string, tag = "2")]
    pub device_name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum HealthStatus {
    Unknown = 0,
    /// A container can use it.
    Healthy = 1,
    Unhealthy = 2,
}
