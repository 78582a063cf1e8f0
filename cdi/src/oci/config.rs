//! Reads and edits the parts of an OCI configuration.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;
use thiserror::Error;

use crate::json::{ElementChange, MAX_STRING, RawArray, RawError, RawObject, read_string};
use crate::name::{HookName, text_enum};
use crate::spec::Hook;

/// Why a configuration could not be read or changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OciConfigError {
    /// The document or a value in it could not be read. Only functions that change nothing return it.
    #[error("reading config.json")]
    Read(#[source] RawError),
    /// A value could not be read or changed by a function that changes the configuration.
    #[error("changing config.json")]
    Change(#[source] RawError),
}

/// The user of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OciUser {
    /// User id in the container.
    pub uid: u32,
    /// Group id in the container.
    pub gid: u32,
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

text_enum! {
    /// A set of capabilities of the process (capabilities(7)), a key in `process.capabilities`.
    #[expect(missing_docs, reason = "the sets are those of capabilities(7)")]
    pub enum CapabilitySet {
        Bounding = "bounding",
        Effective = "effective",
        Inheritable = "inheritable",
        Permitted = "permitted",
        Ambient = "ambient",
    }
}

/// A hook of an OCI configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OciHook {
    /// Program.
    pub path: String,
    /// Arguments, starting with the program's own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// Environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<Vec<String>>,
    /// Seconds after which the runtime kills the hook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

/// A device rule of the container's cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRule {
    /// Whether access is allowed or denied.
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
    /// Page size as in the kernel's hugetlb cgroup files, such as `2MB`.
    pub page_size: String,
    /// Limit in bytes.
    pub limit: u64,
}

/// A member of `mounts`.
#[derive(Clone, Debug, Default)]
pub struct MountEntry(RawObject);

impl MountEntry {
    /// Creates a mount. An empty `kind`, `source` or `options` is left out.
    ///
    /// # Errors
    /// [`OciConfigError::Change`] if a text cannot be expressed in JSON.
    pub fn new(
        destination: &str,
        kind: &str,
        source: &str,
        options: &[String],
    ) -> Result<Self, OciConfigError> {
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
        fill().map_err(OciConfigError::Change)?;
        Ok(Self(object))
    }

    /// Returns the path in the container, or an empty text if the mount has none.
    #[must_use]
    pub fn destination(&self) -> String {
        self.text("destination")
    }

    /// Returns whether the mount is at this path, spelled exactly so.
    #[must_use]
    pub fn has_destination(&self, destination: &str) -> bool {
        self.has_value("destination", destination)
    }

    /// Returns whether this is the mount's source.
    #[must_use]
    pub fn has_source(&self, source: &str) -> bool {
        self.has_value("source", source)
    }

    fn has_value(&self, key: &str, value: &str) -> bool {
        let mut members = self.0.matching_members(|name| name == key);
        match members.next().and_then(|(_, text)| read_string(text).ok()) {
            Some(found) => found == value,
            None => value.is_empty(),
        }
    }

    /// Returns the file system type, or an empty text if the mount has none.
    #[must_use]
    pub fn type_(&self) -> String {
        self.text("type")
    }

    /// Returns the source, or an empty text if the mount has none.
    #[must_use]
    pub fn source(&self) -> String {
        self.text("source")
    }

    /// Returns the mount options.
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
const PROCESS_KEYS: [&str; 7] =
    ["env", "args", "user", "rlimits", "capabilities", "cwd", "noNewPrivileges"];
const LINUX_KEYS: [&str; 7] =
    ["devices", "resources", "netDevices", "intelRdt", "namespaces", "uidMappings", "gidMappings"];
const USER_KEYS: [&str; 3] = ["uid", "gid", "additionalGids"];
const MOUNT_KEYS: [&str; 4] = ["destination", "type", "source", "options"];

/// The CPUs and NUMA nodes of a container (`linux.resources.cpu`), as lists such as `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpuset {
    /// CPUs.
    pub cpus: Option<String>,
    /// NUMA nodes of the container's memory.
    pub mems: Option<String>,
}

impl OciConfig {
    /// Parses a configuration.
    ///
    /// # Errors
    /// [`OciConfigError::Read`] if it is not an object, or one of the five parts has the wrong type,
    /// or a key of the top level or of a part appears twice or in the wrong case.
    pub fn parse(bytes: &[u8]) -> Result<Self, OciConfigError> {
        RawObject::parse(bytes).and_then(Self::open).map_err(OciConfigError::Read)
    }

    /// Like [`Self::parse`], but shares the text instead of copying it.
    pub fn parse_text(text: Arc<String>) -> Result<Self, OciConfigError> {
        RawObject::parse_text(text).and_then(Self::open).map_err(OciConfigError::Read)
    }

    fn open(root: RawObject) -> Result<Self, RawError> {
        root.refuse_case_variants(&TOP_LEVEL)?;
        let part = |key: &'static str, known: &[&'static str]| -> Result<_, RawError> {
            let part = root.object(key)?;
            if let Some(part) = &part {
                part.refuse_case_variants(known).map_err(|error| error.with_key(key))?;
            }
            Ok(part)
        };
        let process = part("process", &PROCESS_KEYS)?;
        let linux = part("linux", &LINUX_KEYS)?;
        let hooks = part("hooks", &HookName::ALL.map(HookName::as_str))?;
        let annotations = part("annotations", &[])?;
        let mounts = root
            .array("mounts")?
            .unwrap_or_default()
            .parse_objects()
            .map_err(|error| error.with_key("mounts"))?;
        for (index, mount) in mounts.iter().enumerate() {
            check_mount(mount)
                .map_err(|error| error.with_key(format!("[{index}]")).with_key("mounts"))?;
        }
        let check_inner = |part: Option<&RawObject>, key: &'static str, known: &[&'static str]| {
            // An object that cannot be opened is reported by the code that needs it.
            let Some(object) = part.and_then(|part| part.object(key).ok()?) else {
                return Ok(());
            };
            object.refuse_case_variants(known).map_err(|error: RawError| error.with_key(key))
        };
        check_inner(Some(&root), "root", &["path"])?;
        check_inner(process.as_ref(), "user", &USER_KEYS)?;
        let sets = CapabilitySet::ALL.map(CapabilitySet::as_str);
        check_inner(process.as_ref(), "capabilities", &sets)?;
        check_inner(linux.as_ref(), "resources", &["devices", "hugepageLimits"])?;
        let mounts = mounts.into_iter().map(MountEntry).collect();
        Ok(Self { root, process, linux, hooks, annotations, mounts, mounts_changed: false })
    }

    /// Returns the configuration as JSON: the bytes that were read, if nothing changed.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.clone().into_bytes()
    }

    /// Like [`Self::to_bytes`], but frees each changed part as soon as it is written.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        let parts = [
            ("process", self.process),
            ("linux", self.linux),
            ("hooks", self.hooks),
            ("annotations", self.annotations),
        ];
        let mut root = self.root;
        for (key, part) in parts {
            if let Some(part) = part {
                root.set_object(key, &part);
            }
        }
        if self.mounts_changed {
            let mut mounts = RawArray::new();
            self.mounts.iter().for_each(|mount| mounts.push_object(&mount.0));
            root.set_array("mounts", &mounts);
        }
        root.to_bytes()
    }

    /// Returns `process`, if it exists.
    #[must_use]
    pub fn process(&self) -> Option<&RawObject> {
        self.process.as_ref()
    }

    /// Returns `process`, which is created if it does not exist.
    pub fn process_mut(&mut self) -> &mut RawObject {
        self.process.get_or_insert_default()
    }

    /// Returns `linux`, if it exists.
    #[must_use]
    pub fn linux(&self) -> Option<&RawObject> {
        self.linux.as_ref()
    }

    /// Returns `linux`, which is created if it does not exist.
    pub fn linux_mut(&mut self) -> &mut RawObject {
        self.linux.get_or_insert_default()
    }

    /// Returns `root.path`: the root file system, absolute or relative to the bundle.
    pub fn root_path(&self) -> Result<Option<String>, OciConfigError> {
        let root = self.root.object("root").map_err(OciConfigError::Read)?;
        read_part(root.as_ref(), &["root"], |root| root.read("path"))
    }

    fn read_process<T: Default>(
        &self,
        read: impl FnOnce(&RawObject) -> Result<T, RawError>,
    ) -> Result<T, OciConfigError> {
        read_part(self.process.as_ref(), &["process"], read)
    }

    fn read_linux<T: Default>(
        &self,
        read: impl FnOnce(&RawObject) -> Result<T, RawError>,
    ) -> Result<T, OciConfigError> {
        read_part(self.linux.as_ref(), &["linux"], read)
    }

    fn read_resources<T: Default>(
        &self,
        read: impl FnOnce(&RawObject) -> Result<T, RawError>,
    ) -> Result<T, OciConfigError> {
        let resources = self.read_linux(|linux| linux.object("resources"))?;
        read_part(resources.as_ref(), &["resources", "linux"], read)
    }

    fn edit_process(
        &mut self,
        edit: impl FnOnce(&mut RawObject) -> Result<(), RawError>,
    ) -> Result<(), OciConfigError> {
        edit(self.process_mut()).map_err(|error| OciConfigError::Change(error.with_key("process")))
    }

    fn edit_linux(
        &mut self,
        edit: impl FnOnce(&mut RawObject) -> Result<(), RawError>,
    ) -> Result<(), OciConfigError> {
        edit(self.linux_mut()).map_err(|error| OciConfigError::Change(error.with_key("linux")))
    }

    /// Visits each entry of `process.args`.
    pub fn each_arg(&self, visit: impl FnMut(&str)) -> Result<(), OciConfigError> {
        self.read_process(|process| process.each_string("args", visit))
    }

    /// Visits each entry of `process.env`.
    pub fn each_env(&self, visit: impl FnMut(&str)) -> Result<(), OciConfigError> {
        self.read_process(|process| process.each_string("env", visit))
    }

    /// Returns the value that the process will see for `name`: the last one, if the list has several.
    ///
    /// # Errors
    /// [`OciConfigError::Read`], also if the value is longer than [`MAX_STRING`].
    pub fn env_value(&self, name: &str) -> Result<Option<String>, OciConfigError> {
        let mut last = None;
        let mut is_long = false;
        self.each_env(|entry| {
            if let Some(value) = entry.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')) {
                is_long = value.len() > MAX_STRING;
                last = (!is_long).then(|| value.to_owned());
            }
        })?;
        if is_long {
            let error = RawError::LongString.with_key(name).with_key("env").with_key("process");
            return Err(OciConfigError::Read(error));
        }
        Ok(last)
    }

    /// Sets variables from `NAME=value` entries, in one pass. An entry replaces the first one of its
    /// name, and further ones are removed, so that a reader that keeps the first entry and one that
    /// keeps the last agree. A new variable is added at the end.
    pub fn append_env(&mut self, entries: &[String]) -> Result<(), OciConfigError> {
        let named: Vec<(String, Cow<'_, String>)> = entries
            .iter()
            .map(|entry| match entry.split_once('=') {
                Some((name, _)) => (name.to_owned(), Cow::Borrowed(entry)),
                None => (entry.clone(), Cow::Owned(format!("{entry}="))),
            })
            .collect();
        let read_name = |entry: &str| {
            // An entry that is not text must fail: another reader may take it for the variable.
            let entry = read_string(entry)?;
            Ok(entry.split_once('=').map(|(name, _)| name.to_owned()))
        };
        self.edit_process(|process| replace(process, "env", read_name, &named))
    }

    /// Returns `process.user`. Missing members count as 0.
    pub fn user(&self) -> Result<OciUser, OciConfigError> {
        self.read_process(|process| {
            let Some(user) = process.object("user")? else {
                return Ok(OciUser::default());
            };
            Ok(OciUser {
                uid: user.read("uid")?.unwrap_or_default(),
                gid: user.read("gid")?.unwrap_or_default(),
            })
        })
    }

    /// Adds a supplementary group if it is missing.
    pub fn add_additional_gid(&mut self, gid: u32) -> Result<(), OciConfigError> {
        self.edit_process(|process| {
            let mut user = process.object("user")?.unwrap_or_default();
            let gids: Vec<u32> = user.read("additionalGids")?.unwrap_or_default();
            if !gids.contains(&gid) {
                push(&mut user, "additionalGids", &[gid])?;
                process.set_object("user", &user);
            }
            Ok(())
        })
    }

    /// Returns the limit named `name`. If there are several, the last one takes effect in runc and
    /// crun; NRI appends a plugin's limit to the list.
    pub fn rlimit(&self, name: &str) -> Result<Option<Rlimit>, OciConfigError> {
        self.read_process(|process| {
            let mut last = None;
            process.each_element("rlimits", |limit: Rlimit| {
                if limit.type_ == name {
                    last = Some(limit);
                }
            })?;
            Ok(last)
        })
    }

    /// Sets a limit, and replaces an existing one of its type.
    pub fn set_rlimit(&mut self, limit: &Rlimit) -> Result<(), OciConfigError> {
        let limits = [(limit.type_.clone(), limit)];
        self.edit_process(|process| replace(process, "rlimits", field_reader("type"), &limits))
    }

    /// Returns a set of `process.capabilities`.
    pub fn capabilities(&self, set: CapabilitySet) -> Result<Vec<String>, OciConfigError> {
        self.read_process(|process| match process.object("capabilities")? {
            Some(sets) => Ok(sets.read(set.as_str())?.unwrap_or_default()),
            None => Ok(Vec::new()),
        })
    }

    /// Adds a capability to each of `sets` that lacks it.
    pub fn add_capability(
        &mut self,
        sets: &[CapabilitySet],
        name: &str,
    ) -> Result<(), OciConfigError> {
        self.edit_process(|process| {
            let mut all = process.object("capabilities")?.unwrap_or_default();
            for set in sets {
                let mut is_held = false;
                all.each_string(set.as_str(), |capability| is_held |= capability == name)?;
                if !is_held {
                    push(&mut all, set.as_str(), &[name])?;
                }
            }
            if all.is_modified() && !all.is_empty() {
                process.set_object("capabilities", &all);
            }
            Ok(())
        })
    }

    /// Returns `mounts`, in order.
    #[must_use]
    pub fn mounts(&self) -> &[MountEntry] {
        &self.mounts
    }

    /// Returns `mounts` for changes.
    pub fn mounts_mut(&mut self) -> &mut Vec<MountEntry> {
        self.mounts_changed = true;
        &mut self.mounts
    }

    /// Visits each entry of `linux.devices`.
    pub fn each_device(&self, visit: impl FnMut(OciDevice)) -> Result<(), OciConfigError> {
        self.read_linux(|linux| linux.each_element("devices", visit))
    }

    /// For each of `devices` in turn: removes the first at its path and adds it at the end.
    pub fn set_devices(&mut self, devices: &[OciDevice]) -> Result<(), OciConfigError> {
        self.edit_linux(|linux| {
            let mut list = linux.array("devices")?.unwrap_or_default();
            let mut paths: BTreeMap<&str, SamePathDevices> = BTreeMap::new();
            for device in devices {
                paths.entry(&device.path).or_default().later += 1;
            }
            let read_path = field_reader("path");
            list.edit_elements(|element| {
                let path = read_path(element)?;
                match path.and_then(|path| paths.get_mut(path.as_str())) {
                    Some(same) if same.removed < same.later => {
                        same.removed += 1;
                        Ok(ElementChange::Drop)
                    }
                    _ => Ok(ElementChange::Keep),
                }
            })
            .map_err(|error| error.with_key("devices"))?;
            for device in devices {
                let same = paths.entry(&device.path).or_default();
                same.later -= 1;
                // Every later device at this path removes one before it: existing devices first, then
                // those added here.
                if same.later < same.removed.max(1) {
                    list.push_value(device)?;
                }
            }
            linux.set_array("devices", &list);
            Ok(())
        })
    }

    /// Returns `linux.resources.devices`.
    pub fn device_rules(&self) -> Result<Vec<DeviceRule>, OciConfigError> {
        self.read_resources(|resources| Ok(resources.read("devices")?.unwrap_or_default()))
    }

    /// Adds device rules at the end.
    pub fn add_device_rules(&mut self, rules: &[DeviceRule]) -> Result<(), OciConfigError> {
        self.edit_linux(|linux| {
            let mut resources = linux.object("resources")?.unwrap_or_default();
            push(&mut resources, "devices", rules)?;
            linux.set_object("resources", &resources);
            Ok(())
        })
    }

    /// Returns `linux.resources.hugepageLimits`.
    pub fn hugepage_limits(&self) -> Result<Vec<HugepageLimit>, OciConfigError> {
        self.read_resources(|resources| Ok(resources.read("hugepageLimits")?.unwrap_or_default()))
    }

    /// Sets limits of page sizes. A new limit replaces an existing one of its size.
    pub fn set_hugepage_limits(&mut self, limits: &[HugepageLimit]) -> Result<(), OciConfigError> {
        let limits: Vec<(String, &HugepageLimit)> =
            limits.iter().map(|limit| (limit.page_size.clone(), limit)).collect();
        self.edit_linux(|linux| {
            let mut resources = linux.object("resources")?.unwrap_or_default();
            replace(&mut resources, "hugepageLimits", field_reader("pageSize"), &limits)?;
            linux.set_object("resources", &resources);
            Ok(())
        })
    }

    /// Returns `linux.cgroupsPath`.
    pub fn cgroups_path(&self) -> Result<Option<String>, OciConfigError> {
        self.read_linux(|linux| linux.read("cgroupsPath"))
    }

    /// Returns `linux.mountLabel`, the SELinux label of the container's files, unless it is empty.
    pub fn mount_label(&self) -> Result<Option<String>, OciConfigError> {
        let label: Option<String> = self.read_linux(|linux| linux.read("mountLabel"))?;
        Ok(label.filter(|label| !label.is_empty()))
    }

    /// Returns `linux.resources.cpu.cpus` and `mems`, without empty ones.
    pub fn cpuset(&self) -> Result<Cpuset, OciConfigError> {
        self.read_resources(|resources| {
            let Some(cpu) = resources.object("cpu")? else {
                return Ok(Cpuset::default());
            };
            let list = |key| -> Result<Option<String>, RawError> {
                let text: Option<String> = cpu.read(key).map_err(|error| error.with_key("cpu"))?;
                Ok(text.filter(|text| !text.trim().is_empty()))
            };
            Ok(Cpuset { cpus: list("cpus")?, mems: list("mems")? })
        })
    }

    /// Sets `linux.resources.cpu.cpus` and `mems`. `None` leaves a value unchanged.
    pub fn set_cpuset(&mut self, set: &Cpuset) -> Result<(), OciConfigError> {
        self.edit_linux(|linux| {
            let mut resources = linux.object("resources")?.unwrap_or_default();
            let mut cpu = resources
                .object("cpu")
                .map_err(|error| error.with_key("resources"))?
                .unwrap_or_default();
            for (key, list) in [("cpus", &set.cpus), ("mems", &set.mems)] {
                if let Some(list) = list {
                    cpu.write(key, list)?;
                }
            }
            resources.set_object("cpu", &cpu);
            linux.set_object("resources", &resources);
            Ok(())
        })
    }

    /// Returns the paths of the namespaces of this type (`user`, `mount`, `network`, …) that the
    /// container gets. The path of a new namespace is empty.
    pub fn namespace_paths(&self, kind: &str) -> Result<Vec<String>, OciConfigError> {
        #[derive(Deserialize)]
        struct OciNamespace {
            #[serde(rename = "type")]
            kind: String,
            path: Option<String>,
        }
        let mut paths = Vec::new();
        self.read_linux(|linux| {
            linux.each_element("namespaces", |namespace: OciNamespace| {
                if namespace.kind == kind {
                    paths.push(namespace.path.unwrap_or_default());
                }
            })
        })?;
        Ok(paths)
    }

    /// Returns the interfaces that `linux.netDevices` moves: the name on the host, and the name in the
    /// container if it is set.
    pub fn net_devices(&self) -> Result<Vec<(String, Option<String>)>, OciConfigError> {
        self.read_linux(|linux| {
            let Some(devices) = linux.object("netDevices")? else {
                return Ok(Vec::new());
            };
            read_net_devices(&devices).map_err(|error| error.with_key("netDevices"))
        })
    }

    /// Removes `linux.netDevices.<host>`, and `linux.netDevices` if nothing remains in it.
    pub fn remove_net_device(&mut self, host: &str) -> Result<(), OciConfigError> {
        self.edit_linux(|linux| {
            let Some(mut devices) = linux.object("netDevices")? else {
                return Ok(());
            };
            devices.remove(host);
            if devices.is_empty() {
                linux.remove("netDevices");
            } else {
                linux.set_object("netDevices", &devices);
            }
            Ok(())
        })
    }

    /// Sets `linux.netDevices.<host>` to an interface named `name` in the container.
    pub fn set_net_device(&mut self, host: &str, name: &str) -> Result<(), OciConfigError> {
        self.edit_linux(|linux| {
            let mut devices = linux.object("netDevices")?.unwrap_or_default();
            let mut device = RawObject::new();
            device.write("name", name)?;
            devices.set_object(host, &device);
            linux.set_object("netDevices", &devices);
            Ok(())
        })
    }

    /// Returns the hooks of a stage.
    pub fn hooks(&self, stage: HookName) -> Result<Vec<OciHook>, OciConfigError> {
        read_part(self.hooks.as_ref(), &["hooks"], |hooks| {
            Ok(hooks.read(stage.as_str())?.unwrap_or_default())
        })
    }

    /// Appends each hook to its stage. Hooks with an invalid name are skipped.
    pub fn add_hooks(&mut self, hooks: &[Hook]) -> Result<(), OciConfigError> {
        let mut stages: Vec<(HookName, Vec<OciHook>)> = Vec::new();
        for hook in hooks {
            let Ok(name) = hook.hook_name.parse() else {
                continue;
            };
            match stages.iter_mut().find(|(stage, _)| *stage == name) {
                Some((_, added)) => added.push(hook.into()),
                None => stages.push((name, vec![hook.into()])),
            }
        }
        for (stage, added) in &stages {
            push(self.hooks.get_or_insert_default(), stage.as_str(), added)
                .map_err(|error| OciConfigError::Change(error.with_key("hooks")))?;
        }
        Ok(())
    }

    /// Iterates over the annotations whose keys begin with `prefix`, in order. A value that is not
    /// text is `None`.
    pub fn annotations_with_prefix<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl Iterator<Item = (Cow<'a, str>, Option<Cow<'a, str>>)> {
        self.annotations
            .iter()
            .flat_map(move |all| all.matching_members(move |key| key.starts_with(prefix)))
            .map(|(key, text)| (key, read_string(text).ok()))
    }

    /// Returns the text of an annotation.
    ///
    /// # Errors
    /// [`OciConfigError::Read`] if it is not text.
    pub fn annotation(&self, key: &str) -> Result<Option<String>, OciConfigError> {
        let annotations = self.annotations.as_ref();
        read_part(annotations, &["annotations"], |all| all.read(key))
    }
}

/// Reads from a part, or returns the default if the part does not exist. `keys` are its key and those
/// of the objects around it, from the inside out, for errors.
fn read_part<T: Default>(
    part: Option<&RawObject>,
    keys: &[&str],
    read: impl FnOnce(&RawObject) -> Result<T, RawError>,
) -> Result<T, OciConfigError> {
    let Some(part) = part else {
        return Ok(T::default());
    };
    read(part).map_err(|error| {
        let error = keys.iter().fold(error, |error, key| error.with_key(*key));
        OciConfigError::Read(error)
    })
}

fn read_net_devices(devices: &RawObject) -> Result<Vec<(String, Option<String>)>, RawError> {
    let mut all = Vec::new();
    for host in devices.keys() {
        let device = devices.object(&host)?.unwrap_or_default();
        device.refuse_case_variants(&["name"])?;
        let name: Option<String> = device.read("name")?;
        all.push((host.into_owned(), name.filter(|name| !name.is_empty())));
    }
    Ok(all)
}

/// Fails if two readers could interpret a field of the mount differently: Go reads a `null` among the
/// options as an empty one, where a stricter reader sees no options at all.
fn check_mount(mount: &RawObject) -> Result<(), RawError> {
    mount.refuse_case_variants(&MOUNT_KEYS)?;
    for key in ["destination", "type", "source"] {
        mount.read::<String>(key)?;
    }
    mount.read::<Vec<String>>("options").map(drop)
}

/// Appends values to the array at `key`.
fn push<T: Serialize>(object: &mut RawObject, key: &str, values: &[T]) -> Result<(), RawError> {
    let mut array = object.array(key)?.unwrap_or_default();
    for value in values {
        array.push_value(value).map_err(|error| error.with_key(key))?;
    }
    object.set_array(key, &array);
    Ok(())
}

/// Returns a function that reads the field that identifies an element. It fails if the element is
/// not an object.
fn field_reader(name: &'static str) -> impl Fn(&str) -> Result<Option<String>, RawError> {
    move |element| RawObject::parse_element(element)?.read(name)
}

/// Sets named elements of the array at `key`: each value replaces the first element of its name,
/// further elements of that name are removed, and a value with a new name is added at the end. If two
/// values have the same name, the later one is used.
fn replace<T: Serialize>(
    object: &mut RawObject,
    key: &str,
    read_name: impl Fn(&str) -> Result<Option<String>, RawError>,
    values: &[(String, T)],
) -> Result<(), RawError> {
    let mut last: BTreeMap<&str, (&T, bool)> = BTreeMap::new();
    for (name, value) in values {
        last.insert(name, (value, false));
    }
    let mut array = object.array(key)?.unwrap_or_default();
    array
        .edit_elements(|element| {
            let name = read_name(element)?;
            let Some((value, is_placed)) = name.and_then(|name| last.get_mut(name.as_str())) else {
                return Ok(ElementChange::Keep);
            };
            if std::mem::replace(is_placed, true) {
                return Ok(ElementChange::Drop);
            }
            Ok(ElementChange::Replace(to_raw_value(value)?))
        })
        .map_err(|error| error.with_key(key))?;
    for (name, _) in values {
        if let Some((value, is_placed)) = last.get_mut(name.as_str())
            && !std::mem::replace(is_placed, true)
        {
            array.push_value(value).map_err(|error| error.with_key(key))?;
        }
    }
    object.set_array(key, &array);
    Ok(())
}

/// Counts the devices at one path.
#[derive(Default)]
struct SamePathDevices {
    /// New devices that have not been added yet.
    later: usize,
    /// Existing devices that were removed.
    removed: usize,
}
