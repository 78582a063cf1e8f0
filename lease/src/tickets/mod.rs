//! Tickets: what a cluster engine has reserved for a task.
//!
//! An engine that can pass only variables to a container names a ticket in one of them. The runtime
//! wrapper that starts the container redeems it. The reserved devices are recorded in
//! `/run/onload-ctk/@requests`, which only root can enter, so a variable cannot request more than
//! the engine reserved.
//!
//! A ticket is valid until the host reboots, a later ticket names one of its exclusive devices, or
//! it expires: a day after it was made if no container has used it, otherwise an hour after its
//! last container ended, which leaves a restarted task time to use it again. If the engine gave the
//! task its own directory, the ticket is valid only for the task that uses it first.

mod file;
mod name;
mod store;

pub use file::{Ticket, TicketUser};
pub use name::{WORD, short_id, to_variable};
pub use store::{NewTicket, StartingContainer, TicketEntry, Tickets, unknown_error};

/// Gives the parser of a ticket's file something foreign. It is private, so only a fuzzer sees it.
///
/// # Panics
/// The parser panics, or returns what it must not.
#[cfg(fuzzing)]
pub fn fuzz(content: &[u8]) {
    file::fuzz(content);
}
