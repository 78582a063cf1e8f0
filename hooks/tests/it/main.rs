//! What this package does, seen from outside: one binary, a module for each topic.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod bounds;
mod bundles;
mod common;
mod filter;
mod host_root;
mod lease;
mod live;
mod log;
mod near;
mod netdev;
mod packaging;
mod pools;
mod programs;
mod rdma;
mod rdma_libraries;
mod red_hat;
mod request;
mod session;
mod vf;
