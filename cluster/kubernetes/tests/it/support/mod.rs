//! The daemon on a captured host, and a kubelet made for tests.

// Each test file uses a part of it.
#![allow(dead_code, unused_imports)]

pub(crate) mod api_server;
pub(crate) mod claims;
mod daemon;
pub(crate) mod dra_kubelet;
pub(crate) mod driver;
mod go_kubelet;
mod host;
mod kubelet;
pub(crate) mod kubelet_files;
pub(crate) mod limits;
pub(crate) mod offers;
pub(crate) mod raw_http2;

pub(crate) use claims::ClaimServer;
pub(crate) use daemon::{Daemon, get, get_as};
pub(crate) use dra_kubelet::KubeletDir;
pub(crate) use go_kubelet::GoKubelet;
pub(crate) use host::TestHost;
pub(crate) use kubelet::{MockKubelet, Plugin, allocation};

use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long anything may take. Tests wait for what they expect; only a failing one waits that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The root of the sources.
pub(crate) fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
