//! The driver is given what a real cluster gave it, and says what it said then (`recorded/dra-1.36.2/README.md`).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use k8s_openapi::api::resource::v1::ResourceSlice;
use onload_core::class::Class;
use onload_kubernetes::dra::names::{DraNames, NodeName};
use onload_kubernetes::dra::slices::{Features, Pool, Wanted, lost, probe};
use serde::Deserialize;
use serde_json::Value;
use support::dra_kubelet::{Registered, claim};
use support::offers::captured;
use support::{ClaimServer, Daemon, KubeletDir, TestHost};

const CAPTURED: &str = "debian13-2numa-onload-rxe-vfio";
/// The scenario in which a specification was taken away.
const SPEC_GONE: &str = "13-spec-gone";

/// A claim as the API server had it, and what the driver made of it.
#[derive(Deserialize)]
struct Recorded {
    /// The scenario.
    of: String,
    claim: Value,
    /// The CDI devices of the answer, with commas.
    cdi: Option<String>,
    refusal: Option<String>,
}

impl Recorded {
    fn all() -> Vec<Recorded> {
        let text = include_str!("recorded/dra-1.36.2/claims.jsonl");
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
            cdi: device.cdi_device_ids,
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

/// A device of an answer.
struct Given {
    request: String,
    pool: String,
    device: String,
    share: Option<String>,
    cdi: Vec<String>,
}

struct Node {
    host: TestHost,
    _api: ClaimServer,
    _daemon: Daemon,
    driver: Registered,
}

impl Node {
    async fn with(claims: &[Recorded]) -> Node {
        let host = TestHost::captured(CAPTURED);
        let api = ClaimServer::start().await;
        for recorded in claims {
            api.put(recorded.claim.clone());
        }
        let kubelet = KubeletDir::make(&host.kubelet_dir());
        let kubeconfig = api.kubeconfig(&host.kubelet_dir());
        let daemon = Daemon::with(&host, |command| {
            command.arg("--kubelet-dir").arg(&kubelet.0);
            command.arg("--kubeconfig").arg(kubeconfig);
            command.env("ONLOAD_KUBERNETES_NODE_NAME", "n1");
        });
        let driver = kubelet.driver().await;
        Node {
            host,
            _api: api,
            _daemon: daemon,
            driver,
        }
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
                assert_eq!(Some(cdi.join(",")), recorded.cdi, "{name}");
                let told = devices
                    .into_iter()
                    .map(|device| (device.request, device.pool, device.device, device.share));
                assert_eq!(told.collect::<Vec<_>>(), recorded.results(), "{name}");
                given += 1;
            }
            (Err(said), Some(refusal)) => {
                assert_eq!(said, *refusal, "{name}");
                refused += 1;
            }
            (answer, _) => panic!("{name}: {}", answer.is_ok()),
        }
    }
    assert!(given > 20 && refused > 7, "{given} {refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_specification_was_taken_away_is_refused_as_it_was() {
    let mut claims = Recorded::all();
    claims.retain(|recorded| recorded.of == SPEC_GONE);
    let node = Node::with(&claims).await;
    fs::remove_file(node.host.spec_dir().join("onload.dev-rdma.json")).unwrap();
    let said = claims[0].prepare(&node.driver).await.err();
    assert_eq!(said, claims[0].refusal);
}

fn recorded_slices(text: &str) -> Vec<ResourceSlice> {
    let slices = text.lines().map(|line| serde_json::from_str(line).unwrap());
    slices.collect()
}

/// What the server stored is what the slices module makes of the captured host.
fn is_what_was_stored(stored: &[ResourceSlice], features: Features) {
    let node: NodeName = "n1".parse().unwrap();
    let offers = captured(CAPTURED);
    let names = DraNames::of(node.as_str(), &offers);
    let owners = stored[0].metadata.owner_references.clone().unwrap();
    let wanted = Wanted {
        node: &node,
        uid: &owners[0].uid,
        names: &names,
        offers: &offers,
        slots: 10,
        unsteady: &BTreeSet::new(),
    };
    let mut made = BTreeMap::new();
    for class in Class::ALL {
        let pool = Pool::of(wanted, class, features);
        let slices = (0..pool.slices()).map(|at| pool.slice(at, 1));
        made.extend(slices.map(|slice| (slice.metadata.name.clone(), slice)));
    }
    assert_eq!(made.len(), stored.len());
    for stored in stored {
        let made = &made[&stored.metadata.name];
        assert_eq!(made.spec, stored.spec);
        assert_eq!(lost(&made.spec, &stored.spec), (Features::NONE, false));
        assert_eq!(
            made.metadata.owner_references,
            stored.metadata.owner_references
        );
    }
}

#[test]
fn a_real_server_stores_slices_as_they_are_made() {
    let stored = recorded_slices(include_str!("recorded/dra-1.36.2/slices.jsonl"));
    is_what_was_stored(&stored, Features::ALL);
}

#[test]
fn a_real_server_without_the_features_stores_slices_as_they_are_made_for_it() {
    let stored = recorded_slices(include_str!("recorded/dra-1.36.2/slices-without.jsonl"));
    is_what_was_stored(&stored, Features::NONE);
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
    let text = include_str!("recorded/dra-1.36.2/probes.jsonl");
    let probed = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let probed: Vec<Probed> = probed.collect();
    for Probed { off, answer } in &probed {
        let is_off = |gate: &str| off.iter().any(|off| off == gate);
        let wanted = Features {
            counters: is_off("DRAPartitionableDevices"),
            sharing: is_off("DRAConsumableCapacity"),
            taints: is_off("DRADeviceTaints"),
        };
        let owners = answer.metadata.owner_references.clone().unwrap();
        let asked = probe(&"n1".parse().unwrap(), &owners[0].uid);
        assert_eq!(lost(&asked.spec, &answer.spec), (wanted, false), "{off:?}");
    }
    assert_eq!(probed.len(), 4);
}
