//! Reading for discovery: what is absent is a value, what is unreadable becomes a warning and
//! then counts as absent, so that one bad attribute never hides the rest of a host.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use onload_core::text::Chain;

use crate::host::{DeviceNode, EntryKind, Host, HostError};

/// Where the kernel and udev put device nodes.
const DEV: &str = "/dev";

/// A host together with the warnings that looking at it gave.
#[derive(Debug)]
pub struct Probe<'h> {
    host: &'h Host,
    device_dir: PathBuf,
    warnings: RefCell<BTreeSet<String>>,
}

impl<'h> Probe<'h> {
    /// Starts to look at a host whose device nodes are in /dev.
    #[must_use]
    pub(crate) fn new(host: &'h Host) -> Self {
        Probe {
            host,
            device_dir: PathBuf::from(DEV),
            warnings: RefCell::default(),
        }
    }

    /// The same, with the device nodes in another directory.
    #[must_use]
    pub(crate) fn with_device_dir(self, device_dir: &Path) -> Self {
        Probe {
            device_dir: device_dir.to_owned(),
            ..self
        }
    }

    /// The host itself.
    #[must_use]
    pub(crate) fn host(&self) -> &'h Host {
        self.host
    }

    /// Notes what people should know and what stops nothing.
    pub(crate) fn warn(&self, warning: impl Into<String>) {
        self.warnings.borrow_mut().insert(warning.into());
    }

    /// The warnings so far, sorted, each once.
    #[must_use]
    pub(crate) fn into_warnings(self) -> Vec<String> {
        self.warnings.into_inner().into_iter().collect()
    }

    /// The value, or none and a warning.
    pub(crate) fn or_warn<T>(&self, result: Result<Option<T>, HostError>) -> Option<T> {
        result.unwrap_or_else(|error| {
            self.warn(Chain(&error).to_string());
            None
        })
    }

    /// A sysfs attribute without the white space around it; an empty one is none.
    pub(crate) fn attribute(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = self.or_warn(self.host.attribute(path.as_ref()));
        text.filter(|text| !text.is_empty())
    }

    /// An attribute that holds a number in decimal digits; a warning if it holds anything else.
    pub(crate) fn number<N: FromStr>(&self, path: impl AsRef<Path>) -> Option<N> {
        self.parsed(path, |text| text.parse().ok(), "a number")
    }

    /// An attribute that holds a number in hexadecimal digits with or without `0x`.
    pub(crate) fn hex(&self, path: impl AsRef<Path>) -> Option<u32> {
        let hex = |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        self.parsed(path, hex, "a hexadecimal number")
    }

    /// An attribute that a parser understands; a warning that names what was expected if not.
    pub(crate) fn parsed<T>(
        &self,
        path: impl AsRef<Path>,
        parse: impl FnOnce(&str) -> Option<T>,
        expected: &str,
    ) -> Option<T> {
        let text = self.attribute(path.as_ref())?;
        let value = parse(&text);
        if value.is_none() {
            let shown = self.host.outside_path(path.as_ref());
            self.warn(format!(
                "reading {}: expected {expected}, found {text:?}",
                shown.display()
            ));
        }
        value
    }

    /// The names in a directory, sorted; a warning for each that is not text.
    pub(crate) fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let path = path.as_ref();
        let Some(listing) = self.or_warn(self.host.list(path).map(Some)) else {
            return Vec::new();
        };
        for name in listing.not_text {
            let shown = self.host.outside_path(path);
            self.warn(format!(
                "listing {}: skipped the name {name:?}: not UTF-8",
                shown.display()
            ));
        }
        listing.names
    }

    /// The last component of what a link says.
    pub(crate) fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        self.or_warn(self.host.link_name(path.as_ref()))
    }

    /// Where a path leads when every link on it is followed.
    pub(crate) fn resolve(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        self.or_warn(self.host.resolve(path.as_ref()))
    }

    /// What a path leads to.
    pub(crate) fn entry(&self, path: impl AsRef<Path>) -> Option<EntryKind> {
        self.or_warn(self.host.entry(path.as_ref()))
    }

    /// The device node that is called so below /dev, wherever this host has its nodes.
    pub(crate) fn device_node(&self, path: impl AsRef<Path>) -> Option<DeviceNode> {
        let path = path.as_ref();
        let place = path
            .strip_prefix(DEV)
            .map(|below| self.device_dir.join(below));
        self.or_warn(self.host.device_node(place.as_deref().unwrap_or(path)))
    }
}
