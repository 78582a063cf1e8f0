//! Why the API server did not do what it was asked.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use http::StatusCode;
use onload_core::text::Quoted;

/// Why the API server cannot be asked at all.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// Nothing says where it is.
    #[error(
        "finding the API server: this is no pod of Kubernetes, and no kubeconfig is named; give --kubeconfig"
    )]
    Nowhere,
    /// A file cannot be read.
    #[error("reading {} for the API server", .path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("reading kubeconfig {}", .path.display())]
    Kubeconfig {
        path: PathBuf,
        source: Box<serde_saphyr::Error>,
    },
    /// The kubeconfig has something that is not served here, or lacks something.
    #[error("kubeconfig {}: {why}", .path.display())]
    Unusable {
        path: PathBuf,
        /// What, and what to do.
        why: String,
    },
    /// The address of the server is none.
    #[error("{} is no address of an API server; expected https://HOST:PORT", Quoted(.0))]
    Address(String),
    /// Certificates or keys are not usable.
    #[error("taking {what} for the API server")]
    Certificates {
        what: &'static str,
        source: Box<dyn Error + Send + Sync>,
    },
}

/// Why a request has failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The token cannot be read.
    #[error("{what}")]
    Token {
        /// What was being done.
        what: String,
        source: AccessError,
    },
    /// The server cannot be reached, or the connection broke.
    #[error("{what}: the API server cannot be reached")]
    Unreachable {
        /// What was being done.
        what: String,
        source: Box<dyn Error + Send + Sync>,
    },
    #[error("{what}: the API server has not answered within {} s", .after.as_secs())]
    Slow {
        /// What was being done.
        what: String,
        /// How long was waited.
        after: Duration,
    },
    #[error("{what}: the API server answered {status}: {message}{}", advice(*.status))]
    Refused {
        /// What was being done.
        what: String,
        status: StatusCode,
        /// Its reason, as one line.
        message: String,
        /// The object that it says is not there.
        absent: Option<String>,
        /// How long it wants to be left alone.
        retry_after: Option<Duration>,
    },
    /// The answer is not understood.
    #[error("{what}: the answer of the API server is not understood")]
    Answer {
        /// What was being done.
        what: String,
        source: serde_json::Error,
    },
    /// The answer is longer than any that was asked for.
    #[error("{what}: the API server's answer has more than {most} bytes")]
    TooLong {
        /// What was being done.
        what: String,
        /// The most that is read.
        most: usize,
    },
}

impl ApiError {
    /// The status of a refusal.
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

    /// How long the server wants to be left alone.
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
