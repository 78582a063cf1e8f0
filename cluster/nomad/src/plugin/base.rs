//! The base service of all Nomad plugins. Nomad starts a plugin just for `PluginInfo` and `ConfigSchema`, ends it,
//! starts it for `SetConfig`, ends it, and then starts the one that stays. For this reason nothing here reads the host.

use std::sync::Arc;

use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::settings::{PluginSettings, build_schema, decode};
use crate::surveyor::NomadSurveyor;
use crate::wire::base::base_plugin_server::BasePlugin;
use crate::wire::base::{
    ConfigSchemaRequest, ConfigSchemaResponse, PluginInfoRequest, PluginInfoResponse, PluginType,
    SetConfigRequest, SetConfigResponse,
};

/// The version of the device plugins' protocol (plugins/device/versions.go).
pub const API_VERSION: &str = "v0.1.0";
/// The plugin's name, the same as nomad-onload's.
pub const NAME: &str = "onload";

#[derive(Debug)]
pub struct BaseService {
    pub surveyor: Arc<NomadSurveyor>,
    pub is_configured: watch::Sender<bool>,
}

#[tonic::async_trait]
impl BasePlugin for BaseService {
    async fn plugin_info(
        &self,
        _request: Request<PluginInfoRequest>,
    ) -> Result<Response<PluginInfoResponse>, Status> {
        Ok(Response::new(PluginInfoResponse {
            r#type: PluginType::Device.into(),
            plugin_api_versions: vec![API_VERSION.to_owned()],
            plugin_version: format!("v{}", env!("CARGO_PKG_VERSION")),
            name: NAME.to_owned(),
        }))
    }

    async fn config_schema(
        &self,
        _request: Request<ConfigSchemaRequest>,
    ) -> Result<Response<ConfigSchemaResponse>, Status> {
        Ok(Response::new(ConfigSchemaResponse { spec: Some(build_schema()) }))
    }

    async fn set_config(
        &self,
        request: Request<SetConfigRequest>,
    ) -> Result<Response<SetConfigResponse>, Status> {
        let settings = parse_settings(&request.into_inner());
        self.is_configured.send_replace(settings.is_ok());
        self.surveyor.set(settings?);
        Ok(Response::new(SetConfigResponse {}))
    }
}

fn parse_settings(request: &SetConfigRequest) -> Result<PluginSettings, Status> {
    let version = &request.plugin_api_version;
    if !version.is_empty() && version != API_VERSION {
        let message = format!(
            "this plugin supports version {API_VERSION} of the device plugin protocol, not \
             {version}"
        );
        return Err(Status::invalid_argument(message));
    }
    decode(&request.msgpack_config).map_err(|error| {
        let message = format!("{error:#}");
        tracing::error!("{message}");
        Status::invalid_argument(message)
    })
}
