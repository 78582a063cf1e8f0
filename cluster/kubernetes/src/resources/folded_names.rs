//! Names that follow from a resource's name in places that allow fewer characters. Two resources may have the same one:
//! the second of them is not offered.

use std::collections::BTreeMap;

use onload_core::class::Class;
use onload_core::kubernetes_settings::ResourceName;

/// Returns the name of the DeviceClass of a resource, a DNS subdomain, such as `onload.amd.com` for `amd.com/onload`.
pub(crate) fn device_class_name(name: &ResourceName) -> String {
    let (domain, rest) = name.as_str().split_once('/').unwrap_or_default();
    let rest = rest.to_ascii_lowercase();
    format!("{}.{domain}", replace_punctuation(&rest, '-'))
}

/// Returns the name of the variable with the addresses of a resource's functions. Shells read no other characters.
pub(super) fn variable_name(name: &ResourceName) -> String {
    let upper = name.as_str().to_ascii_uppercase();
    format!("PCIDEVICE_{}", replace_punctuation(&upper, '_'))
}

pub(super) fn info_variable_name(name: &ResourceName) -> String {
    format!("{}_INFO", variable_name(name))
}

pub(crate) fn replace_punctuation(text: &str, replacement: char) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { replacement }).collect()
}

/// Returns the resources whose variable, and thus DeviceClass, is that of another one before them, each with the reason.
/// The resources of classes come first.
pub(super) fn find_conflicts<'n>(
    names: impl Iterator<Item = &'n ResourceName>,
) -> BTreeMap<ResourceName, String> {
    let class_names = Class::ALL.map(|class| ResourceName::try_from(class.cdi_kind()));
    let mut owners: BTreeMap<String, ResourceName> = BTreeMap::new();
    let mut conflicts = BTreeMap::new();
    for name in class_names.into_iter().flatten().chain(names.cloned()) {
        let variable = variable_name(&name);
        let other = owners.entry(variable.clone()).or_insert_with(|| name.clone());
        if *other != name {
            let reason = format!(
                "{name} is not offered: its variable {variable} is also that of {other}; rename \
                 one of them in [kubernetes.resources]"
            );
            conflicts.insert(name, reason);
        }
    }
    conflicts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(names: &[&str]) -> Vec<String> {
        let names: Vec<ResourceName> =
            names.iter().map(|name| (*name).to_owned().try_into().unwrap()).collect();
        find_conflicts(names.iter()).into_values().collect()
    }

    #[test]
    fn the_second_of_two_resources_with_one_name_is_refused_by_both_names() {
        let remedy = "rename one of them in [kubernetes.resources]";
        for (names, variable) in [
            (["example.com/Fast-NIC", "example.com/fast_nic"], "PCIDEVICE_EXAMPLE_COM_FAST_NIC"),
            // Domains of other dots and dashes.
            (["a-b.com/x", "a.b.com/x"], "PCIDEVICE_A_B_COM_X"),
        ] {
            let [first, second] = names;
            let reason = format!(
                "{second} is not offered: its variable {variable} is also that of {first}; \
                 {remedy}"
            );
            assert_eq!(reasons(&names), [reason]);
        }
        let of_class = reasons(&["onload.dev/NIC-plain"]);
        assert!(of_class[0].contains("also that of onload.dev/nic-plain"), "{of_class:?}");
    }

    #[test]
    fn other_names_are_no_conflict() {
        let names =
            ["onload.dev/nic", "example.com/nic", "onload.dev/nic2", "intel.com/a", "a/intel.com"];
        assert_eq!(reasons(&names), [""; 0]);
    }
}
