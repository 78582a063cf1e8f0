//! The plugin as a host of go-plugin sees it: [`handshake`] says whether one has started it, [`socket`] is where it
//! listens, [`agent`] when it is left alone, and the other modules are its services.

pub mod agent;
pub mod base;
pub mod device;
pub mod go_plugin;
pub mod handshake;
pub mod serve;
pub mod socket;
