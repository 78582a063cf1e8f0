//! The process that started the plugin.

use std::future::pending;
use std::os::fd::OwnedFd;

use rustix::process::{PidfdFlags, getppid, pidfd_open};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

#[derive(Debug)]
pub struct NomadAgent {
    process: Option<AsyncFd<OwnedFd>>,
}

impl NomadAgent {
    /// Watches the parent of this process. If that is impossible, the plugin runs until it is told to end.
    pub fn parent() -> NomadAgent {
        let process = getppid().and_then(|parent| pidfd_open(parent, PidfdFlags::empty()).ok());
        // tokio's safe constructor is deprecated for types whose descriptor may change while it is registered, which an
        // `OwnedFd` does not do.
        #[allow(deprecated)]
        let process = process.and_then(|process| AsyncFd::new(process).ok());
        NomadAgent { process }
    }

    /// Returns once the agent has ended and no later agent will use this plugin: Nomad reattaches to a configured
    /// plugin.
    pub async fn wait_abandoned(self, mut is_configured: watch::Receiver<bool>) {
        let Some(process) = self.process else {
            return pending().await;
        };
        // A pidfd becomes readable when its process ends (pidfd_open(2)).
        if process.readable().await.is_err() {
            return pending().await;
        }
        // A closed channel means that the plugin can no longer be configured, so this returns too.
        let _ = is_configured.wait_for(|is| !is).await;
    }
}
