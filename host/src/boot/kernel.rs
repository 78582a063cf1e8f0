//! What the running kernel is asked and told beside the files of a host.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use anyhow::Context;
use onload_core::host_settings::RdmaNetns;
pub use onload_sys::netlink::vf::{VfChange, VfSettings};

/// Where nothing is said of it, there is no kernel: it answers nothing, and cannot be told anything.
pub trait Kernel {
    /// By the number of the virtual function; none where there is no kernel to ask.
    fn vf_settings(&self, _interface: &str) -> anyhow::Result<Option<BTreeMap<u32, VfSettings>>> {
        Ok(None)
    }

    /// Forgets which nodes were open.
    fn look_again(&self) {}

    /// Who has a node of vfio or RDMA open, for people.
    fn holder(&self, _node: &Path) -> Option<String> {
        None
    }

    fn set_vf(&self, _interface: &str, _vf: u32, _change: VfChange) -> anyhow::Result<()> {
        refused()
    }

    fn set_rdma_netns(&self, _mode: RdmaNetns) -> anyhow::Result<()> {
        refused()
    }

    /// Leaves an interface one receive channel.
    fn set_one_channel(&self, _interface: &str) -> anyhow::Result<()> {
        refused()
    }

    fn write(&self, _path: &Path, _text: &str) -> anyhow::Result<()> {
        refused()
    }

    /// By its name or an alias.
    fn load(&self, _module: &str) -> anyhow::Result<()> {
        refused()
    }
}

/// The kernel of a host that is not this one, such as a captured tree.
#[derive(Clone, Copy, Debug, Default)]
pub struct Absent;

impl Kernel for Absent {}

fn refused() -> anyhow::Result<()> {
    Err(io::Error::from(io::ErrorKind::Unsupported)).context("changing a host that does not run")
}
