//! What kubelet and plugins say to each other: version v1beta1 of the device plugins
//! (staging/src/k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto of Kubernetes), the registration of
//! plugins that kubelet dials, and DRA drivers with the health of their devices.

pub mod dra;
pub mod dra_health;
pub mod messages;
pub mod registration;
pub mod services;

/// What a device plugin says when it registers; kubelet knows no other.
pub const VERSION: &str = "v1beta1";
/// The name of kubelet's socket in the directory of the device plugins.
pub const KUBELET_SOCKET: &str = "kubelet.sock";
/// The health of a device that a container can be given.
pub const HEALTHY: &str = "Healthy";
/// The health of one that it cannot.
pub const UNHEALTHY: &str = "Unhealthy";
/// The kind of plugin that DRA drivers are (pkg/kubelet/pluginmanager/cache of Kubernetes).
pub const DRA_PLUGIN: &str = "DRAPlugin";
