//! What the operator sees of the daemon: metrics, health, logs.

pub mod health;
pub mod http;
pub mod log;
pub mod metrics;
