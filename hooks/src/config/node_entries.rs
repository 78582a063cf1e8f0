//! The sources of a container's device nodes according to config.json: `linux.devices` and `mounts` (runtime-spec,
//! config-linux.md "Devices", config.md "Mounts"). However large the file is, only what concerns the requested nodes is
//! kept.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use onload_core::expectation::Expectation;
use onload_sys::device_number::DeviceNumber;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

#[derive(Debug, Default)]
pub(crate) struct ListedNodes {
    devices: Vec<DeviceEntry>,
    /// For each node, the last mount that covers it: that mount is the one visible there.
    mounts: BTreeMap<String, NodeMount>,
}

/// An entry of `linux.devices`.
#[derive(Debug, PartialEq, Deserialize)]
pub(crate) struct DeviceEntry {
    path: String,
    #[serde(rename = "type")]
    type_: Option<String>,
    major: Option<i64>,
    minor: Option<i64>,
}

#[derive(Clone, Debug, Deserialize)]
struct NodeMount {
    #[serde(default)]
    destination: PathBuf,
    source: Option<PathBuf>,
    #[serde(rename = "type")]
    type_: Option<String>,
    /// Whether the options make it a bind mount: the list may be long, and nothing else of it is kept.
    #[serde(default, rename = "options", deserialize_with = "has_bind")]
    has_bind: bool,
}

impl DeviceEntry {
    /// The numbers of a character device.
    pub(crate) fn numbers(&self) -> Option<DeviceNumber> {
        // "u" is an unbuffered character device. Linux makes no difference.
        if !matches!(self.type_.as_deref(), Some("c" | "u")) {
            return None;
        }
        Some(DeviceNumber {
            major: self.major?.try_into().ok()?,
            minor: self.minor?.try_into().ok()?,
        })
    }
}

impl ListedNodes {
    /// A configuration in memory is read several times as fast as one from a file.
    pub(crate) fn parse<'de, R: serde_json::de::Read<'de>>(
        mut json: serde_json::Deserializer<R>,
        expectations: &[Expectation],
    ) -> Result<ListedNodes, serde_json::Error> {
        let mut listed_nodes = ListedNodes::default();
        let config =
            NodeCollector { is_linux: false, expectations, listed_nodes: &mut listed_nodes };
        config.deserialize(&mut json)?;
        json.end()?;
        Ok(listed_nodes)
    }

    pub(crate) fn entries(&self, node: &str) -> impl Iterator<Item = &DeviceEntry> {
        self.devices.iter().filter(move |entry| entry.path == node)
    }

    /// The path, which may be relative to the bundle, that is bind-mounted at a node or above it. In a user namespace,
    /// engines may mount the host's node instead of listing it, since nodes cannot be created there.
    pub(crate) fn mount_source(&self, node: &str) -> Option<PathBuf> {
        let mount = self.mounts.get(node)?;
        if mount.type_.as_deref() != Some("bind") && !mount.has_bind {
            return None;
        }
        let (source, rest) = (mount.source.clone()?, strip_directory(node, &mount.destination)?);
        let is_node = rest.as_os_str().is_empty();
        Some(if is_node { source } else { source.join(rest) })
    }
}

/// The rest of the path below the directory, if the directory is absolute.
fn strip_directory<'a>(path: &'a str, directory: &Path) -> Option<&'a Path> {
    Path::new(path).strip_prefix(directory).ok().filter(|_| directory.is_absolute())
}

/// Collects the entries for requested nodes of a configuration, or of its `linux` object.
struct NodeCollector<'a> {
    is_linux: bool,
    expectations: &'a [Expectation],
    listed_nodes: &'a mut ListedNodes,
}

/// A list whose entries are visited one by one; null counts as empty.
struct ListVisitor<F, T> {
    visit: F,
    item: PhantomData<T>,
}

impl<'de> DeserializeSeed<'de> for NodeCollector<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        if self.is_linux { from.deserialize_any(self) } else { from.deserialize_map(self) }
    }
}

impl<'de> Visitor<'de> for NodeCollector<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_linux { "an object or null" } else { "a container's configuration" })
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (expectations, listed_nodes) = (self.expectations, self.listed_nodes);
        let mut seen_keys = BTreeSet::new();
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            let name = match (&*key, self.is_linux) {
                ("linux", false) => {
                    let linux = NodeCollector { is_linux: true, expectations, listed_nodes };
                    map.next_value_seed(linux)?;
                    "linux"
                }
                ("mounts", false) => {
                    let visit = |mount: NodeMount| {
                        for node in expectations.iter().map(|expectation| &expectation.node) {
                            if strip_directory(node, &mount.destination).is_some() {
                                listed_nodes.mounts.insert(node.clone(), mount.clone());
                            }
                        }
                    };
                    map.next_value_seed(visit_list(visit))?;
                    "mounts"
                }
                ("devices", true) => {
                    let visit = |device: DeviceEntry| {
                        if expectations.iter().any(|expectation| expectation.node == device.path) {
                            add_entry(&mut listed_nodes.devices, device);
                        }
                    };
                    map.next_value_seed(visit_list(visit))?;
                    "devices"
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            // JSON readers disagree about which of two members with the same name counts.
            if !seen_keys.insert(name) {
                return Err(A::Error::duplicate_field(name));
            }
        }
        Ok(())
    }
}

fn has_bind<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    let mut has_bind = false;
    visit_list(|option: Cow<'_, str>| has_bind |= option == "bind" || option == "rbind")
        .deserialize(from)?;
    Ok(has_bind)
}

/// A node may have any number of entries. The first of several equal ones is enough, and if two
/// differ, one of them is wrong.
fn add_entry(entries: &mut Vec<DeviceEntry>, device: DeviceEntry) {
    let mut same = entries.iter().filter(|entry| entry.path == device.path);
    if same.clone().count() < 2 && same.all(|entry| *entry != device) {
        entries.push(device);
    }
}

fn visit_list<T, F: FnMut(T)>(visit: F) -> ListVisitor<F, T> {
    ListVisitor { visit, item: PhantomData }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T)> DeserializeSeed<'de> for ListVisitor<F, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T)> Visitor<'de> for ListVisitor<F, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list or null")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(entry) = list.next_element::<T>()? {
            (self.visit)(entry);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(json: &str) -> Result<ListedNodes, serde_json::Error> {
        let wanted = ["/dev/a=nic:onload".parse().unwrap()];
        let read = serde_json::Deserializer::from_reader(json.as_bytes());
        let read = ListedNodes::parse(read, &wanted);
        let held = ListedNodes::parse(serde_json::Deserializer::from_str(json), &wanted);
        assert_eq!(format!("{:?}", read.as_ref().ok()), format!("{:?}", held.ok()));
        read
    }

    fn listed(json: &str) -> ListedNodes {
        parsed(json).unwrap()
    }

    /// The source of /dev/a with these mounts.
    fn mounted(mounts: &str) -> Option<PathBuf> {
        listed(&format!(r#"{{"mounts":[{mounts}]}}"#)).mount_source("/dev/a")
    }

    #[test]
    fn only_the_entries_of_the_nodes_are_kept() {
        let json = r#"{"ociVersion":"1.0.2","process":{"args":[1e3]},"linux":{"devices":[
            {"path":"/dev/b","type":"c","major":1,"minor":1},
            {"path":"/dev/a","type":"c","major":1,"minor":2,"fileMode":438,"uid":0}],"resources":{}},
            "mounts":[{"destination":"/proc"},{"destination":"/dev"},{"destination":"/dev/ab"}]}"#;
        let found = listed(json);
        assert_eq!((found.devices.len(), found.mounts.len()), (1, 1));
        assert_eq!(found.devices[0].numbers(), Some(DeviceNumber { major: 1, minor: 2 }));
        for nothing in ["{}", r#"{"linux":null,"mounts":null}"#, r#"{"linux":{"devices":null}}"#] {
            let found = listed(nothing);
            assert_eq!(found.entries("/dev/a").count(), 0);
            assert_eq!(found.mount_source("/dev/a"), None);
        }
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        assert!(listed(&format!(r#"{{"process":{deep}}}"#)).devices.is_empty());
    }

    #[test]
    fn of_many_entries_of_one_node_two_that_differ_are_enough() {
        let count = |minor: &dyn Fn(usize) -> usize| {
            let entries: Vec<String> = (0..1000)
                .map(|n| format!(r#"{{"path":"/dev/a","major":1,"minor":{}}}"#, minor(n)))
                .collect();
            let entries = entries.join(",");
            listed(&format!(r#"{{"linux":{{"devices":[{entries}]}}}}"#)).devices.len()
        };
        assert_eq!(count(&|_| 7), 1);
        assert_eq!(count(&|n| n), 2);
        assert_eq!(count(&|n| n / 999), 2);
    }

    #[test]
    fn a_broken_configuration_is_refused() {
        for json in [
            "{",
            "{} {}",
            "[]",
            r#"{"linux":{},"linux":{}}"#,
            r#"{"mounts":[],"mounts":null}"#,
            r#"{"linux":{"devices":[],"devices":[]}}"#,
            r#"{"linux":[]}"#,
            r#"{"linux":{"devices":[{"path":5}]}}"#,
            r#"{"linux":{"devices":{}}}"#,
            r#"{"mounts":"/dev/a"}"#,
        ] {
            assert!(parsed(json).is_err(), "{json}");
        }
    }

    #[test]
    fn the_last_mount_that_covers_the_node_brings_it() {
        let tmpfs = r#"{"destination":"/dev","type":"tmpfs","source":"tmpfs"}"#;
        let bind =
            r#"{"destination":"/dev/a","type":"none","source":"/dev/x","options":["ro","rbind"]}"#;
        let whole = r#"{"destination":"/dev","type":"bind","source":"/host"}"#;
        assert_eq!(mounted(bind), Some("/dev/x".into()));
        assert_eq!(mounted(&format!("{tmpfs},{bind}")), Some("/dev/x".into()));
        assert_eq!(mounted(&format!("{bind},{tmpfs}")), None);
        assert_eq!(mounted(&format!("{tmpfs},{whole}")), Some("/host/a".into()));
        assert_eq!(mounted(tmpfs), None);
        assert_eq!(mounted(r#"{"destination":"/dev/a","type":"bind"}"#), None);
        assert_eq!(mounted(r#"{"destination":"/dev/aa","type":"bind","source":"/x"}"#), None);
    }
}
