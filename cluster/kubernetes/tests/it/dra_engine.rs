//! Which interface offers a class, decided with an API server and a pod-resources socket made for tests.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::support::PATIENCE;
use crate::support::api_server::{ApiServer, Gates};
use crate::support::driver::api;
use crate::support::offers::{held, held_by_pod, offer, snapshot};
use crate::support::pod_resources::MockPodResources;
use onload_core::class::Class;
use onload_host::offers::HostDevice;
use onload_kubernetes::dra::DraClasses;
use onload_kubernetes::dra::classes::DeviceClasses;
use onload_kubernetes::dra::engine::Engine;
use onload_kubernetes::dra::published::PublishedClasses;
use onload_kubernetes::snapshot::KubernetesSnapshot;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;

const PLUGIN: &str = "";
const DRA: &str = "[kubernetes]\noffer = \"dra\"\n";
const VFIO_BY_DRA: &str = "[kubernetes]\noffer = { vfio = \"dra\" }\n";
const BOTH: [Class; 2] = [Class::Nic, Class::Vfio];

/// A node: a shared device of class nic, and an exclusive one of class vfio.
struct Node {
    server: ApiServer,
    pods: MockPodResources,
    socket: PathBuf,
    dir: TempDir,
    settle: Duration,
}

impl Node {
    async fn new() -> Node {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("plugins/onload.dev")).unwrap();
        let (pods, socket) = MockPodResources::start(dir.path());
        let server = ApiServer::start(Gates::ON).await;
        Node { server, pods, socket, dir, settle: Duration::ZERO }
    }

    /// One whose device plugin has offered both classes before.
    async fn with_device_plugin() -> Node {
        let node = Node::new().await;
        node.reports("0");
        node
    }

    fn reports(&self, amount: &str) {
        for class in BOTH {
            self.server.put_allocatable(&class.cdi_kind(), amount);
        }
    }

    fn claim_file(&self) -> PathBuf {
        self.dir.path().join("claim.onload.dev-1.claim")
    }

    fn record(&self, class: Class) -> PathBuf {
        self.dir.path().join(format!("plugins/onload.dev/published-{class}"))
    }

    fn start(&self, config: &str) -> Deciding {
        self.start_with(devices(), config)
    }

    fn start_with(&self, devices: Vec<HostDevice>, config: &str) -> Deciding {
        let (snapshots, of_snapshots) = watch::channel(snapshot(devices, config));
        let (dra_sender, dra) = watch::channel(DraClasses::default());
        let (plugin_sender, plugin) = watch::channel(BTreeSet::new());
        let engine = Engine {
            api: api(&self.server.kubeconfig, &Arc::default()),
            node: "n1".parse().unwrap(),
            snapshots: of_snapshots,
            device_classes: watch::channel(DeviceClasses::default()).0,
            pod_resources: self.socket.clone(),
            published: PublishedClasses::for_kubelet(self.dir.path()),
            spec_dir: self.dir.path().to_owned(),
            settle: self.settle,
            refused: Duration::from_millis(50),
        };
        tokio::spawn(engine.run(dra_sender, plugin_sender));
        Deciding { snapshots, dra, plugin }
    }
}

struct Deciding {
    snapshots: watch::Sender<Arc<KubernetesSnapshot>>,
    dra: watch::Receiver<DraClasses>,
    plugin: watch::Receiver<BTreeSet<Class>>,
}

fn devices() -> Vec<HostDevice> {
    vec![offer(Class::Nic, "ens1"), offer(Class::Vfio, "0000:81:10.0")]
}

impl Deciding {
    fn survey(&self, config: &str) {
        self.survey_with(devices(), config);
    }

    fn survey_with(&self, devices: Vec<HostDevice>, config: &str) {
        self.snapshots.send_replace(snapshot(devices, config));
    }

    /// Waits until the two interfaces offer these classes. Fails if both ever offer one.
    #[track_caller]
    fn until<'d>(&'d mut self, dra: &[Class], plugin: &[Class]) -> impl Future<Output = ()> + 'd {
        let set = |classes: &[Class]| -> BTreeSet<Class> { classes.iter().copied().collect() };
        let wanted = (set(dra), set(plugin));
        let caller = std::panic::Location::caller();
        async move {
            let wait = async {
                loop {
                    let dra = self.dra.borrow_and_update().classes.clone();
                    let now = (dra, self.plugin.borrow_and_update().clone());
                    assert!(now.0.is_disjoint(&now.1), "{now:?}");
                    if now == wanted {
                        return;
                    }
                    tokio::select! {
                        changed = self.dra.changed() => changed.unwrap(),
                        changed = self.plugin.changed() => changed.unwrap(),
                    }
                }
            };
            if tokio::time::timeout(PATIENCE, wait).await.is_err() {
                panic!(
                    "{caller}: {:?}, device plugin {:?}",
                    self.dra.borrow(),
                    self.plugin.borrow()
                );
            }
        }
    }

    /// Waits until these classes wait for the Node to report no amount of them.
    async fn until_awaited(&mut self, classes: &[Class]) {
        let classes: BTreeSet<Class> = classes.iter().copied().collect();
        let awaited = self.dra.wait_for(|offered| offered.awaited == classes);
        tokio::time::timeout(PATIENCE, awaited).await.unwrap().unwrap();
    }
}

fn slice(pool: &str) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {},
        "spec": {"driver": "onload.dev", "nodeName": "n1", "devices": [],
            "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}}})
}

#[tokio::test]
async fn each_class_is_offered_by_the_interface_that_the_configuration_names() {
    for (config, dra, plugin) in [
        (PLUGIN, &[][..], &BOTH[..]),
        (DRA, &BOTH, &[]),
        (VFIO_BY_DRA, &[Class::Vfio], &[Class::Nic]),
    ] {
        let node = Node::new().await;
        node.start(config).until(dra, plugin).await;
        for class in BOTH {
            assert_eq!(node.record(class).exists(), dra.contains(&class), "{class}");
        }
        let asked = node.server.counts();
        let is_other = |key: &String| !key.ends_with("deviceclasses") && key != "get nodes";
        assert!(!asked.keys().any(is_other), "{asked:?}");
    }
}

#[tokio::test]
async fn the_device_plugin_waits_for_no_server_without_a_record_of_slices() {
    let node = Node::with_device_plugin().await;
    node.server.replace_token("another");
    node.start(PLUGIN).until(&[], &BOTH).await;
    // A class by DRA that cannot be decided holds up no other.
    node.start(VFIO_BY_DRA).until(&[], &[Class::Nic]).await;
}

#[tokio::test]
async fn a_class_stays_with_the_device_plugin_while_a_pod_has_a_device_of_it() {
    let node = Node::with_device_plugin().await;
    // The last one may be of a pool that the configuration no longer has.
    for resource in ["onload.dev/nic", "onload.dev/old-pool"] {
        node.pods.set(&["nvidia.com/gpu", resource]);
        let mut deciding = node.start(DRA);
        let dra: &[Class] = match resource {
            "onload.dev/nic" => &[Class::Vfio],
            _ => &[],
        };
        let plugin: Vec<Class> = BOTH.into_iter().filter(|class| !dra.contains(class)).collect();
        deciding.until(dra, &plugin).await;
        node.pods.set(&["nvidia.com/gpu"]);
        deciding.survey(DRA);
        deciding.until(&BOTH, &[]).await;
        for class in BOTH {
            std::fs::remove_file(node.record(class)).unwrap();
        }
    }
}

#[tokio::test]
async fn without_the_pod_resources_socket_only_a_class_whose_devices_are_leased_changes() {
    let node = Node::with_device_plugin().await;
    std::fs::remove_file(&node.socket).unwrap();
    let mut deciding = node.start(DRA);
    deciding.until(&[Class::Vfio], &[Class::Nic]).await;
    // A class that was by DRA before stays there, and one that never was by device plugin starts there.
    std::fs::write(node.record(Class::Nic), "").unwrap();
    node.start(DRA).until(&BOTH, &[]).await;
    let new = Node::new().await;
    std::fs::remove_file(&new.socket).unwrap();
    new.start(DRA).until(&BOTH, &[]).await;
}

#[tokio::test]
async fn a_lease_of_a_pod_or_of_a_claim_or_an_unreadable_one_keeps_its_class() {
    let vfio = || offer(Class::Vfio, "0000:81:10.0");
    let claim = "0d7e3c1a-5c0f-4c57-9a4e-2b1f8f0f8f11";
    for (device, config, stays_by_dra) in [
        (held_by_pod(vfio(), None), DRA, false),
        (held(vfio()), DRA, false),
        (held_by_pod(vfio(), Some(claim)), PLUGIN, true),
        (held(vfio()), PLUGIN, true),
    ] {
        let node = Node::with_device_plugin().await;
        if stays_by_dra {
            std::fs::write(node.record(Class::Vfio), "").unwrap();
        }
        let mut deciding = node.start_with(vec![device], config);
        let (dra, plugin): (&[Class], &[Class]) = match stays_by_dra {
            true => (&[Class::Vfio], &[]),
            false => (&[], &[Class::Vfio]),
        };
        deciding.until(dra, plugin).await;
        deciding.survey_with(vec![vfio()], config);
        deciding.until(plugin, dra).await;
    }
}

#[tokio::test]
async fn a_class_goes_to_dra_when_the_node_reports_no_amount_of_it() {
    let node = Node::with_device_plugin().await;
    node.reports("3");
    let mut deciding = node.start(DRA);
    deciding.until_awaited(&BOTH).await;
    deciding.until(&[], &[]).await;
    node.reports("0");
    deciding.until(&BOTH, &[]).await;
    deciding.until_awaited(&[]).await;
}

#[tokio::test]
async fn neither_interface_offers_a_class_that_changes_until_it_has_settled() {
    let mut node = Node::new().await;
    node.settle = Duration::from_millis(600);
    let mut deciding = node.start(PLUGIN);
    deciding.until(&[], &BOTH).await;
    for (config, dra, plugin) in [(DRA, &BOTH[..], &[][..]), (PLUGIN, &[], &BOTH)] {
        deciding.survey(config);
        deciding.until(&[], &[]).await;
        let begin = std::time::Instant::now();
        deciding.until(dra, plugin).await;
        assert!(begin.elapsed() > Duration::from_millis(500));
    }
    // A pod was faster.
    deciding.survey(DRA);
    deciding.until(&[], &[]).await;
    node.pods.set(&["onload.dev/nic"]);
    deciding.until(&[Class::Vfio], &[Class::Nic]).await;
}

#[tokio::test]
async fn a_class_leaves_dra_when_the_server_has_no_slice_of_it() {
    let node = Node::new().await;
    let name = "n1-onload-dev-nic-0";
    for config in [DRA, PLUGIN] {
        let mut deciding = node.start(config);
        if config == DRA {
            deciding.until(&BOTH, &[]).await;
            node.server.put_slice(name, slice("n1/nic"));
            node.server.take_right("list", "resourceslices");
            deciding.survey(PLUGIN);
        }
        // Slices that cannot be listed may be there, also after a restart.
        deciding.until(&[], &[]).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(*deciding.plugin.borrow(), BTreeSet::new());
    }
    let mut deciding = node.start(PLUGIN);
    node.server.give_right("list", "resourceslices");
    deciding.until(&[], &[Class::Vfio]).await;
    node.server.delete_slice(name);
    deciding.until(&[], &BOTH).await;
    assert!(!node.record(Class::Nic).exists());
}

#[tokio::test]
async fn claims_from_before_a_restart_keep_their_class_from_the_device_plugin() {
    let of_nic = r#"{"namespace": "default", "name": "c", "devices": [{"pool": "n1/nic", "device": "ens1"}]}"#;
    for (claim, dra) in [(of_nic, &[Class::Nic][..]), ("{}", &BOTH), ("", &BOTH)] {
        let node = Node::new().await;
        std::fs::write(node.claim_file(), claim).unwrap();
        let mut deciding = node.start(PLUGIN);
        let plugin: Vec<Class> = BOTH.into_iter().filter(|class| !dra.contains(class)).collect();
        deciding.until(dra, &plugin).await;
        std::fs::remove_file(node.claim_file()).unwrap();
        deciding.survey(PLUGIN);
        deciding.until(&[], &BOTH).await;
    }
}
