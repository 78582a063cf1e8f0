//! `/etc/onload-ctk/config.toml`: the operator's word on what is discovered, written and allowed.
//!
//! Parsing only; who opens the file decides how far it is to be trusted.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::de::{Error, IgnoredAny, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::bundle::{self, Bundle};
use crate::class::Class;
use crate::host_settings::{HostSettings, MacAddress, PhysicalFunction, Sriov};
use crate::kubernetes_settings::{KubernetesSettings, RESOURCE_KEYS, ResourceError};
use crate::netdev::address::InterfaceAddress;
use crate::netdev::address::Network;
use crate::netdev::settings::{self, Contradiction, Mtu, NetdevSettings, Route};
use crate::select::{self, Glob, Select};

/// Where the configuration is looked for.
pub const CONFIG_PATH: &str = "/etc/onload-ctk/config.toml";

/// The whole configuration; what the file leaves out has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
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
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
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
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
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
#[serde(default, deny_unknown_fields)]
pub struct Environment {
    /// The classes that [`crate::request::VARIABLE`] may ask for.
    pub allow: Vec<Class>,
}

/// Section `[leases]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Leases {
    /// How many containers may have one device of a class at once.
    pub share: BTreeMap<Class, Share>,
}

impl Leases {
    /// How many containers may have one device of that class at once; `None` where nobody counts them.
    #[must_use]
    pub fn share(&self, class: Class) -> Option<u32> {
        // The kernel gives an IOMMU group to one process.
        // An interface is in one network namespace.
        let usual = matches!(class, Class::Vfio | Class::Netdev).then_some(1);
        self.share.get(&class).map(|share| share.get()).or(usual)
    }
}

/// A number of containers, from 1 to [`Share::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "i64")]
pub struct Share(u32);

impl Share {
    /// More than a host runs.
    pub const MAX: u32 = 65_536;

    /// The number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

/// A number that is no [`Share`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a number of containers from 1 to {max}, found {0}", max = Share::MAX)]
pub struct NotShare(i64);

impl crate::error::Typed for NotShare {}

impl TryFrom<i64> for Share {
    type Error = NotShare;

    fn try_from(number: i64) -> Result<Self, NotShare> {
        let share = u32::try_from(number).ok();
        let share = share.filter(|share| (1..=Share::MAX).contains(share));
        share.map(Share).ok_or(NotShare(number))
    }
}

/// A section `[pools.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
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

impl Log {
    /// Reads this section of a configuration file, whatever else is wrong with the file. A log that is
    /// not understood is none: a container starts without it, and `onload-ctk` says what is wrong.
    #[must_use]
    pub fn read(text: &str) -> Log {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct LogOnly {
            log: HookLog,
        }
        toml::from_str(text).map_or_else(|_| Log::default(), |read: LogOnly| read.log.into())
    }
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

/// As [`Log`], of any version.
#[derive(Deserialize)]
#[serde(untagged)]
enum HookLog {
    Known(Log),
    Unknown(IgnoredAny),
}

impl Default for HookLog {
    fn default() -> Self {
        HookLog::Known(Log::default())
    }
}

impl From<HookLog> for Log {
    fn from(read: HookLog) -> Self {
        match read {
            HookLog::Known(log) if log.file.is_absolute() => log,
            HookLog::Known(_) | HookLog::Unknown(IgnoredAny) => Log::default(),
        }
    }
}

/// What hook and wrapper use of the configuration. They pass over every section, key and class that
/// they do not know, and over values that are not theirs: beside a newer configuration an older hook
/// goes on. `onload-ctk` says what is wrong with such a file ([`Config::parse`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HookConfig {
    /// What they need of `[cdi]`.
    pub cdi: HookCdi,
    /// What an annotation may ask for.
    pub annotations: Annotations,
    /// What a variable of a container may ask for.
    pub environment: Environment,
    /// How many containers may have a device.
    pub leases: Leases,
    /// What they write down.
    pub log: Log,
    /// What interfaces have in the containers that get them, by the names of their devices.
    pub netdev: BTreeMap<String, NetdevSettings>,
    /// Devices that go together under one name; `None` where this version does not understand them.
    pub bundles: BTreeMap<String, Option<Bundle>>,
}

/// What hook and wrapper need of section `[cdi]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct HookCdi {
    /// Path of `onload-hook` on the host.
    pub hook_path: PathBuf,
    /// `EF_FDTABLE_SIZE`, in descriptors.
    pub fdtable_size: u32,
    /// RLIMIT_MEMLOCK of containers with RDMA or vfio devices.
    pub memlock: Memlock,
}

impl From<&Cdi> for HookCdi {
    fn from(cdi: &Cdi) -> Self {
        HookCdi {
            hook_path: cdi.hook_path.clone(),
            fdtable_size: cdi.fdtable_size,
            memlock: cdi.memlock,
        }
    }
}

impl Default for HookCdi {
    fn default() -> Self {
        HookCdi::from(&Cdi::default())
    }
}

impl From<&Config> for HookConfig {
    fn from(config: &Config) -> Self {
        HookConfig {
            cdi: HookCdi::from(&config.cdi),
            annotations: config.annotations.clone(),
            environment: config.environment.clone(),
            leases: config.leases.clone(),
            log: config.log.clone(),
            netdev: config.netdev.clone(),
            bundles: config
                .bundles
                .iter()
                .map(|(name, bundle)| (name.clone(), Some(bundle.clone())))
                .collect(),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct HookSections {
    cdi: HookCdi,
    annotations: HookAnnotations,
    environment: HookEnvironment,
    leases: HookLeases,
    log: HookLog,
    netdev: BTreeMap<String, HookNetdev>,
    bundles: BTreeMap<String, HookBundle>,
}

/// As [`Bundle`], of any version. Only who asks for one that is not understood is refused.
#[derive(Deserialize)]
#[serde(untagged)]
enum HookBundle {
    Known(Bundle),
    Unknown(IgnoredAny),
}

impl From<HookBundle> for Option<Bundle> {
    fn from(read: HookBundle) -> Self {
        match read {
            HookBundle::Known(bundle) => Some(bundle),
            HookBundle::Unknown(IgnoredAny) => None,
        }
    }
}

/// As [`NetdevSettings`], with keys of any version.
#[derive(Default, Deserialize)]
#[serde(default)]
struct HookNetdev {
    addresses: Vec<InterfaceAddress>,
    routes: Vec<Route>,
    #[serde(deserialize_with = "select::one_or_more")]
    gateway: Vec<IpAddr>,
    mtu: Option<Mtu>,
    #[serde(rename = "af-xdp")]
    af_xdp: bool,
}

impl From<HookNetdev> for NetdevSettings {
    fn from(read: HookNetdev) -> Self {
        NetdevSettings {
            addresses: read.addresses,
            routes: read.routes,
            gateway: read.gateway,
            mtu: read.mtu,
            af_xdp: read.af_xdp,
        }
    }
}

/// As [`Leases`], with classes of any version.
#[derive(Default, Deserialize)]
#[serde(default)]
struct HookLeases {
    share: BTreeMap<String, HookShare>,
}

/// As [`Share`], of a class of any version.
#[derive(Deserialize)]
#[serde(untagged)]
enum HookShare {
    Number(i64),
    Unknown(IgnoredAny),
}

impl TryFrom<HookLeases> for Leases {
    type Error = ConfigError;

    fn try_from(read: HookLeases) -> Result<Self, ConfigError> {
        let mut leases = Leases::default();
        for (word, share) in read.share {
            // Devices of a class that this version does not know are not given here either.
            let Ok(class) = word.parse::<Class>() else {
                continue;
            };
            let share = match share {
                HookShare::Number(number) => Share::try_from(number).ok(),
                HookShare::Unknown(IgnoredAny) => None,
            };
            let share = share.ok_or(ConfigError::Share(class))?;
            leases.share.insert(class, share);
        }
        Ok(leases)
    }
}

/// As [`Environment`], with classes of any version.
#[derive(Default, Deserialize)]
#[serde(default)]
struct HookEnvironment {
    allow: Vec<String>,
}

/// The classes that this version knows: another cannot be asked for here either.
fn known(words: &[String]) -> Vec<Class> {
    words.iter().filter_map(|word| word.parse().ok()).collect()
}

/// As [`Annotations`], with classes of any version.
#[derive(Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct HookAnnotations {
    allow: Vec<String>,
    addresses: Vec<Network>,
    root_with_onload: RootWithOnload,
    on_incompatible: OnIncompatible,
    live_devices: bool,
}

impl Default for HookAnnotations {
    fn default() -> Self {
        let usual = Annotations::default();
        HookAnnotations {
            allow: Vec::new(),
            addresses: Vec::new(),
            root_with_onload: usual.root_with_onload,
            on_incompatible: usual.on_incompatible,
            live_devices: usual.live_devices,
        }
    }
}

impl From<HookAnnotations> for Annotations {
    fn from(read: HookAnnotations) -> Self {
        Annotations {
            allow: known(&read.allow),
            addresses: read.addresses,
            root_with_onload: read.root_with_onload,
            on_incompatible: read.on_incompatible,
            live_devices: read.live_devices,
        }
    }
}

impl HookConfig {
    /// Reads what hook and wrapper use of a configuration file.
    ///
    /// # Errors
    /// [`ConfigError`] names the line where the text is no TOML, or a key that they use has a value
    /// that they do not understand.
    pub fn parse(text: &str) -> Result<HookConfig, ConfigError> {
        let failed = |error: toml::de::Error| ConfigError::of_toml(text, &error);
        let table = DeTable::parse(text).map_err(failed)?;
        check_misspelled(text, table.get_ref())?;
        let from = toml::de::Deserializer::from(table);
        let read = HookSections::deserialize(from).map_err(failed)?;
        let cdi = read.cdi;
        absolute("cdi.hook-path", &cdi.hook_path)?;
        check_fdtable_size(cdi.fdtable_size)?;
        let leases = read.leases.try_into()?;
        check_netdev_share(&leases)?;
        Ok(HookConfig {
            cdi,
            annotations: read.annotations.into(),
            environment: Environment {
                allow: known(&read.environment.allow),
            },
            leases,
            log: read.log.into(),
            netdev: check_netdevs(read.netdev)?,
            bundles: read
                .bundles
                .into_iter()
                .map(|(name, bundle)| (name, bundle.into()))
                .collect(),
        })
    }
}

/// How libonload.so gets into the processes of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preload {
    /// `LD_PRELOAD` in the environment.
    #[default]
    Env,
    /// A one-line file mounted at `/etc/ld.so.preload`.
    File,
    /// Not at all.
    Off,
}

/// What to do about a container whose user 0 is the host's and that asks for Onload: it can map
/// every Onload stack of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RootWithOnload {
    /// Nothing.
    Allow,
    /// Say so.
    #[default]
    Warn,
    /// The container does not start.
    Refuse,
}

/// What to do when libonload.so cannot be loaded by the container's libc.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnIncompatible {
    /// The container does not start.
    #[default]
    Fail,
    /// The container starts without the preload.
    Skip,
}

/// A value of RLIMIT_MEMLOCK (getrlimit(2)), in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memlock {
    /// RLIM_INFINITY.
    #[default]
    Unlimited,
    /// That many bytes.
    Bytes(u64),
}

impl Memlock {
    /// Reads a limit as the configuration has it: `unlimited`, or a number of bytes, where `K`, `M`, `G`
    /// and `T`, also with `i` behind them, stand for powers of 1024.
    ///
    /// # Errors
    /// [`NotMemlockSetting`].
    pub fn from_setting(text: &str) -> Result<Memlock, NotMemlockSetting> {
        if text == "unlimited" {
            return Ok(Memlock::Unlimited);
        }
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let shift = match unit {
            "" => 0,
            "K" | "Ki" => 10,
            "M" | "Mi" => 20,
            "G" | "Gi" => 30,
            "T" | "Ti" => 40,
            _ => return Err(NotMemlockSetting::Text(text.to_owned())),
        };
        if number.is_empty() {
            return Err(NotMemlockSetting::Text(text.to_owned()));
        }
        let number = number.parse::<u64>().ok();
        let bytes = number.and_then(|number| number.checked_mul(1 << shift));
        bytes
            .map(Memlock::Bytes)
            .ok_or_else(|| NotMemlockSetting::TooLarge(text.to_owned()))
    }
}

/// A text of the configuration that is no limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotMemlockSetting {
    /// Neither `unlimited` nor a size.
    #[error(
        "expected \"unlimited\" or a number of bytes, which may end in K, M, G or T (powers of 1024) as \"8G\" does, found {0:?}"
    )]
    Text(String),
    /// More than a limit can be.
    #[error("{0:?} is more than 64 bits can hold; say \"unlimited\"")]
    TooLarge(String),
}

impl crate::error::Typed for NotMemlockSetting {}

impl<'de> Deserialize<'de> for Memlock {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Setting;
        impl Visitor<'_> for Setting {
            type Value = Memlock;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an integer")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Memlock, E> {
                Memlock::from_setting(text).map_err(E::custom)
            }

            fn visit_u64<E: Error>(self, bytes: u64) -> Result<Memlock, E> {
                Ok(Memlock::Bytes(bytes))
            }

            fn visit_i64<E: Error>(self, bytes: i64) -> Result<Memlock, E> {
                match u64::try_from(bytes) {
                    Ok(bytes) => Ok(Memlock::Bytes(bytes)),
                    Err(_) => self.visit_str(&bytes.to_string()),
                }
            }
        }
        from.deserialize_any(Setting)
    }
}

/// An argument that is neither `unlimited` nor a number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("memlock is \"unlimited\" or a number of bytes, not {0:?}")]
pub struct NotMemlock(pub String);

impl crate::error::Typed for NotMemlock {}

impl FromStr for Memlock {
    type Err = NotMemlock;

    fn from_str(text: &str) -> Result<Self, NotMemlock> {
        if text == "unlimited" {
            return Ok(Memlock::Unlimited);
        }
        // u64::from_str takes a leading plus sign, which no limit is written with.
        if !text.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(NotMemlock(text.to_owned()));
        }
        text.parse()
            .map(Memlock::Bytes)
            .map_err(|_| NotMemlock(text.to_owned()))
    }
}

impl fmt::Display for Memlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memlock::Unlimited => f.write_str("unlimited"),
            Memlock::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// The classes that `cdi generate` writes: the word `all`, or a list of them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<String>")]
pub struct Kinds(Vec<Class>);

impl Kinds {
    /// The classes, sorted, each once.
    #[must_use]
    pub fn classes(&self) -> &[Class] {
        &self.0
    }
}

impl Default for Kinds {
    fn default() -> Self {
        Kinds(Class::ALL.to_vec())
    }
}

/// A list of kinds with a word that is neither `all` nor a class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotKinds {
    /// The list is empty.
    #[error("the list of kinds is empty; say \"all\" or name classes")]
    Empty,
    /// A word is no class.
    #[error(transparent)]
    Unknown(#[from] crate::class::UnknownClass),
}

impl crate::error::Typed for NotKinds {}

impl TryFrom<Vec<String>> for Kinds {
    type Error = NotKinds;

    fn try_from(words: Vec<String>) -> Result<Self, NotKinds> {
        if words.is_empty() {
            return Err(NotKinds::Empty);
        }
        let mut classes = Vec::new();
        for word in words {
            match word.trim() {
                "all" => classes.extend(Class::ALL),
                word => classes.push(word.parse()?),
            }
        }
        classes.sort();
        classes.dedup();
        Ok(Kinds(classes))
    }
}

/// Why a configuration is not taken; the line counts from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A key that no version of this program knows.
    #[error("line {line}: unknown key {key:?}{}", suggestion(.nearest.as_deref()))]
    UnknownKey {
        /// Where the key stands.
        line: usize,
        /// The key with its section.
        key: String,
        /// The known key that is spelled most alike.
        nearest: Option<String>,
    },
    /// Not TOML, or a value of the wrong type.
    #[error("line {line}: {}{message}", of_key(.key.as_deref()))]
    Parse {
        /// Where it went wrong.
        line: usize,
        /// The key with its section, where the text is TOML.
        key: Option<String>,
        /// The parser's word on it.
        message: String,
    },
    /// A path that must be absolute.
    #[error("{key} must be an absolute path, not {path:?}")]
    NotAbsolute {
        /// The key with its section.
        key: &'static str,
        /// Its value.
        path: PathBuf,
    },
    /// A number that is out of its range.
    #[error(
        "cdi.fdtable-size must be from 1 to 16777216, not {0}; a larger table cannot be allocated by every process"
    )]
    FdtableSize(u32),
    /// A share that is none.
    #[error("leases.share.{0} must be a number of containers from 1 to {max}", max = Share::MAX)]
    Share(Class),
    /// A share of an interface, which is in one network namespace.
    #[error(
        "{0} is {1}, and an interface is in one container at a time; leave it out: containers that share a network, as those of a pod do, share the interface"
    )]
    NetdevShare(String, u32),
    /// A number of bundles, or a pool of them.
    #[error(
        "{0} is bundle, which stands for devices of several classes; each of these is counted by itself: name their class"
    )]
    BundleCounted(String),
    /// A pool that says who moves what does not move.
    #[error(
        "pools.{name}.move is for class netdev, and the pool is of class {class}; leave it out"
    )]
    Move {
        /// The pool.
        name: String,
        /// Its class.
        class: Class,
    },
    /// A plugin moves interfaces away, and gives them other names.
    #[error(
        "pools.{0}.select: interfaces names what a CNI plugin moves away and renames; select by pf and vf, by addresses or by driver where move is \"cni\""
    )]
    MoveByName(String),
    /// The settings of an interface do not go together.
    #[error("netdev.{name}: {source}")]
    Netdev {
        /// The interface.
        name: String,
        /// What does not.
        source: Contradiction,
    },
    /// Two sections about one physical function.
    #[error("two sections [[sriov]] have the pf {0}; make one of them")]
    SamePf(PhysicalFunction),
    /// A resource of Kubernetes that cannot be offered.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// Addresses that would leave the range of the first one's vendor.
    #[error(
        "sriov.mac {mac} of {pf}: counting up to {vfs} virtual functions changes its first three bytes; begin lower"
    )]
    MacRange {
        /// The physical function.
        pf: PhysicalFunction,
        /// The first address.
        mac: MacAddress,
        /// How many addresses are wanted.
        vfs: u16,
    },
}

impl crate::error::Typed for ConfigError {}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |key| format!("; did you mean {key:?}?"))
}

fn of_key(key: Option<&str>) -> String {
    key.map_or_else(String::new, |key| format!("{key}: "))
}

/// The sections of which there may be several, `[[NAME]]`. Their keys have no defaults that a file could
/// show.
const LISTS: [(&str, &[&str]); 1] = [(
    "sriov",
    &["pf", "vfs", "driver", "vlan", "mac", "spoof-check", "trust"],
)];

const SECTIONS: [(&str, &[&str]); 9] = [
    (
        "discover",
        &[
            "ignored-interfaces",
            "missing-nic-is-error",
            "offer-umad",
            "offer-issm",
            "offer-pf-with-vfs",
            "offer-netdevs",
        ],
    ),
    (
        "cdi",
        &[
            "kinds",
            "hook-path",
            "preload",
            "fdtable-size",
            "memlock",
            "select-interface",
            "onload-socket",
            "ptp-write",
            "vhost-net",
            "hugepages-dir",
            "host-library-dirs",
            "container-library-dirs",
            "host-tool-dir",
            "container-tool-dir",
            "tool-libraries",
            "host-profile-dir",
            "container-profile-dir",
            "host-device-dir",
            "container-device-dir",
        ],
    ),
    (
        "annotations",
        &[
            "allow",
            "addresses",
            "root-with-onload",
            "on-incompatible",
            "live-devices",
        ],
    ),
    ("environment", &["allow"]),
    ("leases", &["share"]),
    ("runtime", &["path"]),
    ("log", &["level", "file"]),
    (
        "host",
        &["af-xdp", "af-xdp-flow-filters", "rdma-netns", "hugepages"],
    ),
    (
        KUBERNETES,
        &[
            "offer",
            "classes",
            "slots",
            "resources",
            "addresses",
            "listen",
        ],
    ),
];

const KUBERNETES: &str = "kubernetes";
/// The key of that section with a table for each resource.
const RESOURCES: &str = "resources";

/// The section with a table for each pool, and the keys of such a table.
const POOLS: &str = "pools";
const POOL_KEYS: &[&str] = &["class", "select", "share", "move"];
/// The section with a table for each interface.
const NETDEV: &str = "netdev";
/// The section with a table for each bundle.
const BUNDLES: &str = "bundles";
/// The sections with a table for each of several names, and the keys of such a table.
const NAMED: [(&str, &[&str]); 2] = [(NETDEV, &settings::KEYS), (BUNDLES, &bundle::KEYS)];
/// The key of a pool whose value is a table with [`select::KEYS`].
const SELECT: &str = "select";

impl Config {
    /// Reads the text of a configuration file.
    ///
    /// # Errors
    /// [`ConfigError`] names the line and the key; a key that is not known is an error, so that a
    /// typing error never silently leaves a default in force.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let failed = |error: toml::de::Error| ConfigError::of_toml(text, &error);
        let table = DeTable::parse(text).map_err(failed)?;
        check_keys(text, table.get_ref())?;
        let config: Config = toml::from_str(text).map_err(failed)?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let cdi = &self.cdi;
        let required = [
            ("cdi.hook-path", &cdi.hook_path),
            ("cdi.hugepages-dir", &cdi.hugepages_dir),
        ];
        for (key, path) in required {
            absolute(key, path)?;
        }
        let lists = [
            ("cdi.host-library-dirs", &cdi.host_library_dirs),
            ("cdi.container-library-dirs", &cdi.container_library_dirs),
        ];
        for (key, path) in lists
            .iter()
            .flat_map(|(key, list)| list.iter().map(move |p| (*key, p)))
        {
            absolute(key, path)?;
        }
        let may_be_empty = [
            ("cdi.host-tool-dir", cdi.host_tool_dir.as_ref()),
            ("cdi.container-tool-dir", cdi.container_tool_dir.as_ref()),
            ("cdi.host-profile-dir", cdi.host_profile_dir.as_ref()),
            (
                "cdi.container-profile-dir",
                cdi.container_profile_dir.as_ref(),
            ),
            ("runtime.path", Some(&self.runtime.path)),
            ("log.file", Some(&self.log.file)),
        ];
        for (key, path) in may_be_empty {
            if let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) {
                absolute(key, path)?;
            }
        }
        let device_dirs = [
            ("cdi.host-device-dir", cdi.host_device_dir.as_ref()),
            (
                "cdi.container-device-dir",
                cdi.container_device_dir.as_ref(),
            ),
        ];
        for (key, path) in device_dirs {
            if let Some(path) = path {
                absolute(key, path)?;
            }
        }
        check_fdtable_size(cdi.fdtable_size)?;
        check_sriov(&self.sriov)?;
        check_netdev_pools(&self.pools)?;
        check_netdev_share(&self.leases)?;
        self.check_bundles()?;
        for (name, settings) in &self.netdev {
            check_netdev(name, settings)?;
        }
        let pool = |name: &str| {
            let pool = self.pools.get(name)?;
            Some((pool.class, pool.share.map(Share::get)))
        };
        let share = |class| self.leases.share(class);
        Ok(self.kubernetes.check(pool, share)?)
    }
}

impl Config {
    /// A bundle is nothing that is counted: its devices are.
    fn check_bundles(&self) -> Result<(), ConfigError> {
        let mut pools = self.pools.iter();
        let pool = pools.find(|(_, pool)| pool.class == Class::Bundle);
        let counted = match pool {
            Some((name, _)) => Some(format!("{POOLS}.{name}.class")),
            None if self.leases.share.contains_key(&Class::Bundle) => {
                Some("a class of leases.share".to_owned())
            }
            None => None,
        };
        counted.map_or(Ok(()), |key| Err(ConfigError::BundleCounted(key)))
    }
}

fn check_netdev_pools(pools: &BTreeMap<String, PoolConfig>) -> Result<(), ConfigError> {
    for (name, pool) in pools {
        let class = pool.class;
        if class != Class::Netdev && pool.mover != Mover::default() {
            let name = name.clone();
            return Err(ConfigError::Move { name, class });
        }
        if pool.mover == Mover::Cni && !pool.select.interfaces.is_empty() {
            return Err(ConfigError::MoveByName(name.clone()));
        }
        if let Some(share) = pool.share.filter(|share| share.get() > 1)
            && class == Class::Netdev
        {
            let key = format!("{POOLS}.{name}.share");
            return Err(ConfigError::NetdevShare(key, share.get()));
        }
    }
    Ok(())
}

fn check_netdev_share(leases: &Leases) -> Result<(), ConfigError> {
    match leases.share.get(&Class::Netdev) {
        Some(share) if share.get() > 1 => {
            let key = format!("leases.share.{}", Class::Netdev);
            Err(ConfigError::NetdevShare(key, share.get()))
        }
        _ => Ok(()),
    }
}

fn check_netdev(name: &str, settings: &NetdevSettings) -> Result<(), ConfigError> {
    settings.check().map_err(|source| ConfigError::Netdev {
        name: name.to_owned(),
        source,
    })
}

fn check_netdevs(
    read: BTreeMap<String, HookNetdev>,
) -> Result<BTreeMap<String, NetdevSettings>, ConfigError> {
    let mut all = BTreeMap::new();
    for (name, settings) in read {
        let settings = settings.into();
        check_netdev(&name, &settings)?;
        all.insert(name, settings);
    }
    Ok(all)
}

fn check_sriov(sections: &[Sriov]) -> Result<(), ConfigError> {
    for (index, section) in sections.iter().enumerate() {
        let pf = &section.pf;
        if sections.iter().skip(index + 1).any(|other| other.pf == *pf) {
            return Err(ConfigError::SamePf(pf.clone()));
        }
        let last = section.vfs.saturating_sub(1);
        if let Some(mac) = section.mac.filter(|mac| mac.plus(last).is_none()) {
            return Err(ConfigError::MacRange {
                pf: pf.clone(),
                mac,
                vfs: section.vfs,
            });
        }
    }
    Ok(())
}

impl ConfigError {
    /// What a parser of TOML says of a text, with the line and the key.
    #[must_use]
    pub fn of_toml(text: &str, error: &toml::de::Error) -> ConfigError {
        let at = error.span().map(|span| span.start);
        let table = DeTable::parse(text);
        let key = at.and_then(|at| key_at(table.as_ref().ok()?.get_ref(), at));
        let mistake = at.filter(|_| table.is_err());
        let mistake = mistake.and_then(|at| mistake_at(text, at));
        ConfigError::Parse {
            line: line_of(text, at.unwrap_or_default()),
            key,
            message: mistake.unwrap_or_else(|| in_toml(&first_line(error.message()))),
        }
    }
}

/// The key, with its section, whose value stands at that place of a text.
fn key_at(table: &DeTable<'_>, at: usize) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let name = key.get_ref();
        // What is known of a section is where its head stands.
        let below = match Spanned::get_ref(value) {
            DeValue::Table(table) => key_at(table, at),
            DeValue::Array(entries) => {
                entries
                    .iter()
                    .find_map(|entry| match Spanned::get_ref(entry) {
                        DeValue::Table(table) => key_at(table, at),
                        _ => None,
                    })
            }
            _ => None,
        };
        let is_here = || value.span().contains(&at) || key.span().contains(&at);
        below
            .map(|below| format!("{name}.{below}"))
            .or_else(|| is_here().then(|| name.to_string()))
    })
}

/// What people often write where the parser finds no TOML, and what to write; `None` if it is something else.
fn mistake_at(text: &str, at: usize) -> Option<String> {
    let (before, behind) = text.split_at_checked(at)?;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = text.get(start..)?.lines().next()?.trim();
    let (key, rest) = line.split_once(':').unwrap_or_default();
    let is_key = |key: &str| !key.is_empty() && !key.contains(['=', '[', '"', '\'', '#', ' ']);
    let is_pair = is_key(key) && (rest.is_empty() || rest.starts_with(' '));
    if is_pair || line == "---" || line.starts_with("- ") {
        return Some(
            "this is YAML, and the file is TOML: write [section], and key = value".to_owned(),
        );
    }
    let is_of_word = |c: char| c.is_alphanumeric() || "-_./:*".contains(c);
    let word = behind.split(|c| !is_of_word(c)).next()?;
    let is_head = line.starts_with('[') && !line.contains('=');
    let begins_value = before.trim_end().ends_with(['=', '[', ',']) && !is_head;
    (begins_value && word.starts_with(char::is_alphabetic)).then(|| {
        format!(
            "{word} is no number, and neither true nor false; a string wants quotes: \"{word}\""
        )
    })
}

/// What serde says of a value, in the words of TOML.
fn in_toml(message: &str) -> String {
    let mismatch = ["invalid type: ", "invalid value: "];
    let rest = mismatch.iter().find_map(|of| message.strip_prefix(of));
    let Some((found, expected)) = rest.and_then(|rest| rest.rsplit_once(", expected ")) else {
        return match message {
            // Of an enumeration, no variant of which is a table.
            "wanted string or table" => "expected a string".to_owned(),
            other => other.to_owned(),
        };
    };
    let expected = match expected {
        "a sequence" => "an array",
        "path string" => "a string",
        "u16" | "u32" | "u64" | "i64" => "a whole number",
        // Of the classes that `leases.share` counts and of the pools.
        "a map" => "a table",
        section if section.starts_with("struct ") => "a table",
        other => other,
    };
    let found = match found {
        "sequence" => "an array",
        "map" => "a table",
        other => other,
    };
    format!("expected {expected}, found {found}")
}

fn check_fdtable_size(size: u32) -> Result<(), ConfigError> {
    if (1..=16_777_216).contains(&size) {
        return Ok(());
    }
    Err(ConfigError::FdtableSize(size))
}

fn absolute(key: &'static str, path: &std::path::Path) -> Result<(), ConfigError> {
    if path.is_absolute() {
        return Ok(());
    }
    Err(ConfigError::NotAbsolute {
        key,
        path: path.to_owned(),
    })
}

fn check_keys(text: &str, table: &DeTable<'_>) -> Result<(), ConfigError> {
    let known = SECTIONS.iter().chain(&LISTS);
    let sections: Vec<&str> = known
        .map(|(name, _)| *name)
        .chain([POOLS])
        .chain(NAMED.iter().map(|(name, _)| *name))
        .collect();
    for (section, value) in table {
        let (name, at) = (section.get_ref().as_ref(), section.span().start);
        if name == POOLS {
            check_pools(text, at, value)?;
            continue;
        }
        if let Some((of, keys)) = NAMED.iter().find(|(known, _)| *known == name) {
            for (name, settings) in table_at(text, of, at, value)?.into_iter().flatten() {
                let (section, at) = (format!("{of}.{}", name.get_ref()), name.span().start);
                check_table(text, &section, at, settings, keys)?;
            }
            continue;
        }
        if let Some((name, keys)) = LISTS.iter().find(|(known, _)| *known == name) {
            check_list(text, name, at, value, keys)?;
            continue;
        }
        let Some((name, keys)) = SECTIONS.iter().find(|(known, _)| *known == name) else {
            return Err(unknown(text, "", at, name, &sections));
        };
        check_table(text, name, at, value, keys)?;
        if let (&KUBERNETES, DeValue::Table(section)) = (name, Spanned::get_ref(value)) {
            check_resources(text, section)?;
        }
    }
    Ok(())
}

/// Checks each table `[kubernetes.resources."NAME"]`.
fn check_resources(text: &str, section: &DeTable<'_>) -> Result<(), ConfigError> {
    let mut resources = section.iter();
    let resources = resources.find(|(key, _)| key.get_ref() == RESOURCES);
    let Some((_, resources)) = resources else {
        return Ok(());
    };
    let DeValue::Table(resources) = Spanned::get_ref(resources) else {
        return Ok(());
    };
    for (name, resource) in resources {
        let section = format!("{KUBERNETES}.{RESOURCES}.{:?}", name.get_ref());
        check_table(text, &section, name.span().start, resource, RESOURCE_KEYS)?;
    }
    Ok(())
}

/// Checks each table of a section of which there may be several, `[[NAME]]`.
fn check_list(
    text: &str,
    section: &str,
    at: usize,
    value: &Spanned<DeValue<'_>>,
    keys: &[&str],
) -> Result<(), ConfigError> {
    match Spanned::get_ref(value) {
        DeValue::Array(entries) => {
            let mut tables = entries.iter();
            tables.try_for_each(|entry| match Spanned::get_ref(entry) {
                DeValue::Table(_) => check_table(text, section, at, entry, keys),
                _ => Ok(()),
            })
        }
        DeValue::Table(_) => Err(ConfigError::Parse {
            line: line_of(text, at),
            key: Some(section.to_owned()),
            message: format!("expected an array of tables; write [[{section}]]"),
        }),
        _ => Ok(()),
    }
}

/// Checks each table `[pools.NAME]`, and the table `select` in it.
fn check_pools(text: &str, at: usize, pools: &Spanned<DeValue<'_>>) -> Result<(), ConfigError> {
    let Some(pools) = table_at(text, POOLS, at, pools)? else {
        return Ok(());
    };
    for (name, pool) in pools {
        let (section, at) = (format!("{POOLS}.{}", name.get_ref()), name.span().start);
        check_table(text, &section, at, pool, POOL_KEYS)?;
        let DeValue::Table(pool) = Spanned::get_ref(pool) else {
            continue;
        };
        let select = pool.iter().find(|(key, _)| key.get_ref() == SELECT);
        if let Some((key, select)) = select {
            let section = format!("{section}.{SELECT}");
            check_table(text, &section, key.span().start, select, &select::KEYS)?;
        }
    }
    Ok(())
}

/// Checks the keys of a section, which starts at that place of the text.
fn check_table(
    text: &str,
    section: &str,
    at: usize,
    value: &Spanned<DeValue<'_>>,
    keys: &[&str],
) -> Result<(), ConfigError> {
    let Some(table) = table_at(text, section, at, value)? else {
        return Ok(());
    };
    let mut of_table = table.keys();
    match of_table.find(|key| !keys.contains(&key.get_ref().as_ref())) {
        Some(key) => Err(unknown(
            text,
            section,
            key.span().start,
            key.get_ref(),
            keys,
        )),
        None => Ok(()),
    }
}

/// A section's table; `None` where serde says what is wrong with it.
fn table_at<'t, 'i>(
    text: &str,
    section: &str,
    at: usize,
    value: &'t Spanned<DeValue<'i>>,
) -> Result<Option<&'t DeTable<'i>>, ConfigError> {
    match Spanned::get_ref(value) {
        DeValue::Table(table) => Ok(Some(table)),
        // serde takes one for a table whose keys are left out.
        DeValue::Array(_) => Err(ConfigError::Parse {
            line: line_of(text, at),
            key: Some(section.to_owned()),
            message: "expected a table, found an array".to_owned(),
        }),
        _ => Ok(None),
    }
}

/// A key that is one of the hook's but for capitals, `_` and a final `s` belongs to no other version: to
/// pass over it would leave a default in force where the operator wrote a policy.
fn check_misspelled(text: &str, table: &DeTable<'_>) -> Result<(), ConfigError> {
    const USED: [&str; 4] = ["annotations", "cdi", "environment", "leases"];
    let folded = |key: &str| {
        let key = key.to_ascii_lowercase().replace('_', "-");
        key.trim_end_matches('s').to_owned()
    };
    let meant = |key: &str, known: &[&str]| {
        !known.contains(&key) && known.iter().any(|known| folded(known) == folded(key))
    };
    for (section, value) in table {
        let (name, at) = (section.get_ref().as_ref(), section.span().start);
        if meant(name, &USED) {
            return Err(unknown(text, "", at, name, &USED));
        }
        let keys = SECTIONS.iter().find(|(known, _)| *known == name);
        let keys = keys.filter(|(known, _)| USED.contains(known));
        if let (Some((_, keys)), DeValue::Table(table)) = (keys, Spanned::get_ref(value))
            && let Some(key) = table.keys().find(|key| meant(key.get_ref(), keys))
        {
            return Err(unknown(text, name, key.span().start, key.get_ref(), keys));
        }
    }
    Ok(())
}

fn unknown(text: &str, section: &str, at: usize, key: &str, known: &[&str]) -> ConfigError {
    let qualified = |key: &str| match section {
        "" => key.to_owned(),
        section => format!("{section}.{key}"),
    };
    // A key of another section, or one under no section at all, is found by its own name.
    let own_name = |full: &str| full.rsplit('.').next().unwrap_or(full).to_owned();
    let nearest_of = |names: Vec<String>| {
        let names = names.into_iter();
        names
            .map(|full| (strsim::damerau_levenshtein(&own_name(&full), key), full))
            .min_by_key(|(distance, _)| *distance)
            .filter(|(distance, _)| *distance <= key.chars().count().max(3) / 2)
            .map(|(_, full)| full)
    };
    let here = known.iter().map(|key| qualified(key)).collect();
    let sections = SECTIONS.iter().chain(&LISTS);
    let everywhere = || {
        sections
            .flat_map(|(name, keys)| keys.iter().map(move |key| format!("{name}.{key}")))
            .collect()
    };
    let nearest = nearest_of(here).or_else(|| nearest_of(everywhere()));
    ConfigError::UnknownKey {
        line: line_of(text, at),
        key: qualified(key),
        nearest,
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text
        .as_bytes()
        .iter()
        .take(offset)
        .filter(|byte| **byte == b'\n')
        .count()
}

fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_settings::{VfDriver, Vlan};
    use crate::kubernetes_settings::{Interface, Listen};

    fn refusal(text: &str) -> String {
        Config::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn an_empty_file_gives_the_defaults() {
        let config = Config::parse("").unwrap();
        assert_eq!(config, Config::default());
        assert_eq!(config.cdi.kinds.classes(), Class::ALL);
        assert!(config.annotations.allow.is_empty());
        assert!(config.annotations.live_devices);
    }

    #[test]
    fn every_known_key_can_be_set() {
        let text = r#"
            [discover]
            ignored-interfaces = ["eth0"]
            missing-nic-is-error = true
            offer-umad = true
            offer-issm = true
            offer-pf-with-vfs = true
            offer-netdevs = ["ens1f0v*"]
            [cdi]
            kinds = ["rdma", "nic"]
            hook-path = "/opt/bin/onload-hook"
            preload = "file"
            fdtable-size = 4096
            memlock = 65536
            select-interface = true
            onload-socket = true
            ptp-write = true
            vhost-net = true
            hugepages-dir = "/mnt"
            host-library-dirs = ["/opt/lib"]
            container-library-dirs = ["/usr/lib"]
            host-tool-dir = "/opt/bin"
            container-tool-dir = ""
            tool-libraries = true
            host-profile-dir = "/opt/profiles"
            container-profile-dir = "/profiles"
            host-device-dir = "/dev"
            container-device-dir = "/dev"
            [annotations]
            allow = ["nic", "nic-plain"]
            addresses = ["192.0.2.0/24", "2001:db8::/64"]
            root-with-onload = "refuse"
            on-incompatible = "skip"
            live-devices = false
            [environment]
            allow = ["rdma"]
            [leases]
            share = { rdma = 500, vfio = 2 }
            [runtime]
            path = "/usr/bin/crun"
            [log]
            level = "debug"
            file = "/var/log/onload-ctk.log"
            [host]
            af-xdp = ["ens1"]
            af-xdp-flow-filters = false
            rdma-netns = "exclusive"
            hugepages = {"1Gi"={0=4,"1"=2}}
            [kubernetes]
            offer = "device-plugin"
            classes = ["nic", "rdma"]
            slots = 20
            resources = {"amd.com/onload"={class="nic",slots=5}}
            addresses = ["192.0.2.0/24"]
            listen = ""
        "#;
        let config = Config::parse(text).unwrap();
        assert_eq!(config.cdi.kinds.classes(), [Class::Nic, Class::Rdma]);
        assert_eq!(config.cdi.memlock, Memlock::Bytes(65_536));
        assert_eq!(config.cdi.preload, Preload::File);
        assert!(config.cdi.select_interface && config.cdi.vhost_net);
        assert_eq!(config.annotations.allow, [Class::Nic, Class::NicPlain]);
        assert_eq!(config.environment.allow, [Class::Rdma]);
        let hooks = HookConfig::parse(text).unwrap();
        assert_eq!(hooks.environment, config.environment);
        assert_eq!(config.runtime.path, PathBuf::from("/usr/bin/crun"));
        let kubernetes = &config.kubernetes;
        assert_eq!(kubernetes.classes.as_slice(), [Class::Nic, Class::Rdma]);
        assert_eq!(
            (kubernetes.slots.get(), kubernetes.resources.len()),
            (20, 1)
        );
        assert_eq!(kubernetes.addresses[0].to_string(), "192.0.2.0/24");
        assert_eq!(kubernetes.listen, Listen::Nowhere);
        let log = Log {
            level: LogLevel::Debug,
            file: "/var/log/onload-ctk.log".into(),
        };
        assert_eq!((&config.log, &HookConfig::from(&config).log), (&log, &log));
        assert_eq!(HookConfig::parse(text).unwrap().log, log);
        let known: usize = SECTIONS.iter().map(|(_, keys)| keys.len()).sum();
        // Each class of a share has one too.
        assert_eq!(text.matches(" = ").count(), known + 2);
    }

    #[test]
    fn an_interface_has_what_its_section_says() {
        let text = r#"
            [discover]
            offer-netdevs = ["ens1f0v*", "ens2"]
            [annotations]
            addresses = ["192.0.2.0/24", "2001:db8::/64"]
            [pools.fast]
            class = "netdev"
            move = "cni"
            [netdev.ens1f0v3]
            addresses = ["192.0.2.10/24", "2001:db8::10/64"]
            routes = ["198.51.100.0/24 via 192.0.2.1", "203.0.113.0/24"]
            gateway = ["192.0.2.1", "2001:db8::1"]
            mtu = 9000
            [netdev."0000:3b:02.1"]
            gateway = "192.0.2.1"
        "#;
        let config = Config::parse(text).unwrap();
        assert!(config.discover.offer_netdevs[0].matches("ens1f0v12"));
        assert_eq!(config.pools["fast"].mover, Mover::Cni);
        let settings = &config.netdev["ens1f0v3"];
        assert_eq!(settings.addresses[1].to_string(), "2001:db8::10/64");
        assert_eq!(settings.routes[1].to_string(), "203.0.113.0/24");
        assert_eq!(
            (settings.gateway.len(), settings.mtu.unwrap().get()),
            (2, 9000)
        );
        assert_eq!(config.netdev["0000:3b:02.1"].gateway.len(), 1);
        assert_eq!(config.leases.share(Class::Netdev), Some(1));
        assert_eq!(HookConfig::parse(text).unwrap(), HookConfig::from(&config));
        // A newer version may know more of an interface.
        let newer = HookConfig::parse("[netdev.ens1]\nvrf = 5\nmtu = 1500\n").unwrap();
        assert_eq!(newer.netdev["ens1"].mtu.unwrap().get(), 1500);
    }

    #[test]
    fn what_an_interface_cannot_have_is_refused_with_its_line_and_key() {
        for (text, says) in [
            (
                "[netdev.a]\naddresses = [\"192.0.2.0/24\"]",
                "line 2: netdev.a.addresses: \"192.0.2.0/24\" is the address of its network",
            ),
            (
                "[netdev.a]\nroutes = [\"192.0.2.1/24\"]",
                "line 2: netdev.a.routes: \"192.0.2.1/24\" is no network",
            ),
            (
                "[netdev.a]\ngateway = \"router\"",
                "line 2: netdev.a.gateway: ",
            ),
            (
                "[netdev.a]\nmtu = 67",
                "line 2: netdev.a.mtu: expected a number of bytes from 68 to 65535, found 67",
            ),
            (
                "[netdev.a]\ngateway = [\"192.0.2.1\", \"192.0.2.2\"]",
                "netdev.a: gateway has 192.0.2.1 and 192.0.2.2",
            ),
            (
                "[annotations]\naddresses = [\"192.0.2.1/24\"]",
                "line 2: annotations.addresses: \"192.0.2.1/24\" is no network",
            ),
            (
                "[leases]\nshare = { netdev = 2 }",
                "leases.share.netdev is 2, and an interface is in one container at a time",
            ),
        ] {
            for error in [
                Config::parse(text).unwrap_err().to_string(),
                HookConfig::parse(text).unwrap_err().to_string(),
            ] {
                assert!(error.starts_with(says), "{text:?}: {error}");
            }
        }
        for (text, says) in [
            (
                "[netdev.a]\ngatewai = \"192.0.2.1\"",
                "line 2: unknown key \"netdev.a.gatewai\"; did you mean \"netdev.a.gateway\"?",
            ),
            (
                "[pools.p]\nclass = \"netdev\"\nshare = 2",
                "pools.p.share is 2, and an interface is in one container at a time",
            ),
            (
                "[pools.p]\nclass = \"vfio\"\nmove = \"cni\"",
                "pools.p.move is for class netdev, and the pool is of class vfio",
            ),
            (
                "[pools.p]\nclass = \"netdev\"\nmove = \"cni\"\nselect = { interfaces = \"ens1v*\" }",
                "pools.p.select: interfaces names what a CNI plugin moves away and renames; select by pf and vf",
            ),
            (
                "[kubernetes]\naddresses = [\"192.0.2.1/24\"]",
                "line 2: kubernetes.addresses: \"192.0.2.1/24\" is no network",
            ),
            (
                "[pools.p]\nclass = \"netdev\"\nmove = \"us\"",
                "line 3: pools.p.move: ",
            ),
            (
                "[discover]\noffer-netdevs = [\"\"]",
                "line 2: discover.offer-netdevs: ",
            ),
        ] {
            assert!(
                refusal(text).starts_with(says),
                "{text:?}: {}",
                refusal(text)
            );
        }
    }

    #[test]
    fn a_share_is_counted_by_class_and_vfio_has_one_holder_without() {
        let text = "[leases]\nshare = { rdma = 500, nic = 1 }\n";
        let config = Config::parse(text).unwrap();
        let hook = HookConfig::parse(text).unwrap();
        assert_eq!(HookConfig::from(&config), hook);
        for (class, share) in [
            (Class::Rdma, Some(500)),
            (Class::Nic, Some(1)),
            (Class::Vfio, Some(1)),
            (Class::Ptp, None),
        ] {
            assert_eq!(hook.leases.share(class), share, "{class}");
        }
        let two = Config::parse("[leases]\nshare.vfio = 2\n").unwrap();
        assert_eq!(two.leases.share(Class::Vfio), Some(2));
    }

    #[test]
    fn what_is_no_share_is_refused_with_its_line_and_key() {
        for (value, says) in [
            (
                "{ rdma = 0 }",
                "leases.share.rdma: expected a number of containers from 1 to 65536, found 0",
            ),
            (
                "{ rdma = 65537 }",
                "leases.share.rdma: expected a number of containers from 1 to 65536, found 65537",
            ),
            (
                "{ rdma = -1 }",
                "leases.share.rdma: expected a number of containers from 1 to 65536, found -1",
            ),
            (
                "{ rdma = \"2\" }",
                "leases.share.rdma: expected a whole number, found string \"2\"",
            ),
            (
                "{ rdma = [2] }",
                "leases.share.rdma: expected a whole number, found an array",
            ),
            (
                "{ disk = 2 }",
                "leases.share.disk: unknown class \"disk\"; known are ",
            ),
            ("5", "leases.share: expected a table, found integer `5`"),
            ("[]", "leases.share: expected a table, found an array"),
        ] {
            let said = refusal(&format!("[leases]\nshare = {value}\n"));
            assert!(
                said.starts_with(&format!("line 2: {says}")),
                "{value}: {said}"
            );
        }
    }

    #[test]
    fn a_pool_is_read_with_every_selector() {
        let text = r#"
            [pools.fast]
            class = "vfio"
            share = 2
            [pools.fast.select]
            vendor = "15b3"
            device = ["101e", "0x1018"]
            driver = "vfio-pci"
            pf = ["ens1f0np0", "0000:3b:00.1"]
            vf = "0,2-7"
            numa = [0, 1]
            interfaces = ["ens1*"]
            link-layer = "ethernet"
            addresses = ["0000:3b:02.0"]
            [pools.slow]
            class = "rdma"
        "#;
        let config = Config::parse(text).unwrap();
        let names: Vec<&String> = config.pools.keys().collect();
        assert_eq!(names, ["fast", "slow"]);
        let fast = &config.pools["fast"];
        assert_eq!(
            (fast.class, fast.share.map(Share::get)),
            (Class::Vfio, Some(2))
        );
        let select = &fast.select;
        assert_eq!(select.vendor, [select::HexId(0x15b3)]);
        assert_eq!(
            select.device,
            [select::HexId(0x101e), select::HexId(0x1018)]
        );
        assert_eq!(select.numa, [0, 1]);
        let words = |list: &[&dyn fmt::Display]| -> Vec<String> {
            list.iter().map(ToString::to_string).collect()
        };
        let [pf, other] = &select.pf[..] else {
            panic!("{:?}", select.pf);
        };
        let found = words(&[
            pf,
            other,
            &select.driver[0],
            &select.vf.as_slice()[1],
            &select.interfaces[0],
            &select.link_layer[0],
            &select.addresses[0],
        ]);
        let wanted = [
            "ens1f0np0",
            "0000:3b:00.1",
            "vfio-pci",
            "2-7",
            "ens1*",
            "ethernet",
            "0000:3b:02.0",
        ];
        assert_eq!(found, wanted);
        let slow = PoolConfig {
            mover: Mover::Hook,
            class: Class::Rdma,
            select: Select::default(),
            share: None,
        };
        assert_eq!(config.pools["slow"], slow);
        // Neither hook nor wrapper reads them.
        assert_eq!(HookConfig::parse(text).unwrap(), HookConfig::default());
    }

    #[test]
    fn a_pool_that_is_not_understood_is_refused_with_its_line_and_key() {
        for (pool, says) in [
            (
                "class = \"disk\"",
                "line 2: pools.fast.class: unknown class \"disk\"; known are ",
            ),
            ("share = 1", "line 1: pools.fast: missing field `class`"),
            (
                "class = \"vfio\"\nshare = 0",
                "line 3: pools.fast.share: expected a number of containers from 1 to 65536, found 0",
            ),
            (
                "class = \"vfio\"\nshares = 1",
                "line 3: unknown key \"pools.fast.shares\"; did you mean \"pools.fast.share\"?",
            ),
            (
                "class = \"vfio\"\nselect = 5",
                "line 3: pools.fast.select: expected a table, found integer `5`",
            ),
            (
                "class = \"vfio\"\nselect = []",
                "line 3: pools.fast.select: expected a table, found an array",
            ),
            (
                "class = \"vfio\"\nselect.vfs = \"1\"",
                "line 3: unknown key \"pools.fast.select.vfs\"; did you mean \"pools.fast.select.vf\"?",
            ),
            (
                "class = \"vfio\"\nselect.vendor = \"mellanox\"",
                "line 3: pools.fast.select.vendor: expected four hexadecimal digits such as \"15b3\", found \"mellanox\"",
            ),
            (
                "class = \"vfio\"\nselect.vendor = 5555",
                "line 3: pools.fast.select.vendor: expected a string, found integer `5555`",
            ),
            (
                "class = \"vfio\"\nselect.pf = [\"ens1\",\n\"3b:00.0\"]",
                "line 3: pools.fast.select.pf: expected the name of an interface, or a PCI address such as \"0000:3b:00.0\", found \"3b:00.0\"",
            ),
            (
                "class = \"vfio\"\nselect.vf = \"7-2\"",
                "line 3: pools.fast.select.vf: expected indexes of virtual functions such as \"0,2-7\", found \"7-2\"",
            ),
            (
                "class = \"vfio\"\nselect.vf = 7",
                "line 3: pools.fast.select.vf: expected a string, found integer `7`",
            ),
            (
                "class = \"vfio\"\nselect.numa = -1",
                "line 3: pools.fast.select.numa: expected a whole number, found integer `-1`",
            ),
            (
                "class = \"vfio\"\nselect.numa = []",
                "line 3: pools.fast.select.numa: the list is empty, so that no device would match; leave the key out",
            ),
            (
                "class = \"vfio\"\nselect.numa = true",
                "line 3: pools.fast.select.numa: expected one value or an array of them, found boolean `true`",
            ),
            (
                "class = \"vfio\"\nselect.interfaces = \"ens?\"",
                "line 3: pools.fast.select.interfaces: expected a name of an interface, in which only \"*\" stands for other characters, found \"ens?\"",
            ),
            (
                "class = \"vfio\"\nselect.link-layer = \"roce\"",
                "line 3: pools.fast.select.link-layer: expected \"ethernet\" or \"infiniband\", found \"roce\"",
            ),
            (
                "class = \"vfio\"\nselect.addresses = \"3b:00.0\"",
                "line 3: pools.fast.select.addresses: \"3b:00.0\" is not a PCI address; want one like 0000:3b:00.0",
            ),
        ] {
            let said = refusal(&format!("[pools.fast]\n{pool}\n"));
            assert!(said.starts_with(says), "{pool}: {said}");
        }
        for (text, says) in [
            (
                "[pools]\nclass = \"vfio\"\n",
                "line 2: pools.class: expected a table, found string \"vfio\"",
            ),
            (
                "[[pools]]\nclass = \"vfio\"\n",
                "line 1: pools: expected a table, found an array",
            ),
            (
                "[[pools.fast]]\nclass = \"vfio\"\n",
                "line 1: pools.fast: expected a table, found an array",
            ),
            (
                "pools = 5\n",
                "line 1: pools: expected a table, found integer `5`",
            ),
            (
                "[pool.fast]\nclass = \"vfio\"\n",
                "line 1: unknown key \"pool\"; did you mean \"pools\"?",
            ),
        ] {
            assert_eq!(refusal(text), says, "{text}");
        }
    }

    const SRIOV: &str = r#"
        [[sriov]]
        pf = "ens1f0"
        vfs = 4
        driver = "vfio-pci"
        vlan = 100
        mac = "02:00:00:00:10:00"
        spoof-check = true
        trust = false
        [[sriov]]
        pf = "0000:81:00.0"
        vfs = 0
        driver = "kernel"
    "#;

    #[test]
    fn the_host_s_own_settings_can_be_set() {
        let config = Config::parse(SRIOV).unwrap();
        let [first, second] = &config.sriov[..] else {
            panic!("{config:?}")
        };
        assert_eq!((first.pf.to_string(), first.vfs), ("ens1f0".to_owned(), 4));
        assert_eq!(first.driver, VfDriver::VfioPci);
        assert_eq!(first.vlan.map(Vlan::number), Some(100));
        assert_eq!(first.mac.unwrap().to_string(), "02:00:00:00:10:00");
        assert_eq!((first.spoof_check, first.trust), (Some(true), Some(false)));
        assert_eq!((second.vfs, second.driver), (0, VfDriver::Kernel));
        assert_eq!((second.vlan, second.mac), (None, None));
        let text = "[host]\naf-xdp = [\"ens1\"]\nhugepages = { 1Gi = { 0 = 4, 8 = 1 }, \"2Mi\" = { 0 = 512 } }\n";
        let host = Config::parse(text).unwrap().host;
        let pages: Vec<String> = host
            .hugepages
            .iter()
            .flat_map(|(size, nodes)| {
                nodes
                    .iter()
                    .map(move |(node, count)| format!("{size} {node} {count}"))
            })
            .collect();
        assert_eq!(pages, ["2Mi 0 512", "1Gi 0 4", "1Gi 8 1"]);
        assert_eq!(host.af_xdp[0].as_str(), "ens1");
        assert_eq!(host.rdma_netns, None);
    }

    #[test]
    fn a_wrong_setting_of_the_host_is_refused_with_its_line_and_key() {
        let of = |line: &str| {
            let text = format!("[[sriov]]\npf = \"ens1\"\nvfs = 4\ndriver = \"kernel\"\n{line}\n");
            refusal(&text)
        };
        for (line, refused) in [
            (
                "vlan = 4095",
                "line 5: sriov.vlan: expected a VLAN from 1 to 4094",
            ),
            (
                "vlan = -1",
                "line 5: sriov.vlan: expected a whole number, found integer `-1`",
            ),
            (
                "mac = \"01:00:5e:00:00:01\"",
                "line 5: sriov.mac: expected the hardware address of one",
            ),
            (
                "trust = \"yes\"",
                "line 5: sriov.trust: expected a boolean, found string \"yes\"",
            ),
            (
                "spoofcheck = true",
                "line 5: unknown key \"sriov.spoofcheck\"; did you mean \"sriov.spoof-check\"?",
            ),
            (
                "mac = \"02:00:00:ff:ff:fd\"",
                "sriov.mac 02:00:00:ff:ff:fd of ens1: counting up to 4 virtual",
            ),
            (
                "[[sriov]]\npf = \"ens1\"\nvfs = 1\ndriver = \"kernel\"",
                "two sections [[sriov]] have the pf ens1",
            ),
            (
                "[[sriov]]\npf = \"ens2\"\nvfs = 1",
                "line 5: missing field `driver`",
            ),
        ] {
            assert!(of(line).starts_with(refused), "{line}: {}", of(line));
        }
        for (text, refused) in [
            (
                "[sriov]\npf = \"ens1\"\n",
                "line 1: sriov: expected an array of tables; write [[sriov]]",
            ),
            (
                "[[host]]\n",
                "line 1: host: expected a table, found an array",
            ),
            (
                "[[sriov]]\npf = \"a/b\"\n",
                "line 2: sriov.pf: expected the name of an interface or a PCI address",
            ),
            (
                "[[sriov]]\npf = \"a\"\nvfs = 65536\n",
                "line 3: sriov.vfs: expected a whole number, found integer `65536`",
            ),
            (
                "[[sriov]]\npf = \"a\"\nvfs = 1\ndriver = \"uio\"\n",
                "line 4: sriov.driver: unknown variant `uio`",
            ),
            (
                "[host]\nhugepages = { \"3Mi\" = { 0 = 1 } }\n",
                "line 2: host.hugepages",
            ),
            (
                "[host]\nhugepages = { \"2Mi\" = { node0 = 1 } }\n",
                "line 2: host.hugepages",
            ),
            (
                "[host]\nhugepages = { \"2Mi\" = 4 }\n",
                "line 2: host.hugepages",
            ),
            (
                "[host]\nrdma-netns = \"none\"\n",
                "line 2: host.rdma-netns: unknown variant `none`",
            ),
            (
                "[host]\naf-xdp = [\"a b\"]\n",
                "line 2: host.af-xdp: expected the name of an interface",
            ),
        ] {
            assert!(
                refusal(text).starts_with(refused),
                "{text}: {}",
                refusal(text)
            );
        }
    }

    #[test]
    fn hook_and_wrapper_pass_over_the_settings_of_the_host_right_or_wrong() {
        for text in [
            SRIOV,
            "sriov = 5\nhost = []\n",
            "[[sriov]]\nvfs = -1\n[host]\nmoods = 1\n",
        ] {
            assert_eq!(HookConfig::parse(text).unwrap(), HookConfig::default());
        }
    }

    /// The sections that a text shows as an example: of the shipped file, behind `#   `, or of the page.
    fn example(lines: impl Iterator<Item = String>) -> String {
        let lines: Vec<String> = lines.collect();
        let start = lines.iter().position(|line| line == "[[sriov]]").unwrap();
        let rest = lines[start..].iter();
        let rest: Vec<&str> = rest
            .map(String::as_str)
            .take_while(|line| !line.is_empty())
            .collect();
        rest.join("\n")
    }

    #[test]
    fn the_example_of_virtual_functions_holds_every_key_in_file_and_page() {
        let shipped = include_str!("../../packaging/config.toml");
        let shipped = shipped.lines();
        let shipped = shipped.map(|line| line.strip_prefix('#').unwrap_or("").trim().to_owned());
        let page = include_str!("../../packaging/man/onload-ctk.toml.5");
        let page = page
            .lines()
            .map(|line| line.replace("\\-", "-").replace("\\(dq", "\""));
        for text in [example(shipped), example(page)] {
            let config = Config::parse(&text).unwrap();
            assert_eq!(config.sriov.len(), 1, "{text}");
            let [(_, keys)] = LISTS;
            for key in keys {
                assert!(text.contains(&format!("\n{key} = ")), "{key}: {text}");
            }
            assert_eq!(text.matches(" = ").count(), keys.len(), "{text}");
        }
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_nearest_known_one() {
        assert_eq!(
            refusal("[cdi]\nkind = [\"nic\"]\n"),
            "line 2: unknown key \"cdi.kind\"; did you mean \"cdi.kinds\"?"
        );
        assert_eq!(
            refusal("[anotations]\nallow = []\n"),
            "line 1: unknown key \"anotations\"; did you mean \"annotations\"?"
        );
        assert_eq!(
            refusal("allow = [\"nic\"]\n"),
            "line 1: unknown key \"allow\"; did you mean \"annotations.allow\"?"
        );
        assert_eq!(
            refusal("[cdi]\nxyzzyplugh = 1\n"),
            "line 2: unknown key \"cdi.xyzzyplugh\""
        );
    }

    #[test]
    fn a_string_without_quotes_is_told_to_want_some() {
        for (text, line, word) in [
            ("[annotations]\nallow = [nic]\n", 2, "nic"),
            ("[annotations]\nallow = [\"nic\", rdma]\n", 2, "rdma"),
            (
                "[annotations]\nallow = [\n  nic-plain,\n]\n",
                3,
                "nic-plain",
            ),
            ("[cdi]\nmemlock = unlimited\n", 2, "unlimited"),
            ("[cdi]\npreload = file\n", 2, "file"),
            ("[cdi]\npreload = inherit\n", 2, "inherit"),
            ("[discover]\noffer-umad = yes\n", 2, "yes"),
            ("[discover]\noffer-umad = True\n", 2, "True"),
        ] {
            let wanted = format!(
                "line {line}: {word} is no number, and neither true nor false; a string wants quotes: \"{word}\""
            );
            assert_eq!(refusal(text), wanted);
        }
    }

    #[test]
    fn yaml_is_told_to_be_toml() {
        for (text, line) in [
            ("annotations:\n  allow: [nic]\n", 1),
            ("# ours\n---\nannotations:\n  allow:\n  - nic\n", 2),
            ("[annotations]\nallow: [\"nic\"]\n", 2),
            ("- nic\n", 1),
        ] {
            let wanted = format!(
                "line {line}: this is YAML, and the file is TOML: write [section], and key = value"
            );
            assert_eq!(refusal(text), wanted);
        }
    }

    #[test]
    fn what_is_neither_is_told_as_the_parser_says_it() {
        for text in [
            "[annotations\nallow = []\n",
            "[annotations]\nallow = [\"nic\"\n",
            "[runtime]\npath = \"/x\n",
            "[annotations]\nallow = \n",
            "[log]\nfile = /var/log/x\n",
            "# a: b\n[cdi\n",
        ] {
            let said = refusal(text);
            assert!(
                !said.contains("YAML") && !said.contains("quotes:"),
                "{said}"
            );
        }
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_refused_with_its_line_and_key() {
        for (text, refused) in [
            (
                "[cdi]\nmemlock = true\n",
                "line 2: cdi.memlock: expected a string or an integer, found boolean `true`",
            ),
            (
                "[cdi]\nptp-write = \"no\"\n",
                "line 2: cdi.ptp-write: expected a boolean, found string \"no\"",
            ),
            (
                "[cdi]\nhook-path = 5\n",
                "line 2: cdi.hook-path: expected a string, found integer `5`",
            ),
            (
                "[cdi]\nhost-tool-dir = [\"/a\"]\n",
                "line 2: cdi.host-tool-dir: expected a string, found an array",
            ),
            (
                "[cdi]\nkinds = \"nic\"\n",
                "line 2: cdi.kinds: expected an array, found string \"nic\"",
            ),
            (
                "[annotations]\n\nallow = [\"nic\",\n 1]\n",
                "line 4: annotations.allow: expected a string, found integer `1`",
            ),
            (
                "[cdi]\nfdtable-size = -1\n",
                "line 2: cdi.fdtable-size: expected a whole number, found integer `-1`",
            ),
            (
                "[cdi]\npreload = 1\n",
                "line 2: cdi.preload: expected a string",
            ),
            (
                "[cdi]\npreload = \"always\"\n",
                "line 2: cdi.preload: unknown variant `always`, expected one of `env`, `file`, `off`",
            ),
            (
                "[log]\nlevel = \"loud\"\n",
                "line 2: log.level: unknown variant `loud`, expected one of `error`, `warning`, `info`, `debug`",
            ),
            (
                "cdi.memlock = []\n",
                "line 1: cdi.memlock: expected a string or an integer, found an array",
            ),
            (
                "log = { level = \"info\", file = 1 }\n",
                "line 1: log.file: expected a string, found integer `1`",
            ),
            (
                "cdi = 5\n",
                "line 1: cdi: expected a table, found integer `5`",
            ),
            (
                "\ncdi = []\n",
                "line 2: cdi: expected a table, found an array",
            ),
            (
                "[[log]]\nlevel = \"info\"\n",
                "line 1: log: expected a table, found an array",
            ),
        ] {
            assert_eq!(refusal(text), refused, "{text}");
        }
        assert!(
            refusal("[annotations]\n\nallow = [\"gpu\"]\n")
                .starts_with("line 3: annotations.allow: unknown class \"gpu\"")
        );
        assert!(refusal("[cdi]\nkinds = []\n").contains("the list of kinds is empty"));
        assert!(refusal("[cdi]\nfdtable-size = 0\n").contains("from 1 to 16777216"));
        assert!(refusal("not toml").starts_with("line 1: "));
    }

    #[test]
    fn memlock_is_a_number_of_bytes_with_or_without_a_unit() {
        let memlock = |value: &str| Config::parse(&format!("[cdi]\nmemlock = {value}\n"));
        for (value, bytes) in [
            ("65536", 65_536),
            ("\"65536\"", 65_536),
            ("0", 0),
            ("\"0\"", 0),
            ("\"64K\"", 64 << 10),
            ("\"64Ki\"", 64 << 10),
            ("\"512M\"", 512 << 20),
            ("\"512Mi\"", 512 << 20),
            ("\"8G\"", 8 << 30),
            ("\"8Gi\"", 8 << 30),
            ("\"1T\"", 1 << 40),
            ("\"16777215T\"", 16_777_215 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            let found = memlock(value).unwrap().cdi.memlock;
            assert_eq!(found, Memlock::Bytes(bytes), "{value}");
            let hook = HookConfig::parse(&format!("[cdi]\nmemlock = {value}\n")).unwrap();
            assert_eq!(hook.cdi.memlock, found, "{value}");
        }
        assert_eq!(
            memlock("\"unlimited\"").unwrap().cdi.memlock,
            Memlock::Unlimited
        );
    }

    #[test]
    fn what_is_no_limit_is_refused_with_what_would_be_one() {
        for value in [
            "\"\"",
            "\"G\"",
            "\"8GB\"",
            "\"8 G\"",
            "\" 8G\"",
            "\"8g\"",
            "\"8P\"",
            "\"8iG\"",
            "\"+8G\"",
            "\"-8G\"",
            "\"1.5G\"",
            "\"1e3\"",
            "\"0x10\"",
            "\"8_000\"",
            "\"Unlimited\"",
            "\"٣G\"",
            "-1",
        ] {
            let text = refusal(&format!("[cdi]\nmemlock = {value}\n"));
            let wanted = "line 2: cdi.memlock: expected \"unlimited\" or a number of bytes, which may end in K, M, G or T (powers of 1024) as \"8G\" does, found ";
            assert!(text.starts_with(wanted), "{value}: {text}");
        }
        for value in [
            "\"16777216T\"",
            "\"18446744073709551616\"",
            "\"99999999999999999999K\"",
        ] {
            let text = refusal(&format!("[cdi]\nmemlock = {value}\n"));
            assert_eq!(
                text,
                format!(
                    "line 2: cdi.memlock: {value} is more than 64 bits can hold; say \"unlimited\""
                )
            );
        }
        for value in ["1.5", "true", "[]", "{}"] {
            let text = refusal(&format!("[cdi]\nmemlock = {value}\n"));
            let wanted = "line 2: cdi.memlock: expected a string or an integer, found ";
            assert!(text.starts_with(wanted), "{value}: {text}");
        }
    }

    #[test]
    fn the_argument_of_the_hook_has_no_units() {
        assert_eq!("65536".parse(), Ok(Memlock::Bytes(65_536)));
        for text in ["8G", "64Ki", "-1", "+1", ""] {
            assert_eq!(text.parse::<Memlock>(), Err(NotMemlock(text.to_owned())));
        }
        assert_eq!(
            Memlock::from_setting("8G").unwrap().to_string(),
            "8589934592"
        );
    }

    #[test]
    fn a_relative_path_is_refused() {
        assert_eq!(
            refusal("[cdi]\nhook-path = \"onload-hook\"\n"),
            "cdi.hook-path must be an absolute path, not \"onload-hook\""
        );
        assert_eq!(
            refusal("[log]\nfile = \"log\"\n"),
            "log.file must be an absolute path, not \"log\""
        );
        assert_eq!(
            refusal("[runtime]\npath = \"runc\"\n"),
            "runtime.path must be an absolute path, not \"runc\""
        );
        assert_eq!(
            refusal("[cdi]\nhost-library-dirs = [\"/a\", \"b\"]\n"),
            "cdi.host-library-dirs must be an absolute path, not \"b\""
        );
    }

    #[test]
    fn classes_are_offered_to_kubernetes_by_one_interface_or_by_one_each() {
        let offer = |value: &str| {
            let config = Config::parse(&format!("[kubernetes]\noffer = {value}\n")).unwrap();
            let of = |class| config.kubernetes.offer.interface(class);
            (of(Class::Vfio), of(Class::Nic))
        };
        assert_eq!(offer("\"dra\""), (Interface::Dra, Interface::Dra));
        assert_eq!(
            offer("{ vfio = \"device-plugin\" }"),
            (Interface::DevicePlugin, Interface::Auto)
        );
    }

    #[test]
    fn a_resource_that_kubernetes_cannot_be_offered_is_refused() {
        for (text, says) in [
            (
                "[kubernetes]\noffer = \"csi\"\n",
                "line 2: kubernetes.offer: unknown variant",
            ),
            (
                "[kubernetes]\noffer = { gpu = \"dra\" }\n",
                "unknown class \"gpu\"",
            ),
            ("[kubernetes]\noffer = 1\n", "line 2: kubernetes.offer: "),
            (
                "[kubernetes]\nclasses = [\"hugepages\"]\n",
                "kubelet offers hugepages-2Mi",
            ),
            (
                "[kubernetes]\nslots = 0\n",
                "line 2: kubernetes.slots: expected a number of slots from 1 to 32768, found 0",
            ),
            ("[kubernetes]\nslots = 40000\n", "from 1 to 32768"),
            (
                "[kubernetes]\nlisten = \"9478\"\n",
                "line 2: kubernetes.listen: expected ADDRESS:PORT",
            ),
            (
                "[kubernetes]\nclass = []\n",
                "unknown key \"kubernetes.class\"; did you mean \"kubernetes.classes\"?",
            ),
            (
                "[kubernetes.resources]\nnic = { class = \"nic\" }\n",
                "\"nic\" is no name of an extended resource",
            ),
            (
                "[kubernetes.resources]\n\"a.io/x\" = { class = \"nic\", slot = 1 }\n",
                "line 2: unknown key \"kubernetes.resources.\\\"a.io/x\\\".slot\"",
            ),
            (
                "[kubernetes.resources]\n\"a.io/x\" = {}\n",
                "kubernetes.resources.\"a.io/x\" needs a class or a pool, and not both",
            ),
            (
                "[kubernetes.resources]\n\"a.io/x\" = { class = \"nic\", pool = \"p\" }\n",
                "not both",
            ),
            (
                "[kubernetes.resources]\n\"a.io/x\" = { pool = \"p\" }\n",
                "there is no section [pools.p]",
            ),
            (
                "[kubernetes.resources]\n\"a.io/x\" = { class = \"profile\" }\n",
                "profile is no resource",
            ),
            (
                "[kubernetes.resources]\n\"a.io/x\" = { class = \"vfio\", slots = 2 }\n",
                "a vfio device is for one",
            ),
            (
                "[pools.p]\nclass = \"rdma\"\nshare = 1\n[kubernetes.resources]\n\"a.io/x\" = { pool = \"p\", slots = 2 }\n",
                "a rdma device is for one",
            ),
        ] {
            assert!(refusal(text).contains(says), "{text}: {}", refusal(text));
        }
        for text in [
            "[leases]\nshare = { vfio = 4 }\n[kubernetes.resources]\n\"a.io/x\" = { class = \"vfio\", slots = 2 }\n",
            "[pools.p]\nclass = \"rdma\"\n[kubernetes.resources]\n\"rdma/hca\" = { pool = \"p\", slots = 500 }\n",
        ] {
            assert!(Config::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn the_hook_passes_over_what_it_does_not_use() {
        let newer = r#"
            top-level = 1
            discover = "of another type"
            [cdi]
            kinds = 5
            preload = "always"
            select-interface = true
            memlock = 65536
            [annotations]
            allow = ["nic", "gpu", "later", "rdma"]
            networks = ["192.0.2.0/24"]
            root-with-onload = "refuse"
            [runtime]
            path = 7
            [environment]
            allow = ["nic"]
            [leases]
            share = { rdma = 500, gpu = "each" }
            grace = 60
            [log]
            level = "debug"
            file = "/var/log/x"
            format = "json"
            [pools.fast]
            class = "vfio"
            select = { vf = "0,2-7" }
            [kubernetes]
            offer = "later"
            [[sriov]]
            pf = "ens1"
        "#;
        let config = HookConfig::parse(newer).unwrap();
        assert_eq!(config.annotations.allow, [Class::Nic, Class::Rdma]);
        assert_eq!(config.annotations.root_with_onload, RootWithOnload::Refuse);
        assert_eq!(config.cdi.memlock, Memlock::Bytes(65_536));
        assert_eq!(config.log.file, PathBuf::from("/var/log/x"));
        assert_eq!(config.leases.share(Class::Rdma), Some(500));
        assert!(refusal(newer).contains("unknown key"));
    }

    #[test]
    fn a_log_that_is_not_understood_is_none_and_stops_no_container() {
        for text in [
            "log = 1\n",
            "[log]\nfile = \"log\"\n",
            "[log]\nfile = \"\"\n",
            "[log]\nfile = 1\n",
            "[log]\nlevel = \"loud\"\nfile = \"/var/log/x\"\n",
            "[[log]]\nfile = \"/var/log/x\"\n",
        ] {
            let config = HookConfig::parse(text).unwrap();
            assert_eq!(config, HookConfig::default(), "{text}");
            assert_eq!(Log::read(text), Log::default(), "{text}");
        }
        assert_eq!(Log::read("[log\n"), Log::default());
        let other = "[log]\nfile = \"/var/log/x\"\n[annotations]\nallow = 7\n";
        assert!(HookConfig::parse(other).is_err());
        assert_eq!(Log::read(other).file, PathBuf::from("/var/log/x"));
    }

    #[test]
    fn the_hook_refuses_what_it_uses_and_does_not_understand() {
        let refusal = |text| HookConfig::parse(text).unwrap_err().to_string();
        for (text, says) in [
            ("[annotations]\nallow = \"nic\"\n", "line 2: "),
            ("[annotations]\nallow = [1]\n", "line 2: "),
            (
                "[annotations]\n\nroot-with-onload = \"never\"\n",
                "line 3: annotations.root-with-onload: unknown variant",
            ),
            ("[annotations]\nlive-devices = \"no\"\n", "line 2: "),
            ("annotations = 1\n", "line 1: "),
            (
                "[cdi]\nmemlock = \"some\"\n",
                "line 2: cdi.memlock: expected \"unlimited\" or",
            ),
            ("[cdi]\nfdtable-size = 0\n", "from 1 to 16777216"),
            ("[cdi]\nhook-path = \"hook\"\n", "absolute path"),
            (
                "[annotations]\nallow = []\nallow = []\n",
                "line 3: duplicate key",
            ),
            ("[pools\n", "line 1: "),
            (
                "[annotations]\nroot_with_onload = \"refuse\"\n",
                "line 2: unknown key \"annotations.root_with_onload\"; did you mean \"annotations.root-with-onload\"?",
            ),
            (
                "[leases]\nshare = 5\n",
                "line 2: leases.share: expected a table",
            ),
            ("leases = 5\n", "line 1: leases: expected a table"),
            (
                "[leases]\nshare = { rdma = 0 }\n",
                "leases.share.rdma must be a number of containers from 1 to 65536",
            ),
            (
                "[leases]\nshare = { rdma = \"two\" }\n",
                "leases.share.rdma must be a number",
            ),
            ("[lease]\n", "did you mean \"leases\"?"),
            ("[leases]\nShare = {}\n", "line 2: unknown key"),
            ("[Environments]\n", "did you mean \"environment\"?"),
            (
                "[environment]\nallows = [\"nic\"]\n",
                "unknown key \"environment.allows\"",
            ),
            ("[annotation]\n", "did you mean \"annotations\"?"),
            ("[Annotations]\n", "line 1: unknown key"),
            ("[cdi]\nMemLock = 1\n", "line 2: unknown key"),
        ] {
            assert!(refusal(text).contains(says), "{text}: {}", refusal(text));
        }
    }

    #[test]
    fn the_hook_s_defaults_are_those_of_the_file() {
        let whole = HookConfig::from(&Config::default());
        assert_eq!(HookConfig::parse("").unwrap(), whole);
        assert_eq!(HookConfig::default(), whole);
        let shipped = include_str!("../../packaging/config.toml");
        assert_eq!(HookConfig::parse(shipped).unwrap(), whole);
    }

    #[test]
    fn the_shipped_file_holds_every_setting_with_its_default() {
        let shipped = include_str!("../../packaging/config.toml");
        assert_eq!(Config::parse(shipped).unwrap(), Config::default());
        for (section, keys) in SECTIONS {
            assert!(shipped.contains(&format!("[{section}]\n")), "{section}");
            for key in keys {
                assert!(shipped.contains(&format!("\n#{key} = ")), "{section}.{key}");
            }
        }
        let settings = shipped
            .lines()
            .filter(|line| line.starts_with('#') && line.contains(" = "));
        let is_setting = |line: &&str| !line.starts_with("# ");
        let known: usize = SECTIONS.iter().map(|(_, keys)| keys.len()).sum();
        assert_eq!(settings.filter(is_setting).count(), known);
    }

    #[test]
    fn the_defaults_that_the_shipped_file_shows_are_the_real_ones() {
        let shipped = include_str!("../../packaging/config.toml");
        // Where a key is left out, the value depends on where Onload is installed, or the host stays as it is.
        let dependent = [
            "-tool-dir = ",
            "-profile-dir = ",
            "-device-dir = ",
            "af-xdp-flow-filters = ",
            "rdma-netns = ",
        ];
        let uncommented: Vec<&str> = shipped
            .lines()
            .filter(|line| !dependent.iter().any(|key| line.contains(key)))
            .map(|line| match line.strip_prefix('#') {
                Some(setting) if !setting.starts_with(' ') => setting,
                _ => line,
            })
            .collect();
        let config = Config::parse(&uncommented.join("\n")).unwrap();
        assert_eq!(config, Config::default());
    }

    /// The settings of a manual page, as `[section]` and `key = default`, and those of a configuration
    /// file in which they are commented out.
    fn settings_of_page(page: &str) -> Vec<String> {
        let heads = page.lines().filter_map(|line| {
            let text = line.strip_prefix(".B ").or(line.strip_prefix(".SS "))?;
            let text = text.replace("\\-", "-").replace("\\(dq", "\"");
            (text.starts_with('[') || text.contains(" = ")).then_some(text)
        });
        heads.collect()
    }

    fn settings_of_file(file: &str) -> Vec<String> {
        let settings = file
            .lines()
            .filter_map(|line| match line.strip_prefix('#') {
                Some(setting) if !setting.starts_with(' ') && setting.contains(" = ") => {
                    Some(setting)
                }
                None if line.starts_with('[') => Some(line),
                _ => None,
            });
        settings.map(str::to_owned).collect()
    }

    #[test]
    fn the_manual_page_has_every_key_with_its_default_and_no_other() {
        let shipped = settings_of_file(include_str!("../../packaging/config.toml"));
        let page = settings_of_page(include_str!("../../packaging/man/onload-ctk.toml.5"));
        let is_pool = |setting: &String| setting.starts_with("[pools.");
        let pools = page.iter().position(is_pool).unwrap();
        let page = &page[..pools];
        assert_eq!(page, shipped);
        // The shipped file has them all, and so has the page.
        let known = SECTIONS.iter().map(|(section, keys)| {
            let mut wanted = vec![format!("[{section}]")];
            wanted.extend(keys.iter().map(|key| (*key).to_owned()));
            wanted
        });
        let mut known: Vec<String> = known.flatten().collect();
        let key = |setting: &String| setting.split(" = ").next().unwrap_or_default().to_owned();
        let mut found: Vec<String> = page.iter().map(key).collect();
        known.sort();
        found.sort();
        assert_eq!(found, known);
    }

    #[test]
    fn the_manual_page_has_every_key_of_an_interface_with_a_value_that_is_read() {
        let page = settings_of_page(include_str!("../../packaging/man/onload-ctk.toml.5"));
        let is_netdev = |setting: &&String| !setting.starts_with("[netdev.");
        let page: Vec<&str> = page
            .iter()
            .skip_while(is_netdev)
            .map(String::as_str)
            .collect();
        let keys = page
            .iter()
            .filter_map(|setting| Some(setting.split_once(" = ")?.0));
        assert_eq!(keys.collect::<Vec<_>>(), settings::KEYS);
        let config = Config::parse(&page.join("\n")).unwrap();
        let netdev = &config.netdev["NAME"];
        assert!(
            !netdev.routes.is_empty() && netdev.mtu.is_some(),
            "{netdev:?}"
        );
    }

    #[test]
    fn the_manual_page_has_every_key_of_a_bundle_with_a_value_that_is_read() {
        let page = settings_of_page(include_str!("../../packaging/man/onload-ctk.toml.5"));
        let page = page
            .iter()
            .skip_while(|setting| !setting.starts_with("[bundles."))
            .take_while(|setting| !setting.starts_with("[netdev."));
        let page: Vec<&str> = page.map(String::as_str).collect();
        let keys = page
            .iter()
            .filter_map(|setting| Some(setting.split_once(" = ")?.0));
        assert_eq!(keys.collect::<Vec<_>>(), bundle::KEYS);
        let config = Config::parse(&page.join("\n")).unwrap();
        let bundle = &config.bundles["NAME"];
        assert!(bundle.cpus.is_some() && bundle.mems.is_some(), "{bundle:?}");
    }

    #[test]
    fn a_section_that_is_no_bundle_is_refused_where_it_stands() {
        for (text, says) in [
            (
                "[bundles.hft]\ndevices = [\"gpu=0\"]\n",
                "bundles.hft: \"gpu=0\": unknown class \"gpu\"",
            ),
            (
                "[bundles.hft]\n",
                "line 1: bundles.hft: a bundle needs devices",
            ),
            (
                "[bundles.hft]\ndevice = [\"nic=ens1\"]\n",
                "line 2: unknown key \"bundles.hft.device\"; did you mean \"bundles.hft.devices\"?",
            ),
            (
                "[bundles.hft]\ndevices = \"nic=ens1\"\n",
                "line 2: bundles.hft.devices: expected an array",
            ),
            (
                "[bundles.hft]\ndevices = [\"nic=ens1\"]\ncpus = 3\n",
                "line 3: bundles.hft.cpus: expected a string",
            ),
            (
                "[bundles.hft]\ndevices = [\"nic=ens1\"]\ncpus = \"8-2\"\n",
                "bundles.hft: cpus is \"numa\"",
            ),
            (
                "[bundles.a]\ndevices = [\"nic=ens1\"]\n[bundles.b]\ndevices = [\"bundle=a\"]\n",
                "bundles.b: \"bundle=a\": a bundle cannot hold another one",
            ),
            (
                "[[bundles]]\n",
                "line 1: bundles: expected a table, found an array",
            ),
            (
                "[pools.p]\nclass = \"bundle\"\n",
                "pools.p.class is bundle, which stands for devices",
            ),
            (
                "[leases]\nshare = { bundle = 2 }\n",
                "a class of leases.share is bundle",
            ),
            ("[bundle.hft]\n", "did you mean \"bundles\"?"),
        ] {
            assert!(refusal(text).contains(says), "{text}: {}", refusal(text));
        }
    }

    #[test]
    fn the_hook_takes_a_bundle_that_it_understands_and_knows_of_another_by_name() {
        let text = "[bundles.hft]\ndevices = [\"nic=ens1\"]\ncpus = \"numa\"\nlater = 1\n\
                    [bundles.next]\ndevices = [\"gpu=0\"]\n[bundles.odd]\ndevices = 5\n";
        let config = HookConfig::parse(text).unwrap();
        let known: Vec<(&str, bool)> = config
            .bundles
            .iter()
            .map(|(name, bundle)| (name.as_str(), bundle.is_some()))
            .collect();
        assert_eq!(known, [("hft", true), ("next", false), ("odd", false)]);
        let whole = "[bundles.hft]\ndevices = [\"nic=ens1\"]\n";
        let whole = HookConfig::from(&Config::parse(whole).unwrap());
        assert!(whole.bundles["hft"].is_some());
    }

    #[test]
    fn the_manual_page_has_every_key_of_a_pool_with_a_value_that_is_read() {
        let page = settings_of_page(include_str!("../../packaging/man/onload-ctk.toml.5"));
        let is_pool = |setting: &&String| !setting.starts_with("[pools.");
        let is_of_pools = |setting: &&String| !setting.starts_with("[bundles.");
        let page = page.iter().skip_while(is_pool).take_while(is_of_pools);
        let page: Vec<&String> = page.collect();
        let keys = page
            .iter()
            .filter_map(|setting| Some(setting.split_once(" = ")?.0));
        let known: Vec<&str> = ["class", "share", "move", "select"]
            .into_iter()
            .chain(select::KEYS)
            .collect();
        assert_eq!(keys.collect::<Vec<_>>(), known);
        // `select` is the table with the rest.
        let text: Vec<&str> = page.iter().map(|setting| setting.as_str()).collect();
        let text = text.join("\n").replace("select = {}\n", "");
        let config = Config::parse(&text).unwrap();
        let pool = &config.pools["NAME"];
        assert!(
            pool.share.is_some() && !pool.select.addresses.is_empty(),
            "{pool:?}"
        );
    }

    #[test]
    fn the_pools_that_the_shipped_file_shows_are_read() {
        let shipped = include_str!("../../packaging/config.toml");
        let examples = shipped
            .lines()
            .skip_while(|line| !line.starts_with("# [pools."));
        let examples: Vec<&str> = examples.map(|line| line.trim_start_matches("# ")).collect();
        let config = Config::parse(&examples.join("\n")).unwrap();
        let pools: Vec<_> = config
            .pools
            .iter()
            .map(|(name, pool)| (name.as_str(), pool.class))
            .collect();
        assert_eq!(pools, [("fast", Class::Vfio), ("roce", Class::Rdma)]);
    }
}
