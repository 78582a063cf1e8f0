//! The files that programs in pods read are those that Kubernetes' own package has read
//! (`recorded/metadata-1.36.2/README.md`).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;

use onload_cdi::Registry;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::dra::of_request;
use crate::support::dra_kubelet::claim;
use crate::support::{AgentHost, ClaimServer, Daemon, KubeletDir};

const CAPTURED: &str = "debian13-4numa-21vfs";
const CONFIG: &str =
    "[kubernetes]\noffer = \"dra\"\n[pools.fast]\nclass = \"vfio\"\nselect = { pf = \"ens1\" }\n";
/// The version that the package knows.
const KNOWN: &str = "metadata.resource.k8s.io/v1alpha1";

#[derive(Deserialize)]
struct Recorded {
    claim: Value,
    files: Vec<String>,
    read: BTreeMap<String, Value>,
}

/// The requests of a file as the package printed them.
fn printed(file: &str) -> Value {
    let known = file
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|document: &Value| document["apiVersion"] == KNOWN);
    let [document] = &known.collect::<Vec<_>>()[..] else {
        panic!("{file}");
    };
    let requests = document["requests"].as_array().unwrap().iter().map(|request| {
        let devices = request["devices"].as_array().unwrap().iter().map(|device| {
            let mut attributes = device["attributes"].as_object().unwrap().clone();
            // The recording is older than the attribute that each pool has.
            attributes.retain(|name, _| !name.starts_with("pool_"));
            json!({"Driver": device["driver"], "Pool": device["pool"], "Name": device["name"],
                "Attributes": attributes, "NetworkData": device.get("networkData")})
        });
        json!({"Name": request["name"], "Devices": devices.collect::<Vec<_>>()})
    });
    requests.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_in_pods_have_the_files_that_kubernetes_has_read() {
    let text = include_str!("../recorded/metadata-1.36.2/read.jsonl");
    let all: Vec<Recorded> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(all.len(), 3);
    let host = AgentHost::captured(CAPTURED);
    host.config(CONFIG);
    let api = ClaimServer::start().await;
    let kubelet = KubeletDir::make(&host.kubelet_dir());
    let kubeconfig = api.kubeconfig(&host.kubelet_dir());
    let _daemon = Daemon::with(&host, |command| {
        command.arg("--kubelet-dir").arg(&kubelet.0);
        command.arg("--kubeconfig").arg(kubeconfig);
        command.env("ONLOAD_KUBERNETES_NODE_NAME", "n1");
    });
    let driver = kubelet.driver().await;
    for recorded in all {
        let text = |key: &str| recorded.claim["metadata"][key].as_str().unwrap();
        let (name, uid) = (text("name").to_owned(), text("uid").to_owned());
        api.put(recorded.claim.clone());
        driver.prepare(claim(&name, &uid)).await.unwrap();
        let registry = Registry::scan(&[host.spec_dir()]);
        let mut there = Vec::new();
        for (request, read) in recorded.read {
            let of_request = of_request(&uid, &request).parse().unwrap();
            let mounts = registry.edits_for(&[of_request]).unwrap().mounts;
            let [mount] = &mounts[..] else {
                panic!("{mounts:?}");
            };
            there.push(mount.container_path.clone());
            let file = fs::read_to_string(&mount.host_path).unwrap();
            assert_eq!(printed(&file), read, "{name}, {request}");
        }
        assert_eq!(there, recorded.files);
    }
}
