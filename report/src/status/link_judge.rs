//! Which interfaces Onload accelerates by those that they are on, or that are their members.

use std::collections::{BTreeMap, BTreeSet};

use onload_core::netdev::usage;
use onload_sys::netlink::link::Link;

/// Interfaces that are on one another; the kernel allows 8 (`MAX_NEST_DEV`).
const DEPTH: usize = 8;
/// `IPVLAN_MODE_L2`, `ETH_P_8021Q`, `BOND_MODE_ACTIVEBACKUP` and `BOND_MODE_8023AD`: what Onload takes of these kinds
/// (`tools/cplane/netlink.c`, `bond.c`).
const L2: u16 = 0;
const IEEE_802_1Q: u16 = 0x8100;
const BONDS: [u16; 2] = [1, 4];

/// An interface of a device: whether it is the host's, and its number there or in the container's network.
pub(super) type PortId = (bool, u32);

/// The interfaces below an accelerated interface that its packets pass (`encap` and `hwports` of Onload's control
/// plane).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LowerPath {
    by_vlan: bool,
    by_bond: bool,
    pub(super) ports: BTreeSet<PortId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Acceleration {
    No,
    Unknown,
    Yes(LowerPath),
}

impl Acceleration {
    /// Of one that sends by these ports, if it is accelerated.
    pub(super) fn from_known(
        is_accelerated: Option<bool>,
        ports: BTreeSet<PortId>,
    ) -> Acceleration {
        match is_accelerated {
            Some(true) => Acceleration::Yes(LowerPath { ports, ..LowerPath::default() }),
            Some(false) => Acceleration::No,
            None => Acceleration::Unknown,
        }
    }

    pub(super) fn is_accelerated(&self) -> Option<bool> {
        match self {
            Acceleration::No => Some(false),
            Acceleration::Unknown => None,
            Acceleration::Yes(_) => Some(true),
        }
    }

    /// None unless it is accelerated.
    pub(super) fn ports(self) -> BTreeSet<PortId> {
        match self {
            Acceleration::Yes(path) => path.ports,
            Acceleration::No | Acceleration::Unknown => BTreeSet::new(),
        }
    }
}

/// Whether Onload accelerates the interfaces of a network, by their numbers: each by those that it is on or that are its members;
/// `base` judges the others. Which mode a team has is not told.
pub(super) fn judge_links(
    links: &[Link],
    base: &dyn Fn(&Link) -> Acceleration,
) -> BTreeMap<u32, Acceleration> {
    let mut members: BTreeMap<u32, Vec<&Link>> = BTreeMap::new();
    for link in links {
        if let Some(master) = link.master {
            members.entry(master).or_default().push(link);
        }
    }
    let mut judge = LinkJudge {
        links: links.iter().map(|link| (link.index, link)).collect(),
        members,
        base,
        results: BTreeMap::new(),
    };
    for link in links {
        judge.judge(DEPTH, link);
    }
    judge.results
}

/// Judges each once: who owns a network can make bonds of thousands of members, and thousands on each of them.
struct LinkJudge<'n> {
    links: BTreeMap<u32, &'n Link>,
    members: BTreeMap<u32, Vec<&'n Link>>,
    base: &'n dyn Fn(&Link) -> Acceleration,
    results: BTreeMap<u32, Acceleration>,
}

impl LinkJudge<'_> {
    fn judge(&mut self, depth: usize, link: &Link) -> Acceleration {
        if let Some(acceleration) = self.results.get(&link.index) {
            return acceleration.clone();
        }
        let Some(depth) = depth.checked_sub(1) else { return Acceleration::Unknown };
        // In a list that was read while it changed, one may be below itself.
        self.results.insert(link.index, Acceleration::Unknown);
        let acceleration = self.judge_first(depth, link);
        self.results.insert(link.index, acceleration.clone());
        acceleration
    }

    fn judge_first(&mut self, depth: usize, link: &Link) -> Acceleration {
        let is_vlan = link.kind == b"vlan";
        let is_taken =
            |variants: &[u16]| link.variant.is_none_or(|variant| variants.contains(&variant));
        match link.kind.as_slice() {
            b"bond" if !is_taken(&BONDS) => Acceleration::No,
            b"ipvlan" if !is_taken(&[L2]) => Acceleration::No,
            b"vlan" if !is_taken(&[IEEE_802_1Q]) => Acceleration::No,
            b"bond" | b"team" => {
                let members = self.members.get(&link.index).cloned().unwrap_or_default();
                judge_bond(members.into_iter().map(|member| self.judge(depth, member)))
            }
            b"macvlan" | b"ipvlan" | b"vlan" => {
                let lower = link.lower.filter(|_| link.lower_namespace.is_none());
                let acceleration = match lower.and_then(|lower| self.links.get(&lower).copied()) {
                    Some(lower) => self.judge(depth, lower),
                    None => (self.base)(link),
                };
                match acceleration {
                    Acceleration::Yes(path) if is_vlan && path.by_vlan => Acceleration::No,
                    Acceleration::Yes(path) => {
                        Acceleration::Yes(LowerPath { by_vlan: is_vlan || path.by_vlan, ..path })
                    }
                    other => other,
                }
            }
            _ => (self.base)(link),
        }
    }
}

/// A bond whose members are these: Onload accelerates a team or bond only if it has all its members
/// (`team_get_hwports`, `cp_bond_slave_set_hwports`).
fn judge_bond(members: impl Iterator<Item = Acceleration>) -> Acceleration {
    let (mut ports, mut is_known) = (BTreeSet::new(), true);
    for member in members {
        match member {
            Acceleration::No => return Acceleration::No,
            Acceleration::Yes(path) if path.by_vlan || path.by_bond => return Acceleration::No,
            Acceleration::Yes(path) => ports.extend(path.ports),
            Acceleration::Unknown => is_known = false,
        }
    }
    match (is_known, ports.is_empty()) {
        (false, _) => Acceleration::Unknown,
        (true, true) => Acceleration::No,
        (true, false) => {
            Acceleration::Yes(LowerPath { by_bond: true, ports, ..LowerPath::default() })
        }
    }
}

/// The host's interfaces that Onload has, of these numbers, with those on them and the bonds of them.
pub(super) fn with_uppers(
    numbers: &BTreeSet<u32>,
    links: &[usage::NetworkLink],
) -> BTreeMap<u32, LowerPath> {
    let links: Vec<Link> = links
        .iter()
        .map(|link| Link {
            index: link.index,
            kind: link.kind.clone().unwrap_or_default().into(),
            variant: link.variant,
            master: link.master,
            lower: link.lower,
            ..Link::default()
        })
        .collect();
    let ports = |number| BTreeSet::from([(true, number)]);
    let base = |link: &Link| {
        Acceleration::from_known(Some(numbers.contains(&link.index)), ports(link.index))
    };
    let mut paths = BTreeMap::new();
    for number in numbers {
        let ports = ports(*number);
        paths.insert(*number, LowerPath { ports, ..LowerPath::default() });
    }
    for (number, acceleration) in judge_links(&links, &base) {
        if let Acceleration::Yes(path) = acceleration {
            paths.insert(number, path);
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn link(index: u32, kind: &str, lower: Option<u32>, master: Option<u32>) -> Link {
        Link { index, kind: kind.into(), lower, master, ..Link::default() }
    }

    #[test]
    fn what_many_are_on_is_judged_once() {
        let mut links = vec![link(1, "", None, None), link(2, "bond", None, None)];
        links.extend((100..400).map(|index| link(index, "macvlan", Some(1), Some(2))));
        links.extend((400..700).map(|index| link(index, "macvlan", Some(2), None)));
        let asked = Cell::new(0);
        let judged = judge_links(&links, &|link| {
            asked.set(asked.get() + 1);
            Acceleration::from_known(Some(true), [(false, link.index)].into())
        });
        assert_eq!((judged.len(), asked.get()), (links.len(), 1));
        let last = judged.get(&699).cloned().unwrap();
        assert_eq!(last.is_accelerated(), Some(true));
        assert_eq!(last.ports(), [(false, 1)].into());
    }

    #[test]
    fn of_interfaces_that_are_on_each_other_nothing_is_known() {
        let links = [link(1, "macvlan", Some(2), None), link(2, "macvlan", Some(1), None)];
        let judged = judge_links(&links, &|_| Acceleration::No);
        let known: Vec<_> = judged.values().map(Acceleration::is_accelerated).collect();
        assert_eq!(known, [None, None]);
    }
}
