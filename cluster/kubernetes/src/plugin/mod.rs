//! The device plugin: a socket for each resource, which kubelet dials after we have registered it.

mod directory;
mod server;
mod service;

pub use directory::{KubeletState, watch};
pub use server::{PluginContext, serve_resource};
pub use service::PluginHost;
