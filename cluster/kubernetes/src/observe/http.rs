//! `/metrics`, `/healthz` and `/readyz`. Any client that can reach the port may use them, so connections are limited in
//! number and duration to bound the daemon's memory.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use onload_agent::LastMessage;
use onload_core::kubernetes_settings::ListenAddress;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt};

use super::health::Daemon;
use super::metrics::DaemonMetrics;
use crate::serve::accept_connections;
use crate::socket;

/// Limit for concurrent connections; the kernel queues some more.
const CONNECTIONS: usize = 32;
/// Time limit for a connection. It has one request, and an answer takes milliseconds.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Wait before an address that cannot be bound is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// The media type of OpenMetrics 1.0.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The media type of the older text format.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Serves until the program ends, at an address from a setting. Failure to bind the address is logged and retried, while
/// devices are offered all the same.
pub async fn serve(listen: (ListenAddress, &'static str), daemon: Daemon) {
    let mut last_message = LastMessage::default();
    while let Err(error) = serve_at(&listen, &daemon).await {
        let text = format!("{error:#}");
        if last_message.is_new(&text) {
            tracing::error!(error = %text, "serving metrics and health failed; trying again");
        }
        sleep(RETRY_INTERVAL).await;
    }
}

async fn serve_at(
    (listen, setting): &(ListenAddress, &'static str),
    daemon: &Daemon,
) -> Result<()> {
    // Puts the remedy after the cause.
    let failed =
        |error: io::Error| anyhow!("listening at {listen} for /metrics: {error}; change {setting}");
    match listen {
        ListenAddress::Nowhere => {}
        ListenAddress::Tcp(address) => {
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            let at = listener.local_addr().map_err(failed)?;
            tracing::info!(address = %at, "serving /metrics, /healthz and /readyz");
            accept_all(TcpListenerStream::new(listener), daemon).await;
        }
        ListenAddress::Unix(path) => {
            let (listener, _socket_file) = socket::bind(path)?;
            tracing::info!(path = %path.display(), "serving /metrics, /healthz and /readyz");
            accept_all(UnixListenerStream::new(listener), daemon).await;
        }
    }
    Ok(())
}

async fn accept_all<S>(listener: impl Stream<Item = io::Result<S>>, daemon: &Daemon)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = pin!(accept_connections(listener));
    // The semaphore is never closed.
    while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
        let Some(Ok(stream)) = connections.next().await else {
            return;
        };
        let daemon = daemon.clone();
        let answer = move |request: Request<_>| {
            let answer =
                respond(&daemon, request.method(), request.uri().path(), request.headers());
            async { Ok::<_, Infallible>(answer) }
        };
        let connection = http1::Builder::new()
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service_fn(answer));
        tokio::spawn(async move {
            // Errors of a connection are ignored: the client disconnected or sent something else than HTTP.
            let _ = timeout(TIMEOUT, connection).await;
            drop(permit);
        });
    }
}

fn respond(daemon: &Daemon, method: &Method, path: &str, headers: &HeaderMap) -> Response<String> {
    if !["/metrics", "/healthz", "/readyz"].contains(&path) {
        return response(StatusCode::NOT_FOUND, String::new(), PLAIN);
    }
    if method != Method::GET && method != Method::HEAD {
        let mut refused = response(StatusCode::METHOD_NOT_ALLOWED, String::new(), PLAIN);
        let allowed = HeaderValue::from_static("GET,HEAD");
        refused.headers_mut().insert(ALLOW, allowed);
        return refused;
    }
    if path == "/metrics" {
        return metrics_response(&daemon.metrics, headers);
    }
    let state = daemon.state();
    let reason = if path == "/healthz" { state.stuck } else { state.not_ready };
    match reason {
        None => response(StatusCode::OK, "ok\n".to_owned(), PLAIN),
        Some(reason) => response(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n"), PLAIN),
    }
}

/// Returns metrics as OpenMetrics for clients that accept it, such as Prometheus, or else in the older format, as for
/// curl.
fn metrics_response(metrics: &DaemonMetrics, headers: &HeaderMap) -> Response<String> {
    let mut accepts = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    if accepts.any(|value| value.contains("application/openmetrics-text")) {
        response(StatusCode::OK, metrics.render(), OPEN_METRICS)
    } else {
        response(StatusCode::OK, metrics.render_old(), TEXT_FORMAT)
    }
}

fn response(status: StatusCode, body: String, media: &'static str) -> Response<String> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    answer
}
