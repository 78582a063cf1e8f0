//! Groups devices that are not offered by reason: a host with a hundred virtual functions has few reasons.

use std::collections::BTreeMap;

use onload_host::discover::exclusion::{Exclusion, ExclusionSubject};
use onload_sys::pci::PciAddress;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReasonGroup {
    pub kind: ExclusionSubject,
    pub names: Vec<String>,
    /// The reason. The device's name in the reason is replaced by `NAME` or `ADDRESS`.
    pub reason: String,
}

/// Names of one shape that are listed one by one; of more there is the first, the last and their number.
const MAX_LISTED: usize = 4;

impl ReasonGroup {
    /// Lists the names. Names that differ only in their numbers are one range.
    pub(super) fn format_names(&self) -> String {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        format_ranges(&names, MAX_LISTED, name_pattern).join(", ")
    }
}

/// Lists names, but more than `max` names of one pattern as the first, the last and their number.
pub(super) fn format_ranges(
    names: &[&str],
    max: usize,
    pattern: impl Fn(&str) -> String,
) -> Vec<String> {
    let mut indexes: BTreeMap<String, usize> = BTreeMap::new();
    let mut shapes: Vec<Vec<&str>> = Vec::new();
    for name in names.iter().copied() {
        let index = *indexes.entry(pattern(name)).or_insert(shapes.len());
        match shapes.get_mut(index) {
            Some(alike) => alike.push(name),
            None => shapes.push(vec![name]),
        }
    }
    let ranges = shapes.into_iter().flat_map(|mut alike| {
        // v10 comes after v9.
        alike.sort_by_key(|name| (name.len(), *name));
        match alike.as_slice() {
            [first, .., last] if alike.len() > max => {
                vec![format!("{first} … {last} ({})", alike.len())]
            }
            all => all.iter().map(ToString::to_string).collect(),
        }
    });
    ranges.collect()
}

/// A name without its numbers. All PCI addresses have one shape.
pub(super) fn name_pattern(name: &str) -> String {
    match name.parse::<PciAddress>() {
        Ok(_) => "ADDRESS".to_owned(),
        Err(_) => name.chars().filter(|c| !c.is_ascii_digit()).collect(),
    }
}

/// The entries by kind and reason, in the order of the first of each. Reasons that several have say nothing of one.
pub(super) fn group_reasons(entries: &[Exclusion]) -> Vec<ReasonGroup> {
    let mut counts: BTreeMap<(ExclusionSubject, &str), usize> = BTreeMap::new();
    for entry in entries {
        *counts.entry((entry.kind, &entry.reason)).or_default() += 1;
    }
    let mut indexes: BTreeMap<(ExclusionSubject, String), usize> = BTreeMap::new();
    let mut groups: Vec<ReasonGroup> = Vec::new();
    for entry in entries {
        let general = match counts.get(&(entry.kind, entry.reason.as_str())) {
            Some(1) => without_name(&entry.reason, &entry.name),
            _ => entry.reason.clone(),
        };
        let next = groups.len();
        let index = indexes.entry((entry.kind, general.clone())).or_insert(next);
        match groups.get_mut(*index) {
            Some(group) => {
                group.names.push(entry.name.clone());
                group.reason = general;
            }
            None => groups.push(ReasonGroup {
                kind: entry.kind,
                names: vec![entry.name.clone()],
                reason: entry.reason.clone(),
            }),
        }
    }
    groups
}

/// Replaces the device's name in a reason, where it is a whole word.
fn without_name(reason: &str, name: &str) -> String {
    let placeholder = match name.parse::<PciAddress>() {
        Ok(_) => "ADDRESS",
        Err(_) => "NAME",
    };
    let (mut text, mut rest) = (String::new(), reason);
    let mut before = None;
    while let Some((head, after)) = rest.split_once(name).filter(|_| !name.is_empty()) {
        let last = head.chars().next_back().or(before);
        let is_word = !last.is_some_and(is_in_names) && !after.starts_with(is_in_names);
        text.extend([head, if is_word { placeholder } else { name }]);
        before = name.chars().next_back();
        rest = after;
    }
    text + rest
}

fn is_in_names(c: char) -> bool {
    c.is_alphanumeric() || "-_.:".contains(c)
}

#[cfg(test)]
mod tests {
    use onload_core::class::Class;

    use super::*;

    fn entry(kind: impl Into<ExclusionSubject>, name: &str, reason: &str) -> Exclusion {
        Exclusion::new(kind, name, reason)
    }

    fn grouped(entries: &[Exclusion]) -> Vec<String> {
        group_reasons(entries)
            .into_iter()
            .map(|group| format!("{} {}: {}", group.kind, group.names.join(","), group.reason))
            .collect()
    }

    #[test]
    fn equal_reasons_of_one_kind_are_one_group() {
        let entries = [
            entry(Class::Nic, "docker0", "virtual"),
            entry(Class::Nic, "ens1", "ignored"),
            entry(Class::Nic, "lo", "virtual"),
            entry(Class::Zf, "lo", "virtual"),
        ];
        let wanted = ["nic docker0,lo: virtual", "nic ens1: ignored", "zf lo: virtual"];
        assert_eq!(grouped(&entries), wanted);
    }

    #[test]
    fn reasons_that_differ_in_their_names_alone_are_one_group() {
        let entries = [
            entry(Class::Nic, "ens1", "write ens1 to /x/ens1"),
            entry(Class::Nic, "ens2", "write ens2 to /x/ens2"),
            entry(Class::Vfio, "0000:41:10.0", "set-override 0000:41:10.0 vfio-pci"),
            entry(Class::Vfio, "0000:41:10.2", "set-override 0000:41:10.2 vfio-pci"),
        ];
        let wanted = [
            "nic ens1,ens2: write NAME to /x/NAME",
            "vfio 0000:41:10.0,0000:41:10.2: set-override ADDRESS vfio-pci",
        ];
        assert_eq!(grouped(&entries), wanted);
    }

    #[test]
    fn many_names_that_differ_in_their_numbers_are_a_range_with_a_count() {
        let text = |names: &[String]| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let entries: Vec<Exclusion> =
                names.iter().map(|name| entry(Class::Nic, name, "idle")).collect();
            group_reasons(&entries)[0].format_names()
        };
        let mut names: Vec<String> = (0..512).map(|n| format!("ens1v{n}")).collect();
        names.sort();
        assert_eq!(text(&names), "ens1v0 … ens1v511 (512)");
        names.truncate(4);
        assert_eq!(text(&names), "ens1v0, ens1v1, ens1v10, ens1v100");
        let mixed =
            ["docker0", "lo", "veth1", "veth2", "veth3", "veth4", "veth5"].map(str::to_owned);
        assert_eq!(text(&mixed), "docker0, lo, veth1 … veth5 (5)");
        let addresses: Vec<String> = (0..8).map(|n| format!("0000:41:1{n}.0")).collect();
        assert_eq!(text(&addresses), "0000:41:10.0 … 0000:41:17.0 (8)");
    }

    #[test]
    fn one_thing_alone_keeps_its_name_in_its_reason() {
        let entries = [entry(Class::Nic, "ens1", "write ens1 to /x")];
        assert_eq!(grouped(&entries), ["nic ens1: write ens1 to /x"]);
    }

    #[test]
    fn a_name_within_a_word_is_none() {
        assert_eq!(
            without_name("load lo, not lo0, xlo, lo-1", "lo"),
            "load NAME, not lo0, xlo, lo-1"
        );
        assert_eq!(without_name("lolo", "lo"), "lolo");
        assert_eq!(without_name("a", "a"), "NAME");
    }

    #[test]
    fn a_reason_that_names_one_of_its_group_stays_as_it_is() {
        let reason = "0000:03:00.0 has 2 virtual functions";
        let entries = [
            entry(Class::Vfio, "0000:03:00.0", reason),
            entry(Class::Vfio, "0000:03:00.1", reason),
        ];
        assert_eq!(grouped(&entries), [format!("vfio 0000:03:00.0,0000:03:00.1: {reason}")]);
    }
}
