//! Reads from kubelet which pods have devices of a device plugin. Unlike a pod at the API server, its answer is nothing
//! that a user can write.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use onload_core::class::Class;
use tonic::transport::Endpoint;

use super::resource_names::classes_of;
use crate::snapshot::KubernetesSnapshot;
use crate::wire::pod_resources::ListPodResourcesRequest;
use crate::wire::pod_resources::pod_resources_lister_client::PodResourcesListerClient;

const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest answer. kubelet itself accepts as much (`podResourcesMaxSize` in pkg/kubelet/apis/podresources).
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// The socket below kubelet's directory.
pub fn socket(kubelet_dir: &Path) -> PathBuf {
    kubelet_dir.join("pod-resources/kubelet.sock")
}

/// Returns a pod, as `NAMESPACE/NAME`, for each class of which some pod has a device by the device plugin.
pub(super) async fn pods_by_class(
    socket: &Path,
    snapshot: &KubernetesSnapshot,
) -> Result<BTreeMap<Class, String>> {
    let context = || format!("reading the devices of pods from kubelet at {}", socket.display());
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()))?
        .connect_timeout(TIMEOUT)
        .timeout(TIMEOUT);
    let channel = endpoint.connect().await.with_context(context)?;
    let mut client =
        PodResourcesListerClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES);
    let answer = client
        .list(ListPodResourcesRequest {})
        .await
        .map_err(|status| anyhow!("{}", status.message()))
        .with_context(context)?;
    let mut pods = BTreeMap::new();
    for pod in answer.into_inner().pod_resources {
        for device in pod.containers.iter().flat_map(|container| &container.devices) {
            for class in classes_of(&device.resource_name, snapshot) {
                pods.entry(class).or_insert_with(|| format!("{}/{}", pod.namespace, pod.name));
            }
        }
    }
    Ok(pods)
}
