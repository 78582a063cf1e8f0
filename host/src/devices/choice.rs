//! Which RDMA devices go with a GPU, chosen as NCCL does (`ncclTopoGetLocalNetType`, src/graph/topo.cc). Pure.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use onload_core::class::Class;
use onload_sys::pci::PciAddress;

use super::device::{Device, Health};
use super::inventory::Inventory;
use super::near::Near;
use super::rdma::fastest;
use crate::discover::gpu::Distance;

/// A GPU with its RDMA devices, of which there is one at least; or why nothing is chosen for it.
pub(super) type Pair<'i> = (PciAddress, Result<Vec<&'i Device>, &'i str>);

/// The way between a GPU and a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    /// In Mbit/s; none where nothing says it.
    bandwidth: Option<u64>,
    /// None where it is not known.
    distance: Option<Distance>,
}

/// How good a way is, the least first. NCCL knows what each CPU carries between its NUMA nodes, and sysfs does not:
/// what is on the other node comes last.
type Rank = (bool, Reverse<Option<u64>>, Distance);

impl Way {
    fn rank(self) -> Option<Rank> {
        let distance = self.distance?;
        let is_far = distance == Distance::Sys;
        Some((is_far, Reverse(self.bandwidth), distance))
    }

    /// Whether one that is below a root of its own, at an unknown distance, may be better than this rank.
    fn may_outdo(self, (_, Reverse(bandwidth), distance): Rank) -> bool {
        self.distance.is_none() && (distance > Distance::Phb || self.bandwidth > bandwidth)
    }
}

/// The devices of each GPU, by its address; nothing on a host without both.
pub(super) fn choose(inventory: &Inventory) -> Vec<Pair<'_>> {
    let near = Near::of(inventory);
    let candidates = candidates(inventory, &near);
    if candidates.is_empty() {
        return Vec::new();
    }
    let mut pairs: Vec<Pair<'_>> = Vec::new();
    let mut by_vendor: BTreeMap<&str, Vec<PciAddress>> = BTreeMap::new();
    for (gpu, vendor) in &near.gpus {
        by_vendor.entry(vendor).or_default().push(*gpu);
    }
    for gpus in by_vendor.values() {
        let ways = gpus.iter().map(|gpu| {
            let ways = candidates.iter();
            ways.map(|nic| way(&near, *gpu, nic)).collect()
        });
        let ways: Vec<Vec<Way>> = ways.collect();
        for (number, gpu) in gpus.iter().enumerate() {
            let dealt = deal(number, &ways).ok_or_else(|| near.why_unknown());
            let devices = dealt.map(|dealt| {
                let dealt = dealt.into_iter().filter_map(|at| candidates.get(at));
                dealt.map(|nic| nic.device).collect()
            });
            pairs.push((*gpu, devices));
        }
    }
    pairs.sort_by_key(|(gpu, _)| *gpu);
    pairs
}

struct Candidate<'i> {
    device: &'i Device,
    address: PciAddress,
    /// Of its fastest port.
    mbps: Option<u64>,
}

/// One device of each NIC, by address. What has no active port counts only where none has one.
fn candidates<'i>(inventory: &'i Inventory, near: &Near<'_>) -> Vec<Candidate<'i>> {
    let mut by_address: BTreeMap<PciAddress, Candidate<'_>> = BTreeMap::new();
    for device in inventory.of_class(Class::Rdma) {
        let nic = near.nics.iter().find(|nic| Some(nic.address) == device.pci);
        if let Some(nic) = nic {
            let read = device.read.and_then(|at| inventory.rdma.get(at));
            by_address.entry(nic.address).or_insert(Candidate {
                device,
                address: nic.address,
                mbps: read.and_then(fastest),
            });
        }
    }
    let is_usable = |candidate: &Candidate<'_>| candidate.device.health == Health::Healthy;
    let any_usable = by_address.values().any(is_usable);
    let all = by_address.into_values();
    all.filter(|candidate| !any_usable || is_usable(candidate))
        .collect()
}

fn way(near: &Near<'_>, gpu: PciAddress, nic: &Candidate<'_>) -> Way {
    let links = near.bandwidth(gpu, nic.address);
    Way {
        bandwidth: links.into_iter().chain(nic.mbps).min(),
        distance: near.distance(gpu, nic.address),
    }
}

/// The NICs of the GPU with that number, by their places, of the ways of each GPU to each NIC. None where a NIC at an
/// unknown distance may be better than all.
fn deal(number: usize, ways: &[Vec<Way>]) -> Option<Vec<usize>> {
    let own = ways.get(number)?;
    let nics = best(own.iter().copied());
    let first = *nics.first()?;
    let rank = own[first].rank()?;
    if own.iter().any(|way| way.may_outdo(rank)) {
        return None;
    }
    // The GPUs that are best from that NIC share all of them.
    let sharing = best(ways.iter().map(|ways| ways[first])).len().max(1);
    let each = nics.len().div_ceil(sharing);
    let start = mirrored(number % sharing, nics.len());
    let dealt = (start..start + each).map(|at| nics[at % nics.len()]);
    Some(dealt.collect())
}

/// The places of the ways with the best rank.
fn best(ways: impl Iterator<Item = Way>) -> Vec<usize> {
    let ranks: Vec<Option<Rank>> = ways.map(Way::rank).collect();
    let best = ranks.iter().flatten().min();
    let ranks = ranks.iter().enumerate();
    ranks
        .filter(|(_, rank)| rank.is_some() && rank.as_ref() == best)
        .map(|(at, _)| at)
        .collect()
}

/// A number with its bits in the opposite order, where there is a power of two of them: GPUs beside each other get NICs
/// that are far apart.
fn mirrored(number: usize, count: usize) -> usize {
    if !count.is_power_of_two() {
        return number;
    }
    let bits = count.trailing_zeros();
    (0..bits).fold(0, |mirror, bit| mirror << 1 | number >> bit & 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIX: Option<Distance> = Some(Distance::Pix);
    const PHB: Option<Distance> = Some(Distance::Phb);
    const NODE: Option<Distance> = Some(Distance::Node);
    const SYS: Option<Distance> = Some(Distance::Sys);

    fn way(gigabits: u64, distance: Option<Distance>) -> Way {
        Way {
            bandwidth: (gigabits > 0).then_some(gigabits * 1000),
            distance,
        }
    }

    /// What the only GPU gets of these.
    fn alone(ways: &[Way]) -> Option<Vec<usize>> {
        deal(0, &[ways.to_vec()])
    }

    #[test]
    fn bandwidth_comes_before_the_way() {
        assert_eq!(alone(&[way(100, PIX), way(400, NODE)]), Some(vec![1]));
        assert_eq!(alone(&[way(400, NODE), way(400, PIX)]), Some(vec![1]));
        assert_eq!(alone(&[way(0, PIX), way(25, PHB)]), Some(vec![1]));
    }

    #[test]
    fn the_other_numa_node_comes_last() {
        assert_eq!(alone(&[way(400, SYS), way(100, NODE)]), Some(vec![1]));
        assert_eq!(alone(&[way(400, SYS), way(100, SYS)]), Some(vec![0]));
    }

    #[test]
    fn what_may_be_better_at_an_unknown_distance_chooses_nothing() {
        assert_eq!(alone(&[way(400, None)]), None);
        assert_eq!(alone(&[way(400, NODE), way(100, None)]), None);
        assert_eq!(alone(&[way(200, PIX), way(400, None)]), None);
        assert_eq!(alone(&[way(400, PIX), way(400, None)]), Some(vec![0]));
        assert_eq!(alone(&[]), None);
    }

    /// What each of some GPUs gets of as many NICs, all of them equally near.
    fn dealt(gpus: usize, nics: usize) -> Vec<Vec<usize>> {
        let ways = vec![vec![way(400, NODE); nics]; gpus];
        let all = (0..gpus).map(|gpu| deal(gpu, &ways).unwrap());
        all.collect()
    }

    #[test]
    fn gpus_that_share_nics_get_them_by_their_numbers() {
        assert_eq!(dealt(2, 1), [[0], [0]]);
        assert_eq!(dealt(2, 2), [[0], [1]]);
        assert_eq!(dealt(4, 4), [[0], [2], [1], [3]]);
        assert_eq!(dealt(4, 2), [[0], [1], [0], [1]]);
        assert_eq!(dealt(3, 3), [[0], [1], [2]]);
    }

    #[test]
    fn more_nics_than_gpus_are_shared_out_whole() {
        assert_eq!(dealt(1, 2), [[0, 1]]);
        assert_eq!(dealt(2, 4), [[0, 1], [2, 3]]);
        assert_eq!(dealt(2, 3), [[0, 1], [1, 2]]);
    }

    #[test]
    fn bits_are_mirrored_below_a_power_of_two() {
        let mirror = |count: usize| (0..count).map(|at| mirrored(at, count)).collect::<Vec<_>>();
        assert_eq!(mirror(8), [0, 4, 2, 6, 1, 5, 3, 7]);
        assert_eq!(mirror(6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(mirrored(5, 4), 2);
        assert_eq!(mirrored(3, 1), 0);
    }
}
