//! Keeps the slices of this node on the API server, while kubelet knows the driver.
//!
//! The server is asked once what there is, and tells from then on what changes: nothing is listed again unless it
//! says that it has forgotten. kubelet deletes all slices of its node when it starts, and ours half a minute
//! after we are gone; each deletion is such a change, and what is missing is written again.

mod run;
mod server;
mod session;

pub use session::{Publisher, WRITE_INTERVAL};
