//! What clusters of 1.33, 1.34 and 1.36 are offered. The daemon is the real program, with both of its
//! interfaces; API server and kubelet are made for tests, and serve and keep what these versions do.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use k8s_openapi::api::resource::v1::ResourceSlice;
use serde_json::{Value, json};

use crate::support::api_server::{ApiServer, Release};
use crate::support::dra_kubelet::Registered;
use crate::support::{AgentHost, Daemon, KubeletDir, MockKubelet, PATIENCE};

const CAPTURED: &str = "debian13-2numa-onload-rxe-vfio";
const VFIO: &str = "onload.dev/vfio";
const FUNCTIONS: [&str; 2] = ["0000:81:10.0", "0000:81:10.2"];
const VFIO_SLICE: &str = "n1-onload-dev-vfio-0";

/// A node of a cluster.
struct Node {
    host: AgentHost,
    server: ApiServer,
    kubelet: MockKubelet,
    driver: Option<Registered>,
    daemon: Daemon,
}

impl Node {
    /// With packaging/kubernetes/dra, where the cluster takes it.
    async fn start(release: Release, config: &str) -> Node {
        let server = ApiServer::for_release(release).await;
        if release != Release::V1_33 {
            server.put_classes();
        }
        Node::start_at(server, config).await
    }

    async fn start_at(server: ApiServer, config: &str) -> Node {
        let host = AgentHost::captured(CAPTURED);
        host.config(config);
        let kubelet = MockKubelet::start(&host.plugin_dir());
        let registry = KubeletDir::make(&host.kubelet_dir());
        let daemon = Daemon::with(&host, |command| {
            command.arg("--kubelet-dir").arg(&registry.0);
            command.arg("--kubeconfig").arg(&server.kubeconfig);
            command.env("ONLOAD_KUBERNETES_NODE_NAME", "n1");
        });
        let driver = match config {
            "" => None,
            _ => Some(registry.driver().await),
        };
        Node { host, server, kubelet, driver, daemon }
    }

    /// How often each function is offered at this moment, by either interface.
    fn offered(&self, by_plugin: &[&str]) -> BTreeMap<String, usize> {
        let slices = self.server.slices();
        let slices = slices.values().filter(|slice| slice.spec.pool.name == "n1/vfio");
        let devices = slices.flat_map(|slice| slice.spec.devices.clone().unwrap_or_default());
        let by_dra = devices.map(|device| {
            let name = &device.attributes.unwrap()["name"];
            name.string.clone().unwrap()
        });
        let mut offered = BTreeMap::new();
        for name in by_dra.chain(by_plugin.iter().map(|name| (*name).to_owned())) {
            *offered.entry(name).or_default() += 1;
        }
        offered
    }

    /// The sockets of the device plugin: one for each resource.
    fn resources(&self) -> usize {
        let entries = fs::read_dir(self.host.plugin_dir()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names.filter(|name| name != "kubelet.sock").count()
    }

    /// Waits until the device plugin has offered the functions, which are nowhere else.
    async fn has_them_by_the_device_plugin(&self) {
        let plugin = self.kubelet.until(VFIO, |plugin| plugin.ids().len() == 2).await;
        assert_eq!(self.offered(&plugin.ids()), once());
        assert!(!self.server.was_ever(|_| true), "a slice was written");
    }

    /// Waits until slices offer them, and no device plugin does.
    async fn has_them_by_dra(&mut self) {
        let is_whole = |devices: usize| devices == 2;
        let slice = self.server.until_slice(VFIO_SLICE, |slice| {
            is_whole(slice.spec.devices.as_ref().map_or(0, Vec::len))
        });
        slice.await;
        assert_eq!(self.offered(&[]), once());
        assert_eq!(self.resources(), 0);
        assert_eq!(self.daemon.count(&["\"resource\":\"onload.dev/"]), 0);
    }
}

fn once() -> BTreeMap<String, usize> {
    FUNCTIONS.map(|name| (name.to_owned(), 1)).into()
}

const DRA: &str = "[kubernetes]\noffer = \"dra\"\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_cluster_gets_each_exclusive_device_once_by_the_device_plugin_unasked() {
    for release in [Release::V1_33, Release::V1_34, Release::V1_36] {
        let node = Node::start(release, "").await;
        node.has_them_by_the_device_plugin().await;
        assert!(node.server.asked().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_1_36_gets_each_exclusive_device_once_by_dra() {
    let mut node = Node::start(Release::V1_36, DRA).await;
    node.has_them_by_dra().await;
}

/// A kubelet that has lost its checkpoint leaves them there, and the scheduler makes no claim of what a Node counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_node_still_counts_of_a_class_of_dra_is_offered_with_no_device_until_it_is_0() {
    let mut node = Node::start(Release::V1_36, DRA).await;
    node.has_them_by_dra().await;
    for (resource, amount) in [(VFIO, "2"), ("onload.dev/nic", "0"), ("nvidia.com/gpu", "8")] {
        node.server.put_allocatable(resource, amount);
    }
    node.driver.as_mut().unwrap().notify(true, "").await;
    let plugin = node.kubelet.registered(VFIO).await;
    assert!(plugin.ids().is_empty());
    assert_eq!(node.kubelet.resources(), [VFIO]);
    let line = node.daemon.logged(&["the Node still reports"]);
    assert_eq!(line["resources"], VFIO);
    assert_eq!(node.offered(&[]), once());
    node.server.put_allocatable(VFIO, "0");
    let end = Instant::now() + PATIENCE;
    while node.resources() > 0 {
        assert!(Instant::now() < end);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(node.daemon.count(&["the Node still reports"]), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_1_34_whose_operator_wants_dra_gets_each_device_and_slot_once() {
    let mut node = Node::start(Release::V1_34, DRA).await;
    node.has_them_by_dra().await;
    let nic = "n1-onload-dev-nic-0";
    node.server
        .until_slice(nic, |slice| slice.spec.devices.as_ref().map_or(0, Vec::len) == 10)
        .await;
    let devices = node.server.slice(nic).unwrap().spec.devices.unwrap();
    let names: Vec<String> = devices.iter().map(|device| device.name.clone()).collect();
    let slots: Vec<String> = (0..10).map(|slot| format!("ens1-slot-{slot}")).collect();
    assert_eq!(names, slots);
    assert!(devices.iter().all(|device| device.allow_multiple_allocations.is_none()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_1_33_whose_operator_wants_dra_is_offered_nothing_and_told_why() {
    let mut node = Node::start(Release::V1_33, "[kubernetes]\noffer = { vfio = \"dra\" }\n").await;
    // The others are the device plugin's.
    node.kubelet.registered("onload.dev/nic").await;
    let line = node.daemon.logged(&["updating the ResourceSlices failed", "404"]);
    assert!(line["error"].as_str().unwrap().contains("n1-onload-dev"), "{line}");
    assert_eq!(node.offered(&[]), BTreeMap::new());
    let sockets = fs::read_dir(node.host.plugin_dir()).unwrap();
    let names = sockets.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(names.into_iter().all(|name| !name.contains("vfio")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unusable_kubeconfig_holds_up_only_the_classes_of_dra_until_it_changes() {
    let server = ApiServer::for_release(Release::V1_36).await;
    server.put_classes();
    let kubeconfig = server.kubeconfig.clone();
    let good = fs::read_to_string(&kubeconfig).unwrap();
    let mut without_context: Value = serde_json::from_str(&good).unwrap();
    without_context["current-context"] = json!("gone");
    let mut damaged: Value = serde_json::from_str(&good).unwrap();
    // A certificate whose content is not base64: -----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----
    let certificate =
        "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCkEKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=";
    damaged["users"][0]["user"] =
        json!({"client-certificate-data": certificate, "client-key-data": certificate});
    fs::remove_file(&kubeconfig).unwrap();
    let mut node = Node::start_at(server, "[kubernetes]\noffer = { vfio = \"dra\" }\n").await;
    node.kubelet.registered("onload.dev/nic").await;
    for (content, why) in [
        (None, "No such file"),
        (Some(without_context), "context \\\"gone\\\" not found; set current-context"),
        (Some(damaged), "reading the client's certificate"),
    ] {
        if let Some(content) = content {
            fs::write(&kubeconfig, content.to_string()).unwrap();
        }
        let line = node.daemon.logged(&["the API server is not usable", why]);
        assert!(
            line["reason"].as_str().unwrap().contains(&*kubeconfig.to_string_lossy()),
            "{line}"
        );
    }
    assert_eq!(node.daemon.count(&["the API server is not usable"]), 3);
    fs::write(&kubeconfig, good).unwrap();
    let is_whole = |slice: &ResourceSlice| slice.spec.devices.as_ref().map_or(0, Vec::len) == 2;
    node.server.until_slice(VFIO_SLICE, is_whole).await;
    assert_eq!(node.offered(&[]), once());
    assert!(!node.kubelet.resources().contains(&VFIO.to_owned()));
}
