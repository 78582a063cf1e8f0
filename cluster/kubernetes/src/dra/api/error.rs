//! Why the API server did not do what it was asked.

use std::time::Duration;

use http::StatusCode;

#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("{what}: the API server answered {status}: {message}{}", advice(*.status))]
    Refused {
        what: String,
        status: StatusCode,
        /// Its reason, as one line.
        message: String,
        /// The object that it says is not there.
        absent: Option<String>,
        retry_after: Option<Duration>,
    },
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

impl ApiError {
    #[must_use]
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            ApiError::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether what was asked from is too old, so that all has to be read again.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.status() == Some(StatusCode::GONE)
    }

    /// Whether the server says that it has no object of this name. A 404 alone does not say that.
    #[must_use]
    pub fn is_absent(&self, name: &str) -> bool {
        match self {
            ApiError::Refused { absent, .. } => !name.is_empty() && absent.as_deref() == Some(name),
            _ => false,
        }
    }

    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            ApiError::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// What to do about it, where that is known.
fn advice(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => {
            "; look whether the token of the service account is mounted and valid"
        }
        StatusCode::FORBIDDEN => {
            "; compare the ClusterRole and the ValidatingAdmissionPolicy with packaging/kubernetes/dra"
        }
        _ => "",
    }
}
