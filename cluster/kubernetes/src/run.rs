//! `run`: the daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use onload_core::class::Class;
use onload_core::kubernetes_settings::{ListenAddress, ResourceName};
use onload_host::host::Host;
use onload_host::specdir::resolve_dirs;
use onload_sys::fs::lock::Lock;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::cli::{KubernetesArgs, RunArgs};
use crate::dra::driver::DraDriver;
use crate::dra::node;
use crate::dra::prepare::has_claims;
use crate::dra::published::PublishedClasses;
use crate::dra::sockets::socket_dirs;
use crate::health_changes;
use crate::mounted_directory;
use crate::observe::metrics::DaemonMetrics;
use crate::observe::{health, http, log};
use crate::plugin::{
    KubeletState, PluginContext, PluginHost, serve_resource, watch as watch_directory,
};
use crate::resources::Resource;
use crate::snapshot::{KubernetesSnapshot, SpecNames};
use crate::spec_writer::{OFFER_LOCK, SpecWriter, try_lock};
use crate::surveyor::KubernetesSurveyor;

/// Time limit for withdrawing the resources at the end.
const END: Duration = Duration::from_secs(10);
/// Interval for checking whether another instance has ended.
const LOCK_POLL_INTERVAL: Duration = Duration::from_secs(1);

const SECOND: &str = "another onload-kubernetes already offers the devices of this host; stop it \
    first";
/// Context for failures of the async runtime or signals.
const STARTING: &str = "starting the daemon";

/// Offers devices until SIGTERM or SIGINT.
pub fn run(global: &KubernetesArgs, args: &RunArgs) -> Result<()> {
    let host = Arc::new(Host::open(&global.host_root)?);
    let spec_dirs = resolve_dirs(&host, &args.spec_dir)?;
    let metrics = Arc::new(DaemonMetrics::default());
    let specs = Arc::new(SpecNames::new(spec_dirs));
    // In directories given on the command line, specifications belong to the operator.
    let spec_writer = args.spec_dir.is_empty().then(|| SpecWriter::new(global.hook_dir.clone()));
    let config_path = global.config.clone();
    let is_listen_set = args.listen.is_some();
    let mut surveyor = KubernetesSurveyor::new(
        Arc::clone(&host),
        config_path,
        &specs,
        spec_writer,
        &metrics,
        is_listen_set,
    )?;
    log::init(surveyor.config().log.level);
    let listen = match &args.listen {
        Some(listen) => (listen.clone(), "--listen or ONLOAD_KUBERNETES_LISTEN"),
        None => {
            let listen = &surveyor.config().kubernetes.listen;
            (listen.clone(), "[kubernetes] listen")
        }
    };
    let (sender, snapshots) = watch::channel(Arc::new(surveyor.first_survey()?));
    let settings = &surveyor.config().kubernetes;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context(STARTING)?;
    // kube's client starts a task when it is created.
    let runtime_guard = runtime.enter();
    let (node, kubeconfig) = (args.node_name.as_ref(), args.kubeconfig.as_deref());
    let published = PublishedClasses::for_kubelet(&args.kubelet_dir);
    let has_remains =
        specs.dirs().last().is_some_and(|dir| has_claims(dir)) || !published.is_empty();
    let node_api = node::find(settings, node, kubeconfig, has_remains, &metrics)?;
    if node_api.is_none() {
        published.log_waiting(node);
    }
    let dra = node_api.map(|(node, api)| DraDriver {
        node,
        kubelet_dir: args.kubelet_dir.clone(),
        host_root: global.host_root.clone(),
        api,
        host: snapshots.clone(),
        specs: Arc::clone(&specs),
        metrics: Arc::clone(&metrics),
    });
    let offer_lock = try_lock(&host, OFFER_LOCK)?;
    if offer_lock.is_none() && dra.is_none() {
        bail!(SECOND);
    }
    drop(runtime_guard);
    let node = Arc::new(PluginHost { host: snapshots, specs, metrics });
    runtime.block_on(async {
        surveyor.start(sender)?;
        offer_all(args, listen, node, dra, (host, offer_lock)).await
    })
}

/// Offers devices until SIGTERM or SIGINT. `listen` is the address for metrics, and the setting that it comes from.
/// `alone` is the host, and its lock if no other instance offers devices by the device plugin.
async fn offer_all(
    args: &RunArgs,
    listen: (ListenAddress, &'static str),
    node: Arc<PluginHost>,
    dra: Option<DraDriver>,
    alone: (Arc<Host>, Option<Lock>),
) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context(STARTING)?;
    let mut interrupt = signal(SignalKind::interrupt()).context(STARTING)?;
    let (kubelet_sender, kubelet) = watch::channel(KubeletState::default());
    let (stop, stopped) = watch::channel(false);
    let mut snapshots = node.host.clone();
    // Without a DRA driver the device plugin offers all classes except those whose ResourceSlices may remain.
    let published = PublishedClasses::for_kubelet(&args.kubelet_dir);
    let unpublished = Class::ALL.into_iter().filter(|class| !published.contains(*class));
    let (plugin, mut classes) = watch::channel(unpublished.collect());
    let (none_sender, mut none) = watch::channel(BTreeSet::new());
    let daemon = health::Daemon {
        metrics: Arc::clone(&node.metrics),
        host: snapshots.clone(),
        plugin: classes.clone(),
    };
    tokio::spawn(http::serve(listen, daemon.clone()));
    if let Some(path) = args.health_socket.clone() {
        tokio::spawn(http::serve((ListenAddress::Unix(path), "--health-socket"), daemon));
    }
    let directory = &args.device_plugin_dir;
    let mut resources = OfferedResources {
        context: PluginContext { directory: directory.clone(), node, kubelet, stop: stopped },
        senders: BTreeMap::new(),
        left_out: BTreeSet::new(),
        tasks: JoinSet::new(),
    };
    let mut watching = JoinSet::new();
    watching.spawn(watch_alone(directory.clone(), kubelet_sender, alone));
    watching.spawn(mounted_directory::watch(directory.clone()));
    if let Some(driver) = dra {
        for path in socket_dirs(&driver.kubelet_dir) {
            watching.spawn(mounted_directory::watch(path));
        }
        plugin.send_replace(BTreeSet::new());
        let (senders, stopped) = ((plugin.clone(), none_sender.clone()), stop.subscribe());
        let running = node::run(driver, senders, stopped);
        resources.tasks.spawn(running);
    }
    let ended = loop {
        let snapshot = Arc::clone(&snapshots.borrow_and_update());
        let offered_classes = classes.borrow_and_update().clone();
        resources.update(&snapshot, &offered_classes, &none.borrow_and_update());
        drop(snapshot);
        tokio::select! {
            changed = snapshots.changed() => if changed.is_err() { break Ok(()) },
            _ = classes.changed() => {}
            _ = none.changed() => {}
            Some(ended) = watching.join_next() => break match ended {
                Ok(Err(error)) => Err(error),
                Ok(Ok(never)) => match never {},
                Err(error) => Err(error).context(STARTING),
            },
            _ = terminate.recv() => break Ok(()),
            _ = interrupt.recv() => break Ok(()),
        }
    };
    tracing::info!("ending");
    stop.send_replace(true);
    resources.senders.clear();
    // kubelet notices by the closed connections.
    let _ = timeout(END, resources.tasks.join_all()).await;
    ended
}

/// Watches the directory of the device plugins. During the update of a DaemonSet with a DRA driver two instances run:
/// the second serves claims, and offers devices by the device plugin once the first has ended.
async fn watch_alone(
    path: PathBuf,
    kubelet: watch::Sender<KubeletState>,
    (host, mut alone): (Arc<Host>, Option<Lock>),
) -> Result<Infallible> {
    if alone.is_none() {
        tracing::info!(reason = SECOND, "waiting for the other instance to end");
    }
    while alone.is_none() {
        sleep(LOCK_POLL_INTERVAL).await;
        alone = try_lock(&host, OFFER_LOCK)?;
    }
    watch_directory(path, kubelet).await
}

/// The resources offered since the start. A resource that has lost its devices stays registered with an empty list: if
/// it disappeared, kubelet would count its devices for some minutes. A resource whose class DRA offers is withdrawn,
/// since DRA does not serve pods with a resource of a device plugin.
struct OfferedResources {
    context: PluginContext,
    senders: BTreeMap<ResourceName, ResourceSender>,
    left_out: BTreeSet<String>,
    tasks: JoinSet<()>,
}

struct ResourceSender {
    resource: watch::Sender<Arc<Resource>>,
    _end: watch::Sender<bool>,
}

impl OfferedResources {
    /// Offers the resources of these classes, and those of `none` without devices.
    fn update(
        &mut self,
        snapshot: &KubernetesSnapshot,
        classes: &BTreeSet<Class>,
        none: &BTreeSet<ResourceName>,
    ) {
        let plan = &snapshot.plan;
        let is_elsewhere = |resource: &Resource| !resource.has_class(classes);
        self.senders.retain(|name, sender| {
            let now = plan.resources.get(name).cloned();
            none.contains(name)
                || !is_elsewhere(&now.unwrap_or_else(|| sender.resource.borrow().clone()))
        });
        for reason in plan.left_out.difference(&self.left_out) {
            tracing::warn!(%reason, "left out");
        }
        self.left_out.clone_from(&plan.left_out);
        let mut empty = none.clone();
        empty.extend(
            self.senders.keys().filter(|name| !plan.resources.contains_key(*name)).cloned(),
        );
        for name in empty {
            self.serve(&Arc::new(Resource::empty(name)));
        }
        for resource in plan.resources.values().filter(|resource| !is_elsewhere(resource)) {
            self.serve(resource);
        }
    }

    fn serve(&mut self, resource: &Arc<Resource>) {
        self.context.node.metrics.set_resource(resource);
        match self.senders.get(&resource.name) {
            Some(sender) => {
                let sender = &sender.resource;
                sender.send_if_modified(|before| replace_if_changed(before, resource));
            }
            None => self.begin(resource),
        }
    }

    fn begin(&mut self, resource: &Arc<Resource>) {
        health_changes::log(None, resource);
        let (sender, receiver) = watch::channel(Arc::clone(resource));
        let (end, stop) = watch::channel(false);
        let context = PluginContext { stop, ..self.context.clone() };
        let sender = ResourceSender { resource: sender, _end: end };
        self.senders.insert(resource.name.clone(), sender);
        self.tasks.spawn(serve_resource(context, receiver));
    }
}

/// Returns whether a value differs. An equal value replaces the old one too, which frees its memory.
fn replace_if_changed(before: &mut Arc<Resource>, now: &Arc<Resource>) -> bool {
    let differs = before != now;
    if differs {
        health_changes::log(Some(before), now);
    }
    *before = Arc::clone(now);
    differs
}
