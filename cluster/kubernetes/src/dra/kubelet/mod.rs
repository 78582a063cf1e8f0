//! What speaks against DRA on this node: what kubelet keeps of its device plugins ([`checkpoint`]), and how it was
//! started ([`arguments`]).

mod arguments;
mod checkpoint;

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Error, Result};
use onload_host::host::Host;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::wire::KUBELET_SOCKET;

/// A kubelet that takes no connection within this time is not known.
const PATIENCE: Duration = Duration::from_secs(5);

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
    pub(super) async fn look(&self) -> Findings {
        let found = self.findings().await;
        found.unwrap_or_else(|error| Findings::Unknown(format!("{error:#}")))
    }

    /// The resources that pods had from device plugins; none where that is not known.
    pub(super) fn remembered(&self) -> BTreeSet<String> {
        checkpoint::read(&self.device_plugins).unwrap_or_default()
    }

    async fn findings(&self) -> Result<Findings> {
        let pid = match self.listener().await {
            Err(error) if is_absent(&error) => return Ok(Findings::Absent),
            pid => pid.context("asking which process kubelet is")?,
        };
        let host = Host::open(&self.host_root).map_err(Error::new);
        let policy = host.and_then(|host| arguments::topology_policy(&host, pid));
        let policy = policy.context("kubelet's topology policy is not known")?;
        if policy != arguments::NO_POLICY {
            return Ok(Findings::Against(format!(
                "kubelet aligns devices with CPUs by its topology policy {policy}, and DRA does not"
            )));
        }
        Ok(Findings::Resources(checkpoint::read(&self.device_plugins)?))
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

fn is_absent(error: &io::Error) -> bool {
    [ErrorKind::NotFound, ErrorKind::ConnectionRefused].contains(&error.kind())
}
