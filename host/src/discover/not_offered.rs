//! What was seen on a host and is not offered, with the reason.

use std::path::Path;

use onload_core::class::Class;
use serde::{Serialize, Serializer};

use crate::discover::probe::Probe;

/// Something that was seen and is not offered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NotOffered {
    /// The class under which it would be offered.
    #[serde(serialize_with = "class_name")]
    pub kind: Class,
    /// Its name: an interface, a PCI address, a tool, a profile.
    pub name: String,
    /// Why not, and what would change that.
    pub reason: String,
}

fn class_name<S: Serializer>(class: &Class, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(class.as_str())
}

impl NotOffered {
    /// Why what a class lists cannot be offered: its link there leads to nothing.
    #[must_use]
    pub(crate) fn dangling(probe: &Probe<'_>, link: &Path) -> String {
        match probe.why_unread(link) {
            Some(reason) => format!("not known: {reason}"),
            None => format!(
                "{} leads to nothing: its driver is going or has failed",
                link.display()
            ),
        }
    }

    /// Something that is not offered under that class.
    pub(crate) fn new(kind: Class, name: impl Into<String>, reason: impl Into<String>) -> Self {
        NotOffered {
            kind,
            name: name.into(),
            reason: reason.into(),
        }
    }
}
