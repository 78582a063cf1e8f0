//! One session after the other.

use std::time::Duration;

use onload_core::text::Chain;
use tokio::sync::watch;
use tokio::time::sleep;

use super::publisher::{PublishError, Published, Publisher};
use super::session::Session;
use crate::plugin::Backoff;

impl Publisher {
    /// Until the program ends.
    pub async fn run(mut self, published: watch::Sender<Published>) {
        let (mut stop, mut registered) = (self.stop.clone(), self.registered.clone());
        let mut backoff = Backoff::default();
        let mut said = String::new();
        while self.is_registered().await {
            let mut session = Session::new(&mut self, &published);
            let ended = tokio::select! {
                ended = session.run() => ended,
                _ = stop.wait_for(|stop| *stop) => return,
                _ = registered.wait_for(|registered| !registered.now) => {
                    tracing::info!("kubelet does not know the driver; its ResourceSlices are left to it");
                    continue;
                }
            };
            if session.was_good() {
                backoff = Backoff::default();
                said.clear();
            }
            let Err(error) = ended else { return };
            let wait = backoff.next().max(error.retry_after().unwrap_or_default());
            say(&error, &mut said);
            if self.is_stopped_within(wait).await {
                return;
            }
        }
    }

    /// Waits until kubelet knows the driver; false if the program ends first.
    async fn is_registered(&mut self) -> bool {
        tokio::select! {
            biased;
            _ = self.stop.wait_for(|stop| *stop) => false,
            known = self.registered.wait_for(|registered| registered.now) => known.is_ok(),
        }
    }

    async fn is_stopped_within(&mut self, wait: Duration) -> bool {
        tokio::select! {
            () = sleep(wait) => false,
            _ = self.stop.wait_for(|stop| *stop) => true,
        }
    }
}

/// Says what is wrong, once.
fn say(error: &PublishError, said: &mut String) {
    if error.is_gone() {
        tracing::debug!(%error, "the ResourceSlices are listed anew");
        return;
    }
    let text = Chain(error).to_string();
    if *said != text {
        tracing::warn!(error = %text, "the ResourceSlices are not kept up to date; trying again");
        *said = text;
    }
}
