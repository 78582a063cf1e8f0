//! Tickets: what a cluster engine has reserved for a task, for the runtime wrapper that starts it.
//!
//! An engine that can pass a container nothing but variables names a ticket in one of them. What the
//! ticket is good for stands in `/run/onload-ctk/@requests`, which root alone can enter, so that a variable
//! gives nothing that the engine did not reserve. A ticket is good until the host starts again, or until a
//! later one names a device that it has for itself; a task that starts again uses the same one, within an hour
//! of its end. The first container binds it to its task, where the engine gave that a directory of its own.

mod file;
mod name;
mod store;

pub use file::{Ticket, TicketUser};
pub use name::{WORD, short_id, to_variable};
pub use store::{
    MAX_TICKETS, NewTicket, RESTART, StartingContainer, TicketEntry, Tickets, unknown_error,
};

/// Gives the parser of a ticket's file something foreign. It is private, so only a fuzzer sees it.
///
/// # Panics
/// The parser panics, or returns what it must not.
#[cfg(fuzzing)]
pub fn fuzz(content: &[u8]) {
    file::fuzz(content);
}
