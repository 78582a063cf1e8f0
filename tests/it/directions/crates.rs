//! The crates of the workspace, according to `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

/// A crate, and the other crates of the workspace that it may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layer {
    name: &'static str,
    below: &'static [&'static str],
}

impl Layer {
    pub(crate) const fn new(name: &'static str, below: &'static [&'static str]) -> Self {
        Self { name, below }
    }
}

/// A package of the workspace.
#[derive(Debug)]
pub(crate) struct Package {
    name: String,
    is_in_cluster: bool,
    /// The other packages of the workspace that it uses, and whether only its tests do.
    uses: Vec<(String, bool)>,
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The packages of the workspace, from `cargo metadata --no-deps`.
pub(crate) fn packages(metadata: &Value) -> Vec<Package> {
    let packages = || list(&metadata["packages"]);
    let names: BTreeSet<String> = packages().map(|package| text(&package["name"])).collect();
    let root = text(&metadata["workspace_root"]);
    let package = |package: &Value| {
        let uses = list(&package["dependencies"]);
        let uses = uses.map(|used| (text(&used["name"]), used["kind"] == "dev"));
        let manifest = text(&package["manifest_path"]);
        let cluster = Path::new(&root).join("cluster");
        Package {
            name: text(&package["name"]),
            is_in_cluster: Path::new(&manifest).starts_with(cluster),
            uses: uses.filter(|(name, _)| names.contains(name)).collect(),
        }
    };
    packages().map(package).collect()
}

/// Violations of the layers: uses upward or sideways, crates without a layer, and unnecessary
/// entries of the tables.
pub(crate) fn upward(
    packages: &[Package],
    layers: &[Layer],
    below_cluster: &[&str],
    for_tests: &[(&str, &str, &str)],
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut unused: BTreeSet<(&str, &str)> = for_tests.iter().map(|(a, b, _)| (*a, *b)).collect();
    for package in packages {
        let name = package.name.as_str();
        let layer = layers.iter().find(|layer| layer.name == name);
        let below = match layer {
            Some(layer) => layer.below,
            None if package.is_in_cluster => below_cluster,
            None => {
                wrong.push(format!("LAYERS: {name} has no layer; give it one"));
                continue;
            }
        };
        for (used, is_for_tests) in &package.uses {
            let is_named = *is_for_tests && unused.remove(&(name, used));
            if !below.contains(&used.as_str()) && !is_named {
                let kind = if *is_for_tests { " for its tests" } else { "" };
                wrong.push(format!("{name} uses {used}{kind}, which is not below it"));
            }
        }
    }
    for (name, used) in unused {
        wrong.push(format!(
            "FOR_TESTS: {name} does not use {used}; take it out of the list"
        ));
    }
    for (index, layer) in layers.iter().enumerate() {
        if !packages.iter().any(|package| package.name == layer.name) {
            wrong.push(format!("LAYERS: there is no crate {}", layer.name));
        }
        let before: Vec<&str> = layers[..index].iter().map(|layer| layer.name).collect();
        for below in layer.below.iter().filter(|below| !before.contains(below)) {
            wrong.push(format!(
                "LAYERS: {below} stands after {}, which uses it",
                layer.name
            ));
        }
    }
    wrong
}

/// The names of all packages from which a package is built, without itself and what only its tests
/// need, from `cargo metadata`.
pub(crate) fn below(metadata: &Value, name: &str) -> BTreeSet<String> {
    let names: BTreeMap<String, String> = list(&metadata["packages"])
        .map(|package| (text(&package["id"]), text(&package["name"])))
        .collect();
    let nodes: BTreeMap<String, &Value> = list(&metadata["resolve"]["nodes"])
        .map(|node| (text(&node["id"]), node))
        .collect();
    let mut open: Vec<&String> = names
        .iter()
        .filter(|(_, n)| *n == name)
        .map(|(id, _)| id)
        .collect();
    let mut found: BTreeSet<&String> = BTreeSet::new();
    let mut ids = Vec::new();
    while let Some(id) = open.pop() {
        for used in nodes
            .get(id)
            .into_iter()
            .flat_map(|node| list(&node["deps"]))
        {
            let is_built = list(&used["dep_kinds"]).any(|kind| kind["kind"] != "dev");
            let Some((id, _)) = names.get_key_value(&text(&used["pkg"])) else {
                continue;
            };
            if is_built && found.insert(id) {
                open.push(id);
                ids.push(id);
            }
        }
    }
    ids.into_iter().map(|id| names[id].clone()).collect()
}

/// Async runtimes, what they are based on, and command line parsers.
pub(crate) fn is_large(name: &str) -> bool {
    let families = ["tokio", "async-", "futures", "clap", "hyper", "tonic"];
    let crates = [
        "smol",
        "mio",
        "reqwest",
        "argh",
        "lexopt",
        "pico-args",
        "glommio",
        "monoio",
    ];
    families.iter().any(|family| name.starts_with(family)) || crates.contains(&name)
}

/// The first file of each library and program of the workspace, relative to its root.
pub(crate) fn roots(metadata: &Value, workspace: &Path) -> BTreeSet<String> {
    let targets = list(&metadata["packages"]).flat_map(|package| list(&package["targets"]));
    let shipped = targets.filter(|target| {
        let other = ["test", "bench", "example", "custom-build"];
        !list(&target["kind"]).any(|kind| other.iter().any(|other| kind == other))
    });
    let paths = shipped.map(|target| text(&target["src_path"]));
    let relative = paths.map(|path| match Path::new(&path).strip_prefix(workspace) {
        Ok(path) => path.display().to_string(),
        Err(_) => path,
    });
    relative.collect()
}
