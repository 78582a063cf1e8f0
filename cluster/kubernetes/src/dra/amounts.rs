//! Finds resources that DRA serves and that the Node still reports.
//!
//! A kubelet that starts without its checkpoint has no record of earlier resources. It sets their amounts in the status
//! of its Node to 0, unless a device plugin registers before kubelet has reached the API server. The scheduler then
//! uses the remaining amounts and creates no claim, so that a pod runs without its device. Kubelet reports 0 for a
//! resource for which a device plugin offers no devices.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use onload_agent::Backoff;
use onload_core::class::Class;
use onload_core::kubernetes_settings::ResourceName;
use tokio::sync::watch;
use tokio::time::sleep;

use super::DraClasses;
use super::api::{Api, ApiError};
use super::classes::send;
use super::resource_names::class_resources;
use crate::names::NodeName;
use crate::snapshot::KubernetesSnapshot;

/// Delays for reading the Node after kubelet has started or the classes of DRA have changed. Kubelet writes its amounts
/// once it has reached the API server, and then every ten seconds.
pub const READ_DELAYS: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(30)];
/// Interval for reading it again while amounts remain.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Finds such amounts.
#[derive(Debug)]
pub struct ResourceAmounts {
    /// The API server.
    pub api: Api,
    /// The node.
    pub node: NodeName,
    /// Snapshots of the host and configuration.
    pub snapshots: watch::Receiver<Arc<KubernetesSnapshot>>,
    /// Whether the driver is registered with kubelet.
    pub registered: watch::Receiver<bool>,
    pub dra_classes: watch::Receiver<DraClasses>,
    /// [`READ_DELAYS`].
    pub pauses: [Duration; 2],
}

impl ResourceAmounts {
    /// Publishes the resources that the device plugin must offer without devices, until the program ends.
    pub async fn run(self, none: watch::Sender<BTreeSet<ResourceName>>) {
        let (mut registered, mut of_dra) = (self.registered.clone(), self.dra_classes.clone());
        loop {
            let is_known = *registered.borrow_and_update();
            let classes = of_dra.borrow().served();
            tokio::select! {
                // A kubelet that is not running writes no amounts.
                () = self.poll_node(&classes, &none), if is_known => {}
                changed = registered.changed() => if changed.is_err() { return },
                changed = of_dra.wait_for(|offered| offered.served() != classes) => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Polls the Node. Never returns.
    async fn poll_node(
        &self,
        classes: &BTreeSet<Class>,
        none: &watch::Sender<BTreeSet<ResourceName>>,
    ) {
        let mut backoff = Backoff::default();
        for pause in self.pauses {
            sleep(pause).await;
            loop {
                let wait = match self.remaining_resources(classes).await {
                    Ok(remaining) => {
                        let is_done = remaining.is_empty();
                        send_remaining(remaining, none);
                        if is_done {
                            break;
                        }
                        RETRY_INTERVAL
                    }
                    // Not logged, since publishing slices reads the Node too and logs the failure.
                    Err(error) => backoff.next().max(error.retry_after().unwrap_or_default()),
                };
                sleep(wait).await;
            }
        }
        pending::<()>().await;
    }

    async fn remaining_resources(
        &self,
        classes: &BTreeSet<Class>,
    ) -> Result<BTreeSet<ResourceName>, ApiError> {
        if classes.is_empty() {
            return Ok(BTreeSet::new());
        }
        let amounts = self.api.node_amounts(&self.node).await?;
        let snapshot = Arc::clone(&self.snapshots.borrow());
        let names = classes.iter().flat_map(|class| class_resources(&snapshot, *class));
        Ok(names.filter(|name| amounts.get(name.as_str()) == Some(&true)).collect())
    }
}

fn send_remaining(remaining: BTreeSet<ResourceName>, none: &watch::Sender<BTreeSet<ResourceName>>) {
    if !remaining.is_subset(&none.borrow()) {
        let names: Vec<&str> = remaining.iter().map(ResourceName::as_str).collect();
        let resources = names.join(", ");
        tracing::info!(%resources, "the Node still reports resources that DRA serves now; \
            reporting none to kubelet");
    }
    send(none, remaining);
}
