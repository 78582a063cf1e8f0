//! The process that started the plugin.

use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getppid, pidfd_open};
use tokio::sync::{oneshot, watch};

#[derive(Debug)]
pub struct Agent {
    end: oneshot::Receiver<()>,
}

impl Agent {
    /// The parent of this process. Where it cannot be watched, the plugin stays until it is told to end.
    pub fn of_this_process() -> Agent {
        let (told, end) = oneshot::channel();
        let process = getppid().and_then(|parent| pidfd_open(parent, PidfdFlags::empty()).ok());
        if let Some(process) = process {
            let wait = move || {
                if wait_for_end(&process).is_ok() {
                    let _ = told.send(());
                }
            };
            let _ = thread::Builder::new().name("agent".to_owned()).spawn(wait);
        }
        Agent { end }
    }

    /// Ends when the agent has ended and leaves behind a plugin that no other agent will look for: Nomad finds the one
    /// again whose configuration was taken.
    pub async fn abandons(self, mut is_configured: watch::Receiver<bool>) {
        if self.end.await.is_err() {
            return pending().await;
        }
        // Where nobody can configure it any more, that is so too.
        let _ = is_configured.wait_for(|is| !is).await;
    }
}

/// A pidfd is readable from the end of its process on (pidfd_open(2)).
fn wait_for_end(process: &OwnedFd) -> io::Result<()> {
    loop {
        match poll(&mut [PollFd::new(process, PollFlags::IN)], None) {
            Err(Errno::INTR) => {}
            polled => return Ok(polled.map(drop)?),
        }
    }
}
