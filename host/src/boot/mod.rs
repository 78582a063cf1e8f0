//! The host at boot: virtual functions, huge pages and what else the sections `[[sriov]]` and `[host]` of
//! the configuration want of the host itself.
//!
//! [`plan()`] reads a host and decides what has to change, by one file a resource; it changes nothing.
//! [`apply()`] does that, and reads again after each step.

mod af_xdp;
mod apply;
mod hugepages;
mod kernel;
mod netlink;
mod plan;
mod rdma_netns;
mod running;
mod sriov;
mod step;
#[cfg(test)]
mod tests;
mod users;

/// Gives a text to every parser of the kernel's tables and answers. The parsers are private, so only a
/// fuzzer sees them together.
///
/// # Panics
/// A parser panics, or returns what it must not.
#[cfg(fuzzing)]
pub fn fuzz(text: &str) {
    netlink::fuzz(text.as_bytes());
    users::fuzz(text.as_bytes());
}

pub use apply::{Outcome, Stage, apply};
pub use kernel::{Kernel, KernelError, VfChange, VfSettings};
pub use plan::plan;
pub use running::{Absent, Running};
pub use step::{Action, Effect, Plan, Refusal, Step, Subject};
