//! What the agents of cluster engines share: waits between attempts, what was said already, and with the feature `survey`
//! the thread that looks at the host and the levels of the log.

mod backoff;
#[cfg(feature = "survey")]
pub mod host_watch;
mod last_message;
#[cfg(feature = "survey")]
pub mod log;

pub use backoff::{Backoff, random_byte};
pub use last_message::LastMessage;
