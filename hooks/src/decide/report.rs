//! The report about a container that received devices.

use onload_core::config::LogConfig;
use onload_core::request::Request;

/// The report about one container: warnings go to the user who started it, everything goes to the operator's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerReport {
    pub warnings: Vec<String>,
    /// The granted devices on one line, or an empty text.
    pub granted: String,
    /// Why, step by step.
    pub reasons: Vec<String>,
    pub log: LogConfig,
}

impl ContainerReport {
    pub(crate) fn from_warnings(warnings: Vec<String>, log: LogConfig) -> ContainerReport {
        ContainerReport { warnings, log, ..ContainerReport::default() }
    }
}

/// Formats a request on one line: `nic=all rdma=mlx5_0,mlx5_1 ipc-lock`, behind `bundle=NAME` where it came by that.
/// Names of devices need no quotes.
pub(crate) fn describe_request(request: &Request) -> String {
    let mut words = Vec::new();
    for bundle in request.bundles.iter().flat_map(|entry| &entry.value) {
        words.push(format!("bundle={}", bundle.name));
    }
    for (class, entry) in &request.devices {
        let names: Vec<String> = entry.value.iter().map(ToString::to_string).collect();
        words.push(format!("{class}={}", names.join(",")));
    }
    if request.ipc_lock.is_some() {
        words.push("ipc-lock".to_owned());
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_request_is_one_line() {
        let pairs = [
            ("onload.dev/rdma", "mlx5_1, mlx5_0"),
            ("onload.dev/nic", "all"),
            ("onload.dev/ipc-lock", "true"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()));
        let request = Request::parse(&BTreeMap::from(pairs)).unwrap().unwrap();
        assert_eq!(describe_request(&request), "nic=all rdma=mlx5_1,mlx5_0 ipc-lock");
    }
}
