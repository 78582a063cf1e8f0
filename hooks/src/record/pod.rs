//! Which pod a container is of, for those who meet its leases.

use std::path::Path;

use onload_core::container_id::ContainerId;
use onload_core::pod::{AnnotatedConfig, pod_keys};
use onload_lease::is_pod_name;
use onload_sys::fs::regular;

const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// Returns `NAMESPACE/NAME` of a container's pod, or `None` without valid annotations for it.
pub(super) fn find_pod(id: &ContainerId, bundle: &Path) -> Option<String> {
    let bytes = regular::read(&bundle.join("config.json"), MAX_BYTES).ok()?;
    let AnnotatedConfig { annotations } = serde_json::from_slice(&bytes).ok()?;
    let keys = pod_keys(&annotations, id.as_str());
    let (namespace, name) = (annotations.get(keys.namespace)?, annotations.get(keys.pod)?);
    Some(format!("{namespace}/{name}")).filter(|pod| is_pod_name(pod))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_config(text: &str) -> Option<String> {
        let bundle = tempfile::tempdir().unwrap();
        std::fs::write(bundle.path().join("config.json"), text).unwrap();
        find_pod(&id(), bundle.path())
    }

    fn id() -> ContainerId {
        "f00d".parse().unwrap()
    }

    #[test]
    fn a_pod_is_named_by_the_annotations_of_its_engine() {
        let containerd = r#"{"ociVersion":"1.2.0","annotations":{"io.kubernetes.cri.container-name":"c",
            "io.kubernetes.cri.sandbox-name":"redis-0","io.kubernetes.cri.sandbox-namespace":"default"}}"#;
        assert_eq!(of_config(containerd).as_deref(), Some("default/redis-0"));
        let crio = r#"{"annotations":{"io.kubernetes.cri-o.ContainerID":"f00d","io.kubernetes.pod.name":"redis-0",
            "io.kubernetes.pod.namespace":"prod"}}"#;
        assert_eq!(of_config(crio).as_deref(), Some("prod/redis-0"));
    }

    /// Of either engine both have the keys of both, but no pod the id of its container.
    #[test]
    fn a_pod_that_writes_the_keys_of_another_engine_keeps_its_own_name() {
        let named = |id: &str| {
            let annotations = serde_json::json!({
                "io.kubernetes.cri.sandbox-namespace": "default", "io.kubernetes.cri.sandbox-name": "of-containerd",
                "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.name": "of-crio",
                "io.kubernetes.cri-o.ContainerID": id, "io.kubernetes.cri-o.SandboxID": "beef"
            });
            of_config(&serde_json::json!({ "annotations": annotations }).to_string()).unwrap()
        };
        assert_eq!(named("f00d"), "default/of-crio");
        for guess in ["", "beef", "f00", "F00D"] {
            assert_eq!(named(guess), "default/of-containerd", "{guess}");
        }
    }

    #[test]
    fn what_is_no_pod_s_has_none() {
        let half = r#"{"annotations":{"io.kubernetes.cri.sandbox-name":"redis-0"}}"#;
        let of_other =
            r#"{"annotations":{"io.kubernetes.pod.namespace":"a","io.kubernetes.pod.name":"b"}}"#;
        for text in [
            "{}",
            "",
            "[",
            half,
            of_other,
            r#"{"annotations":{"io.kubernetes.cri.sandbox-name":1}}"#,
        ] {
            assert_eq!(of_config(text), None, "{text}");
        }
        assert_eq!(find_pod(&id(), Path::new("/nonexistent")), None);
    }

    /// A user who starts a container by podman can write any annotation.
    #[test]
    fn what_no_cluster_calls_a_pod_is_none() {
        let named = |name: &str| {
            let annotations = serde_json::json!({
                "io.kubernetes.cri.sandbox-namespace": "prod", "io.kubernetes.cri.sandbox-name": name
            });
            of_config(&serde_json::json!({ "annotations": annotations }).to_string())
        };
        assert!(named(&"a".repeat(253)).is_some());
        for bad in ["", "a b", "a\u{1b}[31m", "a/b", &"a".repeat(70 * 1024)] {
            assert_eq!(named(bad), None, "{bad:.9}");
        }
    }
}
