//! What could not be read on a host, and which classes it would have decided. Unreadable is not
//! absent, so whatever depends on it is unknown.

use std::path::PathBuf;

use onload_core::class::Class;
use serde::{Serialize, Serializer};

/// What to do about what could not be read.
pub const AS_ROOT: &str = "try as root";

/// The classes that an Onload installation decides.
pub(crate) const ONLOAD: &[Class] = &[
    Class::Nic,
    Class::NicPlain,
    Class::NicNodes,
    Class::Zf,
    Class::Profile,
];
/// The classes of accelerated interfaces.
pub(crate) const INTERFACES: &[Class] = &[Class::Nic, Class::NicPlain, Class::NicNodes, Class::Zf];
/// The classes that PCI functions decide.
pub(crate) const PCI: &[Class] = &[
    Class::Nic,
    Class::NicPlain,
    Class::NicNodes,
    Class::Zf,
    Class::Rdma,
    Class::Vfio,
    Class::Netdev,
    Class::Ptp,
    Class::Pps,
];

/// A path that exists, or may exist, and could not be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Unread {
    /// The path as the user would find it.
    pub path: PathBuf,
    /// The classes that are undecided without it, sorted.
    #[serde(serialize_with = "class_names")]
    pub kinds: Vec<Class>,
    /// What was being done, and the system's error.
    pub reason: String,
}

fn class_names<S: Serializer>(classes: &[Class], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(classes.iter().map(|class| class.as_str()))
}
