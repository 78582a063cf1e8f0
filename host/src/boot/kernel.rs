//! Requests to the running kernel that do not go through files.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use anyhow::Context;
use onload_core::host_settings::RdmaNetns;
pub use onload_sys::netlink::vf::{VfChange, VfSettings};

pub trait HostKernel {
    /// Returns the settings by number of the virtual function. `None` if the host's kernel cannot be queried.
    fn vf_settings(&self, interface: &str) -> anyhow::Result<Option<BTreeMap<u32, VfSettings>>>;

    /// Discards the cached list of open nodes.
    fn refresh(&self);

    /// Returns a process that has a vfio or RDMA node open, for messages.
    fn find_opener(&self, node: &Path) -> Option<String>;

    fn set_vf(&self, interface: &str, vf: u32, change: VfChange) -> anyhow::Result<()>;

    fn set_rdma_netns(&self, mode: RdmaNetns) -> anyhow::Result<()>;

    /// Reduces an interface to one receive channel.
    fn set_one_channel(&self, interface: &str) -> anyhow::Result<()>;

    fn write(&self, path: &Path, text: &str) -> anyhow::Result<()>;

    /// Loads a module by its name or an alias.
    fn load(&self, module: &str) -> anyhow::Result<()>;
}

/// The kernel of a captured host. It answers nothing and cannot be changed.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfflineKernel;

impl HostKernel for OfflineKernel {
    fn vf_settings(&self, _: &str) -> anyhow::Result<Option<BTreeMap<u32, VfSettings>>> {
        Ok(None)
    }

    fn refresh(&self) {}

    fn find_opener(&self, _: &Path) -> Option<String> {
        None
    }

    fn set_vf(&self, _: &str, _: u32, _: VfChange) -> anyhow::Result<()> {
        reject_change()
    }

    fn set_rdma_netns(&self, _: RdmaNetns) -> anyhow::Result<()> {
        reject_change()
    }

    fn set_one_channel(&self, _: &str) -> anyhow::Result<()> {
        reject_change()
    }

    fn write(&self, _: &Path, _: &str) -> anyhow::Result<()> {
        reject_change()
    }

    fn load(&self, _: &str) -> anyhow::Result<()> {
        reject_change()
    }
}

fn reject_change() -> anyhow::Result<()> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
        .context("changing a host that is not the running host")
}
