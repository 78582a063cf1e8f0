//! Signals that a user sends to a command that waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, bail};
use nix::sys::signal::{SigSet, Signal};

/// Whether the user wants it to end. From here on signals no longer end this program by themselves, so that it can
/// clean up; its children are in process groups of their own, where no terminal sends them any.
#[derive(Clone, Debug, Default)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub(super) fn watch() -> anyhow::Result<Interrupt> {
        let mut signals = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            signals.add(signal);
        }
        signals.thread_block().context("blocking signals")?;
        let interrupt = Interrupt::default();
        let shared = interrupt.clone();
        thread::spawn(move || {
            while signals.wait().is_ok() {
                shared.raise();
            }
        });
        Ok(interrupt)
    }

    pub(super) fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn refuse(&self) -> anyhow::Result<()> {
        if self.0.load(Ordering::Relaxed) {
            bail!("interrupted by a signal");
        }
        Ok(())
    }
}
