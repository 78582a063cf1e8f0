//! Metrics, health and logs of the daemon.

pub mod health;
pub mod http;
pub mod log;
pub mod metrics;
