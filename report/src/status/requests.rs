//! The granted and requested devices of a container, from its configuration or environment. Users who create containers
//! can write both, so they only indicate what may be.

use std::collections::BTreeMap;
use std::path::Path;

use onload_core::request::{DOMAIN, PREFIX, Request, VARIABLE, is_sandbox};
use onload_host::generate::parse_assignment;
use onload_sys::text::{Quoted, quote_for_shell};
use serde::{Deserialize, Serialize};
use strsim::damerau_levenshtein;

use super::cgroup::ContainerEngine;
use super::names::ContainerConfig;
use super::state::{Verdict, VerdictState};

const MAX_REQUESTS: usize = 64;
/// Letters of a key that are compared, and how many of them may be wrong.
const COMPARED: usize = 24;
const WRONG: usize = 1;
/// The name of our runtime in engines, and its file.
const OUR_RUNTIME_NAMES: [&str; 2] = ["onload", "onload-container-runtime"];

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
    engine: ContainerEngine,
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
        let start = start_advice(engine);
        return match runtime {
            Some(name) if OUR_RUNTIME_NAMES.contains(&name) => unanswered(
                format!(
                    "it requests devices by {origin}, its runtime is {name}, but it has none of \
                     them"
                ),
                &format!("see why: onload-ctk container explain {}", quote_for_shell(bundle)),
            ),
            Some(name) => unanswered(
                format!(
                    "it requests devices by {origin}, but its runtime is {name}, which does not \
                     read that"
                ),
                &start,
            ),
            None => unanswered(
                format!(
                    "it requests devices by {origin}, but neither its runtime nor a hook of its \
                     engine has read that"
                ),
                &format!("{start}; onload-ctk doctor checks the engine's configuration"),
            ),
        };
    }
    if let Some(key) = labels.keys().find(|key| is_onload_key(key) || resembles_key(key)) {
        let reason = format!("it has the label {}, but labels request nothing", Quoted(key));
        return unanswered(
            reason,
            "use an annotation (--annotation), and start it with --runtime onload",
        );
    }
    if let Some(key) = config.annotations.keys().find(|key| resembles_key(key)) {
        let reason =
            format!("its annotation {} resembles {PREFIX}CLASS, but is ignored", Quoted(key));
        return unanswered(reason, "correct it, and start it with the runtime onload");
    }
    let (name, _) = variables().find(|(name, _)| resembles_variable(name))?;
    let reason = format!("its variable {} resembles {VARIABLE}, but is ignored", Quoted(name));
    unanswered(reason, "correct it, and start it with the runtime onload")
}

/// How a container of this engine gets what it asks for.
fn start_advice(engine: ContainerEngine) -> String {
    let (cdi, runtime) = match engine {
        ContainerEngine::Docker | ContainerEngine::Podman => {
            let engine = engine.as_str();
            (
                "request by --device onload.dev/CLASS=NAME; or ",
                format!("{engine} run --runtime onload"),
            )
        }
        ContainerEngine::Containerd | ContainerEngine::Crio => {
            ("", "in the pod: runtimeClassName: onload".to_owned())
        }
        ContainerEngine::Unknown => ("", "--runtime onload".to_owned()),
    };
    format!(
        "{cdi}start it with the runtime onload ({runtime}), which provides the classes in \
         [annotations] allow"
    )
}

/// Whether a variable may hold a request, or name a ticket.
fn is_variable(name: &str) -> bool {
    let rest = name.strip_prefix(VARIABLE);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

fn is_onload_key(key: &str) -> bool {
    key == DOMAIN || key.starts_with(PREFIX)
}

/// Whether a key that is not ours resembles one: `onlaod.dev/nic`, `onload/nic`, `onload-dev.nic`, `Onload.dev/nic`.
fn resembles_key(key: &str) -> bool {
    let domain = key.split('/').next().unwrap_or_default();
    let begin = |max: usize| domain.chars().take(max).collect::<String>().to_lowercase();
    let resembles_domain = |text: &str| damerau_levenshtein(text, DOMAIN) <= WRONG;
    !is_onload_key(key)
        && (begin(COMPARED) == "onload"
            || resembles_domain(&begin(COMPARED))
            || resembles_domain(&begin(DOMAIN.len())))
}

fn resembles_variable(name: &str) -> bool {
    let short = name.chars().take(COMPARED).collect::<String>().to_uppercase();
    name != VARIABLE
        && (short == "ONLOAD_REQUEST" || damerau_levenshtein(&short, VARIABLE) <= WRONG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_people_write_for_ours_are_near_and_those_of_others_are_not() {
        for near in [
            "onlaod.dev/nic",
            "onload/nic",
            "onload.dev.nic",
            "onload-dev/nic",
            "Onload.dev/nic",
            "onloaddev/hugepages",
            "onload.de/nic",
        ] {
            assert!(resembles_key(near), "{near}");
        }
        for other in [
            "onload.dev/nic",
            "onload.dev",
            "onload.amd.com/kernel",
            "reload.dev.example/x",
            "io.kubernetes.pod.name",
            "",
            "/",
            "org.onload.dev/nic",
        ] {
            assert!(!resembles_key(other), "{other}");
        }
        for near in
            ["ONLOAD_CTK_REQEUST", "onload_ctk_request", "ONLOAD_CTK_REQUESTS", "ONLOAD_REQUEST"]
        {
            assert!(resembles_variable(near), "{near}");
        }
        for other in ["ONLOAD_CTK_REQUEST", "ONLOAD_CTK_NIC_ENS1", "ONLOAD_CTK_RDMA_X", "PATH", ""]
        {
            assert!(!resembles_variable(other), "{other}");
        }
    }
}
