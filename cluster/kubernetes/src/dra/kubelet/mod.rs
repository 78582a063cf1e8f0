//! What speaks against DRA on this node: what kubelet keeps of its device plugins ([`checkpoint`]), how it was
//! started ([`arguments`]), and its version.

mod arguments;
mod checkpoint;

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Error, Result};
use onload_host::host::Host;
use onload_sys::text::Quoted;
use tokio::net::UnixStream;
use tokio::time::timeout;

use self::arguments::{GATE, NO_POLICY};
use crate::wire::KUBELET_SOCKET;

/// A kubelet that takes no connection within this time is not known.
const PATIENCE: Duration = Duration::from_secs(5);

/// The first version in which [`GATE`] is on where nothing is said of it (pkg/features/kube_features.go).
const GATE_IS_ON: (u32, u32) = (1, 36);

/// Where kubelet's files and processes are.
#[derive(Clone, Debug)]
pub struct KubeletFiles {
    /// The root of the host.
    pub host_root: PathBuf,
    pub device_plugins: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Findings {
    Absent,
    /// Pods would lose something by DRA, whatever they ask for, and what.
    Against(String),
    /// Whether they would is not known, and why.
    Unknown(String),
    /// Pods had these resources from device plugins, and kubelet has not forgotten it.
    Resources(BTreeSet<String>),
}

impl KubeletFiles {
    /// What is found of kubelet, and its process where its version decides too.
    pub(super) async fn look(&self) -> (Findings, Option<u32>) {
        let found = self.findings().await;
        found.unwrap_or_else(|error| (Findings::Unknown(format!("{error:#}")), None))
    }

    /// The resources that pods had from device plugins; none where that is not known.
    pub(super) fn remembered(&self) -> BTreeSet<String> {
        checkpoint::read(&self.device_plugins).unwrap_or_default()
    }

    async fn findings(&self) -> Result<(Findings, Option<u32>)> {
        let pid = match self.listener().await {
            Err(error) if is_absent(&error) => return Ok((Findings::Absent, None)),
            pid => pid.context("asking which process kubelet is")?,
        };
        let host = Host::open(&self.host_root).map_err(Error::new);
        let settings = host.and_then(|host| arguments::settings(&host, pid));
        let settings = settings.context("kubelet's topology policy is not known")?;
        let against = match (settings.policy, settings.gate) {
            (Some(policy), _) if policy != NO_POLICY => format!(
                "kubelet aligns devices with CPUs by its topology policy {policy}, and DRA does not"
            ),
            (_, Some(false)) => format!(
                "kubelet's feature gate {GATE} is off: pods that ask for a resource would run without what DRA gives them"
            ),
            (_, gate) => {
                let resources = checkpoint::read(&self.device_plugins)?;
                let by_version = gate.is_none().then_some(pid);
                return Ok((Findings::Resources(resources), by_version));
            }
        };
        Ok((Findings::Against(against), None))
    }

    /// The process that listens where device plugins register: kubelet, whatever its name is.
    async fn listener(&self) -> io::Result<u32> {
        let connected = UnixStream::connect(self.device_plugins.join(KUBELET_SOCKET));
        let stream = timeout(PATIENCE, connected).await??;
        let pid = stream.peer_cred()?.pid();
        let pid = pid.and_then(|pid| u32::try_from(pid).ok());
        // 0 is a process of a PID namespace that this one does not see.
        pid.filter(|pid| *pid != 0)
            .ok_or_else(|| io::Error::other("it is in a PID namespace of its own"))
    }
}

/// What a kubelet of this version has against DRA.
pub(super) fn against(version: &str) -> Option<Findings> {
    let mut numbers = version.trim_start_matches('v').split('.');
    let mut number = || numbers.next()?.parse::<u32>().ok();
    let Some(known) = number().zip(number()) else {
        let version = Quoted(version);
        return Some(Findings::Unknown(format!(
            "the kubeletVersion of the Node, {version}, is not understood"
        )));
    };
    let reason = format!(
        "kubelet {version} would run pods that ask for a resource without what DRA gives them; update it to 1.36, or turn on its feature gate {GATE}"
    );
    (known < GATE_IS_ON).then_some(Findings::Against(reason))
}

fn is_absent(error: &io::Error) -> bool {
    [ErrorKind::NotFound, ErrorKind::ConnectionRefused].contains(&error.kind())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_that_does_not_know_resources_by_dra_is_told_by_its_version() {
        for version in ["v1.36.0", "v1.36.2-gke.1100", "v1.37.1+k3s1", "v2.0.0"] {
            assert_eq!(against(version), None, "{version}");
        }
        for version in ["v1.35.4", "v1.34.9-eks-1a2b3c4", "v1.9.0"] {
            let Some(Findings::Against(reason)) = against(version) else {
                panic!("{version}");
            };
            assert!(reason.starts_with(&format!("kubelet {version} ")), "{reason}");
        }
        for version in ["", "v1", "1.x.3", "unknown"] {
            assert!(matches!(against(version), Some(Findings::Unknown(_))), "{version}");
        }
    }
}
