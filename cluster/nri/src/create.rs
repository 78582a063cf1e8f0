//! A container that is about to be created: the runtime's message to our answer.

use memchr::memmem;
use onload_core::request::DOMAIN;
use onload_core::text::{Chain, one_line};
use onload_hooks::adjust::adjust;
use onload_hooks::decision::pools::{Pools, Reserved, or_give_back};
use onload_hooks::host::HostView;
use prost::Message;

use crate::answer::{self, Refusal};
use crate::container::{self, Asking, ContainerError};
use crate::runtime::Runtime;
use crate::wire::messages::{CreateContainerRequest, CreateContainerResponse};

/// Why the container is not created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    #[error("reading what the runtime says of the container")]
    Message(#[from] prost::DecodeError),
    /// The files of the host cannot be used.
    #[error(transparent)]
    Host(onload_core::error::Error),
    /// What it asks for cannot be read.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// It does not get what it asks for.
    #[error(transparent)]
    Filter(#[from] Box<onload_core::error::Error>),
    /// The runtime cannot be told.
    #[error(transparent)]
    Refusal(#[from] Refusal),
}

impl CreateError {
    /// One line for the pod's events.
    #[must_use]
    pub fn line(&self) -> String {
        format!("onload-nri: {}", one_line(&Chain(self).to_string()))
    }
}

/// What was decided of a container.
#[derive(Debug, Default)]
pub struct Created {
    pub payload: Vec<u8>,
    /// Members of pools that are kept for it; they are given back if nobody gets the answer.
    pub reserved: Option<Reserved>,
    /// For the log: which container, and what it was given; none if it asked for nothing.
    pub given: Option<String>,
    pub warnings: Vec<String>,
    pub reasons: Vec<String>,
}

/// Why a container is not created, and which one, as far as that is known.
#[derive(Debug)]
pub struct Failure {
    pub of: String,
    pub error: CreateError,
}

/// Decides with a host and its pools.
pub type Decide<'a> = &'a dyn Fn(&dyn HostView, &dyn Pools) -> Result<Created, CreateError>;

/// Decides what a container gets. One that asks for nothing is answered without being read, and nothing
/// of the host is looked at; else `with_host` is called once with what decides.
///
/// # Errors
/// [`Failure`]: the container is not created. Nothing is kept for it then.
pub fn create(
    message: &[u8],
    runtime: &Runtime,
    with_host: &dyn Fn(Decide<'_>) -> Result<Created, CreateError>,
) -> Result<Created, Failure> {
    // Text stands in protobuf as it is: no spelling of it escapes a letter.
    if memmem::find(message, DOMAIN.as_bytes()).is_none() {
        return Ok(Created::default());
    }
    let unknown = |error| Failure {
        of: "a container".to_owned(),
        error,
    };
    let asked = CreateContainerRequest::decode(message).map_err(|error| unknown(error.into()))?;
    let of = container::shown(&asked);
    let decided = || match container::read(asked, runtime)? {
        Some(asking) => {
            answer::check(&asking.request)?;
            with_host(&|host, pools| decide(&asking, &of, runtime, host, pools))
        }
        None => Ok(Created::default()),
    };
    decided().map_err(|error| Failure {
        of: of.clone(),
        error,
    })
}

fn decide(
    asking: &Asking,
    of: &str,
    runtime: &Runtime,
    host: &dyn HostView,
    pools: &dyn Pools,
) -> Result<Created, CreateError> {
    let decided = adjust(asking.config.clone(), &asking.id, host, pools).map_err(Box::new)?;
    let Some(decided) = decided else {
        return Ok(Created::default());
    };
    let worded = answer::word(&decided, &asking.request, &asking.held_names, runtime);
    let worded = or_give_back(worded, decided.reserved.as_ref(), pools)?;
    let answer = CreateContainerResponse {
        adjust: Some(worded),
    };
    let lines = |lines: Vec<String>| lines.iter().map(|line| format!("{of}: {line}")).collect();
    Ok(Created {
        payload: answer.encode_to_vec(),
        reserved: decided.reserved,
        given: Some(format!("{of}: given {}", decided.given)),
        warnings: lines(decided.warnings),
        reasons: lines(decided.reasons),
    })
}
