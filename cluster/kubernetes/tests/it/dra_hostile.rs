//! Objects that a user of one namespace writes to exhaust the daemon of each node. The daemon is the real program.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::fs;

use crate::support::api_server::{ApiServer, Gates};
use crate::support::dra_kubelet::claim as kubelet_claim;
use crate::support::{AgentHost, Daemon, KubeletDir};
use serde_json::{Value, json};

const CAPTURED: &str = "debian13-2numa-onload-rxe-vfio";
/// What DRA needs of the daemon's limit of 128 MiB.
const MAX_RESIDENT_KIB: u64 = 64 << 10;

/// A claim of another driver with as many parameters as Kubernetes allows, each of which takes two hundred times
/// its length as a tree of values.
fn hostile_claim(name: &str) -> Value {
    let parameters: Vec<Value> = (0..1_250).map(|_| json!({"": 0})).collect();
    let config: Vec<Value> = (0..32)
        .map(|_| {
            json!({"source": "FromClaim", "requests": [],
                "opaque": {"driver": "gpu.example.com", "parameters": {"a": parameters}}})
        })
        .collect();
    let results =
        json!([{"driver": "gpu.example.com", "pool": "n1", "device": "gpu0", "request": "r"}]);
    let mut claim = claim(name, &results);
    claim["spec"]["devices"]["config"] = json!(config);
    claim["status"]["allocation"]["devices"]["config"] = json!(config);
    claim
}

fn ordinary_claim(name: &str) -> Value {
    let results =
        json!([{"driver": "onload.dev", "pool": "n2/nic", "device": "ens1", "request": "r"}]);
    claim(name, &results)
}

fn claim(name: &str, results: &Value) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"devices": {}},
        "status": {"allocation": {"devices": {"results": results}}}})
}

/// The most memory that a process had at once.
fn peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_any_user_neither_exhaust_the_daemon_nor_keep_it_from_publishing() {
    let host = AgentHost::captured(CAPTURED);
    let server = ApiServer::start(Gates::ON).await;
    for number in 0..60 {
        let name = format!("hostile-{number}");
        server.put_claim("default", &name, hostile_claim(&name));
    }
    for number in 0..5_000 {
        let name = format!("ordinary-{number}");
        server.put_claim("default", &name, ordinary_claim(&name));
    }
    let kubelet = KubeletDir::make(&host.kubelet_dir());
    host.config("[kubernetes]\noffer = \"dra\"\n");
    let daemon = Daemon::with(&host, |command| {
        command.arg("--kubelet-dir").arg(&kubelet.0);
        command.arg("--kubeconfig").arg(&server.kubeconfig);
        command.env("ONLOAD_KUBERNETES_NODE_NAME", "n1");
    });
    let driver = kubelet.driver().await;
    server
        .until(|slices| {
            let mut pools = slices.values().map(|slice| slice.spec.pool.name.as_str());
            pools.any(|pool| pool == "n1/nic")
        })
        .await;
    // A pod that names many of them has them read at once.
    let hostile: Vec<_> = (0..60)
        .map(|number| {
            let driver = driver.clone();
            let uid = format!("00000000-0000-4000-8000-{number:012}");
            tokio::spawn(async move {
                driver.prepare(kubelet_claim(&format!("hostile-{number}"), &uid)).await
            })
        })
        .collect();
    for prepared in hostile {
        let reason = prepared.await.unwrap().unwrap_err();
        assert!(reason.contains("it was deleted and replaced by a claim"), "{reason}");
    }
    let peak = peak_kib(daemon.pid());
    assert!(peak <= MAX_RESIDENT_KIB, "{peak} KiB");
    assert!(!server.asked().iter().any(|asked| asked.resource == "pods"));
}
