//! A tree of everything that was read: files at their real paths, the links that lead to them, and
//! directory entries whose mere existence matters.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use onload_cdi::oci::HostNode;
use onload_core::config::CONFIG_PATH;
use onload_host::devices::inventory::Inventory;
use onload_host::discover::installation::MAX_LIBRARY_BYTES;
use onload_host::discover::onload::release_strings;
use onload_host::discover::pci;
use onload_host::discover::tcpdirect::CONTROL_PLANE;
use onload_host::host::RecordedPath;
use onload_host::host::{EntryKind, Host};
use onload_sys::fs::open::MAX_LINKS;

use super::filter::{self, Uuids, is_vpd};
use super::mask::Masker;
use super::stub::build_stub;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CapturedTree {
    pub entries: BTreeMap<PathBuf, CapturedEntry>,
    pub nodes: BTreeMap<PathBuf, HostNode>,
    /// Programs and libraries that are replaced by empty files.
    pub left_out: BTreeSet<PathBuf>,
}

impl CapturedTree {
    pub(crate) fn files(&self) -> usize {
        self.entries.values().filter(|entry| matches!(entry, CapturedEntry::File { .. })).count()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CapturedEntry {
    Directory,
    Link(PathBuf),
    File { content: Vec<u8>, executable: bool },
}

pub(crate) fn collect(
    host: &Host,
    recording: &BTreeMap<PathBuf, RecordedPath>,
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
    for (path, recorded) in recording {
        collector.add(path, recorded);
    }
    if let Some(config) = config.and_then(filter::filter_config) {
        collector.insert_file(Path::new(CONFIG_PATH), config.into_bytes(), false);
    }
    if is_masked { mask_tree(&collector.tree) } else { collector.tree }
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
    fn add(&mut self, path: &Path, recorded: &RecordedPath) {
        if let Some(node) = recorded.node {
            self.tree.nodes.insert(path.to_owned(), node);
        }
        let followed = recorded.entry.is_some() || recorded.content.is_some() || recorded.opened;
        if recorded.node.is_some() && !followed {
            return;
        }
        let Some(real_path) = self.walk(path, followed) else { return };
        match recorded.entry {
            Some(EntryKind::File { executable }) => {
                self.insert_file(&real_path, Vec::new(), executable);
            }
            // Other kinds of files are represented by a directory, since that is not a regular file either.
            Some(EntryKind::Directory | EntryKind::Other) => {
                self.insert(&real_path, CapturedEntry::Directory);
            }
            None => {}
        }
        if let Some(content) = &recorded.content {
            let filtered = filter::filter_content(path, content, self.is_masked);
            self.insert_file(&real_path, filtered, false);
        } else if recorded.opened {
            self.insert_stub(path, &real_path);
        }
        for name in &recorded.names {
            self.add_name(path, &real_path, name);
        }
    }

    /// Adds an entry of a directory below which nothing was read. It matters only in sysfs, where a
    /// link or directory is a device; attributes are read, or do not matter.
    fn add_name(&mut self, path: &Path, directory: &Path, name: &str) {
        let function = path.parent() == Some(Path::new(pci::DEVICES));
        let matters = path.starts_with("/sys")
            && !path.starts_with("/sys/devices/system")
            && (!function || pci::is_needed_entry(name));
        if !matters {
            return;
        }
        let child = directory.join(name);
        if self.walk(&child, false).is_none() {
            return;
        }
        if let Ok(Some(EntryKind::Directory)) = self.host.entry(&child) {
            self.insert(&child, CapturedEntry::Directory);
        }
    }

    /// Adds the links of a path to the tree and returns where it really leads. `None` if it ends in
    /// a link that must not be followed.
    fn walk(&mut self, path: &Path, follow_last: bool) -> Option<PathBuf> {
        // /proc/mounts is a link to the mounts of the process that reads it.
        if path.starts_with("/proc") {
            return Some(path.to_owned());
        }
        let mut pending: VecDeque<OsString> = path_names(path).collect();
        let mut real_path = PathBuf::from("/");
        let mut followed = 0;
        while let Some(part) = pending.pop_front() {
            if part == ".." {
                real_path.pop();
                continue;
            }
            let current = real_path.join(part);
            let Some(target) = self.link(&current) else {
                real_path = current;
                continue;
            };
            self.insert(&current, CapturedEntry::Link(relative_to(&real_path, &target)));
            if pending.is_empty() && !follow_last {
                return None;
            }
            followed += 1;
            if followed > MAX_LINKS {
                return None;
            }
            if target.is_absolute() {
                real_path = PathBuf::from("/");
            }
            for part in path_names(&target).rev() {
                pending.push_front(part);
            }
        }
        Some(real_path)
    }

    fn link(&mut self, path: &Path) -> Option<PathBuf> {
        if let Some(known) = self.links.get(path) {
            return known.clone();
        }
        let target = self.host.link(path).ok().flatten();
        self.links.insert(path.to_owned(), target.clone());
        target
    }

    fn insert(&mut self, path: &Path, entry: CapturedEntry) {
        for ancestor in path.ancestors().skip(1) {
            if ancestor.parent().is_some() {
                let vacant = self.tree.entries.entry(ancestor.to_owned());
                vacant.or_insert(CapturedEntry::Directory);
            }
        }
        if path.parent().is_some() {
            self.tree.entries.entry(path.to_owned()).or_insert(entry);
        }
    }

    fn insert_file(&mut self, path: &Path, new: Vec<u8>, is_executable: bool) {
        let empty = CapturedEntry::File { content: Vec::new(), executable: false };
        self.insert(path, empty);
        let entry = self.tree.entries.get_mut(path);
        if let Some(CapturedEntry::File { content, executable }) = entry {
            *executable |= is_executable;
            if content.is_empty() {
                *content = new;
            }
        }
    }

    fn insert_stub(&mut self, path: &Path, real_path: &Path) {
        if let Some(CapturedEntry::File { content, .. }) = self.tree.entries.get(real_path)
            && !content.is_empty()
        {
            return;
        }
        let original = self.host.bytes(path, MAX_LIBRARY_BYTES).ok().flatten().unwrap_or_default();
        let onload = self.inventory.onload.as_ref();
        let driver = onload.and_then(|onload| onload.version.as_deref());
        let checksum = onload.and_then(|onload| onload.interface_checksum.as_deref());
        let marks: Vec<&str> = checksum.into_iter().chain([CONTROL_PLANE]).collect();
        let stub = build_stub(&original, &release_strings(&original, driver, &marks));
        if stub.is_none() {
            self.tree.left_out.insert(real_path.to_owned());
        }
        self.insert_file(real_path, stub.unwrap_or_default(), false);
    }
}

/// The names of a path, without those that mean nothing.
fn path_names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
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
    let ups = path_names(target).take_while(|part| part == "..").count();
    let relative: PathBuf = if target.is_absolute() {
        let up = std::iter::repeat_n(OsString::from(".."), depth);
        up.chain(path_names(target).skip(ups)).collect()
    } else {
        path_names(target).skip(ups.saturating_sub(depth)).collect()
    };
    if relative.as_os_str().is_empty() { PathBuf::from(".") } else { relative }
}

/// The tree with its addresses masked. The content of programs and libraries does not identify the
/// machine.
fn mask_tree(tree: &CapturedTree) -> CapturedTree {
    let mut masker = Masker::default();
    let mut uuids = Uuids::default();
    for (path, entry) in &tree.entries {
        masker.collect(&path.to_string_lossy());
        match entry {
            CapturedEntry::Link(target) => masker.collect(&target.to_string_lossy()),
            CapturedEntry::File { content, .. } if is_vpd(path) => uuids.collect(content),
            CapturedEntry::File { content, .. } => {
                masker.collect(std::str::from_utf8(content).unwrap_or_default());
            }
            CapturedEntry::Directory => {}
        }
    }
    masker.assign_masks();
    CapturedTree {
        entries: tree
            .entries
            .iter()
            .map(|(path, entry)| {
                let vpd = is_vpd(path).then_some(&uuids);
                (masker.mask_path(path), mask_entry(&masker, vpd, entry))
            })
            .collect(),
        nodes: tree.nodes.iter().map(|(path, node)| (masker.mask_path(path), *node)).collect(),
        left_out: tree.left_out.iter().map(|path| masker.mask_path(path)).collect(),
    }
}

fn mask_entry(masker: &Masker, vpd: Option<&Uuids>, entry: &CapturedEntry) -> CapturedEntry {
    match entry {
        CapturedEntry::Directory => CapturedEntry::Directory,
        CapturedEntry::Link(target) => CapturedEntry::Link(masker.mask_path(target)),
        CapturedEntry::File { content, executable } => CapturedEntry::File {
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
