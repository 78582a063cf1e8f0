//! Whether this node has a DRA driver: the configuration wants one, and the API server can be asked.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use onload_core::class::Class;
use onload_core::kubernetes_settings::{Interface, KubernetesSettings};

use super::api::Api;
use super::names::NodeName;
use crate::observe::metrics::Metrics;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wish {
    No,
    /// Where it can run.
    IfPossible,
    Yes,
}

fn wish(settings: &KubernetesSettings) -> Wish {
    let wishes = Class::ALL.map(|class| match settings.offer.interface(class) {
        Interface::DevicePlugin => Wish::No,
        Interface::Auto => Wish::IfPossible,
        Interface::Dra => Wish::Yes,
    });
    wishes.into_iter().max().unwrap_or(Wish::No)
}

/// The node and its API server; `None` if devices are offered by the device plugin alone. An error where the
/// configuration says `dra` of a class. Claims that were prepared before (`has_claims`) need a driver until kubelet has
/// unprepared them.
pub fn start(
    settings: &KubernetesSettings,
    node: Option<&NodeName>,
    kubeconfig: Option<&Path>,
    has_claims: bool,
    metrics: &Arc<Metrics>,
) -> Result<Option<(NodeName, Api)>> {
    let wish = match wish(settings) {
        Wish::No if has_claims => Wish::IfPossible,
        wish => wish,
    };
    if wish == Wish::No {
        return Ok(None);
    }
    let found = match node {
        Some(node) => Api::find(kubeconfig, Arc::clone(metrics)).map(|api| (node.clone(), api)),
        None => Err(anyhow!("the name of this node is not known")),
    };
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if wish == Wish::Yes => {
            let hint = if node.is_none() {
                "; give --node-name"
            } else {
                ""
            };
            bail!("offering devices by DRA, as [kubernetes] offer says: {error:#}{hint}")
        }
        Err(error) => {
            let reason = format!("{error:#}");
            tracing::info!(%reason, "no DRA driver on this node; the device plugin offers all devices");
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(offer: &str) -> KubernetesSettings {
        serde_json::from_str(&format!(r#"{{"offer": {offer}}}"#)).unwrap()
    }

    fn started(offer: &str, node: Option<&str>) -> Result<bool, String> {
        let node = node.map(|node| node.parse().unwrap());
        let absent = Path::new("/nonexistent/kubeconfig");
        let started = start(
            &settings(offer),
            node.as_ref(),
            Some(absent),
            false,
            &Arc::default(),
        );
        started
            .map(|found| found.is_some())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_node_whose_api_server_cannot_be_asked_has_the_device_plugin_alone() {
        assert_eq!(started(r#""auto""#, None), Ok(false));
        assert_eq!(started(r#""auto""#, Some("n1")), Ok(false));
        assert_eq!(started(r#""device-plugin""#, Some("n1")), Ok(false));
    }

    #[test]
    fn a_class_that_is_to_be_offered_by_dra_alone_needs_a_node_and_an_api_server() {
        for offer in [r#""dra""#, r#"{"vfio": "dra"}"#] {
            let line = started(offer, None).unwrap_err();
            assert!(
                line.ends_with("the name of this node is not known; give --node-name"),
                "{line}"
            );
            let line = started(offer, Some("n1")).unwrap_err();
            assert!(line.contains("reading /nonexistent/kubeconfig"), "{line}");
        }
    }

    #[tokio::test]
    async fn claims_that_are_prepared_need_a_driver_whatever_is_configured() {
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        let text = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "t",
            "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
            "clusters": [{"name": "t", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "t", "user": {"token": "t"}}]}"#;
        std::fs::write(&kubeconfig, text).unwrap();
        let node = "n1".parse().unwrap();
        let plugin = settings(r#""device-plugin""#);
        for has_claims in [true, false] {
            let started = start(
                &plugin,
                Some(&node),
                Some(&kubeconfig),
                has_claims,
                &Arc::default(),
            );
            assert_eq!(started.unwrap().is_some(), has_claims);
        }
        let nowhere = start(&plugin, None, Some(&kubeconfig), true, &Arc::default());
        assert!(nowhere.unwrap().is_none(), "the device plugin goes on");
    }

    #[test]
    fn a_class_decides_for_the_driver() {
        for (offer, wanted) in [
            (r#""device-plugin""#, Wish::No),
            (r#""auto""#, Wish::IfPossible),
            (r#"{"nic": "device-plugin"}"#, Wish::IfPossible),
            (r#"{"nic": "dra"}"#, Wish::Yes),
        ] {
            assert_eq!(wish(&settings(offer)), wanted, "{offer}");
        }
    }
}
