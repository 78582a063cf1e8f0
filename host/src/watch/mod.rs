//! Waits until something may have changed that a host's offers depend on. One thread waits in poll(2), without a
//! runtime. Not everything is told, and what is told may be lost; then, and now and then, everything counts as
//! changed. Only the kernel is believed about devices: any program may send messages of that kind.

mod burst;
mod directories;
mod link;
mod namespaces;
mod uevent;
mod watcher;

pub use burst::Damping;
pub use watcher::{Waker, WatchSources, Watcher};

/// For the fuzzer.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    uevent::fuzz(bytes);
    link::fuzz(bytes);
    crate::netlink::fuzz(bytes);
}
