//! Where a container's device nodes come from according to config.json: `linux.devices` and
//! `mounts` (runtime-spec, config-linux.md "Devices", config.md "Mounts"). However large the file is,
//! only what concerns the requested nodes is kept.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use onload_core::expect::Expect;
use onload_sys::numbers::Numbers;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

#[derive(Debug, Default)]
pub(crate) struct ListedNodes {
    devices: Vec<DeviceEntry>,
    /// For each node, the last mount that covers it: that mount is the one visible there.
    mounts: BTreeMap<String, NodeMount>,
}

#[derive(Debug)]
pub(crate) enum NodeSource<'a> {
    /// The runtime creates it from these entries.
    Entries(Vec<&'a DeviceEntry>),
    /// It is bind-mounted from this path, which may be relative to the bundle.
    Mounted(PathBuf),
    Missing,
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
    #[serde(default)]
    options: Options,
}

/// The options of a mount, reduced to whether they make it a bind mount: the list may be long.
#[derive(Clone, Debug, Default)]
struct Options {
    bind: bool,
}

impl DeviceEntry {
    /// The numbers of a character device.
    pub(crate) fn numbers(&self) -> Option<Numbers> {
        // "u" is an unbuffered character device. Linux makes no difference.
        if !matches!(self.type_.as_deref(), Some("c" | "u")) {
            return None;
        }
        Some(Numbers {
            major: self.major?.try_into().ok()?,
            minor: self.minor?.try_into().ok()?,
        })
    }
}

impl NodeMount {
    fn is_bind(&self) -> bool {
        self.type_.as_deref() == Some("bind") || self.options.bind
    }
}

impl ListedNodes {
    pub(crate) fn read(
        from: impl Read,
        wanted: &[Expect],
    ) -> Result<ListedNodes, serde_json::Error> {
        ListedNodes::parse(serde_json::Deserializer::from_reader(from), wanted)
    }

    /// Reads a configuration from memory, which is several times as fast.
    pub(crate) fn from_bytes(
        bytes: &[u8],
        wanted: &[Expect],
    ) -> Result<ListedNodes, serde_json::Error> {
        ListedNodes::parse(serde_json::Deserializer::from_slice(bytes), wanted)
    }

    fn parse<'de, R: serde_json::de::Read<'de>>(
        mut json: serde_json::Deserializer<R>,
        wanted: &[Expect],
    ) -> Result<ListedNodes, serde_json::Error> {
        let listed = Config { wanted }.deserialize(&mut json)?;
        json.end()?;
        Ok(listed)
    }

    /// Where the node at this path in the container comes from. In a user namespace, engines may
    /// mount the host's node instead of listing it, since nobody can create one there.
    pub(crate) fn source_of(&self, node: &str) -> NodeSource<'_> {
        let entries: Vec<&DeviceEntry> =
            self.devices.iter().filter(|one| one.path == node).collect();
        if !entries.is_empty() {
            return NodeSource::Entries(entries);
        }
        let bind = self.mounts.get(node).filter(|mount| mount.is_bind());
        let source = bind.and_then(|mount| {
            let (source, rest) = (mount.source.clone()?, below(node, &mount.destination)?);
            let is_node = rest.as_os_str().is_empty();
            Some(if is_node { source } else { source.join(rest) })
        });
        source.map_or(NodeSource::Missing, NodeSource::Mounted)
    }
}

/// The rest of the path below the directory, if the directory is absolute.
fn below<'a>(path: &'a str, directory: &Path) -> Option<&'a Path> {
    let rest = Path::new(path).strip_prefix(directory).ok();
    rest.filter(|_| directory.is_absolute())
}

struct Config<'w> {
    wanted: &'w [Expect],
}

struct Linux<'w> {
    wanted: &'w [Expect],
}

/// A list whose entries are visited one by one; null counts as empty.
struct Each<F, T> {
    look: F,
    of: PhantomData<T>,
}

impl<'de> DeserializeSeed<'de> for Config<'_> {
    type Value = ListedNodes;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<ListedNodes, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Config<'_> {
    type Value = ListedNodes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a container's configuration")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ListedNodes, A::Error> {
        let (mut devices, mut has_mounts) = (None, None);
        let mut mounts: BTreeMap<String, NodeMount> = BTreeMap::new();
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            match &*key {
                "linux" => {
                    let wanted = self.wanted;
                    once(
                        &mut devices,
                        "linux",
                        map.next_value_seed(Linux { wanted })?,
                    )?;
                }
                "mounts" => {
                    let look = |mount: NodeMount| {
                        for node in self.wanted.iter().map(|one| &one.node) {
                            if below(node, &mount.destination).is_some() {
                                mounts.insert(node.clone(), mount.clone());
                            }
                        }
                    };
                    once(&mut has_mounts, "mounts", map.next_value_seed(each(look))?)?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(ListedNodes {
            devices: devices.unwrap_or_default(),
            mounts,
        })
    }
}

impl<'de> DeserializeSeed<'de> for Linux<'_> {
    type Value = Vec<DeviceEntry>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Vec<DeviceEntry>, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Linux<'_> {
    type Value = Vec<DeviceEntry>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or null")
    }

    fn visit_unit<E>(self) -> Result<Vec<DeviceEntry>, E> {
        Ok(Vec::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<DeviceEntry>, A::Error> {
        let mut devices = Vec::new();
        let mut has_devices = None;
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            if key == "devices" {
                let look = |device: DeviceEntry| {
                    if self.wanted.iter().any(|one| one.node == device.path) {
                        keep(&mut devices, device);
                    }
                };
                once(
                    &mut has_devices,
                    "devices",
                    map.next_value_seed(each(look))?,
                )?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(devices)
    }
}

impl<'de> Deserialize<'de> for Options {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Options, D::Error> {
        let mut options = Options::default();
        let look = |option: Cow<'_, str>| options.bind |= option == "bind" || option == "rbind";
        each(look).deserialize(from)?;
        Ok(options)
    }
}

/// JSON readers disagree about which of two members with the same name counts, so both are refused.
fn once<T, E: Error>(slot: &mut Option<T>, name: &'static str, value: T) -> Result<(), E> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(E::duplicate_field(name)),
    }
}

/// A node may have any number of entries. The first of several equal ones is enough, and if two
/// differ, one of them is wrong.
fn keep(found: &mut Vec<DeviceEntry>, device: DeviceEntry) {
    let mut same = found.iter().filter(|held| held.path == device.path);
    if same.clone().count() < 2 && same.all(|held| *held != device) {
        found.push(device);
    }
}

fn each<T, F: FnMut(T)>(look: F) -> Each<F, T> {
    Each {
        look,
        of: PhantomData,
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T)> DeserializeSeed<'de> for Each<F, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T)> Visitor<'de> for Each<F, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list or null")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(entry) = list.next_element::<T>()? {
            (self.look)(entry);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(json: &str) -> Result<ListedNodes, serde_json::Error> {
        let wanted = ["/dev/a=nic:onload".parse().unwrap()];
        let read = ListedNodes::read(json.as_bytes(), &wanted);
        let held = ListedNodes::from_bytes(json.as_bytes(), &wanted);
        assert_eq!(
            format!("{:?}", read.as_ref().ok()),
            format!("{:?}", held.ok())
        );
        read
    }

    fn listed(json: &str) -> ListedNodes {
        parsed(json).unwrap()
    }

    /// The source of /dev/a with these mounts.
    fn mounted(mounts: &str) -> Option<PathBuf> {
        match listed(&format!(r#"{{"mounts":[{mounts}]}}"#)).source_of("/dev/a") {
            NodeSource::Mounted(source) => Some(source),
            NodeSource::Entries(_) => panic!("listed"),
            NodeSource::Missing => None,
        }
    }

    #[test]
    fn only_the_entries_of_the_nodes_are_kept() {
        let json = r#"{"ociVersion":"1.0.2","process":{"args":[1e3]},"linux":{"devices":[
            {"path":"/dev/b","type":"c","major":1,"minor":1},
            {"path":"/dev/a","type":"c","major":1,"minor":2,"fileMode":438,"uid":0}],"resources":{}},
            "mounts":[{"destination":"/proc"},{"destination":"/dev"},{"destination":"/dev/ab"}]}"#;
        let found = listed(json);
        assert_eq!((found.devices.len(), found.mounts.len()), (1, 1));
        assert_eq!(
            found.devices[0].numbers(),
            Some(Numbers { major: 1, minor: 2 })
        );
        for nothing in [
            "{}",
            r#"{"linux":null,"mounts":null}"#,
            r#"{"linux":{"devices":null}}"#,
        ] {
            assert!(matches!(
                listed(nothing).source_of("/dev/a"),
                NodeSource::Missing
            ));
        }
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        assert!(
            listed(&format!(r#"{{"process":{deep}}}"#))
                .devices
                .is_empty()
        );
    }

    #[test]
    fn of_many_entries_of_one_node_two_that_differ_are_enough() {
        let count = |minor: &dyn Fn(usize) -> usize| {
            let entry = |n| format!(r#"{{"path":"/dev/a","major":1,"minor":{}}}"#, minor(n));
            let entries: Vec<String> = (0..1000).map(entry).collect();
            let entries = entries.join(",");
            listed(&format!(r#"{{"linux":{{"devices":[{entries}]}}}}"#))
                .devices
                .len()
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
    fn an_entry_comes_before_a_mount() {
        let json = r#"{"linux":{"devices":[{"path":"/dev/a","type":"c","major":1,"minor":2}]},
            "mounts":[{"destination":"/dev/a","type":"bind","source":"/dev/x"}]}"#;
        assert!(
            matches!(listed(json).source_of("/dev/a"), NodeSource::Entries(entries) if entries.len() == 1)
        );
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
        assert_eq!(
            mounted(r#"{"destination":"/dev/aa","type":"bind","source":"/x"}"#),
            None
        );
    }
}
