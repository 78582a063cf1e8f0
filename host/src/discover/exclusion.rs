//! What was seen on a host and is not offered, with the reason.

use std::fmt;

use onload_core::class::Class;
use onload_sys::pci::PciAddress;
use serde::{Serialize, Serializer};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Exclusion {
    pub kind: ExclusionSubject,
    /// Its name: an interface, a PCI address, a tool, a profile.
    pub name: String,
    /// Why not; then, behind the last semicolon, what would change that, or that nothing would.
    pub reason: String,
    /// The PCI function that it is on, where that is known and the name does not say it.
    #[serde(skip)]
    pub pci: Option<PciAddress>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExclusionSubject {
    Device(Class),
    /// A program beside the devices of a class.
    Tool,
}

impl fmt::Display for ExclusionSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExclusionSubject::Device(class) => f.write_str(class.as_str()),
            ExclusionSubject::Tool => f.write_str("tool"),
        }
    }
}

impl Serialize for ExclusionSubject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl From<Class> for ExclusionSubject {
    fn from(class: Class) -> Self {
        ExclusionSubject::Device(class)
    }
}

impl Exclusion {
    pub(crate) fn with_pci(self, pci: Option<PciAddress>) -> Self {
        Exclusion { pci, ..self }
    }

    pub fn new(
        kind: impl Into<ExclusionSubject>,
        name: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Exclusion { kind: kind.into(), name: name.into(), reason: reason.into(), pci: None }
    }
}
