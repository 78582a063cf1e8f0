//! A tree of everything that was read: files at their real paths, the links that lead to them, and
//! directory entries whose mere existence matters.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use onload_core::config::CONFIG_PATH;
use onload_host::devices::inventory::Inventory;
use onload_host::discover::onload::release_strings;
use onload_host::discover::pci;
use onload_host::discover::program::LIBRARY_LIMIT;
use onload_host::discover::tcpdirect::CONTROL_PLANE;
use onload_host::host::recording::RecordedPath;
use onload_host::host::{EntryKind, Host, NodeEntry};
use onload_sys::fs::open::MAX_LINKS;

use super::filter;
use super::mask::Masker;
use super::standin::stand_in;
use super::vpd::{Uuids, is_vpd};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CapturedTree {
    pub entries: BTreeMap<PathBuf, Entry>,
    pub nodes: BTreeMap<PathBuf, NodeEntry>,
    /// Programs and libraries without a stand-in, which are replaced by empty files.
    pub left_out: BTreeSet<PathBuf>,
}

impl CapturedTree {
    pub(crate) fn files(&self) -> usize {
        let files = self.entries.values();
        files.filter(|entry| matches!(entry, Entry::File { .. })).count()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Directory,
    Link(PathBuf),
    File { content: Vec<u8>, executable: bool },
}

pub(crate) fn collect(
    host: &Host,
    seen: &BTreeMap<PathBuf, RecordedPath>,
    inventory: &Inventory,
    config: Option<&str>,
    is_masked: bool,
) -> CapturedTree {
    let mut collector = Collector {
        host,
        inventory,
        is_masked,
        links: BTreeMap::new(),
        tree: CapturedTree::default(),
    };
    for (path, seen) in seen {
        collector.add(path, seen);
    }
    if let Some(config) = config.and_then(filter::config) {
        collector.put_file(Path::new(CONFIG_PATH), config.into_bytes(), false);
    }
    if is_masked { masked(&collector.tree) } else { collector.tree }
}

struct Collector<'s> {
    host: &'s Host,
    inventory: &'s Inventory,
    is_masked: bool,
    /// The target of the link at a path without links above it, if it is one.
    links: BTreeMap<PathBuf, Option<PathBuf>>,
    tree: CapturedTree,
}

impl Collector<'_> {
    fn add(&mut self, path: &Path, seen: &RecordedPath) {
        if let Some(node) = seen.node {
            self.tree.nodes.insert(path.to_owned(), node);
        }
        let followed = seen.entry.is_some() || seen.content.is_some() || seen.opened;
        if seen.node.is_some() && !followed {
            return;
        }
        let Some(place) = self.walk(path, followed) else {
            return;
        };
        match seen.entry {
            Some(EntryKind::File { executable }) => self.put_file(&place, Vec::new(), executable),
            // What is neither a file nor a directory is represented by a directory, since that is
            // not a file either.
            Some(EntryKind::Directory | EntryKind::Other) => self.put(&place, Entry::Directory),
            None => {}
        }
        if let Some(content) = &seen.content {
            let kept = filter::content(path, content, self.is_masked);
            self.put_file(&place, kept, false);
        } else if seen.opened {
            self.put_stand_in(path, &place);
        }
        for name in &seen.names {
            self.add_name(path, &place, name);
        }
    }

    /// Adds an entry of a directory below which nothing was read. It matters only in sysfs, where a
    /// link or directory is a device; attributes are read, or do not matter.
    fn add_name(&mut self, path: &Path, place: &Path, name: &str) {
        let function = path.parent() == Some(Path::new(pci::DEVICES));
        let matters = path.starts_with("/sys")
            && !path.starts_with("/sys/devices/system")
            && (!function || pci::is_needed_entry(name));
        if !matters {
            return;
        }
        let child = place.join(name);
        if self.walk(&child, false).is_none() {
            return;
        }
        if let Ok(Some(EntryKind::Directory)) = self.host.entry(&child) {
            self.put(&child, Entry::Directory);
        }
    }

    /// Adds the links of a path to the tree and returns where it really leads. `None` if it ends in
    /// a link that must not be followed.
    fn walk(&mut self, path: &Path, follow_last: bool) -> Option<PathBuf> {
        // /proc/mounts is a link to the mounts of the process that reads it.
        if path.starts_with("/proc") {
            return Some(path.to_owned());
        }
        let mut ahead: VecDeque<OsString> = parts(path).collect();
        let mut place = PathBuf::from("/");
        let mut followed = 0;
        while let Some(part) = ahead.pop_front() {
            if part == ".." {
                place.pop();
                continue;
            }
            let here = place.join(part);
            let Some(target) = self.link(&here) else {
                place = here;
                continue;
            };
            self.put(&here, Entry::Link(relative_to(&place, &target)));
            if ahead.is_empty() && !follow_last {
                return None;
            }
            followed += 1;
            if followed > MAX_LINKS {
                return None;
            }
            if target.is_absolute() {
                place = PathBuf::from("/");
            }
            for part in parts(&target).rev() {
                ahead.push_front(part);
            }
        }
        Some(place)
    }

    fn link(&mut self, place: &Path) -> Option<PathBuf> {
        if let Some(known) = self.links.get(place) {
            return known.clone();
        }
        let target = self.host.link(place).ok().flatten();
        self.links.insert(place.to_owned(), target.clone());
        target
    }

    fn put(&mut self, place: &Path, entry: Entry) {
        for above in place.ancestors().skip(1) {
            if above.parent().is_some() {
                let vacant = self.tree.entries.entry(above.to_owned());
                vacant.or_insert(Entry::Directory);
            }
        }
        if place.parent().is_some() {
            self.tree.entries.entry(place.to_owned()).or_insert(entry);
        }
    }

    fn put_file(&mut self, place: &Path, new: Vec<u8>, is_executable: bool) {
        let empty = Entry::File { content: Vec::new(), executable: false };
        self.put(place, empty);
        let entry = self.tree.entries.get_mut(place);
        if let Some(Entry::File { content, executable }) = entry {
            *executable |= is_executable;
            if content.is_empty() {
                *content = new;
            }
        }
    }

    fn put_stand_in(&mut self, path: &Path, place: &Path) {
        let filled =
            |entry: &Entry| matches!(entry, Entry::File { content, .. } if !content.is_empty());
        if self.tree.entries.get(place).is_some_and(filled) {
            return;
        }
        let original = self.host.bytes(path, LIBRARY_LIMIT).ok().flatten();
        let original = original.unwrap_or_default();
        let onload = self.inventory.onload.as_ref();
        let driver = onload.and_then(|onload| onload.version.as_deref());
        let checksum = onload.and_then(|onload| onload.interface_checksum.as_deref());
        let marks: Vec<&str> = checksum.into_iter().chain([CONTROL_PLANE]).collect();
        let made = stand_in(&original, &release_strings(&original, driver, &marks));
        if made.is_none() {
            self.tree.left_out.insert(place.to_owned());
        }
        self.put_file(place, made.unwrap_or_default(), false);
    }
}

/// The names of a path, without those that mean nothing.
fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        _ => None,
    })
}

/// The target of an equivalent link in `directory` that stays in the unpacked tree: an absolute one
/// becomes relative, and none goes above the root.
fn relative_to(directory: &Path, target: &Path) -> PathBuf {
    let depth = directory.components().count().saturating_sub(1);
    let ups = parts(target).take_while(|part| part == "..").count();
    let relative: PathBuf = if target.is_absolute() {
        let up = std::iter::repeat_n(OsString::from(".."), depth);
        up.chain(parts(target).skip(ups)).collect()
    } else {
        parts(target).skip(ups.saturating_sub(depth)).collect()
    };
    if relative.as_os_str().is_empty() { PathBuf::from(".") } else { relative }
}

/// The tree with its addresses masked. The content of programs and libraries does not identify the
/// machine.
fn masked(tree: &CapturedTree) -> CapturedTree {
    let mut masker = Masker::default();
    let mut uuids = Uuids::default();
    for (path, entry) in &tree.entries {
        masker.notice(&path.to_string_lossy());
        match entry {
            Entry::Link(target) => masker.notice(&target.to_string_lossy()),
            Entry::File { content, .. } if is_vpd(path) => uuids.notice(content),
            Entry::File { content, .. } => {
                masker.notice(std::str::from_utf8(content).unwrap_or_default());
            }
            Entry::Directory => {}
        }
    }
    masker.settle();
    let entries = tree.entries.iter();
    let nodes = tree.nodes.iter();
    let left_out = tree.left_out.iter();
    CapturedTree {
        entries: entries
            .map(|(path, entry)| {
                let vpd = is_vpd(path).then_some(&uuids);
                (masker.mask_path(path), masked_entry(&masker, vpd, entry))
            })
            .collect(),
        nodes: nodes.map(|(path, node)| (masker.mask_path(path), *node)).collect(),
        left_out: left_out.map(|path| masker.mask_path(path)).collect(),
    }
}

fn masked_entry(masker: &Masker, vpd: Option<&Uuids>, entry: &Entry) -> Entry {
    match entry {
        Entry::Directory => Entry::Directory,
        Entry::Link(target) => Entry::Link(masker.mask_path(target)),
        Entry::File { content, executable } => Entry::File {
            content: match (vpd, std::str::from_utf8(content)) {
                (Some(uuids), _) => uuids.mask(content),
                (None, Ok(text)) => masker.mask(text).into_bytes(),
                (None, Err(_)) => content.clone(),
            },
            executable: *executable,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_says_the_same_and_stays_in_the_tree() {
        let cases = [
            ("/", "usr/lib", "usr/lib"),
            ("/", "/usr/lib", "usr/lib"),
            ("/var", "/run", "../run"),
            ("/usr/lib", "libonload.so.1", "libonload.so.1"),
            ("/usr/lib", "/opt/lib/a", "../../opt/lib/a"),
            ("/sys/class/net", "../../devices/x", "../../devices/x"),
            ("/a", "../../../b", "../b"),
            ("/", "../b", "b"),
            ("/a", "/", ".."),
            ("/", "/", "."),
            ("/a", "/../b", "../b"),
        ];
        for (directory, target, wanted) in cases {
            let made = relative_to(Path::new(directory), Path::new(target));
            assert_eq!(made, Path::new(wanted), "{directory} {target}");
        }
    }
}
