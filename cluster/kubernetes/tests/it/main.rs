//! What this package does, seen from outside: one binary, a module for each topic.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod dra;
mod dra_engine;
mod dra_hostile;
mod dra_many;
mod dra_publish;
mod dra_releases;
mod dra_reports;
mod dra_slices;
mod dra_tls;
mod go_kubelet;
mod helm;
mod image;
mod install;
mod kubelet;
mod manifests;
mod migrate;
mod pod;
mod recorded_dra;
mod recorded_kubelet;
mod recorded_metadata;
mod support;
