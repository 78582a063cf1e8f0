//! Which members of a pool are nearest to which GPU, stored in annotations of the pool's device in
//! a specification.
//!
//! The generator reads the PCIe topology and writes the annotations. Hook and wrapper look up the
//! container's GPUs in them.

use std::collections::{BTreeMap, BTreeSet};

use onload_sys::error::{Context as _, Result, bail, error};
use onload_sys::pci::PciAddress;
use onload_sys::text::{Quoted, parse_decimal};

use crate::pool::MAX_MEMBERS;

/// The annotation that lists the members on each NIC by their indexes, as `0-63,128 64-127`.
/// Members that cannot carry traffic are listed as on another NIC.
pub const NICS: &str = "onload.dev/pool-nics";
/// The annotation that lists each GPU of the host with the NICs near it, nearest first, as
/// `ADDRESS=NIC:RANK,…` or `ADDRESS#INDEX=NIC:RANK,…`. NIC is an index into [`NICS`].
pub const NEAR: &str = "onload.dev/pool-near";
/// The annotation with the reason why GPUs without NICs in [`NEAR`] have none.
pub const UNKNOWN: &str = "onload.dev/pool-near-unknown";

/// The members near each GPU. Empty on a host without GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nearness {
    /// The members on each NIC.
    pub nics: Vec<Vec<usize>>,
    pub gpus: BTreeMap<PciAddress, GpuNearness>,
    pub unknown: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuNearness {
    /// The GPU's number in its vendor's own specifications.
    pub index: Option<u32>,
    /// The NICs near the GPU, nearest first. Empty if none is known to be near.
    pub nics: Vec<NicRank>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicRank {
    pub nic: usize,
    /// The distance from the GPU, comparable between GPUs; smaller is nearer.
    pub rank: u32,
}

impl Nearness {
    pub fn to_annotations(&self) -> BTreeMap<String, String> {
        if self.gpus.is_empty() {
            return BTreeMap::new();
        }
        let ranges: Vec<String> = self.nics.iter().map(|members| format_ranges(members)).collect();
        let nics = ranges.join(" ");
        let gpus: Vec<String> =
            self.gpus.iter().map(|(address, gpu)| gpu.to_annotation(*address)).collect();
        let mut annotations = BTreeMap::from([(NEAR.to_owned(), gpus.join(" "))]);
        if !nics.is_empty() {
            annotations.insert(NICS.to_owned(), nics);
        }
        if let Some(reason) = &self.unknown {
            annotations.insert(UNKNOWN.to_owned(), reason.clone());
        }
        annotations
    }

    /// Parses the annotations of a pool with this number of members.
    pub fn from_annotations(
        annotations: &BTreeMap<String, String>,
        members: usize,
    ) -> Result<Self> {
        let mut nearness =
            Nearness { unknown: annotations.get(UNKNOWN).cloned(), ..Nearness::default() };
        for word in split_words(annotations, NICS) {
            let Some(indexes) = parse_ranges(word, members) else {
                bail!("{NICS} has {}, which are not members", Quoted(word));
            };
            nearness.nics.push(indexes);
        }
        for word in split_words(annotations, NEAR) {
            let (address, gpu) = parse_gpu(word, nearness.nics.len())
                .with_context(|| format!("{NEAR} has a GPU"))?;
            nearness.gpus.insert(address, gpu);
        }
        Ok(nearness)
    }

    /// Orders the members for a container that has these GPUs and requests `count` members, nearest
    /// first. For several members each GPU in turn gets its nearest; a single member is the nearest
    /// to any of the GPUs. Members that are not near any of them are left out.
    pub fn rank_members(&self, gpus: &[PciAddress], count: u32) -> Vec<usize> {
        let rankings: Vec<&[NicRank]> =
            gpus.iter().filter_map(|gpu| Some(self.gpus.get(gpu)?.nics.as_slice())).collect();
        if count > 1 {
            return self.rank_round_robin(&rankings);
        }
        let mut nics: Vec<&NicRank> = rankings.into_iter().flatten().collect();
        // A stable sort: NICs of equal rank keep the order of the first GPU.
        nics.sort_by_key(|nic| nic.rank);
        let mut seen = BTreeSet::new();
        nics.into_iter()
            .flat_map(|nic| self.nic_members(nic.nic))
            .filter(|member| seen.insert(*member))
            .collect()
    }

    fn rank_round_robin(&self, rankings: &[&[NicRank]]) -> Vec<usize> {
        // For each GPU its members with their ranks, nearest first.
        let mut lists: Vec<_> = rankings
            .iter()
            .map(|nics| {
                nics.iter()
                    .flat_map(|nic| self.nic_members(nic.nic).map(|member| (nic.rank, member)))
            })
            .collect();
        let (mut order, mut seen) = (Vec::new(), BTreeSet::new());
        loop {
            let mut round: Vec<(u32, usize)> = lists
                .iter_mut()
                .filter_map(|list| list.find(|(_, member)| !seen.contains(member)))
                .collect();
            if round.is_empty() {
                return order;
            }
            round.sort_by_key(|(rank, _)| *rank);
            for (_, member) in round {
                if seen.insert(member) {
                    order.push(member);
                }
            }
        }
    }

    fn nic_members(&self, nic: usize) -> impl Iterator<Item = usize> {
        self.nics.get(nic).into_iter().flatten().copied()
    }
}

impl GpuNearness {
    fn to_annotation(&self, address: PciAddress) -> String {
        let ranks: Vec<String> =
            self.nics.iter().map(|NicRank { nic, rank }| format!("{nic}:{rank}")).collect();
        let nics = ranks.join(",");
        match self.index {
            Some(index) => format!("{address}#{index}={nics}"),
            None => format!("{address}={nics}"),
        }
    }
}

fn split_words<'a>(
    annotations: &'a BTreeMap<String, String>,
    key: &str,
) -> impl Iterator<Item = &'a str> {
    annotations
        .get(key)
        .into_iter()
        .filter(|text| !text.is_empty())
        .flat_map(|text| text.split(' '))
}

/// Formats indexes in their order, which is one of preference, for example as `0-63,128` or `3,2`.
fn format_ranges(indexes: &[usize]) -> String {
    let runs: Vec<String> = indexes
        .chunk_by(|index, next| index + 1 == *next)
        .map(|run| match run {
            [first, .., last] => format!("{first}-{last}"),
            [index] => index.to_string(),
            [] => String::new(),
        })
        .collect();
    runs.join(",")
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
    let form_error = || error!("{}, which is invalid", Quoted(word));
    let (name, list) = word.split_once('=').ok_or_else(form_error)?;
    let (address, index) = match name.split_once('#') {
        Some((address, index)) => (address, Some(parse_decimal(index).ok_or_else(form_error)?)),
        None => (name, None),
    };
    let mut gpu = GpuNearness { index, nics: Vec::new() };
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (nic, rank) = part
            .split_once(':')
            .and_then(|(nic, rank)| Some((parse_decimal(nic)?, parse_decimal(rank)?)))
            .ok_or_else(form_error)?;
        let nic = usize::try_from(nic).unwrap_or(usize::MAX);
        if nic >= nics || gpu.nics.len() == nics {
            bail!("{}, with a NIC that is not in {NICS}", Quoted(word));
        }
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
        [(NICS, nics), (NEAR, near)]
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    fn read(nics: &str, near: &str, members: usize) -> Result<Nearness> {
        Nearness::from_annotations(&annotations(nics, near), members)
    }

    /// Returns the order for these GPUs in a pool of 100 members.
    fn order(nics: &str, near: &str, gpus: &[&str], count: u32) -> Vec<usize> {
        let gpus: Vec<PciAddress> = gpus.iter().map(|gpu| gpu.parse().unwrap()).collect();
        read(nics, near, 100).unwrap().rank_members(&gpus, count)
    }

    #[test]
    fn values_survive_a_round_trip() {
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
        // Members that are not near the GPU are left out.
        assert_eq!(order("0-1 2-3", near, &[OTHER], 1), [0, 1]);
        assert!(order("0-1 2-3", near, &[], 1).is_empty());
        assert!(order("0-1 2-3", near, &["0000:99:00.0"], 1).is_empty());
    }

    #[test]
    fn several_members_are_distributed_among_the_gpus() {
        let near = "0000:1b:00.0=0:0,1:4 0000:3d:00.0=1:2,0:4";
        let both = &[ONE, OTHER];
        assert_eq!(order("0-2 3-5", near, both, 1), [0, 1, 2, 3, 4, 5]);
        assert_eq!(order("0-2 3-5", near, both, 2), [0, 3, 1, 4, 2, 5]);
        // Two GPUs that share a NIC.
        let near = "0000:1b:00.0=0:0,1:1 0000:3d:00.0=0:0,1:1";
        assert_eq!(order("0-1 2", near, both, 2), [0, 1, 2]);
        // Of NICs of equal rank, each GPU gets the first of its own list.
        let near = "0000:1b:00.0=0:0,1:0 0000:3d:00.0=1:0,0:0";
        assert_eq!(order("0 1", near, both, 2), [0, 1]);
        assert_eq!(order("0 1", near, &[OTHER], 1), [1, 0]);
    }

    #[test]
    fn invalid_text_is_rejected() {
        for (nics, near, says) in [
            ("0-4", "", "onload.dev/pool-nics has \"0-4\", which are not members"),
            ("x", "", "which are not members"),
            ("0,", "", "which are not members"),
            ("0  1", "", "\"\", which are not members"),
            ("0-3,0-3", "", "which are not members"),
            ("3-0", "", "which are not members"),
            ("0-4294967296", "", "which are not members"),
            ("0", "0000:1b:00.0", "onload.dev/pool-near has a GPU: \"0000:1b:00.0\", which"),
            ("0", "0000:1b:00.0#=0:0", "which is invalid"),
            ("0", "0000:1b:00.0#01=0:0", "which is invalid"),
            ("0", "0000:1b:00.0=0", "which is invalid"),
            ("0", "0000:1b:00.0=0:-1", "which is invalid"),
            ("0", "0000:1b:00.0=1:0", "with a NIC that is not in onload.dev/pool-nics"),
            ("0", "0000:1b:00.0=0:0,0:0", "with a NIC that is not in onload.dev"),
            ("0", "../etc=0:0", "\"../etc\" is not a PCI address"),
        ] {
            let message = format!("{:#}", read(nics, near, 4).unwrap_err());
            assert!(message.contains(says), "{nics:?} {near:?}: {message}");
        }
    }

    #[test]
    fn a_large_pool_near_many_gpus_fits_a_specification() {
        const MEMBERS: usize = 4096;
        const GPUS: u32 = 16;
        let nics: Vec<NicRank> = (0..64).map(|nic| NicRank { nic, rank: 1000 }).collect();
        let nearness = Nearness {
            nics: (0..64).map(|nic| (nic..MEMBERS).step_by(64).collect()).collect(),
            gpus: (0..GPUS)
                .map(|number| {
                    let address = format!("0000:{:02x}:00.0", number + 1).parse().unwrap();
                    (address, GpuNearness { index: Some(number), nics: nics.clone() })
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
