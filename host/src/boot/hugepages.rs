//! Huge pages by size and NUMA node (`Documentation/admin-guide/mm/hugetlbpage.rst`).

use std::collections::{BTreeMap, BTreeSet};

use onload_core::host_settings::{NumaNodeId, PageSize};

use super::step::{Effect, HostPlan, HostStep, StepAction, StepSubject};
use crate::discover::hugepages::{Hugepages, NODES, node_directory, read_sizes};
use crate::discover::probe::Probe;
use crate::host::Host;

type HugepageTarget = BTreeMap<PageSize, BTreeMap<NumaNodeId, u64>>;

/// Plans additional pages. Pages are never freed, since programs may use them.
pub(super) fn plan_hugepages(host: &Host, target: &HugepageTarget, plan: &mut HostPlan) {
    let probe = Probe::new(host);
    let sizes = read_sizes(&probe);
    if let Some(reason) = probe.unread_reason(NODES) {
        return plan.refuse(&StepSubject::new("hugepages", ""), reason);
    }
    for (size, nodes) in target {
        let existing = sizes.iter().find(|existing| existing.name == size.to_string());
        for (node, count) in nodes {
            let subject = StepSubject::new("hugepages", &format!("{size} on node {node}"));
            let pages = existing.and_then(|existing| {
                Some((existing, existing.nodes.iter().find(|one| one.node == node.0)?))
            });
            match pages {
                Some((_, pages)) if pages.total >= *count => {}
                Some((existing, pages)) => {
                    let path = node_directory(pages.node, existing.size_kib).join("nr_hugepages");
                    let advice = format!(
                        "the node has no more contiguous free memory of {size}; free memory there, \
                         or reserve the pages at boot with hugepagesz= and hugepages= on the \
                         kernel command line"
                    );
                    let (now, wanted) = (pages.total.to_string(), count.to_string());
                    plan.steps.push(HostStep {
                        actions: vec![StepAction::write(&path, count)],
                        effect: Effect::Minimum { path, number: *count, advice },
                        ..HostStep::new(&subject, "pages", now, wanted)
                    });
                }
                None => plan.refuse(&subject, missing_reason(&sizes, *node)),
            }
        }
    }
}

fn missing_reason(sizes: &[Hugepages], node: NumaNodeId) -> String {
    let nodes: BTreeSet<u32> =
        sizes.iter().flat_map(|size| &size.nodes).map(|pages| pages.node).collect();
    if nodes.contains(&node.0) {
        let names: Vec<&str> = sizes.iter().map(|size| size.name.as_str()).collect();
        return format!("unsupported page size; this kernel supports {}", names.join(", "));
    }
    let numbers: Vec<String> = nodes.iter().map(u32::to_string).collect();
    let numbers = if numbers.is_empty() { "none".to_owned() } else { numbers.join(", ") };
    format!("NUMA node not found; this host has {numbers}")
}
