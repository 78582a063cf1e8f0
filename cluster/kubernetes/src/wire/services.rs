//! The services, as `build.rs` makes them.

#![allow(
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    clippy::needless_pass_by_value
)]

include!(concat!(env!("OUT_DIR"), "/v1beta1.Registration.rs"));
include!(concat!(env!("OUT_DIR"), "/v1beta1.DevicePlugin.rs"));

/// The registration of plugins that kubelet dials.
pub mod plugin_registration {
    include!(concat!(
        env!("OUT_DIR"),
        "/pluginregistration.Registration.rs"
    ));
}

/// DRA drivers, Kubernetes 1.34 and later.
pub mod dra_v1 {
    include!(concat!(
        env!("OUT_DIR"),
        "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin.rs"
    ));
}

/// DRA drivers, Kubernetes 1.32 and later.
pub mod dra_v1beta1 {
    include!(concat!(
        env!("OUT_DIR"),
        "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin.rs"
    ));
}

/// The health of allocated devices.
pub mod dra_health {
    include!(concat!(env!("OUT_DIR"), "/v1alpha1.DRAResourceHealth.rs"));
}
