//! What the running kernel is asked and told beside the files of a host.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use anyhow::Context;
use onload_core::host_settings::RdmaNetns;
pub use onload_sys::netlink::vf::{VfChange, VfSettings};

pub trait HostKernel {
    /// By the number of the virtual function; none where there is no kernel to ask.
    fn vf_settings(&self, interface: &str) -> anyhow::Result<Option<BTreeMap<u32, VfSettings>>>;

    /// Forgets which nodes were open.
    fn refresh(&self);

    /// Who has a node of vfio or RDMA open, for people.
    fn find_opener(&self, node: &Path) -> Option<String>;

    fn set_vf(&self, interface: &str, vf: u32, change: VfChange) -> anyhow::Result<()>;

    fn set_rdma_netns(&self, mode: RdmaNetns) -> anyhow::Result<()>;

    /// Leaves an interface one receive channel.
    fn set_one_channel(&self, interface: &str) -> anyhow::Result<()>;

    fn write(&self, path: &Path, text: &str) -> anyhow::Result<()>;

    /// By its name or an alias.
    fn load(&self, module: &str) -> anyhow::Result<()>;
}

/// The kernel of a host that is not this one, such as a captured tree. It answers nothing, and cannot be told anything.
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
    Err(io::Error::from(io::ErrorKind::Unsupported)).context("changing a host that does not run")
}
