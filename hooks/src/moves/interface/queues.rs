//! Saves the queue settings of an interface before it moves. After its return, restores its channels and its attributes
//! in sysfs, and compares RSS and ntuple rules. Both happen on the host, since a mount of sysfs shows the interfaces of a
//! single network namespace.
//!
//! Other settings of ethtool(8) are not saved, such as the hashed fields (`ethtool -n IF rx-flow-hash`) and further RSS
//! contexts, which are unused without a rule. Rebinding a virtual function's driver resets all of them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use onload_core::onload::AF_XDP_FLOW_FILTERS;
use onload_lease::{SavedInterface, SavedQueues};
use onload_sys::error::{Context as _, Result as SysResult};
use onload_sys::ethtool::Ethtool;
use onload_sys::netlink::link::Link;
use rustix::io::Errno;

use crate::moves::netns::Netns;

const CLASS: &str = "/sys/class/net";
/// Attributes of the interface. The first two are always written, which also resets each of its NAPI instances: a
/// container can set those one by one (net/core/dev.h, `netdev_set_gro_flush_timeout`).
const INTERFACE_SETTINGS: [&str; 3] = ["gro_flush_timeout", "napi_defer_hard_irqs", "threaded"];
const ALWAYS_WRITTEN: [&str; 2] = ["gro_flush_timeout", "napi_defer_hard_irqs"];
/// Attributes of each queue (Documentation/networking/scaling.rst).
const QUEUES: &str = "queues";
const RX_QUEUE_SETTINGS: [&str; 2] = ["rps_cpus", "rps_flow_cnt"];
const TX_QUEUE_SETTINGS: [&str; 2] = ["xps_cpus", "xps_rxqs"];
/// Limits for a lease: bytes of text, and rules of 172 bytes each.
const MAX_TEXT: usize = 16 * 1024;
const MAX_RULES: u32 = 32;

struct InterfaceDir {
    dir: PathBuf,
    ethtool: Option<Ethtool>,
}

impl InterfaceDir {
    /// Returns `None` if this process does not see the interface, or sees another one by that name.
    fn open(netns: &Netns, link: &Link) -> Option<InterfaceDir> {
        let dir = Path::new(CLASS).join(std::str::from_utf8(&link.name).ok()?);
        let ifindex = read(&dir.join("ifindex"))?;
        (netns.is_own() && ifindex == link.index.to_string())
            .then(|| InterfaceDir { dir, ethtool: Ethtool::open(&link.name).ok().flatten() })
    }

    fn with_ethtool<T>(
        &self,
        operation: impl FnOnce(&Ethtool) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.ethtool.as_ref().map_or(Err(Errno::NODEV), operation)
    }

    fn ntuple_rules(&self) -> Result<Vec<Vec<u8>>, Errno> {
        self.with_ethtool(|ethtool| ethtool.ntuple_rules(MAX_RULES))
    }
}

/// Returns the settings for the lease, or `None` if the interface is not visible in sysfs.
pub(super) fn save_queues(netns: &Netns, link: &Link) -> Option<SavedQueues> {
    let interface_dir = InterfaceDir::open(netns, link)?;
    let mut unkept = Vec::new();
    let mut too_much = |what: &str| unkept.push(what.to_owned());
    let attributes = read_attributes(&interface_dir.dir);
    let has_room =
        attributes.iter().map(|(path, value)| path.len() + value.len()).sum::<usize>() <= MAX_TEXT;
    if !has_room {
        too_much(NAPI);
    }
    let (rss, rules) = (interface_dir.with_ethtool(Ethtool::rss), interface_dir.ntuple_rules());
    if rss == Err(Errno::TOOBIG) {
        too_much(RSS_LABEL);
    }
    if rules == Err(Errno::TOOBIG) {
        too_much(RULES);
    }
    Some(SavedQueues {
        attributes: has_room.then_some(attributes),
        channels: interface_dir.with_ethtool(Ethtool::channels).ok(),
        rss: rss.ok(),
        ntuple_rules: rules.ok(),
        unkept,
    })
}

/// Leaves an interface of the host one channel if Onload sets no flow filters by AF_XDP: a stack receives from one channel,
/// and without filters a connection whose packets come to another one is not accelerated. [`restore`] sets the number that
/// `saved` has; a driver that does not tell its channels keeps them.
pub(super) fn leave_one_channel(
    netns: &Netns,
    link: &Link,
    saved: &SavedInterface,
) -> SysResult<()> {
    let saved_channels = saved.queues.as_ref().and_then(|queues| queues.channels);
    let has_filters = read(Path::new(AF_XDP_FLOW_FILTERS)).is_none_or(|value| value != "0");
    let receives_by_several =
        saved_channels.is_some_and(|[receive, _, _, both]| receive.saturating_add(both) > 1);
    if has_filters || !receives_by_several {
        return Ok(());
    }
    let interface_dir = InterfaceDir::open(netns, link);
    interface_dir
        .map_or(Err(Errno::NODEV), |dir| dir.with_ethtool(Ethtool::set_one_channel))
        .with_context(|| {
            format!(
                "setting interface {} to one channel, which Onload needs for AF_XDP without flow \
                 filters; see \"ethtool -l\", or remove af-xdp from its section [netdev]",
                saved.name
            )
        })
}

/// Names of settings in messages.
const NAPI: &str = "its queues in sysfs (rps, xps, gro_flush_timeout)";
const CHANNELS: &str = "its channels";
const RSS_LABEL: &str = "its RSS settings";
const RULES: &str = "its ntuple rules";

/// The origin of an interface on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The interface that a container had.
    Container,
    /// A new one, which the driver created when it was bound again, without anything of a container.
    Driver,
}

/// Restores the channels and the attributes of an interface. Compares RSS and ntuple rules if a container had it: they are
/// not restored. Returns the names of the settings that differ.
pub(super) fn restore(
    netns: &Netns,
    link: &Link,
    saved: &SavedInterface,
    origin: Origin,
) -> Vec<String> {
    let Some(queues) = &saved.queues else {
        return Vec::new();
    };
    let Some(interface_dir) = InterfaceDir::open(netns, link) else {
        return vec!["the settings of its queues".to_owned()];
    };
    let mut differences = Vec::new();
    // Channels come first: their number determines the size of the table and the queues.
    if queues.channels.is_some_and(|channels| !restore_channels(&interface_dir, channels)) {
        differences.push(CHANNELS.to_owned());
    }
    if origin == Origin::Container {
        let rss = interface_dir.with_ethtool(Ethtool::rss);
        if queues.rss.as_ref().is_some_and(|saved| rss.as_ref() != Ok(saved)) {
            differences.push(RSS_LABEL.to_owned());
        }
        let rules = interface_dir.ntuple_rules();
        if queues.ntuple_rules.as_ref().is_some_and(|saved| rules.as_ref() != Ok(saved)) {
            differences.push(RULES.to_owned());
        }
    }
    if let Some(attributes) = &queues.attributes {
        differences.extend(restore_attributes(&interface_dir.dir, attributes));
    }
    differences
}

fn restore_channels(interface_dir: &InterfaceDir, saved: [u32; 4]) -> bool {
    let is_so = || interface_dir.with_ethtool(Ethtool::channels) == Ok(saved);
    is_so() || interface_dir.with_ethtool(|ethtool| ethtool.set_channels(saved)).is_ok() && is_so()
}

/// Reads the attributes in an interface's directory, except all-zero attributes of queues.
fn read_attributes(dir: &Path) -> BTreeMap<String, String> {
    let mut attributes = BTreeMap::new();
    for name in INTERFACE_SETTINGS {
        attributes.extend(read(&dir.join(name)).map(|value| (name.to_owned(), value)));
    }
    let queues = fs::read_dir(dir.join(QUEUES)).into_iter().flatten();
    for queue in queues.flatten() {
        let queue = queue.file_name().to_string_lossy().into_owned();
        let names = match queue.as_bytes() {
            [b'r', ..] => RX_QUEUE_SETTINGS,
            _ => TX_QUEUE_SETTINGS,
        };
        for name in names {
            let path = format!("{QUEUES}/{queue}/{name}");
            let value = read(&dir.join(&path)).filter(|value| !is_zero(value));
            attributes.extend(value.map(|value| (path, value)));
        }
    }
    attributes
}

/// Writes the attributes that differ. Returns the names of those that still differ.
fn restore_attributes(dir: &Path, saved: &BTreeMap<String, String>) -> Vec<String> {
    let now = read_attributes(dir);
    for (path, value) in saved {
        let is_always = ALWAYS_WRITTEN.contains(&path.as_str());
        if is_always || now.get(path) != Some(value) {
            write(&dir.join(path), value);
        }
    }
    for path in now.keys().filter(|path| !saved.contains_key(*path)) {
        write(&dir.join(path), "0");
    }
    let now = read_attributes(dir);
    let differing =
        saved.keys().chain(now.keys()).filter(|path| now.get(*path) != saved.get(*path));
    let name = |path: &String| {
        let name = path.rsplit('/').next().unwrap_or_default();
        format!("its {name}")
    };
    let mut names: Vec<String> = differing.map(name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Returns whether the value is an empty set of CPUs or queues, or 0.
fn is_zero(value: &str) -> bool {
    value.bytes().all(|byte| matches!(byte, b'0' | b','))
}

/// Returns the text of a small file without its line end.
pub(super) fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim_end().to_owned())
}

/// Ignores failures, since the attribute is compared afterwards.
fn write(path: &Path, value: &str) {
    let file = fs::OpenOptions::new().write(true).truncate(true).open(path);
    let _ = file.and_then(|mut file| file.write_all(value.as_bytes()));
}

#[cfg(test)]
mod tests {
    use onload_test_tree::Tree;
    use onload_test_tree::network::{self, Child};

    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let tree = Tree::new();
        tree.attributes("/", files);
        tree
    }

    const HOST: [(&str, &str); 8] = [
        ("gro_flush_timeout", "20000"),
        ("napi_defer_hard_irqs", "0"),
        ("threaded", "0"),
        ("queues/rx-0/rps_cpus", "00000000,00000000"),
        ("queues/rx-1/rps_cpus", "f"),
        ("queues/rx-1/rps_flow_cnt", "0"),
        ("queues/tx-0/xps_cpus", "1"),
        ("queues/tx-0/xps_rxqs", "0"),
    ];

    #[test]
    fn attributes_are_kept_and_written_back_where_a_container_changed_them() {
        let dir = tree(&HOST);
        let was = read_attributes(dir.root());
        let kept: Vec<&str> = was.keys().map(String::as_str).collect();
        let wanted = [
            "gro_flush_timeout",
            "napi_defer_hard_irqs",
            "queues/rx-1/rps_cpus",
            "queues/tx-0/xps_cpus",
            "threaded",
        ];
        assert_eq!(kept, wanted);
        assert_eq!(restore_attributes(dir.root(), &was), [""; 0]);
        let theirs = [
            ("gro_flush_timeout", "7"),
            ("threaded", "1"),
            ("queues/rx-0/rps_cpus", "3"),
            ("queues/rx-1/rps_cpus", "0"),
            ("queues/rx-1/rps_flow_cnt", "32"),
            ("queues/tx-0/xps_cpus", "2"),
            ("queues/tx-0/xps_rxqs", "1"),
        ];
        for (path, value) in theirs {
            fs::write(dir.path(path), value).unwrap();
        }
        assert_eq!(restore_attributes(dir.root(), &was), [""; 0]);
        assert_eq!(read_attributes(dir.root()), was);
    }

    #[test]
    fn what_cannot_be_written_back_is_named_once() {
        let dir = tree(&HOST);
        let was = read_attributes(dir.root());
        dir.remove("queues/tx-0");
        dir.remove("threaded");
        let more = [("a/rps_cpus", "1"), ("b/rps_cpus", "1")];
        let mut more_than_was = was.clone();
        more_than_was.extend(more.map(|(path, value)| (path.to_owned(), value.to_owned())));
        let left = restore_attributes(dir.root(), &more_than_was);
        assert_eq!(left, ["its rps_cpus", "its threaded", "its xps_cpus"]);
    }

    /// A pair has channels, and neither RSS nor rules.
    #[test]
    fn channels_are_restored_and_what_a_driver_does_not_have_is_not_looked_for() {
        if !network::can_be("changing interfaces") {
            return;
        }
        let child = Child::of_root();
        child.ip("link add d0 numrxqueues 4 numtxqueues 4 type veth peer name d1");
        child.within(|| {
            let place =
                InterfaceDir { dir: PathBuf::new(), ethtool: Ethtool::open(b"d0").unwrap() };
            let was = place.with_ethtool(Ethtool::channels).unwrap();
            assert_eq!(was, [4, 4, 0, 0]);
            place.with_ethtool(|ethtool| ethtool.set_channels([2, 2, 0, 0])).unwrap();
            assert_eq!(place.with_ethtool(Ethtool::channels), Ok([2, 2, 0, 0]));
            assert!(restore_channels(&place, was));
            assert_eq!(place.with_ethtool(Ethtool::channels), Ok(was));
            assert!(!restore_channels(&place, [0, 0, 0, 9]));
            assert_eq!(place.with_ethtool(Ethtool::rss), Err(Errno::OPNOTSUPP));
            assert_eq!(place.ntuple_rules(), Err(Errno::OPNOTSUPP));
        });
        assert!(Ethtool::open(b"a-name-of-16-byte").unwrap().is_none());
    }
}
