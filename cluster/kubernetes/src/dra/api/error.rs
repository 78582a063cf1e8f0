//! Errors of requests to the API server.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use anyhow::Error;
use http::StatusCode;
use hyper_util::client::legacy;
use kube_client::core::Status;
use kube_client::core::response::reason::NOT_FOUND;
use onload_agent::LastMessage;
use onload_sys::text::ErrorChain;
use rustls::OtherError;

use super::server_verifier::UntrustedServer;
use super::transport::UnusableAccess;

/// Limit for Retry-After, since a time too far in the future cannot be represented.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);
const WORDS: usize = 400;

#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("{what}: the API server answered {}: {}{}", status_code(.status), one_line(&.status.message), advice(.status))]
    Refused { what: String, status: Box<Status> },
    #[error("{what}: the API server has not answered within {} s", after.as_secs())]
    TimedOut { what: String, after: Duration },
    /// All requests fail until a certificate or another file is replaced.
    #[error("{what}: the API server cannot be reached: {reason}")]
    NoAccess { what: String, reason: String },
    #[error(transparent)]
    Other(#[from] Error),
}

impl ApiError {
    pub(super) fn from_client(what: &str, error: kube_client::Error) -> ApiError {
        let not_understood = || format!("{what}: the API server's answer cannot be parsed");
        let unreachable = || format!("{what}: the API server cannot be reached");
        let error = match error {
            kube_client::Error::Api(status) => {
                let what = what.to_owned();
                return ApiError::Refused { what, status };
            }
            kube_client::Error::SerdeError(error) => Error::new(error).context(not_understood()),
            kube_client::Error::FromUtf8(error) => Error::new(error).context(not_understood()),
            kube_client::Error::ReadEvents(error) => Error::new(error).context(unreachable()),
            kube_client::Error::HyperError(error) => Error::new(error).context(unreachable()),
            kube_client::Error::Service(error) => {
                if let Some(reason) = access_reason(error.as_ref()) {
                    return ApiError::NoAccess { what: what.to_owned(), reason };
                }
                let is_away = error.is::<legacy::Error>() || error.is::<hyper::Error>();
                let sentence = if is_away { unreachable() } else { what.to_owned() };
                Error::from_boxed(error).context(sentence)
            }
            other => Error::new(other).context(what.to_owned()),
        };
        ApiError::Other(error)
    }

    pub fn status(&self) -> Option<StatusCode> {
        match self {
            ApiError::Refused { status, .. } => Some(status_code(status)),
            ApiError::TimedOut { .. } | ApiError::NoAccess { .. } | ApiError::Other(_) => None,
        }
    }

    /// Returns why all requests fail until a kubeconfig, certificate or token is changed. [`Api`](super::Api) logs this
    /// once for all requests.
    pub fn no_access_reason(&self) -> Option<String> {
        match self {
            ApiError::NoAccess { reason, .. } => Some(reason.clone()),
            ApiError::Refused { status, .. } if status_code(status) == StatusCode::UNAUTHORIZED => {
                Some(format!("401 Unauthorized{}", advice(status)))
            }
            _ => None,
        }
    }

    /// Logs the error unless it repeats the last message, is logged for all requests, or only means that everything must
    /// be listed again.
    pub fn warn_once(&self, last_message: &mut LastMessage, message: &'static str) {
        let error = ErrorChain(self).to_string();
        if !self.is_gone() && last_message.is_new(&error) && self.no_access_reason().is_none() {
            tracing::warn!(%error, message);
        }
    }

    /// Returns whether the server rejected this request, rather than being unavailable.
    pub fn is_refusal(&self) -> bool {
        self.status().filter(StatusCode::is_client_error).is_some() && self.retry_after().is_none()
    }

    /// Returns whether the resource version is too old, so that everything must be listed again.
    pub fn is_gone(&self) -> bool {
        self.status() == Some(StatusCode::GONE)
    }

    /// Returns whether the server reports that it has no object with this name. A 404 alone is no proof: proxies and
    /// servers without this API return it too, without naming an object.
    pub fn is_absent(&self, name: &str) -> bool {
        let ApiError::Refused { status, .. } = self else {
            return false;
        };
        let named = status.details.as_ref().map(|details| details.name.as_str());
        status.code == 404 && status.reason == NOT_FOUND && !name.is_empty() && named == Some(name)
    }

    pub fn retry_after(&self) -> Option<Duration> {
        let ApiError::Refused { status, .. } = self else {
            return None;
        };
        let seconds = status.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds.into()).min(MAX_RETRY_AFTER))
    }
}

/// Returns the problem of a kubeconfig or certificate, if a request failed because of it.
fn access_reason(error: &(dyn StdError + 'static)) -> Option<String> {
    if let Some(unusable) = error.downcast_ref::<UnusableAccess>() {
        return Some(unusable.to_string());
    }
    if let Some(rustls::Error::Other(OtherError(error))) = error.downcast_ref()
        && error.is::<UntrustedServer>()
    {
        return Some(error.to_string());
    }
    // The error inside an `io::Error` is not its source.
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    match inner {
        Some(inner) => access_reason(inner),
        None => access_reason(error.source()?),
    }
}

fn status_code(status: &Status) -> StatusCode {
    StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn one_line(text: &str) -> String {
    if text.is_empty() {
        return "it gives no reason".to_owned();
    }
    let text: String = text.escape_debug().take(WORDS).collect();
    text.replace("\\\"", "\"")
}

/// Returns the remedy, if there is one.
fn advice(status: &Status) -> &'static str {
    match status_code(status) {
        StatusCode::UNAUTHORIZED => {
            "; check whether the token of the service account is mounted and valid"
        }
        StatusCode::FORBIDDEN => {
            "; compare the ClusterRole and the ValidatingAdmissionPolicy with packaging/kubernetes/dra"
        }
        // A 404 that names no object concerns the API.
        StatusCode::NOT_FOUND if status.details.as_ref().is_none_or(|all| all.name.is_empty()) => {
            "; check the address of the API server, and that it serves resource.k8s.io/v1 (Kubernetes 1.34 or newer)"
        }
        _ => "",
    }
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
}
