//! `run`: the daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use onload_core::kubernetes_settings::{Listen, ResourceName};
use onload_host::host::{Host, HostError};
use onload_host::specdir::engine_dirs;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::changes;
use crate::cli::{Global, Run};
use crate::host_state::{Snapshot, SpecNames};
use crate::observe::http::SetBy;
use crate::observe::metrics::Metrics;
use crate::observe::{health, http, log};
use crate::plugin::{DirectoryError, Kubelet, Offering, offer, watch as watch_directory};
use crate::resources::Resource;
use crate::spec_writer::{Keeper, SpecWriterError, claim_offering};
use crate::surveyor::{LookError, Surveyor};

/// How long the resources may take to be withdrawn at the end.
const END: Duration = Duration::from_secs(10);

/// Why the daemon ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The host cannot be opened.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The host cannot be looked at, or is configured wrongly.
    #[error(transparent)]
    Look(#[from] LookError),
    /// The async runtime does not start, or signals cannot be received.
    #[error("starting the daemon")]
    Start(#[source] io::Error),
    /// The directory of the device plugins cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// It cannot be told whether another daemon runs.
    #[error(transparent)]
    Claim(#[from] SpecWriterError),
    /// Another daemon runs.
    #[error("another onload-kubernetes offers the devices of this host; stop it first")]
    Second,
}

/// Offers devices until SIGTERM or SIGINT.
///
/// # Errors
/// [`RunError`].
pub fn run(global: &Global, args: &Run) -> Result<(), RunError> {
    let host = Host::open(&global.host_root)?;
    let spec_dirs = spec_dirs(&host, &args.spec_dir)?;
    let metrics = Arc::new(Metrics::default());
    let specs = Arc::new(SpecNames::new(spec_dirs));
    // Specifications in directories that somebody named are somebody's, too.
    let keeper = args
        .spec_dir
        .is_empty()
        .then(|| Keeper::new(global.hook_dir.clone()));
    let named = global.config.clone();
    let mut surveyor = Surveyor::new(host, named, &specs, keeper, &metrics)?;
    log::init(surveyor.config().log.level);
    let listen = match &args.listen {
        Some(listen) => (listen.clone(), SetBy::Argument),
        None => (surveyor.config().kubernetes.listen.clone(), SetBy::File),
    };
    let (sender, snapshots) = watch::channel(Arc::new(surveyor.first_look()?));
    let Some(_alone) = claim_offering(&Host::open(&global.host_root)?)? else {
        return Err(RunError::Second);
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let daemon = Daemon {
        directory: args.device_plugin_dir.clone(),
        listen,
        health_socket: args.health_socket.clone(),
        snapshots,
        specs,
        metrics,
    };
    runtime.map_err(RunError::Start)?.block_on(async {
        surveyor.start(sender)?;
        daemon.run().await
    })
}

/// The directories of specifications as given, else those that engines read.
fn spec_dirs(host: &Host, given: &[PathBuf]) -> Result<Vec<PathBuf>, HostError> {
    if !given.is_empty() {
        return Ok(given.to_vec());
    }
    engine_dirs(host)
}

struct Daemon {
    directory: PathBuf,
    listen: (Listen, SetBy),
    health_socket: Option<PathBuf>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    specs: Arc<SpecNames>,
    metrics: Arc<Metrics>,
}

impl Daemon {
    async fn run(self) -> Result<(), RunError> {
        let mut terminate = signal(SignalKind::terminate()).map_err(RunError::Start)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(RunError::Start)?;
        let (kubelet_sender, kubelet) = watch::channel(Kubelet::default());
        let (stop, stopped) = watch::channel(false);
        let mut snapshots = self.snapshots.clone();
        let served = http::serve(
            self.listen,
            Arc::clone(&self.metrics),
            self.snapshots.clone(),
        );
        tokio::spawn(served);
        if let Some(path) = self.health_socket {
            let (metrics, host) = (Arc::clone(&self.metrics), self.snapshots.clone());
            tokio::spawn(health::serve(path, metrics, host));
        }
        let shared = (self.snapshots, self.specs, Arc::clone(&self.metrics));
        let mut resources = Resources {
            offering: Offering::new(self.directory.clone(), kubelet, shared, stopped),
            metrics: self.metrics,
            senders: BTreeMap::new(),
            left_out: BTreeSet::new(),
            tasks: JoinSet::new(),
        };
        let mut directory = tokio::spawn(watch_directory(self.directory, kubelet_sender));
        let ended = loop {
            let snapshot = Arc::clone(&snapshots.borrow_and_update());
            resources.update(&snapshot);
            drop(snapshot);
            tokio::select! {
                changed = snapshots.changed() => if changed.is_err() { break Ok(()) },
                ended = &mut directory => break match ended {
                    Ok(Err(error)) => Err(error.into()),
                    Ok(Ok(never)) => match never {},
                    Err(error) => Err(RunError::Start(io::Error::other(error))),
                },
                _ = terminate.recv() => break Ok(()),
                _ = interrupt.recv() => break Ok(()),
            }
        };
        tracing::info!("ending");
        stop.send_replace(true);
        // Kubelet learns of it by the end of the connections.
        let _ = timeout(END, resources.tasks.join_all()).await;
        ended
    }
}

/// The resources that were offered since the start. One that lost its devices stays, without any: kubelet
/// would otherwise count those that it knows for minutes.
struct Resources {
    offering: Offering,
    metrics: Arc<Metrics>,
    senders: BTreeMap<ResourceName, watch::Sender<Arc<Resource>>>,
    left_out: BTreeSet<String>,
    tasks: JoinSet<()>,
}

impl Resources {
    fn update(&mut self, snapshot: &Snapshot) {
        let plan = &snapshot.plan;
        for reason in plan.left_out.difference(&self.left_out) {
            tracing::warn!(%reason, "left out");
        }
        self.left_out.clone_from(&plan.left_out);
        let gone = self
            .senders
            .keys()
            .filter(|name| !plan.resources.contains_key(*name));
        let gone: Vec<Arc<Resource>> = gone.cloned().map(Resource::empty).map(Arc::new).collect();
        for resource in gone.iter().chain(plan.resources.values()) {
            self.metrics.resource(resource);
            match self.senders.get(&resource.name) {
                Some(sender) => {
                    sender.send_if_modified(|before| change(before, resource));
                }
                None => self.begin(resource),
            }
        }
    }

    fn begin(&mut self, resource: &Arc<Resource>) {
        changes::log(None, resource);
        let (sender, receiver) = watch::channel(Arc::clone(resource));
        self.senders.insert(resource.name.clone(), sender);
        self.tasks.spawn(offer(self.offering.clone(), receiver));
    }
}

/// Whether it differs. An equal one is taken too, so that the old one's memory is given back.
fn change(before: &mut Arc<Resource>, now: &Arc<Resource>) -> bool {
    let differs = before != now;
    if differs {
        changes::log(Some(before), now);
    }
    *before = Arc::clone(now);
    differs
}
