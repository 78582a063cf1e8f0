//! Environment variables that list a container's devices: `ONLOAD_CTK_<CLASS>_<NAME>=<name>`.

use std::collections::{BTreeMap, BTreeSet};

use onload_core::class::Class;
use sha2::{Digest, Sha256};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceVariables {
    shared: BTreeSet<String>,
}

impl DeviceVariables {
    /// Creates the variables of a host's devices. `all` needs none, since it has its members' variables.
    pub(super) fn new<'n>(devices: impl Iterator<Item = (Class, &'n str)>) -> Self {
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for (class, name) in devices {
            *counts.entry(plain_name(class, name)).or_default() += 1;
        }
        let shared = counts.into_iter().filter(|(_, count)| *count > 1);
        DeviceVariables { shared: shared.map(|(variable, _)| variable).collect() }
    }

    pub(super) fn assignment(&self, class: Class, name: &str) -> String {
        let plain = plain_name(class, name);
        if !self.shared.contains(&plain) {
            return format!("{plain}={name}");
        }
        let digest = Sha256::digest(format!("{class}={name}"));
        let start: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        format!("{plain}_{start}={name}")
    }
}

/// Parses an assignment. Returns `None` for other variables.
pub fn parse_assignment(assignment: &str) -> Option<(Class, &str)> {
    let (variable, name) = assignment.split_once('=')?;
    if name.is_empty() {
        return None;
    }
    // A digest follows the name if another device would have the same variable.
    let class = Class::ALL.into_iter().find(|class| {
        let rest = variable.strip_prefix(plain_name(*class, name).as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_') && rest.len() == 9)
    })?;
    Some((class, name))
}

fn plain_name(class: Class, name: &str) -> String {
    format!("ONLOAD_CTK_{class}_{name}")
        .to_uppercase()
        .replace(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit(), "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_its_class_and_name_in_capitals() {
        let variables = DeviceVariables::default();
        let assignment = |class, name| variables.assignment(class, name);
        assert_eq!(assignment(Class::Nic, "ens1"), "ONLOAD_CTK_NIC_ENS1=ens1");
        assert_eq!(
            assignment(Class::Vfio, "0000:81:10.0"),
            "ONLOAD_CTK_VFIO_0000_81_10_0=0000:81:10.0"
        );
        assert_eq!(assignment(Class::NicPlain, "a-b"), "ONLOAD_CTK_NIC_PLAIN_A_B=a-b");
    }

    #[test]
    fn names_that_would_share_a_variable_all_get_a_digest() {
        let devices = [(Class::Nic, "a.b"), (Class::Nic, "a-b"), (Class::Nic, "c")];
        let variables = DeviceVariables::new(devices.into_iter());
        // printf nic=a.b | sha256sum
        assert_eq!(variables.assignment(Class::Nic, "a.b"), "ONLOAD_CTK_NIC_A_B_5d249e02=a.b");
        assert_eq!(variables.assignment(Class::Nic, "a-b"), "ONLOAD_CTK_NIC_A_B_43bb458a=a-b");
        assert_eq!(variables.assignment(Class::Nic, "c"), "ONLOAD_CTK_NIC_C=c");
    }

    #[test]
    fn classes_collide_too() {
        let devices = [(Class::Nic, "plain-x"), (Class::NicPlain, "x")];
        let variables = DeviceVariables::new(devices.into_iter());
        let first = variables.assignment(Class::Nic, "plain-x");
        let second = variables.assignment(Class::NicPlain, "x");
        let name = |assignment: &str| assignment.split('=').next().unwrap().to_owned();
        assert_ne!(name(&first), name(&second));
    }

    #[test]
    fn a_variable_tells_its_device_and_no_other_variable_does() {
        for (class, name) in [
            (Class::Nic, "ens1"),
            (Class::NicPlain, "ens1"),
            (Class::Hugepages, "2Mi"),
            (Class::Vfio, "0000:81:10.0"),
        ] {
            let assignment = DeviceVariables::default().assignment(class, name);
            assert_eq!(parse_assignment(&assignment), Some((class, name)));
        }
        let assignment =
            DeviceVariables::new([(Class::Nic, "a.b"), (Class::Nic, "a-b")].into_iter())
                .assignment(Class::Nic, "a-b");
        assert_eq!(parse_assignment(&assignment), Some((Class::Nic, "a-b")));
        for other in [
            "ONLOAD_CTK_REQUEST=nic=all",
            "ONLOAD_CTK_NIC_ENS1",
            "ONLOAD_CTK_NIC_=",
            "ONLOAD_CTK_NIC_ENS1=ens2",
            "ONLOAD_CTK_GPU_0=0",
            "PATH=/bin",
        ] {
            assert_eq!(parse_assignment(other), None, "{other}");
        }
    }
}
