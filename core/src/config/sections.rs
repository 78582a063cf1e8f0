//! The sections of the file; what it leaves out has its default.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

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

/// Where the configuration is looked for.
pub const CONFIG_PATH: &str = "/etc/onload-ctk/config.toml";

/// The whole configuration; what the file leaves out has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Config {
    /// What discovery looks at and offers.
    pub discover: DiscoverConfig,
    /// What the written specifications hold.
    pub cdi: CdiConfig,
    /// What an annotation may ask for.
    pub annotations: AnnotationsConfig,
    /// What a variable of a container may ask for.
    pub environment: EnvironmentConfig,
    /// How many containers may have a device.
    pub leases: LeasesConfig,
    /// The OCI runtime behind the wrapper.
    pub runtime: RuntimeConfig,
    /// What hook and wrapper write down.
    pub log: LogConfig,
    /// Named sets of devices, of which a container gets one that is free.
    pub pools: BTreeMap<String, PoolConfig>,
    /// Devices that go together under one name.
    pub bundles: BTreeMap<String, Bundle>,
    /// What interfaces have in the containers that get them, by the names of their devices.
    pub netdev: BTreeMap<String, NetdevSettings>,
    /// The virtual functions that the host has from its boot on.
    pub sriov: Vec<SriovConfig>,
    /// What else the host is from its boot on.
    pub host: HostSettings,
    /// What a node of Kubernetes offers.
    pub kubernetes: KubernetesSettings,
}

/// Section `[discover]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct DiscoverConfig {
    /// Interfaces that are never offered. One that is not there gives a warning.
    pub ignored_interfaces: Vec<String>,
    /// Fail when there is no accelerated interface, and write nothing, instead of going on without one.
    pub missing_nic_is_error: bool,
    /// Offer /dev/infiniband/umadN with an RDMA device: management datagrams, for tools. Those of a device for the
    /// subnet manager (smiN) come with the RDMA device of the same PCI function.
    pub offer_umad: bool,
    /// Offer /dev/infiniband/issmN with an RDMA device: its holder can act as the subnet manager.
    pub offer_issm: bool,
    /// Offer a physical function that is bound to vfio although it has virtual functions: its holder can disturb
    /// those of everybody else.
    pub offer_pf_with_vfs: bool,
    /// Interfaces that may move into a container as class netdev; "*" stands for any characters: \["ens1f0v*"]. A
    /// pool of class netdev offers its members too. One that the host uses is never offered.
    pub offer_netdevs: Vec<Glob>,
}

/// Section `[cdi]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct CdiConfig {
    /// The kinds that are written: "all", or some of nic, nic-plain, nic-nodes, zf, profile, rdma, vfio, hugepages,
    /// netdev, ptp, pps, gdrcopy, bundle.
    #[serde(deserialize_with = "read_kinds")]
    pub kinds: Vec<Class>,
    /// The hook that raises RLIMIT_MEMLOCK and checks nodes again when a container starts.
    pub hook_path: PathBuf,
    /// How libonload.so gets into the processes of a container: "env" sets LD_PRELOAD, which processes started
    /// later by docker exec or podman exec do not have; "file" mounts a one-line file at /etc/ld.so.preload, which
    /// they have; "off" leaves it to you. By --device the value of onload-ctk replaces the image's own; by annotation the
    /// two are merged. With "file", docker needs "default-ulimits" in daemon.json.
    pub preload: Preload,
    /// EF_FDTABLE_SIZE, in descriptors, from 1 to 16777216: libonload.so sizes a table by it, and lowers
    /// RLIMIT_NOFILE to it. The default is the hard limit that systemd gives services, and docker 29 containers. In a
    /// container whose hard limit is lower, every program logs that it cannot set the size, and gets the soft limit
    /// raised to the hard one; annotations leave the variable out there, and --device cannot.
    pub fdtable_size: u32,
    /// RLIMIT_MEMLOCK of containers with RDMA or vfio devices, at least: "unlimited", or a number of bytes, which
    /// may end in K, M, G or T for powers of 1024, as "8G" does.
    pub memlock: Memlock,
    /// The provider libraries by which programs use RDMA devices: "auto" looks into the image when a container
    /// starts, and mounts the host's where the image's are missing or do not fit its libibverbs and the kernel;
    /// "image" looks and says what does not fit; "off" does not look. Where nothing fits, on-incompatible decides for
    /// a container that asks by annotation, and one with --device starts with a warning.
    pub rdma_libraries: RdmaLibraries,
    /// A container that is given one interface by name as nic, nic-plain or zf uses that one alone: its
    /// EF_INTERFACE_WHITELIST or ZF_ATTR names the interface. Leave this off where containers see the interface
    /// under another name, as with macvlan and ipvlan: Onload then accelerates nothing in them. By annotation a
    /// value that the container has already stays, and with several interfaces none is set. By --device it is
    /// replaced, and the last of several interfaces counts.
    pub select_interface: bool,
    /// Mount /run/onload, the socket of the controller of shared queues, a daemon that runs as root, with nic, nic-plain
    /// and zf.
    pub onload_socket: bool,
    /// Make the nodes of PTP clocks and PPS sources writable: the holder can step the host's clock.
    pub ptp_write: bool,
    /// Give /dev/vhost-net and /dev/net/tun with a vfio device, for a virtual interface beside it (DPDK's
    /// virtio-user and tap). Its holder uses the host's kernel code for both, and needs CAP_NET_ADMIN to make an
    /// interface. What the host lacks is left out with a warning.
    pub vhost_net: bool,
    /// Directory of a container under which hugetlbfs mounts appear, as hugepages-2Mi and so on.
    pub hugepages_dir: PathBuf,
    /// Directories of the host that are searched for libraries; empty: the multiarch directory and /usr/lib64, then
    /// the same below /opt/onload.
    pub host_library_dirs: Vec<PathBuf>,
    /// Directories of a container where libraries appear; empty: the multiarch directory and /usr/lib64, so that
    /// the loaders of Debian and of Red Hat both find them.
    pub container_library_dirs: Vec<PathBuf>,
    /// Directory of the host that holds Onload's tools. Default: usr/bin beside the libraries. An empty string: no
    /// tools.
    pub host_tool_dir: Option<PathBuf>,
    /// Directory of a container where tools appear. Default: where the host has them. An empty string: no tools.
    pub container_tool_dir: Option<PathBuf>,
    /// Give tools that need more than libc, such as onload_stackdump, the host's own libraries. The tool's place in
    /// the container then holds a script, which starts it from /usr/lib/onload-ctk with the host's loader and
    /// libraries; programs of the image do not look there. The image needs /bin/sh.
    pub tool_libraries: bool,
    /// Directory of the host that holds Onload's profiles. Default: usr/libexec/onload/profiles beside the
    /// libraries. An empty string: no profiles.
    pub host_profile_dir: Option<PathBuf>,
    /// Directory of a container where profiles appear. Default: where the host has them. An empty string: they are
    /// not mounted.
    pub container_profile_dir: Option<PathBuf>,
    /// Directory of the host that holds the device nodes.
    pub host_device_dir: Option<PathBuf>,
    /// Directory of a container where device nodes appear.
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
#[serde(default, rename_all = "kebab-case")]
pub struct AnnotationsConfig {
    /// The classes that an annotation onload.dev/CLASS may ask for. Whoever can start a container or build an image
    /// can write annotations, so nothing is allowed by default. A container that is given rdma, vfio, zf or
    /// hugepages may also ask for CAP_IPC_LOCK, by onload.dev/ipc-lock.
    pub allow: Vec<Class>,
    /// The networks that the annotation onload.dev/address may set addresses of, such as \["192.0.2.0/24"]. Without
    /// a network it sets none.
    pub addresses: Vec<Network>,
    /// A container that asks for Onload (nic, nic-plain, nic-nodes, zf) as the host's user 0 can map every Onload
    /// stack of the host: "allow", "warn" or "refuse". "refuse" also refuses other users who could become user 0: by
    /// a set-user-ID program of the image unless no-new-privileges is set, by a capability, or in a user namespace
    /// that maps one of its users to user 0. onload-container-runtime takes CAP_SETUID away instead of refusing.
    /// Containers by --device are not subject to it.
    pub root_with_onload: RootWithOnload,
    /// What happens where the container's libc cannot load libonload.so, or no provider library fits an RDMA device:
    /// "fail" stops a container that asks by annotation, "skip" starts it without the library.
    pub on_incompatible: OnIncompatible,
    /// Whether a hook may put device nodes, and the host's provider libraries, into a container that its runtime has
    /// already created.
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
#[serde(default)]
pub struct EnvironmentConfig {
    /// The classes that the variable ONLOAD_CTK_REQUEST of a container may ask for, as nic=all;rdma=mlx5_0: for
    /// engines that pass containers no annotations, such as docker swarm. Only onload-container-runtime reads it.
    /// Every image can carry a variable, so nothing is allowed by default. This list and that of annotations are
    /// separate.
    pub allow: Vec<Class>,
}

/// Section `[leases]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LeasesConfig {
    /// How many containers may have one device of a class at once, as { rdma = 500, vfio = 2 }. Without a number
    /// one container at a time has a vfio device or an interface of class netdev, and any number share one of another
    /// class.
    pub share: BTreeMap<Class, Share>,
}

impl LeasesConfig {
    /// How many containers may have one device of that class at once; `None` where nobody counts them.
    pub fn share(&self, class: Class) -> Option<u32> {
        let default_share = class.is_exclusive().then_some(1);
        self.share.get(&class).map(|share| share.get()).or(default_share)
    }
}

/// A section `[pools.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PoolConfig {
    /// The class of its devices.
    pub class: Class,
    /// Which devices of the class belong to the pool; without keys all of them.
    #[serde(default)]
    pub select: PoolSelector,
    /// How many containers may have one of its devices at once, from 1 to 65536. Without it the number of
    /// leases.share for the class holds.
    #[serde(default)]
    pub share: Option<Share>,
    /// Who moves an interface of a pool of class netdev into the container: "hook", this program, or "cni", a CNI
    /// plugin such as SR-IOV CNI. Devices of such a pool are named by their PCI addresses, and the pool does not select
    /// by interfaces, since interfaces go away and take their names along. Other classes do not have this key.
    #[serde(default, rename = "move")]
    pub mover: Mover,
    /// Settings of the virtual functions of a pool of class netdev or vfio while a container has one, whatever name it
    /// asked by.
    #[serde(default)]
    pub vf: Option<VfConfig>,
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
pub struct RuntimeConfig {
    /// The OCI runtime behind onload-container-runtime; empty: the first that exists of /usr/bin/runc,
    /// /usr/sbin/runc, /usr/local/sbin/runc, /usr/bin/crun, /usr/local/bin/crun, /usr/libexec/crio/crun,
    /// /usr/libexec/crio/runc, /usr/local/bin/runc, /usr/lib/cri-o-runc/sbin/runc.
    pub path: PathBuf,
}

/// Section `[log]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LogConfig {
    /// How much is written to it: "error" is why containers did not start, "warning" adds what may be wrong with those
    /// that did, "info" what each was given, "debug" why. onload-kubernetes writes JSON to standard error, at this
    /// level.
    pub level: LogLevel,
    /// The file to which onload-hook and onload-container-runtime write their messages, beside standard error and
    /// the journal; empty: none. It and each directory above it must belong to root, and nobody else may write to
    /// them. It is made with mode 0600, and opened for each start, so that it can be rotated at any time. What cannot
    /// be written to it stops no container. Rootless containers, and those that ask for nothing, have no line in it.
    pub file: PathBuf,
}

/// How severe a line of the log is; the most severe is the least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
        self.serialize(f)
    }
}
