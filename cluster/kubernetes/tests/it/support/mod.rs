//! The daemon on a captured host, and a kubelet made for tests.

// Each test file uses a part of it.
#![allow(dead_code, unused_imports)]

pub(crate) mod api_server;
pub(crate) mod claims;
mod daemon;
pub(crate) mod dra_kubelet;
pub(crate) mod driver;
mod go_kubelet;
mod kubelet;
pub(crate) mod limits;
pub(crate) mod newest_go;
pub(crate) mod offers;
pub(crate) mod pod_resources;
pub(crate) mod raw_http2;

pub(crate) use claims::ClaimServer;
pub(crate) use daemon::{Daemon, get, get_as};
pub(crate) use dra_kubelet::KubeletDir;
pub(crate) use go_kubelet::GoKubelet;
pub(crate) use kubelet::{MockKubelet, Plugin, allocation};
pub(crate) use onload_test_tree::{AgentHost, PATIENCE, sample::sources};
