//! The connections of kube's client, with our credentials.
//!
//! HTTP/1.1 is used, so that only the watch keeps a connection open: others are closed when they have been idle for a
//! while. Without TCP_NODELAY a request takes 45 ms longer, since its head and body are two writes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use http::header::{
    ACCEPT, AUTHORIZATION, HeaderValue, InvalidHeaderValue, RETRY_AFTER, USER_AGENT,
};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Collected, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube_client::client::Body;
use kube_client::core::Status;
use kube_client::core::response::StatusDetails;
use kube_client::{Client, Error};
use onload_agent::LastMessage;
use onload_sys::text::ErrorChain;
use rustls::ClientConfig;
use tower::{BoxError, service_fn};

use super::access::{AccessSource, ApiAccess};

const CONNECT: Duration = Duration::from_secs(10);
/// Time after which an idle connection is closed.
const IDLE: Duration = Duration::from_secs(15);
/// Keepalive interval for silent connections.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Limit for the text of a rejection, in bytes.
const MAX_REASON_BYTES: usize = 1 << 20;
const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("onload-kubernetes/", env!("CARGO_PKG_VERSION")));
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Creates kube's client. Must be called in an async runtime.
pub(super) fn new_client(source: AccessSource) -> Client {
    let transport = Arc::new(Transport { source, opened: Mutex::new(None) });
    let send = move |request| {
        let transport = Arc::clone(&transport);
        async move { transport.send(request).await }
    };
    Client::new(service_fn(send), "default")
}

type Connections = legacy::Client<HttpsConnector<HttpConnector>, Body>;

fn new_connections(tls: ClientConfig) -> Connections {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE));
    tcp.set_keepalive_retries(Some(3));
    let https = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(tcp);
    legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .build(https)
}

/// The API server cannot be reached until a file is changed.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
pub(super) struct UnusableAccess(anyhow::Error);

struct Transport {
    source: AccessSource,
    /// `None` until the source could be read.
    opened: Mutex<Option<OpenAccess>>,
}

struct OpenAccess {
    access: ApiAccess,
    /// Connections that use the TLS files of `access`.
    connections: Connections,
    /// Why the source could not be read since.
    last_message: LastMessage,
}

impl Transport {
    /// Returns the address of the server, our token, and connections. The source is read for each request, since tokens
    /// and certificates are renewed. If it is unusable, for example half written, the previous one stays in use.
    fn open(&self) -> Result<(String, Option<String>, Connections), UnusableAccess> {
        let mut guard = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let renewed = self.renew(guard.as_ref());
        let opened = match (renewed, &mut *guard) {
            (Ok(now), opened) => opened.insert(now),
            (Err(error), None) => return Err(UnusableAccess(error)),
            (Err(error), Some(before)) => {
                let error = ErrorChain(error.as_ref()).to_string();
                if before.last_message.is_new(&error) {
                    tracing::warn!(%error, "keeping the previous credentials for the API server");
                }
                before
            }
        };
        let OpenAccess { access, connections, .. } = opened;
        let token = access.read_token().map_err(UnusableAccess)?;
        Ok((access.server.clone(), token, connections.clone()))
    }

    fn renew(&self, before: Option<&OpenAccess>) -> Result<OpenAccess> {
        let access = self.source.open()?;
        let connections = match before {
            Some(before) if before.access.tls == access.tls => before.connections.clone(),
            Some(_) if access.tls.authorities.is_empty() => {
                bail!("{} has no certificate authority", access.tls.origin)
            }
            _ => new_connections(access.tls.client_config()?),
        };
        Ok(OpenAccess { access, connections, last_message: LastMessage::default() })
    }

    /// Sends a request. A rejected token is read again, since it may just have been replaced.
    async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, BoxError> {
        let (mut head, body) = request.into_parts();
        let (server, mut token, connections) = self.open()?;
        head.uri = format!("{server}{}", head.uri).parse()?;
        head.headers.entry(ACCEPT).or_insert(JSON);
        head.headers.insert(USER_AGENT, AGENT);
        loop {
            if let Some(token) = &token {
                head.headers.insert(AUTHORIZATION, bearer_header(token)?);
            }
            // Request bodies are bytes, which can be sent again.
            let body = body.try_clone().unwrap_or_else(Body::empty);
            let request = Request::from_parts(head.clone(), body);
            let answer = connections.request(request).await?;
            if answer.status().is_success() {
                return Ok(answer);
            }
            if answer.status() == StatusCode::UNAUTHORIZED {
                let (_, now, _) = self.open()?;
                if now != token {
                    token = now;
                    continue;
                }
            }
            return Err(refusal_error(answer).await.into());
        }
    }
}

fn bearer_header(token: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Reads Retry-After, which kube's client ignores and a busy server may send without a body.
async fn refusal_error(answer: Response<Incoming>) -> Error {
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, MAX_REASON_BYTES)
        .collect()
        .await
        .map(Collected::to_bytes)
        .unwrap_or_default();
    Error::Api(Box::new(parse_status(head.status, &head.headers, &body)))
}

fn parse_status(code: StatusCode, headers: &HeaderMap, body: &[u8]) -> Status {
    let mut status: Status = serde_json::from_slice(body).unwrap_or_default();
    status.code = code.as_u16();
    if let Some(seconds) = retry_after(headers) {
        let none = StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        };
        status.details.get_or_insert(none).retry_after_seconds = seconds;
    }
    status
}

/// Parses Retry-After in seconds. Dates are not supported.
fn retry_after(headers: &HeaderMap) -> Option<u32> {
    let seconds: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(u32::try_from(seconds).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::super::error::ApiError;
    use super::*;

    fn refused(code: StatusCode, headers: &HeaderMap, body: &str) -> ApiError {
        let status = parse_status(code, headers, body.as_bytes());
        ApiError::from_client("asking", Error::Api(Box::new(status)))
    }

    #[test]
    fn a_token_that_is_no_header_is_refused() {
        assert!(bearer_header("a\nb").is_err());
        let good = bearer_header("a.b").unwrap();
        assert_eq!(good, "Bearer a.b");
        assert!(good.is_sensitive());
    }

    #[test]
    fn an_object_is_absent_if_the_server_says_so_and_names_it() {
        let refused = |code, body| refused(code, &HeaderMap::new(), body);
        let answer_json = r#"{"reason": "NotFound", "details": {"name": "c"}}"#;
        assert!(refused(StatusCode::NOT_FOUND, answer_json).is_absent("c"));
        assert!(!refused(StatusCode::NOT_FOUND, answer_json).is_absent("d"));
        assert!(!refused(StatusCode::BAD_GATEWAY, answer_json).is_absent("c"));
        for other in [
            "404 page not found\n",
            r#"{"reason": "NotFound", "details": {}, "message": "the server could not find the requested resource"}"#,
            r#"{"reason": "NotFound", "details": null}"#,
            r#"{"reason": "Gone", "details": {"name": "c"}}"#,
        ] {
            let error = refused(StatusCode::NOT_FOUND, other);
            assert!(!error.is_absent("c") && !error.is_absent(""), "{other}");
        }
    }

    #[test]
    fn a_refusal_says_what_the_server_says_and_nothing_else_that_answers() {
        let none = HeaderMap::new();
        let answer_json = r#"{"message": "no \"room\"", "code": 200}"#;
        let line = |code, body| refused(code, &none, body).to_string();
        assert_eq!(
            line(StatusCode::CONFLICT, answer_json),
            r#"asking: the API server answered 409 Conflict: no "room""#
        );
        let page = "<html>502</html>";
        assert_eq!(
            line(StatusCode::BAD_GATEWAY, page),
            "asking: the API server answered 502 Bad Gateway: it gives no reason"
        );
    }

    #[test]
    fn the_server_says_how_long_it_wants_to_be_left_alone() {
        let after = |value: &'static str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(value))]);
            refused(StatusCode::TOO_MANY_REQUESTS, &headers, "busy").retry_after()
        };
        assert_eq!(after("7"), Some(Duration::from_secs(7)));
        for long in ["301", "18446744073709551615"] {
            assert_eq!(after(long), Some(Duration::from_secs(300)), "{long}");
        }
        for other in ["", "-1", "Wed, 21 Oct 2026 07:28:00 GMT"] {
            assert_eq!(after(other), None);
        }
    }
}
