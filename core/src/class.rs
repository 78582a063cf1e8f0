//! The device classes: the part of `onload.dev/<class>` that says what is requested.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use strsim::damerau_levenshtein;

use onload_sys::error::{Error, Result, bail, read_as_text, written_as_text};

/// The vendor of every onload.dev kind, and the prefix of every onload.dev annotation.
pub(crate) const VENDOR: &str = "onload.dev";

/// A class of devices. Its methods describe how classes differ, so that few other files name a
/// class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Class {
    /// Onload with its libraries, tools, profiles and the preload.
    Nic,
    /// Onload without the preload.
    NicPlain,
    /// Only Onload's device nodes, for images with their own Onload.
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
    /// NVIDIA's GDRCopy, which maps GPU memory into the address space of programs.
    Gdrcopy,
    /// Devices of several classes under one name.
    Bundle,
}

impl Class {
    /// Every class, in display order.
    pub const ALL: [Class; 13] = [
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
        Class::Gdrcopy,
        Class::Bundle,
    ];

    /// The classes that provide Onload or TCPDirect. Through their nodes, the host's user 0 in a
    /// container can access every Onload stack of the host (onload
    /// `efab_thr_user_can_access_stack`).
    pub const ONLOAD: [Class; 4] = [Class::Nic, Class::NicPlain, Class::NicNodes, Class::Zf];

    /// The classes whose devices pin memory beyond the usual RLIMIT_MEMLOCK.
    pub const PINNING: [Class; 2] = [Class::Rdma, Class::Vfio];

    /// The classes whose devices may be virtual functions that are set up for one container at a
    /// time.
    pub const FUNCTION_CLASSES: [Class; 2] = [Class::Netdev, Class::Vfio];

    /// Returns the class as written in a kind, an annotation and a file name.
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
            Class::Gdrcopy => "gdrcopy",
            Class::Bundle => "bundle",
        }
    }

    pub fn is_onload(self) -> bool {
        Class::ONLOAD.contains(&self)
    }

    pub fn pins_memory(self) -> bool {
        Class::PINNING.contains(&self)
    }

    /// Returns whether devices of the class may be on PCI functions.
    pub fn can_be_on_function(self) -> bool {
        self.has_function_name() || self.is_clock() || self == Class::Rdma
    }

    /// Returns whether devices have the name of an interface or the address of a PCI function.
    pub fn has_function_name(self) -> bool {
        self.is_onload() || Class::FUNCTION_CLASSES.contains(&self)
    }

    /// Returns whether the name `all` requests all devices of the class.
    pub fn has_all_name(self) -> bool {
        self.is_onload() || self == Class::Rdma
    }

    /// Returns whether by default only one container at a time holds a device. The kernel assigns
    /// an IOMMU group to one process, and an interface is in one network namespace.
    pub fn is_exclusive(self) -> bool {
        matches!(self, Class::Vfio | Class::Netdev)
    }

    /// Returns whether a device is an IOMMU group, which a container gets with all functions in it.
    pub fn is_iommu_group(self) -> bool {
        self == Class::Vfio
    }

    /// Returns whether a device is a clock. Reading a clock is harmless; writing to it steps the
    /// host's time.
    pub fn is_clock(self) -> bool {
        matches!(self, Class::Ptp | Class::Pps)
    }

    /// Returns whether Kubernetes cannot have the class as a resource: settings are not a device, a
    /// bundle contains devices of other classes, and kubelet counts huge pages itself.
    pub fn is_uncountable(self) -> bool {
        matches!(self, Class::Profile | Class::Bundle | Class::Hugepages)
    }

    /// Returns whether `topology` shows the devices on their functions. Devices of nic-plain and
    /// nic-nodes are shown as nic.
    pub fn is_in_topology(self) -> bool {
        self.can_be_on_function() && !matches!(self, Class::NicPlain | Class::NicNodes)
    }

    pub fn from_name(word: &str) -> Option<Class> {
        Class::ALL.into_iter().find(|class| class.as_str() == word)
    }

    /// Parses a list of classes, and returns it sorted and without duplicates. The word `all`
    /// is replaced by the classes in `all`.
    pub(crate) fn parse_list(
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
        classes.sort_unstable();
        classes.dedup();
        Ok(classes)
    }

    /// Returns the CDI kind of the class, `onload.dev/<class>`.
    pub fn cdi_kind(self) -> String {
        format!("{VENDOR}/{}", self.as_str())
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Returns the known word that is spelled most like `word`, and in how many letters they differ: at most half of them.
pub(crate) fn nearest_word<'k>(
    word: &str,
    known: impl IntoIterator<Item = &'k str>,
) -> Option<(usize, &'k str)> {
    let max_distance = word.chars().count().max(3) / 2;
    known
        .into_iter()
        .map(|known| (damerau_levenshtein(known, word), known))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, _)| *distance <= max_distance)
}

pub(crate) fn list() -> String {
    Class::ALL.map(Class::as_str).join(", ")
}

impl FromStr for Class {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self> {
        if let Some(class) = Class::from_name(word) {
            return Ok(class);
        }
        if let Some(class) = Class::ALL
            .into_iter()
            .find(|class| class.cdi_kind() == word || class.as_str().eq_ignore_ascii_case(word))
        {
            bail!("unknown class {word:?}; write {class}");
        }
        match nearest_word(word, Class::ALL.map(Class::as_str)) {
            Some((_, class)) => bail!("unknown class {word:?}; did you mean {class}?"),
            None => bail!("unknown class {word:?}; known are {}", list()),
        }
    }
}

read_as_text!(Class);
written_as_text!(Class);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_is_parsed_from_its_name() {
        for class in Class::ALL {
            assert_eq!(class.as_str().parse::<Class>(), Ok(class));
        }
    }

    #[test]
    fn classes_have_their_properties() {
        for (index, class) in Class::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, index, "{class}");
        }
        for (property, expected) in [
            (Class::is_onload as fn(Class) -> bool, "nic nic-plain nic-nodes zf"),
            (Class::pins_memory, "rdma vfio"),
            (Class::is_exclusive, "vfio netdev"),
            (Class::is_clock, "ptp pps"),
            (Class::has_function_name, "nic nic-plain nic-nodes zf vfio netdev"),
            (Class::can_be_on_function, "nic nic-plain nic-nodes zf rdma vfio netdev ptp pps"),
            (Class::has_all_name, "nic nic-plain nic-nodes zf rdma"),
            (Class::is_in_topology, "nic zf rdma vfio netdev ptp pps"),
            (Class::is_iommu_group, "vfio"),
            (Class::is_uncountable, "profile hugepages bundle"),
        ] {
            let classes: Vec<&str> = Class::ALL
                .into_iter()
                .filter(|class| property(*class))
                .map(Class::as_str)
                .collect();
            assert_eq!(classes.join(" "), expected);
        }
    }

    #[test]
    fn an_unknown_class_is_rejected_with_the_known_ones() {
        for (word, advice) in [
            ("onload.dev/nic", "write nic"),
            ("NIC", "write nic"),
            (
                "gpu",
                "known are nic, nic-plain, nic-nodes, zf, profile, rdma, vfio, hugepages, netdev, ptp, pps, gdrcopy, bundle",
            ),
        ] {
            let error = word.parse::<Class>().unwrap_err().to_string();
            assert_eq!(error, format!("unknown class {word:?}; {advice}"));
        }
    }
}
