//! Requests of a container, and the choice of pool members by order and NUMA node. Does no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use onload_cdi::DeviceName;

use super::file::{Holder, Lease};
use super::move_record::MoveRecord;
use onload_core::claim_uid::ClaimUid;
use onload_core::class::Class;
use onload_core::container_id::ContainerId;
use onload_core::device_id::DeviceId;
use onload_core::pool::{Numa, Pool, PoolMember};
use onload_core::token::Token;
use onload_sys::error::{Error, error};

/// A container's request for devices.
#[derive(Clone, Debug)]
pub struct LeaseRequest<'a> {
    pub devices: &'a [MemberRequest],
    /// The NUMA node of all pool members.
    pub numa: Numa,
    pub container: &'a ContainerId,
    /// The container's bundle, without symbolic links.
    pub bundle: &'a Path,
    pub holder: Holder,
    /// The token of the container's reservation; `None` for devices that need none.
    pub token: Option<&'a Token>,
    /// The ResourceClaim of the container. All its containers count as one holder.
    pub claim: Option<&'a ClaimUid>,
    pub entry_point: &'a str,
}

/// A container whose leases are to change.
#[derive(Clone, Copy, Debug)]
pub struct LeasedContainer<'a> {
    pub id: &'a ContainerId,
    /// The container's bundle, without symbolic links.
    pub bundle: &'a Path,
    /// The token of its reservation, if it is known.
    pub token: Option<&'a Token>,
}

/// A request for members of a pool. A device that is requested by name is a pool of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRequest {
    /// The class of the pool's members.
    pub class: Class,
    /// The name of the pool or device. No pool has the name of a member.
    pub name: DeviceName,
    /// The number of members, at least 1.
    pub count: u32,
    pub pool: Pool,
    /// Whether earlier members are preferred to later ones, because they are nearer to a GPU.
    pub in_order: bool,
    /// Other names under which the device may be leased: those of the functions in its IOMMU group.
    pub aliases: Vec<DeviceId>,
    /// The facts that the lease records.
    pub facts: BTreeMap<String, String>,
    /// The ticket that reserves the device for the container. If `None`, that of an earlier reservation
    /// is kept.
    pub ticket: Option<Token>,
    /// The record of the device's move to the container. Settings that an earlier lease of the same
    /// container saved are kept.
    pub moved: Option<MoveRecord>,
}

impl LeaseRequest<'_> {
    /// Returns whether a lease is for the same container, possibly an earlier start of it.
    pub(super) fn is_same_container(&self, lease: &Lease) -> bool {
        lease.container == *self.container && lease.bundle == self.bundle
    }

    /// Returns whether a lease already belongs to this container. Only facts from the runtime and the
    /// kernel count, not annotations.
    pub(super) fn owns(&self, lease: &Lease) -> bool {
        lease.belongs_to(self.container, self.bundle)
            && match (&lease.holder, &self.holder, self.token) {
                (Holder::Reservation { token, .. }, _, Some(requested_token)) => {
                    token == requested_token
                }
                (Holder::Init { process, .. }, Holder::Init { process: own_process, .. }, _) => {
                    process == own_process
                }
                _ => false,
            }
    }
}

impl MemberRequest {
    /// Requests `count` members of a pool.
    pub fn for_pool(class: Class, name: DeviceName, count: u32, pool: Pool) -> Self {
        let facts = BTreeMap::from([("pool".to_owned(), name.to_string())]);
        MemberRequest {
            class,
            name,
            count,
            pool,
            in_order: false,
            aliases: Vec::new(),
            facts,
            ticket: None,
            moved: None,
        }
    }

    /// Requests a device by name, which up to `share` containers may have at once.
    pub fn for_device(device: DeviceId, share: u32) -> Self {
        let DeviceId { class, name } = device;
        let member = PoolMember { name: name.clone(), numa_node: None };
        let pool = Pool { members: vec![member], share };
        MemberRequest { facts: BTreeMap::new(), ..MemberRequest::for_pool(class, name, 1, pool) }
    }

    /// Returns the devices that can serve the request.
    pub fn devices(&self) -> impl Iterator<Item = DeviceId> {
        self.candidates().map(MemberCandidate::device)
    }

    /// Returns whether the request names a device.
    pub(super) fn is_single_device(&self) -> bool {
        let mut members = self.pool.members.iter();
        members.next().is_some_and(|first| first.name == self.name)
    }

    /// Describes the request and what is available, for an error.
    pub(super) fn describe(&self, availability: &str) -> String {
        let (count, class, name) = (self.count, self.class, &self.name);
        format!("{count} wanted of pool {class}={name}, which has {availability}")
    }

    pub(super) fn candidates(&self) -> impl Iterator<Item = MemberCandidate<'_>> {
        self.pool.members.iter().map(|member| MemberCandidate { device_request: self, member })
    }
}

/// Returns the error for pools that have too few free members. It describes the request for each pool,
/// and the holders of members.
pub(super) fn none_free_error(requests: &[String], numa: Numa, holders: &[String]) -> Error {
    let numa = match numa {
        Numa::Any => String::new(),
        Numa::Same => ", all on one NUMA node".to_owned(),
        Numa::Node(node) => format!(", all on NUMA node {node}"),
    };
    let (requests, held) = (requests.join(" and "), format_holders(holders));
    error!("{requests}{numa}{held}; \"onload-ctk lease list\" shows all")
}

/// Lists a few holders. If there are many, "lease list" is easier to read.
fn format_holders(holders: &[String]) -> String {
    const MAX_SHOWN: usize = 3;
    let mut text: String =
        holders.iter().take(MAX_SHOWN).map(|holder| format!("; {holder}")).collect();
    if holders.len() > MAX_SHOWN {
        text += &format!("; {} more are held", holders.len() - MAX_SHOWN);
    }
    text
}

/// A member of a pool that may be chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberCandidate<'a> {
    /// The request that the member would serve.
    pub(crate) device_request: &'a MemberRequest,
    pub(crate) member: &'a PoolMember,
}

impl MemberCandidate<'_> {
    pub(crate) fn device(self) -> DeviceId {
        DeviceId { class: self.device_request.class, name: self.member.name.clone() }
    }
}

/// Returns the requests for pools, not those for a device by name.
pub(super) fn pool_requests(
    device_requests: &[MemberRequest],
) -> impl Iterator<Item = &MemberRequest> {
    device_requests.iter().filter(|device_request| !device_request.is_single_device())
}

/// Chooses the first free members of each pool, in the order of the requests. A member of two pools
/// serves one request. Returns `None` unless all requests can be served.
pub(crate) fn select_members<'a>(
    device_requests: &'a [MemberRequest],
    numa: Numa,
    is_free: &mut dyn FnMut(MemberCandidate<'a>) -> bool,
) -> Option<Vec<MemberCandidate<'a>>> {
    match numa {
        Numa::Any => select_members_where(device_requests, &|_| true, is_free),
        Numa::Node(node) => {
            select_members_where(device_requests, &|member_node| member_node == Some(node), is_free)
        }
        Numa::Same => numa_nodes(device_requests).into_iter().find_map(|node| {
            select_members_where(device_requests, &|member_node| member_node == node, is_free)
        }),
    }
}

/// Returns the NUMA nodes of all members, in their order. `None` comes last: members without a node may
/// be far from each other.
fn numa_nodes(device_requests: &[MemberRequest]) -> Vec<Option<u32>> {
    let members =
        pool_requests(device_requests).flat_map(|device_request| &device_request.pool.members);
    let mut known = BTreeSet::new();
    let nodes = members.map(|member| member.numa_node).filter(|node| known.insert(*node));
    let (without_node, with_node): (Vec<_>, Vec<_>) = nodes.into_iter().partition(Option::is_none);
    [with_node, without_node].concat()
}

fn select_members_where<'a>(
    device_requests: &'a [MemberRequest],
    is_node_allowed: &dyn Fn(Option<u32>) -> bool,
    is_free: &mut dyn FnMut(MemberCandidate<'a>) -> bool,
) -> Option<Vec<MemberCandidate<'a>>> {
    let mut picked: Vec<MemberCandidate<'a>> = Vec::new();
    for device_request in pool_requests(device_requests) {
        let mut missing = device_request.count;
        for candidate in device_request.candidates() {
            if missing == 0 {
                break;
            }
            let member = candidate.member;
            let is_picked = picked.iter().any(|other| {
                other.device_request.class == device_request.class
                    && other.member.name == member.name
            });
            if !is_picked && is_node_allowed(member.numa_node) && is_free(candidate) {
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
    fn device_request(pool: &str, count: u32, members: &[&str]) -> MemberRequest {
        let member = |text: &&str| {
            let (name, node) = text
                .split_once('@')
                .map_or((*text, None), |(name, node)| (name, Some(node.parse().unwrap())));
            PoolMember { name: name.try_into().unwrap(), numa_node: node }
        };
        let members = members.iter().map(member).collect();
        let share = 1;
        let name = pool.try_into().unwrap();
        MemberRequest::for_pool(Class::Vfio, name, count, Pool { members, share })
    }

    /// The names of what is picked where these are not free.
    fn picked(device_requests: &[MemberRequest], numa: Numa, held: &[&str]) -> Option<Vec<String>> {
        let mut is_free =
            |candidate: MemberCandidate<'_>| !held.contains(&candidate.member.name.as_str());
        let picked = select_members(device_requests, numa, &mut is_free)?;
        Some(picked.iter().map(|one| one.member.name.to_string()).collect())
    }

    #[test]
    fn the_first_free_members_are_picked() {
        let device_requests = [device_request("fast", 2, &["a", "b", "c"])];
        assert_eq!(picked(&device_requests, Numa::Any, &[]).unwrap(), ["a", "b"]);
        assert_eq!(picked(&device_requests, Numa::Any, &["a"]).unwrap(), ["b", "c"]);
        assert_eq!(picked(&device_requests, Numa::Any, &["a", "b"]), None);
    }

    #[test]
    fn a_member_of_two_pools_serves_one_wish() {
        let device_requests =
            [device_request("fast", 1, &["a", "b"]), device_request("any", 1, &["a", "b"])];
        assert_eq!(picked(&device_requests, Numa::Any, &[]).unwrap(), ["a", "b"]);
        assert_eq!(picked(&device_requests, Numa::Any, &["b"]), None);
    }

    #[test]
    fn members_of_one_node_are_picked_together() {
        let device_requests = [device_request("any", 2, &["a@0", "b@1", "c@1", "d"])];
        assert_eq!(picked(&device_requests, Numa::Any, &[]).unwrap(), ["a", "b"]);
        assert_eq!(picked(&device_requests, Numa::Same, &[]).unwrap(), ["b", "c"]);
        assert_eq!(picked(&device_requests, Numa::Node(1), &[]).unwrap(), ["b", "c"]);
        assert_eq!(picked(&device_requests, Numa::Node(0), &[]), None);
        assert_eq!(picked(&device_requests, Numa::Same, &["b"]), None);
    }

    #[test]
    fn the_node_of_the_first_member_comes_first() {
        let device_requests = [device_request("any", 2, &["d@1", "a@0", "b@0", "c@1"])];
        assert_eq!(picked(&device_requests, Numa::Same, &[]).unwrap(), ["d", "c"]);
        assert_eq!(picked(&device_requests, Numa::Same, &["c"]).unwrap(), ["a", "b"]);
    }

    #[test]
    fn one_node_holds_for_all_pools() {
        let device_requests =
            [device_request("one", 1, &["a@0", "b@1"]), device_request("two", 1, &["c@1", "d@2"])];
        assert_eq!(picked(&device_requests, Numa::Same, &[]).unwrap(), ["b", "c"]);
        assert_eq!(picked(&device_requests, Numa::Same, &["c"]), None);
    }

    #[test]
    fn members_without_a_node_are_together_where_none_has_one() {
        let device_requests = [device_request("any", 2, &["a", "b"])];
        assert_eq!(picked(&device_requests, Numa::Same, &[]).unwrap(), ["a", "b"]);
        assert_eq!(picked(&device_requests, Numa::Node(0), &[]), None);
    }

    #[test]
    fn what_is_not_needed_is_not_looked_at() {
        let device_requests = [device_request("any", 1, &["a", "b", "c"])];
        let mut looked = Vec::new();
        let mut is_free = |candidate: MemberCandidate<'_>| {
            looked.push(candidate.member.name.to_string());
            true
        };
        assert!(select_members(&device_requests, Numa::Any, &mut is_free).is_some());
        assert_eq!(looked, ["a"]);
    }
}
