//! Drained devices: the operator withholds them from new containers, while containers that have
//! them keep them.
//!
//! The list is a file next to config.toml and survives a reboot. The file exists only while
//! something is drained, so that a container's start only has to check whether it exists.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use onload_sys::error::{Context as _, Result, error};
use onload_sys::fs::open::may_exist;
use onload_sys::fs::trust::{TrustedOwners, TrustedTree};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use onload_core::class::Class;
use onload_core::timestamp::format_rfc3339;
use onload_core::versioned;

pub const DRAIN_PATH: &str = "/etc/onload-ctk/drain.json";
/// Maximum size of the file. A host may have thousands of functions.
pub const MAX_BYTES: u64 = 4 * 1024 * 1024;
/// Maximum length of a reason, in characters.
pub const MAX_REASON: usize = 200;
/// The newest supported version of the file.
const VERSION: u32 = 1;
const REMEDY: &str = "correct it, or remove it to offer all devices again";

/// A class, or one of its devices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DrainTarget {
    pub class: Class,
    /// `None` for the whole class.
    pub name: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainEntry {
    pub target: DrainTarget,
    /// Seconds since 1970.
    pub since: u64,
    /// The operator's reason.
    pub reason: Option<String>,
    /// The ID of the boot with which the entry expires.
    pub boot: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainList(BTreeMap<DrainTarget, DrainEntry>);

#[derive(Serialize, Deserialize)]
struct DrainFile {
    version: u32,
    #[serde(default)]
    drained: Vec<DrainFileEntry>,
}

#[derive(Serialize, Deserialize)]
struct DrainFileEntry {
    class: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    since: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
}

impl DrainTarget {
    /// Creates a target. The classes of Onload name the same interfaces, so their devices are
    /// drained as `nic`.
    pub fn new(class: Class, name: Option<&str>) -> Self {
        DrainTarget {
            class: if class.is_onload() { Class::Nic } else { class },
            name: name.map(str::to_owned),
        }
    }
}

impl fmt::Display for DrainTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{}={name}", self.class),
            None => write!(f, "{}", self.class),
        }
    }
}

impl DrainEntry {
    /// Describes since when and why the target is drained.
    pub fn describe(&self) -> String {
        let mut description = format!("since {}", format_rfc3339(self.since));
        if self.boot.is_some() {
            description += " until the next boot";
        }
        if let Some(reason) = &self.reason {
            description += &format!(": {}", reason.escape_debug());
        }
        description
    }
}

impl fmt::Display for DrainEntry {
    /// Includes the command that offers the target again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (description, target) = (self.describe(), &self.target);
        write!(f, "drained {description}; \"onload-ctk undrain {target}\" offers it again")
    }
}

impl DrainList {
    /// Parses the file. Ignores fields and classes that this version does not know.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let file: DrainFile =
            versioned::parse(bytes, VERSION, "it is not a list of drained devices")
                .map_err(|error| error!("{error:#}; {REMEDY}"))?;
        let mut drain = DrainList::default();
        for entry in file.drained {
            if let Some(class) = Class::from_name(&entry.class) {
                drain.add(DrainEntry {
                    target: DrainTarget::new(class, entry.name.as_deref()),
                    since: entry.since,
                    reason: entry.reason,
                    boot: entry.boot,
                });
            }
        }
        Ok(drain)
    }

    pub fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let entries = self.0.values().map(|entry| DrainFileEntry {
            class: entry.target.class.to_string(),
            name: entry.target.name.clone(),
            since: entry.since,
            reason: entry.reason.clone(),
            boot: entry.boot.clone(),
        });
        let mut bytes =
            serde_json::to_vec_pretty(&DrainFile { version: VERSION, drained: entries.collect() })?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Reads the list of a host, for programs that run as root. Only root may be able to change the
    /// file.
    pub fn read_host(root: &Path, boot: impl FnOnce() -> Option<String>) -> Result<Self> {
        let relative = DRAIN_PATH.trim_start_matches('/');
        if !may_exist(&root.join(relative)) {
            return Ok(DrainList::default());
        }
        // A tree that represents a host, as in tests, belongs to the user of this process.
        let owners = TrustedOwners::from_users(&[0, geteuid().as_raw()]);
        DrainList::read(&TrustedTree::for_tree(root, owners)?, boot)
    }

    pub fn read(trusted: &TrustedTree, boot: impl FnOnce() -> Option<String>) -> Result<Self> {
        let file = match trusted.open(Path::new(DRAIN_PATH)) {
            Err(error) if error.is_absent() => return Ok(DrainList::default()),
            opened => opened?,
        };
        let drain = DrainList::parse(&file.read(MAX_BYTES)?)
            .with_context(|| format!("reading {DRAIN_PATH}"))?;
        Ok(drain.without_expired(boot))
    }

    /// Removes entries that expired with an earlier boot. Calls `boot` only if this matters. If the
    /// boot is unknown, no entry has expired.
    #[must_use]
    pub fn without_expired(mut self, boot: impl FnOnce() -> Option<String>) -> Self {
        if self.0.values().any(|entry| entry.boot.is_some())
            && let Some(boot) = boot()
        {
            self.0.retain(|_, entry| {
                entry.boot.as_ref().is_none_or(|entry_boot| *entry_boot == boot)
            });
        }
        self
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &DrainEntry> {
        self.0.values()
    }

    /// Finds the entry that drains a device, by its name or with its class.
    pub fn find(&self, class: Class, name: &str) -> Option<&DrainEntry> {
        if self.is_empty() {
            return None;
        }
        self.get(&DrainTarget::new(class, Some(name)))
            .or_else(|| self.get(&DrainTarget::new(class, None)))
    }

    pub fn get(&self, target: &DrainTarget) -> Option<&DrainEntry> {
        self.0.get(target)
    }

    /// Returns the entries for a class and for devices of it.
    pub fn for_class(&self, class: Class) -> impl Iterator<Item = &DrainEntry> {
        let class = DrainTarget::new(class, None).class;
        self.iter().filter(move |entry| entry.target.class == class)
    }

    pub fn add(&mut self, entry: DrainEntry) {
        self.0.insert(entry.target.clone(), entry);
    }

    pub fn remove(&mut self, target: &DrainTarget) -> Option<DrainEntry> {
        self.0.remove(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onload_test_tree::Tree;

    fn drained(class: Class, name: Option<&str>) -> DrainEntry {
        DrainEntry {
            target: DrainTarget::new(class, name),
            since: 1_700_000_000,
            reason: Some("firmware upgrade".to_owned()),
            boot: None,
        }
    }

    fn drain(all: impl IntoIterator<Item = DrainEntry>) -> DrainList {
        let mut drain = DrainList::default();
        all.into_iter().for_each(|one| drain.add(one));
        drain
    }

    fn unknown() -> Option<String> {
        None
    }

    #[test]
    fn values_survive_a_round_trip() {
        let mut until = drained(Class::Vfio, None);
        (until.boot, until.reason) = (Some("this boot".to_owned()), None);
        let drain = drain([drained(Class::Rdma, Some("mlx5_0")), until]);
        assert_eq!(DrainList::parse(&drain.to_bytes().unwrap()), Ok(drain));
    }

    #[test]
    fn a_device_is_drained_by_its_name_or_with_its_class() {
        let drain = drain([drained(Class::Rdma, Some("mlx5_0")), drained(Class::Vfio, None)]);
        let why = |class, name| drain.find(class, name).map(ToString::to_string);
        assert_eq!(
            why(Class::Rdma, "mlx5_0").unwrap(),
            "drained since 2023-11-14T22:13:20Z: firmware upgrade; \"onload-ctk undrain rdma=mlx5_0\" offers it again"
        );
        assert!(why(Class::Vfio, "0000:81:10.0").unwrap().contains("\"onload-ctk undrain vfio\""));
        assert_eq!(why(Class::Rdma, "mlx5_1"), None);
        assert_eq!(why(Class::Netdev, "mlx5_0"), None);
    }

    #[test]
    fn an_interface_is_drained_for_all_classes_of_onload() {
        let drain = drain([drained(Class::Zf, Some("ens1"))]);
        for class in [Class::Nic, Class::NicPlain, Class::NicNodes, Class::Zf] {
            let target = &drain.find(class, "ens1").unwrap().target;
            assert_eq!(target.to_string(), "nic=ens1");
            assert_eq!(drain.find(class, "ens2"), None);
            assert_eq!(drain.for_class(class).count(), 1);
        }
        assert_eq!(drain.find(Class::Netdev, "ens1"), None);
        assert_eq!(drain.for_class(Class::Profile).count(), 0);
    }

    #[test]
    fn entries_may_expire_with_the_next_boot() {
        let mut until = drained(Class::Rdma, None);
        until.boot = Some("this".to_owned());
        assert!(until.to_string().contains("Z until the next boot: "));
        let drain = drain([until, drained(Class::Vfio, None)]);
        let at = |boot: &str| {
            let now = drain.clone().without_expired(|| Some(boot.to_owned()));
            now.iter().map(|one| one.target.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(at("this"), ["rdma", "vfio"]);
        assert_eq!(at("next"), ["vfio"]);
        assert_eq!(drain.clone().without_expired(unknown), drain, "it may be this one");
    }

    #[test]
    fn a_file_of_a_newer_version_is_rejected_but_unknown_fields_are_ignored() {
        let read =
            |text: &str| DrainList::parse(text.as_bytes()).map_err(|error| format!("{error:#}"));
        let more = read(
            r#"{"version":1,"by":"me","drained":[{"class":"rdma","since":7,"ticket":1},{"class":"warp","since":7}]}"#,
        );
        assert_eq!(more.unwrap().iter().count(), 1);
        assert_eq!(
            read(r#"{"version":2}"#).unwrap_err(),
            "it is of version 2, and this program understands 1; correct it, or remove it to offer \
             all devices again"
        );
        for broken in ["", "[]", r#"{"version":1,"drained":[{"class":"rdma"}]}"#] {
            let message = read(broken).unwrap_err();
            assert!(message.contains("it is not a list of drained devices"), "{message}");
        }
    }

    #[test]
    fn a_reason_is_escaped() {
        let mut one = drained(Class::Rdma, None);
        one.reason = Some("a\nb\u{1b}[2J".to_owned());
        assert!(!one.to_string().contains(char::is_control), "{one}");
    }

    #[test]
    fn a_list_that_others_can_change_is_rejected() {
        let tree = Tree::new();
        let read =
            || DrainList::read_host(tree.root(), unknown).map_err(|error| format!("{error:#}"));
        assert_eq!(read(), Ok(DrainList::default()));
        let written = drain([drained(Class::Rdma, None)]);
        tree.file("etc/onload-ctk/drain.json", written.to_bytes().unwrap());
        assert_eq!(read(), Ok(written));
        tree.chmod("etc/onload-ctk/drain.json", 0o666);
        let message = read().unwrap_err();
        assert!(message.contains("others can change it"), "{message}");
        tree.chmod("etc/onload-ctk/drain.json", 0o644);
        tree.file("etc/onload-ctk/drain.json", "{");
        let message = read().unwrap_err();
        assert!(
            message.starts_with(
                "reading /etc/onload-ctk/drain.json: it is not a list of drained devices: "
            ),
            "{message}"
        );
    }
}
