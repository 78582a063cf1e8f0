//! `/metrics` and `/healthz`.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use onload_core::kubernetes_settings::Listen;
use onload_core::text::Chain;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::metrics::Metrics;
use crate::host_state::Snapshot;
use crate::socket::{self, SocketError};

/// The host is looked at more often; a daemon that has not for so long is stuck.
const STUCK: Duration = Duration::from_secs(300);
/// The media type of OpenMetrics 1.0.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The address cannot be bound.
    #[error("listening at {address} for /metrics and /healthz; set another [kubernetes] listen")]
    Bind {
        /// The address.
        address: Listen,
        /// Why.
        source: std::io::Error,
    },
    /// The socket cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// Serves until the program ends. What goes wrong is logged: devices are offered without metrics too.
pub async fn serve(listen: Listen, metrics: Arc<Metrics>, host: watch::Receiver<Arc<Snapshot>>) {
    let app = Router::new()
        .route("/metrics", get(move || metrics_text(Arc::clone(&metrics))))
        .route("/healthz", get(move || health(host.clone())));
    if let Err(error) = listen_at(&listen, app).await {
        tracing::error!(error = %Chain(&error), "metrics are not served");
    }
}

async fn listen_at(listen: &Listen, app: Router) -> Result<(), HttpError> {
    let failed = |source| HttpError::Bind {
        address: listen.clone(),
        source,
    };
    match listen {
        Listen::Nowhere => Ok(()),
        Listen::Tcp(address) => {
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            let at = listener.local_addr().map_err(failed)?;
            tracing::info!(address = %at, "serving /metrics and /healthz");
            axum::serve(listener, app).await.map_err(failed)
        }
        Listen::Unix(path) => {
            let socket = socket::bind(path)?;
            tracing::info!(path = %path.display(), "serving /metrics and /healthz");
            axum::serve(socket.into_listener(), app)
                .await
                .map_err(failed)
        }
    }
}

async fn metrics_text(metrics: Arc<Metrics>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, OPEN_METRICS)], metrics.text())
}

async fn health(host: watch::Receiver<Arc<Snapshot>>) -> (StatusCode, String) {
    let age = host.borrow().taken.elapsed();
    match age < STUCK {
        true => (StatusCode::OK, "ok\n".to_owned()),
        false => {
            let seconds = age.as_secs();
            let text = format!("the host was last looked at {seconds} s ago\n");
            (StatusCode::SERVICE_UNAVAILABLE, text)
        }
    }
}
