//! Leases: which container holds which device.
//!
//! A lease is a file in `/run/onload-ctk/@leases`, which only root can enter. The createRuntime hook
//! writes it when a container starts. It ends with the container, or when the next container that
//! requests the device finds that its holder has exited. No daemon is involved, so nothing is lost
//! when an engine is killed.

mod acquire;
pub mod drain;
mod file;
mod move_record;
mod request;
mod returning;
pub mod run_dir;
mod slot;
mod store;
#[cfg(test)]
mod test_host;
pub mod tickets;
pub mod users;

pub use acquire::{FindUser, choose_without_leases};
pub use file::{Holder, Lease, NODES, POD, is_pod_name};
pub use move_record::{
    MoveRecord, NOT_MOVED, ONLOAD_REGISTRATION, OnloadRegistration, SavedFunction, SavedInterface,
    SavedQueues, SavedRdma, SavedState, SavedVf,
};
pub use request::{LeaseRequest, LeasedContainer, MemberRequest};
pub use slot::{HolderState, LeaseEntry, in_use_error};
pub use store::{LeaseError, Leases};

/// Passes bytes to the parsers of a lease file's name and content, which only a fuzzer sees.
///
/// # Panics
/// A parser panics, or its result is wrong.
#[cfg(fuzzing)]
pub fn fuzz(name: &str, content: &[u8]) {
    file::fuzz(name, content);
}
