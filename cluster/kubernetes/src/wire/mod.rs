//! Version v1beta1 of the protocol between kubelet and device plugins
//! (staging/src/k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto of Kubernetes).

pub mod messages;
pub mod services;

/// What a plugin says when it registers; kubelet knows no other.
pub const VERSION: &str = "v1beta1";
/// The name of kubelet's socket in the directory of the device plugins.
pub const KUBELET_SOCKET: &str = "kubelet.sock";
/// The health of a device that a container can be given.
pub const HEALTHY: &str = "Healthy";
/// The health of one that it cannot.
pub const UNHEALTHY: &str = "Unhealthy";
