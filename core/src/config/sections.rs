//! The sections of the configuration file. Missing keys have their defaults.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use onload_sys::error::shown_as_serialized;

use super::values::{
    Memlock, OnIncompatible, Preload, RdmaLibraries, RootWithOnload, Share, read_kinds,
};
use crate::bundle::Bundle;
use crate::class::Class;
use crate::host_settings::{HostSettings, SriovConfig};
use crate::kubernetes_settings::KubernetesSettings;
use crate::netdev::address::Network;
use crate::netdev::settings::NetdevSettings;
use crate::select::{Glob, PoolSelector};
use crate::vf_config::VfConfig;

/// The default path of the configuration file.
pub const CONFIG_PATH: &str = "/etc/onload-ctk/config.toml";

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Config {
    pub discover: DiscoverConfig,
    pub cdi: CdiConfig,
    pub annotations: AnnotationsConfig,
    pub environment: EnvironmentConfig,
    pub leases: LeasesConfig,
    pub runtime: RuntimeConfig,
    pub log: LogConfig,
    pub pools: BTreeMap<String, PoolConfig>,
    #[cfg_attr(feature = "schema", schemars(with = "BTreeMap<String, crate::bundle::BundleText>"))]
    pub bundles: BTreeMap<String, Bundle>,
    /// Settings that interfaces have in containers, by device name.
    pub netdev: BTreeMap<String, NetdevSettings>,
    pub sriov: Vec<SriovConfig>,
    pub host: HostSettings,
    pub kubernetes: KubernetesSettings,
}

/// Section `[discover]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "kebab-case")]
pub struct DiscoverConfig {
    /// Interfaces that are never offered. Unknown names cause a warning.
    pub ignored_interfaces: Vec<String>,
    /// If no interface is accelerated, fail and write nothing, instead of writing specifications
    /// without one.
    pub missing_nic_is_error: bool,
    /// Offer /dev/infiniband/umadN together with each RDMA device. Diagnostic tools send management
    /// datagrams through it. The nodes of the device for the subnet manager (smiN) come with the
    /// RDMA device of the same PCI function.
    pub offer_umad: bool,
    /// Offer /dev/infiniband/issmN together with each RDMA device. A container that has it can act
    /// as the subnet manager.
    pub offer_issm: bool,
    /// Offer a physical function that is bound to vfio even if it has virtual functions. A
    /// container that has it can disturb all users of those virtual functions.
    pub offer_pf_with_vfs: bool,
    /// Interfaces that may move into a container as class netdev; "*" matches any characters:
    /// \["ens1f0v*"]. Members of pools of class netdev are offered too. An interface that the host
    /// uses is never offered.
    pub offer_netdevs: Vec<Glob>,
}

/// Section `[cdi]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "kebab-case")]
pub struct CdiConfig {
    /// The kinds to write: "all", or some of nic, nic-plain, nic-nodes, zf, profile, rdma, vfio,
    /// hugepages, netdev, ptp, pps, gdrcopy, bundle.
    #[serde(deserialize_with = "read_kinds")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::kubernetes_settings::ResourceClasses", extend("default" = ["all"])))]
    pub kinds: Vec<Class>,
    /// The hook that raises RLIMIT_MEMLOCK and checks device nodes again when a container starts.
    pub hook_path: PathBuf,
    /// How libonload.so is loaded into the processes of a container. "env" sets LD_PRELOAD, which
    /// processes started later by docker exec or podman exec do not have. "file" mounts a one-line
    /// file at /etc/ld.so.preload, which applies to them too; docker then needs "default-ulimits"
    /// in daemon.json. "off" leaves preloading to you. With --device the value of onload-ctk
    /// replaces the image's own value; an annotation merges the two.
    pub preload: Preload,
    /// The value of EF_FDTABLE_SIZE, in descriptors, from 1 to 16777216. libonload.so allocates a
    /// table of this size and lowers RLIMIT_NOFILE to it. The default is the hard limit that
    /// systemd sets for services, and docker 29 for containers. If a container's hard limit is
    /// lower, each of its programs logs that it cannot set the size, and its soft limit is raised
    /// to the hard limit; annotations omit the variable in this case, --device cannot.
    pub fdtable_size: u32,
    /// The minimum RLIMIT_MEMLOCK of containers with RDMA or vfio devices: "unlimited", or a number
    /// of bytes, optionally with the suffix K, M, G or T for powers of 1024, for example "8G".
    pub memlock: Memlock,
    /// The provider libraries with which programs use RDMA devices. "auto" examines the image when
    /// a container starts, and mounts the host's libraries if the image's are missing or
    /// incompatible with its libibverbs or the kernel. "image" examines the image and reports what
    /// is incompatible. "off" does not examine it. If no libraries are compatible, on-incompatible
    /// decides for a container that requests its devices by annotation; a container with --device
    /// starts with a warning.
    pub rdma_libraries: RdmaLibraries,
    /// Restrict a container that is given a single interface by name, as nic, nic-plain or zf, to
    /// this interface: its EF_INTERFACE_WHITELIST or ZF_ATTR names the interface. Leave this off if
    /// containers see the interface under another name, as with macvlan and ipvlan: Onload would
    /// accelerate nothing in them. An annotation keeps a value that the container already has, and
    /// with several interfaces sets none. With --device the value is replaced, and the last of
    /// several interfaces applies.
    pub select_interface: bool,
    /// Mount /run/onload with nic, nic-plain and zf. It is the socket of the controller of shared
    /// queues, a daemon that runs as root.
    pub onload_socket: bool,
    /// Make the device nodes of PTP clocks and PPS sources writable. A container that has one can
    /// step the host's clock.
    pub ptp_write: bool,
    /// Add /dev/vhost-net and /dev/net/tun to each vfio device, for a virtual interface (DPDK's
    /// virtio-user and tap). The container then reaches the host's kernel code for both, and needs
    /// CAP_NET_ADMIN to create an interface. Nodes that the host lacks are omitted with a warning.
    pub vhost_net: bool,
    /// Directory in the container for hugetlbfs mounts, which are named hugepages-2Mi and so on.
    pub hugepages_dir: PathBuf,
    /// Host directories that are searched for libraries. If empty: the multiarch directory and
    /// /usr/lib64, then the same directories below /opt/onload.
    pub host_library_dirs: Vec<PathBuf>,
    /// Directories in the container for libraries. If empty: the multiarch directory and
    /// /usr/lib64, so that the loaders of both Debian and Red Hat find them.
    pub container_library_dirs: Vec<PathBuf>,
    /// Host directory of Onload's tools. Default: usr/bin next to the libraries. An empty string
    /// disables tools.
    pub host_tool_dir: Option<PathBuf>,
    /// Directory in the container for tools. Default: the same as on the host. An empty string
    /// disables tools.
    pub container_tool_dir: Option<PathBuf>,
    /// Mount the host's own libraries for tools that need more than libc, such as onload_stackdump.
    /// The tool's path in the container then holds a script that starts the tool from
    /// /usr/lib/onload-ctk with the host's loader and libraries. Programs of the image do not
    /// search that directory. The image needs /bin/sh.
    pub tool_libraries: bool,
    /// Host directory of Onload's profiles. Default: usr/libexec/onload/profiles next to the
    /// libraries. An empty string disables profiles.
    pub host_profile_dir: Option<PathBuf>,
    /// Directory in the container for profiles. Default: the same as on the host. An empty string
    /// leaves them unmounted.
    pub container_profile_dir: Option<PathBuf>,
    /// Host directory of the device nodes.
    pub host_device_dir: Option<PathBuf>,
    /// Directory in the container for device nodes.
    pub container_device_dir: Option<PathBuf>,
}

impl Default for CdiConfig {
    fn default() -> Self {
        CdiConfig {
            kinds: Class::ALL.to_vec(),
            hook_path: PathBuf::from("/usr/bin/onload-hook"),
            preload: Preload::Env,
            fdtable_size: 524_288,
            memlock: Memlock::Unlimited,
            rdma_libraries: RdmaLibraries::Auto,
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "kebab-case")]
pub struct AnnotationsConfig {
    /// The classes that annotations onload.dev/CLASS may request. Anyone who can start a container
    /// or build an image can write annotations, so nothing is allowed by default. A container that
    /// is granted rdma, vfio, zf or hugepages may also request CAP_IPC_LOCK by onload.dev/ipc-lock.
    pub allow: Vec<Class>,
    /// The networks from which the annotation onload.dev/address may set addresses, for example
    /// \["192.0.2.0/24"]. If empty, it may set none.
    pub addresses: Vec<Network>,
    /// The policy for containers that request Onload (nic, nic-plain, nic-nodes, zf) and run as the
    /// host's user 0, which can map every Onload stack of the host: "allow", "warn" or "refuse".
    /// "refuse" also rejects a container whose processes could become user 0: by a set-user-ID
    /// program of the image unless no-new-privileges is set, by a capability, or in a user
    /// namespace that maps one of its users to user 0. onload-container-runtime removes CAP_SETUID
    /// instead of rejecting the container. Containers with --device are not checked.
    pub root_with_onload: RootWithOnload,
    /// The policy for containers whose libc cannot load libonload.so, or whose RDMA devices have no
    /// compatible provider library. "fail" rejects a container that requests them by annotation;
    /// "skip" starts it without the library.
    pub on_incompatible: OnIncompatible,
    /// Allow hooks to add device nodes and the host's provider libraries to a container that its
    /// runtime has already created.
    pub live_devices: bool,
}

impl Default for AnnotationsConfig {
    fn default() -> Self {
        AnnotationsConfig {
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct EnvironmentConfig {
    /// The classes that a container may request by its variable ONLOAD_CTK_REQUEST, for example
    /// nic=all;rdma=mlx5_0. This serves engines that do not pass annotations, such as docker swarm.
    /// Only onload-container-runtime reads the variable. Any image can set it, so nothing is
    /// allowed by default. This list is independent of that of annotations.
    pub allow: Vec<Class>,
}

/// Section `[leases]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LeasesConfig {
    /// The maximum number of containers that may hold one device of a class at once, for example {
    /// rdma = 500, vfio = 2 }. Default: one container for vfio devices and for interfaces of class
    /// netdev, no limit for other classes.
    pub share: BTreeMap<Class, Share>,
}

impl LeasesConfig {
    /// Returns how many containers may hold one device of the class at once. `None` means that
    /// there is no limit.
    pub fn share(&self, class: Class) -> Option<u32> {
        let default_share = class.is_exclusive().then_some(1);
        self.share.get(&class).map(|share| share.get()).or(default_share)
    }
}

/// A section `[pools.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PoolConfig {
    /// The class of the pool's devices.
    pub class: Class,
    /// Which devices of the class belong to the pool. If empty, all of them.
    #[serde(default)]
    pub select: PoolSelector,
    /// The maximum number of containers that may hold one of the pool's devices at once, from 1 to
    /// 65536. Default: the value of leases.share for the class.
    #[serde(default)]
    pub share: Option<Share>,
    /// The program that moves an interface of a pool of class netdev into the container: "hook",
    /// the hook of onload-ctk, or "cni", a CNI plugin such as SR-IOV CNI. With "cni", devices are
    /// named by their PCI addresses, and the pool cannot select by interfaces, since an interface
    /// disappears from the host together with its name. Only class netdev has this key.
    #[serde(default, rename = "move")]
    pub mover: Mover,
    /// Settings of the virtual functions of a pool of class netdev or vfio while a container has
    /// one, whichever name it was requested by.
    #[serde(default)]
    pub vf: Option<VfConfig>,
}

/// The program that moves an interface into a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Mover {
    /// The hook of onload-ctk.
    #[default]
    Hook,
    /// A CNI plugin, such as SR-IOV CNI.
    Cni,
}

/// Section `[runtime]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RuntimeConfig {
    /// The OCI runtime that onload-container-runtime starts. If empty, the first that exists of
    /// /usr/bin/runc, /usr/sbin/runc, /usr/local/sbin/runc, /usr/bin/crun, /usr/local/bin/crun,
    /// /usr/libexec/crio/crun, /usr/libexec/crio/runc, /usr/local/bin/runc,
    /// /usr/lib/cri-o-runc/sbin/runc.
    pub path: PathBuf,
}

/// Section `[log]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LogConfig {
    /// The level of detail: "error" logs why containers did not start, "warning" adds possible
    /// problems of started containers, "info" adds what each container was given, "debug" adds the
    /// reasons. onload-kubernetes uses the same level for the JSON that it writes to standard
    /// error.
    pub level: LogLevel,
    /// The file to which onload-hook and onload-container-runtime log, in addition to standard
    /// error and the journal. If empty, there is none. The file and each directory above it must
    /// belong to root and be writable by no other user. The file is created with mode 0600 and
    /// opened again for each start, so it can be rotated at any time. Failing to write to it never
    /// stops a container. Rootless containers, and containers that request nothing, are not logged.
    pub file: PathBuf,
}

/// The severity of a log message. [`LogLevel::Error`] is the smallest value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// A container does not start.
    Error,
    /// The container starts all the same.
    Warning,
    /// The devices and settings that a container was given.
    #[default]
    Info,
    /// The reasons for each step.
    Debug,
}

shown_as_serialized!(LogLevel);
