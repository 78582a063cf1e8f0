//! The plugin's side of go-plugin: [`handshake`] checks that a host started it, [`socket`] listens, [`agent`] detects
//! that the agent has ended, and the other modules are its services.

pub mod agent;
pub mod base;
pub mod device;
pub mod go_plugin;
pub mod handshake;
pub mod serve;
pub mod socket;
