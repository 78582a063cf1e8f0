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
mod container;
mod filter;
mod host_root;
mod hostile;
mod lease;
mod live;
mod log;
mod made_by;
mod near;
mod netdev;
mod packaging;
mod pools;
mod programs;
mod rdma;
mod rdma_libraries;
mod red_hat;
mod request;
mod vf;
