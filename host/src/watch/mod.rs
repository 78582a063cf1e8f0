//! Waits until something may have changed that a host's offers depend on: its devices, the links of its
//! interfaces, its specifications, leases and configuration.
//!
//! One thread waits in poll(2), and there is no runtime: each agent of a cluster engine gives it a thread of
//! its own. Not everything is told, and what is told may be lost; then, and now and then, everything counts
//! as changed. Only the kernel is believed about devices: any program may send messages of that kind.

mod burst;
mod changes;
mod directories;
mod link;
mod namespaces;
mod renewed;
mod socket;
mod uevent;
mod watcher;

pub use burst::Damping;
pub use changes::Changes;
pub use renewed::{Failure, Renewed};
pub use watcher::{Sources, Waker, Watcher};

/// Gives bytes to the parsers of what the kernel tells. They are private, so only a fuzzer sees them.
///
/// # Panics
/// A parser panics, or returns what it must not.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    uevent::fuzz(bytes);
    link::fuzz(bytes);
    crate::netlink::fuzz(bytes);
}
