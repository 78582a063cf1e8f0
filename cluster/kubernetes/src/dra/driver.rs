//! The driver at kubelet's sockets, from its registration to its end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use onload_agent::Said;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tonic::transport::Server;

use super::Registered;
use super::api::Api;
use super::classes::Told;
use super::prepare::{MetadataFiles, OwnSpecs, Preparer, Report, Turns, sweep};
use super::registration::Registrar;
use super::report::Reporter;
use super::service::Service;
use super::sockets::{Sockets, no_registry, own_dir};
use crate::host_state::{Snapshot, SpecNames};
use crate::names::NodeName;
use crate::observe::metrics::Metrics;
use crate::serve::{end, serve, stopped};
use crate::socket::Place;
use crate::wire::dra_health::dra_resource_health_server::DraResourceHealthServer;
use crate::wire::registration::registration_server::RegistrationServer;
use crate::wire::{dra, dra_v1beta1};

/// How often the sockets are looked at: whoever empties kubelet's directory does not tell.
const CHECK: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Driver {
    pub node: NodeName,
    /// kubelet's directory (its `--root-dir`).
    pub kubelet_dir: PathBuf,
    /// The root of the host.
    pub host_root: PathBuf,
    pub api: Api,
    pub host: watch::Receiver<Arc<Snapshot>>,
    /// Its specifications. Those of claims are written to the directory of the highest priority.
    pub specs: Arc<SpecNames>,
    pub metrics: Arc<Metrics>,
}

impl Driver {
    /// Serves kubelet until `stop` holds true. What goes wrong is logged once and tried again.
    pub async fn run(
        self,
        registered: watch::Sender<Registered>,
        device_classes: watch::Receiver<Told>,
        stop: watch::Receiver<bool>,
    ) {
        let (sender, reports) = mpsc::unbounded_channel();
        let preparer = Arc::new(self.preparer(device_classes, sender));
        let reporting = tokio::spawn(Reporter::new(Arc::clone(&preparer), reports).run());
        let service = Service { preparer, metrics: Arc::clone(&self.metrics), stop: stop.clone() };
        let sweeping = tokio::spawn(sweep(Arc::clone(&service.preparer)));
        let mut said = Said::default();
        while !*stop.borrow() {
            let waits = no_registry(&self.kubelet_dir);
            let started = match &waits {
                Some(reason) => Err(reason.clone()),
                None => Serving::start(&self.kubelet_dir, &service, &registered)
                    .await
                    .map_err(|error| format!("{error:#}")),
            };
            match started {
                Ok(serving) => {
                    said.clear();
                    serving.until_lost(&stop).await;
                    self.metrics.dra_registered(false);
                    registered.send_modify(|registered| registered.now = false);
                }
                Err(reason) => {
                    let is_news = said.is_news(&reason);
                    if is_news && waits.is_some() {
                        tracing::info!(%reason, "waiting for kubelet");
                    } else if is_news {
                        tracing::error!(%reason, "claims are not served; trying again");
                    }
                    tokio::select! {
                        () = sleep(CHECK) => {}
                        () = stopped(&stop) => {}
                    }
                }
            }
        }
        sweeping.abort();
        reporting.abort();
    }

    /// Where the specifications of claims are.
    pub(super) fn spec_dir(&self) -> PathBuf {
        let dirs = self.specs.dirs().last();
        dirs.cloned().unwrap_or_default()
    }

    fn preparer(
        &self,
        device_classes: watch::Receiver<Told>,
        reports: mpsc::UnboundedSender<Report>,
    ) -> Preparer {
        Preparer {
            node: self.node.clone(),
            api: self.api.clone(),
            device_classes,
            host: self.host.clone(),
            specs: Arc::clone(&self.specs),
            own: OwnSpecs::new(self.spec_dir()),
            metadata: MetadataFiles::of_driver(&own_dir(&self.kubelet_dir)),
            host_root: self.host_root.clone(),
            reports,
            turns: Turns::default(),
            calls: watch::Sender::default(),
        }
    }
}

struct Serving {
    registration: Place,
    service: Place,
    stop: watch::Sender<bool>,
    servers: JoinSet<()>,
}

impl Serving {
    async fn start(
        kubelet: &Path,
        service: &Service,
        registered: &watch::Sender<Registered>,
    ) -> Result<Self> {
        let sockets = Sockets::bind(kubelet).await?;
        let (stop, stopped) = watch::channel(false);
        let registrar = RegistrationServer::new(Registrar {
            endpoint: sockets.endpoint.clone(),
            registered: registered.clone(),
            metrics: Arc::clone(&service.metrics),
        });
        let service = Service { stop: stopped.clone(), ..service.clone() };
        let claims = Server::builder()
            .add_service(dra::dra_plugin_server::DraPluginServer::new(service.clone()))
            .add_service(dra_v1beta1::dra_plugin_server::DraPluginServer::new(service.clone()))
            .add_service(DraResourceHealthServer::new(service));
        let registrations = Server::builder().add_service(registrar);
        let mut servers = JoinSet::new();
        let (listener, service) = sockets.service;
        servers.spawn(serve(claims, listener, stopped.clone()));
        let (listener, registration) = sockets.registration;
        servers.spawn(serve(registrations, listener, stopped));
        tracing::info!(endpoint = %sockets.endpoint.display(), "serving claims");
        Ok(Serving { registration, service, stop, servers })
    }

    /// Serves until one of the sockets is gone, or the end. Then kubelet is told first, by the removal of the
    /// socket of the registration, and calls that have begun are completed.
    async fn until_lost(self, stop: &watch::Receiver<bool>) {
        while !*stop.borrow() {
            if !self.registration.is_there() || !self.service.is_there() {
                tracing::warn!("a socket of the driver was removed; registering again");
                break;
            }
            tokio::select! {
                () = sleep(CHECK) => {}
                () = stopped(stop) => {}
            }
        }
        drop(self.registration);
        end(self.stop, self.servers).await;
        drop(self.service);
    }
}
