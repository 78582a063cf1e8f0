//! Huge pages by size and NUMA node (`Documentation/admin-guide/mm/hugetlbpage.rst`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use onload_core::host_settings::{NumaNodeId, PageSize};

use super::step::{Effect, HostPlan, HostStep, StepAction, StepSubject};
use crate::discover::hugepages::{NODES, SIZES, parse_node, parse_size};
use crate::host::{Host, HostError};

type HugepageTarget = BTreeMap<PageSize, BTreeMap<NumaNodeId, u64>>;

#[derive(Debug, Default)]
pub(super) struct HugepageState {
    nodes: BTreeMap<u32, BTreeMap<PageSize, PageCount>>,
}

#[derive(Debug)]
struct PageCount {
    path: PathBuf,
    count: u64,
}

/// Reads the pages of each node. A kernel without NUMA has node 0.
pub(super) fn read(host: &Host) -> Result<HugepageState, HostError> {
    let names = host.list(Path::new(NODES))?.names;
    let numbers: Vec<u32> = names.iter().filter_map(|name| parse_node(name)).collect();
    let directories: Vec<(u32, PathBuf)> = match numbers[..] {
        [] => vec![(0, PathBuf::from(SIZES))],
        _ => numbers
            .into_iter()
            .map(|node| (node, Path::new(NODES).join(format!("node{node}/hugepages"))))
            .collect(),
    };
    let mut state = HugepageState::default();
    for (node, directory) in directories {
        let sizes = state.nodes.entry(node).or_default();
        for name in host.list(&directory)?.names {
            let path = directory.join(&name).join("nr_hugepages");
            let count = host.attribute(&path)?.and_then(|text| text.parse().ok());
            if let (Some(kib), Some(count)) = (parse_size(&name), count) {
                sizes.insert(PageSize { kib }, PageCount { path, count });
            }
        }
    }
    Ok(state)
}

/// Plans additional pages. Pages are never freed, since programs may use them.
pub(super) fn decide(state: &HugepageState, target: &HugepageTarget, plan: &mut HostPlan) {
    for (size, nodes) in target {
        for (node, count) in nodes {
            let subject = StepSubject::new("hugepages", &format!("{size} on node {node}"));
            let existing = state.nodes.get(&node.0).and_then(|sizes| sizes.get(size));
            match existing {
                Some(pages) if pages.count >= *count => {}
                Some(pages) => plan.steps.push(pages_step(&subject, *size, *count, pages)),
                None => plan.refuse(&subject, missing_reason(state, *node)),
            }
        }
    }
}

fn pages_step(subject: &StepSubject, size: PageSize, count: u64, pages: &PageCount) -> HostStep {
    let advice = format!(
        "the node has no more contiguous free memory of {size}; free memory there, or reserve the \
         pages at boot with hugepagesz= and hugepages= on the kernel command line"
    );
    let now = pages.count.to_string();
    HostStep {
        actions: vec![StepAction::write(&pages.path, &count)],
        effect: Effect::Minimum { path: pages.path.clone(), number: count, advice },
        ..HostStep::new(subject, "pages", now, count.to_string())
    }
}

fn missing_reason(state: &HugepageState, node: NumaNodeId) -> String {
    let list = |names: Vec<String>| match names.len() {
        0 => "none".to_owned(),
        _ => names.join(", "),
    };
    match state.nodes.get(&node.0) {
        Some(sizes) => {
            let sizes = list(sizes.keys().map(ToString::to_string).collect());
            format!("unsupported page size; this kernel supports {sizes}")
        }
        None => {
            let nodes = list(state.nodes.keys().map(ToString::to_string).collect());
            format!("NUMA node not found; this host has {nodes}")
        }
    }
}
