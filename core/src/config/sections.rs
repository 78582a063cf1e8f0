//! The sections of the file; what it leaves out has its default.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;

use super::values::{Kinds, Memlock, OnIncompatible, Preload, RootWithOnload, Share};
use crate::bundle::Bundle;
use crate::class::Class;
use crate::host_settings::{HostSettings, Sriov};
use crate::kubernetes_settings::KubernetesSettings;
use crate::netdev::address::Network;
use crate::netdev::settings::NetdevSettings;
use crate::select::{Glob, Select};

/// Where the configuration is looked for.
pub const CONFIG_PATH: &str = "/etc/onload-ctk/config.toml";

/// The whole configuration; what the file leaves out has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Config {
    /// What discovery looks at and offers.
    pub discover: Discover,
    /// What the written specifications hold.
    pub cdi: Cdi,
    /// What an annotation may ask for.
    pub annotations: Annotations,
    /// What a variable of a container may ask for.
    pub environment: Environment,
    /// How many containers may have a device.
    pub leases: Leases,
    /// The OCI runtime behind the wrapper.
    pub runtime: Runtime,
    /// What hook and wrapper write down.
    pub log: Log,
    /// Named sets of devices, of which a container gets one that is free.
    pub pools: BTreeMap<String, PoolConfig>,
    /// Devices that go together under one name.
    pub bundles: BTreeMap<String, Bundle>,
    /// What interfaces have in the containers that get them, by the names of their devices.
    pub netdev: BTreeMap<String, NetdevSettings>,
    /// The virtual functions that the host has from its boot on.
    pub sriov: Vec<Sriov>,
    /// What else the host is from its boot on.
    pub host: HostSettings,
    /// What a node of Kubernetes offers.
    pub kubernetes: KubernetesSettings,
}

/// Section `[discover]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Discover {
    /// Interfaces that are never offered.
    pub ignored_interfaces: Vec<String>,
    /// Finding no accelerated interface is an error.
    pub missing_nic_is_error: bool,
    /// Offer `/dev/infiniband/umadN` with an RDMA device.
    pub offer_umad: bool,
    /// Offer `/dev/infiniband/issmN` with an RDMA device; its holder can act as a subnet manager.
    pub offer_issm: bool,
    /// Offer a physical function bound to vfio although it has virtual functions.
    pub offer_pf_with_vfs: bool,
    /// Interfaces that may be offered to move into a container. A pool of the class names others.
    pub offer_netdevs: Vec<Glob>,
}

/// Section `[cdi]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Cdi {
    /// The classes that are written.
    pub kinds: Kinds,
    /// Path of `onload-hook` on the host.
    pub hook_path: PathBuf,
    /// How libonload.so gets into the processes of a container.
    pub preload: Preload,
    /// `EF_FDTABLE_SIZE`, in descriptors.
    pub fdtable_size: u32,
    /// RLIMIT_MEMLOCK of containers with RDMA or vfio devices.
    pub memlock: Memlock,
    /// A container that is given one interface by name uses this one alone, unless it says otherwise.
    pub select_interface: bool,
    /// Mount `/run/onload`, the socket of the shared queue controller.
    pub onload_socket: bool,
    /// Give PTP clocks writable: the holder can step the host's clock.
    pub ptp_write: bool,
    /// Give `/dev/vhost-net` and `/dev/net/tun` with a vfio device.
    pub vhost_net: bool,
    /// Directory under which hugetlbfs mounts appear in a container.
    pub hugepages_dir: PathBuf,
    /// Directories of the host searched for libraries; empty: the usual ones.
    pub host_library_dirs: Vec<PathBuf>,
    /// Directories of the container where libraries appear; empty: the multiarch one and /usr/lib64.
    pub container_library_dirs: Vec<PathBuf>,
    /// Directory of the host that holds the tools; none: the usual ones; empty: no tools.
    pub host_tool_dir: Option<PathBuf>,
    /// Directory of the container where tools appear; none: where the host has them.
    pub container_tool_dir: Option<PathBuf>,
    /// Give a tool the libraries of the host that an image need not have.
    pub tool_libraries: bool,
    /// Directory of the host that holds the profiles; none: the usual one; empty: no profiles.
    pub host_profile_dir: Option<PathBuf>,
    /// Directory of the container where profiles appear; none: where the host has them.
    pub container_profile_dir: Option<PathBuf>,
    /// Directory of the host that holds the device nodes; none: /dev.
    pub host_device_dir: Option<PathBuf>,
    /// Directory of the container where device nodes appear; none: where the host has them.
    pub container_device_dir: Option<PathBuf>,
}

impl Default for Cdi {
    fn default() -> Self {
        Cdi {
            kinds: Kinds::default(),
            hook_path: PathBuf::from("/usr/bin/onload-hook"),
            preload: Preload::Env,
            fdtable_size: 1_048_576,
            memlock: Memlock::Unlimited,
            select_interface: false,
            onload_socket: false,
            ptp_write: false,
            vhost_net: false,
            hugepages_dir: PathBuf::from("/dev"),
            host_library_dirs: Vec::new(),
            container_library_dirs: Vec::new(),
            host_tool_dir: None,
            container_tool_dir: None,
            tool_libraries: false,
            host_profile_dir: None,
            container_profile_dir: None,
            host_device_dir: None,
            container_device_dir: None,
        }
    }
}

/// Section `[annotations]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Annotations {
    /// The classes that an annotation may ask for.
    pub allow: Vec<Class>,
    /// The networks that addresses in an annotation must be in.
    pub addresses: Vec<Network>,
    /// A container whose user 0 is the host's user 0 asks for Onload.
    pub root_with_onload: RootWithOnload,
    /// libonload.so cannot be loaded by the container's libc.
    pub on_incompatible: OnIncompatible,
    /// Device nodes may be put into a container that already lives.
    pub live_devices: bool,
}

impl Default for Annotations {
    fn default() -> Self {
        Annotations {
            allow: Vec::new(),
            addresses: Vec::new(),
            root_with_onload: RootWithOnload::Warn,
            on_incompatible: OnIncompatible::Fail,
            live_devices: true,
        }
    }
}

/// Section `[environment]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// The classes that [`crate::request::VARIABLE`] may ask for.
    pub allow: Vec<Class>,
}

/// Section `[leases]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Leases {
    /// How many containers may have one device of a class at once.
    pub share: BTreeMap<Class, Share>,
}

impl Leases {
    /// How many containers may have one device of that class at once; `None` where nobody counts them.
    pub fn share(&self, class: Class) -> Option<u32> {
        // The kernel gives an IOMMU group to one process.
        // An interface is in one network namespace.
        let usual = matches!(class, Class::Vfio | Class::Netdev).then_some(1);
        self.share.get(&class).map(|share| share.get()).or(usual)
    }
}

/// A section `[pools.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PoolConfig {
    /// The class of its devices.
    pub class: Class,
    /// Which devices of the class they are.
    #[serde(default)]
    pub select: Select,
    /// How many containers may have one of them at once; without it, what holds for the class.
    #[serde(default)]
    pub share: Option<Share>,
    /// Who moves an interface of the pool into a container.
    #[serde(default, rename = "move")]
    pub mover: Mover,
}

/// Who moves an interface into a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mover {
    /// The hook of this program.
    #[default]
    Hook,
    /// A CNI plugin, such as SR-IOV CNI.
    Cni,
}

/// Section `[runtime]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Runtime {
    /// The OCI runtime that the wrapper becomes; empty: the first that exists of a fixed list.
    pub path: PathBuf,
}

/// Section `[log]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Log {
    /// The least severe lines that are written.
    pub level: LogLevel,
    /// The file that they are written to; empty: none.
    pub file: PathBuf,
}

/// How severe a line of the log is; the most severe is the least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// A container does not start.
    Error,
    /// It starts all the same.
    Warning,
    /// What a container was given.
    #[default]
    Info,
    /// Why, step by step.
    Debug,
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogLevel::Error => "error",
            LogLevel::Warning => "warning",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
        })
    }
}
