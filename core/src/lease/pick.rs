//! Which members of pools a container gets. Nothing is read or written here.

use std::collections::BTreeSet;

use onload_cdi::DeviceName;

use super::file::Device;
use crate::class::Class;
use crate::pool::{Member, Pool};
use onload_sys::error::{Error, error};

/// What a container wants of one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The class of the pool.
    pub class: Class,
    pub name: DeviceName,
    /// How many members, from 1.
    pub count: u32,
    /// What is in the pool.
    pub pool: Pool,
}

/// The NUMA node that members are taken from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numa {
    #[default]
    Any,
    /// Any, the same for all members.
    Same,
    Node(u32),
}

/// That too few members of pools are free: for each pool, what is wanted of it and what is free, and who holds members.
pub(super) fn none_free(wanted: &[String], numa: Numa, holders: &[String]) -> Error {
    let numa = match numa {
        Numa::Any => String::new(),
        Numa::Same => ", all on one NUMA node".to_owned(),
        Numa::Node(node) => format!(", all on NUMA node {node}"),
    };
    let (wanted, held) = (wanted.join(" and "), held(holders));
    error!("{wanted}{numa}{held}; \"onload-ctk lease list\" shows all")
}

/// A few of them: with many, "lease list" is easier to read.
fn held(holders: &[String]) -> String {
    const SHOWN: usize = 3;
    let shown = holders
        .iter()
        .take(SHOWN)
        .map(|holder| format!("; {holder}"));
    let more = holders.len().saturating_sub(SHOWN);
    let more = (more > 0).then(|| format!("; {more} more are held"));
    shown.chain(more).collect()
}

impl Wish {
    /// What is wanted, beside what there is.
    pub(super) fn about(&self, there_is: &str) -> String {
        let (count, class, name) = (self.count, self.class, &self.name);
        format!("{count} wanted of pool {class}={name}, which has {there_is}")
    }
}

/// A member of a pool that may be chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    /// What it would be chosen for.
    pub(crate) wish: &'a Wish,
    pub(crate) member: &'a Member,
}

impl Candidate<'_> {
    pub(crate) fn device(self) -> Device {
        Device {
            class: self.wish.class,
            name: self.member.name.clone(),
        }
    }
}

/// Chooses among the free members of pools: the first ones, in the order of the pools. Of two pools
/// that have a member in common it serves one. None where not all wishes can be met.
pub(crate) fn pick<'a>(
    wishes: &'a [Wish],
    numa: Numa,
    is_free: &mut dyn FnMut(Candidate<'a>) -> bool,
) -> Option<Vec<Candidate<'a>>> {
    match numa {
        Numa::Any => pick_where(wishes, &|_| true, is_free),
        Numa::Node(node) => pick_where(wishes, &|own| own == Some(node), is_free),
        Numa::Same => nodes(wishes)
            .into_iter()
            .find_map(|node| pick_where(wishes, &|own| own == node, is_free)),
    }
}

/// The nodes of all members, the lowest first; those without one are on a node of their own, since
/// nothing says that they are near another.
fn nodes(wishes: &[Wish]) -> Vec<Option<u32>> {
    let members = wishes.iter().flat_map(|wish| &wish.pool.members);
    let nodes: BTreeSet<Option<u32>> = members.map(|member| member.numa_node).collect();
    let (without, with): (Vec<_>, Vec<_>) = nodes.into_iter().partition(Option::is_none);
    [with, without].concat()
}

fn pick_where<'a>(
    wishes: &'a [Wish],
    is_on: &dyn Fn(Option<u32>) -> bool,
    is_free: &mut dyn FnMut(Candidate<'a>) -> bool,
) -> Option<Vec<Candidate<'a>>> {
    let mut picked: Vec<Candidate<'a>> = Vec::new();
    for wish in wishes {
        let mut missing = wish.count;
        for member in &wish.pool.members {
            if missing == 0 {
                break;
            }
            let candidate = Candidate { wish, member };
            let is_picked = |other: &Candidate<'_>| {
                other.wish.class == wish.class && other.member.name == member.name
            };
            if is_on(member.numa_node) && !picked.iter().any(is_picked) && is_free(candidate) {
                picked.push(candidate);
                missing -= 1;
            }
        }
        if missing > 0 {
            return None;
        }
    }
    Some(picked)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` members of a pool of class vfio, whose members are `NAME` or `NAME@NODE`.
    fn wish(pool: &str, count: u32, members: &[&str]) -> Wish {
        let member = |text: &&str| {
            let (name, node) = text.split_once('@').map_or((*text, None), |(name, node)| {
                (name, Some(node.parse().unwrap()))
            });
            Member {
                name: name.try_into().unwrap(),
                numa_node: node,
            }
        };
        Wish {
            class: Class::Vfio,
            name: pool.try_into().unwrap(),
            count,
            pool: Pool {
                members: members.iter().map(member).collect(),
                share: 1,
            },
        }
    }

    /// The names of what is picked where these are not free.
    fn picked(wishes: &[Wish], numa: Numa, held: &[&str]) -> Option<Vec<String>> {
        let mut is_free =
            |candidate: Candidate<'_>| !held.contains(&candidate.member.name.as_str());
        let picked = pick(wishes, numa, &mut is_free)?;
        Some(
            picked
                .iter()
                .map(|one| one.member.name.to_string())
                .collect(),
        )
    }

    #[test]
    fn the_first_free_members_are_picked() {
        let wishes = [wish("fast", 2, &["a", "b", "c"])];
        assert_eq!(picked(&wishes, Numa::Any, &[]).unwrap(), ["a", "b"]);
        assert_eq!(picked(&wishes, Numa::Any, &["a"]).unwrap(), ["b", "c"]);
        assert_eq!(picked(&wishes, Numa::Any, &["a", "b"]), None);
    }

    #[test]
    fn a_member_of_two_pools_serves_one_wish() {
        let wishes = [wish("fast", 1, &["a", "b"]), wish("any", 1, &["a", "b"])];
        assert_eq!(picked(&wishes, Numa::Any, &[]).unwrap(), ["a", "b"]);
        assert_eq!(picked(&wishes, Numa::Any, &["b"]), None);
    }

    #[test]
    fn members_of_one_node_are_picked_together() {
        let wishes = [wish("any", 2, &["a@0", "b@1", "c@1", "d"])];
        assert_eq!(picked(&wishes, Numa::Any, &[]).unwrap(), ["a", "b"]);
        assert_eq!(picked(&wishes, Numa::Same, &[]).unwrap(), ["b", "c"]);
        assert_eq!(picked(&wishes, Numa::Node(1), &[]).unwrap(), ["b", "c"]);
        assert_eq!(picked(&wishes, Numa::Node(0), &[]), None);
        assert_eq!(picked(&wishes, Numa::Same, &["b"]), None);
    }

    #[test]
    fn one_node_holds_for_all_pools() {
        let wishes = [
            wish("one", 1, &["a@0", "b@1"]),
            wish("two", 1, &["c@1", "d@2"]),
        ];
        assert_eq!(picked(&wishes, Numa::Same, &[]).unwrap(), ["b", "c"]);
        assert_eq!(picked(&wishes, Numa::Same, &["c"]), None);
    }

    #[test]
    fn members_without_a_node_are_together_where_none_has_one() {
        let wishes = [wish("any", 2, &["a", "b"])];
        assert_eq!(picked(&wishes, Numa::Same, &[]).unwrap(), ["a", "b"]);
        assert_eq!(picked(&wishes, Numa::Node(0), &[]), None);
    }

    #[test]
    fn what_is_not_needed_is_not_looked_at() {
        let wishes = [wish("any", 1, &["a", "b", "c"])];
        let mut looked = Vec::new();
        let mut is_free = |candidate: Candidate<'_>| {
            looked.push(candidate.member.name.to_string());
            true
        };
        assert!(pick(&wishes, Numa::Any, &mut is_free).is_some());
        assert_eq!(looked, ["a"]);
    }
}
