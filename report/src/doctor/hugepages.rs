//! Huge pages on the NUMA node of the device that uses them.

use std::collections::BTreeMap;

use onload_core::host_settings::{NumaNodeId, PageSize};
use onload_host::discover::hugepages::NODES;
use onload_host::discover::nic::Nic;
use onload_sys::text::{format_count, join_first};

use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings};

/// 2 MiB.
const MIN_KIB: u64 = 2048;
/// Pages that the line to write sets aside: room for one stack, or for a small DPDK program.
const PAGES: u64 = 64;

pub(super) fn check_hugepages(context: &CheckContext<'_>) -> Findings {
    let mut names_by_node: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    let inventory = context.inventory;
    let nics = hugepage_nics(context).map(|nic| (nic.numa_node, nic.device.clone()));
    let vfio = inventory
        .vfio
        .iter()
        .filter(|device| device.viable)
        .map(|device| (device.numa_node, device.pci_address.to_string()));
    for (node, name) in nics.chain(vfio) {
        if let Some(node) = node {
            names_by_node.entry(node).or_default().push(name);
        }
    }
    // The finding is for the first of these nodes.
    let mut line = Some(config_remedy(
        context,
        names_by_node
            .keys()
            .filter(|node| usable_pages(context, **node) == 0 && !is_configured(context, **node)),
    ));
    let findings = names_by_node.iter().map(|(node, devices)| {
        let node = *node;
        let pages = usable_pages(context, node);
        // Only one name is shown, since a host may have thousands.
        let device = join_first(devices, 1);
        let finding = match pages {
            0 => {
                let more = if is_usable_size(context, node, u64::MAX) { " or more" } else { "" };
                let text = format!("node {node} has no huge pages of 2 MiB{more} for {device}");
                if is_configured(context, node) {
                    Finding::warn(text, Remedy::run("onload-ctk host apply"))
                } else {
                    let finding = Finding::warn(
                        text,
                        Remedy::run(format!(
                            "echo {PAGES} > {NODES}/node{node}/hugepages/hugepages-2048kB/nr_hugepages"
                        )),
                    );
                    line.take().into_iter().fold(finding, Finding::with_remedy)
                }
            }
            pages => {
                let pages = format_count(pages, "huge page", "huge pages");
                Finding::pass(format!("node {node} has {pages} for {device}"))
            }
        };
        let finding = finding.with_path(format!("{NODES}/node{node}/hugepages"));
        finding.with_subject(format!("node {node}"))
    });
    Ok(findings.collect())
}

/// The interfaces whose programs take huge pages.
fn hugepage_nics<'e>(context: &'e CheckContext<'_>) -> impl Iterator<Item = &'e Nic> {
    let inventory = context.inventory;
    let has_tcpdirect = inventory.tcpdirect.is_some();
    inventory.nics.iter().filter(move |nic| nic.datapath.takes_huge_pages(has_tcpdirect))
}

/// Whether pages of that size are of use on a node. Pages larger than 2 MiB are only for vfio.
fn is_usable_size(context: &CheckContext<'_>, node: u32, kib: u64) -> bool {
    kib == MIN_KIB
        || kib > MIN_KIB && !hugepage_nics(context).any(|nic| nic.numa_node == Some(node))
}

/// Whether the configuration sets aside such pages there.
fn is_configured(context: &CheckContext<'_>, node: u32) -> bool {
    context
        .config
        .host
        .hugepages
        .iter()
        .filter(|(size, _)| is_usable_size(context, node, size.kib()))
        .flat_map(|(_, nodes)| nodes.keys())
        .any(|id| id.0 == node)
}

/// The one line that sets aside pages on these nodes too: TOML takes no second one of its name.
fn config_remedy<'n>(context: &CheckContext<'_>, nodes: impl Iterator<Item = &'n u32>) -> Remedy {
    let mut pages = context.config.host.hugepages.clone();
    let size = pages.entry(PageSize::from_kib(MIN_KIB)).or_default();
    size.extend(nodes.map(|node| (NumaNodeId(*node), PAGES)));
    let sizes = pages.iter().map(|(size, nodes)| {
        let nodes = nodes.iter().map(|(node, count)| format!("{} = {count}", node.0));
        format!("{size} = {{ {} }}", nodes.collect::<Vec<_>>().join(", "))
    });
    let line = format!("hugepages = {{ {} }}", sizes.collect::<Vec<_>>().join(", "));
    Remedy::write_under(context.config_file, "[host]", line)
}

/// Pages on a node that are of use there.
fn usable_pages(context: &CheckContext<'_>, node: u32) -> u64 {
    context
        .inventory
        .hugepages
        .iter()
        .filter(|size| is_usable_size(context, node, size.size_kib))
        .flat_map(|size| &size.nodes)
        .filter(|pages| pages.node == node)
        .map(|pages| pages.total)
        .sum()
}
