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
    /// The parent of this process. Where it cannot be watched, the plugin stays until it is told to end.
    pub fn parent() -> NomadAgent {
        let process = getppid().and_then(|parent| pidfd_open(parent, PidfdFlags::empty()).ok());
        // tokio's safe constructor is deprecated for types whose descriptor may change while it is registered. That
        // of an `OwnedFd` cannot.
        #[allow(deprecated)]
        let process = process.and_then(|process| AsyncFd::new(process).ok());
        NomadAgent { process }
    }

    /// Ends when the agent has ended and leaves behind a plugin that no other agent will look for: Nomad finds the one
    /// again whose configuration was taken.
    pub async fn wait_abandoned(self, mut is_configured: watch::Receiver<bool>) {
        let Some(process) = self.process else {
            return pending().await;
        };
        // A pidfd is readable from the end of its process on (pidfd_open(2)).
        if process.readable().await.is_err() {
            return pending().await;
        }
        // Where nobody can configure it any more, that is so too.
        let _ = is_configured.wait_for(|is| !is).await;
    }
}
