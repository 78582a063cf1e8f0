//! Tickets: what a cluster engine has reserved for a task.
//!
//! An engine that can pass only variables to a container names a ticket in one of them. The runtime
//! wrapper that starts the container redeems it. The reserved devices are recorded in
//! `/run/onload-ctk/@requests`, which only root can enter, so a variable cannot request more than
//! the engine reserved.
//!
//! A ticket is valid until the host reboots, a later ticket names one of its exclusive devices, or
//! it expires. A ticket that no container has used expires a day after it was created. Otherwise it
//! expires an hour after its last container ended, so that a restarted task can use it again. If the
//! engine gave the task its own directory, the ticket is valid only for the task that uses it first.

mod file;
mod name;
mod store;

pub use file::{Ticket, TicketUser};
pub use name::{WORD, short_id, to_variable};
pub use store::{TicketEntry, Tickets, unknown_error};

/// Checks properties of the parser of ticket files, which is private, for any content of a file.
///
/// # Panics
/// If the parser panics, or if a parsed ticket violates a property.
#[cfg(fuzzing)]
pub fn fuzz(content: &[u8]) {
    file::fuzz(content);
}
