//! The plugin on a captured host, and an agent made for tests.

// Each test file uses a part of it.
#![allow(dead_code, unused_imports)]

mod agent;
mod constraint;
mod go;
mod host;

pub(crate) use agent::{Agent, Devices, config, start};
pub(crate) use constraint::{meets, parse};
pub(crate) use go::{GoHost, program as go_program};
pub(crate) use host::TestHost;

use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long anything may take. Tests wait for what they expect; only a failing one waits that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
