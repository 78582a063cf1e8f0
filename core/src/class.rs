//! The device classes: the part of `onload.dev/<class>` that says what is requested.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

use crate::error::{Error, Result, bail, read_as_text};

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

    pub(crate) fn named(word: &str) -> Option<Class> {
        Class::ALL.into_iter().find(|class| class.as_str() == word)
    }

    /// The classes of a list that people write, sorted, each once; the word `all` stands for `all`.
    pub(crate) fn listed(
        words: &[String],
        all: &[Class],
        check: fn(Class) -> Result<Class>,
    ) -> Result<Vec<Class>> {
        let mut classes = Vec::new();
        for word in words {
            match word.trim() {
                "all" => classes.extend(all),
                word => classes.push(check(word.parse()?)?),
            }
        }
        classes.sort();
        classes.dedup();
        Ok(classes)
    }

    /// The CDI kind of the class, `onload.dev/<class>`.
    pub fn kind(self) -> String {
        format!("{VENDOR}/{}", self.as_str())
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

pub(crate) fn list() -> String {
    Class::ALL.map(Class::as_str).join(", ")
}

impl FromStr for Class {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self> {
        if let Some(class) = Class::named(word) {
            return Ok(class);
        }
        let kind = Class::ALL.into_iter().find(|class| class.kind() == word);
        match kind {
            Some(class) => bail!("unknown class {word:?}; write {class}"),
            None => bail!("unknown class {word:?}; known are {}", list()),
        }
    }
}

read_as_text!(Class);

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
