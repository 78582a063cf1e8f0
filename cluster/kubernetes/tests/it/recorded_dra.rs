//! The driver is given what a real cluster gave it, and says what it said then (`recorded/dra-1.36.2/README.md`).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};

use crate::support::dra_kubelet::{Registered, claim};
use crate::support::offers::captured;
use crate::support::{AgentHost, ClaimServer, Daemon, KubeletDir};
use k8s_openapi::api::resource::v1::ResourceSlice;
use onload_core::class::Class;
use onload_core::kubernetes_settings::KubernetesSettings;
use onload_host::offers::HostDevice;
use onload_kubernetes::dra::slices::{DraFeatures, SliceInput, SlicePool, lost_features, probe};
use onload_kubernetes::names::NodeName;
use serde::Deserialize;
use serde_json::Value;

const CAPTURED: &str = "debian13-2numa-onload-rxe-vfio";
/// The scenario in which a specification was removed before the daemon noticed. How soon it notices depends on the load, so
/// the unit tests of the refusal cover it.
const SPEC_GONE: &str = "13-spec-gone";

/// A claim as the API server had it, and what the driver made of it.
#[derive(Deserialize)]
struct Recorded {
    of: String,
    claim: Value,
    /// The CDI devices of the answer, with commas.
    cdi: Option<String>,
    refusal: Option<String>,
}

impl Recorded {
    fn all() -> Vec<Recorded> {
        let text = include_str!("../recorded/dra-1.36.2/claims.jsonl");
        let claims = text.lines().map(|line| serde_json::from_str(line).unwrap());
        claims.collect()
    }

    fn text(&self, key: &str) -> &str {
        self.claim["metadata"][key].as_str().unwrap()
    }

    async fn prepare(&self, driver: &Registered) -> Result<Vec<Given>, String> {
        let devices = driver.prepare(claim(self.text("name"), self.text("uid")));
        let devices = devices.await?.into_iter();
        let given = devices.map(|device| Given {
            request: device.request_names.join(","),
            pool: device.pool_name,
            device: device.device_name,
            share: device.share_id,
            // Each request has a device of its own since.
            cdi: without_requests(device.cdi_device_ids),
        });
        Ok(given.collect())
    }

    /// What kubelet has to be told of the devices, but for their CDI names.
    fn results(&self) -> Vec<(String, String, String, Option<String>)> {
        let results = self.claim["status"]["allocation"]["devices"]["results"].as_array();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let results = results.unwrap().iter().map(|result| {
            let request = text(&result["request"]).unwrap();
            (
                request.split('/').next().unwrap().to_owned(),
                text(&result["pool"]).unwrap(),
                text(&result["device"]).unwrap(),
                text(&result["shareID"]),
            )
        });
        results.collect()
    }
}

fn without_requests(mut names: Vec<String>) -> Vec<String> {
    names.retain(|name| !name.contains(".request."));
    names
}

/// A device of an answer.
struct Given {
    request: String,
    pool: String,
    device: String,
    share: Option<String>,
    cdi: Vec<String>,
}

struct Node {
    _host: AgentHost,
    _api: ClaimServer,
    _daemon: Daemon,
    driver: Registered,
}

impl Node {
    async fn with(claims: &[Recorded]) -> Node {
        let host = AgentHost::captured(CAPTURED);
        let api = ClaimServer::start().await;
        for recorded in claims {
            api.put(recorded.claim.clone());
        }
        host.config("[kubernetes]\noffer = \"dra\"\n");
        let kubelet = KubeletDir::make(&host.kubelet_dir());
        let kubeconfig = api.kubeconfig(&host.kubelet_dir());
        let daemon = Daemon::with(&host, |command| {
            command.arg("--kubelet-dir").arg(&kubelet.0);
            command.arg("--kubeconfig").arg(kubeconfig);
            command.env("ONLOAD_KUBERNETES_NODE_NAME", "n1");
        });
        let driver = kubelet.driver().await;
        Node { _host: host, _api: api, _daemon: daemon, driver }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_a_real_cluster_are_answered_as_they_were() {
    let claims = Recorded::all();
    let node = Node::with(&claims).await;
    let (mut given, mut refused) = (0, 0);
    for recorded in claims.iter().filter(|recorded| recorded.of != SPEC_GONE) {
        let name = recorded.text("name");
        match (recorded.prepare(&node.driver).await, &recorded.refusal) {
            (Ok(devices), None) => {
                let cdi = devices.iter().flat_map(|device| device.cdi.clone());
                let cdi: Vec<String> = cdi.collect();
                // Who only watches had the nodes of another claim's devices then.
                let then = match name {
                    "admin" => Some(String::new()),
                    _ => recorded.cdi.clone(),
                };
                assert_eq!(Some(cdi.join(",")), then, "{name}");
                let reported = devices
                    .into_iter()
                    .map(|device| (device.request, device.pool, device.device, device.share));
                assert_eq!(reported.collect::<Vec<_>>(), recorded.results(), "{name}");
                given += 1;
            }
            (Err(message), Some(refusal)) => {
                // Parameters came later, and what is no text is not shown.
                let then = refusal.replace(
                    "known are preload, profile",
                    "known are preload, profile, name, mtu, vlan, address, routes",
                );
                let then = then.replace(", and not \"[\\\"a\\\"]\"", "");
                assert_eq!(message, then, "{name}");
                refused += 1;
            }
            (answer, _) => panic!("{name}: {}", answer.is_ok()),
        }
    }
    assert!(given > 20 && refused > 7, "{given} {refused}");
}

fn recorded_slices(text: &str) -> Vec<ResourceSlice> {
    let slices = text.lines().map(|line| serde_json::from_str(line).unwrap());
    slices.collect()
}

/// Attributes that came later are left out.
fn without_later(mut slice: ResourceSlice) -> ResourceSlice {
    let devices = slice.spec.devices.iter_mut().flatten();
    for attributes in devices.filter_map(|device| device.attributes.as_mut()) {
        attributes.retain(|name, _| !name.starts_with("k8s.cni.cncf.io/"));
    }
    slice
}

/// What the server stored is what the slices module makes of these offers.
fn is_what_was_stored(
    stored: &[ResourceSlice],
    devices: &[HostDevice],
    classes: &[Class],
    features: DraFeatures,
) {
    let node: NodeName = "n1".parse().unwrap();
    let owners = stored[0].metadata.owner_references.clone().unwrap();
    let wanted = SliceInput {
        node: &node,
        uid: &owners[0].uid,
        devices,
        settings: &KubernetesSettings::default(),
    };
    let mut made = BTreeMap::new();
    for class in classes {
        let pool = SlicePool::new(wanted, *class, features);
        let generation = |name: &str| {
            let is_it = |slice: &&ResourceSlice| slice.spec.pool.name == name;
            let stored = stored.iter().find(is_it);
            stored.map_or(1, |slice| slice.spec.pool.generation)
        };
        let generation = generation(pool.name());
        let slices = (0..pool.slices()).map(|at| without_later(pool.slice(at, generation)));
        made.extend(slices.map(|slice| (slice.metadata.name.clone(), slice)));
    }
    assert_eq!(made.len(), stored.len());
    for stored in stored {
        let made = &made[&stored.metadata.name];
        assert_eq!(made.spec, stored.spec);
        assert_eq!(lost_features(&made.spec, &stored.spec), (DraFeatures::NONE, false));
        assert_eq!(made.metadata.owner_references, stored.metadata.owner_references);
    }
}

#[test]
fn a_real_server_stores_slices_as_they_are_made() {
    let stored = recorded_slices(include_str!("../recorded/dra-1.36.2/slices.jsonl"));
    is_what_was_stored(&stored, &captured(CAPTURED), &Class::ALL, DraFeatures::ALL);
}

#[test]
fn a_real_server_without_the_features_stores_slices_as_they_are_made_for_it() {
    let mut stored = recorded_slices(include_str!("../recorded/dra-1.36.2/slices-without.jsonl"));
    // The slots of a device followed each other then.
    for devices in stored.iter_mut().flat_map(|slice| &mut slice.spec.devices) {
        devices.sort_by_key(|device| device.attributes.as_ref().unwrap()["slot"].int);
    }
    is_what_was_stored(&stored, &captured(CAPTURED), &Class::ALL, DraFeatures::NONE);
}

/// A server's answer to the slice that is never made.
#[derive(Deserialize)]
struct Probed {
    /// The feature gates that were off.
    off: Vec<String>,
    answer: ResourceSlice,
}

#[test]
fn what_a_real_server_drops_is_recognised() {
    let text = include_str!("../recorded/dra-1.36.2/probes.jsonl");
    let probed: Vec<Probed> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(probed.len(), 4);
    for Probed { off, mut answer } in probed {
        // An earlier version also asked for counters.
        answer.spec.devices.as_mut().unwrap().retain(|device| device.name != "counted");
        let is_off = |gate: &str| off.iter().any(|off| off == gate);
        let wanted = DraFeatures {
            sharing: is_off("DRAConsumableCapacity"),
            taints: is_off("DRADeviceTaints"),
        };
        let owners = answer.metadata.owner_references.clone().unwrap();
        let asked = probe(&"n1".parse().unwrap(), &owners[0].uid);
        assert_eq!(lost_features(&asked.spec, &answer.spec), (wanted, false), "{off:?}");
    }
}

/// A transcript of the behaviour over time.
macro_rules! transcript {
    ($name:literal) => {
        Transcript::parse(include_str!(concat!(
            "../recorded/dra-1.36.2/transcripts/",
            $name,
            ".txt"
        )))
    };
}

/// What a transcript holds, in its order.
#[derive(Clone, Debug)]
enum Line {
    /// What was done.
    Note,
    /// A line of a daemon's log.
    Log(Value),
    /// What a watch of the slices told: `[time, event, slice, version, pool]`.
    Watched(Vec<Value>),
    /// The pools of the server: `[name, generation, devices]`.
    Pools(BTreeMap<String, u64>),
    /// What the device plugin offers.
    Allocatable(BTreeMap<String, u64>),
    /// The node's own words on itself.
    Node(Value),
}

struct Transcript(Vec<Line>);

impl Transcript {
    fn parse(text: &str) -> Transcript {
        Transcript(text.lines().filter_map(line).collect())
    }

    fn logged(&self, message: &str) -> Vec<&Value> {
        let lines = self.0.iter().filter_map(|line| match line {
            Line::Log(log) if log["message"] == message => Some(log),
            _ => None,
        });
        lines.collect()
    }

    /// What was told of slices after a moment, by kind of event.
    fn watched_after(&self, moment: &str) -> BTreeMap<String, usize> {
        let mut events = BTreeMap::new();
        for line in &self.0 {
            if let Line::Watched(event) = line
                && event[0].as_str().unwrap() > moment
            {
                let kind = event[1].as_str().unwrap().to_owned();
                *events.entry(kind).or_default() += 1;
            }
        }
        events
    }

    /// By how many interfaces each class was offered, each time that somebody looked at both.
    fn offers(&self) -> Vec<BTreeMap<String, usize>> {
        let mut looks = Vec::new();
        for pair in self.0.windows(2) {
            let [Line::Pools(pools), Line::Allocatable(resources)] = pair else {
                continue;
            };
            let by_dra = pools.iter().map(|(pool, count)| (&pool[3..], *count));
            let by_plugin = resources.iter();
            let by_plugin =
                by_plugin.map(|(name, count)| (name.strip_prefix("onload.dev/").unwrap(), *count));
            let mut counts = BTreeMap::new();
            for (class, count) in by_dra.chain(by_plugin) {
                *counts.entry(class.to_owned()).or_default() += usize::from(count > 0);
            }
            looks.push(counts);
        }
        looks
    }
}

fn line(text: &str) -> Option<Line> {
    if text.starts_with("# ") {
        return Some(Line::Note);
    }
    let value: Value = serde_json::from_str(text).ok()?;
    Some(match &value {
        Value::Array(event) if event.first().is_some_and(Value::is_string) => {
            Line::Watched(event.clone())
        }
        Value::Array(pools) => Line::Pools(pools.iter().map(pool).collect()),
        Value::Object(_) if value["message"].is_string() && value["level"].is_string() => {
            Line::Log(value)
        }
        Value::Object(_) if value["kind"] == "ResourceClaim" => Line::Note,
        Value::Object(_) if value["bootID"].is_string() => Line::Node(value),
        Value::Object(resources) if resources.keys().all(|key| key.starts_with("onload.dev/")) => {
            let count = |value: &Value| value.as_str().unwrap().parse().unwrap();
            let resources = resources.iter();
            Line::Allocatable(resources.map(|(name, value)| (name.clone(), count(value))).collect())
        }
        _ => return None,
    })
}

fn pool(value: &Value) -> (String, u64) {
    let name = value[0].as_str().unwrap().to_owned();
    (name, value[2].as_u64().unwrap())
}

fn time(log: &Value) -> &str {
    log["timestamp"].as_str().unwrap()
}

fn kinds(events: &[(&str, usize)]) -> BTreeMap<String, usize> {
    let events = events.iter();
    events.map(|(kind, count)| ((*kind).to_owned(), *count)).collect()
}

/// The seconds of the day of a line of the log.
fn seconds(log: &Value) -> f64 {
    let time = time(log).split_once('T').unwrap().1.trim_end_matches('Z');
    let parts = time.split(':').map(|part| part.parse::<f64>().unwrap());
    parts.fold(0.0, |sum, part| sum * 60.0 + part)
}

/// A daemon had been killed, and kubelet found the next one at once. It waits for up to two minutes before it tries a
/// path again at which nobody answered.
fn was_known_at_once(transcript: &Transcript) {
    let removed = transcript.logged("removed the socket of a killed instance");
    assert_eq!(removed.len(), 2, "of the registration and of the service");
    let begun = seconds(removed[0]);
    let registered = transcript.logged("registered with kubelet").into_iter();
    let mut registered = registered.filter(|log| log["driver"] == "onload.dev");
    let took = registered.find_map(|log| Some(seconds(log) - begun).filter(|took| *took > 0.0));
    assert!(took.unwrap() < 10.0, "{took:?}");
}

#[test]
fn kubelet_alone_took_slices_away_and_they_came_back_once() {
    let restarts = transcript!("22-auto-restarts");
    // Six were there. kubelet deleted them at its start, and they were written again.
    let all = restarts.watched_after("");
    assert_eq!(all, kinds(&[("ADDED", 12), ("DELETED", 6)]));
    // Then the daemon ended, was started, was killed, and was started.
    let ended = restarts.logged("ending");
    assert_eq!(ended.len(), 1);
    assert_eq!(restarts.watched_after(time(ended[0])), kinds(&[]));
    assert_eq!(restarts.logged("serving claims").len(), 3);
    was_known_at_once(&restarts);
    let rolled = transcript!("25-rolling-auto");
    assert_eq!(rolled.watched_after(""), kinds(&[("ADDED", 6)]));
    assert_eq!(rolled.logged("prepared").len(), 2);
    assert_eq!(rolled.logged("unprepared").len(), 2);
}

#[test]
fn nobody_was_ever_offered_a_class_by_both_interfaces() {
    let looks = |transcript: Transcript, at_least: usize| {
        let looks = transcript.offers();
        assert!(looks.len() >= at_least, "{}", looks.len());
        for counts in looks {
            assert!(counts.values().all(|ways| *ways <= 1), "{counts:?}");
            assert_eq!(counts["vfio"], 1, "{counts:?}");
        }
    };
    looks(transcript!("22-auto-restarts"), 4);
    looks(transcript!("25-rolling-auto"), 4);
    looks(transcript!("27-classes-away"), 4);
}

#[test]
fn classes_that_were_deleted_went_over_when_no_pod_had_them() {
    let transcript = transcript!("27-classes-away");
    let ways = |class: &str| -> Vec<String> {
        let logs = transcript.logged("who offers a class").into_iter();
        let of_class = logs.filter(|log| log["class"] == class);
        of_class.map(|log| log["by"].as_str().unwrap().to_owned()).collect()
    };
    let there_and_back = ["DRA", "nobody", "the device plugin", "nobody", "DRA"];
    assert_eq!(ways("rdma"), there_and_back);
    assert_eq!(ways("vfio"), there_and_back);
    // A pod had a function: that class went when the pod had ended.
    let logs = transcript.logged("who offers a class");
    let first = |class: &str| {
        let is_it = |log: &&&Value| log["class"] == class && log["by"] == "nobody";
        time(logs.iter().find(is_it).unwrap()).to_owned()
    };
    let unprepared = transcript.logged("unprepared");
    assert!(first("rdma").as_str() < time(unprepared[0]));
    assert!(first("vfio").as_str() > time(unprepared[0]));
}

#[test]
fn claims_were_prepared_again_after_the_node_had_restarted() {
    let transcript = transcript!("24-reboot");
    let boots = transcript.0.iter().filter_map(|line| match line {
        Line::Node(node) => node["bootID"].as_str(),
        _ => None,
    });
    assert_eq!(boots.collect::<BTreeSet<_>>().len(), 2);
    let mut answers: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for log in transcript.logged("prepared") {
        let uid = log["uid"].as_str().unwrap();
        answers.entry(uid).or_default().push(&log["cdi"]);
    }
    assert_eq!(answers.len(), 2, "a function, and a clock that two pods share");
    for (uid, answers) in answers {
        assert!(answers.len() >= 2, "{uid}: {answers:?}");
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{uid}");
    }
    was_known_at_once(&transcript);
    // Nothing was taken back in between: kubelet knows its claims from before.
    let last = transcript.logged("prepared").into_iter().map(time).max();
    let unprepared = transcript.logged("unprepared");
    assert_eq!(unprepared.len(), 2);
    assert!(unprepared.iter().all(|log| Some(time(log)) > last));
}

#[test]
fn a_claim_that_could_not_be_read_was_prepared_when_it_could() {
    let transcript = transcript!("29-api-away-for-the-driver");
    let refused = transcript.logged("not prepared");
    let reasons: Vec<&str> = refused.iter().map(|log| log["reason"].as_str().unwrap()).collect();
    assert!(reasons[0].contains("the API server cannot be reached"), "{reasons:?}");
    assert!(reasons[1].contains("has not answered within 30 s"), "{reasons:?}");
    let prepared = transcript.logged("prepared");
    assert_eq!(prepared.len(), 1);
    assert_eq!(prepared[0]["uid"], refused[0]["uid"]);
    // With the API server away from kubelet too, kubelet does not ask.
    let away = transcript!("23-api-away");
    assert!(away.logged("not prepared").is_empty());
    assert_eq!(away.logged("prepared").len(), 1);
}

#[test]
fn a_shared_claim_had_a_driver_after_the_operator_had_left_dra() {
    let transcript = transcript!("28-device-plugin-again");
    let starts = transcript.logged("serving claims");
    assert_eq!(starts.len(), 2);
    let unprepared = transcript.logged("unprepared");
    assert_eq!(unprepared.len(), 1);
    assert!(time(unprepared[0]) > time(starts[1]));
    let prepared = transcript.logged("prepared");
    assert_eq!(prepared[0]["uid"], unprepared[0]["uid"]);
    let is_over = |log: &&Value| log["class"] == "ptp" && log["by"] == "the device plugin";
    let over = transcript.logged("who offers a class");
    let over = over.iter().find(|log| is_over(log)).unwrap();
    assert!(time(over) > time(unprepared[0]));
}
