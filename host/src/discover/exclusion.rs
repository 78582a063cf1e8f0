//! Devices that were found but are not offered, with the reason.

use std::fmt;

use onload_core::class::Class;
use onload_sys::error::written_as_text;
use onload_sys::pci::PciAddress;
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Exclusion {
    pub kind: ExclusionSubject,
    /// Its name: an interface, a PCI address, a tool, a profile.
    pub name: String,
    /// The reason, and after the last semicolon the remedy, or that there is none.
    pub reason: String,
    /// Its PCI function, if it is known and not part of the name.
    #[serde(skip)]
    pub pci: Option<PciAddress>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(into = "String")]
pub enum ExclusionSubject {
    Device(Class),
    /// A program that belongs to a class.
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

written_as_text!(ExclusionSubject);

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
