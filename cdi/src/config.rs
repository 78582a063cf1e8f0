//! An OCI `config.json`, kept as it was but for what is changed.
//!
//! Only `process`, `mounts`, `linux`, `hooks` and `annotations` are opened, on top of
//! [`crate::raw`], so number spelling and unknown fields survive.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use thiserror::Error;

use crate::raw::{Part, RawArray, RawError, RawObject};

/// Why a configuration could not be read or changed.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The document or a value in it cannot be read.
    #[error("reading config.json: {0}")]
    Read(RawError),
    /// A value in it could not be changed.
    #[error("changing config.json: {0}")]
    Change(RawError),
}

/// The user of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// User id in the container.
    pub uid: u32,
    /// Group id in the container.
    pub gid: u32,
    /// Supplementary groups.
    pub additional_gids: Vec<u32>,
}

/// A resource limit of the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimit {
    /// Name, such as `RLIMIT_MEMLOCK`.
    #[serde(rename = "type")]
    pub type_: String,
    /// Hard limit, in the unit of the resource.
    pub hard: u64,
    /// Soft limit, in the unit of the resource.
    pub soft: u64,
}

/// A set of capabilities of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CapabilitySet {
    /// What an executed program may gain at most.
    Bounding,
    /// What takes effect.
    Effective,
    /// What is kept over an execution.
    Inheritable,
    /// What may be made effective.
    Permitted,
    /// What a program without file capabilities keeps.
    Ambient,
}

impl CapabilitySet {
    /// All sets.
    pub const ALL: [Self; 5] = [
        Self::Bounding,
        Self::Effective,
        Self::Inheritable,
        Self::Permitted,
        Self::Ambient,
    ];

    /// The key in `process.capabilities`.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Bounding => "bounding",
            Self::Effective => "effective",
            Self::Inheritable => "inheritable",
            Self::Permitted => "permitted",
            Self::Ambient => "ambient",
        }
    }
}

/// A hook of an OCI configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OciHook {
    /// Program.
    pub path: String,
    /// Arguments, the first being the program's own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// Environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<Vec<String>>,
    /// Seconds after which the runtime kills it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

/// A device rule of the container's cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRule {
    /// Whether the access is given or taken.
    #[serde(default)]
    pub allow: bool,
    /// `a`, `b` or `c`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Major number; absent means any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub major: Option<i64>,
    /// Minor number; absent means any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<i64>,
    /// A subset of `rwm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
}

/// A limit on huge pages of one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HugepageLimit {
    /// Page size as the kernel's hugetlb cgroup files write it, such as `2MB`.
    pub page_size: String,
    /// Limit in bytes.
    pub limit: u64,
}

/// A member of `mounts`.
#[derive(Clone, Debug, Default)]
pub struct MountEntry(RawObject);

impl MountEntry {
    /// A mount of ours; an empty `kind` or no `options` are left out.
    ///
    /// # Errors
    /// [`ConfigError::Change`] where a text has no form in JSON.
    pub fn new(
        destination: &str,
        kind: &str,
        source: &str,
        options: &[String],
    ) -> Result<Self, ConfigError> {
        let mut object = RawObject::new();
        let mut fill = || {
            object.write("destination", destination)?;
            if !kind.is_empty() {
                object.write("type", kind)?;
            }
            if !source.is_empty() {
                object.write("source", source)?;
            }
            if !options.is_empty() {
                object.write("options", options)?;
            }
            Ok(())
        };
        fill().map_err(ConfigError::Change)?;
        Ok(Self(object))
    }

    /// All of it.
    #[must_use]
    pub fn object(&self) -> &RawObject {
        &self.0
    }

    /// All of it, to change.
    pub fn object_mut(&mut self) -> &mut RawObject {
        &mut self.0
    }

    /// Path in the container; empty where it says none.
    #[must_use]
    pub fn destination(&self) -> String {
        self.text("destination")
    }

    /// File system type; empty where it says none.
    #[must_use]
    pub fn type_(&self) -> String {
        self.text("type")
    }

    /// What is mounted; empty where it says nothing.
    #[must_use]
    pub fn source(&self) -> String {
        self.text("source")
    }

    /// Options.
    #[must_use]
    pub fn options(&self) -> Vec<String> {
        self.0.read("options").ok().flatten().unwrap_or_default()
    }

    fn text(&self, key: &str) -> String {
        self.0.read(key).ok().flatten().unwrap_or_default()
    }
}

/// A member of `linux.devices`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OciDevice {
    /// Path in the container.
    pub path: String,
    /// `b`, `c`, `u` or `p`.
    #[serde(rename = "type")]
    pub type_: String,
    /// Major number.
    #[serde(default)]
    pub major: i64,
    /// Minor number.
    #[serde(default)]
    pub minor: i64,
    /// Permission bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// Owner in the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group in the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

/// An OCI configuration.
#[derive(Clone, Debug)]
pub struct OciConfig {
    root: RawObject,
    process: Option<RawObject>,
    linux: Option<RawObject>,
    hooks: Option<RawObject>,
    annotations: Option<RawObject>,
    mounts: Vec<MountEntry>,
    mounts_changed: bool,
}

const TOP_LEVEL: [&str; 6] = ["process", "mounts", "linux", "hooks", "annotations", "root"];
const IN_PROCESS: [&str; 7] = [
    "env",
    "args",
    "user",
    "rlimits",
    "capabilities",
    "cwd",
    "noNewPrivileges",
];
const IN_LINUX: [&str; 7] = [
    "devices",
    "resources",
    "netDevices",
    "intelRdt",
    "namespaces",
    "uidMappings",
    "gidMappings",
];
const IN_USER: [&str; 3] = ["uid", "gid", "additionalGids"];
const IN_MOUNT: [&str; 4] = ["destination", "type", "source", "options"];

impl OciConfig {
    /// Reads a configuration.
    ///
    /// # Errors
    /// [`ConfigError::Read`] where it is no object, or one of the five parts is not what it should be,
    /// or a key of the top level or of a part is there twice or in another case.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        Self::open(bytes).map_err(ConfigError::Read)
    }

    fn open(bytes: &[u8]) -> Result<Self, RawError> {
        let root = RawObject::parse(bytes)?;
        root.refuse_case_variants(&TOP_LEVEL)?;
        let part = |key: &'static str, known: &[&'static str]| -> Result<_, RawError> {
            let part = root.object(key)?;
            if let Some(part) = &part {
                part.refuse_case_variants(known)
                    .map_err(|error| error.at(key))?;
            }
            Ok(part)
        };
        let process = part("process", &IN_PROCESS)?;
        let linux = part("linux", &IN_LINUX)?;
        let hooks = part("hooks", &crate::validate::HOOK_NAMES)?;
        let annotations = part("annotations", &[])?;
        let mounts = root.array("mounts")?.unwrap_or_default().objects();
        let mounts = mounts.map_err(|error| error.at("mounts"))?;
        for (index, mount) in mounts.iter().enumerate() {
            check_mount(mount).map_err(|error| error.at(format!("[{index}]")).at("mounts"))?;
        }
        // What cannot be opened here is told by whoever needs it.
        let inner = |part: Option<&RawObject>, key: &'static str, known: &[&'static str]| {
            let object = part.and_then(|part| part.object(key).ok()?);
            let checked = object.unwrap_or_default().refuse_case_variants(known);
            checked.map_err(|error: RawError| error.at(key))
        };
        inner(Some(&root), "root", &["path"])?;
        let (in_process, in_linux) = (process.as_ref(), linux.as_ref());
        inner(in_process, "user", &IN_USER)?;
        let sets = CapabilitySet::ALL.map(CapabilitySet::key);
        inner(in_process, "capabilities", &sets)?;
        inner(in_linux, "resources", &["devices", "hugepageLimits"])?;
        let mounts = mounts.into_iter().map(MountEntry).collect();
        Ok(Self {
            root,
            process,
            linux,
            hooks,
            annotations,
            mounts,
            mounts_changed: false,
        })
    }

    /// The configuration as JSON: byte for byte what was read where nothing changed.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let parts = [
            ("process", &self.process),
            ("linux", &self.linux),
            ("hooks", &self.hooks),
            ("annotations", &self.annotations),
        ];
        let mut changed: Vec<(&str, Part<'_>)> = parts
            .into_iter()
            .filter_map(|(key, part)| Some((key, part.as_ref()?)))
            .filter(|(_, part)| part.is_modified())
            .map(|(key, part)| (key, Part::Object(part)))
            .collect();
        if self.mounts_changed || self.mounts.iter().any(|mount| mount.0.is_modified()) {
            let mounts: RawArray = self.mounts.iter().map(|mount| mount.0.to_raw()).collect();
            changed.push(("mounts", Part::Array(mounts)));
        }
        let mut text = String::with_capacity(self.root.size_hint() + 4096);
        self.root.write_with(&changed, &mut text);
        text.into_bytes()
    }

    /// The top level, as it was read.
    #[must_use]
    pub fn root(&self) -> &RawObject {
        &self.root
    }

    /// `process`, where there is one.
    #[must_use]
    pub fn process(&self) -> Option<&RawObject> {
        self.process.as_ref()
    }

    /// `process`, made where there is none.
    pub fn process_mut(&mut self) -> &mut RawObject {
        self.process.get_or_insert_default()
    }

    /// `linux`, where there is one.
    #[must_use]
    pub fn linux(&self) -> Option<&RawObject> {
        self.linux.as_ref()
    }

    /// `linux`, made where there is none.
    pub fn linux_mut(&mut self) -> &mut RawObject {
        self.linux.get_or_insert_default()
    }

    /// `root.path`: the root file system, absolute or relative to the bundle.
    ///
    /// # Errors
    /// [`ConfigError::Read`].
    pub fn root_path(&self) -> Result<Option<String>, ConfigError> {
        let read = || match self.root.object("root")? {
            Some(root) => root.read("path").map_err(|error| error.at("root")),
            None => Ok(None),
        };
        read().map_err(ConfigError::Read)
    }

    fn read_process<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, ConfigError> {
        let Some(process) = &self.process else {
            return Ok(None);
        };
        process
            .read(key)
            .map_err(|error| ConfigError::Read(error.at("process")))
    }

    fn edit_process(
        &mut self,
        edit: impl FnOnce(&mut RawObject) -> Result<(), RawError>,
    ) -> Result<(), ConfigError> {
        edit(self.process_mut()).map_err(|error| ConfigError::Change(error.at("process")))
    }

    fn edit_linux(
        &mut self,
        edit: impl FnOnce(&mut RawObject) -> Result<(), RawError>,
    ) -> Result<(), ConfigError> {
        edit(self.linux_mut()).map_err(|error| ConfigError::Change(error.at("linux")))
    }

    /// `process.args`.
    ///
    /// # Errors
    /// [`ConfigError::Read`].
    pub fn args(&self) -> Result<Vec<String>, ConfigError> {
        Ok(self.read_process("args")?.unwrap_or_default())
    }

    /// `process.env`.
    ///
    /// # Errors
    /// [`ConfigError::Read`].
    pub fn env(&self) -> Result<Vec<String>, ConfigError> {
        Ok(self.read_process("env")?.unwrap_or_default())
    }

    /// The value that the process will see for `name`: the last, where the list says it twice.
    ///
    /// # Errors
    /// [`ConfigError::Read`].
    pub fn env_get(&self, name: &str) -> Result<Option<String>, ConfigError> {
        let value = |entry: &String| Some(entry.strip_prefix(name)?.strip_prefix('=')?.to_owned());
        Ok(self.env()?.iter().rev().find_map(value))
    }

    /// Sets `name`: in the place of its first entry, further entries of that name are taken away, so
    /// that readers who keep the first and readers who keep the last see the same. At the end where
    /// it is new. Other variables are not touched.
    ///
    /// # Errors
    /// [`ConfigError::Change`].
    pub fn env_set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        self.edit_process(|process| {
            let mut env = process.array("env")?.unwrap_or_default();
            set_variable(&mut env, name, value)?;
            process.set_array("env", &env);
            Ok(())
        })
    }

    /// Adds `NAME=value` entries in turn, as [`Self::env_set`] does.
    ///
    /// # Errors
    /// [`ConfigError::Change`].
    pub fn env_append(&mut self, entries: &[String]) -> Result<(), ConfigError> {
        self.edit_process(|process| {
            let mut env = process.array("env")?.unwrap_or_default();
            for entry in entries {
                let (name, value) = entry.split_once('=').unwrap_or((entry, ""));
                set_variable(&mut env, name, value)?;
            }
            process.set_array("env", &env);
            Ok(())
        })
    }

    /// `process.user`; what it does not say is 0.
    ///
    /// # Errors
    /// [`ConfigError::Read`].
    pub fn user(&self) -> Result<User, ConfigError> {
        let Some(process) = &self.process else {
            return Ok(User::default());
        };
        let read = || {
            let Some(user) = process.object("user")? else {
                return Ok(User::default());
            };
            Ok(User {
                uid: user.read("uid")?.unwrap_or_default(),
                gid: user.read("gid")?.unwrap_or_default(),
                additional_gids: user.read("additionalGids")?.unwrap_or_default(),
            })
        };
        read().map_err(|error: RawError| ConfigError::Read(error.at("process")))
    }

    /// Adds a supplementary group that is not there yet.
    ///
    /// # Errors
    /// [`ConfigError::Change`].
    pub fn additional_gid_add(&mut self, gid: u32) -> Result<(), ConfigError> {
        self.edit_process(|process| {
            let mut user = process.object("user")?.unwrap_or_default();
            let gids: Vec<u32> = user.read("additionalGids")?.unwrap_or_default();
            if !gids.contains(&gid) {
                push(&mut user, "additionalGids", &gid)?;
                process.set_object("user", &user);
            }
            Ok(())
        })
    }

    /// `process.rlimits`.
    ///
    /// # Errors
    /// [`ConfigError::Read`].
    pub fn rlimits(&self) -> Result<Vec<Rlimit>, ConfigError> {
        Ok(self.read_process("rlimits")?.unwrap_or_default())
    }

    /// The limit called `name`.
    ///
    /// # Errors
    /// [`ConfigError::Read`].
    pub fn rlimit(&self, name: &str) -> Result<Option<Rlimit>, ConfigError> {
        Ok(self
            .rlimits()?
            .into_iter()
            .find(|limit| limit.type_ == name))
    }

    /// Sets a limit, in its place where there is one of that type.
    ///
    /// # Errors
    /// [`ConfigError::Change`].
    pub fn rlimit_set(&mut self, limit: &Rlimit) -> Result<(), ConfigError> {
        self.edit_process(|process| replace(process, "rlimits", "type", &limit.type_, limit))
    }

    /// A set of `process.capabilities`.
    ///
    /// # Errors
    /// [`ConfigError::Read`].
    pub fn capabilities(&self, set: CapabilitySet) -> Result<Vec<String>, ConfigError> {
        let Some(process) = &self.process else {
            return Ok(Vec::new());
        };
        let read = || match process.object("capabilities")? {
            Some(sets) => Ok(sets.read(set.key())?.unwrap_or_default()),
            None => Ok(Vec::new()),
        };
        read().map_err(|error: RawError| ConfigError::Read(error.at("process")))
    }

    /// Adds a capability to each of `sets` that does not hold it yet.
    ///
    /// # Errors
    /// [`ConfigError::Change`].
    pub fn capability_add(
        &mut self,
        sets: &[CapabilitySet],
        name: &str,
    ) -> Result<(), ConfigError> {
        self.edit_process(|process| {
            let mut all = process.object("capabilities")?.unwrap_or_default();
            for set in sets {
                let held: Vec<String> = all.read(set.key())?.unwrap_or_default();
                if !held.iter().any(|capability| capability == name) {
                    push(&mut all, set.key(), name)?;
                }
            }
            if all.is_modified() && !all.is_empty() {
                process.set_object("capabilities", &all);
            }
            Ok(())
        })
    }

    /// `mounts`, in order.
    #[must_use]
    pub fn mounts(&self) -> &[MountEntry] {
        &self.mounts
    }

    /// `mounts`, to change.
    pub fn mounts_mut(&mut self) -> &mut Vec<MountEntry> {
        self.mounts_changed = true;
        &mut self.mounts
    }

    /// `linux.devices`.
    ///
    /// # Errors
    /// [`ConfigError::Read`].
    pub fn devices(&self) -> Result<Vec<OciDevice>, ConfigError> {
        self.read_linux(None, "devices")
    }

    /// Takes the first device at the path of `device` away and adds `device` at the end.
    ///
    /// # Errors
    /// [`ConfigError::Change`].
    pub fn device_set(&mut self, device: &OciDevice) -> Result<(), ConfigError> {
        self.edit_linux(|linux| {
            let mut devices = linux.array("devices")?.unwrap_or_default();
            let objects = devices.objects().map_err(|error| error.at("devices"))?;
            for (index, object) in objects.iter().enumerate() {
                if object.read::<String>("path")?.as_ref() == Some(&device.path) {
                    devices.remove(index);
                    break;
                }
            }
            devices.push_value(device)?;
            linux.set_array("devices", &devices);
            Ok(())
        })
    }

    /// `linux.resources.devices`.
    ///
    /// # Errors
    /// [`ConfigError::Read`].
    pub fn device_rules(&self) -> Result<Vec<DeviceRule>, ConfigError> {
        self.read_linux(Some("resources"), "devices")
    }

    /// Adds a device rule at the end.
    ///
    /// # Errors
    /// [`ConfigError::Change`].
    pub fn device_rule_add(&mut self, rule: &DeviceRule) -> Result<(), ConfigError> {
        self.edit_linux(|linux| {
            let mut resources = linux.object("resources")?.unwrap_or_default();
            push(&mut resources, "devices", rule)?;
            linux.set_object("resources", &resources);
            Ok(())
        })
    }

    /// `linux.resources.hugepageLimits`.
    ///
    /// # Errors
    /// [`ConfigError::Read`].
    pub fn hugepage_limits(&self) -> Result<Vec<HugepageLimit>, ConfigError> {
        self.read_linux(Some("resources"), "hugepageLimits")
    }

    /// Sets the limit of one page size, in its place where there is one.
    ///
    /// # Errors
    /// [`ConfigError::Change`].
    pub fn hugepage_limit_set(&mut self, limit: &HugepageLimit) -> Result<(), ConfigError> {
        self.edit_linux(|linux| {
            let mut resources = linux.object("resources")?.unwrap_or_default();
            replace(
                &mut resources,
                "hugepageLimits",
                "pageSize",
                &limit.page_size,
                limit,
            )?;
            linux.set_object("resources", &resources);
            Ok(())
        })
    }

    /// A list of `linux`, or of the object at `inner` of it.
    fn read_linux<T: DeserializeOwned>(
        &self,
        inner: Option<&str>,
        key: &str,
    ) -> Result<Vec<T>, ConfigError> {
        let Some(linux) = &self.linux else {
            return Ok(Vec::new());
        };
        let read = || match inner {
            None => linux.read(key),
            Some(inner) => match linux.object(inner)? {
                Some(object) => object.read(key).map_err(|error| error.at(inner)),
                None => Ok(None),
            },
        };
        let list = read().map_err(|error| ConfigError::Read(error.at("linux")))?;
        Ok(list.unwrap_or_default())
    }

    /// Whether the container gets a namespace of this type (`user`, `mount`, `network`, …).
    ///
    /// # Errors
    /// [`ConfigError::Read`].
    pub fn has_namespace(&self, kind: &str) -> Result<bool, ConfigError> {
        Ok(!self.namespace_paths(kind)?.is_empty())
    }

    /// The paths of the namespaces of this type: empty for one that is made new.
    ///
    /// # Errors
    /// [`ConfigError::Read`].
    pub fn namespace_paths(&self, kind: &str) -> Result<Vec<String>, ConfigError> {
        #[derive(Deserialize)]
        struct Namespace {
            #[serde(rename = "type")]
            kind: String,
            path: Option<String>,
        }
        let namespaces: Vec<Namespace> = self.read_linux(None, "namespaces")?;
        let of_kind = namespaces.into_iter().filter(|found| found.kind == kind);
        Ok(of_kind
            .map(|found| found.path.unwrap_or_default())
            .collect())
    }

    /// Sets `linux.netDevices.<host>` to an interface called `name` in the container.
    ///
    /// # Errors
    /// [`ConfigError::Change`].
    pub fn net_device_set(&mut self, host: &str, name: &str) -> Result<(), ConfigError> {
        self.edit_linux(|linux| {
            let mut devices = linux.object("netDevices")?.unwrap_or_default();
            let mut device = RawObject::new();
            device.write("name", name)?;
            devices.set_object(host, &device);
            linux.set_object("netDevices", &devices);
            Ok(())
        })
    }

    /// The hooks of a stage.
    ///
    /// # Errors
    /// [`ConfigError::Read`].
    pub fn hooks(&self, stage: &str) -> Result<Vec<OciHook>, ConfigError> {
        let Some(hooks) = &self.hooks else {
            return Ok(Vec::new());
        };
        let read = hooks
            .read(stage)
            .map_err(|error| ConfigError::Read(error.at("hooks")))?;
        Ok(read.unwrap_or_default())
    }

    /// Adds a hook behind those of its stage.
    ///
    /// # Errors
    /// [`ConfigError::Change`].
    pub fn hook_add(&mut self, stage: &str, hook: &OciHook) -> Result<(), ConfigError> {
        let hooks = self.hooks.get_or_insert_default();
        push(hooks, stage, hook).map_err(|error| ConfigError::Change(error.at("hooks")))
    }

    /// The keys of `annotations`, in order.
    pub fn annotation_keys(&self) -> impl Iterator<Item = &str> {
        self.annotations.iter().flat_map(RawObject::keys)
    }

    /// The text of an annotation.
    ///
    /// # Errors
    /// [`ConfigError::Read`] where it is no text.
    pub fn annotation(&self, key: &str) -> Result<Option<String>, ConfigError> {
        let Some(annotations) = &self.annotations else {
            return Ok(None);
        };
        annotations
            .read(key)
            .map_err(|error| ConfigError::Read(error.at("annotations")))
    }

    /// Sets an annotation.
    ///
    /// # Errors
    /// [`ConfigError::Change`].
    pub fn annotation_set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        let annotations = self.annotations.get_or_insert_default();
        let done = annotations.write(key, value);
        done.map_err(|error| ConfigError::Change(error.at("annotations")))
    }
}

/// Refuses a mount whose fields two readers could see differently: Go takes a `null` among options
/// for an empty one, where a stricter reader sees no options at all.
fn check_mount(mount: &RawObject) -> Result<(), RawError> {
    mount.refuse_case_variants(&IN_MOUNT)?;
    for key in ["destination", "type", "source"] {
        mount.read::<String>(key)?;
    }
    mount.read::<Vec<String>>("options").map(drop)
}

/// What an entry of `process.env` names; none where it has no `=`. An entry that is no text is an error
/// and not passed by: another reader may see the variable in it that is being set.
fn variable_name(env: &RawArray, index: usize) -> Result<Option<String>, RawError> {
    let entry: Option<String> = env.read(index)?;
    Ok(entry.and_then(|entry| Some(entry.split_once('=')?.0.to_owned())))
}

fn set_variable(env: &mut RawArray, name: &str, value: &str) -> Result<(), RawError> {
    let mut places = Vec::new();
    for index in 0..env.len() {
        if variable_name(env, index)
            .map_err(|error| error.at("env"))?
            .as_deref()
            == Some(name)
        {
            places.push(index);
        }
    }
    put(env, &places, to_raw_value(&format!("{name}={value}"))?);
    Ok(())
}

/// Puts `value` at the first of `places` and takes the further ones away, or adds it at the end.
fn put(array: &mut RawArray, places: &[usize], value: Box<RawValue>) {
    let Some((first, further)) = places.split_first() else {
        return array.push(value);
    };
    for index in further.iter().rev() {
        array.remove(*index);
    }
    array.set(*first, value);
}

fn push<T: Serialize + ?Sized>(
    object: &mut RawObject,
    key: &str,
    value: &T,
) -> Result<(), RawError> {
    let mut array = object.array(key)?.unwrap_or_default();
    array.push_value(value).map_err(|error| error.at(key))?;
    object.set_array(key, &array);
    Ok(())
}

/// Puts `value` in the place of the first element of the array at `key` whose `field` is `name`,
/// takes further ones away, or adds it at the end.
fn replace<T: Serialize>(
    object: &mut RawObject,
    key: &str,
    field: &str,
    name: &str,
    value: &T,
) -> Result<(), RawError> {
    let mut array = object.array(key)?.unwrap_or_default();
    let elements = array.objects().map_err(|error| error.at(key))?;
    let mut places = Vec::new();
    for (index, element) in elements.iter().enumerate() {
        if element
            .read::<String>(field)
            .map_err(|error| error.at(key))?
            .as_deref()
            == Some(name)
        {
            places.push(index);
        }
    }
    put(&mut array, &places, to_raw_value(value)?);
    object.set_array(key, &array);
    Ok(())
}
