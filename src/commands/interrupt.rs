//! Signals that a user sends to a command that waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{SigSet, Signal};

/// Whether the user wants it to end. Handles signals so that the program can clean up. Children are in separate process
/// groups, which get no signals from the terminal.
#[derive(Clone, Debug, Default)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub(super) fn watch() -> Result<Interrupt> {
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

    pub(super) fn refuse(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            bail!("interrupted by a signal");
        }
        Ok(())
    }
}
