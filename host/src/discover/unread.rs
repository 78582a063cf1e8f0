//! What of a host could not be read, and which classes it would have decided: unreadable is not
//! absent, so what depends on it is not known.

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
    Class::Ptp,
    Class::Pps,
];

/// A path that is there, or may be there, and could not be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Unread {
    /// Where it is, as people find it.
    pub path: PathBuf,
    /// The classes that are not decided without it, sorted.
    #[serde(serialize_with = "class_names")]
    pub kinds: Vec<Class>,
    /// What was being done and what the system says.
    pub reason: String,
}

fn class_names<S: Serializer>(classes: &[Class], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(classes.iter().map(|class| class.as_str()))
}
