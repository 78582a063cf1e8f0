//! The API server, as far as this driver asks it for anything.
//!
//! A client of our own on hyper and rustls: kube-client sets no TCP_NODELAY, reads the token of a pod once a
//! minute instead of for each request, and parses JSONPath, CEL and regular expressions, which nothing here
//! needs.

mod access;
mod error;
mod kubeconfig;
mod transport;
mod watch;

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use http::Method;
use hyper::body::Bytes;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use serde::Deserialize;
use serde::de::DeserializeOwned;

pub use access::{Access, SERVICE_ACCOUNT};
pub use error::ApiError;
use transport::{APPLY, Call, Transport, not_understood};
pub use watch::{Change, Event, Watch};

use super::DRIVER;
use super::names::NodeName;
use crate::observe::metrics::Metrics;
use crate::plugin::random;

const RESOURCE: &str = "/apis/resource.k8s.io/v1";
/// Slices of one page: each has at most 128 devices.
const SLICES: u32 = 8;
const PODS: u32 = 20;
/// DeviceClasses of one page: each may have 32 selectors of 10 KiB.
const CLASSES: u32 = 50;
const CLAIMS: u32 = 200;
/// How long a watch may last, in seconds; then it is begun anew.
const WATCH: std::ops::Range<u32> = 1800..3600;
const HEAD: &str = watch::HEADS;

#[derive(Clone, Debug)]
pub struct Api(Arc<Transport>);

/// Whether something is done or only looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    Real,
    /// The server answers what would be.
    Dry,
}

#[derive(Deserialize)]
struct Page<T> {
    metadata: PageMetadata,
    items: Option<Vec<T>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMetadata {
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    r#continue: String,
}

#[derive(Deserialize)]
struct Head {
    metadata: HeadMetadata,
}

#[derive(Deserialize)]
struct HeadMetadata {
    uid: String,
}

impl Api {
    #[must_use]
    pub fn new(access: Access, metrics: Arc<Metrics>) -> Api {
        Api(Arc::new(Transport::new(access, metrics)))
    }

    /// That of the kubeconfig, if one is named, else that of the pod which this program is in.
    pub fn find(kubeconfig: Option<&Path>, metrics: Arc<Metrics>) -> Result<Api> {
        let variable = |name: &str| std::env::var(name).ok();
        let access = match kubeconfig {
            Some(path) => Access::of_kubeconfig(path)?,
            None => Access::of_pod(variable, Path::new(SERVICE_ACCOUNT))?,
        };
        Ok(Api::new(access, metrics))
    }

    /// A claim; none if there is no such one.
    pub async fn claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ResourceClaim>, ApiError> {
        let (namespace, claim) = (Segment(namespace), Segment(name));
        let path = format!("{RESOURCE}/namespaces/{namespace}/resourceclaims/{claim}");
        let what = format!("reading ResourceClaim {namespace}/{claim}");
        self.get(Call::new(Method::GET, path, what), name).await
    }

    /// The claims of all namespaces that a device of ours in one of these pools is allocated to. The server
    /// lists all that there are, so this is for rare occasions.
    pub async fn claims_of_pools(
        &self,
        is_ours: impl Fn(&str) -> bool,
    ) -> Result<Vec<ResourceClaim>, ApiError> {
        let mut found = Vec::new();
        let what = "listing ResourceClaims";
        let path = format!("{RESOURCE}/resourceclaims?limit={CLAIMS}");
        let keep = |claim: ResourceClaim| {
            if pools_of(&claim).any(&is_ours) {
                found.push(claim);
            }
        };
        self.list(&path, what, keep).await?;
        Ok(found)
    }

    /// The pods of a node, one after the other.
    pub async fn pods(&self, node: &NodeName, each: impl FnMut(Pod)) -> Result<(), ApiError> {
        let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}&limit={PODS}");
        let what = format!("listing the pods of node {node}");
        self.list(&path, &what, each).await.map(|_| ())
    }

    /// What identifies the Node object; none if there is no such node.
    pub async fn node_uid(&self, node: &NodeName) -> Result<Option<String>, ApiError> {
        let what = format!("reading Node {node}");
        let mut call = Call::new(Method::GET, format!("/api/v1/nodes/{node}"), what);
        call.accept = HEAD;
        let head: Option<Head> = self.get(call, node.as_str()).await?;
        Ok(head.map(|head| head.metadata.uid))
    }

    /// The resources of which the Node has more than none to give; none of them if there is no such node.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn node_resources(&self, node: &NodeName) -> Result<BTreeSet<String>, ApiError> {
        let what = format!("reading Node {node}");
        let call = Call::new(Method::GET, format!("/api/v1/nodes/{node}"), what);
        let node: Option<Node> = self.get(call, node.as_str()).await?;
        let status = node.and_then(|node| node.status).unwrap_or_default();
        let amounts = status.allocatable.unwrap_or_default().into_iter();
        let is_some = amounts.filter(|(_, amount)| amount.0 != "0");
        Ok(is_some.map(|(name, _)| name).collect())
    }

    /// The device classes of the cluster, one after the other; the resource version that they are of. A server that
    /// has no v1 of them (before 1.34) refuses.
    pub async fn device_classes(&self, each: impl FnMut(DeviceClass)) -> Result<String, ApiError> {
        let path = format!("{RESOURCE}/deviceclasses?limit={CLASSES}");
        self.list(&path, "listing DeviceClasses", each).await
    }

    pub async fn watch_device_classes(&self, version: &str) -> Result<Watch, ApiError> {
        let path = format!("{RESOURCE}/deviceclasses?{}", watch_from(version));
        let what = "watching DeviceClasses".to_owned();
        let call = Call::new(Method::GET, path, what.clone());
        let body = self.0.stream(&call).await?;
        Ok(Watch::new(body, version.to_owned(), what))
    }

    /// The slices of this driver on a node, one after the other; the resource version that they are of.
    pub async fn slices(
        &self,
        node: &NodeName,
        each: impl FnMut(ResourceSlice),
    ) -> Result<String, ApiError> {
        let path = format!("{}&limit={SLICES}", slices_of(node));
        let what = format!("listing the ResourceSlices of node {node}");
        self.list(&path, &what, each).await
    }

    /// What happens to the slices of this driver on a node from a resource version on.
    pub async fn watch_slices(&self, node: &NodeName, version: &str) -> Result<Watch, ApiError> {
        let path = format!("{}&{}", slices_of(node), watch_from(version));
        let what = format!("watching the ResourceSlices of node {node}");
        let mut call = Call::new(Method::GET, path, what.clone());
        call.accept = watch::HEADS;
        let body = self.0.stream(&call).await?;
        Ok(Watch::new(body, version.to_owned(), what))
    }

    /// Makes a slice what it is to be, by server-side apply; what the server has made of it, which may be
    /// less: it drops what belongs to a feature that is off.
    pub async fn apply_slice(
        &self,
        slice: &ResourceSlice,
        run: Run,
    ) -> Result<ResourceSlice, ApiError> {
        let name = slice.metadata.name.as_deref().unwrap_or_default();
        let dry = match run {
            Run::Real => "",
            Run::Dry => "&dryRun=All",
        };
        let path = format!(
            "{RESOURCE}/resourceslices/{}?fieldManager={DRIVER}&force=true{dry}",
            Segment(name)
        );
        let what = format!("applying ResourceSlice {name}");
        let bytes = serde_json::to_vec(slice).with_context(|| not_understood(&what))?;
        let mut call = Call::new(Method::PATCH, path, what);
        call.content = Some((APPLY, Bytes::from(bytes)));
        self.ask(&call).await
    }

    /// Deletes a slice. One that is not there is no error.
    pub async fn delete_slice(&self, name: &str) -> Result<(), ApiError> {
        let path = format!("{RESOURCE}/resourceslices/{}", Segment(name));
        let what = format!("deleting ResourceSlice {name}");
        let call = Call::new(Method::DELETE, path, what);
        match self.0.ask(&call).await {
            Err(error) if error.is_absent(name) => Ok(()),
            answer => answer.map(|_| ()),
        }
    }

    async fn ask<T: DeserializeOwned>(&self, call: &Call) -> Result<T, ApiError> {
        let answer = self.0.ask(call).await?;
        Ok(serde_json::from_slice(&answer).with_context(|| not_understood(&call.what))?)
    }

    /// The object of that name; none if the server says that it is not there.
    async fn get<T: DeserializeOwned>(
        &self,
        call: Call,
        name: &str,
    ) -> Result<Option<T>, ApiError> {
        match self.ask(&call).await {
            Err(error) if error.is_absent(name) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Page after page, so that only one has to fit into memory.
    async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        what: &str,
        mut each: impl FnMut(T),
    ) -> Result<String, ApiError> {
        let mut next = String::new();
        loop {
            let path = if next.is_empty() {
                path.to_owned()
            } else {
                format!("{path}&continue={}", Segment(&next))
            };
            let call = Call::new(Method::GET, path, what.to_owned());
            let page: Page<T> = self.ask(&call).await?;
            page.items.into_iter().flatten().for_each(&mut each);
            if page.metadata.r#continue.is_empty() {
                return Ok(page.metadata.resource_version);
            }
            next = page.metadata.r#continue;
        }
    }
}

fn slices_of(node: &NodeName) -> String {
    format!(
        "{RESOURCE}/resourceslices?fieldSelector=spec.nodeName%3D{node}%2Cspec.driver%3D{DRIVER}"
    )
}

fn watch_from(version: &str) -> String {
    let seconds = seconds(random().unwrap_or(0));
    format!(
        "watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={}",
        Segment(version)
    )
}

/// The pools of the devices of this driver that are allocated to a claim.
pub fn pools_of(claim: &ResourceClaim) -> impl Iterator<Item = &str> {
    let status = claim.status.as_ref();
    let allocation = status.and_then(|status| status.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    let results = devices.into_iter().flat_map(|devices| &devices.results);
    let results = results.flatten();
    let ours = results.filter(|result| result.driver == DRIVER);
    ours.map(|result| result.pool.as_str())
}

/// A part of a path or query, in which nothing has a meaning of its own (RFC 3986, unreserved characters).
struct Segment<'a>(&'a str);

impl fmt::Display for Segment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    write!(f, "{}", char::from(byte))?;
                }
                byte => write!(f, "%{byte:02X}")?,
            }
        }
        Ok(())
    }
}

/// Not all watches of a cluster end at once.
fn seconds(random: u8) -> u32 {
    WATCH.start + (WATCH.end - WATCH.start) * u32::from(random) / u32::from(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leaves_its_segment_of_a_path() {
        assert_eq!(Segment("../a?b=c&d").to_string(), "..%2Fa%3Fb%3Dc%26d");
        assert_eq!(Segment("n1-onload_dev.x~").to_string(), "n1-onload_dev.x~");
        assert_eq!(Segment("é").to_string(), "%C3%A9");
    }

    #[test]
    fn a_watch_lasts_from_half_an_hour_to_an_hour() {
        assert_eq!((seconds(0), seconds(u8::MAX)), (1800, 3600));
    }
}
