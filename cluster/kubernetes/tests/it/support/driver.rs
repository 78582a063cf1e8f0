//! The publisher of one node, in this process.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use onload_core::class::Class;
use onload_host::offers::HostDevice;
use onload_kubernetes::dra::DraClasses;
use onload_kubernetes::dra::amounts::ResourceAmounts;
use onload_kubernetes::dra::api::{AccessSource, Api};
use onload_kubernetes::dra::classes::DeviceClasses;
use onload_kubernetes::dra::engine::{Engine, REFUSED, SETTLE};
use onload_kubernetes::dra::publish::{Publisher, WRITE_INTERVAL};
use onload_kubernetes::dra::published::PublishedClasses;
use onload_kubernetes::observe::metrics::DaemonMetrics;
use onload_kubernetes::snapshot::KubernetesSnapshot;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::PATIENCE;
use super::api_server::ApiServer;
use super::offers::snapshot;

pub(crate) struct Driver {
    snapshots: watch::Sender<Arc<KubernetesSnapshot>>,
    registered: watch::Sender<bool>,
    offered: watch::Sender<DraClasses>,
    device_classes: watch::Sender<DeviceClasses>,
    stop: watch::Sender<bool>,
    pub(crate) metrics: Arc<DaemonMetrics>,
    task: JoinHandle<()>,
    kubelet: Option<TempDir>,
    config: &'static str,
}

pub(crate) fn api(kubeconfig: &Path, metrics: &Arc<DaemonMetrics>) -> Api {
    Api::new(AccessSource::Kubeconfig(kubeconfig.to_owned()), Arc::clone(metrics))
}

fn offered(classes: &[Class], undecided: &[Class]) -> DraClasses {
    DraClasses {
        classes: classes.iter().copied().collect(),
        undecided: undecided.iter().copied().collect(),
        ..DraClasses::default()
    }
}

impl Driver {
    pub(crate) fn start(server: &ApiServer, node: &str, devices: Vec<HostDevice>) -> Driver {
        let driver = Driver::unregistered(server, node, devices);
        driver.register();
        driver
    }

    pub(crate) fn unregistered(server: &ApiServer, node: &str, devices: Vec<HostDevice>) -> Driver {
        let driver = Driver::undecided(server, node, devices);
        driver.classes(&Class::ALL);
        driver
    }

    pub(crate) fn deciding(server: &ApiServer, node: &str, devices: Vec<HostDevice>) -> Driver {
        let mut driver = Driver::undecided_with(server, node, Vec::new(), WRITE_INTERVAL);
        let kubelet = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(kubelet.path().join("plugins/onload.dev")).unwrap();
        driver.config = "[kubernetes]\noffer = \"dra\"\n";
        driver.offer(devices);
        let engine = Engine {
            api: api(&server.kubeconfig, &driver.metrics),
            node: node.parse().unwrap(),
            snapshots: driver.snapshots.subscribe(),
            device_classes: driver.device_classes.clone(),
            pod_resources: PathBuf::new(),
            published: PublishedClasses::for_kubelet(kubelet.path()),
            spec_dir: PathBuf::new(),
            settle: SETTLE,
            refused: REFUSED,
        };
        let amounts = ResourceAmounts {
            api: api(&server.kubeconfig, &driver.metrics),
            node: node.parse().unwrap(),
            snapshots: driver.snapshots.subscribe(),
            registered: driver.registered.subscribe(),
            dra_classes: driver.offered.subscribe(),
            pauses: [Duration::ZERO; 2],
        };
        tokio::spawn(amounts.run(watch::channel(BTreeSet::new()).0));
        let (plugin, _) = watch::channel(BTreeSet::new());
        tokio::spawn(engine.run(driver.offered.clone(), plugin));
        driver.register();
        driver.kubelet = Some(kubelet);
        driver
    }

    /// One of which nobody has said yet what it offers; kubelet knows it not.
    pub(crate) fn undecided(server: &ApiServer, node: &str, devices: Vec<HostDevice>) -> Driver {
        Driver::undecided_with(server, node, devices, Duration::ZERO)
    }

    /// One that kubelet knows, and that writes slices at most so often.
    pub(crate) fn writing_each(
        server: &ApiServer,
        node: &str,
        devices: Vec<HostDevice>,
        interval: Duration,
    ) -> Driver {
        let driver = Driver::undecided_with(server, node, devices, interval);
        driver.classes(&Class::ALL);
        driver.register();
        driver
    }

    fn undecided_with(
        server: &ApiServer,
        node: &str,
        devices: Vec<HostDevice>,
        write_interval: Duration,
    ) -> Driver {
        let (snapshots, of_snapshots) = watch::channel(snapshot(devices, ""));
        let (registered, of_registered) = watch::channel(false);
        let (offered, of_offered) = watch::channel(offered(&[], &Class::ALL));
        let (stop, stopped) = watch::channel(false);
        let (device_classes, _) = watch::channel(DeviceClasses::default());
        let metrics = Arc::new(DaemonMetrics::default());
        let publisher = Publisher {
            api: api(&server.kubeconfig, &metrics),
            node: node.parse().unwrap(),
            snapshots: of_snapshots,
            registered: of_registered,
            dra_classes: of_offered,
            device_classes: device_classes.subscribe(),
            metrics: Arc::clone(&metrics),
            write_interval,
            stop: stopped,
        };
        Driver {
            snapshots,
            registered,
            offered,
            device_classes,
            stop,
            metrics,
            task: tokio::spawn(publisher.run()),
            kubelet: None,
            config: "",
        }
    }

    pub(crate) fn register(&self) {
        self.registered.send_replace(true);
    }

    pub(crate) fn unregister(&self) {
        self.registered.send_replace(false);
    }

    pub(crate) fn offer(&self, devices: Vec<HostDevice>) {
        self.offer_by(devices, self.config);
    }

    /// With a configuration.
    pub(crate) fn offer_by(&self, devices: Vec<HostDevice>, config: &str) {
        self.snapshots.send_replace(snapshot(devices, config));
    }

    pub(crate) fn classes(&self, classes: &[Class]) {
        self.decide(classes, &[]);
    }

    pub(crate) fn decide(&self, classes: &[Class], undecided: &[Class]) {
        self.offered.send_replace(offered(classes, undecided));
    }

    /// Waits until the server has the slices of exactly these classes from this driver.
    pub(crate) async fn published_is(&self, classes: &[Class]) {
        let is_right = |text: &str, class: Class| {
            let start = format!("onload_kubernetes_published_devices{{class=\"{class}\"}} ");
            let number = text.lines().find_map(|line| line.strip_prefix(&start));
            number.is_some_and(|number| (number != "0") == classes.contains(&class))
        };
        let is = |text: &str| Class::ALL.into_iter().all(|class| is_right(text, class));
        self.until_measured(is).await;
    }

    /// Waits until the metrics of this driver are so.
    pub(crate) async fn until_measured(&self, is_so: impl Fn(&str) -> bool) {
        let wait = async {
            while !is_so(&self.metrics.render()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap();
    }

    pub(crate) async fn stop(self) {
        self.stop.send_replace(true);
        let ended = tokio::time::timeout(PATIENCE, self.task).await;
        ended.unwrap().unwrap();
    }
}
