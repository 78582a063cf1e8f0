//! The DRA driver as kubelet sees it: registration, claims, health, updates and kills. The daemon is the real
//! program; kubelet and the API server are made for tests (`support/dra_kubelet.rs`, `support/claims.rs`).

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::claims::{Odd, claim_of, result};
use crate::support::dra_kubelet::{Registered, claim};
use crate::support::raw_http2::{Answer, call};
use crate::support::{AgentHost, ClaimServer, Daemon, KubeletDir, MockKubelet, get};
use onload_cdi::{QualifiedName, Registry};
use onload_kubernetes::wire::dra_health::HealthStatus;
use onload_test_needs as needs;
use serde_json::{Value, json};
use tokio::time::sleep;

const CAPTURED: &str = "debian13-2numa-onload-rxe-vfio";
const UID: &str = "0d7e3c1a-5c0f-4c57-9a4e-2b1f8f0f8f11";
const OTHER_UID: &str = "11111111-5c0f-4c57-9a4e-2b1f8f0f8f11";
const VF: &str = "0000-81-10-0";
const GET_INFO: &str = "/pluginregistration.Registration/GetInfo";
/// PROTOCOL_ERROR (RFC 9113, section 7).
const PROTOCOL_ERROR: Answer = Answer::Reset(1);

/// A node with a driver, and the API server and kubelet that it speaks to.
pub(crate) struct Node {
    pub(crate) host: AgentHost,
    pub(crate) api: ClaimServer,
    pub(crate) kubelet: KubeletDir,
    kubeconfig: PathBuf,
}

impl Node {
    pub(crate) async fn new() -> Node {
        let host = AgentHost::captured(CAPTURED);
        host.lease_in_spec("vfio");
        let api = ClaimServer::start().await;
        let kubelet = KubeletDir::make(&host.kubelet_dir());
        let kubeconfig = api.kubeconfig(&host.kubelet_dir());
        Node { host, api, kubelet, kubeconfig }
    }

    pub(crate) fn daemon(&self) -> Daemon {
        self.daemon_with("[kubernetes]\noffer = \"dra\"\n")
    }

    pub(crate) fn daemon_with(&self, config: &str) -> Daemon {
        self.host.config(config);
        Daemon::with(&self.host, |command| {
            command.arg("--kubelet-dir").arg(&self.kubelet.0);
            command.arg("--kubeconfig").arg(&self.kubeconfig);
            command.env("ONLOAD_KUBERNETES_NODE_NAME", "n1");
        })
    }

    pub(crate) async fn started(&self) -> (Daemon, Registered) {
        let daemon = self.daemon();
        let driver = self.kubelet.driver().await;
        (daemon, driver)
    }

    /// A claim of one device.
    pub(crate) fn claim(&self, name: &str, uid: &str, pool: &str, device: &str, config: Value) {
        let results = json!([result("r", pool, device)]);
        self.api.put(claim_of(name, uid, results, config));
    }

    /// The CDI devices of claims that an engine finds, but for those that every request has.
    pub(crate) fn of_claims(&self) -> Vec<String> {
        let registry = Registry::scan(&[self.host.spec_dir()]);
        registry
            .devices()
            .map(|device| device.name.to_string())
            .filter(|name| name.starts_with("onload.dev/claim=") && !name.contains(".request."))
            .collect()
    }

    fn endpoints(&self) -> usize {
        let own = fs::read_dir(self.kubelet.0.join("plugins/onload.dev")).unwrap();
        own.map(|entry| entry.unwrap().file_type().unwrap()).filter(FileTypeExt::is_socket).count()
    }

    pub(crate) fn files_of_claims(&self) -> Vec<String> {
        let entries = fs::read_dir(self.host.spec_dir()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("claim."))
            .collect();
        names.sort();
        names
    }
}

// json! takes references of what it is given.
#[allow(clippy::needless_pass_by_value)]
fn opaque(parameters: Value) -> Value {
    json!([{"source": "FromClaim", "requests": ["r"],
        "opaque": {"driver": "onload.dev", "parameters": parameters}}])
}

pub(crate) fn of_request(uid: &str, request: &str) -> String {
    format!("onload.dev/claim={uid}.request.{request}")
}

fn of_nic(uid: &str) -> [String; 2] {
    ["onload.dev/nic=ens1".to_owned(), of_request(uid, "r")]
}

fn of_claim(uid: &str) -> String {
    format!("onload.dev/claim={uid}.vfio.0000:81:10.0")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubelet_finds_the_driver_and_both_versions_of_its_service() {
    let node = Node::new().await;
    let (mut daemon, driver) = node.started().await;
    assert_eq!(node.kubelet.sockets(), ["onload.dev@reg.sock"]);
    assert_eq!(driver.info.r#type, "DRAPlugin");
    assert_eq!(driver.info.name, "onload.dev");
    let services = ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"];
    assert_eq!(driver.info.supported_versions, services);
    let plugins = node.kubelet.0.join("plugins/onload.dev");
    assert_eq!(PathBuf::from(&driver.info.endpoint).parent(), Some(plugins.as_path()));
    daemon.logged(&["registered with kubelet", "onload.dev"]);
    node.claim("c", UID, "n1/nic", "ens1", json!([]));
    let devices = driver.prepare_beta(claim("c", UID)).await.unwrap();
    assert_eq!(devices[0].cdi_device_ids, of_nic(UID));
    assert_eq!(driver.prepare(claim("c", UID)).await.unwrap(), devices);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubelet_s_authority_is_taken_for_the_at_in_the_name_of_the_socket() {
    let node = Node::new().await;
    let (_daemon, _driver) = node.started().await;
    let socket = node.kubelet.registry().join("onload.dev@reg.sock");
    // What kubelet sends, cut before what comes of the directory of this test.
    let escaped = "%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2F";
    let (with, without) = ("onload.dev@reg.sock", "onload.dev-reg.sock");
    tokio::task::spawn_blocking(move || {
        let ask = |name: &str| call(&socket, &format!("{escaped}{name}"), GET_INFO);
        assert_eq!(ask(with), Answer::Headers);
        assert_eq!(ask("onload.dev@reg-0a1b2c3d.sock"), Answer::Headers);
        assert_eq!(ask(without), PROTOCOL_ERROR, "the reason for the @ is gone");
        assert_eq!(call(&socket, "localhost", GET_INFO), Answer::Headers);
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_kubelet_has_against_the_driver_is_logged() {
    let node = Node::new().await;
    let (mut daemon, mut driver) = node.started().await;
    let text = "none of services supported by the plugin are supported by the kubelet";
    driver.notify(false, text).await;
    daemon.logged(&["kubelet rejected the driver", text]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_gets_its_devices_by_the_words_of_its_allocation() {
    let node = Node::new().await;
    let (mut daemon, driver) = node.started().await;
    let mut shared = result("fast/second", "n1/nic", "ens1");
    shared["shareID"] = json!("a671734a-e8e5-11e4-8fde-42010af09327");
    let foreign =
        json!({"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "gpu0"});
    let results = json!([foreign, shared, result("vf", "n1/vfio", VF)]);
    node.api.put(claim_of("c", UID, results, json!([])));
    let devices = driver.prepare(claim("c", UID)).await.unwrap();
    let [nic, vf] = &devices[..] else {
        panic!("{devices:?}");
    };
    assert_eq!(nic.request_names, ["fast"]);
    assert_eq!(nic.cdi_device_ids, ["onload.dev/nic=ens1".to_owned(), of_request(UID, "fast")]);
    assert_eq!(nic.share_id.as_deref(), Some("a671734a-e8e5-11e4-8fde-42010af09327"));
    assert_eq!((vf.pool_name.as_str(), vf.device_name.as_str()), ("n1/vfio", VF));
    assert_eq!(
        vf.cdi_device_ids,
        [of_claim(UID), "onload.dev/vfio=0000:81:10.0".to_owned(), of_request(UID, "vf")]
    );
    assert_eq!(vf.share_id, None);
    // Each name that is answered is one that an engine finds.
    let registry = Registry::scan(&[node.host.spec_dir()]);
    let there: BTreeSet<String> =
        registry.devices().map(|device| device.name.to_string()).collect();
    let answered = devices.iter().flat_map(|device| &device.cdi_device_ids);
    assert!(answered.into_iter().all(|name| there.contains(name)), "{there:?}");
    // The hook of the claim runs before the device's own, which would lease it for this container alone.
    let ids: Vec<QualifiedName> = vf.cdi_device_ids.iter().map(|id| id.parse().unwrap()).collect();
    let hooks = registry.edits_for(&ids).unwrap().hooks;
    let stages: Vec<(&str, bool)> = hooks
        .iter()
        .map(|hook| (hook.args[1].as_str(), hook.args.iter().any(|arg| arg == "--claim")))
        .filter(|(stage, _)| *stage == "createRuntime")
        .collect();
    assert_eq!(stages, [("createRuntime", true), ("createRuntime", false)]);
    daemon.logged(&["prepared", UID, "onload.dev/nic=ens1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_choose_among_what_the_host_has() {
    let node = Node::new().await;
    let (mut daemon, driver) = node.started().await;
    let config = opaque(json!({"preload": false, "profile": "latency"}));
    node.claim("c", UID, "n1/nic", "ens1", config);
    assert_eq!(
        driver.cdi(claim("c", UID)).await.unwrap(),
        ["onload.dev/nic-plain=ens1", "onload.dev/profile=latency", &of_request(UID, "r")]
    );
    node.claim("bad", OTHER_UID, "n1/nic", "ens1", opaque(json!({"memlock": "unlimited"})));
    let line = driver.prepare(claim("bad", OTHER_UID)).await.unwrap_err();
    assert_eq!(
        line,
        "parameters of the claim: unknown key \"memlock\"; known are preload, profile, name, mtu, vlan, address, routes"
    );
    daemon.logged(&["not prepared", "unknown key"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hook_of_a_claim_sets_the_vlan_that_it_chose_of_a_function() {
    let node = Node::new().await;
    node.host.change_spec("vfio", |spec| {
        for device in spec["devices"].as_array_mut().unwrap() {
            let vf = format!("vfio:{}=vlans=100-199", device["name"].as_str().unwrap());
            for hook in device["containerEdits"]["hooks"].as_array_mut().unwrap() {
                let args = hook["args"].as_array_mut().unwrap();
                args.extend([json!("--vf"), json!(vf)]);
            }
        }
    });
    let (_daemon, driver) = node.started().await;
    node.claim("c", UID, "n1/vfio", VF, opaque(json!({"vlan": 150})));
    let devices = driver.prepare(claim("c", UID)).await.unwrap();
    let ids = &devices[0].cdi_device_ids;
    let own = "onload.dev/vfio=0000:81:10.0".to_owned();
    assert_eq!(ids, &[of_claim(UID), own, of_request(UID, "r")]);
    let ids: Vec<QualifiedName> = ids.iter().map(|id| id.parse().unwrap()).collect();
    let registry = Registry::scan(&[node.host.spec_dir()]);
    let hooks = registry.edits_for(&ids).unwrap().hooks;
    let settings = hooks.iter().map(|hook| {
        let at = hook.args.iter().position(|arg| arg == "--vf").unwrap();
        (hook.args[1].as_str(), hook.args[at + 1].as_str())
    });
    let (chosen, open) =
        ("vfio:0000:81:10.0=vlan=150;vlans=100-199", "vfio:0000:81:10.0=vlans=100-199");
    // The device's own hook comes after that of the claim, at each stage.
    let expected = [
        ("createRuntime", chosen),
        ("poststop", chosen),
        ("createRuntime", open),
        ("poststop", open),
    ];
    assert_eq!(settings.collect::<Vec<_>>(), expected);
    for (config, says) in [
        (opaque(json!({"vlan": 300})), "VLAN 300 is not allowed; choose from 100-199"),
        (json!([]), "choose a VLAN from 100-199"),
    ] {
        node.claim("d", OTHER_UID, "n1/vfio", VF, config);
        let line = driver.prepare(claim("d", OTHER_UID)).await.unwrap_err();
        assert!(line.contains(says), "{line}");
    }
    assert_eq!(node.of_claims(), [of_claim(UID)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_is_prepared_as_often_as_kubelet_asks_and_after_a_reboot() {
    let node = Node::new().await;
    let (mut daemon, driver) = node.started().await;
    node.claim("c", UID, "n1/vfio", VF, json!([]));
    let first = driver.prepare(claim("c", UID)).await.unwrap();
    assert_eq!(driver.prepare(claim("c", UID)).await.unwrap(), first);
    assert_eq!(node.of_claims(), [of_claim(UID)]);
    assert!(daemon.terminate().success());
    // /var/run/cdi does not outlive a reboot; kubelet prepares the same claim without an unprepare.
    for entry in fs::read_dir(node.host.spec_dir()).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_str().unwrap().starts_with("claim.") {
            fs::remove_file(path).unwrap();
        }
    }
    let (_daemon, driver) = node.started().await;
    assert_eq!(driver.prepare(claim("c", UID)).await.unwrap(), first);
    assert_eq!(node.of_claims(), [of_claim(UID)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unprepare_leaves_nothing_and_asks_nobody() {
    let node = Node::new().await;
    let (mut daemon, driver) = node.started().await;
    node.claim("c", UID, "n1/vfio", VF, json!([]));
    driver.prepare(claim("c", UID)).await.unwrap();
    node.api.delete("default", "c");
    let asked = node.api.asked();
    assert_eq!(driver.unprepare(claim("c", UID)).await, "");
    assert_eq!(node.files_of_claims(), [""; 0]);
    // Again, one that was never prepared, and what is no uid.
    for uid in [UID, OTHER_UID, "../../etc/passwd", ""] {
        assert_eq!(driver.unprepare(claim("c", uid)).await, "", "{uid}");
    }
    assert_eq!(node.api.asked(), asked);
    daemon.logged(&["unprepared", UID]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_cannot_be_prepared_say_why_and_harm_no_other() {
    let node = Node::new().await;
    let (mut daemon, driver) = node.started().await;
    node.claim("good", UID, "n1/nic", "ens1", json!([]));
    node.claim("elsewhere", "u-elsewhere", "n2/nic", "ens1", json!([]));
    node.claim("again", "u-later", "n1/nic", "ens1", json!([]));
    node.claim("nobody", "u-nobody", "n1/vfio", "0000-81-10-9", json!([]));
    let mut bare = claim_of("bare", "u-bare", json!([]), json!([]));
    bare["status"] = json!({});
    node.api.put(bare);
    let asked = [
        ("good", UID, ""),
        (
            "elsewhere",
            "u-elsewhere",
            "request \"r\": this node has no device \"ens1\" in pool \"n2/nic\"",
        ),
        (
            "again",
            "u-earlier",
            "replaced by a claim with uid \"u-later\", but the pod waits for u-earlier",
        ),
        ("nobody", "u-nobody", "this node has no device \"0000-81-10-9\" in pool \"n1/vfio\""),
        ("bare", "u-bare", "it is not allocated"),
        ("gone", "u-gone", "the API server no longer has this claim"),
        ("x", "no uid\n", "is not a claim uid"),
        ("../../nodes", "u-path", "the API server no longer has this claim"),
    ];
    let claims = asked.iter().map(|(name, uid, _)| claim(name, uid)).collect();
    let answers = driver.prepare_all(claims).await;
    assert_eq!(answers.len(), asked.len());
    for (name, uid, says) in asked {
        let answer = &answers[uid];
        assert!(answer.error.contains(says), "{name}: {}", answer.error);
        assert!(!answer.error.contains('\n'));
        assert_eq!(answer.devices.is_empty(), !says.is_empty(), "{name}");
    }
    daemon.logged(&["not prepared", "u-gone", "delete the pod"]);
    assert_eq!(
        node.files_of_claims(),
        ["claim", "json"].map(|end| format!("claim.onload.dev-{UID}.{end}"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_others_hold_is_refused_with_the_holder_and_not_to_its_own_claim() {
    let node = Node::new().await;
    node.host.lease("vfio:0000:81:10.0", None);
    let (_daemon, driver) = node.started().await;
    node.claim("c", UID, "n1/vfio", VF, json!([]));
    let line = driver.prepare(claim("c", UID)).await.unwrap_err();
    assert_eq!(
        line,
        "request \"r\": vfio:0000:81:10.0: in use by container web (being made) since \
         1970-01-01T00:00:00Z; \"onload-ctk lease list\" shows all"
    );
    assert_eq!(node.files_of_claims(), [""; 0]);
    // The pod of another claim has it.
    node.host.lease("vfio:0000:81:10.0", Some(OTHER_UID));
    let line = driver.prepare(claim("c", UID)).await.unwrap_err();
    assert!(line.contains(&format!("of claim {OTHER_UID} since")), "{line}");
    // A pod of this one.
    node.host.lease("vfio:0000:81:10.0", Some(UID));
    let cdi = driver.cdi(claim("c", UID)).await.unwrap();
    assert_eq!(cdi[0], of_claim(UID));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_asks_for_a_resource_has_the_variables_that_a_device_plugin_gives() {
    let node = Node::new().await;
    let (_daemon, driver) = node.started().await;
    let request = "container-0-request-0";
    let results = json!([result(request, "n1/vfio", VF)]);
    let mut made = claim_of("c", UID, results, json!([]));
    made["metadata"]["annotations"] =
        json!({"resource.kubernetes.io/extended-resource-claim": "true"});
    made["spec"] = json!({"devices": {"requests": [{"name": request,
        "exactly": {"allocationMode": "ExactCount", "count": 1, "deviceClassName": "vfio.onload.dev"}}]}});
    node.api.put(made);
    let cdi = driver.cdi(claim("c", UID)).await.unwrap();
    let of_request = of_request(UID, request);
    assert_eq!(cdi, [of_claim(UID), "onload.dev/vfio=0000:81:10.0".to_owned(), of_request]);
    let registry = Registry::scan(&[node.host.spec_dir()]);
    let names: Vec<_> = cdi.iter().map(|name| name.parse().unwrap()).collect();
    let env = registry.edits_for(&names).unwrap().env;
    let has = |variable: &str| env.iter().any(|other| other == variable);
    assert!(has("PCIDEVICE_ONLOAD_DEV_VFIO=0000:81:10.0"), "{env:?}");
    // As the device plugin's answer was recorded (tests/recorded/kubelet-1.36.2/calls.jsonl).
    let info = r#"{"0000:81:10.0":{"generic":{"deviceID":"0000:81:10.0"},"vfio":{"dev-mount":"/dev/vfio/15","mount":"/dev/vfio/vfio"}}}"#;
    assert!(has(&format!("PCIDEVICE_ONLOAD_DEV_VFIO_INFO={info}")), "{env:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_only_watches_gets_no_node_of_a_device_that_one_claim_has() {
    let node = Node::new().await;
    node.host.lease("vfio:0000:81:10.0", Some(OTHER_UID));
    let (_daemon, driver) = node.started().await;
    let mut admin = result("w", "n1/vfio", VF);
    admin["adminAccess"] = json!(true);
    node.api.put(claim_of("c", UID, json!([admin]), json!([])));
    let devices = driver.prepare(claim("c", UID)).await.unwrap();
    assert_eq!(devices[0].cdi_device_ids, [of_request(UID, "w")]);
    assert!(node.of_claims().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_claims_at_once_are_each_prepared_and_one_of_two_pods_too() {
    let node = Node::new().await;
    let (_daemon, driver) = node.started().await;
    for at in 0..50 {
        node.claim(&format!("c{at}"), &format!("u{at}"), "n1/nic", "ens1", json!([]));
    }
    node.claim("both", UID, "n1/vfio", VF, json!([]));
    node.api.hold();
    let one = |name: String, uid: String| {
        let driver = driver.clone();
        tokio::spawn(async move { driver.cdi(claim(&name, &uid)).await })
    };
    let nics: Vec<_> = (0..50).map(|at| one(format!("c{at}"), format!("u{at}"))).collect();
    let both: Vec<_> = (0..2).map(|_| one("both".to_owned(), UID.to_owned())).collect();
    // Eight are read at once: the answers have not been given.
    while node.api.asked() < 8 {
        tokio::task::yield_now().await;
    }
    assert!(nics.iter().chain(&both).all(|task| !task.is_finished()));
    node.api.go_on();
    for (at, task) in nics.into_iter().enumerate() {
        assert_eq!(task.await.unwrap().unwrap(), of_nic(&format!("u{at}")));
    }
    for task in both {
        assert_eq!(task.await.unwrap().unwrap()[0], of_claim(UID));
    }
    assert_eq!(node.api.asked(), 52);
    assert_eq!(node.of_claims(), [of_claim(UID)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_told_with_the_words_of_discovery_at_each_change() {
    let node = Node::new().await;
    let (_daemon, driver) = node.started().await;
    let mut health = driver.watch_health().await;
    let is = |status: HealthStatus| {
        move |health: &onload_kubernetes::wire::dra_health::DeviceHealth| {
            health.health == i32::from(status)
        }
    };
    let healthy = health.until(VF, is(HealthStatus::Healthy)).await;
    assert_eq!(healthy.device.unwrap().pool_name, "n1/vfio");
    let file = node.host.spec_dir().join("onload.dev-vfio.json");
    let whole = fs::read(&file).unwrap();
    node.host.remove_from_spec("vfio", "0000:81:10.0");
    let unhealthy = health.until(VF, is(HealthStatus::Unhealthy)).await;
    assert!(unhealthy.message.contains("specification"), "{}", unhealthy.message);
    fs::write(&file, whole).unwrap();
    let healthy = health.until(VF, is(HealthStatus::Healthy)).await;
    // What is not said again is forgotten by kubelet.
    let first = healthy.last_updated_time;
    health.until(VF, move |health| health.last_updated_time > first).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_404_that_is_not_the_servers_word_on_a_claim_sweeps_nothing() {
    let node = Node::new().await;
    let (mut daemon, driver) = node.started().await;
    node.claim("kept", UID, "n1/vfio", VF, json!([]));
    driver.prepare(claim("kept", UID)).await.unwrap();
    daemon.kill();
    drop(daemon);
    // It says "not found" once, and the claim is there when it is asked again.
    let before = node.api.asked();
    node.api.answer_once(Odd::NotYet);
    let mut daemon = node.daemon();
    node.api.until_asked(before + 2).await;
    assert_eq!(node.of_claims(), [of_claim(UID)]);
    daemon.kill();
    drop(daemon);
    node.api.answer_once(Odd::PageNotFound);
    let mut daemon = node.daemon();
    daemon.logged(&["could not determine whether a claim is still there", UID]);
    assert_eq!(node.of_claims(), [of_claim(UID)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_killed_instances_left_is_swept_at_the_next_start() {
    let node = Node::new().await;
    let (mut daemon, driver) = node.started().await;
    for (name, uid, device) in [("kept", UID, VF), ("gone", "u-gone", "0000-81-10-2")] {
        node.claim(name, uid, "n1/vfio", device, json!([]));
        driver.prepare(claim(name, uid)).await.unwrap();
    }
    daemon.kill();
    drop(daemon);
    assert_eq!(node.kubelet.sockets().len(), 1, "SIGKILL leaves it");
    assert_eq!(node.of_claims().len(), 2);
    node.api.delete("default", "gone");
    // A socket of another driver, which nobody serves either.
    drop(UnixListener::bind(node.kubelet.registry().join("dra.net.sock")).unwrap());
    let mut daemon = node.daemon();
    daemon.logged(&["removed the socket of a killed instance", "onload.dev@reg.sock"]);
    daemon.logged(&["removed the specification of a deleted claim", "u-gone"]);
    assert_eq!(node.of_claims(), [of_claim(UID)]);
    daemon.logged(&["serving claims"]);
    // kubelet waits for up to two minutes before it tries the old name again.
    let sockets = node.kubelet.sockets();
    assert_eq!((sockets.len(), sockets[0].as_str()), (2, "dra.net.sock"));
    assert!(sockets[1].starts_with("onload.dev@reg-"), "{sockets:?}");
    assert_eq!(node.endpoints(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_files_of_claims_in_use_are_written_again() {
    let node = Node::new().await;
    let (mut daemon, driver) = node.started().await;
    for (name, uid, device) in [("used", UID, VF), ("free", "u-free", "0000-81-10-2")] {
        let mut claim_object =
            claim_of(name, uid, json!([result("r", "n1/vfio", device)]), json!([]));
        if name == "used" {
            claim_object["status"]["reservedFor"] =
                json!([{"resource": "pods", "name": "p", "uid": "x"}]);
        }
        node.api.put(claim_object);
        driver.prepare(claim(name, uid)).await.unwrap();
    }
    let is_of_used = |name: &String| name.contains(UID);
    let used: Vec<String> = node.files_of_claims().into_iter().filter(is_of_used).collect();
    assert_eq!(used.len(), 2);
    let remove_all = || {
        for name in node.files_of_claims() {
            fs::remove_file(node.host.spec_dir().join(name)).unwrap();
        }
    };
    remove_all();
    // The next survey of the host finds it.
    let file = node.host.spec_dir().join("onload.dev-vfio.json");
    fs::write(&file, fs::read(&file).unwrap()).unwrap();
    daemon.logged(&["restored the missing CDI files", UID]);
    assert_eq!(node.files_of_claims(), used);
    daemon.kill();
    drop(daemon);
    remove_all();
    let mut daemon = node.daemon();
    daemon.logged(&["restored the missing CDI files", UID]);
    assert_eq!(node.files_of_claims(), used);
    daemon.kill();
    drop(daemon);
    // A device that cannot be given now is named.
    remove_all();
    node.host.remove_from_spec("vfio", "0000:81:10.0");
    let mut daemon = node.daemon();
    daemon.logged(&["missing and cannot be restored", "default/used", UID]);
    assert_eq!(node.files_of_claims(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_shared_devices_are_unprepared_after_the_operator_has_left_dra() {
    let node = Node::new().await;
    let (mut daemon, driver) = node.started().await;
    node.claim("c", UID, "n1/nic", "ens1", json!([]));
    driver.prepare(claim("c", UID)).await.unwrap();
    assert!(node.of_claims().is_empty(), "nothing is for it alone");
    assert!(daemon.terminate().success());
    drop(daemon);
    let mut daemon = node.daemon_with("[kubernetes]\noffer = \"device-plugin\"\n");
    let driver = node.kubelet.driver().await;
    assert_eq!(driver.unprepare(claim("c", UID)).await, "");
    assert_eq!(node.files_of_claims(), [""; 0]);
    assert!(daemon.terminate().success());
    drop(daemon);
    // The next one has no claim and no slice left, and no driver.
    fs::remove_file(node.kubelet.0.join("plugins/onload.dev/published-nic")).unwrap();
    let kubelet = MockKubelet::start(&node.host.plugin_dir());
    let _daemon = node.daemon_with("[kubernetes]\noffer = \"device-plugin\"\n");
    kubelet.registered("onload.dev/nic").await;
    assert_eq!(node.kubelet.sockets(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_its_end_the_driver_leaves_and_completes_what_was_begun() {
    let node = Node::new().await;
    let (mut daemon, driver) = node.started().await;
    node.claim("c", UID, "n1/nic", "ens1", json!([]));
    let mut health = driver.watch_health().await;
    node.api.hold();
    let begun = {
        let driver = driver.clone();
        tokio::spawn(async move { driver.cdi(claim("c", UID)).await })
    };
    while node.api.asked() < 1 {
        tokio::task::yield_now().await;
    }
    daemon.signal_term();
    assert!(node.kubelet.until_sockets(0).await.is_empty());
    assert!(daemon.is_running(), "a call is under way");
    node.api.go_on();
    assert_eq!(begun.await.unwrap().unwrap(), of_nic(UID));
    assert!(health.has_ended().await);
    let (status, _) = daemon.ended();
    assert!(status.success());
    assert_eq!(node.endpoints(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_serve_while_one_takes_the_place_of_the_other() {
    let node = Node::new().await;
    fs::create_dir(node.host.plugin_dir()).unwrap();
    let (mut first, old) = node.started().await;
    first.logged(&["serving claims"]);
    let mut second = node.daemon();
    let sockets = node.kubelet.until_sockets(2).await;
    second.logged(&["waiting for the other instance to end"]);
    let (new, known) = (&sockets[0], &sockets[1]);
    assert_eq!(known, "onload.dev@reg.sock");
    assert!(new.starts_with("onload.dev@reg-"), "{new}");
    let driver = node.kubelet.register(new).await;
    assert_ne!(driver.info.endpoint, old.info.endpoint);
    node.claim("c", UID, "n1/nic", "ens1", json!([]));
    for driver in [&old, &driver] {
        driver.prepare(claim("c", UID)).await.unwrap();
    }
    assert!(first.terminate().success());
    assert_eq!(node.kubelet.sockets(), [new.as_str()]);
    driver.prepare(claim("c", UID)).await.unwrap();
    assert!(second.is_running());
    assert!(second.terminate().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_that_somebody_removed_is_made_again() {
    let node = Node::new().await;
    let (mut daemon, _driver) = node.started().await;
    fs::remove_file(node.kubelet.registry().join("onload.dev@reg.sock")).unwrap();
    daemon.logged(&["a socket of the driver was removed"]);
    let driver = node.kubelet.driver().await;
    node.claim("c", UID, "n1/nic", "ens1", json!([]));
    driver.prepare(claim("c", UID)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_the_name_of_a_socket_stays_and_the_driver_waits() {
    let node = Node::new().await;
    let place = node.kubelet.registry().join("onload.dev@reg.sock");
    fs::write(&place, "x").unwrap();
    let mut daemon = node.daemon();
    daemon.logged(&["serving claims failed", "another user's socket has this name; move it away"]);
    assert_eq!(fs::read_to_string(&place).unwrap(), "x");
    fs::remove_file(&place).unwrap();
    node.kubelet.driver().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_starts_before_kubelet_waits_for_its_directory() {
    let node = Node::new().await;
    fs::remove_dir(node.kubelet.registry()).unwrap();
    let mut daemon = node.daemon();
    daemon.logged(&["waiting for kubelet", "plugins_registry does not exist"]);
    fs::create_dir(node.kubelet.registry()).unwrap();
    node.kubelet.driver().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_api_server_the_device_plugin_serves_alone() {
    let host = AgentHost::captured(CAPTURED);
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let dir = KubeletDir::make(&host.kubelet_dir());
    let mut daemon = Daemon::with(&host, |command| {
        command.arg("--kubelet-dir").arg(&dir.0);
    });
    kubelet.registered("onload.dev/vfio").await;
    assert!(dir.sockets().is_empty());
    assert!(daemon.terminate().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_class_for_dra_alone_without_an_api_server_ends_the_daemon_with_the_remedy() {
    let host = AgentHost::captured(CAPTURED);
    host.config("[kubernetes]\noffer = \"dra\"\n");
    let daemon = Daemon::start(&host);
    let (status, message) = daemon.ended();
    assert_eq!(status.code(), Some(2));
    assert!(message.contains("set --node-name"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_cannot_be_reached_is_told_to_the_pod() {
    let node = Node::new().await;
    let kubeconfig = fs::read_to_string(&node.kubeconfig).unwrap();
    let mut config: Value = serde_json::from_str(&kubeconfig).unwrap();
    // Nothing listens at port 1.
    config["clusters"][0]["cluster"]["server"] = json!("http://127.0.0.1:1");
    fs::write(&node.kubeconfig, config.to_string()).unwrap();
    let (_daemon, driver) = node.started().await;
    let line = driver.prepare(claim("c", UID)).await.unwrap_err();
    assert!(line.contains("reading ResourceClaim default/c"), "{line}");
    assert!(line.ends_with("kubelet tries again"), "{line}");
    assert_eq!(driver.unprepare(claim("c", UID)).await, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_kubelet_asks_is_counted_by_method() {
    let node = Node::new().await;
    let (daemon, driver) = node.started().await;
    node.claim("c", UID, "n1/nic", "ens1", json!([]));
    driver.prepare(claim("c", UID)).await.unwrap();
    driver.prepare(claim("c", OTHER_UID)).await.unwrap_err();
    driver.unprepare(claim("c", UID)).await;
    let mut health = driver.watch_health().await;
    health.until(VF, |_| true).await;
    let http = daemon.http.clone();
    let (_, metrics) = tokio::task::spawn_blocking(move || get(&http, "/metrics")).await.unwrap();
    for line in [
        r#"onload_kubernetes_requests_total{method="NodePrepareResources",outcome="ok"} 1"#,
        r#"onload_kubernetes_requests_total{method="NodePrepareResources",outcome="error"} 1"#,
        r#"onload_kubernetes_requests_total{method="NodeUnprepareResources",outcome="ok"} 1"#,
        r#"onload_kubernetes_requests_total{method="NodeWatchResources",outcome="ok"} 1"#,
        r#"onload_kubernetes_dra_registered 1"#,
    ] {
        assert!(metrics.lines().any(|other| other == line), "{line}:\n{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registry_that_is_replaced_behind_its_mount_ends_the_daemon() {
    if !needs::mount_namespace("a bind mount") {
        return;
    }
    let node = Node::new().await;
    node.host.config("[kubernetes]\noffer = \"dra\"\n");
    let (registry, real) = (node.kubelet.registry(), node.kubelet.0.join("registry-of-kubelet"));
    fs::create_dir(&real).unwrap();
    let script = format!(
        "mount --bind '{}' '{}' && exec \"$0\" \"$@\" --kubelet-dir '{}' --kubeconfig '{}' --node-name n1",
        real.display(),
        registry.display(),
        node.kubelet.0.display(),
        node.kubeconfig.display()
    );
    let mut daemon = Daemon::wrapped(&node.host, |program| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script, program]);
        command
    });
    let end = Instant::now() + Duration::from_secs(30);
    while fs::read_dir(&real).unwrap().next().is_none() {
        assert!(Instant::now() < end && daemon.is_running());
        sleep(Duration::from_millis(50)).await;
    }
    fs::remove_dir_all(&real).unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    while daemon.is_running() {
        assert!(Instant::now() < end);
        sleep(Duration::from_millis(50)).await;
    }
    let (status, log) = daemon.ended();
    assert!(
        !status.success() && log.contains("plugins_registry was replaced on the host"),
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_api_server_only_a_class_that_was_published_waits() {
    let node = Node::new().await;
    let record = node.kubelet.0.join("plugins/onload.dev/published-vfio");
    fs::create_dir_all(record.parent().unwrap()).unwrap();
    fs::write(&record, "").unwrap();
    let kubelet = MockKubelet::start(&node.host.plugin_dir());
    let mut daemon = Daemon::with(&node.host, |command| {
        command.arg("--kubelet-dir").arg(&node.kubelet.0);
        command.args(["--kubeconfig", "/nonexistent", "--node-name", "n1"]);
    });
    let line = daemon.logged(&["class waits"]);
    let reason = line["reason"].as_str().unwrap();
    assert!(
        reason.contains("kubectl delete resourceslices --field-selector=spec.nodeName=n1")
            && reason.contains(&record.display().to_string()),
        "{reason}"
    );
    kubelet.registered("onload.dev/nic").await;
    assert!(!kubelet.resources().contains(&"onload.dev/vfio".to_owned()));
}
