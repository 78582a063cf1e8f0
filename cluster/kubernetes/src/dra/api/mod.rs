//! The requests of this driver to the API server, by kube's client on our own connections.

mod access;
mod answer;
mod certificate;
mod claim;
mod error;
mod kubeconfig;
mod report;
mod server_verifier;
mod transport;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube_client::api::{DeleteParams, GetParams, ListParams, Patch, PatchParams, WatchParams};
use kube_client::core::{PartialObjectMeta, Request};
use kube_client::{Client, Resource};
use onload_agent::{LastMessage, random_byte};
use onload_core::class::Class;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use claim::ClaimHoldings;

pub use access::{AccessSource, SERVICE_ACCOUNT};
pub use claim::{
    AllocationConfig, AllocationResult, ClaimAllocation, ClaimObject, MAX_CONFIGS, MAX_RESULTS,
};
pub use error::ApiError;
pub use watch::ApiWatch;

use super::DRIVER;
use crate::names::NodeName;
use crate::observe::metrics::DaemonMetrics;

/// Time limit for a request, including its whole answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Slices per page: each has at most 128 devices.
const SLICES: u32 = 8;
/// DeviceClasses per page: each may have 32 selectors of 10 KiB.
const CLASSES: u32 = 50;
const CLAIMS: u32 = 200;
/// Limit for claims that are read at once: a pod may name thousands, and each may have a megabyte.
const MAX_CLAIM_READS: usize = 8;
/// Range for the duration of a watch in seconds, after which it is started again.
const WATCH: std::ops::Range<u32> = 1800..3600;
/// Unreserved characters are not escaped in paths (RFC 3986).
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

#[derive(Clone)]
pub struct Api {
    client: Client,
    metrics: Arc<DaemonMetrics>,
    claim_reads: Arc<Semaphore>,
    /// Why the server last accepted no request.
    no_access: Arc<Mutex<LastMessage>>,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").finish_non_exhaustive()
    }
}

/// Whether a request changes anything or is a dry run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    Real,
    /// The server returns the result without storing it.
    Dry,
}

impl Api {
    /// Creates the client, which reads the files of `source` with its first request, and again until they are usable.
    /// Must be called in an async runtime.
    pub fn new(source: AccessSource, metrics: Arc<DaemonMetrics>) -> Api {
        let client = transport::new_client(source);
        let claim_reads = Arc::new(Semaphore::new(MAX_CLAIM_READS));
        Api { client, metrics, claim_reads, no_access: Arc::default() }
    }

    /// Returns a claim, or `None` if it does not exist.
    pub async fn get_claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ClaimObject>, ApiError> {
        let (namespace, segment) = (encode_segment(namespace), encode_segment(name));
        let what = format!("reading ResourceClaim {namespace}/{segment}");
        let url = ResourceClaim::url_path(&(), Some(&namespace));
        let request = Request::new(url).get(&segment, &GetParams::default());
        let _permit = self.claim_reads.acquire().await;
        if_found(self.send_streamed("GET", &what, request).await, name)
    }

    /// Returns the names of a node's devices that claims of any namespace have, by class. The server lists all claims
    /// for this, so use it rarely.
    pub async fn list_claimed_devices(
        &self,
        node: &NodeName,
    ) -> Result<BTreeMap<Class, BTreeSet<String>>, ApiError> {
        let mut names: BTreeMap<Class, BTreeSet<String>> = BTreeMap::new();
        let params = ListParams::default().limit(CLAIMS);
        self.list::<ResourceClaim, _>(params, "listing ResourceClaims", |claim: ClaimHoldings| {
            for device in claim.results() {
                if let Some(class) = node.parse_pool(&device.pool) {
                    names.entry(class).or_default().insert(device.device);
                }
            }
        })
        .await?;
        Ok(names)
    }

    /// Returns the uid of the Node object, or `None` if it does not exist.
    pub async fn node_uid(&self, node: &NodeName) -> Result<Option<String>, ApiError> {
        let what = format!("reading Node {node}");
        let nodes = self.all_namespaces::<Node>();
        let request = self.send("GET", &what, nodes.get_metadata(node.as_str()));
        let head = if_found(request.await, node.as_str())?;
        Ok(head.and_then(|head| head.metadata.uid))
    }

    /// Returns the resources in the status of the Node, each with whether its amount is above 0. Empty without a Node.
    pub async fn node_amounts(&self, node: &NodeName) -> Result<BTreeMap<String, bool>, ApiError> {
        let what = format!("reading Node {node}");
        let nodes = self.all_namespaces::<Node>();
        let result = self.send("GET", &what, nodes.get(node.as_str())).await;
        let status = if_found(result, node.as_str())?.and_then(|node| node.status);
        let Some(status) = status else { return Ok(BTreeMap::new()) };
        let capacity = status.capacity.into_iter().flatten().map(|(name, _)| (name, false));
        let allocatable =
            status.allocatable.into_iter().flatten().map(|(name, amount)| (name, amount.0 != "0"));
        Ok(capacity.chain(allocatable).collect())
    }

    /// Visits the device classes of the cluster. Returns their resource version. Fails with a rejection on servers
    /// before 1.34, which have no v1.
    pub async fn visit_device_classes(
        &self,
        each: impl FnMut(DeviceClass),
    ) -> Result<String, ApiError> {
        let params = ListParams::default().limit(CLASSES);
        self.list::<DeviceClass, _>(params, "listing DeviceClasses", each).await
    }

    pub async fn watch_device_classes(
        &self,
        version: &str,
    ) -> Result<ApiWatch<DeviceClass>, ApiError> {
        let what = "watching DeviceClasses".to_owned();
        let (classes, params) = (self.all_namespaces::<DeviceClass>(), watch_params());
        let request = self.send("WATCH", &what, classes.watch(&params, version));
        Ok(ApiWatch::new(request.await?, version, what))
    }

    /// Visits the slices of this driver on a node. Returns their resource version.
    pub async fn visit_slices(
        &self,
        node: &NodeName,
        each: impl FnMut(ResourceSlice),
    ) -> Result<String, ApiError> {
        let params = ListParams::default().fields(&slice_selector(node)).limit(SLICES);
        let what = format!("listing the ResourceSlices of node {node}");
        self.list::<ResourceSlice, _>(params, &what, each).await
    }

    /// Watches the slices of this driver on a node from a resource version on, with names and versions only.
    pub async fn watch_slices(
        &self,
        node: &NodeName,
        version: &str,
    ) -> Result<ApiWatch<PartialObjectMeta<ResourceSlice>>, ApiError> {
        let what = format!("watching the ResourceSlices of node {node}");
        let params = watch_params().fields(&slice_selector(node));
        let slices = self.all_namespaces::<ResourceSlice>();
        let request = self.send("WATCH", &what, slices.watch_metadata(&params, version));
        Ok(ApiWatch::new(request.await?, version, what))
    }

    /// Creates or updates a slice by server-side apply. Returns the stored slice, which may lack fields of disabled
    /// features.
    pub async fn apply_slice(
        &self,
        slice: &ResourceSlice,
        mode: WriteMode,
    ) -> Result<ResourceSlice, ApiError> {
        let name = slice.metadata.name.as_deref().unwrap_or_default();
        let what = format!("applying ResourceSlice {name}");
        let params =
            PatchParams { dry_run: mode == WriteMode::Dry, ..PatchParams::apply(DRIVER).force() };
        let (slices, slice) = (self.all_namespaces(), Patch::Apply(slice));
        let request = self.send("PATCH", &what, slices.patch(name, &params, &slice));
        request.await
    }

    /// Deletes a slice. Succeeds if it does not exist.
    pub async fn delete_slice(&self, name: &str) -> Result<(), ApiError> {
        let what = format!("deleting ResourceSlice {name}");
        let (slices, params) = (self.all_namespaces::<ResourceSlice>(), DeleteParams::default());
        let result = self.send("DELETE", &what, slices.delete(name, &params)).await;
        if_found(result, name).map(|_| ())
    }

    fn all_namespaces<K: Resource<DynamicType = ()>>(&self) -> kube_client::Api<K> {
        kube_client::Api::all(self.client.clone())
    }

    async fn send<T>(
        &self,
        verb: &str,
        what: &str,
        request: impl Future<Output = kube_client::Result<T>>,
    ) -> Result<T, ApiError> {
        let answer = match timeout(TIMEOUT, request).await {
            Ok(answer) => answer.map_err(|error| ApiError::from_client(what, error)),
            Err(_) => Err(ApiError::TimedOut { what: what.to_owned(), after: TIMEOUT }),
        };
        self.metrics.count_api_request(verb, answer.is_ok());
        self.log_access(answer.as_ref().err());
        answer
    }

    fn log_access(&self, error: Option<&ApiError>) {
        let mut last_message = self.no_access.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(error) = error else { return last_message.clear() };
        if let Some(reason) = error.no_access_reason()
            && last_message.is_new(&reason)
        {
            tracing::error!(%reason, "the API server is not usable, so DRA offers no devices; \
                trying again");
        }
    }

    /// Sends a request whose answer is parsed while it is read.
    async fn send_streamed<T: DeserializeOwned + Send + 'static>(
        &self,
        verb: &str,
        what: &str,
        request: Result<http::Request<Vec<u8>>, kube_client::core::request::Error>,
    ) -> Result<T, ApiError> {
        let client = self.client.clone();
        let send = async {
            answer::request(client, request.map_err(kube_client::Error::BuildRequest)?).await
        };
        self.send(verb, what, send).await
    }

    /// Lists objects page by page, with only the fields of `T` in memory. A page that takes too long is requested again
    /// with half as many objects. Returns the resource version of the last page.
    async fn list<K, T>(
        &self,
        mut params: ListParams,
        what: &str,
        mut each: impl FnMut(T),
    ) -> Result<String, ApiError>
    where
        K: Resource<DynamicType = ()>,
        T: DeserializeOwned + Send + 'static,
    {
        let url = K::url_path(&(), None);
        loop {
            let request = Request::new(url.as_str()).list(&params);
            let page: Page<T> = match self.send_streamed("GET", what, request).await {
                Err(ApiError::TimedOut { .. }) if params.limit > Some(1) => {
                    params.limit = params.limit.map(|limit| limit / 2);
                    continue;
                }
                answer => answer?,
            };
            page.items.into_iter().flatten().for_each(&mut each);
            params.continue_token = page.metadata.continue_.filter(|next| !next.is_empty());
            if params.continue_token.is_none() {
                return Ok(page.metadata.resource_version.unwrap_or_default());
            }
        }
    }
}

#[derive(Deserialize)]
struct Page<T> {
    #[serde(default)]
    metadata: ListMeta,
    items: Option<Vec<T>>,
}

/// Returns the object, or `None` if the server reports that it does not exist.
fn if_found<T>(result: Result<T, ApiError>, name: &str) -> Result<Option<T>, ApiError> {
    match result {
        Err(error) if error.is_absent(name) => Ok(None),
        answer => answer.map(Some),
    }
}

fn slice_selector(node: &NodeName) -> String {
    format!("spec.nodeName={node},spec.driver={DRIVER}")
}

fn watch_params() -> WatchParams {
    WatchParams::default().timeout(watch_timeout(random_byte().unwrap_or(0)))
}

/// Escapes a name from kubelet for a path, which kube's client does not do.
fn encode_segment(name: &str) -> String {
    utf8_percent_encode(name, SEGMENT).to_string()
}

/// Returns a random duration, so that not all watches of a cluster end at once.
fn watch_timeout(random: u8) -> u32 {
    WATCH.start + (WATCH.end - WATCH.start) * u32::from(random) / u32::from(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leaves_its_segment_of_a_path() {
        assert_eq!(encode_segment("../a?b=c&d"), "..%2Fa%3Fb%3Dc%26d");
        assert_eq!(encode_segment("n1-onload_dev.x~"), "n1-onload_dev.x~");
        assert_eq!(encode_segment("é"), "%C3%A9");
    }

    #[test]
    fn a_watch_lasts_from_half_an_hour_to_an_hour() {
        assert_eq!((watch_timeout(0), watch_timeout(u8::MAX)), (1800, 3600));
    }
}
