//! Which pod a container is of, for those who meet its leases.

use std::collections::BTreeMap;
use std::path::Path;

use onload_core::lease::is_pod;
use onload_sys::fs::regular;
use serde::Deserialize;

const MOST: u64 = 4 * 1024 * 1024;
/// Namespace and name, as containerd's CRI and CRI-O annotate them.
const KEYS: [[&str; 2]; 2] = [
    [
        "io.kubernetes.cri.sandbox-namespace",
        "io.kubernetes.cri.sandbox-name",
    ],
    ["io.kubernetes.pod.namespace", "io.kubernetes.pod.name"],
];

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// `NAMESPACE/NAME` of the pod whose container has this bundle; none where nobody says so, or not by such names.
pub(super) fn of(bundle: &Path) -> Option<String> {
    let bytes = regular::read(&bundle.join("config.json"), MOST).ok()?;
    let Config { annotations } = serde_json::from_slice(&bytes).ok()?;
    let pod = KEYS.iter().find_map(|[namespace, name]| {
        let (namespace, name) = (annotations.get(*namespace)?, annotations.get(*name)?);
        Some(format!("{namespace}/{name}"))
    });
    pod.filter(|pod| is_pod(pod))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_config(text: &str) -> Option<String> {
        let bundle = tempfile::tempdir().unwrap();
        std::fs::write(bundle.path().join("config.json"), text).unwrap();
        of(bundle.path())
    }

    #[test]
    fn a_pod_is_named_by_the_annotations_of_its_engine() {
        let containerd = r#"{"ociVersion":"1.2.0","annotations":{"io.kubernetes.cri.container-name":"c",
            "io.kubernetes.cri.sandbox-name":"redis-0","io.kubernetes.cri.sandbox-namespace":"default"}}"#;
        assert_eq!(of_config(containerd).as_deref(), Some("default/redis-0"));
        let crio = r#"{"annotations":{"io.kubernetes.pod.name":"redis-0","io.kubernetes.pod.namespace":"prod"}}"#;
        assert_eq!(of_config(crio).as_deref(), Some("prod/redis-0"));
    }

    #[test]
    fn what_is_no_pod_s_has_none() {
        let half = r#"{"annotations":{"io.kubernetes.pod.name":"redis-0"}}"#;
        for text in [
            "{}",
            "",
            "[",
            half,
            r#"{"annotations":{"io.kubernetes.pod.name":1}}"#,
        ] {
            assert_eq!(of_config(text), None, "{text}");
        }
        assert_eq!(of(Path::new("/nonexistent")), None);
    }

    /// Whoever starts a container by podman writes annotations as they like.
    #[test]
    fn what_no_cluster_calls_a_pod_is_none() {
        let named = |name: &str| {
            let annotations = serde_json::json!({
                "io.kubernetes.pod.namespace": "prod", "io.kubernetes.pod.name": name
            });
            of_config(&serde_json::json!({ "annotations": annotations }).to_string())
        };
        assert!(named(&"a".repeat(253)).is_some());
        for bad in ["", "a b", "a\u{1b}[31m", "a/b", &"a".repeat(70 * 1024)] {
            assert_eq!(named(bad), None, "{bad:.9}");
        }
    }
}
