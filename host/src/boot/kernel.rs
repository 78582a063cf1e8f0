//! What the running kernel is asked and told beside the files of a host.

use std::collections::BTreeMap;
use std::path::Path;

use onload_core::host_settings::RdmaNetns;
pub use onload_sys::netlink::vf::{VfChange, VfSettings};

pub trait Kernel {
    /// By the number of the virtual function; none where there is no kernel to ask.
    fn vf_settings(&self, interface: &str) -> anyhow::Result<Option<BTreeMap<u32, VfSettings>>>;

    /// Forgets which nodes were open.
    fn look_again(&self) {}

    /// Who has a node of vfio or RDMA open, for people.
    fn holder(&self, node: &Path) -> Option<String>;

    fn set_vf(&self, interface: &str, vf: u32, change: VfChange) -> anyhow::Result<()>;

    fn set_rdma_netns(&self, mode: RdmaNetns) -> anyhow::Result<()>;

    /// Leaves an interface one receive channel.
    fn set_one_channel(&self, interface: &str) -> anyhow::Result<()>;

    fn write(&self, path: &Path, text: &str) -> anyhow::Result<()>;

    /// By its name or an alias.
    fn load(&self, module: &str) -> anyhow::Result<()>;
}
