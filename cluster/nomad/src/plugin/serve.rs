//! Serves the plugin's services until the host ends it or SIGTERM arrives.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic_health::ServingStatus;

use super::agent::NomadAgent;
use super::base::BaseService;
use super::device::DeviceService;
use super::go_plugin::{Controller, Stdio};
use super::handshake::Handshake;
use super::socket;
use crate::surveyor::NomadSurveyor;
use crate::wire::base::base_plugin_server::BasePluginServer;
use crate::wire::device::device_plugin_server::DevicePluginServer;
use crate::wire::go_plugin::grpc_controller_server::GrpcControllerServer;
use crate::wire::go_plugin::grpc_stdio_server::GrpcStdioServer;

/// The service whose health go-plugin asks for.
const HEALTH: &str = "plugin";
/// Time for the answer to `Shutdown` to reach the host, which kills the plugin after two seconds.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(200);

/// Serves until the host ends the plugin. The streams of devices stay open to the end.
pub async fn serve(handshake: &Handshake, surveyor: NomadSurveyor) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("starting the plugin")?;
    // Ignores SIGINT, since ^C at the agent's terminal reaches all its processes, and the agent ends the plugin itself.
    let _interrupt = signal(SignalKind::interrupt()).context("starting the plugin")?;
    let agent = NomadAgent::parent();
    let (listener, socket_dir) = socket::bind(&handshake.socket_dir)?;
    let (stop, mut stopped) = mpsc::channel(1);
    let (is_configured, configured) = watch::channel(false);
    let surveyor = Arc::new(surveyor);
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_service_status(HEALTH, ServingStatus::Serving).await;
    let devices = DeviceService { surveyor: Arc::clone(&surveyor) };
    let router = Server::builder()
        .add_service(health_service)
        .add_service(BasePluginServer::new(BaseService { surveyor, is_configured }))
        .add_service(DevicePluginServer::new(devices))
        .add_service(GrpcControllerServer::new(Controller { stop }))
        .add_service(GrpcStdioServer::new(Stdio));
    print_line(&handshake.to_line(&socket_dir.path()))
        .context("writing the plugin's address to the caller")?;
    tokio::select! {
        served = router.serve_with_incoming(UnixListenerStream::new(listener)) => served.context("serving the plugin")?,
        _ = terminate.recv() => {}
        () = agent.wait_abandoned(configured) => tracing::info!("the agent has exited; exiting"),
        _ = stopped.recv() => sleep(SHUTDOWN_GRACE).await,
    }
    Ok(())
}

/// Prints the handshake line, the only output on standard output.
fn print_line(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.flush()
}
