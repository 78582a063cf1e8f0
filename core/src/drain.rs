//! What an operator has drained: devices that nobody new gets, while who has them keeps them.
//!
//! It is said in a file beside config.toml, as what an operator says of a host, and stays over a boot. The file is there
//! while something is drained: a container's start asks only whether it exists.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use onload_sys::error::{Context as _, Result, error};
use onload_sys::fs::open::is_there;
use onload_sys::fs::trust::{Owners, Trusted};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::class::Class;
use crate::timestamp::rfc3339;
use crate::versioned;

pub const DRAIN_PATH: &str = "/etc/onload-ctk/drain.json";
/// Bytes of it that are read: a host has thousands of functions.
pub const MAX_BYTES: u64 = 4 * 1024 * 1024;
/// Characters of a reason.
pub const MAX_REASON: usize = 200;
/// The newest version of the file that is understood.
const VERSION: u32 = 1;
const REMEDY: &str = "correct it, or remove it, which offers all again";

/// A class, or one device of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    class: Class,
    name: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drained {
    pub target: Target,
    /// Seconds since 1970.
    pub since: u64,
    /// The operator's own words.
    pub reason: Option<String>,
    /// The boot with which it ends.
    pub boot: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drain(BTreeMap<Target, Drained>);

#[derive(Serialize, Deserialize)]
struct File {
    version: u32,
    #[serde(default)]
    drained: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    class: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    since: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
}

impl Target {
    /// The classes of Onload are names of the same interfaces, by one driver, and are drained as `nic`.
    pub fn new(class: Class, name: Option<&str>) -> Self {
        Target {
            class: if class.is_onload() { Class::Nic } else { class },
            name: name.map(str::to_owned),
        }
    }

    pub fn class(&self) -> Class {
        self.class
    }

    /// None where it is the whole class.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{}={name}", self.class),
            None => write!(f, "{}", self.class),
        }
    }
}

impl Drained {
    /// Since when and why, for people.
    pub fn since(&self) -> String {
        let until = if self.boot.is_some() { " until the next boot" } else { "" };
        let reason = self.reason.as_ref();
        let reason = reason.map(|reason| format!(": {}", reason.escape_debug()));
        format!("since {}{until}{}", rfc3339(self.since), reason.unwrap_or_default())
    }
}

impl fmt::Display for Drained {
    /// With what offers it again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (since, target) = (self.since(), &self.target);
        write!(f, "drained {since}; \"onload-ctk undrain {target}\" offers it again")
    }
}

impl Drain {
    /// Fields that this version does not know are passed over, and so are classes, of which it offers nothing.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let file = versioned::parse(bytes, VERSION, "it is no list of what is drained");
        let file: File = file.map_err(|error| error!("{error:#}; {REMEDY}"))?;
        let mut drain = Drain::default();
        for entry in file.drained {
            if let Some(class) = Class::named(&entry.class) {
                drain.add(Drained {
                    target: Target::new(class, entry.name.as_deref()),
                    since: entry.since,
                    reason: entry.reason,
                    boot: entry.boot,
                });
            }
        }
        Ok(drain)
    }

    pub fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let entries = self.0.values().map(|drained| Entry {
            class: drained.target.class.to_string(),
            name: drained.target.name.clone(),
            since: drained.since,
            reason: drained.reason.clone(),
            boot: drained.boot.clone(),
        });
        let mut bytes =
            serde_json::to_vec_pretty(&File { version: VERSION, drained: entries.collect() })?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// What is drained of a host now, as root's programs read it: from a file that root alone could have changed.
    pub fn of_host(root: &Path, boot: impl FnOnce() -> Option<String>) -> Result<Self> {
        let below = DRAIN_PATH.trim_start_matches('/');
        if !is_there(&root.join(below)) {
            return Ok(Drain::default());
        }
        // Who runs this owns a tree that represents a host.
        let owners = Owners::of(&[0, geteuid().as_raw()]);
        Drain::read(&Trusted::below(root, owners)?, boot)
    }

    pub fn read(trusted: &Trusted, boot: impl FnOnce() -> Option<String>) -> Result<Self> {
        let file = match trusted.open(Path::new(DRAIN_PATH)) {
            Err(error) if error.is_absent() => return Ok(Drain::default()),
            opened => opened?,
        };
        let drain = Drain::parse(&file.read(MAX_BYTES)?);
        let drain = drain.with_context(|| format!("reading {DRAIN_PATH}"))?;
        Ok(drain.now(boot))
    }

    /// Without what ended with an earlier boot. Which one this is, is asked only where that matters; where it cannot be
    /// told, nothing has ended.
    #[must_use]
    pub fn now(mut self, boot: impl FnOnce() -> Option<String>) -> Self {
        let until = |drained: &Drained| drained.boot.is_some();
        if self.0.values().any(until)
            && let Some(boot) = boot()
        {
            let ends = |of: &String| *of != boot;
            self.0.retain(|_, drained| !drained.boot.as_ref().is_some_and(ends));
        }
        self
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Drained> {
        self.0.values()
    }

    /// How a device is drained, by its name or with its class.
    pub fn find(&self, class: Class, name: &str) -> Option<&Drained> {
        if self.is_empty() {
            return None;
        }
        let own = self.get(&Target::new(class, Some(name)));
        own.or_else(|| self.get(&Target::new(class, None)))
    }

    pub fn get(&self, target: &Target) -> Option<&Drained> {
        self.0.get(target)
    }

    /// All of a class: itself, and devices of it.
    pub fn of_class(&self, class: Class) -> impl Iterator<Item = &Drained> {
        let class = Target::new(class, None).class;
        self.iter().filter(move |drained| drained.target.class == class)
    }

    pub fn add(&mut self, drained: Drained) {
        self.0.insert(drained.target.clone(), drained);
    }

    pub fn remove(&mut self, target: &Target) -> Option<Drained> {
        self.0.remove(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onload_test_tree::Tree;

    fn drained(class: Class, name: Option<&str>) -> Drained {
        Drained {
            target: Target::new(class, name),
            since: 1_700_000_000,
            reason: Some("firmware upgrade".to_owned()),
            boot: None,
        }
    }

    fn drain(all: impl IntoIterator<Item = Drained>) -> Drain {
        let mut drain = Drain::default();
        all.into_iter().for_each(|one| drain.add(one));
        drain
    }

    fn unknown() -> Option<String> {
        None
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut until = drained(Class::Vfio, None);
        (until.boot, until.reason) = (Some("this boot".to_owned()), None);
        let drain = drain([drained(Class::Rdma, Some("mlx5_0")), until]);
        assert_eq!(Drain::parse(&drain.to_bytes().unwrap()), Ok(drain));
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
            assert_eq!(drain.of_class(class).count(), 1);
        }
        assert_eq!(drain.find(Class::Netdev, "ens1"), None);
        assert_eq!(drain.of_class(Class::Profile).count(), 0);
    }

    #[test]
    fn what_ends_with_a_boot_is_over_after_it() {
        let mut until = drained(Class::Rdma, None);
        until.boot = Some("this".to_owned());
        assert!(until.to_string().contains("Z until the next boot: "));
        let drain = drain([until, drained(Class::Vfio, None)]);
        let at = |boot: &str| {
            let now = drain.clone().now(|| Some(boot.to_owned()));
            now.iter().map(|one| one.target.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(at("this"), ["rdma", "vfio"]);
        assert_eq!(at("next"), ["vfio"]);
        assert_eq!(drain.clone().now(unknown), drain, "it may be this one");
    }

    #[test]
    fn a_file_of_a_later_version_is_refused_and_what_it_adds_is_not() {
        let read = |text: &str| Drain::parse(text.as_bytes()).map_err(|error| format!("{error:#}"));
        let more = read(
            r#"{"version":1,"by":"me","drained":[{"class":"rdma","since":7,"ticket":1},{"class":"warp","since":7}]}"#,
        );
        assert_eq!(more.unwrap().iter().count(), 1);
        assert_eq!(
            read(r#"{"version":2}"#).unwrap_err(),
            "it is of version 2, and this program understands 1; correct it, or remove it, which offers all again"
        );
        for broken in ["", "[]", r#"{"version":1,"drained":[{"class":"rdma"}]}"#] {
            let said = read(broken).unwrap_err();
            assert!(said.contains("it is no list of what is drained"), "{said}");
        }
    }

    #[test]
    fn the_words_of_a_reason_stay_on_their_line() {
        let mut one = drained(Class::Rdma, None);
        one.reason = Some("a\nb\u{1b}[2J".to_owned());
        assert!(!one.to_string().contains(char::is_control), "{one}");
    }

    #[test]
    fn a_host_is_read_only_where_root_alone_could_have_written() {
        let tree = Tree::new();
        let read = || Drain::of_host(tree.root(), unknown).map_err(|error| format!("{error:#}"));
        assert_eq!(read(), Ok(Drain::default()));
        let written = drain([drained(Class::Rdma, None)]);
        tree.file("etc/onload-ctk/drain.json", written.to_bytes().unwrap());
        assert_eq!(read(), Ok(written));
        tree.chmod("etc/onload-ctk/drain.json", 0o666);
        let said = read().unwrap_err();
        assert!(said.contains("others can change it"), "{said}");
        tree.chmod("etc/onload-ctk/drain.json", 0o644);
        tree.file("etc/onload-ctk/drain.json", "{");
        let said = read().unwrap_err();
        assert!(
            said.starts_with(
                "reading /etc/onload-ctk/drain.json: it is no list of what is drained: "
            ),
            "{said}"
        );
    }
}
