//! `createRuntime --memlock … --expect …`: the hook that a CDI specification carries. It raises
//! RLIMIT_MEMLOCK of the container's init, and stops the container when a device node is no longer
//! what it was when the specification was written.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::config::{Memlock, NotMemlock};
use crate::expect::{Expect, ExpectError};
use crate::limits::{self, LimitError};
use crate::state::State;
use crate::sysfs::{Numbers, Sysfs, SysfsError};
use crate::text::Quoted;

/// What the specification asks of the hook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// RLIMIT_MEMLOCK to reach.
    pub memlock: Option<Memlock>,
    /// What nodes must be.
    pub expect: Vec<Expect>,
}

/// Why an argument list is no order.
#[derive(Debug, thiserror::Error)]
pub enum OrdersError {
    /// An option that this version does not know; a newer one might have meant a check.
    #[error(
        "unknown option {0}; known are --memlock and --expect; is this onload-hook older than the specification?"
    )]
    Unknown(String),
    /// An option without its value.
    #[error("option {0} wants a value")]
    NoValue(&'static str),
    /// --memlock given twice.
    #[error("--memlock is given twice")]
    Twice,
    /// Not a limit.
    #[error("--memlock: {0}")]
    Memlock(#[from] NotMemlock),
    /// Not an expectation.
    #[error("--expect: {0}")]
    Expect(#[from] ExpectError),
}

impl Orders {
    /// Whether there is nothing to do: then the container's annotations speak.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Orders::default()
    }

    /// Reads the arguments behind the stage.
    ///
    /// # Errors
    /// [`OrdersError`]: what is not understood stops the container, since a check could be lost.
    pub fn parse(args: &[OsString]) -> Result<Orders, OrdersError> {
        let mut orders = Orders::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.to_str() {
                Some("--memlock") => {
                    let text = value(args.next(), "--memlock")?;
                    if orders.memlock.replace(text.parse()?).is_some() {
                        return Err(OrdersError::Twice);
                    }
                }
                Some("--expect") => {
                    let text = value(args.next(), "--expect")?;
                    orders.expect.push(text.parse()?);
                }
                _ => {
                    return Err(OrdersError::Unknown(
                        Quoted(&arg.to_string_lossy()).to_string(),
                    ));
                }
            }
        }
        Ok(orders)
    }
}

fn value<'a>(arg: Option<&'a OsString>, of: &'static str) -> Result<&'a str, OrdersError> {
    arg.map(OsString::as_os_str)
        .and_then(OsStr::to_str)
        .ok_or(OrdersError::NoValue(of))
}

/// Why the container must not start.
#[derive(Debug, thiserror::Error)]
pub enum CreateRuntimeError {
    /// The configuration could not be read.
    #[error("reading {path:?}: {error}")]
    Config {
        /// Its path.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The node is not among the container's devices.
    #[error(
        "{0}: linux.devices of config.json has no such node; was the container's device list changed after the specification was applied?"
    )]
    NoEntry(String),
    /// The node's entry is no character device with numbers.
    #[error("{0}: linux.devices of config.json does not say a character device with numbers")]
    NotCharacter(String),
    /// The node is somebody else's.
    #[error(transparent)]
    Sysfs(#[from] SysfsError),
    /// The limit could not be raised.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

/// Does what the specification ordered.
///
/// # Errors
/// [`CreateRuntimeError`]; a limit that cannot be raised for a lack of rights gives a warning.
pub fn run(
    orders: &Orders,
    state: &State,
    sysfs: &Sysfs,
) -> Result<Option<String>, CreateRuntimeError> {
    if !orders.expect.is_empty() {
        let devices = read_devices(&state.bundle.join("config.json"), &orders.expect)?;
        check(&orders.expect, &devices, sysfs)?;
    }
    let Some(memlock) = orders.memlock else {
        return Ok(None);
    };
    Ok(limits::raise_memlock(state.pid, memlock)?.warning(memlock))
}

/// An entry of `linux.devices` (runtime-spec, config-linux.md "Devices").
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Device {
    path: String,
    #[serde(rename = "type")]
    type_: Option<String>,
    major: Option<i64>,
    minor: Option<i64>,
}

fn read_devices(path: &Path, wanted: &[Expect]) -> Result<Vec<Device>, CreateRuntimeError> {
    let failed = |error: io::Error| CreateRuntimeError::Config {
        path: path.to_owned(),
        error,
    };
    // A FIFO in the place of the file must not hold the hook.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file =
        rustix::fs::open(path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
    let file = File::from(file);
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("not a regular file")));
    }
    let from = BufReader::with_capacity(64 * 1024, file);
    parse_devices(from, wanted).map_err(|error| failed(error.into()))
}

/// The entries of `linux.devices` at the nodes of `wanted`; everything else is passed over unread, however
/// much it is.
fn parse_devices(from: impl Read, wanted: &[Expect]) -> Result<Vec<Device>, serde_json::Error> {
    let mut found = Vec::new();
    let inner = Kept {
        wanted,
        found: &mut found,
    };
    let linux = Member {
        key: "linux",
        inner: Member {
            key: "devices",
            inner,
        },
    };
    let mut deserializer = serde_json::Deserializer::from_reader(from);
    linux.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(found)
}

/// One member of an object, which may be missing or `null`, as the object itself may be.
struct Member<S> {
    key: &'static str,
    inner: S,
}

impl<'de, S: DeserializeSeed<'de, Value = ()>> DeserializeSeed<'de> for Member<S> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de, S: DeserializeSeed<'de, Value = ()>> Visitor<'de> for Member<S> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<(), A::Error> {
        let mut inner = Some(self.inner);
        while let Some(key) = access.next_key::<String>()? {
            if key != self.key {
                access.next_value::<IgnoredAny>()?;
                continue;
            }
            let inner = inner
                .take()
                .ok_or_else(|| A::Error::duplicate_field(self.key))?;
            access.next_value_seed(inner)?;
        }
        Ok(())
    }
}

/// Entries at one node that are kept. A node has one pair of numbers, so that one of two that differ is
/// refused, however many follow.
const MAX_SAME: usize = 2;

/// The entries of a device list that somebody expects something of.
struct Kept<'a> {
    wanted: &'a [Expect],
    found: &'a mut Vec<Device>,
}

impl<'de> DeserializeSeed<'de> for Kept<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Kept<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an array")
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<(), A::Error> {
        while let Some(device) = access.next_element::<Device>()? {
            let same = self.found.iter().filter(|held| held.path == device.path);
            let is_new =
                same.clone().count() < MAX_SAME && !same.clone().any(|held| *held == device);
            if is_new && self.wanted.iter().any(|expect| expect.node == device.path) {
                self.found.push(device);
            }
        }
        Ok(())
    }
}

fn check(expect: &[Expect], devices: &[Device], sysfs: &Sysfs) -> Result<(), CreateRuntimeError> {
    for expect in expect {
        let mut entries = devices
            .iter()
            .filter(|device| device.path == expect.node)
            .peekable();
        if entries.peek().is_none() {
            return Err(CreateRuntimeError::NoEntry(expect.to_string()));
        }
        // Which of two entries a runtime takes is its own affair, so both have to be right.
        for entry in entries {
            let numbers = entry
                .numbers()
                .ok_or_else(|| CreateRuntimeError::NotCharacter(expect.to_string()))?;
            sysfs.check(expect, numbers)?;
        }
    }
    Ok(())
}

impl Device {
    fn numbers(&self) -> Option<Numbers> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    fn refusal(words: &[&str]) -> String {
        Orders::parse(&args(words)).unwrap_err().to_string()
    }

    #[test]
    fn orders_are_read() {
        let orders = Orders::parse(&args(&[
            "--memlock",
            "unlimited",
            "--expect",
            "/dev/infiniband/uverbs0=rdma:mlx5_0@0000:3b:00.0",
            "--expect",
            "/dev/vfio/15=vfio:0000:81:10.0",
        ]))
        .unwrap();
        assert_eq!(orders.memlock, Some(Memlock::Unlimited));
        assert_eq!(orders.expect.len(), 2);
        assert!(Orders::parse(&[]).unwrap().is_empty());
        let bytes = Orders::parse(&args(&["--memlock", "65536"])).unwrap();
        assert_eq!(bytes.memlock, Some(Memlock::Bytes(65536)));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        assert!(refusal(&["--numa", "1"]).contains("unknown option \"--numa\""));
        assert!(refusal(&["--memlock=1"]).contains("unknown option"));
        assert!(refusal(&["stray"]).contains("unknown option \"stray\""));
        assert!(refusal(&["--memlock"]).contains("wants a value"));
        assert!(refusal(&["--memlock", "1", "--memlock", "2"]).contains("given twice"));
        assert!(refusal(&["--memlock", "-1"]).contains("--memlock: memlock is"));
        assert!(refusal(&["--expect", "x"]).contains("--expect: \"x\" is not"));
    }

    fn expect(node: &str) -> [Expect; 1] {
        [format!("{node}=rdma:rxe0").parse().unwrap()]
    }

    fn devices(json: &str, node: &str) -> Vec<Device> {
        parse_devices(json.as_bytes(), &expect(node)).unwrap()
    }

    #[test]
    fn only_the_device_list_is_read() {
        let json = r#"{"ociVersion":"1.0.2","process":{"args":[1e3]},"linux":{"devices":[
            {"path":"/dev/a","type":"c","major":1,"minor":2,"fileMode":438,"uid":0}],"resources":{}}}"#;
        let found = devices(json, "/dev/a");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].numbers(), Some(Numbers { major: 1, minor: 2 }));
        assert!(devices(json, "/dev/b").is_empty());
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        for json in [
            "{}",
            r#"{"linux":null}"#,
            r#"{"linux":{"devices":null}}"#,
            &format!(r#"{{"process":{deep}}}"#),
        ] {
            assert!(devices(json, "/dev/a").is_empty());
        }
    }

    #[test]
    fn of_many_entries_at_one_path_two_that_differ_are_enough() {
        let entries = |minor: &dyn Fn(usize) -> usize| {
            let entry = |n| {
                format!(
                    r#"{{"path":"/dev/a","type":"c","major":1,"minor":{}}}"#,
                    minor(n)
                )
            };
            let entries: Vec<String> = (0..1000).map(entry).collect();
            devices(
                &format!(r#"{{"linux":{{"devices":[{}]}}}}"#, entries.join(",")),
                "/dev/a",
            )
            .len()
        };
        assert_eq!(entries(&|_| 7), 1);
        assert_eq!(entries(&|n| n), 2);
        assert_eq!(entries(&|n| n / 999), 2);
    }

    #[test]
    fn a_broken_configuration_is_refused() {
        for json in [
            "{",
            "[]",
            "{} {}",
            r#"{"linux":{},"linux":{}}"#,
            r#"{"linux":{"devices":[],"devices":[]}}"#,
            r#"{"linux":[]}"#,
            r#"{"linux":{"devices":{}}}"#,
            r#"{"linux":{"devices":[{"path":5}]}}"#,
            r#"{"linux":{"devices":[{"type":"c"}]}}"#,
        ] {
            assert!(
                parse_devices(json.as_bytes(), &expect("/dev/a")).is_err(),
                "{json}"
            );
        }
    }

    fn hca() -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        let verbs = tree.path().join("class/infiniband_verbs/uverbs0");
        std::fs::create_dir_all(&verbs).unwrap();
        std::fs::create_dir_all(tree.path().join("class/infiniband/rxe0")).unwrap();
        std::fs::write(verbs.join("ibdev"), "rxe0\n").unwrap();
        std::fs::write(verbs.join("dev"), "231:192\n").unwrap();
        tree
    }

    fn checked(json: &str) -> Result<(), String> {
        let tree = hca();
        let expect = ["/dev/infiniband/uverbs0=rdma:rxe0".parse().unwrap()];
        let found = devices(json, "/dev/infiniband/uverbs0");
        check(&expect, &found, &Sysfs::at(tree.path())).map_err(|error| error.to_string())
    }

    #[test]
    fn a_node_with_the_kernel_s_numbers_passes() {
        checked(r#"{"linux":{"devices":[{"path":"/dev/infiniband/uverbs0","type":"c","major":231,"minor":192}]}}"#)
            .unwrap();
    }

    #[test]
    fn a_node_that_is_missing_or_no_character_device_stops_the_container() {
        assert!(checked("{}").unwrap_err().contains("has no such node"));
        for entry in [
            r#"{"path":"/dev/infiniband/uverbs0","type":"b","major":231,"minor":192}"#,
            r#"{"path":"/dev/infiniband/uverbs0","type":"c"}"#,
            r#"{"path":"/dev/infiniband/uverbs0","type":"c","major":-1,"minor":192}"#,
        ] {
            let json = format!(r#"{{"linux":{{"devices":[{entry}]}}}}"#);
            assert!(
                checked(&json)
                    .unwrap_err()
                    .contains("does not say a character device")
            );
        }
    }

    #[test]
    fn one_wrong_entry_of_two_stops_the_container() {
        let json = r#"{"linux":{"devices":[
            {"path":"/dev/infiniband/uverbs0","type":"c","major":231,"minor":192},
            {"path":"/dev/infiniband/uverbs0","type":"c","major":231,"minor":193}]}}"#;
        assert!(checked(json).unwrap_err().contains("renumbered"));
    }
}
