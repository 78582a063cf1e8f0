//! kubelet's protocols, generated from the files in `proto/` (cluster/agent/tests/generated.rs): device plugins, plugin
//! registration, and DRA drivers with the health of their devices.

#![allow(
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    clippy::needless_pass_by_value
)]

pub mod device_plugin {
    include!("../../generated/v1beta1.rs");
}

pub mod registration {
    include!("../../generated/pluginregistration.rs");
}

/// DRA drivers, Kubernetes 1.34 and later.
pub mod dra {
    include!("../../generated/k8s.io.kubelet.pkg.apis.dra.v1.rs");
}

/// DRA drivers, Kubernetes 1.32 and later: a service of the same messages.
pub mod dra_v1beta1 {
    include!("../../generated/k8s.io.kubelet.pkg.apis.dra.v1beta1.rs");
}

/// The health of allocated devices. Its package name is just v1alpha1, unlike those of DRA.
pub mod dra_health {
    include!("../../generated/v1alpha1.rs");
}

/// The devices of pods, from kubelet's pod-resources socket.
pub mod pod_resources {
    include!("../../generated/v1.rs");
}

/// The version in a device plugin's registration, the only one that kubelet accepts.
pub const VERSION: &str = "v1beta1";
/// The name of kubelet's socket in the directory of the device plugins.
pub const KUBELET_SOCKET: &str = "kubelet.sock";
pub const HEALTHY: &str = "Healthy";
pub const UNHEALTHY: &str = "Unhealthy";
/// The kind of plugin that DRA drivers are (pkg/kubelet/pluginmanager/cache of Kubernetes).
pub const DRA_PLUGIN: &str = "DRAPlugin";
