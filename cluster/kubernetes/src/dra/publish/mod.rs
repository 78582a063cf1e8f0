//! Keeps the slices of this node up to date on the API server while the driver is registered with kubelet.
//!
//! The slices are listed once and then watched; they are listed again only if the watch cannot continue. kubelet
//! deletes all slices of its node when it starts, and ours half a minute after this driver has disappeared. Deleted
//! slices are written again.

mod run;
mod server;
mod session;

pub use session::{Publisher, WRITE_INTERVAL};
