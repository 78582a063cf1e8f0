//! The publisher, and an API server made for tests.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use crate::support::PATIENCE;
use crate::support::api_server::{ApiServer, Asked, Gates};
use crate::support::driver::{Driver, api};
use crate::support::offers::{offer, unhealthy, vf, vfs};
use k8s_openapi::api::resource::v1::ResourceSlice;
use onload_core::class::Class;
use onload_host::offers::{Attribute, HostDevice};
use onload_kubernetes::dra::slices::UNHEALTHY;
use serde_json::{Value, json};

const NIC: &str = "n1-onload-dev-nic-0";
const VFIO: &str = "n1-onload-dev-vfio-0";
const PF: &str = "0000:81:00.0";

type Slices = BTreeMap<String, ResourceSlice>;

fn nic() -> HostDevice {
    offer(Class::Nic, "ens1")
}

fn devices(slices: &Slices) -> BTreeSet<String> {
    slices
        .values()
        .flat_map(|slice| slice.spec.devices.iter().flatten())
        .map(|device| device.name.clone())
        .collect()
}

fn has(slices: &Slices, names: &[&str]) -> bool {
    devices(slices) == names.iter().map(|name| (*name).to_owned()).collect()
}

fn is_tainted(slices: &Slices, name: &str) -> bool {
    let mut all = slices.values().flat_map(|slice| slice.spec.devices.iter().flatten());
    let device = all.find(|device| device.name == name);
    device.is_some_and(|device| device.taints.iter().flatten().any(|taint| taint.key == UNHEALTHY))
}

/// Whether all slices of a pool are of one generation, and as many as they say.
fn is_whole(slices: &Slices, pool: &str) -> bool {
    let of_pool: Vec<_> = slices
        .values()
        .filter(|slice| slice.spec.pool.name == pool)
        .map(|slice| &slice.spec.pool)
        .collect();
    let generations: BTreeSet<i64> = of_pool.iter().map(|pool| pool.generation).collect();
    let count = i64::try_from(of_pool.len()).unwrap();
    generations.len() == 1 && of_pool.iter().all(|pool| pool.resource_slice_count == count)
}

fn writes(server: &ApiServer) -> usize {
    server.counts().get("patch resourceslices").copied().unwrap_or(0)
}

#[tokio::test]
async fn nothing_is_asked_before_kubelet_knows_the_driver_and_five_things_then() {
    let server = ApiServer::start(Gates::ON).await;
    let driver = Driver::unregistered(&server, "n1", vec![nic()]);
    driver.offer(vec![nic(), offer(Class::Vfio, "0000:81:10.0")]);
    tokio::task::yield_now().await;
    assert_eq!(server.asked(), []);
    driver.register();
    server.until(|slices| has(slices, &["0000-81-10-0", "ens1"])).await;
    let slices = server.slices();
    assert_eq!(slices.keys().collect::<Vec<_>>(), [NIC, VFIO]);
    assert_eq!(slices[NIC].spec.pool.name, "n1/nic");
    assert_eq!(slices[NIC].spec.node_name.as_deref(), Some("n1"));
    assert_eq!(owner(&slices[NIC]), "uid-of-n1");
    let wanted = [
        ("get nodes", 1),
        ("list resourceclaims", 1),
        ("list resourceslices", 1),
        ("patch resourceslices", 2),
        ("patch resourceslices (dry run)", 1),
        ("watch resourceslices", 1),
    ]
    .map(|(what, times)| (what.to_owned(), times));
    assert_eq!(server.counts(), BTreeMap::from(wanted));
    driver.published_is(&[Class::Nic, Class::Vfio]).await;
    let nic = &slices[NIC].spec.devices.as_ref().unwrap()[0];
    assert_eq!(nic.allow_multiple_allocations, Some(true));
}

#[tokio::test]
async fn of_a_class_that_is_not_listed_the_devices_of_pools_and_of_resources_are_published() {
    let server = ApiServer::start(Gates::ON).await;
    let driver = Driver::start(&server, "n1", vec![nic()]);
    let vfio = |pools: &[&str]| HostDevice {
        pools: pools.iter().map(|pool| (*pool).to_owned()).collect(),
        ..offer(Class::Vfio, "0000:81:10.0")
    };
    let devices = || vec![nic(), vfio(&["fast"]), offer(Class::Vfio, "0000:81:10.1")];
    let config = "[kubernetes]\nclasses = [\"nic\"]\n";
    driver.offer_by(devices(), config);
    server.until(|slices| has(slices, &["ens1", "0000-81-10-0"])).await;
    let named = "[kubernetes.resources]\n\"amd.com/vf\" = { class = \"vfio\" }\n";
    driver.offer_by(devices(), &format!("{config}{named}"));
    server.until(|slices| has(slices, &["ens1", "0000-81-10-0", "0000-81-10-1"])).await;
    driver.offer_by(vec![nic(), vfio(&[])], config);
    server.until(|slices| has(slices, &["ens1"])).await;
}

#[tokio::test]
async fn a_driver_that_finds_its_slices_writes_nothing() {
    let server = ApiServer::start(Gates::ON).await;
    let devices = || vec![unhealthy(nic()), offer(Class::Vfio, "0000:81:10.0")];
    let first = Driver::start(&server, "n1", devices());
    server.until(|slices| slices.len() == 2).await;
    first.stop().await;
    assert_eq!(server.slices().len(), 2);
    server.forget_asked();
    let second = Driver::start(&server, "n1", devices());
    second.published_is(&[Class::Nic, Class::Vfio]).await;
    assert_eq!(writes(&server), 0);
}

#[tokio::test]
async fn what_kubelet_deletes_at_its_start_comes_back_in_a_newer_generation() {
    let server = ApiServer::start(Gates::ON).await;
    let mut host_devices = vfs(200);
    host_devices.push(nic());
    let _driver = Driver::start(&server, "n1", host_devices);
    let all = |slices: &Slices| devices(slices).len() == 201 && is_whole(slices, "n1/vfio");
    server.until(all).await;
    let before = server.slices()[VFIO].spec.pool.generation;
    server.forget_asked();
    server.delete_slices_of("n1");
    server.until(all).await;
    assert_eq!(server.slices()[VFIO].spec.pool.generation, before + 1);
    assert!(!server.counts().contains_key("list resourceslices"), "{:?}", server.counts());
}

/// The uid of the Node that a slice belongs to.
fn owner(slice: &ResourceSlice) -> &str {
    &slice.metadata.owner_references.as_ref().unwrap()[0].uid
}

#[tokio::test]
async fn slices_belong_to_the_node_as_it_was_registered_last() {
    let server = ApiServer::start(Gates::ON).await;
    let _driver = Driver::start(&server, "n1", vec![nic()]);
    server.until(|slices| has(slices, &["ens1"])).await;
    server.forget_asked();
    server.set_registered(None, "n1");
    // While there is no Node, nothing is written for the collector to delete.
    server.until_asked(|asked| asked.iter().any(|asked| asked.resource == "nodes")).await;
    assert_eq!(writes(&server), 0);
    server.set_registered(Some(2), "n1");
    server.until(|slices| has(slices, &["ens1"])).await;
    assert_eq!(owner(&server.slices()[NIC]), "uid-2-of-n1");
    assert_eq!(writes(&server), 1);
}

#[tokio::test]
async fn what_kubelet_deletes_at_its_start_belongs_to_the_same_node() {
    let server = ApiServer::start(Gates::ON).await;
    let _driver = Driver::start(&server, "n1", vec![nic()]);
    server.until(|slices| has(slices, &["ens1"])).await;
    server.forget_asked();
    server.delete_slices_of("n1");
    server.until(|slices| has(slices, &["ens1"])).await;
    assert_eq!(owner(&server.slices()[NIC]), "uid-of-n1");
    // Which is asked once, and not again with each change of a device.
    assert_eq!(server.counts()["get nodes"], 1);
}

#[tokio::test]
async fn what_somebody_else_writes_or_leaves_is_put_right() {
    let server = ApiServer::start(Gates::ON).await;
    let stray = |name: &str, node: &str| {
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
            "spec": {"driver": "onload.dev", "nodeName": node, "devices": [],
                "pool": {"name": "old", "generation": 1, "resourceSliceCount": 1}}})
    };
    server.put_slice("old", stray("old", "n1"));
    server.put_slice("other", stray("other", "n2"));
    let _driver = Driver::start(&server, "n1", vec![nic()]);
    let only = |slices: &Slices| {
        slices.keys().eq(["other", NIC].iter().rev().copied().collect::<BTreeSet<_>>())
    };
    server.until(only).await;
    let mut changed = serde_json::to_value(&server.slices()[NIC]).unwrap();
    changed["spec"]["devices"] = json!([]);
    server.put_slice(NIC, changed);
    server.until(|slices| has(slices, &["ens1"])).await;
    server.delete_slice(NIC);
    server.until(|slices| has(slices, &["ens1"])).await;
    server.put_slice("late", stray("late", "n1"));
    server.until(only).await;
}

#[tokio::test]
async fn a_server_without_the_features_gets_devices_that_need_none() {
    let server = ApiServer::start(Gates::OFF).await;
    let family = || vec![offer(Class::Vfio, PF), vf("0000:81:00.1", PF)];
    let mut host_devices = family();
    host_devices.extend([offer(Class::Nic, "ens1"), unhealthy(offer(Class::Nic, "ens2"))]);
    let _driver = Driver::start(&server, "n1", host_devices);
    server.until(|slices| slices.contains_key(NIC) && slices.contains_key(VFIO)).await;
    let slots: Vec<String> = (0..10).map(|slot| format!("ens1-slot-{slot}")).collect();
    let mut wanted: BTreeSet<String> = slots.into_iter().collect();
    wanted.insert("0000-81-00-1".to_owned());
    assert_eq!(devices(&server.slices()), wanted);
    // Not for a moment was there more.
    let is_whole_function = |slice: &ResourceSlice| {
        slice.spec.devices.iter().flatten().any(|device| device.name == "0000-81-00-0")
    };
    assert!(!server.was_ever(is_whole_function));
}

#[tokio::test]
async fn a_server_that_refuses_any_slice_is_not_taken_for_one_without_features() {
    let server = ApiServer::start(Gates::ON).await;
    server.fail("patch", 422, Some(3600));
    let _driver = Driver::start(&server, "n1", vec![nic()]);
    server.until_asked(|_| server.has_failed()).await;
    tokio::task::yield_now().await;
    assert!(server.slices().is_empty());
    assert!(!server.counts().contains_key("list resourceslices"));
}

#[tokio::test]
async fn features_that_the_server_loses_are_done_without() {
    let server = ApiServer::start(Gates::ON).await;
    let driver = Driver::start(&server, "n1", vec![nic()]);
    server.until(|slices| has(slices, &["ens1"])).await;
    server.set_gates(Gates { consumable: false, ..Gates::ON });
    driver.offer(vec![nic(), offer(Class::Nic, "ens2")]);
    server.until(|slices| devices(slices).len() == 20 && is_whole(slices, "n1/nic")).await;
}

#[tokio::test]
async fn features_that_the_server_gains_are_used_when_the_watch_begins_anew() {
    let server = ApiServer::start(Gates::OFF).await;
    let host_devices = vec![nic(), unhealthy(offer(Class::Nic, "ens2"))];
    let _driver = Driver::start(&server, "n1", host_devices);
    server.until(|slices| devices(slices).len() == 10).await;
    server.set_gates(Gates::ON);
    server.forget_asked();
    server.end_watches();
    server.until(|slices| has(slices, &["ens1", "ens2"])).await;
    assert!(is_tainted(&server.slices(), "ens2"));
    let counts = server.counts();
    assert_eq!(counts["patch resourceslices (dry run)"], 1, "{counts:?}");
    assert!(!counts.contains_key("list resourceslices"), "{counts:?}");
}

#[tokio::test]
async fn slots_stay_devices_if_the_server_gains_features_while_a_claim_holds_one() {
    let server = ApiServer::start(Gates::OFF).await;
    let driver = Driver::start(&server, "n1", vec![nic()]);
    server.until(|slices| devices(slices).len() == 10).await;
    server.put_claim("default", "c", claim("n1/nic", "ens1-slot-3"));
    server.set_gates(Gates::ON);
    server.forget_asked();
    // Kubelet starts in the meantime.
    server.end_watches();
    server.delete_slices_of("n1");
    let is_asked = |asked: &[Asked]| asked.iter().any(|asked| asked.resource == "resourceclaims");
    server.until_asked(is_asked).await;
    // Taints are used without waiting for the claim.
    driver.offer(vec![unhealthy(nic())]);
    server.until(|slices| is_tainted(slices, "ens1-slot-3")).await;
    assert!(!server.was_ever(|slice| {
        slice.spec.devices.iter().flatten().any(|device| device.name == "ens1")
    }));
}

#[tokio::test]
async fn a_watch_that_begins_anew_at_a_server_without_more_features_changes_nothing() {
    let server = ApiServer::start(Gates::OFF).await;
    let _driver = Driver::start(&server, "n1", vec![nic()]);
    server.until(|slices| devices(slices).len() == 10).await;
    server.forget_asked();
    server.end_watches();
    server.until_asked(|asked| asked.iter().any(|asked| asked.is_dry)).await;
    tokio::task::yield_now().await;
    let asked =
        ["patch resourceslices (dry run)", "watch resourceslices"].map(|what| (what.to_owned(), 1));
    assert_eq!(server.counts(), BTreeMap::from(asked));
}

/// A claim that a device is allocated to.
fn claim(pool: &str, device: &str) -> Value {
    let result = json!({"driver": "onload.dev", "pool": pool, "device": device, "request": "r"});
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default", "uid": "1"}, "spec": {},
        "status": {"allocation": {"devices": {"results": [result]}}}})
}

#[tokio::test]
async fn slots_stay_devices_while_a_claim_holds_one() {
    let server = ApiServer::start(Gates::OFF).await;
    let driver = Driver::start(&server, "n1", vec![nic()]);
    server.until(|slices| devices(slices).len() == 10).await;
    driver.stop().await;
    server.set_gates(Gates::ON);
    server.put_claim("default", "of-another", claim("n2/nic", "ens1-slot-3"));
    server.put_claim("default", "c", claim("n1/nic", "ens1-slot-3"));
    server.forget_asked();
    let driver = Driver::start(&server, "n1", vec![nic()]);
    driver.published_is(&[Class::Nic]).await;
    assert_eq!(devices(&server.slices()).len(), 10);
    assert_eq!(server.counts()["list resourceclaims"], 1);
    driver.stop().await;
    server.delete_claim("default", "c");
    let _driver = Driver::start(&server, "n1", vec![nic()]);
    server.until(|slices| has(slices, &["ens1"])).await;
}

#[tokio::test]
async fn what_kubelet_deletes_comes_back_while_names_wait_for_a_claim() {
    let server = ApiServer::start(Gates::OFF).await;
    let driver = Driver::start(&server, "n1", vec![nic()]);
    server.until(|slices| devices(slices).len() == 10).await;
    driver.stop().await;
    server.set_gates(Gates::ON);
    server.put_claim("default", "c", claim("n1/nic", "ens1-slot-3"));
    // The claim is looked at again in minutes: longer than a test waits.
    let driver = Driver::start(&server, "n1", vec![nic()]);
    driver.published_is(&[Class::Nic]).await;
    server.delete_slices_of("n1");
    server.until(|slices| devices(slices).len() == 10).await;
}

#[tokio::test]
async fn a_node_that_starts_anew_after_its_cluster_changed_asks_what_claims_hold() {
    let slots = |slices: &Slices| devices(slices).len() == 10;
    let whole = |slices: &Slices| has(slices, &["ens1"]);
    for (gates, held, is_right) in [
        (Gates::ON, "ens1-slot-3", &slots as &dyn Fn(&Slices) -> bool),
        (Gates::ON, "ens1", &whole),
        (Gates::OFF, "ens1-slot-3", &slots),
        // One that is shared no longer, or is gone.
        (Gates::OFF, "ens2", &slots),
    ] {
        let server = ApiServer::start(gates).await;
        // Neither of another node nor of another driver.
        let other = if gates.consumable { "ens1-slot-3" } else { "ens1" };
        server.put_claim("default", "of-another", claim("n2/nic", other));
        let mut of_driver = claim("n1/nic", other);
        of_driver["status"]["allocation"]["devices"]["results"][0]["driver"] = "gpu.x.io".into();
        server.put_claim("default", "of-driver", of_driver);
        server.put_claim("default", "c", claim("n1/nic", held));
        let driver = Driver::start(&server, "n1", vec![nic()]);
        driver.published_is(&[Class::Nic]).await;
        assert!(is_right(&server.slices()), "{held}: {:?}", devices(&server.slices()));
        // Nothing more is asked when kubelet starts under the daemon.
        server.forget_asked();
        server.delete_slices_of("n1");
        server.until(is_right).await;
        assert!(!server.counts().contains_key("list resourceclaims"));
    }
}

#[tokio::test]
async fn a_node_that_starts_anew_withholds_what_claims_share_if_nobody_counts_any_more() {
    let server = ApiServer::start(Gates::OFF).await;
    server.put_claim("default", "c", claim("n1/nic", "ens1"));
    let devices = vec![nic(), offer(Class::Vfio, "0000:81:10.0")];
    let driver = Driver::start(&server, "n1", devices.clone());
    driver.published_is(&[Class::Vfio]).await;
    driver.stop().await;
    server.delete_claim("default", "c");
    let driver = Driver::start(&server, "n1", devices);
    driver.published_is(&[Class::Nic, Class::Vfio]).await;
}

#[tokio::test]
async fn shared_devices_are_withdrawn_while_claims_hold_them_if_nobody_counts_any_more() {
    let server = ApiServer::start(Gates::ON).await;
    let driver = Driver::start(&server, "n1", vec![nic()]);
    server.until(|slices| has(slices, &["ens1"])).await;
    server.put_claim("default", "c", claim("n1/nic", "ens1"));
    server.set_gates(Gates::OFF);
    driver.offer(vec![nic(), offer(Class::Nic, "ens2")]);
    server.until(Slices::is_empty).await;
    driver.stop().await;
    server.delete_claim("default", "c");
    let _driver = Driver::start(&server, "n1", vec![nic()]);
    server.until(|slices| devices(slices).len() == 10).await;
}

#[tokio::test]
async fn whatever_the_server_refuses_is_tried_again() {
    let server = ApiServer::start(Gates::ON).await;
    let driver = Driver::start(&server, "n1", vec![nic()]);
    server.until(|slices| has(slices, &["ens1"])).await;
    let mut host_devices = vec![nic()];
    for (at, status) in [403, 409, 422, 429, 500, 503].into_iter().enumerate() {
        server.fail("patch", status, (status == 429).then_some(1));
        host_devices.push(offer(Class::Nic, &format!("ens{}", at + 2)));
        driver.offer(host_devices.clone());
        server.until(|slices| devices(slices).len() == host_devices.len()).await;
        assert!(server.has_failed());
    }
    let metrics = driver.metrics.render();
    let failed = "onload_kubernetes_api_requests_total{verb=\"PATCH\",outcome=\"error\"} 6";
    assert!(metrics.contains(failed), "{metrics}");
}

#[tokio::test]
async fn a_server_that_wants_to_be_left_alone_is_whatever_changes() {
    let server = ApiServer::start(Gates::ON).await;
    let driver = Driver::start(&server, "n1", vec![nic()]);
    server.until(|slices| has(slices, &["ens1"])).await;
    server.fail("patch", 429, Some(3600));
    driver.offer(vec![unhealthy(nic())]);
    server.until_asked(|_| server.has_failed()).await;
    server.forget_asked();
    driver.offer(vec![nic(), offer(Class::Nic, "ens2")]);
    driver.classes(&[Class::Vfio]);
    for times in 1..=2 {
        server.end_watches();
        server.until_asked(|asked| asked.len() >= times).await;
    }
    let watches = BTreeMap::from([("watch resourceslices".to_owned(), 2)]);
    assert_eq!(server.counts(), watches);
}

#[tokio::test]
async fn each_request_at_the_start_may_fail() {
    for (verb, status) in
        [("get", 500), ("patch", 403), ("list", 500), ("list", 410), ("watch", 403)]
    {
        let server = ApiServer::start(Gates::ON).await;
        server.fail(verb, status, None);
        let _driver = Driver::start(&server, "n1", vec![nic()]);
        server.until(|slices| has(slices, &["ens1"])).await;
        assert!(server.has_failed());
    }
}

#[tokio::test]
async fn rights_that_come_later_are_enough() {
    let server = ApiServer::start(Gates::ON).await;
    server.take_right("create", "resourceslices");
    let _driver = Driver::start(&server, "n1", vec![nic()]);
    server.until_asked(|asked| asked.len() >= 4).await;
    assert!(server.slices().is_empty());
    server.give_right("create", "resourceslices");
    server.until(|slices| has(slices, &["ens1"])).await;
}

#[tokio::test]
async fn a_token_that_was_replaced_is_read_again() {
    let server = ApiServer::start(Gates::ON).await;
    let driver = Driver::start(&server, "n1", vec![nic()]);
    server.until(|slices| has(slices, &["ens1"])).await;
    server.replace_token("token-2");
    server.forget_asked();
    driver.offer(vec![nic(), offer(Class::Nic, "ens2")]);
    server.until_asked(|asked| !asked.is_empty()).await;
    assert!(has(&server.slices(), &["ens1"]));
    fs::write(&server.token, "token-2").unwrap();
    server.until(|slices| has(slices, &["ens1", "ens2"])).await;
}

#[tokio::test]
async fn a_watch_that_ends_goes_on_without_a_list() {
    let server = ApiServer::start(Gates::ON).await;
    let _driver = Driver::start(&server, "n1", vec![nic()]);
    server.until(|slices| has(slices, &["ens1"])).await;
    server.until_asked(|asked| asked.iter().any(|asked| asked.verb == "watch")).await;
    server.forget_asked();
    server.end_watches();
    // What happened meanwhile is told.
    server.delete_slices_of("n1");
    server.until(|slices| has(slices, &["ens1"])).await;
    let counts = server.counts();
    assert_eq!(counts["watch resourceslices"], 1);
    assert!(!counts.contains_key("list resourceslices"), "{counts:?}");
}

#[tokio::test]
async fn a_watch_from_too_long_ago_begins_with_a_list() {
    let server = ApiServer::start(Gates::ON).await;
    let _driver = Driver::start(&server, "n1", vec![nic()]);
    server.until(|slices| has(slices, &["ens1"])).await;
    server.forget_asked();
    server.delete_slices_of("n1");
    server.compact();
    server.end_watches();
    server.until(|slices| has(slices, &["ens1"])).await;
    server.until_asked(|asked| asked.iter().any(|asked| asked.verb == "list")).await;
}

#[tokio::test]
async fn nothing_is_written_while_kubelet_does_not_know_the_driver() {
    let server = ApiServer::start(Gates::ON).await;
    let driver = Driver::start(&server, "n1", vec![nic()]);
    server.until(|slices| has(slices, &["ens1"])).await;
    driver.unregister();
    let gone = async {
        while server.watches() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();
    server.forget_asked();
    server.delete_slices_of("n1");
    driver.offer(vec![nic(), offer(Class::Nic, "ens2")]);
    tokio::task::yield_now().await;
    assert_eq!(server.asked(), []);
    driver.register();
    server.until(|slices| has(slices, &["ens1", "ens2"])).await;
}

#[tokio::test]
async fn a_class_that_is_offered_otherwise_is_withdrawn() {
    let server = ApiServer::start(Gates::ON).await;
    let driver = Driver::start(&server, "n1", vec![nic(), offer(Class::Vfio, "0000:81:10.0")]);
    server.until(|slices| slices.len() == 2).await;
    driver.classes(&[Class::Vfio]);
    server.until(|slices| slices.keys().eq([VFIO])).await;
    driver.classes(&[Class::Vfio, Class::Nic]);
    server.until(|slices| slices.len() == 2).await;
}

#[tokio::test]
async fn slices_of_an_instance_before_stay_until_it_is_decided_who_offers_their_class() {
    let server = ApiServer::start(Gates::ON).await;
    let devices = || vec![nic(), offer(Class::Vfio, "0000:81:10.0")];
    let first = Driver::start(&server, "n1", devices());
    server.until(|slices| slices.len() == 2).await;
    first.stop().await;
    let before = server.slices();
    server.forget_asked();
    let second = Driver::undecided(&server, "n1", devices());
    second.register();
    let watching = async {
        while server.watches() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, watching).await.unwrap();
    second.decide(&[Class::Vfio], &[Class::Nic]);
    second.published_is(&[Class::Vfio]).await;
    assert_eq!(server.slices(), before, "nothing was deleted or written");
    second.decide(&[Class::Vfio], &[]);
    server.until(|slices| slices.keys().eq([VFIO])).await;
}

#[tokio::test]
async fn a_driver_writes_slices_of_its_own_node_alone() {
    let server = ApiServer::start(Gates::ON).await;
    server.bind("n2");
    let _stranger = Driver::start(&server, "n1", vec![nic()]);
    let _own = Driver::start(&server, "n2", vec![nic()]);
    server.until(|slices| slices.contains_key("n2-onload-dev-nic-0")).await;
    assert_eq!(server.slices().len(), 1);
}

#[tokio::test]
async fn a_link_that_flaps_is_one_write_an_interval_and_its_last_state_is_told() {
    const INTERVAL: Duration = Duration::from_millis(300);
    let server = ApiServer::start(Gates::ON).await;
    let begun = Instant::now();
    let driver = Driver::writing_each(&server, "n1", vec![nic()], INTERVAL);
    server.until(|slices| has(slices, &["ens1"])).await;
    for flap in 0..40 {
        driver.offer(vec![if flap % 2 == 0 { unhealthy(nic()) } else { nic() }]);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    driver.offer(vec![unhealthy(nic()), offer(Class::Nic, "ens2")]);
    server.until(|slices| has(slices, &["ens1", "ens2"])).await;
    assert!(is_tainted(&server.slices(), "ens1"));
    let intervals = begun.elapsed().as_millis() / INTERVAL.as_millis();
    let writes = u128::try_from(writes(&server)).unwrap();
    assert!((2..=intervals + 1).contains(&writes), "{writes} in {intervals} intervals");
}

#[tokio::test]
async fn a_pool_that_was_just_written_waits_and_others_do_not() {
    let server = ApiServer::start(Gates::ON).await;
    let hour = Duration::from_secs(3600);
    let driver = Driver::writing_each(&server, "n1", vec![nic()], hour);
    server.until(|slices| has(slices, &["ens1"])).await;
    driver.offer(vec![unhealthy(nic()), offer(Class::Vfio, "0000:81:10.0")]);
    server.until(|slices| has(slices, &["0000-81-10-0", "ens1"])).await;
    assert!(!is_tainted(&server.slices(), "ens1"));
    assert_eq!(writes(&server), 2);
}

#[tokio::test]
async fn a_pool_that_waits_to_be_written_keeps_the_slices_that_it_counts() {
    let server = ApiServer::start(Gates::ON).await;
    let hour = Duration::from_secs(3600);
    let driver = Driver::writing_each(&server, "n1", vfs(200), hour);
    driver.published_is(&[Class::Vfio]).await;
    let mut fewer = vfs(100);
    fewer.push(nic());
    driver.offer(fewer);
    driver.published_is(&[Class::Nic, Class::Vfio]).await;
    let slices = server.slices();
    assert_eq!(devices(&slices).len(), 201);
    assert!(is_whole(&slices, "n1/vfio"), "{:?}", slices.keys());
}

#[tokio::test]
async fn a_class_that_the_server_refuses_keeps_no_other_from_being_written_or_withdrawn() {
    let server = ApiServer::start(Gates::ON).await;
    let refused = || {
        let mut refused = nic();
        refused.attributes.insert("no identifier", Attribute::Int(1));
        refused
    };
    let vfio = || offer(Class::Vfio, "0000:81:10.0");
    let driver = Driver::start(&server, "n1", vec![nic(), offer(Class::Rdma, "mlx5_0")]);
    server.until(|slices| has(slices, &["ens1", "mlx5-0"])).await;
    let before = server.slice(NIC);
    driver.offer(vec![refused(), offer(Class::Nic, "ens2"), vfio()]);
    server.until(|slices| has(slices, &["0000-81-10-0", "ens1"])).await;
    assert_eq!(server.slice(NIC), before);
    driver.offer(vec![nic(), offer(Class::Nic, "ens2"), vfio()]);
    server.until(|slices| has(slices, &["0000-81-10-0", "ens1", "ens2"])).await;
}

#[tokio::test]
async fn a_webhook_that_changes_slices_is_not_fought() {
    let server = ApiServer::start(Gates::ON).await;
    server.set_webhook(|slice| {
        slice["spec"]["devices"][0]["attributes"]["x.io/added"] = json!({"int": 1});
    });
    let driver = Driver::start(&server, "n1", vec![nic()]);
    server.until(|slices| has(slices, &["ens1"])).await;
    server.forget_asked();
    driver.offer(vec![nic(), offer(Class::Nic, "ens2")]);
    server.until(|slices| has(slices, &["ens1", "ens2"])).await;
    assert_eq!(writes(&server), 1);
}

#[tokio::test]
async fn four_thousand_devices_are_there_and_one_change_among_them_too() {
    let server = ApiServer::start(Gates::ON).await;
    let mut host_devices = vfs(4096);
    let driver = Driver::start(&server, "n1", host_devices.clone());
    for (slices, generation) in [(32, 1), (64, 2)] {
        let measures = [
            format!("onload_kubernetes_slices {slices}\n"),
            "onload_kubernetes_published_devices{class=\"vfio\"} 4096\n".to_owned(),
        ];
        let is_told = |text: &str| measures.iter().all(|line| text.contains(line));
        driver.until_measured(is_told).await;
        let there = server.slices();
        assert_eq!((there.len(), devices(&there).len()), (slices, 4096));
        assert!(is_whole(&there, "n1/vfio"));
        assert_eq!(there[VFIO].spec.pool.generation, generation);
        assert_eq!(is_tainted(&there, "0000-08-02-1"), generation == 2);
        let changed =
            host_devices.iter_mut().find(|device| device.name.as_str() == "0000:08:02.1").unwrap();
        *changed = unhealthy(changed.clone());
        driver.offer(host_devices.clone());
    }
}

#[tokio::test]
async fn a_slow_server_gets_what_is_so_at_last() {
    let server = ApiServer::start(Gates::ON).await;
    server.set_delay(Duration::from_millis(300));
    let driver = Driver::start(&server, "n1", vec![nic()]);
    server.until(|slices| has(slices, &["ens1"])).await;
    for number in 2..30 {
        driver.offer(vec![nic(), offer(Class::Nic, &format!("ens{number}"))]);
    }
    server.until(|slices| has(slices, &["ens1", "ens29"])).await;
    // What was so in between was not written.
    assert!(writes(&server) <= 3, "{}", writes(&server));
}

#[tokio::test]
async fn a_node_that_the_server_does_not_have_is_waited_for() {
    let server = ApiServer::start(Gates::ON).await;
    let _driver = Driver::start(&server, "gone", vec![nic()]);
    server.until_asked(|asked| asked.len() >= 2).await;
    let asked = server.asked();
    assert!(asked.iter().all(|asked| asked.resource == "nodes"), "{asked:?}");
}

#[tokio::test]
async fn a_claim_is_read_by_its_name_and_one_that_is_not_there_is_none() {
    let server = ApiServer::start(Gates::ON).await;
    server.put_claim("default", "c", claim("n1/nic", "ens1"));
    let api = api(&server.kubeconfig, &std::sync::Arc::default());
    let found = api.get_claim("default", "c").await.unwrap().unwrap();
    assert_eq!(found.metadata.uid.as_deref(), Some("1"));
    assert!(api.get_claim("default", "other").await.unwrap().is_none());
    assert!(api.get_claim("../nodes", "n1").await.unwrap().is_none());
    for number in 0..450 {
        server.put_claim(
            "many",
            &format!("c{number}"),
            claim("n1/rdma", &format!("mlx5-{number}")),
        );
    }
    let held = api.list_claimed_devices(&"n1".parse().unwrap()).await.unwrap();
    assert_eq!(held[&Class::Rdma].len(), 450);
    assert_eq!(held[&Class::Nic].len(), 1);
    assert!(api.list_claimed_devices(&"n2".parse().unwrap()).await.unwrap().is_empty());
    server.take_right("get", "resourceclaims");
    let error = api.get_claim("default", "c").await.unwrap_err().to_string();
    assert!(
        error.starts_with("reading ResourceClaim default/c: the API server answered 403"),
        "{error}"
    );
    assert!(error.contains("compare the ClusterRole"), "{error}");
}
