//! The host.
