//! The settings as the rest of the program uses them.

use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginSettings {
    /// Preload libonload.so.
    pub set_preload: bool,
    /// Provide the tools and profiles of Onload and TCPDirect.
    pub mount_onload: bool,
    /// Publish Onload only on a host with an accelerated interface.
    pub need_nic: bool,
    /// The kinds of devices that are published.
    pub probe: ProbeSettings,
    /// Interfaces and clocks that are not published; `none` is Onload without an interface.
    pub ignored_interfaces: Vec<String>,
    /// The number of tasks that may have one device.
    pub slots: SlotSettings,
    /// Directories on the host and in the task.
    pub paths: PathSettings,
    /// Whether tasks run with our OCI runtime, which applies the edits that Nomad does not support.
    pub has_runtime: bool,
    /// Interval after which the host is surveyed even without changes.
    pub fingerprint_period: Duration,
    /// Time that a reservation waits for a device that a task of this client holds.
    pub reserve_wait: Duration,
}

/// The kinds of devices that are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeSettings {
    /// Interfaces of Onload's own drivers.
    pub nic: bool,
    /// AF_XDP interfaces.
    pub xdp: bool,
    pub ptp: bool,
    pub pps: bool,
    pub rdma: bool,
    /// Functions bound to vfio.
    pub vfio: bool,
    /// Interfaces that move into a task.
    pub netdev: bool,
    pub hugepages: bool,
    pub profile: bool,
}

/// The number of tasks that may have one device, unless the host's configuration limits containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSettings {
    pub nic: u32,
    pub ptp: u32,
    pub pps: u32,
    pub rdma: u32,
    /// A size of huge pages.
    pub hugepages: u32,
    pub profile: u32,
}

/// A directory of the host or of the task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DirSetting {
    /// The directory that the host's specifications name.
    #[default]
    Found,
    /// No directory: tasks do not get its content.
    Nowhere,
    At(PathBuf),
}

/// A directory of the host and its path in the task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirMapping {
    pub host: DirSetting,
    pub task: DirSetting,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathSettings {
    pub device: DirMapping,
    pub onload_lib: DirMapping,
    pub onload_bin: DirMapping,
    pub profile_dir: DirMapping,
    pub zf_lib: DirMapping,
    pub zf_bin: DirMapping,
}

impl DirSetting {
    pub fn path(&self) -> Option<&PathBuf> {
        match self {
            DirSetting::At(path) => Some(path),
            DirSetting::Found | DirSetting::Nowhere => None,
        }
    }
}

impl DirMapping {
    /// Returns whether tasks do not get this directory.
    pub fn is_closed(&self) -> bool {
        [&self.host, &self.task].contains(&&DirSetting::Nowhere)
    }

    /// Returns whether both paths are those of the specifications.
    pub fn is_default(&self) -> bool {
        *self == DirMapping::default()
    }
}

impl Default for PluginSettings {
    fn default() -> Self {
        PluginSettings {
            set_preload: true,
            mount_onload: true,
            need_nic: false,
            probe: ProbeSettings {
                nic: true,
                xdp: true,
                ptp: true,
                pps: true,
                rdma: true,
                vfio: true,
                netdev: true,
                hugepages: true,
                profile: true,
            },
            ignored_interfaces: Vec::new(),
            slots: SlotSettings { nic: 10, ptp: 10, pps: 10, rdma: 10, hugepages: 10, profile: 10 },
            paths: PathSettings::default(),
            has_runtime: false,
            fingerprint_period: Duration::from_secs(60),
            reserve_wait: Duration::from_secs(15),
        }
    }
}
