//! Reads files for discovery. An absent file is a valid result. An unreadable file becomes a warning and gives no
//! value, so that one bad attribute never hides the rest of a host; it is also recorded with the classes that depend on
//! it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use onload_cdi::oci::HostNode;
use onload_core::class::Class;
use onload_sys::text::ErrorChain;

use crate::discover::exclusion::Exclusion;
use crate::discover::unread::{UnreadEntry, as_root};
use crate::host::{EntryKind, Host, HostError};

const DEV: &str = "/dev";

#[derive(Debug)]
pub struct Probe<'h> {
    host: &'h Host,
    device_dir: PathBuf,
    warnings: RefCell<BTreeSet<String>>,
    classes: Cell<&'static [Class]>,
    /// By path.
    unread: RefCell<BTreeMap<PathBuf, UnreadEntry>>,
    exclusions: RefCell<Vec<Exclusion>>,
}

impl<'h> Probe<'h> {
    pub(crate) fn new(host: &'h Host) -> Self {
        Probe {
            host,
            device_dir: PathBuf::from(DEV),
            warnings: RefCell::default(),
            classes: Cell::new(&[]),
            unread: RefCell::default(),
            exclusions: RefCell::default(),
        }
    }

    pub(crate) fn with_device_dir(self, device_dir: &Path) -> Self {
        Probe { device_dir: device_dir.to_owned(), ..self }
    }

    pub(crate) fn host(&self) -> &'h Host {
        self.host
    }

    pub(crate) fn warn(&self, warning: impl Into<String>) {
        self.warnings.borrow_mut().insert(warning.into());
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        self.warnings.borrow().iter().cloned().collect()
    }

    /// Records a device that is not offered.
    pub(crate) fn exclude(&self, exclusion: Exclusion) {
        self.exclusions.borrow_mut().push(exclusion);
    }

    pub(crate) fn not_offered(&self) -> Vec<Exclusion> {
        self.exclusions.borrow().clone()
    }

    /// Returns why the target of a link is not offered.
    pub(crate) fn dangling_reason(&self, link: &Path) -> String {
        match self.unread_reason(link) {
            Some(reason) => format!("not known: {reason}"),
            None => format!(
                "{} is a broken link: its driver is being removed or has failed; check the kernel \
                 log",
                link.display()
            ),
        }
    }

    /// Runs `read`, whose result these classes depend on. Reads for information only depend on none.
    pub(crate) fn with_classes<T>(&self, classes: &'static [Class], read: impl FnOnce() -> T) -> T {
        let outer = self.classes.replace(classes);
        let value = read();
        self.classes.set(outer);
        value
    }

    /// Records that these classes are undecided because a path or its descendants could not be read.
    pub(crate) fn mark_undecided(&self, path: impl AsRef<Path>, classes: &[Class]) {
        let path = self.host.outside_path(path.as_ref());
        let mut unread = self.unread.borrow_mut();
        for (_, missing) in unread.iter_mut().filter(|(unread, _)| unread.starts_with(&path)) {
            missing.kinds.extend(classes);
        }
    }

    /// Returns why a path or its descendants could not be read or parsed, and the remedy. `None` if there was no
    /// failure.
    pub(crate) fn unread_reason(&self, path: impl AsRef<Path>) -> Option<String> {
        let path = self.host.outside_path(path.as_ref());
        let unread = self.unread.borrow();
        let mut below = unread.iter().filter(|(unread, _)| unread.starts_with(&path));
        below.next().map(|(_, missing)| missing.to_string())
    }

    /// Sorted by path.
    pub(crate) fn unread(&self) -> Vec<UnreadEntry> {
        let unread = self.unread.borrow();
        unread.values().filter(|missing| !missing.kinds.is_empty()).cloned().collect()
    }

    /// Returns the value, or `None` after recording a warning and the failed read.
    pub(crate) fn ok_or_warn<T>(&self, result: Result<Option<T>, HostError>) -> Option<T> {
        result.unwrap_or_else(|error| {
            let reason = ErrorChain(&error).to_string();
            if let Some(path) = error.unread_path() {
                let mut unread = self.unread.borrow_mut();
                let missing = unread.entry(path.to_owned()).or_default();
                missing.path = path.to_owned();
                missing.kinds.extend(self.classes.get());
                missing.reason.clone_from(&reason);
                missing.advice = if error.is_denied() { as_root() } else { "" };
            }
            self.warn(reason);
            None
        })
    }

    /// Reads a sysfs attribute without surrounding white space. An empty one counts as absent.
    pub(crate) fn attribute(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = self.ok_or_warn(self.host.attribute(path.as_ref()));
        text.filter(|text| !text.is_empty())
    }

    pub(crate) fn number<N: FromStr>(&self, path: impl AsRef<Path>) -> Option<N> {
        self.read_parsed(path, |text| text.parse().ok(), "a number")
    }

    /// Reads a hexadecimal number with or without `0x`.
    pub(crate) fn hex(&self, path: impl AsRef<Path>) -> Option<u32> {
        self.read_parsed(
            path,
            |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok(),
            "a hexadecimal number",
        )
    }

    pub(crate) fn read_parsed<T>(
        &self,
        path: impl AsRef<Path>,
        parse: impl FnOnce(&str) -> Option<T>,
        expected: &str,
    ) -> Option<T> {
        let text = self.attribute(path.as_ref())?;
        let value = parse(&text);
        if value.is_none() {
            let outside_path = self.host.outside_path(path.as_ref());
            let reason =
                format!("reading {}: expected {expected}, found {text:?}", outside_path.display());
            // It could be read, so no class is undecided.
            let mut unread = self.unread.borrow_mut();
            let missing = unread.entry(outside_path.clone()).or_default();
            missing.path = outside_path;
            missing.reason.clone_from(&reason);
            missing.advice = "; check that file";
            drop(unread);
            self.warn(reason);
        }
        value
    }

    pub(crate) fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let path = path.as_ref();
        let Some(listing) = self.ok_or_warn(self.host.list(path).map(Some)) else {
            return Vec::new();
        };
        for name in listing.not_text {
            let outside_path = self.host.outside_path(path);
            self.warn(format!(
                "listing {}: skipped the name {name:?}: not UTF-8",
                outside_path.display()
            ));
        }
        listing.names
    }

    pub(crate) fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        self.ok_or_warn(self.host.link_name(path.as_ref()))
    }

    pub(crate) fn resolve(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        self.ok_or_warn(self.host.resolve(path.as_ref()))
    }

    pub(crate) fn entry(&self, path: impl AsRef<Path>) -> Option<EntryKind> {
        self.ok_or_warn(self.host.entry(path.as_ref()))
    }

    /// Returns the device node with this path below /dev, in this host's directory of nodes.
    pub(crate) fn device_node(&self, path: impl AsRef<Path>) -> Option<HostNode> {
        self.ok_or_warn(self.host.device_node(&self.device_path(path)))
    }

    pub(crate) fn device_path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        let below = path.strip_prefix(DEV);
        below.map_or_else(|_| path.to_owned(), |below| self.device_dir.join(below))
    }
}
