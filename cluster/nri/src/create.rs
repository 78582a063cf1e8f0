//! Handles the request for a container that is about to be created.

use memchr::memmem;
use onload_core::request::DOMAIN;
use onload_hooks::config::adjust::adjust;
use onload_hooks::decide::host_view::HostView;
use onload_hooks::decide::pools::{PoolChoice, Pools, Reservation};
use onload_sys::error::{Context, Error, Result};
use onload_sys::text::to_one_line;
use prost::Message;

use crate::answer;
use crate::container::{self, ContainerRequest};
use crate::runtime::NriRuntime;
use crate::wire::messages::{CreateContainerRequest, CreateContainerResponse};

/// Formats an error on one line, for the pod's events.
#[must_use]
pub fn format_error_line(error: &Error) -> String {
    format!("onload-nri: {}", to_one_line(&format!("{error:#}")))
}

#[derive(Debug, Default)]
pub struct CreateAnswer {
    pub payload: Vec<u8>,
    /// The devices that were chosen of pools, and are not reserved yet.
    pub choice: Option<PoolChoice>,
    /// The devices that are reserved. The reservation is cancelled if the runtime does not get the answer.
    pub reservation: Option<Reservation>,
    /// The container and its devices, for the log. `None` if it requested nothing.
    pub granted: Option<String>,
    pub warnings: Vec<String>,
    pub reasons: Vec<String>,
}

#[derive(Debug)]
pub struct CreateFailure {
    pub container: String,
    pub error: Error,
}

/// Returns whether a message may contain a request.
pub(crate) fn has_request(message: &[u8]) -> bool {
    // Protobuf stores text without escapes, so a byte search is sufficient.
    memmem::find(message, DOMAIN.as_bytes()).is_some()
}

pub type DecideFn<'a> = &'a dyn Fn(&dyn HostView, &dyn Pools) -> Result<CreateAnswer>;

/// Decides what a container gets. Answers a container without a request without parsing the message or reading the host.
/// For other containers calls `with_host` once, which decides and reserves the chosen devices.
pub fn create(
    message: &[u8],
    runtime: &NriRuntime,
    with_host: &dyn Fn(DecideFn<'_>) -> Result<CreateAnswer>,
) -> Result<CreateAnswer, CreateFailure> {
    if !has_request(message) {
        return Ok(CreateAnswer::default());
    }
    let create_request = CreateContainerRequest::decode(message)
        .context("reading the runtime's message about the container")
        .map_err(|error| CreateFailure { container: "a container".to_owned(), error })?;
    let description = container::describe_container(&create_request);
    let answer = match container::read(create_request, runtime) {
        Ok(Some(request)) => answer::check(&request.request, runtime).and_then(|()| {
            with_host(&|host, pools| decide(&request, &description, runtime, host, pools))
        }),
        Ok(None) => Ok(CreateAnswer::default()),
        Err(error) => Err(error),
    };
    answer.map_err(|error| CreateFailure { container: description, error })
}

fn decide(
    request: &ContainerRequest,
    description: &str,
    runtime: &NriRuntime,
    host: &dyn HostView,
    pools: &dyn Pools,
) -> Result<CreateAnswer> {
    let adjustment = adjust(request.config.clone(), &request.id, host, pools)?;
    let Some(adjustment) = adjustment else {
        return Ok(CreateAnswer::default());
    };
    let container_adjustment = answer::build_answer(&adjustment, &request.held_names, runtime)?;
    let answer = CreateContainerResponse { adjust: Some(container_adjustment) };
    let lines =
        |lines: Vec<String>| lines.iter().map(|line| format!("{description}: {line}")).collect();
    Ok(CreateAnswer {
        payload: answer.encode_to_vec(),
        choice: adjustment.choice,
        reservation: None,
        granted: Some(format!("{description}: given {}", adjustment.report.granted)),
        warnings: lines(adjustment.report.warnings),
        reasons: lines(adjustment.report.reasons),
    })
}
