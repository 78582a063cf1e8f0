//! Waits until something may have changed that a host's offers depend on. One thread waits in poll(2), without an async
//! runtime. Some changes cause no event, and events may be lost, so everything counts as changed after a loss and at
//! regular intervals. Only events from the kernel are trusted, since any program may send such messages.

mod directories;
mod link;
mod uevent;
mod watcher;

pub use watcher::{Damping, Waker, WatchSources, Watcher};

/// For the fuzzer.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    uevent::fuzz(bytes);
    link::fuzz(bytes);
    crate::netlink::fuzz(bytes);
}
