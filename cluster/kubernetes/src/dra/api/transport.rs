//! A request to the API server, and its answer.
//!
//! HTTP/1.1, so that no connection is kept but that of the watch: others are closed when they have been idle for
//! a while. Without TCP_NODELAY a request takes 45 ms longer, since its head and body are two writes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Error, anyhow};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::Deserialize;
use tokio::time::timeout;

use super::access::{Access, Token};
use super::error::ApiError;
use crate::observe::metrics::Metrics;

/// How long a request may take, to the end of its answer.
const PATIENCE: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(10);
/// When a connection that is not used is closed.
const IDLE: Duration = Duration::from_secs(15);
/// How often the kernel looks whether a silent peer is there.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// The longest that a server is left alone at its wish. A later moment may be none that a clock has.
const LONGEST: Duration = Duration::from_secs(300);
/// The most bytes of an answer: a page of slices has less than a tenth.
const MOST: usize = 16 << 20;
const WORDS: usize = 400;
const AGENT: &str = concat!("onload-kubernetes/", env!("CARGO_PKG_VERSION"));

pub(super) const JSON: &str = "application/json";
/// The media type of server-side apply. JSON is YAML.
pub(super) const APPLY: &str = "application/apply-patch+yaml";
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) method: Method,
    /// Behind the address of the server, from the slash on.
    pub(super) path: String,
    pub(super) accept: &'static str,
    /// Media type and bytes.
    pub(super) content: Option<(&'static str, Bytes)>,
    /// For errors: what is being done, to what.
    pub(super) what: String,
}

impl Call {
    pub(super) fn new(method: Method, path: String, what: String) -> Call {
        Call {
            method,
            path,
            accept: JSON,
            content: None,
            what,
        }
    }
}

pub(super) struct Transport {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    server: String,
    token: Token,
    metrics: Arc<Metrics>,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Transport");
        debug.field("server", &self.server).finish_non_exhaustive()
    }
}

impl Transport {
    pub(super) fn new(access: Access, metrics: Arc<Metrics>) -> Transport {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT));
        tcp.set_keepalive(Some(KEEPALIVE));
        tcp.set_keepalive_interval(Some(KEEPALIVE));
        tcp.set_keepalive_retries(Some(3));
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(access.tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(https);
        Transport {
            client,
            server: access.server,
            token: access.token,
            metrics,
        }
    }

    pub(super) async fn ask(&self, call: &Call) -> Result<Bytes, ApiError> {
        let asked = async {
            let answer = self.open(call).await?;
            whole(answer.into_body(), &call.what).await
        };
        let answer = timeout(PATIENCE, asked).await;
        let answer = answer.unwrap_or_else(|_| Err(slow(&call.what, PATIENCE)));
        self.metrics
            .api_request(call.method.as_str(), answer.is_ok());
        answer
    }

    /// The answer as it comes: that of a watch has no end.
    pub(super) async fn stream(&self, call: &Call) -> Result<Incoming, ApiError> {
        let answer = timeout(PATIENCE, self.open(call)).await;
        let answer = answer.unwrap_or_else(|_| Err(slow(&call.what, PATIENCE)));
        self.metrics.api_request("WATCH", answer.is_ok());
        answer.map(Response::into_body)
    }

    /// The head of an answer that is good. A token that the server does not take is read again: it may just
    /// have been replaced.
    async fn open(&self, call: &Call) -> Result<Response<Incoming>, ApiError> {
        let mut token = self.token(call)?;
        loop {
            let answer = self.send(call, token.as_deref()).await?;
            if answer.status().is_success() {
                return Ok(answer);
            }
            if answer.status() == StatusCode::UNAUTHORIZED {
                let now = self.token(call)?;
                if now != token {
                    token = now;
                    continue;
                }
            }
            return Err(refused(answer, &call.what).await);
        }
    }

    fn token(&self, call: &Call) -> Result<Option<String>, ApiError> {
        Ok(self.token.read().with_context(|| call.what.clone())?)
    }

    async fn send(&self, call: &Call, token: Option<&str>) -> Result<Response<Incoming>, ApiError> {
        let request = request(&self.server, call, token);
        let request = request.with_context(|| unreachable(&call.what))?;
        let answer = self.client.request(request).await;
        Ok(answer.with_context(|| unreachable(&call.what))?)
    }
}

fn request(
    server: &str,
    call: &Call,
    token: Option<&str>,
) -> Result<Request<Full<Bytes>>, http::Error> {
    let mut request = Request::builder()
        .method(call.method.clone())
        .uri(format!("{server}{}", call.path))
        .header(ACCEPT, call.accept)
        .header(USER_AGENT, AGENT);
    if let Some(token) = token {
        let mut value = HeaderValue::try_from(format!("Bearer {token}"))?;
        value.set_sensitive(true);
        request = request.header(AUTHORIZATION, value);
    }
    let body = call.content.clone().map(|(media, bytes)| {
        if let Some(headers) = request.headers_mut() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
        }
        bytes
    });
    request.body(Full::new(body.unwrap_or_default()))
}

pub(super) fn unreachable(what: &str) -> String {
    format!("{what}: the API server cannot be reached")
}

pub(super) fn not_understood(what: &str) -> String {
    format!("{what}: the answer of the API server is not understood")
}

pub(super) fn slow(what: &str, after: Duration) -> ApiError {
    let seconds = after.as_secs();
    anyhow!("{what}: the API server has not answered within {seconds} s").into()
}

pub(super) fn too_long(what: &str, most: usize) -> ApiError {
    anyhow!("{what}: the API server's answer has more than {most} bytes").into()
}

async fn whole(body: Incoming, what: &str) -> Result<Bytes, ApiError> {
    match Limited::new(body, MOST).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_long(what, MOST)),
        Err(error) => Err(Error::from_boxed(error).context(unreachable(what)).into()),
    }
}

/// What the server says of a refusal (`Status` of apimachinery).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    message: String,
    reason: String,
    details: Option<Details>,
}

/// What a refusal is of (`StatusDetails`).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    name: String,
}

/// The object that the server says is not there. A proxy, or a server without this API, answers 404 too, and names
/// no object.
fn absent(status: StatusCode, said: &Status) -> Option<String> {
    let is_absent = status == StatusCode::NOT_FOUND && said.reason == "NotFound";
    let name = &said.details.as_ref()?.name;
    is_absent.then(|| name.clone())
}

async fn refused(answer: Response<Incoming>, what: &str) -> ApiError {
    let status = answer.status();
    let retry_after = retry_after(answer.headers());
    let body = whole(answer.into_body(), what).await.unwrap_or_default();
    let said: Status = serde_json::from_slice(&body).unwrap_or_default();
    ApiError::Refused {
        what: what.to_owned(),
        status,
        message: one_line(&said.message),
        absent: absent(status, &said),
        retry_after,
    }
}

/// Seconds, as many as are obeyed; a date is not understood.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST))
}

pub(super) fn one_line(text: &str) -> String {
    if text.is_empty() {
        return "it gives no reason".to_owned();
    }
    let text: String = text.escape_debug().take(WORDS).collect();
    text.replace("\\\"", "\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_the_server_are_one_short_line() {
        assert_eq!(one_line("a \"b\"\nc"), "a \"b\"\\nc");
        assert_eq!(one_line(&"x".repeat(9999)).len(), WORDS);
        assert_eq!(one_line(""), "it gives no reason");
    }

    #[test]
    fn a_token_that_is_no_header_is_refused() {
        let call = Call::new(Method::GET, "/x".to_owned(), "asking".to_owned());
        assert!(request("http://n1", &call, Some("a\nb")).is_err());
        let good = request("http://n1", &call, Some("a.b")).unwrap();
        assert_eq!(good.headers()[AUTHORIZATION], "Bearer a.b");
        assert!(good.headers()[AUTHORIZATION].is_sensitive());
    }

    #[test]
    fn an_object_is_absent_if_the_server_says_so_and_names_it() {
        let absent = |code: StatusCode, body: &str| {
            let said: Status = serde_json::from_str(body).unwrap_or_default();
            absent(code, &said)
        };
        let said = r#"{"reason": "NotFound", "details": {"name": "c"}}"#;
        assert_eq!(absent(StatusCode::NOT_FOUND, said), Some("c".to_owned()));
        assert_eq!(absent(StatusCode::BAD_GATEWAY, said), None);
        for other in [
            "404 page not found\n",
            r#"{"reason": "NotFound", "details": {}, "message": "the server could not find the requested resource"}"#,
            r#"{"reason": "NotFound", "details": null}"#,
            r#"{"reason": "Gone", "details": {"name": "c"}}"#,
        ] {
            let name = absent(StatusCode::NOT_FOUND, other).unwrap_or_default();
            assert_eq!(name, "", "{other}");
        }
    }

    #[test]
    fn the_server_says_how_long_it_wants_to_be_left_alone() {
        let headers = |value: &'static str| {
            let value = HeaderValue::from_static(value);
            HeaderMap::from_iter([(RETRY_AFTER, value)])
        };
        assert_eq!(retry_after(&headers("7")), Some(Duration::from_secs(7)));
        for long in ["301", "18446744073709551615"] {
            assert_eq!(retry_after(&headers(long)), Some(LONGEST), "{long}");
        }
        for other in ["", "-1", "Wed, 21 Oct 2026 07:28:00 GMT"] {
            assert_eq!(retry_after(&headers(other)), None);
        }
    }
}
