//! Paths that could not be read on a host. Unreadable is not absent: everything that depends on them is unknown.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::LazyLock;

use onload_core::class::Class;
use rustix::process::geteuid;
use serde::Serialize;

pub(crate) static ONLOAD: LazyLock<Vec<Class>> =
    LazyLock::new(|| matching_classes(|class| class.is_onload() || class == Class::Profile));
/// The classes that depend on an interface's NIC.
pub(crate) static NICS: LazyLock<Vec<Class>> = LazyLock::new(|| matching_classes(Class::is_onload));
/// The classes whose devices are interfaces, or are named, selected or offered by interfaces on the same function.
pub(crate) static INTERFACES: LazyLock<Vec<Class>> =
    LazyLock::new(|| matching_classes(|class| class.can_be_on_function() && class != Class::Vfio));
pub(crate) static PCI: LazyLock<Vec<Class>> =
    LazyLock::new(|| matching_classes(Class::can_be_on_function));

fn matching_classes(matches: impl Fn(Class) -> bool) -> Vec<Class> {
    Class::ALL.into_iter().filter(|class| matches(*class)).collect()
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct UnreadEntry {
    /// The path as the user sees it.
    pub path: PathBuf,
    /// The classes that are undecided without it.
    pub kinds: BTreeSet<Class>,
    pub reason: String,
    /// The remedy, as the end of a line. Empty if the reason contains it or no remedy is known.
    #[serde(skip)]
    pub advice: &'static str,
}

impl fmt::Display for UnreadEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.reason, self.advice)
    }
}

/// Returns one remedy for several entries.
pub fn advice<'a>(unread: impl IntoIterator<Item = &'a UnreadEntry>) -> &'static str {
    let mut all = unread.into_iter().map(|one| one.advice);
    all.find(|advice| !advice.is_empty()).unwrap_or_default()
}

/// Returns the end of a message about a denied access, which is empty for root.
pub fn as_root() -> &'static str {
    if geteuid().is_root() { "" } else { "; run as root" }
}
