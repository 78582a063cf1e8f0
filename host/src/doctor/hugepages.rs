//! Huge pages on the NUMA node of the device that uses them.

use std::collections::BTreeMap;

use onload_core::config::CONFIG_PATH;

use super::check::{Finding, Remedy};
use super::examined::{Examined, Findings};
use crate::discover::hugepages::NODES;

/// Pages of TCPDirect, in KiB (`MAP_HUGE_2MB`).
const TCPDIRECT_KIB: u64 = 2048;
/// Pages that the line to write sets aside: room for one stack, or for a small DPDK program.
const PAGES: u64 = 64;

/// Whether each node with a device of TCPDirect or vfio has huge pages.
pub(super) fn near(examined: &Examined<'_>) -> Findings {
    let mut wanted: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    let inventory = examined.inventory;
    let nics = inventory
        .nics
        .iter()
        .filter(|_| inventory.tcpdirect.is_some());
    for nic in nics {
        if let Some(node) = nic.numa_node {
            wanted.entry(node).or_default().push(nic.device.clone());
        }
    }
    for device in inventory.vfio.iter().filter(|device| device.viable) {
        if let Some(node) = device.numa_node {
            let name = device.pci_address.to_string();
            wanted.entry(node).or_default().push(name);
        }
    }
    let findings = wanted.into_iter().map(|(node, devices)| {
        let pages = pages_on(examined, node);
        let device = first_and_more(&devices);
        let finding = match pages {
            0 => Finding::warn(
                format!("node {node} has no huge pages of 2 MiB or more for {device}"),
                Remedy::run(format!(
                    "echo {PAGES} > {NODES}/node{node}/hugepages/hugepages-2048kB/nr_hugepages"
                )),
            )
            .then(Remedy::write_under(
                CONFIG_PATH,
                "[host]",
                format!("hugepages = {{ 2Mi = {{ {node} = {PAGES} }} }}"),
            )),
            pages => Finding::pass(format!("node {node} has {pages} huge pages for {device}")),
        };
        let finding = finding.at(format!("{NODES}/node{node}/hugepages"));
        finding.of(format!("node {node}"))
    });
    Ok(findings.collect())
}

/// Pages of 2 MiB and more on a node.
fn pages_on(examined: &Examined<'_>, node: u32) -> u64 {
    let sizes = examined.inventory.hugepages.iter();
    let large = sizes.filter(|size| size.size_kib >= TCPDIRECT_KIB);
    let nodes = large.flat_map(|size| &size.nodes);
    let here = nodes.filter(|pages| pages.node == node);
    here.map(|pages| pages.total).sum()
}

/// One name stands for all: a host may have thousands.
fn first_and_more(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [only] => only.clone(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    }
}
