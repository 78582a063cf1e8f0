//! The connections of kube's client, with our credentials.
//!
//! HTTP/1.1 is used, so that only the watch keeps a connection open: others are closed when they have been idle for a
//! while. Without TCP_NODELAY a request takes 45 ms longer, since its head and body are two writes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::{
    ACCEPT, AUTHORIZATION, HeaderValue, InvalidHeaderValue, RETRY_AFTER, USER_AGENT,
};
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Collected, Limited, StreamBody};
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming};
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
use tokio_stream::StreamExt;
use tower::{BoxError, service_fn};

use super::access::{AccessSource, ApiAccess, ApiToken};
use super::answer::Streamed;

const CONNECT: Duration = Duration::from_secs(10);
/// Time after which an idle connection is closed.
const IDLE: Duration = Duration::from_secs(15);
/// Keepalive interval for silent connections.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Limit for an answer that is read before it is parsed, such as a Node, in bytes.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// Limit for a watch event, which is one line, in bytes. etcd stores no object of more than 1.5 MiB.
const MAX_EVENT_BYTES: usize = 4 << 20;
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

type ApiBody = UnsyncBoxBody<Bytes, BoxError>;

/// A watch event exceeded the limit.
#[derive(Debug, thiserror::Error)]
#[error("an event of more than {MAX_EVENT_BYTES} bytes")]
pub(super) struct EventTooLong;

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
    /// Connections that trust the authorities of `access`.
    connections: Connections,
    /// Why the authorities could not be read since.
    last_message: LastMessage,
}

impl OpenAccess {
    fn new(access: ApiAccess) -> OpenAccess {
        let connections = new_connections(access.tls.config.clone());
        OpenAccess { access, connections, last_message: LastMessage::default() }
    }

    /// Trusts the present authorities. After their file is replaced, servers soon use certificates of the new ones.
    fn renew(&mut self) {
        match self.access.tls.renew() {
            Ok(is_new) => {
                if is_new {
                    self.connections = new_connections(self.access.tls.config.clone());
                }
                self.last_message.clear();
            }
            Err(error) => {
                let error = ErrorChain(error.as_ref()).to_string();
                if self.last_message.is_new(&error) {
                    tracing::warn!(%error, "keeping the previous certificate authority");
                }
            }
        }
    }
}

impl Transport {
    /// Returns the address of the server, our token, and connections.
    fn open(&self) -> Result<(String, ApiToken, Connections), UnusableAccess> {
        let mut guard = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = &mut *guard;
        let opened = match opened {
            Some(opened) => opened,
            None => opened.insert(OpenAccess::new(self.source.open().map_err(UnusableAccess)?)),
        };
        opened.renew();
        let (access, connections) = (&opened.access, opened.connections.clone());
        Ok((access.server.clone(), access.token.clone(), connections))
    }

    /// Sends a request. A rejected token is read again, since it may just have been replaced.
    async fn send(&self, request: Request<Body>) -> Result<Response<ApiBody>, BoxError> {
        let (mut head, body) = request.into_parts();
        let is_watch = is_watch(&head.uri);
        let is_streamed = head.extensions.get::<Streamed>().is_some();
        let (server, token_source, connections) = self.open()?;
        head.uri = format!("{server}{}", head.uri).parse()?;
        head.headers.entry(ACCEPT).or_insert(JSON);
        head.headers.insert(USER_AGENT, AGENT);
        let mut token = token_source.read()?;
        loop {
            if let Some(token) = &token {
                head.headers.insert(AUTHORIZATION, bearer_header(token)?);
            }
            // Request bodies are bytes, which can be sent again.
            let body = body.try_clone().unwrap_or_else(Body::empty);
            let request = Request::from_parts(head.clone(), body);
            let answer = connections.request(request).await?;
            if answer.status().is_success() {
                return Ok(answer.map(|body| {
                    if is_watch {
                        limit_events(body)
                    } else if is_streamed {
                        body.map_err(Into::into).boxed_unsync()
                    } else {
                        Limited::new(body, MAX_ANSWER_BYTES).boxed_unsync()
                    }
                }));
            }
            if answer.status() == StatusCode::UNAUTHORIZED {
                let now = token_source.read()?;
                if now != token {
                    token = now;
                    continue;
                }
            }
            return Err(refusal_error(answer).await.into());
        }
    }
}

/// Limits the size of each event in the body of a watch, which has no end.
fn limit_events<B>(body: B) -> ApiBody
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let mut length = 0;
    let frames = body.into_data_stream().map(move |data| {
        let data = data.map_err(Into::into)?;
        length = match data.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => data.len() - end - 1,
            None => length + data.len(),
        };
        if length > MAX_EVENT_BYTES {
            return Err(EventTooLong.into());
        }
        Ok(Frame::data(data))
    });
    StreamBody::new(frames).boxed_unsync()
}

fn is_watch(uri: &Uri) -> bool {
    let mut parts = uri.query().unwrap_or_default().split('&');
    parts.any(|part| part == "watch=true")
}

fn bearer_header(token: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Reads Retry-After, which kube's client ignores and a busy server may send without a body.
async fn refusal_error(answer: Response<Incoming>) -> Error {
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, MAX_ANSWER_BYTES)
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
    use k8s_openapi::api::core::v1::Node;
    use kube_client::api::{ListParams, WatchParams};

    use super::super::error::ApiError;
    use super::super::watch::ApiWatch;
    use super::*;

    fn refused(code: StatusCode, headers: &HeaderMap, body: &str) -> ApiError {
        let status = parse_status(code, headers, body.as_bytes());
        ApiError::from_client("asking", Error::Api(Box::new(status)))
    }

    #[test]
    fn a_watch_is_told_from_what_has_an_end() {
        let nodes = kube_client::core::Request::new("/api/v1/nodes");
        let watch = nodes.watch(&WatchParams::default(), "1").unwrap();
        assert!(is_watch(watch.uri()));
        let named = ListParams::default().fields("metadata.name=watch=true");
        assert!(!is_watch(nodes.list(&named).unwrap().uri()));
        assert!(!is_watch(&Uri::from_static("/api/v1/nodes/n1")));
    }

    #[tokio::test]
    async fn a_watch_may_go_on_for_ever_but_no_event_of_it() {
        let mark = r#"{"type":"BOOKMARK","object":{"kind":"Node","apiVersion":"v1","metadata":{"resourceVersion":"1"}}}"#;
        let mark = Bytes::from(format!("{}{mark}\n", " ".repeat(MAX_EVENT_BYTES / 4)));
        let long = Bytes::from(" ".repeat(MAX_EVENT_BYTES / 4 + 1));
        let body = [vec![mark; 40], vec![long; 4]]
            .concat()
            .into_iter()
            .map(|part| Ok::<_, BoxError>(Frame::data(part)));
        let body = limit_events(StreamBody::new(tokio_stream::iter(body)));
        let body = Mutex::new(Some(body));
        let answer = service_fn(move |_: Request<Body>| {
            let body = body.lock().unwrap().take().unwrap();
            async { Ok::<_, BoxError>(Response::new(body)) }
        });
        let nodes: kube_client::Api<Node> = kube_client::Api::all(Client::new(answer, "default"));
        let events = nodes.watch(&WatchParams::default(), "1").await.unwrap();
        let mut watch = ApiWatch::new(events, "1", "watching".to_owned());
        for _ in 0..40 {
            assert!(watch.next().await.unwrap().is_some());
        }
        assert_eq!(
            format!("{:#}", anyhow::Error::from(watch.next().await.unwrap_err())),
            "watching: the API server's answer is too long"
        );
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
