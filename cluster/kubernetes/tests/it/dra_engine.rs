//! Who offers which class, decided with an API server made for tests.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::PATIENCE;
use crate::support::api_server::{ApiServer, Asked, Gates, TOKEN};
use crate::support::driver::api;
use crate::support::kubelet_files::ListeningKubelet;
use crate::support::offers::{offer, snapshot};
use onload_core::class::Class;
use onload_host::offers::HostDevice;
use onload_kubernetes::dra::classes::DeviceClasses;
use onload_kubernetes::dra::engine::Engine;
use onload_kubernetes::dra::{DraClasses, DraRegistration};
use onload_kubernetes::snapshot::KubernetesSnapshot;
use serde_json::{Value, json};
use tokio::sync::watch;

/// Long enough that it never passes in a test.
const NEVER: Duration = Duration::from_secs(3600);
/// How soon a server that refuses is asked again.
const SOON: Duration = Duration::from_millis(50);

struct Deciding {
    snapshots: watch::Sender<Arc<KubernetesSnapshot>>,
    registered: watch::Sender<DraRegistration>,
    dra: watch::Receiver<DraClasses>,
    plugin: watch::Receiver<BTreeSet<Class>>,
    kubelet: ListeningKubelet,
}

fn offers() -> Vec<HostDevice> {
    vec![offer(Class::Nic, "ens1"), offer(Class::Vfio, "0000:81:10.0")]
}

impl Deciding {
    fn start(server: &ApiServer, config: &str, grace: Duration) -> Deciding {
        Deciding::with_claims(server, config, grace, Path::new("/nonexistent"))
    }

    /// With specifications of claims in a directory.
    fn with_claims(server: &ApiServer, config: &str, grace: Duration, spec_dir: &Path) -> Deciding {
        Deciding::beside(ListeningKubelet::start(&[]), server, config, grace, spec_dir)
    }

    /// Beside a kubelet.
    fn beside(
        kubelet: ListeningKubelet,
        server: &ApiServer,
        config: &str,
        grace: Duration,
        spec_dir: &Path,
    ) -> Deciding {
        let (snapshots, of_snapshots) = watch::channel(snapshot(offers(), config));
        let (registered, of_registered) = watch::channel(DraRegistration::default());
        let (dra_sender, dra) = watch::channel(DraClasses::default());
        let (plugin_sender, plugin) = watch::channel(BTreeSet::new());
        let engine = Engine {
            api: api(&server.kubeconfig, &Arc::default()),
            node: "n1".parse().unwrap(),
            snapshots: of_snapshots,
            registered: of_registered,
            kubelet: kubelet.files(),
            device_classes: watch::channel(DeviceClasses::default()).0,
            spec_dir: spec_dir.to_owned(),
            grace,
            settle: Duration::ZERO,
            refused: SOON,
            has_offered: false,
        };
        tokio::spawn(engine.run(dra_sender, plugin_sender));
        Deciding { snapshots, registered, dra, plugin, kubelet }
    }

    fn register(&self) {
        self.registered.send_modify(|registered| {
            registered.now = true;
        });
    }

    async fn restart_kubelet(&self) {
        self.registered.send_modify(|registered| registered.now = false);
        tokio::time::sleep(SOON).await;
        self.register();
        tokio::time::sleep(SOON).await;
    }

    fn look_again(&self, config: &str) {
        self.snapshots.send_replace(snapshot(offers(), config));
    }

    /// Waits until the two have these classes. No class is ever with both.
    async fn until(&mut self, dra: &[Class], plugin: &[Class]) {
        let set = |classes: &[Class]| -> BTreeSet<Class> { classes.iter().copied().collect() };
        let (dra, plugin) = (set(dra), set(plugin));
        let wait = async {
            loop {
                let now = (
                    self.dra.borrow_and_update().classes.clone(),
                    self.plugin.borrow_and_update().clone(),
                );
                assert!(now.0.is_disjoint(&now.1), "{now:?}");
                if now == (dra.clone(), plugin.clone()) {
                    return;
                }
                tokio::select! {
                    changed = self.dra.changed() => changed.unwrap(),
                    changed = self.plugin.changed() => changed.unwrap(),
                }
            }
        };
        if tokio::time::timeout(PATIENCE, wait).await.is_err() {
            panic!("DRA {:?}, device plugin {:?}", self.dra.borrow(), self.plugin.borrow());
        }
    }
}

/// A class as a server keeps it whose feature is on.
fn class(server: &ApiServer, class: Class, extended: Option<&str>) {
    let mut spec = json!({"selectors": []});
    if let Some(extended) = extended {
        spec["extendedResourceName"] = extended.into();
    }
    let name = format!("{class}.onload.dev");
    let object = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
        "metadata": {"name": name}, "spec": spec});
    server.put_class(&name, object);
}

/// A server as of 1.36.
async fn new_server() -> ApiServer {
    let server = ApiServer::start(Gates::ON).await;
    class(&server, Class::Nic, Some("onload.dev/nic"));
    class(&server, Class::Vfio, Some("onload.dev/vfio"));
    server
}

fn pod(resource: &str, by_dra: bool) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": {"limits": {}}}]},
        "status": {"phase": "Running"}});
    pod["spec"]["containers"][0]["resources"]["limits"][resource] = "1".into();
    if by_dra {
        pod["status"]["extendedResourceClaimStatus"] = json!({"resourceClaimName": "c", "requestMappings": [
            {"containerName": "c", "requestName": "r", "resourceName": resource}]});
    }
    pod
}

fn claim(pool: &str) -> Value {
    let result = json!({"driver": "onload.dev", "pool": pool, "device": "ens1", "request": "r"});
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default", "uid": "1"}, "spec": {},
        "status": {"allocation": {"devices": {"results": [result]}}}})
}

fn slice(pool: &str) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {},
        "spec": {"driver": "onload.dev", "nodeName": "n1", "devices": [],
            "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}}})
}

#[tokio::test]
async fn a_server_that_serves_old_manifests_by_dra_gets_all_by_dra() {
    let server = new_server().await;
    let mut deciding = Deciding::start(&server, "", NEVER);
    deciding.register();
    deciding.until(&[Class::Nic, Class::Vfio], &[]).await;
    // Decided: nothing more is asked, of which the server tells by itself.
    server.forget_asked();
    deciding.look_again("");
    deciding.register();
    server.delete_class("nic.onload.dev");
    deciding.until(&[Class::Vfio], &[Class::Nic]).await;
    let asked = server.counts();
    let resources: Vec<&str> = asked.keys().map(String::as_str).collect();
    assert_eq!(resources, ["list pods", "list resourceslices"]);
}

#[tokio::test]
async fn classes_that_are_deleted_and_made_again_are_seen_by_the_watch() {
    let server = new_server().await;
    let mut deciding = Deciding::start(&server, "", NEVER);
    deciding.register();
    deciding.until(&[Class::Nic, Class::Vfio], &[]).await;
    server.delete_class("vfio.onload.dev");
    deciding.until(&[Class::Nic], &[Class::Vfio]).await;
    class(&server, Class::Vfio, Some("onload.dev/vfio"));
    deciding.until(&[Class::Nic, Class::Vfio], &[]).await;
    // The watch ends, and what happened in between is told by the next.
    server.end_watches();
    class(&server, Class::Nic, Some("example.com/nic"));
    deciding.until(&[Class::Vfio], &[Class::Nic]).await;
    // One from too long ago begins with a list.
    server.end_watches();
    class(&server, Class::Nic, Some("onload.dev/nic"));
    server.compact();
    deciding.until(&[Class::Nic, Class::Vfio], &[]).await;
}

#[tokio::test]
async fn a_class_stays_with_dra_where_its_slices_can_no_longer_be_seen() {
    let server = new_server().await;
    let mut deciding = Deciding::start(&server, "", NEVER);
    deciding.register();
    deciding.until(&[Class::Nic, Class::Vfio], &[]).await;
    let name = "n1-onload-dev-nic-0";
    server.put_slice(name, slice("n1/nic"));
    let rights = [("list", "pods"), ("list", "resourceslices")];
    for right in rights {
        server.take_right(right.0, right.1);
    }
    server.forget_asked();
    server.delete_class("nic.onload.dev");
    // It is tried again.
    until_asked(&server, "list", "resourceslices", 2).await;
    assert_eq!(*deciding.plugin.borrow(), BTreeSet::new());
    for right in rights {
        server.give_right(right.0, right.1);
    }
    server.delete_slice(name);
    deciding.until(&[Class::Vfio], &[Class::Nic]).await;
}

#[tokio::test]
async fn a_server_that_drops_the_old_name_or_has_no_class_leaves_all_to_the_device_plugin() {
    let server = ApiServer::start(Gates::OFF).await;
    class(&server, Class::Nic, None);
    // Nothing has to be waited for.
    let mut deciding = Deciding::start(&server, "", NEVER);
    deciding.until(&[], &[Class::Nic, Class::Vfio]).await;
    deciding.register();
    class(&server, Class::Vfio, None);
    deciding.until(&[], &[Class::Nic, Class::Vfio]).await;
}

#[tokio::test]
async fn one_class_may_be_served_and_another_not() {
    let server = ApiServer::start(Gates::ON).await;
    class(&server, Class::Nic, Some("onload.dev/nic"));
    class(&server, Class::Vfio, Some("example.com/other"));
    let mut deciding = Deciding::start(&server, "", NEVER);
    deciding.register();
    deciding.until(&[Class::Nic], &[Class::Vfio]).await;
}

#[tokio::test]
async fn without_rights_or_a_kubelet_that_knows_the_driver_it_is_the_device_plugin() {
    let server = new_server().await;
    let mut unknown = Deciding::start(&server, "", Duration::ZERO);
    unknown.until(&[], &[Class::Nic, Class::Vfio]).await;
    for right in [("list", "deviceclasses"), ("list", "pods")] {
        server.take_right(right.0, right.1);
    }
    let mut deciding = Deciding::start(&server, "", NEVER);
    deciding.register();
    deciding.until(&[], &[Class::Nic, Class::Vfio]).await;
}

#[tokio::test]
async fn a_node_that_ran_the_device_plugin_stays_with_it_until_kubelet_has_forgotten_it() {
    let server = new_server().await;
    let kubelet = ListeningKubelet::start(&[]);
    kubelet.allocated(&["onload.dev/nic"]);
    let mut deciding = Deciding::beside(kubelet, &server, "", NEVER, Path::new("/nonexistent"));
    // Nobody waits for a driver that is not to offer the class.
    let plugin = deciding.plugin.wait_for(|plugin| plugin.contains(&Class::Nic));
    tokio::time::timeout(PATIENCE, plugin).await.unwrap().unwrap();
    deciding.register();
    deciding.until(&[Class::Vfio], &[Class::Nic]).await;
    // A cure: the file is removed, and kubelet starts again.
    std::fs::remove_file(deciding.kubelet.checkpoint()).unwrap();
    deciding.register();
    deciding.until(&[Class::Nic, Class::Vfio], &[]).await;
    std::fs::write(deciding.kubelet.checkpoint(), "{").unwrap();
    deciding.look_again("");
    deciding.until(&[Class::Nic, Class::Vfio], &[]).await;
    // An older daemon gave it away: pods that ask for it do not start now.
    deciding.kubelet.allocated(&["onload.dev/vfio"]);
    deciding.look_again("");
    deciding.until(&[Class::Nic], &[Class::Vfio]).await;
}

#[tokio::test]
async fn what_is_not_known_of_kubelet_stays_with_the_device_plugin() {
    let broken = |kubelet: &ListeningKubelet| {
        std::fs::write(kubelet.checkpoint(), "{").unwrap();
    };
    for (arguments, make) in [
        (&[][..], &broken as &dyn Fn(&ListeningKubelet)),
        (&["--config=/absent.yaml"], &|_| {}),
        (&["--topology-manager-policy=best-effort"], &|_| {}),
    ] {
        let server = new_server().await;
        let kubelet = ListeningKubelet::start(arguments);
        make(&kubelet);
        let mut deciding = Deciding::beside(kubelet, &server, "", NEVER, Path::new("/nonexistent"));
        deciding.register();
        deciding.until(&[], &[Class::Nic, Class::Vfio]).await;
    }
}

#[tokio::test]
async fn a_kubelet_before_1_36_leaves_all_to_the_device_plugin_until_it_is_updated() {
    let server = new_server().await;
    server.set_kubelet_version("v1.35.4");
    let mut deciding = Deciding::start(&server, "", NEVER);
    deciding.register();
    deciding.until(&[], &[Class::Nic, Class::Vfio]).await;
    // A kubelet that starts tells its version later than it takes the driver.
    until_asked(&server, "get", "nodes", 2).await;
    server.set_kubelet_version("v1.36.2");
    deciding.until(&[Class::Nic, Class::Vfio], &[]).await;
    // One that is new enough is not asked for again before it starts anew.
    server.forget_asked();
    server.set_kubelet_version("v1.35.4");
    deciding.look_again("");
    tokio::time::sleep(2 * SOON).await;
    assert!(!server.counts().contains_key("get nodes"));
    while !server.counts().contains_key("get nodes") {
        deciding.restart_kubelet().await;
    }
    deciding.until(&[], &[Class::Nic, Class::Vfio]).await;
}

#[tokio::test]
async fn a_feature_gate_of_kubelet_goes_before_its_version() {
    let both = &[Class::Nic, Class::Vfio][..];
    for (version, gate, dra, plugin) in
        [("v1.35.4", "true", both, &[][..]), ("v1.36.2", "false", &[], both)]
    {
        let server = new_server().await;
        server.set_kubelet_version(version);
        let gate = format!("--feature-gates=DRAExtendedResource={gate}");
        let kubelet = ListeningKubelet::start(&[&gate]);
        let mut deciding = Deciding::beside(kubelet, &server, "", NEVER, Path::new("/nonexistent"));
        deciding.register();
        deciding.until(dra, plugin).await;
    }
}

#[tokio::test]
async fn while_kubelet_may_take_the_driver_the_device_plugin_offers_nothing() {
    let server = new_server().await;
    let mut deciding = Deciding::start(&server, "", NEVER);
    until_asked(&server, "watch", "deviceclasses", 1).await;
    deciding.look_again("");
    assert_eq!(*deciding.plugin.borrow(), BTreeSet::new());
    // One without DRA says so.
    deciding.registered.send_modify(|registered| registered.is_refused = true);
    deciding.until(&[], &[Class::Nic, Class::Vfio]).await;
}

#[tokio::test]
async fn a_class_with_resources_of_the_operator_s_goes_to_dra_when_each_has_a_device_class() {
    let server = new_server().await;
    let config = "[kubernetes.resources]\n\"amd.com/onload\" = { class = \"nic\" }\n";
    let mut deciding = Deciding::start(&server, config, NEVER);
    deciding.register();
    deciding.until(&[Class::Vfio], &[Class::Nic]).await;
    let object = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
        "metadata": {"name": "onload.amd.com"},
        "spec": {"extendedResourceName": "amd.com/onload", "selectors": []}});
    server.put_class("onload.amd.com", object);
    deciding.until(&[Class::Nic, Class::Vfio], &[]).await;
    // What the operator says is done all the same.
    server.delete_class("onload.amd.com");
    let config = format!("[kubernetes]\noffer = \"dra\"\n{config}");
    let mut told = Deciding::start(&server, &config, NEVER);
    told.until(&[Class::Nic, Class::Vfio], &[]).await;
}

#[tokio::test]
async fn the_devices_of_pools_are_offered_where_their_class_is_not_listed() {
    let server = new_server().await;
    let config = "[kubernetes]\nclasses = [\"nic\"]\n";
    let mut deciding = Deciding::start(&server, config, NEVER);
    deciding.register();
    deciding.until(&[Class::Nic], &[]).await;
    let mut devices = offers();
    devices[1].pools = vec!["fast".to_owned()];
    deciding.snapshots.send_replace(snapshot(devices, config));
    deciding.until(&[Class::Nic], &[Class::Vfio]).await;
    let object = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
        "metadata": {"name": "fast.onload.dev"},
        "spec": {"extendedResourceName": "onload.dev/fast", "selectors": []}});
    server.put_class("fast.onload.dev", object);
    deciding.until(&[Class::Nic, Class::Vfio], &[]).await;
}

#[tokio::test]
async fn a_class_stays_with_the_device_plugin_while_a_pod_has_a_device_of_it() {
    let server = new_server().await;
    server.put_pod("p", pod("onload.dev/nic", false));
    server.put_pod("by-dra", pod("onload.dev/vfio", true));
    let mut deciding = Deciding::start(&server, "", NEVER);
    deciding.register();
    deciding.until(&[Class::Vfio], &[Class::Nic]).await;
    server.delete_pod("p");
    deciding.look_again("");
    deciding.until(&[Class::Nic, Class::Vfio], &[]).await;
}

#[tokio::test]
async fn a_pod_that_has_ended_holds_nothing() {
    let server = new_server().await;
    let mut ended = pod("onload.dev/nic", false);
    ended["status"]["phase"] = "Succeeded".into();
    server.put_pod("p", ended);
    let mut deciding = Deciding::start(&server, "", NEVER);
    deciding.register();
    deciding.until(&[Class::Nic, Class::Vfio], &[]).await;
}

#[tokio::test]
async fn a_class_stays_with_dra_while_a_claim_of_a_pod_holds_a_device_of_it() {
    let server = ApiServer::start(Gates::OFF).await;
    server.put_claim("default", "c", claim("n1/nic"));
    server.put_pod("p", pod("onload.dev/nic", true));
    let mut deciding = Deciding::start(&server, "", NEVER);
    deciding.register();
    deciding.until(&[Class::Nic], &[Class::Vfio]).await;
    server.delete_claim("default", "c");
    deciding.look_again("");
    deciding.until(&[], &[Class::Nic, Class::Vfio]).await;
}

#[tokio::test]
async fn what_the_operator_says_is_done_at_the_start_and_changes_by_nobody() {
    let server = new_server().await;
    let mut deciding = Deciding::start(
        &server,
        "[kubernetes]\noffer = { nic = \"device-plugin\", vfio = \"dra\" }\n",
        NEVER,
    );
    deciding.until(&[Class::Vfio], &[Class::Nic]).await;
    let asked = server.counts();
    assert!(asked.keys().all(|key| key.ends_with("deviceclasses")), "{asked:?}");
    deciding.look_again("[kubernetes]\noffer = { nic = \"dra\", vfio = \"dra\" }\n");
    deciding.until(&[Class::Nic, Class::Vfio], &[]).await;
}

#[tokio::test]
async fn what_the_operator_says_waits_for_no_server_that_cannot_be_asked() {
    let server = new_server().await;
    for _ in 0..1000 {
        server.fail("list", 500, None);
    }
    let config = "[kubernetes]\noffer = { vfio = \"device-plugin\" }\n";
    let mut deciding = Deciding::start(&server, config, NEVER);
    deciding.register();
    deciding.until(&[], &[Class::Vfio]).await;
}

#[tokio::test]
async fn a_class_of_which_kubelet_remembers_a_pod_waits_for_no_server_that_cannot_be_asked() {
    for arguments in [&[][..], &["--topology-manager-policy=best-effort"]] {
        let server = new_server().await;
        server.replace_token("another");
        let kubelet = ListeningKubelet::start(arguments);
        kubelet.allocated(&["onload.dev/nic"]);
        let mut deciding = Deciding::beside(kubelet, &server, "", NEVER, Path::new("/nonexistent"));
        deciding.until(&[], &[Class::Nic]).await;
        until_asked(&server, "list", "deviceclasses", 2).await;
        assert_eq!(*deciding.plugin.borrow(), BTreeSet::from([Class::Nic]));
        server.replace_token(TOKEN);
        deciding.register();
        let (dra, plugin) = match arguments {
            [] => (&[Class::Vfio][..], &[Class::Nic][..]),
            _ => (&[][..], &[Class::Nic, Class::Vfio][..]),
        };
        deciding.until(dra, plugin).await;
    }
}

#[tokio::test]
async fn a_class_that_a_claim_may_have_waits_for_the_server_whatever_kubelet_remembers() {
    let of_nic = r#"{"namespace": "default", "name": "c", "devices": [{"pool": "n1/nic", "device": "ens1"}]}"#;
    for (owner, plugin) in [(of_nic, &[Class::Vfio][..]), ("{}", &[]), ("", &[])] {
        let server = new_server().await;
        server.put_claim("default", "c", claim("n1/nic"));
        server.put_pod("p", pod("onload.dev/nic", true));
        server.replace_token("another");
        let specs = tempfile::tempdir().unwrap();
        std::fs::write(specs.path().join("claim.onload.dev-1.claim"), owner).unwrap();
        let kubelet = ListeningKubelet::start(&[]);
        kubelet.allocated(&["onload.dev/nic", "onload.dev/vfio"]);
        let mut deciding = Deciding::beside(kubelet, &server, "", NEVER, specs.path());
        until_asked(&server, "list", "deviceclasses", 2).await;
        deciding.until(&[], plugin).await;
        server.replace_token(TOKEN);
        deciding.register();
        deciding.until(&[Class::Nic], &[Class::Vfio]).await;
    }
}

#[tokio::test]
async fn what_kubelet_remembers_takes_no_class_from_dra_without_the_server() {
    let server = new_server().await;
    let mut deciding = Deciding::start(&server, "", NEVER);
    deciding.register();
    deciding.until(&[Class::Nic, Class::Vfio], &[]).await;
    server.replace_token("another");
    server.forget_asked();
    deciding.kubelet.allocated(&["onload.dev/nic"]);
    deciding.look_again("");
    until_asked(&server, "list", "pods", 2).await;
    deciding.until(&[Class::Nic, Class::Vfio], &[]).await;
    // Nor where it answers that this driver may still have published the class.
    let server = ApiServer::start(Gates::OFF).await;
    server.put_slice("n1-onload-dev-nic-0", slice("n1/nic"));
    server.take_right("list", "pods");
    let kubelet = ListeningKubelet::start(&[]);
    kubelet.allocated(&["onload.dev/nic"]);
    let deciding = Deciding::beside(kubelet, &server, "", NEVER, Path::new("/nonexistent"));
    until_asked(&server, "list", "pods", 3).await;
    assert_eq!(*deciding.plugin.borrow(), BTreeSet::new());
}

/// Waits until so many requests of a verb for a resource have come.
async fn until_asked(server: &ApiServer, verb: &str, resource: &str, times: usize) {
    let is_it = |asked: &&Asked| asked.verb == verb && asked.resource == resource;
    server.until_asked(|asked| asked.iter().filter(is_it).count() >= times).await;
}

#[tokio::test]
async fn rights_and_classes_that_come_later_are_seen() {
    let server = ApiServer::start(Gates::ON).await;
    class(&server, Class::Nic, Some("onload.dev/nic"));
    server.take_right("watch", "deviceclasses");
    server.take_right("list", "deviceclasses");
    let mut deciding = Deciding::start(&server, "", NEVER);
    deciding.register();
    deciding.until(&[], &[Class::Nic, Class::Vfio]).await;
    server.give_right("watch", "deviceclasses");
    server.give_right("list", "deviceclasses");
    deciding.until(&[Class::Nic], &[Class::Vfio]).await;
    class(&server, Class::Vfio, Some("onload.dev/vfio"));
    deciding.until(&[Class::Nic, Class::Vfio], &[]).await;
}

#[tokio::test]
async fn a_refusal_changes_nothing_that_is_decided() {
    let server = new_server().await;
    let mut deciding = Deciding::start(&server, "", NEVER);
    deciding.register();
    deciding.until(&[Class::Nic, Class::Vfio], &[]).await;
    for status in [403, 404] {
        server.forget_asked();
        server.fail("watch", status, None);
        server.fail("list", status, None);
        server.end_watches();
        // It refuses the watch and then the list, and answers both in the end.
        until_asked(&server, "watch", "deviceclasses", 2).await;
        assert!(server.has_failed());
        deciding.look_again("");
        deciding.until(&[Class::Nic, Class::Vfio], &[]).await;
        assert_eq!(*deciding.plugin.borrow(), BTreeSet::new());
    }
}

#[tokio::test]
async fn a_token_that_is_not_taken_says_nothing_about_classes() {
    let server = new_server().await;
    server.replace_token("another");
    let mut deciding = Deciding::start(&server, "", NEVER);
    deciding.register();
    until_asked(&server, "list", "deviceclasses", 2).await;
    assert_eq!(*deciding.plugin.borrow(), BTreeSet::new());
    server.replace_token(TOKEN);
    deciding.until(&[Class::Nic, Class::Vfio], &[]).await;
}

#[tokio::test]
async fn pods_that_cannot_be_seen_may_hold_what_this_driver_has_offered() {
    let server = ApiServer::start(Gates::OFF).await;
    server.put_claim("default", "c", claim("n1/nic"));
    server.put_pod("p", pod("onload.dev/nic", true));
    server.put_slice("n1-onload-dev-nic-0", slice("n1/nic"));
    server.take_right("list", "pods");
    let mut deciding = Deciding::start(&server, "", NEVER);
    deciding.register();
    until_asked(&server, "list", "pods", 2).await;
    assert_eq!(*deciding.plugin.borrow(), BTreeSet::new());
    server.give_right("list", "pods");
    deciding.until(&[Class::Nic], &[Class::Vfio]).await;
}

#[tokio::test]
async fn pods_that_cannot_be_seen_may_hold_what_a_claim_was_given() {
    let server = ApiServer::start(Gates::OFF).await;
    let specs = tempfile::tempdir().unwrap();
    let of_claim = specs.path().join("claim.onload.dev-1.claim");
    std::fs::write(&of_claim, "{}").unwrap();
    server.take_right("list", "pods");
    let mut deciding = Deciding::with_claims(&server, "", NEVER, specs.path());
    deciding.register();
    until_asked(&server, "list", "pods", 2).await;
    assert_eq!(*deciding.plugin.borrow(), BTreeSet::new());
    std::fs::remove_file(&of_claim).unwrap();
    deciding.until(&[], &[Class::Nic, Class::Vfio]).await;
}

#[tokio::test]
async fn a_class_leaves_dra_when_the_server_has_no_slice_of_it() {
    let server = new_server().await;
    let mut deciding = Deciding::start(&server, "[kubernetes]\noffer = \"dra\"\n", NEVER);
    deciding.register();
    deciding.until(&[Class::Nic, Class::Vfio], &[]).await;
    let name = "n1-onload-dev-nic-0";
    server.put_slice(name, slice("n1/nic"));
    server.put_slice("n1-onload-dev-vfio-0", slice("n1/vfio"));
    deciding.look_again("[kubernetes]\noffer = { nic = \"device-plugin\", vfio = \"dra\" }\n");
    until_asked(&server, "list", "resourceslices", 2).await;
    assert_eq!(deciding.dra.borrow().classes, BTreeSet::from([Class::Vfio]));
    assert_eq!(*deciding.plugin.borrow(), BTreeSet::new());
    server.delete_slice(name);
    deciding.until(&[Class::Vfio], &[Class::Nic]).await;
}

#[tokio::test]
async fn claims_from_before_a_restart_keep_their_class_from_the_device_plugin() {
    let server = new_server().await;
    let specs = tempfile::tempdir().unwrap();
    let of_claim = specs.path().join("claim.onload.dev-1.claim");
    std::fs::write(&of_claim, "{}").unwrap();
    server.put_claim("default", "c", claim("n1/vfio"));
    server.put_pod("p", pod("onload.dev/vfio", true));
    let config = "[kubernetes]\noffer = \"device-plugin\"\n";
    let mut deciding = Deciding::with_claims(&server, config, NEVER, specs.path());
    deciding.register();
    deciding.until(&[Class::Vfio], &[Class::Nic]).await;
    server.delete_pod("p");
    std::fs::remove_file(&of_claim).unwrap();
    deciding.look_again(config);
    deciding.until(&[], &[Class::Nic, Class::Vfio]).await;
}
