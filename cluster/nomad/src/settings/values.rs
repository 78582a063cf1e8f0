//! The settings as the rest of the program has them.

use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Preload libonload.so.
    pub set_preload: bool,
    /// Give the tools and profiles of Onload and TCPDirect.
    pub mount_onload: bool,
    /// Publish Onload only on a host with an accelerated interface.
    pub need_nic: bool,
    /// What is published at all.
    pub probe: Probe,
    /// Interfaces and clocks that are not published; `none` is Onload without an interface.
    pub ignored_interfaces: Vec<String>,
    /// How many tasks may have one device.
    pub slots: Slots,
    /// Where things are on the host and in the task.
    pub paths: Paths,
    /// Whether the operator says that tasks run with our OCI runtime, to which what Nomad cannot carry is left then.
    pub has_runtime: bool,
    /// After how long the host is looked at again in any case.
    pub fingerprint_period: Duration,
    /// How long a reservation waits for a device that a task of this client holds.
    pub reserve_wait: Duration,
}

/// What is published at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Interfaces of Onload's own drivers.
    pub nic: bool,
    /// Interfaces that Onload reaches by AF_XDP.
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

/// How many tasks may have one device, unless the host's configuration counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
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
pub enum Place {
    /// Where the specifications have it.
    #[default]
    Found,
    /// Nowhere: tasks do not get what would be there.
    Nowhere,
    At(PathBuf),
}

/// A directory of the host and the one of the task where its content appears.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Way {
    pub host: Place,
    pub task: Place,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    pub device: Way,
    pub onload_lib: Way,
    pub onload_bin: Way,
    pub profile_dir: Way,
    pub zf_lib: Way,
    pub zf_bin: Way,
}

impl Place {
    pub fn named(&self) -> Option<&PathBuf> {
        match self {
            Place::At(path) => Some(path),
            Place::Found | Place::Nowhere => None,
        }
    }
}

impl Way {
    /// Whether tasks do not get this at all.
    pub fn is_closed(&self) -> bool {
        [&self.host, &self.task].contains(&&Place::Nowhere)
    }

    /// Whether all is as the specifications have it.
    pub fn is_default(&self) -> bool {
        *self == Way::default()
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            set_preload: true,
            mount_onload: true,
            need_nic: false,
            probe: Probe {
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
            slots: Slots { nic: 10, ptp: 10, pps: 10, rdma: 10, hugepages: 10, profile: 10 },
            paths: Paths::default(),
            has_runtime: false,
            fingerprint_period: Duration::from_secs(60),
            reserve_wait: Duration::from_secs(15),
        }
    }
}
