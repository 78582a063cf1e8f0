//! `onload-kubernetes`: offers a node's devices to Kubernetes.
//!
//! [`cli`] is the command line, and [`run`] the daemon. Its [`surveyor`] reads the host; [`resources`] forms resources
//! and decides what containers get; [`plugin`] serves each resource at a socket in kubelet's directory, by the protocol
//! in [`wire`]; [`dra`] publishes devices in ResourceSlices instead, by their [`names`]. [`install`] installs the hook
//! on the host, and [`spec_writer`] writes the specifications if the package does not.

pub mod cli;
pub mod dra;
mod health_changes;
pub mod install;
pub mod mounted_directory;
pub mod names;
pub mod observe;
pub mod plugin;
pub mod resources;
pub mod run;
mod serve;
pub mod snapshot;
pub mod socket;
pub mod spec_writer;
pub mod surveyor;
pub mod wire;
