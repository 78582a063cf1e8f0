//! Where a container gets its device nodes from, as far as config.json tells: `linux.devices` and
//! `mounts` (runtime-spec, config-linux.md "Devices", config.md "Mounts").
//!
//! Read as a stream: only what concerns the nodes asked for is kept, however large the file is.

use std::borrow::Cow;
use std::fmt;
use std::io::Read;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::expect::{Expect, Numbers};

/// What config.json lists for some nodes.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    devices: Vec<Device>,
    mounts: Vec<Mount>,
}

/// Where a node comes from.
#[derive(Debug)]
pub(crate) enum Place<'a> {
    /// The runtime makes it by these entries.
    Entries(Vec<&'a Device>),
    /// It is bind-mounted from there; relative to the bundle, if it is relative.
    Mounted(PathBuf),
    /// Nothing brings it.
    Nowhere,
}

/// An entry of `linux.devices`.
#[derive(Debug, PartialEq, Deserialize)]
pub(crate) struct Device {
    path: String,
    #[serde(rename = "type")]
    type_: Option<String>,
    major: Option<i64>,
    minor: Option<i64>,
}

/// An entry of `mounts`.
#[derive(Debug, Deserialize)]
struct Mount {
    #[serde(default)]
    destination: PathBuf,
    source: Option<PathBuf>,
    #[serde(rename = "type")]
    type_: Option<String>,
    #[serde(default)]
    options: Options,
}

/// Of the options of a mount, whether they make it a bind mount: a list may be long.
#[derive(Debug, Default)]
struct Options {
    bind: bool,
}

impl Device {
    /// The numbers of a character device.
    pub(crate) fn numbers(&self) -> Option<Numbers> {
        // "u" is an unbuffered character device, the same to Linux.
        if !matches!(self.type_.as_deref(), Some("c" | "u")) {
            return None;
        }
        Some(Numbers {
            major: self.major?.try_into().ok()?,
            minor: self.minor?.try_into().ok()?,
        })
    }
}

impl Mount {
    fn is_bind(&self) -> bool {
        self.type_.as_deref() == Some("bind") || self.options.bind
    }
}

impl Listed {
    /// Reads a configuration.
    pub(crate) fn read(from: impl Read, wanted: &[Expect]) -> Result<Listed, serde_json::Error> {
        let mut json = serde_json::Deserializer::from_reader(from);
        let listed = Config { wanted }.deserialize(&mut json)?;
        json.end()?;
        Ok(listed)
    }

    /// Where the node at that path of the container comes from. In a user namespace engines may
    /// mount the host's node instead of listing it, since nobody can make one there.
    pub(crate) fn place_of(&self, node: &str) -> Place<'_> {
        let entries: Vec<&Device> = self.devices.iter().filter(|one| one.path == node).collect();
        if !entries.is_empty() {
            return Place::Entries(entries);
        }
        // The last mount that covers a path is what is seen there.
        let mounts = self.mounts.iter().rev();
        let covering = mounts
            .filter_map(|mount| Some((mount, below(node, &mount.destination)?)))
            .next();
        match covering {
            Some((mount, rest)) if mount.is_bind() => match &mount.source {
                Some(source) if rest.as_os_str().is_empty() => Place::Mounted(source.clone()),
                Some(source) => Place::Mounted(source.join(rest)),
                None => Place::Nowhere,
            },
            _ => Place::Nowhere,
        }
    }
}

/// What of the path is below the directory.
fn below<'a>(path: &'a str, directory: &Path) -> Option<&'a Path> {
    Path::new(path).strip_prefix(directory).ok()
}

/// The whole of config.json.
struct Config<'w> {
    wanted: &'w [Expect],
}

/// Its `linux`.
struct Linux<'w> {
    wanted: &'w [Expect],
}

/// A list of which few entries are kept, one after the other; null is an empty one.
struct Kept<F, T> {
    keep: F,
    of: PhantomData<T>,
}

impl<'de> DeserializeSeed<'de> for Config<'_> {
    type Value = Listed;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Listed, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Config<'_> {
    type Value = Listed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a container's configuration")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Listed, A::Error> {
        let (mut devices, mut mounts) = (None, None);
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
                    let keep = |found: &mut _, mount| keep_mount(found, mount, self.wanted);
                    once(&mut mounts, "mounts", map.next_value_seed(kept(keep))?)?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Listed {
            devices: devices.unwrap_or_default(),
            mounts: mounts.unwrap_or_default(),
        })
    }
}

impl<'de> DeserializeSeed<'de> for Linux<'_> {
    type Value = Vec<Device>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Vec<Device>, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Linux<'_> {
    type Value = Vec<Device>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or null")
    }

    fn visit_unit<E>(self) -> Result<Vec<Device>, E> {
        Ok(Vec::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<Device>, A::Error> {
        let mut devices = None;
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            if key == "devices" {
                let keep = |found: &mut _, device| keep_device(found, device, self.wanted);
                once(&mut devices, "devices", map.next_value_seed(kept(keep))?)?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(devices.unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for Options {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Options, D::Error> {
        let keep = |found: &mut Vec<()>, option: String| {
            if found.is_empty() && (option == "bind" || option == "rbind") {
                found.push(());
            }
        };
        let binding = kept(keep).deserialize(from)?;
        Ok(Options {
            bind: !binding.is_empty(),
        })
    }
}

/// Readers differ in which of two members of one name they take.
fn once<T, E: Error>(place: &mut Option<T>, name: &'static str, value: T) -> Result<(), E> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(E::duplicate_field(name)),
    }
}

/// Entries of one node may be many: of equal ones the first says as much, and of two that differ one is wrong.
fn keep_device(found: &mut Vec<Device>, device: Device, wanted: &[Expect]) {
    let is_wanted = wanted.iter().any(|one| one.node == device.path);
    let mut same = found.iter().filter(|held| held.path == device.path);
    if is_wanted && same.clone().count() < 2 && same.all(|held| *held != device) {
        found.push(device);
    }
}

/// The last mount that covers a node is what is seen there, so those before it go.
fn keep_mount(found: &mut Vec<Mount>, mount: Mount, wanted: &[Expect]) {
    let covers = |mount: &Mount, one: &Expect| below(&one.node, &mount.destination).is_some();
    if wanted.iter().any(|one| covers(&mount, one)) {
        let is_seen = |held: &Mount, one: &Expect| covers(held, one) && !covers(&mount, one);
        found.retain(|held| wanted.iter().any(|one| is_seen(held, one)));
        found.push(mount);
    }
}

fn kept<K, T, F: FnMut(&mut Vec<K>, T)>(keep: F) -> Kept<F, (K, T)> {
    Kept {
        keep,
        of: PhantomData,
    }
}

impl<'de, K, T, F> DeserializeSeed<'de> for Kept<F, (K, T)>
where
    T: Deserialize<'de>,
    F: FnMut(&mut Vec<K>, T),
{
    type Value = Vec<K>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Vec<K>, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, K, T, F> Visitor<'de> for Kept<F, (K, T)>
where
    T: Deserialize<'de>,
    F: FnMut(&mut Vec<K>, T),
{
    type Value = Vec<K>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list or null")
    }

    fn visit_unit<E>(self) -> Result<Vec<K>, E> {
        Ok(Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Vec<K>, A::Error> {
        let mut found = Vec::new();
        while let Some(entry) = list.next_element::<T>()? {
            (self.keep)(&mut found, entry);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(json: &str) -> Result<Listed, serde_json::Error> {
        let wanted = ["/dev/a=nic:onload".parse().unwrap()];
        Listed::read(json.as_bytes(), &wanted)
    }

    fn listed(json: &str) -> Listed {
        parsed(json).unwrap()
    }

    /// Where /dev/a comes from with these mounts.
    fn mounted(mounts: &str) -> Option<PathBuf> {
        match listed(&format!(r#"{{"mounts":[{mounts}]}}"#)).place_of("/dev/a") {
            Place::Mounted(source) => Some(source),
            Place::Entries(_) => panic!("listed"),
            Place::Nowhere => None,
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
            assert!(matches!(listed(nothing).place_of("/dev/a"), Place::Nowhere));
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
    fn of_many_mounts_over_one_node_the_last_is_kept() {
        let mounts = r#"{"destination":"/dev","type":"tmpfs"},"#.repeat(1000);
        let last = r#"{"destination":"/dev/a","source":"/dev/b","options":["bind"]}"#;
        let found = listed(&format!(r#"{{"mounts":[{mounts}{last}]}}"#));
        assert_eq!(found.mounts.len(), 1);
        assert!(
            matches!(found.place_of("/dev/a"), Place::Mounted(source) if source == Path::new("/dev/b"))
        );
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
            matches!(listed(json).place_of("/dev/a"), Place::Entries(entries) if entries.len() == 1)
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
