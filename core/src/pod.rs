//! How engines of Kubernetes say which pod a container is of, in the annotations of its configuration.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The part of a container's config.json that engines annotate.
#[derive(Deserialize)]
pub struct AnnotatedConfig {
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// Where an engine writes its names.
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
/// And of cri-dockerd, as far as the container goes.
pub const CRIO: PodKeys = PodKeys {
    namespace: "io.kubernetes.pod.namespace",
    pod: "io.kubernetes.pod.name",
    container: "io.kubernetes.container.name",
};
const CRIO_ID: &str = "io.kubernetes.cri-o.ContainerID";

/// The keys that the engine of a container has written, and not its pod: CRI-O hands on all annotations of a pod
/// (`SpecAddAnnotations` in internal/factory/container/container.go), containerd those that its `pod_annotations` lists, and
/// each writes its own over them. No pod knows the id that an engine will give its container.
pub fn pod_keys(annotations: &BTreeMap<String, String>, id: &str) -> &'static PodKeys {
    let crio_id = annotations.get(CRIO_ID);
    if crio_id.is_some_and(|annotated_id| annotated_id == id) { &CRIO } else { &CONTAINERD }
}
