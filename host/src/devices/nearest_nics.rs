//! Chooses the NICs for each GPU like NCCL (`ncclTopoGetLocalNetType`, src/graph/topo.cc). Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use onload_core::class::Class;
use onload_core::gpu_name;
use onload_core::nearness::{GpuNearness, Nearness, NicRank};
use onload_sys::pci::PciAddress;

use super::device::{GpuAlias, Health, HostDevice};
use super::gpu_nics::{GpuNicMap, NetworkFunction};
use super::inventory::Inventory;
use super::rdma::{by_function, max_rate};
use crate::discover::exclusion::Exclusion;
use crate::discover::gpu::Distance;
use crate::discover::gpu_index::GpuIndexes;
use crate::discover::rdma::RdmaDevice;

/// A GPU with its RDMA devices, at least one, or the reason why none are chosen.
type GpuChoice<'i> = (PciAddress, Result<Vec<&'i HostDevice>, &'i str>);

/// The path between a GPU and a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GpuNicPath {
    /// In Mbit/s; `None` if unknown.
    bandwidth: Option<u64>,
    /// `None` if unknown.
    distance: Option<Distance>,
    /// Whether the NIC can be used.
    is_usable: bool,
}

/// The rank of a path, best first: unusable NICs are last. NCCL knows each CPU's bandwidth between NUMA nodes, which
/// sysfs lacks, so NICs on another node rank after all others.
type PathRank = (Reverse<bool>, bool, Reverse<Option<u64>>, Distance);

impl GpuNicPath {
    fn rank(self) -> Option<PathRank> {
        let distance = self.distance?;
        let is_far = distance == Distance::Sys;
        let bandwidth = Reverse(self.bandwidth);
        Some((Reverse(self.is_usable), is_far, bandwidth, distance))
    }

    /// Returns whether a NIC at an unknown distance, below a separate root, may be better than this rank.
    fn may_outdo(self, (Reverse(usable), _, Reverse(bandwidth), distance): PathRank) -> bool {
        let is_better = distance > Distance::Phb || self.bandwidth > bandwidth;
        self.distance.is_none()
            && (self.is_usable && !usable || self.is_usable == usable && is_better)
    }
}

/// Adds the names under which the RDMA devices nearest to each GPU are offered.
pub(super) fn add_gpu_aliases(inventory: &mut Inventory) {
    let (mut aliases, mut exclusions) = (Vec::new(), Vec::new());
    for (gpu, chosen) in choose(inventory) {
        let name = gpu_name::from_address(gpu);
        match chosen {
            Ok(devices) => {
                let rdma = devices.into_iter().map(|device| device.name.to_string()).collect();
                aliases.push(GpuAlias { name, gpu, rdma });
            }
            Err(why) => {
                let reason = format!(
                    "could not determine which RDMA device is nearest to that GPU: {why}; request \
                     a device by name"
                );
                let exclusion = Exclusion::new(Class::Rdma, name, reason);
                exclusions.push(exclusion.with_pci(Some(gpu)));
            }
        }
    }
    if !aliases.is_empty() {
        let indexes = &inventory.gpu_indexes;
        let by_index = aliases_by_index(indexes, &aliases);
        aliases.extend(by_index);
        let unknown = indexes.unknown.iter();
        exclusions.extend(unknown.map(|(name, reason)| Exclusion::new(Class::Rdma, name, reason)));
    }
    inventory.near_gpus = aliases;
    inventory.not_offered.extend(exclusions);
}

/// Returns the same aliases under the numbers of the GPUs.
fn aliases_by_index(indexes: &GpuIndexes, aliases: &[GpuAlias]) -> Vec<GpuAlias> {
    let by_index = indexes.known.iter().filter_map(|(index, gpu)| {
        let by_address = aliases.iter().find(|alias| alias.gpu == *gpu)?;
        Some(GpuAlias { name: gpu_name::from_index(*index), ..by_address.clone() })
    });
    by_index.collect()
}

/// Returns the devices for each GPU by address. Empty on a host without GPUs or NICs.
fn choose(inventory: &Inventory) -> Vec<GpuChoice<'_>> {
    let gpu_nics = GpuNicMap::from_inventory(inventory);
    let candidates = nic_candidates(inventory, &gpu_nics);
    if candidates.is_empty() {
        return Vec::new();
    }
    let mut choices: Vec<GpuChoice<'_>> = Vec::new();
    for (gpus, paths) in gpu_nic_paths(&gpu_nics, &candidates) {
        for (number, gpu) in gpus.into_iter().enumerate() {
            let assigned = assign_nics(number, &paths).ok_or_else(|| gpu_nics.unknown_reason());
            let devices = assigned.map(|indexes| {
                indexes
                    .into_iter()
                    .filter_map(|index| candidates.get(index))
                    .map(|nic| nic.device)
                    .collect()
            });
            choices.push((gpu, devices));
        }
    }
    choices.sort_by_key(|(gpu, _)| *gpu);
    choices
}

/// Returns how near the members of a pool are to each GPU. Empty on a host without GPUs. A virtual function has the
/// position of its physical function.
pub(crate) fn pool_nearness(gpu_nics: &GpuNicMap<'_>, members: &[&HostDevice]) -> Nearness {
    if gpu_nics.gpus.is_empty() {
        return Nearness::default();
    }
    let inventory = gpu_nics.inventory;
    let mut members: Vec<(usize, &HostDevice)> = members.iter().copied().enumerate().collect();
    // The NIC's own device comes before its virtual functions and subfunctions.
    members.sort_by_key(|(_, device)| is_vf_or_subfunction(device, inventory));
    // Unusable devices are grouped separately and rank after all others, on any NIC.
    let mut by_nic: BTreeMap<(PciAddress, bool), (&HostDevice, Vec<usize>)> = BTreeMap::new();
    for (index, device) in members {
        if let Some(pci) = device.pci {
            let function = inventory.functions.get(pci);
            let physical = function.and_then(|function| function.physical_function);
            let nic = (physical.unwrap_or(pci), is_unusable(device, inventory));
            let of_nic = by_nic.entry(nic).or_insert((device, Vec::new()));
            of_nic.1.push(index);
        }
    }
    let rates = nic_rates(inventory);
    let nics: Vec<NicCandidate<'_>> = by_nic
        .iter()
        .map(|((address, is_idle), (device, _))| NicCandidate {
            device,
            address: *address,
            mbps: rates.get(address).copied(),
            is_usable: !is_idle,
        })
        .collect();
    let mut orders: BTreeMap<PciAddress, Vec<(usize, PathRank)>> = BTreeMap::new();
    for (gpus, paths) in gpu_nic_paths(gpu_nics, &nics) {
        let gpus = gpus.into_iter().enumerate();
        orders.extend(gpus.map(|(number, gpu)| (gpu, rank_nics(number, &paths))));
    }
    let sorted_ranks: BTreeSet<PathRank> =
        orders.values().flatten().map(|(_, rank)| *rank).collect();
    let rank_numbers: BTreeMap<PathRank, u32> = sorted_ranks.into_iter().zip(0..).collect();
    let mut gpus = BTreeMap::new();
    for (address, order) in orders {
        let indexes = &inventory.gpu_indexes.known;
        gpus.insert(
            address,
            GpuNearness {
                index: indexes.iter().find(|(_, gpu)| **gpu == address).map(|(index, _)| *index),
                nics: order
                    .into_iter()
                    .filter_map(|(nic, rank)| {
                        Some(NicRank { nic, rank: *rank_numbers.get(&rank)? })
                    })
                    .collect(),
            },
        );
    }
    let unknown = gpus.values().any(|gpu| gpu.nics.is_empty()).then(|| {
        if nics.is_empty() { "it has no device on PCI" } else { gpu_nics.unknown_reason() }
    });
    Nearness {
        nics: by_nic.into_values().map(|(_, of_nic)| of_nic).collect(),
        gpus,
        unknown: unknown.map(str::to_owned),
    }
}

/// Returns the data read from the host if it is an RDMA device.
fn rdma<'i>(device: &HostDevice, inventory: &'i Inventory) -> Option<&'i RdmaDevice> {
    let index = device.read.filter(|_| device.class == Class::Rdma)?;
    inventory.rdma.get(index)
}

/// Returns whether the device is a virtual function or belongs to a subfunction.
fn is_vf_or_subfunction(device: &HostDevice, inventory: &Inventory) -> bool {
    let function = device.pci.and_then(|pci| inventory.functions.get(pci));
    let is_virtual = function.is_some_and(|function| function.physical_function.is_some());
    is_virtual || rdma(device, inventory).is_some_and(|read| read.is_subfunction)
}

fn is_unusable(device: &HostDevice, inventory: &Inventory) -> bool {
    let is_waiting = rdma(device, inventory).is_some_and(|read| read.waits_for_container);
    is_waiting || device.health != Health::Healthy
}

/// Returns the bandwidth of each NIC in Mbit/s: the maximum of its RDMA ports, or else of its interfaces.
fn nic_rates(inventory: &Inventory) -> BTreeMap<PciAddress, u64> {
    let ports = inventory.rdma.iter().map(|device| (device.pci_address, max_rate(device)));
    let interfaces =
        inventory.interfaces.iter().map(|interface| (interface.pci(), interface.speed_mbps));
    let mut rates = max_rates(interfaces);
    rates.append(&mut max_rates(ports));
    rates
}

fn max_rates(
    rates: impl Iterator<Item = (Option<PciAddress>, Option<u64>)>,
) -> BTreeMap<PciAddress, u64> {
    let mut all = BTreeMap::new();
    for (address, mbps) in rates {
        if let (Some(address), Some(mbps)) = (address, mbps) {
            let max = all.entry(address).or_insert(mbps);
            *max = mbps.max(*max);
        }
    }
    all
}

struct NicCandidate<'i> {
    device: &'i HostDevice,
    address: PciAddress,
    /// Bandwidth of its fastest port.
    mbps: Option<u64>,
    is_usable: bool,
}

/// Returns one device of each NIC by address.
fn nic_candidates<'i>(inventory: &'i Inventory, gpu_nics: &GpuNicMap<'_>) -> Vec<NicCandidate<'i>> {
    let devices: Vec<_> = inventory
        .devices_of_class(Class::Rdma)
        .filter_map(|device| Some((device, inventory.rdma.get(device.read?)?)))
        .collect();
    let by_nic = by_function(devices.iter().map(|(_, read)| *read));
    let candidate = |nic: &NetworkFunction| {
        let nearest = by_nic.get(&nic.address)?;
        let (device, read) = devices.iter().find(|(_, read)| read.name == nearest.name)?;
        Some(NicCandidate {
            device,
            address: nic.address,
            mbps: max_rate(read),
            is_usable: device.health == Health::Healthy,
        })
    };
    gpu_nics.nics.iter().filter_map(candidate).collect()
}

/// Returns the paths of each vendor's GPUs to these NICs, since a container's programs number the GPUs of one vendor.
fn gpu_nic_paths(
    gpu_nics: &GpuNicMap<'_>,
    nics: &[NicCandidate<'_>],
) -> Vec<(Vec<PciAddress>, Vec<Vec<GpuNicPath>>)> {
    let mut by_vendor: BTreeMap<&str, Vec<PciAddress>> = BTreeMap::new();
    for (gpu, vendor) in &gpu_nics.gpus {
        by_vendor.entry(vendor).or_default().push(*gpu);
    }
    let mut all = Vec::new();
    for gpus in by_vendor.into_values() {
        let paths = gpus
            .iter()
            .map(|gpu| nics.iter().map(|nic| gpu_nic_path(gpu_nics, *gpu, nic)).collect())
            .collect();
        all.push((gpus, paths));
    }
    all
}

fn gpu_nic_path(gpu_nics: &GpuNicMap<'_>, gpu: PciAddress, nic: &NicCandidate<'_>) -> GpuNicPath {
    let links = gpu_nics.bandwidth(gpu, nic.address);
    GpuNicPath {
        bandwidth: links.into_iter().chain(nic.mbps).min(),
        distance: gpu_nics.distance(gpu, nic.address),
        is_usable: nic.is_usable,
    }
}

/// Returns the indexes of the NICs for the GPU `number`, given the paths of all GPUs. `None` if a NIC at an unknown
/// distance may be better.
fn assign_nics(number: usize, paths: &[Vec<GpuNicPath>]) -> Option<Vec<usize>> {
    let (_, rank) = *rank_nics(number, paths).first()?;
    let (mut nics, each) = find_ties(number, paths, rank);
    nics.truncate(each);
    Some(nics)
}

/// Returns the NICs for the GPU `number` with their ranks, nearest first, up to the rank that a NIC at an unknown
/// distance may exceed.
fn rank_nics(number: usize, paths: &[Vec<GpuNicPath>]) -> Vec<(usize, PathRank)> {
    let own_paths = paths.get(number).map_or(&[][..], Vec::as_slice);
    let ranks: BTreeSet<PathRank> = own_paths.iter().filter_map(|path| path.rank()).collect();
    let known =
        ranks.into_iter().take_while(|rank| !own_paths.iter().any(|path| path.may_outdo(*rank)));
    known
        .flat_map(|rank| find_ties(number, paths, rank).0.into_iter().map(move |nic| (nic, rank)))
        .collect()
}

/// Returns the NICs with this rank for the GPU `number`, starting with its own, and the number of its own.
fn find_ties(number: usize, paths: &[Vec<GpuNicPath>], rank: PathRank) -> (Vec<usize>, usize) {
    let mut nics: Vec<usize> = paths
        .get(number)
        .into_iter()
        .flatten()
        .enumerate()
        .filter(|(_, path)| path.rank() == Some(rank))
        .map(|(index, _)| index)
        .collect();
    let Some(first) = nics.first().copied() else {
        return (nics, 0);
    };
    // The GPUs that are nearest to that NIC share these NICs.
    let sharing = count_best(paths.iter().map(|paths| paths[first]));
    let start = reverse_bits(number % sharing, nics.len()) % nics.len();
    nics.rotate_left(start);
    let each = nics.len().div_ceil(sharing);
    (nics, each)
}

/// Returns the number of paths with the best rank, at least one.
fn count_best(paths: impl Iterator<Item = GpuNicPath>) -> usize {
    let ranks: Vec<PathRank> = paths.filter_map(GpuNicPath::rank).collect();
    let best = ranks.iter().min();
    ranks.iter().filter(|rank| Some(*rank) == best).count().max(1)
}

/// Reverses the bits of a number if `count` is a power of two, so that neighbouring GPUs get distant NICs.
fn reverse_bits(number: usize, count: usize) -> usize {
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

    fn way(gigabits: u64, distance: Option<Distance>) -> GpuNicPath {
        GpuNicPath {
            bandwidth: (gigabits > 0).then_some(gigabits * 1000),
            distance,
            is_usable: true,
        }
    }

    /// Returns the NICs of these that the only GPU gets.
    fn alone(ways: &[GpuNicPath]) -> Option<Vec<usize>> {
        assign_nics(0, &[ways.to_vec()])
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

    /// Returns what each GPU gets of as many NICs, all of them equally near.
    fn dealt(gpus: usize, nics: usize) -> Vec<Vec<usize>> {
        let paths = vec![vec![way(400, NODE); nics]; gpus];
        (0..gpus).map(|gpu| assign_nics(gpu, &paths).unwrap()).collect()
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

    fn ordered(number: usize, ways: &[Vec<GpuNicPath>]) -> Vec<usize> {
        rank_nics(number, ways).into_iter().map(|(nic, _)| nic).collect()
    }

    #[test]
    fn all_nics_follow_the_nearest_by_the_same_rule() {
        let paths = [way(400, SYS), way(100, PIX), way(400, NODE), way(400, PHB)];
        assert_eq!(ordered(0, &[paths.to_vec()]), [3, 2, 1, 0]);
        // Beside each other, each begins with its own share.
        let paths = vec![vec![way(400, NODE); 4]; 2];
        assert_eq!(ordered(0, &paths), [0, 1, 2, 3]);
        assert_eq!(ordered(1, &paths), [2, 3, 0, 1]);
        let paths = vec![vec![way(400, NODE); 3]; 3];
        assert_eq!(ordered(2, &paths), [2, 0, 1]);
    }

    #[test]
    fn nothing_follows_what_a_nic_at_an_unknown_distance_may_outdo() {
        let own = vec![way(400, PIX), way(400, NODE), way(400, None)];
        assert_eq!(ordered(0, &[own]), [0]);
        assert!(ordered(0, &[vec![way(400, None)]]).is_empty());
        assert!(ordered(0, &[]).is_empty());
    }

    #[test]
    fn what_cannot_be_used_comes_last_and_never_outdoes_what_can() {
        let down = |way: GpuNicPath| GpuNicPath { is_usable: false, ..way };
        let own = vec![down(way(400, PIX)), way(25, SYS)];
        assert_eq!(ordered(0, &[own]), [1, 0]);
        let own = vec![way(25, PIX), down(way(400, None)), down(way(25, NODE))];
        assert_eq!(ordered(0, &[own]), [0]);
        let own = vec![down(way(400, PIX)), way(25, None)];
        assert!(ordered(0, &[own]).is_empty());
    }

    #[test]
    fn bits_are_mirrored_below_a_power_of_two() {
        let mirror =
            |count: usize| (0..count).map(|at| reverse_bits(at, count)).collect::<Vec<_>>();
        assert_eq!(mirror(8), [0, 4, 2, 6, 1, 5, 3, 7]);
        assert_eq!(mirror(6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(reverse_bits(5, 4), 2);
        assert_eq!(reverse_bits(3, 1), 0);
    }
}
