//! Registration with kubelet, which finds a socket in its directory and requests the driver's information.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::DRIVER;
use crate::observe::metrics::DaemonMetrics;
use crate::wire::DRA_PLUGIN;
use crate::wire::registration::registration_server::Registration;
use crate::wire::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};

/// The services of the driver. kubelet searches the list for each DRAPlugin that it supports, the newest first, and never
/// reads other names (`validateSupportedServices` in pkg/kubelet/cm/dra/plugin: registration.go of 1.32 and 1.33,
/// dra_plugin_manager.go since 1.34). Kubernetes 1.37 watches the health of devices only if the list has a DRAResourceHealth.
const SERVICES: [&str; 3] = ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"];

/// Describes the driver to kubelet, and publishes whether kubelet has registered it.
#[derive(Debug)]
pub(super) struct Registrar {
    /// The path of the driver's socket.
    pub(super) endpoint: PathBuf,
    pub(super) registered: watch::Sender<bool>,
    pub(super) metrics: Arc<DaemonMetrics>,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(
        &self,
        _request: Request<InfoRequest>,
    ) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: DRA_PLUGIN.to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.to_string_lossy().into_owned(),
            supported_versions: SERVICES.map(str::to_owned).to_vec(),
        }))
    }

    /// Always succeeds, since an error would unregister the driver.
    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            tracing::info!(driver = DRIVER, "registered with kubelet");
        } else {
            tracing::error!(
                driver = DRIVER,
                reason = %status.error,
                "kubelet rejected the driver; kubelet tries again"
            );
        }
        self.metrics.set_dra_registered(status.plugin_registered);
        self.registered.send_replace(status.plugin_registered);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registrar(endpoint: &str, registered: watch::Sender<bool>) -> Registrar {
        Registrar { endpoint: PathBuf::from(endpoint), registered, metrics: Arc::default() }
    }

    #[tokio::test]
    async fn kubelet_is_told_who_serves_what_and_where() {
        let (sender, _receiver) = watch::channel(false);
        let registrar = registrar("/k/plugins/onload.dev/dra-1.sock", sender);
        let info = registrar.get_info(Request::new(InfoRequest {})).await.unwrap().into_inner();
        assert_eq!((info.r#type.as_str(), info.name.as_str()), ("DRAPlugin", "onload.dev"));
        assert_eq!(info.endpoint, "/k/plugins/onload.dev/dra-1.sock");
        assert_eq!(info.supported_versions, SERVICES);
    }

    #[tokio::test]
    async fn each_registration_is_told_and_so_is_its_end() {
        let (sender, mut receiver) = watch::channel(false);
        let registrar = registrar("/a", sender);
        for plugin_registered in [true, true, false, true] {
            let status = RegistrationStatus {
                plugin_registered,
                error: "none of services supported".to_owned(),
            };
            let answer = registrar.notify_registration_status(Request::new(status));
            answer.await.unwrap();
            assert!(receiver.has_changed().unwrap(), "also where it says so again");
            let now = *receiver.borrow_and_update();
            assert_eq!(now, plugin_registered);
        }
    }
}
