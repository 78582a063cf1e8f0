//! Leases: which container holds a device that only so many may have at once.
//!
//! A lease is a file in `/run/onload-ctk/@leases`, which root alone can enter. It is claimed when a
//! container starts and released when it ends, or when the next container that wants the device finds
//! that its holder has ended. No daemon keeps anything, so a killed engine loses nothing.

mod acquire;
mod file;
mod move_record;
mod request;
mod returning;
mod slot;
mod store;
#[cfg(test)]
mod test_host;

pub use acquire::{LeaseSnapshot, UsedMembers, take_unleased};
pub use file::{ClaimUid, DeviceId, Holder, Lease, NODES, POD, Token, is_pod_name};
pub use move_record::{
    MoveRecord, NOT_MOVED, OnloadRegistration, SavedFunction, SavedInterface, SavedQueues,
    SavedRdma, SavedRss, SavedState, SavedVf,
};
pub use request::{LeaseRequest, MemberRequest, Numa};
pub use slot::in_use_error;
pub use store::{LeaseEntry, LeaseError, Leases};

/// Gives the parsers of a lease file's name and content something foreign. They are private, so only a
/// fuzzer sees them.
///
/// # Panics
/// A parser panics, or returns what it must not.
#[cfg(fuzzing)]
pub fn fuzz(name: &str, content: &[u8]) {
    file::fuzz(name, content);
}
