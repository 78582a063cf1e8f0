//! What the running kernel is asked and told beside the files of a host.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use onload_core::host_settings::{MacAddress, RdmaNetns, Vlan};

/// What a physical function's driver says of a virtual function (`struct ifla_vf_info` in
/// include/linux/if_link.h); what it does not say is unset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VfSettings {
    pub mac: Option<MacAddress>,
    /// The VLAN; 0: none.
    pub vlan: Option<u16>,
    /// Whether frames with another source address are dropped.
    pub spoof_check: Option<bool>,
    /// Whether its driver may change what is the physical function's otherwise.
    pub trust: Option<bool>,
}

/// A change of one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VfChange {
    Mac(MacAddress),
    Vlan(Vlan),
    /// Whether frames with another source address are dropped.
    SpoofCheck(bool),
    /// Whether its driver may change what is the physical function's otherwise.
    Trust(bool),
}

/// Why the kernel did not do or tell something.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A file was not written.
    #[error("writing {text:?} to {}", .path.display())]
    Write {
        path: PathBuf,
        /// What was to stand in it.
        text: String,
        source: io::Error,
    },
    /// A module was not loaded.
    #[error("loading module {module}: {why}")]
    Load { module: String, why: String },
    /// The kernel refused a message.
    #[error("{action}")]
    Message {
        /// What was being done.
        action: String,
        source: io::Error,
    },
    /// The mode of network namespaces cannot change any more.
    #[error(
        "setting RDMA's network namespaces to {mode}: there are others than the host's already; write \"options ib_core netns_mode={}\" to /etc/modprobe.d/rdma-netns.conf, build the initramfs anew if the module is in it, and reboot",
        u8::from(*.mode == RdmaNetns::Shared)
    )]
    NetnsBusy {
        /// The mode that is wanted.
        mode: RdmaNetns,
    },
}

/// A kernel.
pub trait Kernel {
    /// What the driver of a physical function says of its virtual functions, by number; none where no
    /// kernel is there to be asked.
    ///
    /// # Errors
    /// [`KernelError::Message`].
    fn vf_settings(
        &self,
        interface: &str,
    ) -> Result<Option<BTreeMap<u32, VfSettings>>, KernelError>;

    /// What was seen of open nodes before counts no more.
    fn look_again(&self) {}

    /// Who has a node of vfio or RDMA open, for people.
    fn holder(&self, node: &Path) -> Option<String>;

    /// Changes a setting of a virtual function.
    ///
    /// # Errors
    /// [`KernelError::Message`].
    fn set_vf(&self, interface: &str, vf: u32, change: VfChange) -> Result<(), KernelError>;

    /// Sets in which network namespaces RDMA devices are seen.
    ///
    /// # Errors
    /// [`KernelError::NetnsBusy`] while there are other network namespaces, [`KernelError::Message`].
    fn set_rdma_netns(&self, mode: RdmaNetns) -> Result<(), KernelError>;

    /// Leaves an interface one channel for what it receives.
    ///
    /// # Errors
    /// [`KernelError::Message`].
    fn set_one_channel(&self, interface: &str) -> Result<(), KernelError>;

    /// Writes an attribute of sysfs.
    ///
    /// # Errors
    /// [`KernelError::Write`].
    fn write(&self, path: &Path, text: &str) -> Result<(), KernelError>;

    /// Loads a module by its name or an alias.
    ///
    /// # Errors
    /// [`KernelError::Load`].
    fn load(&self, module: &str) -> Result<(), KernelError>;
}
