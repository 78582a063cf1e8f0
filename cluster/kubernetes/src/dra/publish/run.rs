//! Runs one session after the other.

use std::time::{Duration, Instant};

use onload_agent::{Backoff, LastMessage};
use tokio::sync::watch;
use tokio::time::sleep;

use super::session::{PublishSession, Publisher};
use crate::dra::DraClasses;
use crate::dra::classes::DeviceClasses;

/// A session that lasted this long counts as a success.
const GOOD: Duration = Duration::from_secs(30);

impl Publisher {
    /// Runs until the program ends.
    pub async fn run(mut self) {
        let (mut stop, mut registered) = (self.stop.clone(), self.registered.clone());
        let mut backoff = Backoff::default();
        let mut last_message = LastMessage::default();
        while self.wait_registered().await && self.wait_for_work().await {
            let begun = Instant::now();
            let ended = tokio::select! {
                ended = PublishSession::new(&mut self).run() => ended,
                _ = stop.wait_for(|stop| *stop) => return,
                _ = registered.wait_for(|registered| !*registered) => {
                    tracing::info!("kubelet has not registered the driver; not managing its \
                        ResourceSlices");
                    continue;
                }
            };
            if begun.elapsed() > GOOD {
                backoff = Backoff::default();
                last_message.clear();
            }
            let Err(error) = ended else { return };
            let wait = backoff.next();
            error.warn_once(&mut last_message, "updating the ResourceSlices failed; trying again");
            let alone = error.retry_after().unwrap_or_default();
            tokio::select! {
                () = pause(wait, alone, &mut self.dra_classes) => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    /// Waits until the driver is registered with kubelet. Returns false if the program ends first.
    async fn wait_registered(&mut self) -> bool {
        tokio::select! {
            biased;
            _ = self.stop.wait_for(|stop| *stop) => false,
            known = self.registered.wait_for(|registered| *registered) => known.is_ok(),
        }
    }

    /// Waits until there are devices to publish or slices that may have to be deleted. Without permissions, for example
    /// if packaging/kubernetes/dra is not applied, there are neither. Returns false if the program ends first.
    async fn wait_for_work(&mut self) -> bool {
        loop {
            let dra_classes = self.dra_classes.borrow_and_update().clone();
            let has_rights = match &*self.device_classes.borrow_and_update() {
                DeviceClasses::Classes(_) => true,
                DeviceClasses::Nothing => dra_classes.undecided.is_empty(),
                DeviceClasses::Refused => false,
            };
            if !dra_classes.classes.is_empty() || has_rights {
                return true;
            }
            tokio::select! {
                changed = self.dra_classes.changed() => if changed.is_err() { return false },
                Ok(()) = self.device_classes.changed() => {}
                _ = self.stop.wait_for(|stop| *stop) => return false,
            }
        }
    }
}

/// Waits before the next attempt. A change of the classes ends the wait early, except during the time of the server's
/// Retry-After.
async fn pause(wait: Duration, alone: Duration, dra_classes: &mut watch::Receiver<DraClasses>) {
    sleep(alone).await;
    tokio::select! {
        () = sleep(wait.saturating_sub(alone)) => {}
        Ok(()) = dra_classes.changed() => {}
    }
}
