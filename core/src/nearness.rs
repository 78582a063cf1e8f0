//! Which members of a pool are nearest to which GPU, as annotations of the pool's device in a specification say it.
//! The generator knows the PCIe tree and writes them; hook and wrapper know the container's GPUs, and look them up.

use std::collections::{BTreeMap, BTreeSet};

use onload_sys::error::{Context as _, Result, bail, error};
use onload_sys::pci::PciAddress;
use onload_sys::text::{Quoted, parse_decimal};

use crate::pool::MAX_MEMBERS;

/// The annotation that lists the members on each NIC by their places among the members, as `0-63,128 64-127`. Those on a
/// NIC that carry nothing are listed as of another.
pub const NICS: &str = "onload.dev/pool-nics";
/// The annotation that lists each GPU of the host, as `ADDRESS=NIC:RANK,…` or `ADDRESS#INDEX=NIC:RANK,…`, with the
/// NICs by their places in [`NICS`], nearest first.
pub const NEAR: &str = "onload.dev/pool-near";
/// The annotation that says why nothing is known to be nearest to a GPU without NICs in [`NEAR`].
pub const UNKNOWN: &str = "onload.dev/pool-near-unknown";

/// Empty on a host without GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nearness {
    /// The members on each NIC.
    pub nics: Vec<Vec<usize>>,
    pub gpus: BTreeMap<PciAddress, GpuNearness>,
    pub unknown: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuNearness {
    /// Its number in its vendor's own specifications.
    pub index: Option<u32>,
    /// Nearest first; none where nothing is known to be nearest.
    pub nics: Vec<NicRank>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicRank {
    pub nic: usize,
    /// How near it is, beside those of all GPUs: the least is nearest.
    pub rank: u32,
}

impl Nearness {
    pub fn to_annotations(&self) -> BTreeMap<String, String> {
        if self.gpus.is_empty() {
            return BTreeMap::new();
        }
        let nics: Vec<String> = self.nics.iter().map(|members| format_ranges(members)).collect();
        let gpus: Vec<String> =
            self.gpus.iter().map(|(address, gpu)| gpu.to_annotation(*address)).collect();
        let entries = [(NICS, nics.join(" ")), (NEAR, gpus.join(" "))].into_iter();
        let unknown = self.unknown.clone().map(|reason| (UNKNOWN, reason));
        let entries = entries.filter(|(_, value)| !value.is_empty());
        let entries = entries.chain(unknown);
        entries.map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// Reads the annotations of a pool with so many members.
    pub fn from_annotations(
        annotations: &BTreeMap<String, String>,
        members: usize,
    ) -> Result<Self> {
        let mut nearness =
            Nearness { unknown: annotations.get(UNKNOWN).cloned(), ..Nearness::default() };
        for word in split_words(annotations, NICS) {
            let indexes = parse_ranges(word, members);
            let indexes = indexes
                .ok_or_else(|| error!("{NICS} has {}, which are no members", Quoted(word)))?;
            nearness.nics.push(indexes);
        }
        for word in split_words(annotations, NEAR) {
            let (address, gpu) = parse_gpu(word, nearness.nics.len())
                .with_context(|| format!("{NEAR} has a GPU"))?;
            nearness.gpus.insert(address, gpu);
        }
        Ok(nearness)
    }

    /// The members for a container with these GPUs that wants so many, nearest first. Of several members each GPU in
    /// turn gets its nearest; one member is the nearest to any of the GPUs. What is nowhere near is left out.
    pub fn rank_members(&self, gpus: &[PciAddress], count: u32) -> Vec<usize> {
        let rankings: Vec<&[NicRank]> =
            gpus.iter().filter_map(|gpu| Some(self.gpus.get(gpu)?.nics.as_slice())).collect();
        if count > 1 {
            return self.rank_round_robin(&rankings);
        }
        let mut nics: Vec<(u32, usize)> = Vec::new();
        for nic in rankings.into_iter().flatten() {
            nics.push((nic.rank, nic.nic));
        }
        // Of equal ranks the first GPU's own order stays.
        nics.sort_by_key(|(rank, _)| *rank);
        let members = nics.into_iter().flat_map(|(_, nic)| self.nic_members(nic));
        let mut seen = BTreeSet::new();
        members.filter(|member| seen.insert(*member)).collect()
    }

    fn rank_round_robin(&self, rankings: &[&[NicRank]]) -> Vec<usize> {
        let ranked_members = |nic_rank: &NicRank| {
            let rank = nic_rank.rank;
            self.nic_members(nic_rank.nic).map(move |member| (rank, member))
        };
        let lists = rankings.iter().map(|nics| nics.iter().flat_map(ranked_members));
        let mut lists: Vec<_> = lists.collect();
        let (mut order, mut seen) = (Vec::new(), BTreeSet::new());
        loop {
            let next =
                lists.iter_mut().filter_map(|list| list.find(|(_, member)| !seen.contains(member)));
            let mut round: Vec<(u32, usize)> = next.collect();
            if round.is_empty() {
                return order;
            }
            round.sort_by_key(|(rank, _)| *rank);
            let members = round.into_iter().map(|(_, member)| member);
            order.extend(members.filter(|member| seen.insert(*member)));
        }
    }

    fn nic_members(&self, nic: usize) -> impl Iterator<Item = usize> {
        self.nics.get(nic).into_iter().flatten().copied()
    }
}

impl GpuNearness {
    fn to_annotation(&self, address: PciAddress) -> String {
        let index = self.index.map(|index| format!("#{index}"));
        let nics = self.nics.iter();
        let nics = nics.map(|nic_rank| format!("{}:{}", nic_rank.nic, nic_rank.rank));
        let nics: Vec<String> = nics.collect();
        format!("{address}{}={}", index.unwrap_or_default(), nics.join(","))
    }
}

fn split_words<'a>(
    annotations: &'a BTreeMap<String, String>,
    key: &str,
) -> impl Iterator<Item = &'a str> {
    let text = annotations.get(key).filter(|text| !text.is_empty());
    text.into_iter().flat_map(|text| text.split(' '))
}

/// Ascending places as `0-63,128`.
fn format_ranges(indexes: &[usize]) -> String {
    let runs = indexes.chunk_by(|one, next| one + 1 == *next);
    let runs = runs.filter_map(|run| match (run.first()?, run.last()?) {
        (one, other) if one == other => Some(one.to_string()),
        (first, last) => Some(format!("{first}-{last}")),
    });
    runs.collect::<Vec<String>>().join(",")
}

fn parse_ranges(word: &str, members: usize) -> Option<Vec<usize>> {
    let parse_index = |text: &str| {
        let index = usize::try_from(parse_decimal(text)?).ok()?;
        (index < members.min(MAX_MEMBERS)).then_some(index)
    };
    let mut indexes = Vec::new();
    for part in word.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        indexes.extend(parse_index(first)?..=parse_index(last)?);
        if indexes.len() > members {
            return None;
        }
    }
    (!indexes.is_empty()).then_some(indexes)
}

fn parse_gpu(word: &str, nics: usize) -> Result<(PciAddress, GpuNearness)> {
    let not_understood = || error!("{}, which is not understood", Quoted(word));
    let (name, list) = word.split_once('=').ok_or_else(not_understood)?;
    let (address, index) = match name.split_once('#') {
        Some((address, index)) => (address, Some(parse_decimal(index).ok_or_else(not_understood)?)),
        None => (name, None),
    };
    let mut gpu = GpuNearness { index, nics: Vec::new() };
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (nic, rank) = part.split_once(':').ok_or_else(not_understood)?;
        let nic: u32 = parse_decimal(nic).ok_or_else(not_understood)?;
        let nic = usize::try_from(nic).unwrap_or(usize::MAX);
        if nic >= nics || gpu.nics.len() == nics {
            bail!("{}, with a NIC that {NICS} does not have", Quoted(word));
        }
        let rank = parse_decimal(rank).ok_or_else(not_understood)?;
        gpu.nics.push(NicRank { nic, rank });
    }
    Ok((address.parse()?, gpu))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "0000:1b:00.0";
    const OTHER: &str = "0000:3d:00.0";

    fn annotations(nics: &str, near: &str) -> BTreeMap<String, String> {
        let entries = [(NICS, nics), (NEAR, near)];
        let entries = entries.map(|(key, value)| (key.to_owned(), value.to_owned()));
        BTreeMap::from(entries)
    }

    fn read(nics: &str, near: &str, members: usize) -> Result<Nearness> {
        Nearness::from_annotations(&annotations(nics, near), members)
    }

    /// The order for these GPUs.
    fn order(nics: &str, near: &str, gpus: &[&str], count: u32) -> Vec<usize> {
        let gpus: Vec<PciAddress> = gpus.iter().map(|gpu| gpu.parse().unwrap()).collect();
        read(nics, near, 100).unwrap().rank_members(&gpus, count)
    }

    #[test]
    fn what_is_written_is_read_back() {
        let near = |nic, rank| NicRank { nic, rank };
        let gpu = |index, nics: &[NicRank]| GpuNearness { index, nics: nics.to_vec() };
        let nearness = Nearness {
            nics: vec![vec![0, 1, 2, 9], vec![3, 5, 6], vec![4]],
            gpus: BTreeMap::from([
                (ONE.parse().unwrap(), gpu(Some(7), &[near(1, 0), near(0, 3)])),
                (OTHER.parse().unwrap(), gpu(None, &[])),
            ]),
            unknown: Some("the kernel does not say it".to_owned()),
        };
        let written = nearness.to_annotations();
        assert_eq!(written[NICS], "0-2,9 3,5-6 4");
        assert_eq!(written[NEAR], "0000:1b:00.0#7=1:0,0:3 0000:3d:00.0=");
        assert_eq!(Nearness::from_annotations(&written, 10), Ok(nearness));
    }

    #[test]
    fn a_host_without_gpus_writes_nothing() {
        let without = Nearness { nics: vec![vec![0]], ..Nearness::default() };
        assert!(without.to_annotations().is_empty());
        assert_eq!(Nearness::from_annotations(&BTreeMap::new(), 4), Ok(Nearness::default()));
    }

    #[test]
    fn the_nearest_members_of_one_gpu_come_first() {
        let near = "0000:1b:00.0=1:0,0:2 0000:3d:00.0=0:0";
        assert_eq!(order("0-1 2-3", near, &[ONE], 1), [2, 3, 0, 1]);
        assert_eq!(order("0-1 2-3", near, &[ONE], 2), [2, 3, 0, 1]);
        // What is nowhere near is left out.
        assert_eq!(order("0-1 2-3", near, &[OTHER], 1), [0, 1]);
        assert!(order("0-1 2-3", near, &[], 1).is_empty());
        assert!(order("0-1 2-3", near, &["0000:99:00.0"], 1).is_empty());
    }

    #[test]
    fn one_member_is_the_nearest_to_any_gpu_and_of_several_each_gpu_gets_one_in_turn() {
        let near = "0000:1b:00.0=0:0,1:4 0000:3d:00.0=1:2,0:4";
        let both = &[ONE, OTHER];
        assert_eq!(order("0-2 3-5", near, both, 1), [0, 1, 2, 3, 4, 5]);
        assert_eq!(order("0-2 3-5", near, both, 2), [0, 3, 1, 4, 2, 5]);
        // Two that share a NIC.
        let near = "0000:1b:00.0=0:0,1:1 0000:3d:00.0=0:0,1:1";
        assert_eq!(order("0-1 2", near, both, 2), [0, 1, 2]);
        // Of what is as good, each has its own first.
        let near = "0000:1b:00.0=0:0,1:0 0000:3d:00.0=1:0,0:0";
        assert_eq!(order("0 1", near, both, 2), [0, 1]);
        assert_eq!(order("0 1", near, &[OTHER], 1), [1, 0]);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (nics, near, says) in [
            ("0-4", "", "onload.dev/pool-nics has \"0-4\", which are no members"),
            ("x", "", "which are no members"),
            ("0,", "", "which are no members"),
            ("0  1", "", "\"\", which are no members"),
            ("0-3,0-3", "", "which are no members"),
            ("3-0", "", "which are no members"),
            ("0-4294967296", "", "which are no members"),
            ("0", "0000:1b:00.0", "onload.dev/pool-near has a GPU: \"0000:1b:00.0\", which"),
            ("0", "0000:1b:00.0#=0:0", "which is not understood"),
            ("0", "0000:1b:00.0#01=0:0", "which is not understood"),
            ("0", "0000:1b:00.0=0", "which is not understood"),
            ("0", "0000:1b:00.0=0:-1", "which is not understood"),
            ("0", "0000:1b:00.0=1:0", "with a NIC that onload.dev/pool-nics does not have"),
            ("0", "0000:1b:00.0=0:0,0:0", "with a NIC that onload.dev/pool-nics does not"),
            ("0", "../etc=0:0", "\"../etc\" is not a PCI address"),
        ] {
            let message = format!("{:#}", read(nics, near, 4).unwrap_err());
            assert!(message.contains(says), "{nics:?} {near:?}: {message}");
        }
    }

    #[test]
    fn a_large_pool_beside_many_gpus_fits_a_specification_and_is_ordered_whole() {
        const MEMBERS: usize = 4096;
        const GPUS: u32 = 16;
        let of_nic = |nic: usize| (nic..MEMBERS).step_by(64).collect();
        let nearness = Nearness {
            nics: (0..64).map(of_nic).collect(),
            gpus: (0..GPUS)
                .map(|number| {
                    let near = |nic| NicRank { nic, rank: 1000 };
                    let gpu =
                        GpuNearness { index: Some(number), nics: (0..64).map(near).collect() };
                    (format!("0000:{:02x}:00.0", number + 1).parse().unwrap(), gpu)
                })
                .collect(),
            unknown: None,
        };
        let written = nearness.to_annotations();
        let bytes: usize = written.values().map(String::len).sum();
        assert!(bytes < 32 * 1024, "{bytes}");
        assert_eq!(Nearness::from_annotations(&written, MEMBERS).unwrap(), nearness);
        let gpus: Vec<PciAddress> = nearness.gpus.keys().copied().collect();
        for count in [1, 128] {
            assert_eq!(nearness.rank_members(&gpus, count).len(), MEMBERS);
        }
    }
}
