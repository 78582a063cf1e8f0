//! `onload-nomad-device`: offers a host's devices to Nomad.
//!
//! Nomad's agent starts the program as a plugin: [`plugin`] serves the protocol in [`wire`]. The [`surveyor`] reads the
//! host, [`devices`] forms groups and the edits for tasks, and [`snapshot`] holds both. Edits that Nomad does not
//! support are left to our runtime through [`tickets`].

pub mod cli;
pub mod devices;
pub mod log;
pub mod plugin;
pub mod settings;
pub mod snapshot;
pub mod statistics;
pub mod surveyor;
pub mod tickets;
pub mod wire;
