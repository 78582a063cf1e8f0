//! The device plugin: a socket for each resource, which kubelet dials after we have registered it.

mod directory;
mod offer;
mod service;

pub use directory::{Kubelet, watch};
pub use offer::{Offering, offer};
pub use service::Node;
