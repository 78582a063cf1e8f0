//! `onload-nomad-device`: offers what a host has to Nomad.
//!
//! Nomad's agent starts the program as a plugin: [`plugin`] answers it by the messages of [`wire`]. The [`surveyor`]
//! looks at the host; [`devices`] says which groups that makes, and what a task gets; [`snapshot`] holds both. What
//! Nomad cannot carry is left to our runtime by [`tickets`].

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
