//! What could not be read on a host. Unreadable is not absent: whatever depends on it is unknown.

use std::path::PathBuf;

use onload_core::class::Class;
use serde::{Serialize, Serializer};

pub const AS_ROOT: &str = "try as root";

pub(crate) const ONLOAD: &[Class] = &[
    Class::Nic,
    Class::NicPlain,
    Class::NicNodes,
    Class::Zf,
    Class::Profile,
];
pub(crate) const INTERFACES: &[Class] = &[Class::Nic, Class::NicPlain, Class::NicNodes, Class::Zf];
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
