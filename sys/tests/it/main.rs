//! What this package does, seen from outside: one binary, a module for each topic.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod atomic;
