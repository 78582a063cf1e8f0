//! The driver of a node, at kubelet's sockets and at the API server.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use onload_core::class::Class;
use onload_core::kubernetes_settings::{KubernetesSettings, OfferMethod, ResourceName};
use tokio::join;
use tokio::sync::watch;

use super::amounts::{READ_DELAYS, ResourceAmounts};
use super::api::{AccessSource, Api};
use super::classes::DeviceClasses;
use super::driver::DraDriver;
use super::engine::{Engine, REFUSED, SETTLE};
use super::publish::{Publisher, WRITE_INTERVAL};
use super::published::PublishedClasses;
use super::{DraClasses, pod_resources};
use crate::names::NodeName;
use crate::observe::metrics::DaemonMetrics;

/// Context for failures to offer devices by DRA.
const OFFERING: &str = "offering devices by DRA, as [kubernetes] offer says";

/// Finds the node and its API server. `None` if only the device plugin offers devices. Prepared claims and published
/// classes from before (`has_remains`) need a driver until kubelet has unprepared the claims and the slices are deleted.
///
/// Fails if a class is configured for `dra` and the command line does not say how to reach the API server. If all are,
/// also fails if the kubeconfig or certificates are unusable. Otherwise the device plugin offers its classes, and the
/// driver waits for usable files.
pub fn find(
    settings: &KubernetesSettings,
    node: Option<&NodeName>,
    kubeconfig: Option<&Path>,
    has_remains: bool,
    metrics: &Arc<DaemonMetrics>,
) -> Result<Option<(NodeName, Api)>> {
    let methods = Class::ALL.map(|class| settings.offer.method(class));
    let is_wanted = methods.contains(&OfferMethod::Dra);
    if !is_wanted && !has_remains {
        return Ok(None);
    }
    let node_source = match node {
        Some(node) => AccessSource::find(kubeconfig).map(|source| (node, source)),
        None => Err(anyhow!("the node name is unknown; set --node-name")),
    };
    match node_source {
        Ok((node, source)) => {
            if !methods.contains(&OfferMethod::DevicePlugin) {
                let access = source.open().and_then(|access| access.tls.client_config());
                access.context(OFFERING)?;
            }
            Ok(Some((node.clone(), Api::new(source, Arc::clone(metrics)))))
        }
        Err(error) if is_wanted => Err(error.context(OFFERING)),
        Err(error) => {
            let reason = format!("{error:#}");
            tracing::info!(%reason, "no DRA driver on this node; the device plugin offers the devices");
            Ok(None)
        }
    }
}

/// Serves claims and publishes devices until `stop` holds true. Sends the classes for the device plugin to `plugin`,
/// and the resources that it must offer without devices to `none`.
pub async fn run(
    driver: DraDriver,
    (plugin, none): (watch::Sender<BTreeSet<Class>>, watch::Sender<BTreeSet<ResourceName>>),
    stop: watch::Receiver<bool>,
) {
    let (registered_sender, registered) = watch::channel(false);
    let (by_dra, dra_classes) = watch::channel(DraClasses {
        undecided: BTreeSet::from(Class::ALL),
        ..DraClasses::default()
    });
    let (device_classes, of_device_classes) = watch::channel(DeviceClasses::default());
    let engine = Engine {
        api: driver.api.clone(),
        node: driver.node.clone(),
        snapshots: driver.host.clone(),
        device_classes,
        pod_resources: pod_resources::socket(&driver.kubelet_dir),
        published: PublishedClasses::for_kubelet(&driver.kubelet_dir),
        spec_dir: driver.spec_dir(),
        settle: SETTLE,
        refused: REFUSED,
    };
    let amounts = ResourceAmounts {
        api: driver.api.clone(),
        node: driver.node.clone(),
        snapshots: driver.host.clone(),
        registered: registered.clone(),
        dra_classes: dra_classes.clone(),
        pauses: READ_DELAYS,
    };
    let publisher = Publisher {
        api: driver.api.clone(),
        node: driver.node.clone(),
        snapshots: driver.host.clone(),
        registered,
        dra_classes,
        device_classes: of_device_classes.clone(),
        metrics: Arc::clone(&driver.metrics),
        write_interval: WRITE_INTERVAL,
        stop: stop.clone(),
    };
    let deciding = tokio::spawn(engine.run(by_dra, plugin));
    let counting = tokio::spawn(amounts.run(none));
    join!(driver.run(registered_sender, of_device_classes, stop), publisher.run());
    deciding.abort();
    counting.abort();
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn settings(offer: &str) -> KubernetesSettings {
        serde_json::from_str(&format!(r#"{{"offer": {offer}}}"#)).unwrap()
    }

    fn kubeconfig(dir: &Path) -> PathBuf {
        let kubeconfig = dir.join("kubeconfig");
        let text = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "t",
            "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
            "clusters": [{"name": "t", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "t", "user": {"token": "t"}}]}"#;
        std::fs::write(&kubeconfig, text).unwrap();
        kubeconfig
    }

    fn started(offer: &str, node: Option<&str>) -> Result<bool, String> {
        let node = node.map(|node| node.parse().unwrap());
        let absent = Path::new("/nonexistent/kubeconfig");
        let started = find(&settings(offer), node.as_ref(), Some(absent), false, &Arc::default());
        started.map(|found| found.is_some()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn a_node_without_classes_for_dra_has_no_driver() {
        assert_eq!(started(r#""device-plugin""#, None), Ok(false));
        assert_eq!(started(r#""device-plugin""#, Some("n1")), Ok(false));
    }

    #[tokio::test]
    async fn a_class_for_dra_needs_a_node_name() {
        for offer in [r#""dra""#, r#"{"vfio": "dra"}"#] {
            let line = started(offer, None).unwrap_err();
            assert!(line.ends_with("the node name is unknown; set --node-name"), "{line}");
        }
    }

    #[tokio::test]
    async fn an_unusable_kubeconfig_is_an_error_only_if_all_classes_are_for_dra() {
        let line = started(r#""dra""#, Some("n1")).unwrap_err();
        assert!(line.contains("reading kubeconfig /nonexistent/kubeconfig: "), "{line}");
        assert_eq!(started(r#"{"vfio": "dra"}"#, Some("n1")), Ok(true));
    }

    #[tokio::test]
    async fn claims_that_are_prepared_need_a_driver_whatever_is_configured() {
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = kubeconfig(dir.path());
        let node = "n1".parse().unwrap();
        let plugin = settings(r#""device-plugin""#);
        for has_remains in [true, false] {
            let started =
                find(&plugin, Some(&node), Some(&kubeconfig), has_remains, &Arc::default());
            assert_eq!(started.unwrap().is_some(), has_remains);
        }
        let nowhere = find(&plugin, None, Some(&kubeconfig), true, &Arc::default());
        assert!(nowhere.unwrap().is_none(), "the device plugin offers unpublished classes");
    }

    #[tokio::test]
    async fn a_class_decides_for_the_driver() {
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = kubeconfig(dir.path());
        let node = "n1".parse().unwrap();
        for (offer, has_driver) in [
            (r#""device-plugin""#, false),
            (r#"{"nic": "device-plugin"}"#, false),
            (r#"{"nic": "dra"}"#, true),
        ] {
            let settings = settings(offer);
            let found = find(&settings, Some(&node), Some(&kubeconfig), false, &Arc::default());
            assert_eq!(found.unwrap().is_some(), has_driver, "{offer}");
        }
    }
}
