//! `/etc/onload-ctk/config.toml`: the operator's word on what is discovered, written and allowed.
//!
//! Parsing only; who opens the file decides how far it is to be trusted.

use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::class::Class;

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
    /// The OCI runtime behind the wrapper.
    pub runtime: Runtime,
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
    /// Mount `/run/onload`, the socket of the shared queue controller.
    pub onload_socket: bool,
    /// Give PTP clocks writable: the holder can step the host's clock.
    pub ptp_write: bool,
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
            onload_socket: false,
            ptp_write: false,
            hugepages_dir: PathBuf::from("/dev"),
            host_library_dirs: Vec::new(),
            container_library_dirs: Vec::new(),
            host_tool_dir: None,
            container_tool_dir: None,
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
            root_with_onload: RootWithOnload::Warn,
            on_incompatible: OnIncompatible::Fail,
            live_devices: true,
        }
    }
}

/// Section `[runtime]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Runtime {
    /// The OCI runtime that the wrapper becomes; empty: the first that exists of a fixed list.
    pub path: PathBuf,
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
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct HookSections {
    cdi: HookCdi,
    annotations: HookAnnotations,
}

/// As [`Annotations`], with classes of any version.
#[derive(Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct HookAnnotations {
    allow: Vec<String>,
    root_with_onload: RootWithOnload,
    on_incompatible: OnIncompatible,
    live_devices: bool,
}

impl Default for HookAnnotations {
    fn default() -> Self {
        let usual = Annotations::default();
        HookAnnotations {
            allow: Vec::new(),
            root_with_onload: usual.root_with_onload,
            on_incompatible: usual.on_incompatible,
            live_devices: usual.live_devices,
        }
    }
}

impl From<HookAnnotations> for Annotations {
    fn from(read: HookAnnotations) -> Self {
        Annotations {
            // A class that this version does not know cannot be asked for here either.
            allow: read
                .allow
                .iter()
                .filter_map(|word| word.parse().ok())
                .collect(),
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
        let failed = |error: toml::de::Error| parse_error(text, &error);
        let table = DeTable::parse(text).map_err(failed)?;
        check_misspelled(text, table.get_ref())?;
        let from = toml::de::Deserializer::from(table);
        let read = HookSections::deserialize(from).map_err(failed)?;
        let cdi = read.cdi;
        absolute("cdi.hook-path", &cdi.hook_path)?;
        check_fdtable_size(cdi.fdtable_size)?;
        Ok(HookConfig {
            cdi,
            annotations: read.annotations.into(),
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "MemlockText")]
pub enum Memlock {
    /// RLIM_INFINITY.
    #[default]
    Unlimited,
    /// That many bytes.
    Bytes(u64),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum MemlockText {
    Number(u64),
    Word(String),
}

impl TryFrom<MemlockText> for Memlock {
    type Error = NotMemlock;

    fn try_from(text: MemlockText) -> Result<Self, NotMemlock> {
        match text {
            MemlockText::Number(bytes) => Ok(Memlock::Bytes(bytes)),
            MemlockText::Word(word) => word.parse(),
        }
    }
}

/// A text that is neither `unlimited` nor a number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("memlock is \"unlimited\" or a number of bytes, not {0:?}")]
pub struct NotMemlock(pub String);

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

impl std::fmt::Display for Memlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
    #[error("line {line}: {message}")]
    Parse {
        /// Where it went wrong.
        line: usize,
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
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |key| format!("; did you mean {key:?}?"))
}

const SECTIONS: [(&str, &[&str]); 4] = [
    (
        "discover",
        &[
            "ignored-interfaces",
            "missing-nic-is-error",
            "offer-umad",
            "offer-issm",
            "offer-pf-with-vfs",
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
            "onload-socket",
            "ptp-write",
            "hugepages-dir",
            "host-library-dirs",
            "container-library-dirs",
            "host-tool-dir",
            "container-tool-dir",
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
            "root-with-onload",
            "on-incompatible",
            "live-devices",
        ],
    ),
    ("runtime", &["path"]),
];

impl Config {
    /// Reads the text of a configuration file.
    ///
    /// # Errors
    /// [`ConfigError`] names the line and the key; a key that is not known is an error, so that a
    /// typing error never silently leaves a default in force.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let failed = |error: toml::de::Error| parse_error(text, &error);
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
        check_fdtable_size(cdi.fdtable_size)
    }
}

fn parse_error(text: &str, error: &toml::de::Error) -> ConfigError {
    ConfigError::Parse {
        line: line_of(text, error.span().map_or(0, |span| span.start)),
        message: first_line(error.message()),
    }
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
    let sections: Vec<&str> = SECTIONS.iter().map(|(name, _)| *name).collect();
    for (section, value) in table {
        let Some((name, keys)) = SECTIONS.iter().find(|(name, _)| *name == section.get_ref())
        else {
            return Err(unknown(
                text,
                "",
                section.span().start,
                section.get_ref(),
                &sections,
            ));
        };
        if let DeValue::Table(table) = Spanned::get_ref(value) {
            let stray = table
                .keys()
                .find(|key| !keys.contains(&key.get_ref().as_ref()));
            if let Some(key) = stray {
                return Err(unknown(text, name, key.span().start, key.get_ref(), keys));
            }
        }
    }
    Ok(())
}

/// A key that is one of the hook's but for capitals, `_` and a final `s` belongs to no other version: to
/// pass over it would leave a default in force where the operator wrote a policy.
fn check_misspelled(text: &str, table: &DeTable<'_>) -> Result<(), ConfigError> {
    const USED: [&str; 2] = ["annotations", "cdi"];
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
    let mut everywhere: Vec<String> = known.iter().map(|key| qualified(key)).collect();
    for (name, keys) in SECTIONS {
        everywhere.extend(keys.iter().map(|key| format!("{name}.{key}")));
    }
    // A key of another section, or one under no section at all, is found by its own name.
    let own_name = |full: &str| full.rsplit('.').next().unwrap_or(full).to_owned();
    let nearest = everywhere
        .into_iter()
        .map(|full| (strsim::damerau_levenshtein(&own_name(&full), key), full))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, _)| *distance <= key.chars().count().max(3) / 2)
        .map(|(_, full)| full);
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
            [cdi]
            kinds = ["rdma", "nic"]
            hook-path = "/opt/bin/onload-hook"
            preload = "file"
            fdtable-size = 4096
            memlock = 65536
            onload-socket = true
            ptp-write = true
            hugepages-dir = "/mnt"
            host-library-dirs = ["/opt/lib"]
            container-library-dirs = ["/usr/lib"]
            host-tool-dir = "/opt/bin"
            container-tool-dir = ""
            host-profile-dir = "/opt/profiles"
            container-profile-dir = "/profiles"
            host-device-dir = "/dev"
            container-device-dir = "/dev"
            [annotations]
            allow = ["nic", "nic-plain"]
            root-with-onload = "refuse"
            on-incompatible = "skip"
            live-devices = false
            [runtime]
            path = "/usr/bin/crun"
        "#;
        let config = Config::parse(text).unwrap();
        assert_eq!(config.cdi.kinds.classes(), [Class::Nic, Class::Rdma]);
        assert_eq!(config.cdi.memlock, Memlock::Bytes(65_536));
        assert_eq!(config.cdi.preload, Preload::File);
        assert_eq!(config.annotations.allow, [Class::Nic, Class::NicPlain]);
        assert_eq!(config.runtime.path, PathBuf::from("/usr/bin/crun"));
        let known: usize = SECTIONS.iter().map(|(_, keys)| keys.len()).sum();
        assert_eq!(text.matches(" = ").count(), known);
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
    fn a_value_of_the_wrong_kind_is_refused_with_its_line() {
        assert!(refusal("[cdi]\npreload = \"always\"\n").starts_with("line 2: unknown variant"));
        assert!(
            refusal("[annotations]\n\nallow = [\"gpu\"]\n").starts_with("line 3: unknown class")
        );
        assert!(refusal("[cdi]\nmemlock = \"+5\"\n").starts_with("line 2: memlock is"));
        assert!(refusal("[cdi]\nmemlock = -1\n").starts_with("line 2: "));
        assert!(refusal("[cdi]\nkinds = []\n").contains("the list of kinds is empty"));
        assert!(refusal("[cdi]\nfdtable-size = 0\n").contains("from 1 to 16777216"));
        assert!(refusal("not toml").starts_with("line 1: "));
        assert!(refusal("cdi = 5\n").starts_with("line 1: "));
    }

    #[test]
    fn a_relative_path_is_refused() {
        assert_eq!(
            refusal("[cdi]\nhook-path = \"onload-hook\"\n"),
            "cdi.hook-path must be an absolute path, not \"onload-hook\""
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
            allow = ["nic", "netdev", "bundle", "rdma"]
            addresses = ["192.0.2.0/24"]
            root-with-onload = "refuse"
            [runtime]
            path = 7
            [environment]
            allow = ["nic"]
            [leases]
            share = { rdma = 500 }
            [log]
            level = "debug"
            [pools.fast]
            class = "vfio"
            select = { vf = "0,2-7" }
            [[sriov]]
            pf = "ens1"
        "#;
        let config = HookConfig::parse(newer).unwrap();
        assert_eq!(config.annotations.allow, [Class::Nic, Class::Rdma]);
        assert_eq!(config.annotations.root_with_onload, RootWithOnload::Refuse);
        assert_eq!(config.cdi.memlock, Memlock::Bytes(65_536));
        assert!(refusal(newer).contains("unknown key"));
    }

    #[test]
    fn the_hook_refuses_what_it_uses_and_does_not_understand() {
        let refusal = |text| HookConfig::parse(text).unwrap_err().to_string();
        for (text, says) in [
            ("[annotations]\nallow = \"nic\"\n", "line 2: "),
            ("[annotations]\nallow = [1]\n", "line 2: "),
            (
                "[annotations]\n\nroot-with-onload = \"never\"\n",
                "line 3: unknown variant",
            ),
            ("[annotations]\nlive-devices = \"no\"\n", "line 2: "),
            ("annotations = 1\n", "line 1: "),
            ("[cdi]\nmemlock = \"some\"\n", "line 2: memlock is"),
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
        // Where a key is left out, the value depends on where Onload is installed.
        let dependent = ["-tool-dir = ", "-profile-dir = ", "-device-dir = "];
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
}
