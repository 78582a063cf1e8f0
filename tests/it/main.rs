//! What this package does, seen from outside: one binary, a module for each topic.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod bundles;
mod capture;
mod cli;
mod common;
mod completion;
mod config;
mod config_command;
mod configure;
mod contributing;
mod default_config;
mod directions;
mod discover;
mod docs;
mod doctor;
mod drain;
mod explain;
mod faults;
mod generate;
mod golden;
mod host;
mod inject;
mod links;
mod messages;
mod metrics;
mod mistakes;
mod monitoring;
mod overview;
mod packaging;
mod pools;
mod progress;
mod publish;
mod schemas;
mod status;
mod tables;
mod tool_libraries;
mod topology;
mod trial;
