//! The DRA driver at kubelet's sockets, from its registration to its end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use onload_agent::LastMessage;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tonic::transport::Server;

use super::api::Api;
use super::classes::DeviceClasses;
use super::prepare::{ClaimLocks, ClaimSpecs, MetadataFiles, Preparer, restore, sweep};
use super::registration::Registrar;
use super::report::Reporter;
use super::service::DraService;
use super::sockets::{DriverSockets, driver_dir, missing_registry_reason};
use crate::names::NodeName;
use crate::observe::metrics::DaemonMetrics;
use crate::serve::{end, serve, wait_stopped};
use crate::snapshot::{KubernetesSnapshot, SpecNames};
use crate::socket::SocketFile;
use crate::wire::dra_health::dra_resource_health_server::DraResourceHealthServer;
use crate::wire::registration::registration_server::RegistrationServer;
use crate::wire::{dra, dra_v1beta1};

/// Interval for checking that the sockets exist, since deleting them causes no event.
const CHECK: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct DraDriver {
    pub node: NodeName,
    /// kubelet's directory (its `--root-dir`).
    pub kubelet_dir: PathBuf,
    /// The root of the host.
    pub host_root: PathBuf,
    pub api: Api,
    pub host: watch::Receiver<Arc<KubernetesSnapshot>>,
    /// The host's specifications. The driver writes those of claims to the directory with the highest priority.
    pub specs: Arc<SpecNames>,
    pub metrics: Arc<DaemonMetrics>,
}

impl DraDriver {
    /// Serves kubelet until `stop` holds true. Failures are logged once and retried.
    pub async fn run(
        self,
        registered: watch::Sender<bool>,
        device_classes: watch::Receiver<DeviceClasses>,
        stop: watch::Receiver<bool>,
    ) {
        let (sender, reports) = mpsc::unbounded_channel();
        let preparer = Arc::new(Preparer {
            node: self.node.clone(),
            api: self.api.clone(),
            device_classes,
            host: self.host.clone(),
            specs: Arc::clone(&self.specs),
            claim_specs: ClaimSpecs::new(self.spec_dir()),
            metadata: MetadataFiles::for_driver(&driver_dir(&self.kubelet_dir)),
            host_root: self.host_root.clone(),
            reports: sender,
            claim_locks: ClaimLocks::default(),
            calls: watch::Sender::default(),
        });
        let reporting = tokio::spawn(Reporter::new(Arc::clone(&preparer), reports).run());
        let service =
            DraService { preparer, metrics: Arc::clone(&self.metrics), stop: stop.clone() };
        let sweeping = tokio::spawn(sweep(Arc::clone(&service.preparer)));
        let restoring = tokio::spawn(restore(Arc::clone(&service.preparer)));
        let mut last_message = LastMessage::default();
        while !*stop.borrow() {
            let waits = missing_registry_reason(&self.kubelet_dir);
            let started = match &waits {
                Some(reason) => Err(reason.clone()),
                None => DriverServer::start(&self.kubelet_dir, &service, &registered)
                    .await
                    .map_err(|error| format!("{error:#}")),
            };
            match started {
                Ok(server) => {
                    last_message.clear();
                    server.wait_until_lost(&stop).await;
                    self.metrics.set_dra_registered(false);
                    registered.send_replace(false);
                }
                Err(reason) => {
                    let is_new = last_message.is_new(&reason);
                    if is_new && waits.is_some() {
                        tracing::info!(%reason, "waiting for kubelet");
                    } else if is_new {
                        tracing::error!(%reason, "serving claims failed; trying again");
                    }
                    tokio::select! {
                        () = sleep(CHECK) => {}
                        () = wait_stopped(&stop) => {}
                    }
                }
            }
        }
        sweeping.abort();
        restoring.abort();
        reporting.abort();
    }

    /// Returns the directory for the specifications of claims.
    pub(super) fn spec_dir(&self) -> PathBuf {
        let dirs = self.specs.dirs().last();
        dirs.cloned().unwrap_or_default()
    }
}

struct DriverServer {
    registration: SocketFile,
    service: SocketFile,
    stop: watch::Sender<bool>,
    servers: JoinSet<()>,
}

impl DriverServer {
    async fn start(
        kubelet: &Path,
        service: &DraService,
        registered: &watch::Sender<bool>,
    ) -> Result<Self> {
        let sockets = DriverSockets::bind(kubelet).await?;
        let (stop, stopped) = watch::channel(false);
        let registrar = RegistrationServer::new(Registrar {
            endpoint: sockets.endpoint.clone(),
            registered: registered.clone(),
            metrics: Arc::clone(&service.metrics),
        });
        let service = DraService { stop: stopped.clone(), ..service.clone() };
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
        Ok(DriverServer { registration, service, stop, servers })
    }

    /// Serves until a socket is gone or the program ends. First removes the registration socket, which unregisters the
    /// driver at kubelet, and then completes calls that have begun.
    async fn wait_until_lost(self, stop: &watch::Receiver<bool>) {
        while !*stop.borrow() {
            if !self.registration.exists() || !self.service.exists() {
                tracing::warn!("a socket of the driver was removed; registering again");
                break;
            }
            tokio::select! {
                () = sleep(CHECK) => {}
                () = wait_stopped(stop) => {}
            }
        }
        drop(self.registration);
        end(self.stop, self.servers).await;
        drop(self.service);
    }
}
