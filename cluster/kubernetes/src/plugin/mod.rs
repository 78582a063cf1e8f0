//! The device plugin: a socket for each resource, which kubelet dials after we have registered it.

mod directory;
mod offer;
mod service;

pub use directory::{KubeletState, watch};
pub use offer::{PluginContext, serve_resource};
pub use service::PluginHost;
