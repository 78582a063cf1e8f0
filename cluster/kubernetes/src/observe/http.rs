//! `/metrics`, `/healthz` and `/readyz`, for whoever can reach the port: its connections are few and short, so that
//! nobody takes the daemon's memory by them.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use onload_core::kubernetes_settings::Listen;
use onload_core::text::Chain;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::health::{Offered, State};
use super::metrics::Metrics;
use crate::socket::{self, SocketError};

/// Connections at a time; the kernel keeps some more waiting.
const CONNECTIONS: usize = 32;
/// How long a connection may last. It is one request, and an answer is made in milliseconds.
const MOST: Duration = Duration::from_secs(5);
/// How soon an address that cannot be bound is tried again.
const AGAIN: Duration = Duration::from_secs(2);
/// The media type of OpenMetrics 1.0.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// And of the format before it.
const OLDER: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What says where metrics are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetBy {
    /// The command line or its variable, which go before the file.
    Argument,
    File,
}

impl fmt::Display for SetBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SetBy::Argument => "--listen or ONLOAD_KUBERNETES_LISTEN",
            SetBy::File => "[kubernetes] listen",
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The address cannot be bound.
    #[error("listening at {address} for /metrics ({source}); set another {by}")]
    Bind {
        address: Listen,
        by: SetBy,
        /// Why; the remedy has to follow it.
        source: io::Error,
    },
    /// The socket cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// Serves until the program ends. An address that cannot be bound is logged and tried again: devices are offered
/// without metrics too.
pub async fn serve(listen: (Listen, SetBy), metrics: Arc<Metrics>, offered: Offered) {
    let state = (Arc::clone(&metrics), offered);
    let ready = state.clone();
    let app = Router::new()
        .route(
            "/metrics",
            get(move |headers: HeaderMap| metrics_text(Arc::clone(&metrics), headers)),
        )
        .route("/healthz", get(move || answer(now(&state).stuck)))
        .route("/readyz", get(move || answer(now(&ready).not_ready)));
    let mut said = String::new();
    while let Err(error) = listen_at(&listen, &app).await {
        let text = Chain(&error).to_string();
        if text != said {
            tracing::error!(error = %text, "metrics are not served; trying again");
            said = text;
        }
        sleep(AGAIN).await;
    }
}

async fn listen_at((listen, by): &(Listen, SetBy), app: &Router) -> Result<(), HttpError> {
    let failed = |source| HttpError::Bind {
        address: listen.clone(),
        by: *by,
        source,
    };
    match listen {
        Listen::Nowhere => Ok(()),
        Listen::Tcp(address) => {
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            let at = listener.local_addr().map_err(failed)?;
            tracing::info!(address = %at, "serving /metrics, /healthz and /readyz");
            take(listener, app).await;
            Ok(())
        }
        Listen::Unix(path) => {
            let socket = socket::bind(path)?;
            tracing::info!(path = %path.display(), "serving /metrics, /healthz and /readyz");
            take(socket.into_listener(), app).await;
            Ok(())
        }
    }
}

async fn take(mut listener: impl Listener, app: &Router) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    // The places are never closed.
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let (stream, _) = listener.accept().await;
        let service = TowerToHyperService::new(app.clone());
        let mut http = http1::Builder::new();
        let connection = http
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            // Who goes away early or comes with something else is told nothing.
            let _ = timeout(MOST, connection).await;
            drop(place);
        });
    }
}

/// OpenMetrics for who accepts it, as Prometheus does; curl does not say so.
async fn metrics_text(metrics: Arc<Metrics>, headers: HeaderMap) -> impl IntoResponse {
    let accepts = headers.get_all(header::ACCEPT).into_iter();
    let mut accepts = accepts.filter_map(|value| value.to_str().ok());
    match accepts.any(|value| value.contains("application/openmetrics-text")) {
        true => ([(header::CONTENT_TYPE, OPEN_METRICS)], metrics.text()),
        false => ([(header::CONTENT_TYPE, OLDER)], metrics.older_text()),
    }
}

fn now((metrics, offered): &(Arc<Metrics>, Offered)) -> State {
    offered.state(metrics)
}

async fn answer(reason: Option<String>) -> (StatusCode, String) {
    match reason {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}
