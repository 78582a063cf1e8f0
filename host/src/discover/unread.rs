//! What could not be read on a host. Unreadable is not absent: whatever depends on it is unknown.

use std::path::PathBuf;
use std::sync::LazyLock;

use onload_core::class::Class;
use rustix::process::geteuid;
use serde::{Serialize, Serializer};

pub(crate) static ONLOAD: LazyLock<Vec<Class>> =
    LazyLock::new(|| matching_classes(|class| class.is_onload() || class == Class::Profile));
/// The classes that an interface's own NIC decides.
pub(crate) static NICS: LazyLock<Vec<Class>> = LazyLock::new(|| matching_classes(Class::is_onload));
/// The classes whose devices are interfaces, or are named, chosen or offered by those on the same function.
pub(crate) static INTERFACES: LazyLock<Vec<Class>> =
    LazyLock::new(|| matching_classes(|class| class.can_be_on_function() && class != Class::Vfio));
pub(crate) static PCI: LazyLock<Vec<Class>> =
    LazyLock::new(|| matching_classes(Class::can_be_on_function));

fn matching_classes(matches: impl Fn(Class) -> bool) -> Vec<Class> {
    let all = Class::ALL.into_iter();
    all.filter(|class| matches(*class)).collect()
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct UnreadEntry {
    /// The path as the user would find it.
    pub path: PathBuf,
    /// The classes that are undecided without it, sorted.
    #[serde(serialize_with = "serialize_classes")]
    pub kinds: Vec<Class>,
    pub reason: String,
    /// What to do about it, as the end of a line; empty where the reason says it, or nothing helps.
    #[serde(skip)]
    pub advice: &'static str,
}

/// One advice for several.
pub fn advice<'a>(unread: impl IntoIterator<Item = &'a UnreadEntry>) -> &'static str {
    let mut all = unread.into_iter().map(|one| one.advice);
    all.find(|advice| !advice.is_empty()).unwrap_or_default()
}

/// The end of a line about what the system refuses. Root is not told to be root.
pub fn as_root() -> &'static str {
    if geteuid().is_root() { "" } else { "; run as root" }
}

fn serialize_classes<S: Serializer>(classes: &[Class], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(classes.iter().map(|class| class.as_str()))
}
