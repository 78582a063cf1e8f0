//! What could not be read on a host. Unreadable is not absent: whatever depends on it is unknown.

use std::path::PathBuf;
use std::sync::LazyLock;

use onload_core::class::Class;
use serde::{Serialize, Serializer};

pub const AS_ROOT: &str = "try as root";

pub(crate) static ONLOAD: LazyLock<Vec<Class>> =
    LazyLock::new(|| classes(|class| class.is_onload() || class == Class::Profile));
pub(crate) static INTERFACES: LazyLock<Vec<Class>> = LazyLock::new(|| classes(Class::is_onload));
pub(crate) static PCI: LazyLock<Vec<Class>> = LazyLock::new(|| classes(Class::is_on_functions));

fn classes(are: impl Fn(Class) -> bool) -> Vec<Class> {
    let all = Class::ALL.into_iter();
    all.filter(|class| are(*class)).collect()
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Unread {
    /// The path as the user would find it.
    pub path: PathBuf,
    /// The classes that are undecided without it, sorted.
    #[serde(serialize_with = "class_names")]
    pub kinds: Vec<Class>,
    pub reason: String,
}

fn class_names<S: Serializer>(classes: &[Class], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(classes.iter().map(|class| class.as_str()))
}
