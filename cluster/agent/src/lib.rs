//! Code shared by the agents of cluster engines: waits between attempts, the last logged message, and with the feature
//! `survey` the thread that surveys the host, and log levels.

mod backoff;
#[cfg(feature = "survey")]
pub mod host_watch;
mod last_message;
#[cfg(feature = "survey")]
pub mod log;

pub use backoff::{Backoff, random_byte, random_id};
pub use last_message::LastMessage;
