//! What pods and operators see of claims: files with the devices in the pod, the status of the claim, and Events.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::fs;
use std::path::PathBuf;

use onload_cdi::{ContainerEdits, Registry};
use serde_json::{Value, json};

use crate::dra::{Node, of_request};
use crate::support::claims::{Written, claim_of, result};
use crate::support::dra_kubelet::claim;

const UID: &str = "0d7e3c1a-5c0f-4c57-9a4e-2b1f8f0f8f11";
const OTHER_UID: &str = "11111111-5c0f-4c57-9a4e-2b1f8f0f8f11";
const VF: &str = "0000-81-10-0";
const FUNCTION: &str = "0000:81:10.0";
const FILE: &str = "onload.dev-metadata.json";

impl Node {
    /// The function for a pod.
    fn function(&self, name: &str, uid: &str) {
        let mut claim = claim_of(name, uid, json!([result("r", "n1/vfio", VF)]), json!([]));
        claim["status"]["reservedFor"] =
            json!([{"resource": "pods", "name": "web", "uid": "uid-of-web"}]);
        self.api.put(claim);
    }

    /// What a container gets that names a request.
    fn edits(&self, uid: &str, request: &str) -> ContainerEdits {
        let registry = Registry::scan(&[self.host.spec_dir()]);
        let name = of_request(uid, request).parse().unwrap();
        registry.edits_for(&[name]).unwrap()
    }

    /// The only file that a container reads of a request: where it is there, and on the host.
    fn file(&self, uid: &str, request: &str) -> (String, PathBuf) {
        let mounts = self.edits(uid, request).mounts;
        let [mount] = &mounts[..] else {
            panic!("{mounts:?}");
        };
        let (there, here) = (mount.container_path.clone(), &mount.host_path);
        (there, PathBuf::from(here))
    }

    fn ready(&self, name: &str) -> Option<(String, String)> {
        let devices = self.api.devices(name);
        let condition = &devices[0]["conditions"][0];
        let text = |key: &str| Some(condition[key].as_str()?.to_owned());
        Some((text("status")?, text("reason")?))
    }

    async fn until_ready_is(&self, name: &str, status: &str, reason: &str) {
        let wanted = Some((status.to_owned(), reason.to_owned()));
        self.api.until_written(|_| self.ready(name) == wanted).await;
    }
}

fn written_for(written: &[Written], object: &str) -> Vec<Value> {
    written.iter().filter(|one| one.object == object).map(|one| one.body.clone()).collect()
}

fn events(written: &[Written]) -> Vec<&Written> {
    written.iter().filter(|one| one.body["kind"] != "ResourceClaim").collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_in_a_pod_read_the_attributes_of_its_devices() {
    let node = Node::new().await;
    let (mut daemon, driver) = node.started().await;
    let mut made = claim_of(
        "web-nic-x7f2q",
        UID,
        json!([result("fast/first", "n1/nic", "ens1"), result("vf", "n1/vfio", VF)]),
        json!([]),
    );
    made["metadata"]["annotations"] = json!({"resource.kubernetes.io/pod-claim-name": "nics"});
    node.api.put(made);
    let asked = claim("web-nic-x7f2q", UID);
    driver.prepare(asked.clone()).await.unwrap();
    let dir = "/var/run/kubernetes.io/dra-device-attributes";
    let (there, fast) = node.file(UID, "fast");
    assert_eq!(there, format!("{dir}/resourceclaimtemplates/nics/fast/{FILE}"));
    let (there, vf) = node.file(UID, "vf");
    assert_eq!(there, format!("{dir}/resourceclaimtemplates/nics/vf/{FILE}"));
    let own = node.kubelet.0.join("plugins/onload.dev");
    assert!(fast.starts_with(&own), "{}", fast.display());
    let read = |path: &PathBuf| -> Vec<Value> {
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let [beta, alpha] = &read(&fast)[..] else {
        panic!("{}", fast.display());
    };
    assert_eq!(beta["apiVersion"], "metadata.resource.k8s.io/v1beta1");
    assert_eq!(alpha["podClaimName"], "nics");
    assert_eq!(alpha["requests"][0]["name"], "fast/first");
    let device = &alpha["requests"][0]["devices"][0];
    assert_eq!((&device["pool"], &device["name"]), (&json!("n1/nic"), &json!("ens1")));
    let attributes = &read(&vf)[0]["requests"][0]["devices"][0]["attributes"];
    assert_eq!(attributes["resource.kubernetes.io/pciBusID"], json!({"string": FUNCTION}));
    assert_eq!(attributes["k8s.cni.cncf.io/deviceID"], json!({"string": FUNCTION}));
    assert_eq!(attributes["k8s.cni.cncf.io/resourceName"], json!({"string": "onload.dev/vfio"}));
    assert_eq!(attributes["kind"], json!({"string": "vfio"}));
    // The same again is not written again, whoever prepares.
    let before = fs::metadata(&vf).unwrap().modified().unwrap();
    assert!(daemon.terminate().success());
    drop(daemon);
    let (_daemon, driver) = node.started().await;
    driver.prepare(asked.clone()).await.unwrap();
    assert_eq!(fs::metadata(&vf).unwrap().modified().unwrap(), before);
    assert_eq!(driver.unprepare(asked).await, "");
    assert!(!vf.exists() && !fast.exists());
    assert_eq!(fs::read_dir(own.join("dra-device-metadata")).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_somebody_gave_a_claim_leads_nowhere() {
    let node = Node::new().await;
    let (_daemon, driver) = node.started().await;
    let mut made = claim_of("c", UID, json!([result("r", "n1/vfio", VF)]), json!([]));
    made["metadata"]["annotations"] =
        json!({"resource.kubernetes.io/pod-claim-name": "../../../../../etc"});
    node.api.put(made);
    driver.prepare(claim("c", UID)).await.unwrap();
    let (there, _) = node.file(UID, "r");
    let dir = "/var/run/kubernetes.io/dra-device-attributes";
    assert_eq!(there, format!("{dir}/resourceclaims/c/r/{FILE}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_reboot_files_of_claims_that_are_gone_go_too() {
    let node = Node::new().await;
    let (mut daemon, driver) = node.started().await;
    node.function("c", UID);
    driver.prepare(claim("c", UID)).await.unwrap();
    let (_, path) = node.file(UID, "r");
    assert!(daemon.terminate().success());
    drop(daemon);
    // /var/run/cdi does not outlive it, kubelet's directory does.
    for file in node.files_of_claims() {
        fs::remove_file(node.host.spec_dir().join(file)).unwrap();
    }
    node.api.delete("default", "c");
    let (_daemon, driver) = node.started().await;
    node.api.until_written(|_| !path.exists()).await;
    node.function("c", UID);
    driver.prepare(claim("c", UID)).await.unwrap();
    assert!(path.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_of_a_claim_follows_its_devices_and_its_pod_is_told() {
    let node = Node::new().await;
    let (_daemon, driver) = node.started().await;
    node.function("c", UID);
    driver.prepare(claim("c", UID)).await.unwrap();
    node.until_ready_is("c", "True", "Prepared").await;
    let devices = node.api.devices("c");
    let device = &devices[0];
    assert_eq!((&device["driver"], &device["pool"]), (&json!("onload.dev"), &json!("n1/vfio")));
    assert_eq!((&device["device"], device.get("networkData")), (&json!(VF), None));
    // Somebody outside of the cluster takes it.
    node.host.lease("vfio:0000:81:10.0", None);
    node.until_ready_is("c", "False", "Held").await;
    node.api.until_written(|written| !events(written).is_empty()).await;
    let written = node.api.written();
    let event = &events(&written)[0].body;
    assert_eq!((&event["reason"], &event["type"]), (&json!("DeviceUnhealthy"), &json!("Warning")));
    let regarding = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "web",
        "uid": "uid-of-web"});
    assert_eq!(event["regarding"], regarding);
    assert_eq!(
        (&event["related"]["kind"], &event["related"]["name"]),
        (&json!("ResourceClaim"), &json!("c"))
    );
    let note = event["note"].as_str().unwrap();
    assert!(note.starts_with("device 0000-81-10-0 of pool n1/vfio: "), "{note}");
    assert!(note.contains("in use by container web"), "{note}");
    // The claim has it.
    node.host.lease("vfio:0000:81:10.0", Some(UID));
    node.until_ready_is("c", "True", "Prepared").await;
    node.host.remove_from_spec("vfio", FUNCTION);
    node.until_ready_is("c", "False", "Unhealthy").await;
    assert_eq!(driver.unprepare(claim("c", UID)).await, "");
    node.api.until_written(|_| node.api.devices("c") == json!([])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubelet_does_not_wait_for_the_status() {
    let node = Node::new().await;
    let (_daemon, driver) = node.started().await;
    node.api.hold_writes();
    for at in 0..20 {
        let (name, uid) = (format!("c{at}"), format!("u{at}"));
        node.claim(&name, &uid, "n1/nic", "ens1", json!([]));
        driver.prepare(claim(&name, &uid)).await.unwrap();
    }
    // They are written one after the other.
    node.api.until_written(|written| written.len() == 1).await;
    assert_eq!(driver.unprepare(claim("c0", "u0")).await, "");
    node.api.go_on_with_writes();
    let is_told = |at: u32| node.ready(&format!("c{at}")).is_some();
    node.api.until_written(|_| (1..20).all(is_told) && node.api.devices("c0") == json!([])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_rights_claims_are_prepared_and_the_server_is_left_alone() {
    let node = Node::new().await;
    let (mut daemon, driver) = node.started().await;
    node.api.refuse_writes();
    node.function("c", UID);
    driver.prepare(claim("c", UID)).await.unwrap();
    daemon.logged(&["writing the status of claims failed", "packaging/kubernetes/dra"]);
    node.claim("d", OTHER_UID, "n1/nic", "ens1", json!([]));
    driver.prepare(claim("d", OTHER_UID)).await.unwrap();
    node.claim("e", "u-e", "n1/nic", "ens9", json!([]));
    driver.prepare(claim("e", "u-e")).await.unwrap_err();
    daemon.logged(&["writing an Event failed"]);
    driver.prepare(claim("e", "u-e")).await.unwrap_err();
    assert_eq!(driver.unprepare(claim("d", OTHER_UID)).await, "");
    // Each of the two claims once, and the Event.
    node.api.until_written(|written| written.len() >= 3).await;
    let written = node.api.written();
    assert_eq!(written.len(), 3, "{written:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_starts_writes_nothing_that_the_server_has() {
    let node = Node::new().await;
    let (mut daemon, driver) = node.started().await;
    node.function("c", UID);
    driver.prepare(claim("c", UID)).await.unwrap();
    node.until_ready_is("c", "True", "Prepared").await;
    assert!(daemon.terminate().success());
    drop(daemon);
    let asked = node.api.asked();
    let (_daemon, driver) = node.started().await;
    node.api.until_asked(asked + 1).await;
    // Another claim that is written afterwards says that the first one was looked at.
    node.claim("d", OTHER_UID, "n1/nic", "ens1", json!([]));
    driver.prepare(claim("d", OTHER_UID)).await.unwrap();
    node.until_ready_is("d", "True", "Prepared").await;
    // What it found of before is followed.
    node.host.remove_from_spec("vfio", FUNCTION);
    node.until_ready_is("c", "False", "Unhealthy").await;
    assert_eq!(written_for(&node.api.written(), "default/c").len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_has_the_name_of_another_is_left_alone() {
    let node = Node::new().await;
    let (_daemon, driver) = node.started().await;
    node.api.hold_writes();
    node.function("c", UID);
    driver.prepare(claim("c", UID)).await.unwrap();
    node.api.until_written(|written| written.len() == 1).await;
    // It is deleted and made anew before the server has written.
    node.function("c", OTHER_UID);
    node.api.go_on_with_writes();
    assert_eq!(driver.unprepare(claim("c", UID)).await, "");
    node.api.until_written(|written| written.len() == 2).await;
    assert_eq!(node.api.devices("c"), Value::Null);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_that_somebody_else_changed_at_the_same_time_is_written_again() {
    let node = Node::new().await;
    let (_daemon, driver) = node.started().await;
    node.function("c", UID);
    node.api.conflict_once();
    driver.prepare(claim("c", UID)).await.unwrap();
    node.until_ready_is("c", "True", "Prepared").await;
    assert_eq!(written_for(&node.api.written(), "default/c").len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_is_known_before_what_describes_it_is_there() {
    let node = Node::new().await;
    let (_daemon, driver) = node.started().await;
    node.function("c", UID);
    // An instance that starts beside this one removes what describes claims that are not known.
    let own = node.kubelet.0.join("plugins/onload.dev");
    fs::write(own.join("dra-device-metadata"), "").unwrap();
    let line = driver.prepare(claim("c", UID)).await.unwrap_err();
    assert!(line.starts_with("writing what pods read to "), "{line}");
    assert_eq!(node.files_of_claims(), [format!("claim.onload.dev-{UID}.claim")]);
    fs::remove_file(own.join("dra-device-metadata")).unwrap();
    driver.prepare(claim("c", UID)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_claim_has_an_event_with_the_holder_and_a_number() {
    let node = Node::new().await;
    node.host.lease("vfio:0000:81:10.0", None);
    let (_daemon, driver) = node.started().await;
    node.function("c", UID);
    let line = driver.prepare(claim("c", UID)).await.unwrap_err();
    node.api.until_written(|written| written.len() == 1).await;
    let written = node.api.written();
    let event = &written[0].body;
    assert_eq!((&event["reason"], &event["action"]), (&json!("PrepareRefused"), &json!("Prepare")));
    assert_eq!(event["note"], *line);
    assert!(line.contains("in use by container web"), "{line}");
    assert_eq!(event["reportingController"], "onload.dev");
    assert_eq!(event["reportingInstance"], "onload.dev-n1");
    let regarding = &event["regarding"];
    assert_eq!((&regarding["kind"], &regarding["uid"]), (&json!("ResourceClaim"), &json!(UID)));
    driver.prepare(claim("c", UID)).await.unwrap_err();
    node.api.until_written(|written| written.len() == 2).await;
    let written = node.api.written();
    assert_eq!((written[1].verb, &written[1].object), ("PATCH", &written[0].object));
    assert_eq!(written[1].body["series"]["count"], 2);
    // What is asked again and again is not said again and again.
    for _ in 0..20 {
        driver.prepare(claim("c", UID)).await.unwrap_err();
    }
    node.claim("d", OTHER_UID, "n1/nic", "ens9", json!([]));
    driver.prepare(claim("d", OTHER_UID)).await.unwrap_err();
    let of_d = |one: &Written| one.body["regarding"]["name"] == "d";
    node.api.until_written(|written| written.iter().any(of_d)).await;
    assert_eq!(node.api.written().len(), 6);
}
