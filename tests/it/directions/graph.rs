//! Cycles and orders among files that use each other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::modules::{Arrows, Files};

/// A cycle for each group of files that lead to each other, and for each group of modules of one
/// directory, where a directory counts as one module with its whole content. `known` arrows do not
/// count.
pub(crate) fn cycles(arrows: &Arrows, files: &Files, known: &[(&str, &str)]) -> Vec<String> {
    let mut said = BTreeSet::new();
    let mut cycles = Vec::new();
    for graph in graphs(&without(arrows, known), files) {
        for group in groups(&graph) {
            let cycle = shortest(&graph, &group);
            let steps = cycle.windows(2).map(|step| {
                let arrow = &graph[&(step[0].clone(), step[1].clone())];
                format!("  {}: {}", arrow.place, arrow.written)
            });
            let steps: Vec<String> = steps.collect();
            if said.insert(steps.iter().cloned().collect::<BTreeSet<_>>()) {
                let size = group.len();
                let whole = if size + 1 == cycle.len() {
                    String::new()
                } else {
                    format!(" (the shortest of {size} that lead to each other)")
                };
                let names = cycle.join(" → ");
                cycles.push(format!("a cycle: {names}{whole}\n{}", steps.join("\n")));
            }
        }
    }
    cycles
}

/// The known arrows whose removal leaves as many cycles.
pub(crate) fn stale(arrows: &Arrows, files: &Files, known: &[(&str, &str)]) -> Vec<String> {
    let is_needed = |entry: &&(&str, &str)| {
        let others: Vec<_> = known
            .iter()
            .copied()
            .filter(|other| other != *entry)
            .collect();
        let all = graphs(&without(arrows, &others), files);
        let arrow = arrows.get(&(entry.0.to_owned(), entry.1.to_owned()));
        arrow.is_some() && closes_a_cycle(&all, files, entry.0, entry.1)
    };
    let stale = known.iter().filter(|entry| !is_needed(entry));
    let line = |(from, to): &(&str, &str)| {
        format!("KNOWN: {from} → {to} closes no cycle any more; take it out of the list")
    };
    stale.map(line).collect()
}

/// Whether the target of an arrow leads back to its origin, as files or as the modules that contain
/// them.
fn closes_a_cycle(graphs: &[Arrows], files: &Files, from: &str, to: &str) -> bool {
    let (Some(a), Some(b)) = (files.get(from), files.get(to)) else {
        return false;
    };
    let common = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let name = |path: &[String]| path.get(..=common).map(|path| path.join("::"));
    let pairs = [
        (Some(from.to_owned()), Some(to.to_owned())),
        (name(a), name(b)),
    ];
    pairs.into_iter().any(|pair| match pair {
        (Some(from), Some(to)) => graphs.iter().any(|graph| {
            graph.contains_key(&(from.clone(), to.clone()))
                && reach(&neighbours(graph), &to).contains(from.as_str())
        }),
        _ => false,
    })
}

/// The uses of a module that does not come earlier in the order of a crate's top-level modules.
pub(crate) fn backward(
    arrows: &Arrows,
    files: &Files,
    order: &[&str],
    known: &[(&str, &str)],
) -> Vec<String> {
    let there: BTreeSet<&str> = files
        .values()
        .filter_map(|path| path.first())
        .map(String::as_str)
        .collect();
    let listed: BTreeSet<&str> = order.iter().copied().collect();
    let missing = there
        .difference(&listed)
        .map(|name| format!("ORDERS: {name} has no place"));
    let gone = listed
        .difference(&there)
        .map(|name| format!("ORDERS: there is no module {name}"));
    let mut wrong: Vec<String> = missing.chain(gone).collect();
    // The root of the crate is above all modules.
    let place = |file: &String| match files[file].first() {
        Some(name) => order.iter().position(|other| other == name),
        None => Some(order.len()),
    };
    for ((from, to), arrow) in &without(arrows, known) {
        if let (Some(a), Some(b)) = (place(from), place(to))
            && b > a
        {
            wrong.push(format!(
                "{}: {}: {to} is above it",
                arrow.place, arrow.written
            ));
        }
    }
    wrong
}

fn without(arrows: &Arrows, known: &[(&str, &str)]) -> Arrows {
    let mut left = arrows.clone();
    left.retain(|(from, to), _| !known.contains(&(from, to)));
    left
}

/// The arrows between files, and those between modules at each depth of directories.
fn graphs(arrows: &Arrows, files: &Files) -> Vec<Arrows> {
    let depth = files.values().map(Vec::len).max().unwrap_or(0);
    let mut graphs = vec![arrows.clone()];
    graphs.extend((0..depth).map(|depth| between_modules(arrows, files, depth)));
    graphs
}

/// The arrows between modules at `depth` in the same directory.
fn between_modules(arrows: &Arrows, files: &Files, depth: usize) -> Arrows {
    let mut between = Arrows::new();
    for ((from, to), arrow) in arrows {
        let (a, b) = (&files[from], &files[to]);
        let both = a.len() > depth && b.len() > depth && a[..depth] == b[..depth];
        if both && a[depth] != b[depth] {
            let ends = (a[..=depth].join("::"), b[..=depth].join("::"));
            between.entry(ends).or_insert_with(|| arrow.clone());
        }
    }
    between
}

/// The groups of names in which each leads to each.
fn groups(arrows: &Arrows) -> BTreeSet<BTreeSet<String>> {
    let next = neighbours(arrows);
    let reached = next.keys().map(|from| (*from, reach(&next, from)));
    let reached: BTreeMap<&str, BTreeSet<&str>> = reached.collect();
    let mut groups = BTreeSet::new();
    for (from, to) in &reached {
        if to.contains(from) {
            let around = to.iter().filter(|other| {
                reached
                    .get(**other)
                    .is_some_and(|reached| reached.contains(from))
            });
            groups.insert(around.map(|name| (*name).to_owned()).collect());
        }
    }
    groups
}

fn neighbours(arrows: &Arrows) -> BTreeMap<&str, Vec<&str>> {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, to) in arrows.keys() {
        next.entry(from).or_default().push(to);
    }
    next
}

/// Every name that `from` leads to; itself only through a cycle.
fn reach<'a>(next: &BTreeMap<&'a str, Vec<&'a str>>, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(name) = open.pop() {
        for to in next.get(name).into_iter().flatten() {
            if reached.insert(*to) {
                open.push(to);
            }
        }
    }
    reached
}

/// A shortest cycle in a group, with its first name repeated at the end.
fn shortest(arrows: &Arrows, group: &BTreeSet<String>) -> Vec<String> {
    let next = neighbours(arrows);
    let cycles = group.iter().filter_map(|name| round(&next, name));
    cycles.min_by_key(Vec::len).unwrap_or_default()
}

/// A shortest path from a name back to itself.
fn round(next: &BTreeMap<&str, Vec<&str>>, start: &str) -> Option<Vec<String>> {
    let mut open = VecDeque::from([vec![start]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = open.pop_front() {
        for to in next.get(way[way.len() - 1]).into_iter().flatten() {
            let way = [way.as_slice(), &[*to]].concat();
            if *to == start {
                return Some(way.into_iter().map(str::to_owned).collect());
            }
            if seen.insert(*to) {
                open.push_back(way);
            }
        }
    }
    None
}
