//! Registers a resource with kubelet.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use onload_core::kubernetes_settings::ResourceName;
use tonic::transport::Endpoint;

use crate::wire::device_plugin::registration_client::RegistrationClient;
use crate::wire::device_plugin::{DevicePluginOptions, RegisterRequest};
use crate::wire::{KUBELET_SOCKET, VERSION};

/// Inside Register kubelet dials us back and gives up after 10 s.
const PATIENCE: Duration = Duration::from_secs(15);

pub(crate) const OPTIONS: DevicePluginOptions = DevicePluginOptions {
    pre_start_required: false,
    get_preferred_allocation_available: true,
};

/// Registers a resource that is served at a socket in kubelet's directory.
pub(crate) async fn register(directory: &Path, socket: &str, name: &ResourceName) -> Result<()> {
    let path = directory.join(KUBELET_SOCKET);
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display()));
    let dialling = "dialling kubelet";
    let endpoint = endpoint.context(dialling)?;
    let endpoint = endpoint.connect_timeout(PATIENCE).timeout(PATIENCE);
    let channel = endpoint.connect().await.context(dialling)?;
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: socket.to_owned(),
        resource_name: name.to_string(),
        options: Some(OPTIONS),
    };
    let answer = RegistrationClient::new(channel).register(request).await;
    answer.map_err(|status| anyhow!("kubelet refused it: {}", status.message()))?;
    Ok(())
}
