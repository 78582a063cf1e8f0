//! The granted and requested devices of a container, from its configuration or environment. Users who create containers
//! can write both, so they only indicate what may be.

use std::collections::BTreeMap;
use std::path::Path;

use onload_core::request::{DOMAIN, PREFIX, Request, VARIABLE, is_sandbox};
use onload_engines::our_runtime::RUNTIME_NAME;
use onload_host::generate::parse_assignment;
use onload_sys::text::{Quoted, quote_for_shell};
use serde::{Deserialize, Serialize};

use super::names::ContainerConfig;
use super::state::{Verdict, VerdictState};

const MAX_REQUESTS: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Grant {
    /// As CLASS=NAME.
    pub device: String,
    pub by: Evidence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    Configuration,
    /// The environment of its first process, which the process can change.
    Environment,
}

pub(super) fn parse_grants<'v>(
    variables: impl Iterator<Item = &'v str>,
    by: Evidence,
) -> Vec<Grant> {
    let mut grants: Vec<Grant> = variables
        .filter_map(parse_assignment)
        .take(MAX_REQUESTS)
        .map(|(class, name)| Grant { device: format!("{class}={name}"), by })
        .collect();
    grants.sort();
    grants.dedup();
    grants
}

/// Returns why a container with a request has no devices, or `None` without a request. `runtime` is what made it.
pub(super) fn unanswered_verdict(
    config: &ContainerConfig,
    labels: &BTreeMap<String, String>,
    runtime: Option<&str>,
    bundle: &Path,
) -> Option<Verdict> {
    if is_sandbox(&config.annotations) {
        return None;
    }
    let unanswered = |reason: String, remedy: &str| {
        Some(Verdict::with_remedy(VerdictState::NothingGiven, reason, remedy))
    };
    let variables = || config.process.env.iter().filter_map(|variable| variable.split_once('='));
    let variable = variables().find(|(name, value)| is_variable(name) && !value.trim().is_empty());
    let annotation = config.annotations.keys().find(|key| is_onload_key(key));
    // A request for another container of the pod is ignored.
    let request_key =
        annotation.filter(|_| !matches!(Request::parse(&config.annotations), Ok(None)));
    let origin = match (request_key, variable) {
        (Some(key), _) => Some(format!("annotation {}", Quoted(key))),
        (None, variable) => variable.map(|(name, _)| format!("the variable {name}")),
    };
    if let Some(origin) = origin {
        let requests = format!("it requests devices by {origin}");
        return match runtime {
            Some(RUNTIME_NAME) => unanswered(
                format!("{requests}, its runtime is {RUNTIME_NAME}, but it has none of them"),
                &format!("see why: onload-ctk container explain {}", quote_for_shell(bundle)),
            ),
            Some(name) => unanswered(
                format!("{requests}, but its runtime is {name}, which does not read that"),
                START_ADVICE,
            ),
            None => unanswered(
                format!("{requests}, but it has none of them"),
                &format!("{START_ADVICE}; onload-ctk doctor checks the engine's configuration"),
            ),
        };
    }
    let label = labels.keys().find(|key| is_onload_key(key))?;
    unanswered(
        format!("it has the label {}, but labels request nothing", Quoted(label)),
        "use an annotation (--annotation), and start it with --runtime onload",
    )
}

/// How a container gets what it asks for.
const START_ADVICE: &str = "request by --device onload.dev/CLASS=NAME, or start it with the \
     runtime onload (--runtime onload; in a pod, runtimeClassName: onload), which provides the \
     classes in [annotations] allow";

/// Whether a variable may hold a request, or name a ticket.
fn is_variable(name: &str) -> bool {
    let rest = name.strip_prefix(VARIABLE);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

fn is_onload_key(key: &str) -> bool {
    key == DOMAIN || key.starts_with(PREFIX)
}
