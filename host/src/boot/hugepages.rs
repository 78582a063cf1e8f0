//! Huge pages by size and NUMA node (`Documentation/admin-guide/mm/hugetlbpage.rst`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use onload_core::host_settings::{NumaNode, PageSize};

use super::step::{Action, Effect, Plan, Step, Subject};
use crate::discover::hugepages::{NODES, SIZES, parse_node, parse_size};
use crate::host::{Host, HostError};

type Wanted = BTreeMap<PageSize, BTreeMap<NumaNode, u64>>;

#[derive(Debug, Default)]
pub(super) struct State {
    nodes: BTreeMap<u32, BTreeMap<PageSize, Pages>>,
}

#[derive(Debug)]
struct Pages {
    path: PathBuf,
    count: u64,
}

/// A kernel without NUMA has node 0.
pub(super) fn read(host: &Host) -> Result<State, HostError> {
    let names = host.list(Path::new(NODES))?.names;
    let numbers: Vec<u32> = names.iter().filter_map(|name| parse_node(name)).collect();
    let places: Vec<(u32, PathBuf)> = match numbers[..] {
        [] => vec![(0, PathBuf::from(SIZES))],
        _ => numbers
            .into_iter()
            .map(|node| (node, Path::new(NODES).join(format!("node{node}/hugepages"))))
            .collect(),
    };
    let mut state = State::default();
    for (node, place) in places {
        let sizes = state.nodes.entry(node).or_default();
        for name in host.list(&place)?.names {
            let path = place.join(&name).join("nr_hugepages");
            let count = host.attribute(&path)?.and_then(|text| text.parse().ok());
            if let (Some(kib), Some(count)) = (parse_size(&name), count) {
                sizes.insert(PageSize::of_kib(kib), Pages { path, count });
            }
        }
    }
    Ok(state)
}

/// Pages are added and never given back: somebody may use them.
pub(super) fn decide(state: &State, wanted: &Wanted, plan: &mut Plan) {
    for (size, nodes) in wanted {
        for (node, count) in nodes {
            let subject = Subject::new("hugepages", &format!("{size} on node {node}"));
            let found = state.nodes.get(&node.0).and_then(|sizes| sizes.get(size));
            match found {
                Some(pages) if pages.count >= *count => {}
                Some(pages) => plan.steps.push(step(&subject, *size, *count, pages)),
                None => plan.refuse(&subject, missing(state, *node)),
            }
        }
    }
}

fn step(subject: &Subject, size: PageSize, count: u64, pages: &Pages) -> Step {
    let advice = format!(
        "the node has no more free memory in pieces of {size}; free memory there, or reserve them while it boots, with hugepagesz= and hugepages= on the kernel's command line"
    );
    let now = pages.count.to_string();
    Step {
        actions: vec![Action::write(&pages.path, &count)],
        effect: Effect::Minimum { path: pages.path.clone(), number: count, advice },
        ..Step::new(subject, "pages", now, count.to_string())
    }
}

fn missing(state: &State, node: NumaNode) -> String {
    let list = |names: Vec<String>| match names.len() {
        0 => "none".to_owned(),
        _ => names.join(", "),
    };
    match state.nodes.get(&node.0) {
        Some(sizes) => {
            let sizes = list(sizes.keys().map(ToString::to_string).collect());
            format!("there are no pages of that size; this kernel has {sizes}")
        }
        None => {
            let nodes = list(state.nodes.keys().map(ToString::to_string).collect());
            format!("there is no such NUMA node; this host has {nodes}")
        }
    }
}
