//! The plugin as a host of go-plugin sees it: [`handshake`] says whether one has started it, [`socket`] is where it
//! listens, and the other modules are its services.

pub mod base;
pub mod device;
pub mod go_plugin;
pub mod handshake;
pub mod serve;
pub mod socket;
