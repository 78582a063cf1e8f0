//! The device plugin: a socket for each resource, which kubelet dials after we have registered it.

mod backoff;
mod directory;
mod offer;
mod register;
mod service;

pub(crate) use backoff::{Backoff, random};
pub use directory::{Kubelet, watch};
pub use offer::{Offering, offer};
