//! A container that is about to be created: the runtime's message to our answer.

use memchr::memmem;
use onload_core::request::DOMAIN;
use onload_hooks::config::adjust::adjust;
use onload_hooks::decide::host::HostView;
use onload_hooks::decide::pools::{Pools, Reserved};
use onload_sys::error::{Context, Error, Result};
use onload_sys::text::to_one_line;
use prost::Message;

use crate::answer;
use crate::container::{self, Asking};
use crate::runtime::Runtime;
use crate::wire::messages::{CreateContainerRequest, CreateContainerResponse};

/// One line for the pod's events.
#[must_use]
pub fn line(error: &Error) -> String {
    format!("onload-nri: {}", to_one_line(&format!("{error:#}")))
}

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

#[derive(Debug)]
pub struct Failure {
    pub of: String,
    pub error: Error,
}

pub type Decide<'a> = &'a dyn Fn(&dyn HostView, &dyn Pools) -> Result<Created>;

/// Decides what a container gets. One that asks for nothing is answered without being read, and nothing
/// of the host is looked at; else `with_host` is called once with what decides. It keeps what is chosen.
pub fn create(
    message: &[u8],
    runtime: &Runtime,
    with_host: &dyn Fn(Decide<'_>) -> Result<Created>,
) -> Result<Created, Failure> {
    // Text stands in protobuf as it is: no spelling of it escapes a letter.
    if memmem::find(message, DOMAIN.as_bytes()).is_none() {
        return Ok(Created::default());
    }
    let asked = CreateContainerRequest::decode(message)
        .context("reading what the runtime says of the container")
        .map_err(|error| Failure { of: "a container".to_owned(), error })?;
    let of = container::shown(&asked);
    let decided = || match container::read(asked, runtime)? {
        Some(asking) => {
            answer::check(&asking.request, runtime)?;
            with_host(&|host, pools| decide(&asking, &of, runtime, host, pools))
        }
        None => Ok(Created::default()),
    };
    decided().map_err(|error| Failure { of: of.clone(), error })
}

fn decide(
    asking: &Asking,
    of: &str,
    runtime: &Runtime,
    host: &dyn HostView,
    pools: &dyn Pools,
) -> Result<Created> {
    let decided = adjust(asking.config.clone(), &asking.id, host, pools)?;
    let Some(decided) = decided else {
        return Ok(Created::default());
    };
    let worded = answer::word(&decided, &asking.held_names, runtime)?;
    let answer = CreateContainerResponse { adjust: Some(worded) };
    let lines = |lines: Vec<String>| lines.iter().map(|line| format!("{of}: {line}")).collect();
    Ok(Created {
        payload: answer.encode_to_vec(),
        reserved: decided.reserved,
        given: Some(format!("{of}: given {}", decided.given)),
        warnings: lines(decided.warnings),
        reasons: lines(decided.reasons),
    })
}
