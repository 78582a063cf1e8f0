//! Requests to the running kernel that do not go through files.

use std::collections::BTreeMap;
use std::path::Path;

use onload_core::host_settings::RdmaNetns;
pub use onload_sys::netlink::vf::{VfChange, VfSettings};

/// Facts that only the kernel can tell.
pub trait KernelReader {
    /// Returns the settings by number of the virtual function. `None` if the host's kernel cannot be queried.
    fn vf_settings(&self, interface: &str) -> anyhow::Result<Option<BTreeMap<u32, VfSettings>>>;

    /// Discards the cached list of open nodes.
    fn refresh(&self);

    /// Returns a process that has a vfio or RDMA node open, for messages.
    fn find_opener(&self, node: &Path) -> Option<String>;
}

/// Changes to the kernel.
pub trait HostKernel: KernelReader {
    fn set_vf(&self, interface: &str, vf: u32, change: VfChange) -> anyhow::Result<()>;

    fn set_rdma_netns(&self, mode: RdmaNetns) -> anyhow::Result<()>;

    /// Reduces an interface to one receive channel.
    fn set_one_channel(&self, interface: &str) -> anyhow::Result<()>;

    fn write(&self, path: &Path, text: &str) -> anyhow::Result<()>;

    /// Loads a module by its name or an alias.
    fn load(&self, module: &str) -> anyhow::Result<()>;
}

/// The kernel of a captured host, which answers nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfflineKernel;

impl KernelReader for OfflineKernel {
    fn vf_settings(&self, _: &str) -> anyhow::Result<Option<BTreeMap<u32, VfSettings>>> {
        Ok(None)
    }

    fn refresh(&self) {}

    fn find_opener(&self, _: &Path) -> Option<String> {
        None
    }
}
