//! A device of a container: its node as the specification describes it and as this host has it now,
//! and the access that the container gets.

use std::str::FromStr;

use onload_cdi::DeviceNode;
use onload_cdi::oci::{DeviceRule, HostNode};
use onload_sys::error::{Error, Result, bail, read_as_text, written_as_text};
use serde::{Deserialize, Serialize};

use super::sysfs::DeviceNumber;

/// Access to a device: read, write, create its node (mknod).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceAccess(u8);

read_as_text!(DeviceAccess);
written_as_text!(DeviceAccess);

impl DeviceAccess {
    /// The bits of `BPF_DEVCG_ACC_…` (include/uapi/linux/bpf.h).
    const LETTERS: [(char, u8); 3] = [('r', 2), ('w', 4), ('m', 1)];

    pub(crate) const ALL: DeviceAccess = DeviceAccess(7);
    pub(crate) const READ_WRITE: DeviceAccess = DeviceAccess(6);

    /// 1 to create the node, 2 to read, 4 to write.
    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    /// The permission bits of a node that give it to everybody.
    pub(crate) fn mode_bits(self) -> u32 {
        let (read, write) = (self.0 & 2, self.0 & 4);
        u32::from((read << 1) | (write >> 1))
    }

    /// The part of it that `other` lacks; `None` if it lacks nothing.
    pub(crate) fn missing_from(self, other: u8) -> Option<DeviceAccess> {
        let bits = self.0 & !other;
        (bits != 0).then_some(DeviceAccess(bits))
    }
}

impl FromStr for DeviceAccess {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.is_empty() || text.contains(|letter| !"rwm".contains(letter)) {
            bail!("{text:?} is not an access to a device; expected letters of \"rwm\"");
        }
        let letters = DeviceAccess::LETTERS.iter().filter(|(letter, _)| text.contains(*letter));
        Ok(DeviceAccess(letters.map(|(_, bit)| bit).sum()))
    }
}

impl std::fmt::Display for DeviceAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (letter, bit) in DeviceAccess::LETTERS {
            if self.0 & bit != 0 {
                write!(f, "{letter}")?;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VerifiedNode {
    /// As its specification describes it.
    pub node: DeviceNode,
    /// As this host has it: a character device that was checked.
    pub host_node: HostNode,
}

impl VerifiedNode {
    pub(crate) fn path(&self) -> &str {
        &self.node.path
    }

    pub(crate) fn source(&self) -> &str {
        self.node.source()
    }

    /// The rule that allows the access its specification states, or full access if it states none.
    pub(crate) fn rule(&self) -> Result<CgroupRule> {
        let access = match self.node.permissions.as_deref() {
            None | Some("") => DeviceAccess::ALL,
            Some(letters) => letters.parse()?,
        };
        Ok(CgroupRule { major: self.host_node.major, minor: self.host_node.minor, access })
    }
}

/// A character device that a container may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CgroupRule {
    pub major: u32,
    pub minor: u32,
    pub access: DeviceAccess,
}

impl CgroupRule {
    pub(crate) fn numbers(self) -> DeviceNumber {
        DeviceNumber { major: self.major, minor: self.minor }
    }

    /// The part of this rule that the list of a cgroup v1 does not grant yet; that is what an undo
    /// revokes. The kernel revokes only entries with the same numbers, and a list that begins with
    /// "a" grants everything (security/device_cgroup.c, `devcgroup_seq_show`, `dev_exception_rm`).
    pub(crate) fn missing_from(self, list: &str) -> Option<CgroupRule> {
        let own_number = self.numbers().to_string();
        let granted = list.lines().fold(0, |granted, line| {
            let mut fields = line.split(' ');
            let access = match (fields.next(), fields.next(), fields.next()) {
                (Some("a"), ..) => Some(DeviceAccess::ALL),
                (Some("c"), Some(number), Some(access)) if number == own_number => {
                    access.parse().ok()
                }
                _ => None,
            };
            granted | access.map_or(0, DeviceAccess::bits)
        });
        let access = self.access.missing_from(granted)?;
        Some(CgroupRule { access, ..self })
    }

    /// Whether the rules of a configuration grant as much. They allow or deny in order
    /// (Documentation/admin-guide/cgroup-v1/devices.rst).
    pub(crate) fn is_granted_by(self, rules: &[DeviceRule]) -> bool {
        let any = |number: Option<i64>| number.is_none_or(|number| number == -1);
        let mut granted = 0;
        for rule in rules {
            let kind = rule.type_.as_deref().unwrap_or("a");
            let is_any = matches!(kind, "" | "a");
            let matches = is_any
                || kind == "c"
                    && (any(rule.major) || rule.major == Some(self.major.into()))
                    && (any(rule.minor) || rule.minor == Some(self.minor.into()));
            if !matches {
                continue;
            }
            let access = rule.access.as_deref().unwrap_or_default();
            let access = access.parse().unwrap_or(DeviceAccess::ALL).bits();
            if rule.allow {
                granted |= access;
            } else {
                granted &= !access;
            }
        }
        self.access.bits() & !granted == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(text: &str) -> Result<DeviceAccess> {
        text.parse()
    }

    fn rule(text: &str) -> CgroupRule {
        CgroupRule { major: 243, minor: 0, access: access(text).unwrap() }
    }

    fn entry(
        allow: bool,
        kind: Option<&str>,
        numbers: Option<(i64, i64)>,
        access: &str,
    ) -> DeviceRule {
        DeviceRule {
            allow,
            type_: kind.map(str::to_owned),
            major: numbers.map(|n| n.0),
            minor: numbers.map(|n| n.1),
            access: Some(access.to_owned()),
        }
    }

    #[test]
    fn access_is_spelled_in_letters() {
        for text in ["r", "rw", "rwm", "wm"] {
            assert_eq!(access(text).unwrap().to_string(), text);
        }
        assert_eq!(access("mrw").unwrap().to_string(), "rwm");
        assert_eq!(access("rwm").unwrap(), DeviceAccess::ALL);
        for text in ["", "x", "rwx", "RW"] {
            assert!(access(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_others_need_of_a_node_follows_from_the_access() {
        for (text, bits) in [("r", 0o4), ("w", 0o2), ("rw", 0o6), ("rwm", 0o6), ("m", 0)] {
            assert_eq!(access(text).unwrap().mode_bits(), bits, "{text}");
        }
    }

    #[test]
    fn rules_are_written_as_numbers_and_letters() {
        let json = serde_json::to_string(&rule("rw")).unwrap();
        assert_eq!(json, r#"{"major":243,"minor":0,"access":"rw"}"#);
        assert_eq!(serde_json::from_str::<CgroupRule>(&json).unwrap(), rule("rw"));
        assert!(
            serde_json::from_str::<CgroupRule>(r#"{"major":1,"minor":0,"access":""}"#).is_err()
        );
    }

    #[test]
    fn a_closed_list_gives_what_it_names() {
        let deny = entry(false, None, None, "rwm");
        assert!(!rule("rw").is_granted_by(&[]));
        assert!(!rule("rw").is_granted_by(std::slice::from_ref(&deny)));
        let own = entry(true, Some("c"), Some((243, 0)), "rw");
        assert!(rule("rw").is_granted_by(&[deny.clone(), own.clone()]));
        assert!(!rule("rwm").is_granted_by(&[deny.clone(), own.clone()]));
        assert!(!rule("rw").is_granted_by(&[own, deny.clone()]));
        let block = entry(true, Some("b"), Some((243, 0)), "rwm");
        assert!(!rule("rw").is_granted_by(&[deny.clone(), block]));
        let any_minor =
            DeviceRule { minor: None, ..entry(true, Some("c"), Some((243, -1)), "rwm") };
        assert!(rule("rwm").is_granted_by(&[deny.clone(), any_minor]));
        let halves = [
            entry(true, Some("c"), Some((243, 0)), "r"),
            entry(true, Some("c"), Some((243, -1)), "w"),
        ];
        assert!(rule("rw").is_granted_by(&halves));
    }

    #[test]
    fn a_privileged_container_has_everything() {
        assert!(rule("rwm").is_granted_by(&[entry(true, None, None, "rwm")]));
        assert!(rule("rwm").is_granted_by(&[entry(true, Some("a"), None, "rwm")]));
    }

    #[test]
    fn what_a_list_has_in_force_is_not_to_be_taken_back() {
        let rule = |access: &str| CgroupRule {
            major: 1,
            minor: 11,
            access: access.to_owned().try_into().unwrap(),
        };
        for (list, asked, left) in [
            ("", "rw", Some("rw")),
            ("c 1:11 r\n", "rw", Some("w")),
            ("c 1:11 rwm\n", "rw", None),
            ("c 1:11 r\nc 1:11 w\n", "rw", None),
            ("a *:* rwm\n", "rw", None),
            ("b 1:11 rwm\nc 1:1 rwm\nc 11:11 rw\n", "r", Some("r")),
            // A separate entry is added beside this one, and can be removed again.
            ("c 1:* rwm\nc *:* m\n", "rw", Some("rw")),
            ("nonsense\nc 1:11\nc 1:11 x\n", "rw", Some("rw")),
        ] {
            assert_eq!(rule(asked).missing_from(list), left.map(rule), "{list:?}");
        }
    }
}
