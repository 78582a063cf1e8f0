//! Serves the plugin's services until the host says so, or SIGTERM comes.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic_health::ServingStatus;

use super::agent::Agent;
use super::base::Base;
use super::device::Devices;
use super::go_plugin::{Broker, Controller, Stdio};
use super::handshake::Handshake;
use super::socket::{self, SocketError};
use crate::log;
use crate::surveyor::Surveyor;
use crate::wire::services::base_plugin_server::BasePluginServer;
use crate::wire::services::device_plugin_server::DevicePluginServer;
use crate::wire::services::g_r_p_c_broker_server::GRPCBrokerServer;
use crate::wire::services::g_r_p_c_controller_server::GRPCControllerServer;
use crate::wire::services::g_r_p_c_stdio_server::GRPCStdioServer;

/// The service whose health go-plugin asks for.
const HEALTH: &str = "plugin";
/// How long the answer to `Shutdown` may take to reach the host, which kills the plugin after two seconds.
const FAREWELL: Duration = Duration::from_millis(200);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("starting the plugin")]
    Start(#[source] io::Error),
    /// The host does not read.
    #[error("telling the host where the plugin listens")]
    Line(#[source] io::Error),
    #[error("serving the plugin")]
    Serve(#[from] tonic::transport::Error),
}

/// Serves until the host ends the plugin. The streams of devices stay open to the end.
///
/// # Errors
/// [`ServeError`].
pub async fn serve(handshake: &Handshake, surveyor: Surveyor) -> Result<(), ServeError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Start)?;
    // ^C at the agent reaches all of its processes: the agent ends the plugin when it is done with it.
    let _interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Start)?;
    let agent = Agent::of_this_process();
    let (listener, place) = socket::bind(&handshake.socket_dir)?;
    let (stop, mut stopped) = mpsc::channel(1);
    let (is_configured, configured) = watch::channel(false);
    let surveyor = Arc::new(surveyor);
    let (health, health_service) = tonic_health::server::health_reporter();
    health
        .set_service_status(HEALTH, ServingStatus::Serving)
        .await;
    let devices = Devices {
        surveyor: Arc::clone(&surveyor),
    };
    let router = Server::builder()
        .add_service(health_service)
        .add_service(BasePluginServer::new(Base {
            surveyor,
            is_configured,
        }))
        .add_service(DevicePluginServer::new(devices))
        .add_service(GRPCControllerServer::new(Controller { stop }))
        .add_service(GRPCStdioServer::new(Stdio))
        .add_service(GRPCBrokerServer::new(Broker));
    tell(&handshake.line(&place.path())).map_err(ServeError::Line)?;
    tokio::select! {
        served = router.serve_with_incoming(UnixListenerStream::new(listener)) => served?,
        _ = terminate.recv() => {}
        () = agent.abandons(configured) => log::info("the agent has ended without this plugin, which ends too"),
        _ = stopped.recv() => sleep(FAREWELL).await,
    }
    Ok(())
}

/// Nothing else is ever written to standard output.
fn tell(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.flush()
}
