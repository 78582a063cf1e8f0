//! The annotations by which Kubernetes' engines name a container's pod.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The part of a container's config.json that engines annotate.
#[derive(Deserialize)]
pub struct AnnotatedConfig {
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// The annotation keys of an engine.
#[derive(Debug, PartialEq, Eq)]
pub struct PodKeys {
    pub namespace: &'static str,
    pub pod: &'static str,
    pub container: &'static str,
}

pub const CONTAINERD: PodKeys = PodKeys {
    namespace: "io.kubernetes.cri.sandbox-namespace",
    pod: "io.kubernetes.cri.sandbox-name",
    container: "io.kubernetes.cri.container-name",
};
/// Of CRI-O. cri-dockerd sets the same key for the container.
pub const CRIO: PodKeys = PodKeys {
    namespace: "io.kubernetes.pod.namespace",
    pod: "io.kubernetes.pod.name",
    container: "io.kubernetes.container.name",
};
const CRIO_ID: &str = "io.kubernetes.cri-o.ContainerID";

/// Returns the keys that the container's engine has set, and the pod cannot have set.
///
/// CRI-O copies all annotations of a pod to its containers (`SpecAddAnnotations`,
/// internal/factory/container/container.go), containerd those that match its `pod_annotations`.
/// Each engine then overwrites its own keys. A pod cannot know the ID that an engine will assign to
/// a container.
pub fn pod_keys(annotations: &BTreeMap<String, String>, id: &str) -> &'static PodKeys {
    match annotations.get(CRIO_ID) {
        Some(crio_id) if crio_id == id => &CRIO,
        _ => &CONTAINERD,
    }
}
