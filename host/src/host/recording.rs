//! What was looked at on a host, path by path, with what it gave: the material of a capture. That
//! something was not there need not be noted, since a tree shows it by not having it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::entry::{DeviceNode, EntryKind};

/// What a path of the host gave, as far as it was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// What the path leads to when links are followed; none where only the link itself was read.
    pub entry: Option<EntryKind>,
    /// The content of a text; empty where the kernel had no value.
    pub content: Option<Vec<u8>>,
    /// It was opened as a program or library, whose content is not kept.
    pub opened: bool,
    /// The names in a directory.
    pub names: Vec<String>,
    /// A device node.
    pub node: Option<DeviceNode>,
}

/// Every path that was looked at, sorted.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    seen: RefCell<BTreeMap<PathBuf, Seen>>,
}

impl Recording {
    /// Adds what a path gave.
    pub(crate) fn note(&self, path: &Path, add: impl FnOnce(&mut Seen)) {
        add(self.seen.borrow_mut().entry(path.to_owned()).or_default());
    }

    /// All of it.
    #[must_use]
    pub(crate) fn into_seen(self) -> BTreeMap<PathBuf, Seen> {
        self.seen.into_inner()
    }
}
