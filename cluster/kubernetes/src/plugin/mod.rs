//! The device plugin: a socket for each resource, to which kubelet connects after registration.

mod directory;
mod server;
mod service;

pub use directory::{KubeletState, watch};
pub use server::{PluginContext, serve_resource};
pub use service::PluginHost;
