//! The device classes: the part of `onload.dev/<class>` that says what is requested.

use crate::error::{Error, Result, error};
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// The vendor of every onload.dev kind, and the prefix of every onload.dev annotation.
pub(crate) const VENDOR: &str = "onload.dev";

/// A class of devices that an onload.dev specification may describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub enum Class {
    /// Onload with its libraries, tools, profiles and the preload.
    Nic,
    /// Onload without the preload.
    NicPlain,
    /// Onload's device nodes only, for images that bring their own Onload.
    NicNodes,
    Zf,
    /// The settings of an installed Onload profile.
    Profile,
    Rdma,
    /// PCI functions bound to vfio.
    Vfio,
    /// A hugetlbfs of one page size.
    Hugepages,
    /// Network interfaces that move into a container.
    Netdev,
    Ptp,
    Pps,
    /// Devices of several classes under one name.
    Bundle,
}

impl Class {
    /// Every class, in display order.
    pub const ALL: [Class; 12] = [
        Class::Nic,
        Class::NicPlain,
        Class::NicNodes,
        Class::Zf,
        Class::Profile,
        Class::Rdma,
        Class::Vfio,
        Class::Hugepages,
        Class::Netdev,
        Class::Ptp,
        Class::Pps,
        Class::Bundle,
    ];

    /// The class as written in a kind, an annotation and a file name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Nic => "nic",
            Class::NicPlain => "nic-plain",
            Class::NicNodes => "nic-nodes",
            Class::Zf => "zf",
            Class::Profile => "profile",
            Class::Rdma => "rdma",
            Class::Vfio => "vfio",
            Class::Hugepages => "hugepages",
            Class::Netdev => "netdev",
            Class::Ptp => "ptp",
            Class::Pps => "pps",
            Class::Bundle => "bundle",
        }
    }

    /// The CDI kind of the class, `onload.dev/<class>`.
    #[must_use]
    pub fn kind(self) -> String {
        format!("{VENDOR}/{}", self.as_str())
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What to write: the class where the word is its kind.
fn remedy(word: &str) -> String {
    let is_kind = |class: &Class| class.kind() == word;
    match Class::ALL.into_iter().find(is_kind) {
        Some(class) => format!("write {class}"),
        None => format!("known are {}", list(&Class::ALL)),
    }
}

/// The classes as a comma-separated list for messages.
#[must_use]
pub(crate) fn list(classes: &[Class]) -> String {
    let names: Vec<&str> = classes.iter().map(|class| class.as_str()).collect();
    names.join(", ")
}

impl FromStr for Class {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self> {
        Class::ALL
            .into_iter()
            .find(|class| class.as_str() == word)
            .ok_or_else(|| error!("unknown class {word:?}; {}", remedy(word)))
    }
}

impl TryFrom<String> for Class {
    type Error = Error;

    fn try_from(word: String) -> Result<Self> {
        word.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_is_read_back_from_its_name() {
        for class in Class::ALL {
            assert_eq!(class.as_str().parse::<Class>(), Ok(class));
        }
    }

    #[test]
    fn a_word_that_is_no_class_is_refused_with_the_known_ones() {
        let kind = "onload.dev/nic".parse::<Class>().unwrap_err();
        assert_eq!(
            kind.to_string(),
            "unknown class \"onload.dev/nic\"; write nic"
        );
        let error = "NIC".parse::<Class>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown class \"NIC\"; known are nic, nic-plain, nic-nodes, zf, profile, rdma, vfio, hugepages, netdev, ptp, pps, bundle"
        );
    }
}
