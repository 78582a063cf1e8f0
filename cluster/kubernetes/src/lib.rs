//! `onload-kubernetes`: offers what a node has to Kubernetes.
//!
//! [`cli`] is the command line, and [`run`] the daemon. Its [`surveyor`] looks at the host; [`resources`] says
//! which resources that makes, and what containers get of them; [`plugin`] serves each at a socket in
//! kubelet's directory, in the words of [`wire`]; [`dra`] puts devices into ResourceSlices instead, by their [`names`].
//! [`install`] puts the hook on the host, and [`spec_writer`] the specifications, where the package does not.

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
