//! Registers a resource with kubelet.

use std::path::Path;
use std::time::Duration;

use onload_core::kubernetes_settings::ResourceName;
use tonic::transport::Endpoint;

use crate::wire::messages::{DevicePluginOptions, RegisterRequest};
use crate::wire::services::registration_client::RegistrationClient;
use crate::wire::{KUBELET_SOCKET, VERSION};

/// Inside Register kubelet dials us back and gives up after 10 s.
const PATIENCE: Duration = Duration::from_secs(15);

/// What we want to be asked.
pub(crate) const OPTIONS: DevicePluginOptions = DevicePluginOptions {
    pre_start_required: false,
    get_preferred_allocation_available: true,
};

/// Why kubelet does not have a resource.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegisterError {
    #[error("dialling kubelet")]
    Dial(#[source] tonic::transport::Error),
    #[error("kubelet refused it: {}", .0.message())]
    Refused(tonic::Status),
}

/// Registers a resource that is served at a socket in kubelet's directory.
pub(crate) async fn register(
    directory: &Path,
    socket: &str,
    name: &ResourceName,
) -> Result<(), RegisterError> {
    let path = directory.join(KUBELET_SOCKET);
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display()));
    let endpoint = endpoint.map_err(RegisterError::Dial)?;
    let endpoint = endpoint.connect_timeout(PATIENCE).timeout(PATIENCE);
    let channel = endpoint.connect().await.map_err(RegisterError::Dial)?;
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: socket.to_owned(),
        resource_name: name.to_string(),
        options: Some(OPTIONS),
    };
    let answer = RegistrationClient::new(channel).register(request).await;
    answer.map(|_| ()).map_err(RegisterError::Refused)
}
