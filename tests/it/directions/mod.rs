//! Which crate may use which, and which file of a crate may use which. The tables are here;
//! changing a direction means changing a table.
//!
//! Crates are read from `cargo metadata`, and files from their own text: imports, and the paths in
//! their code. Code that is compiled only for tests is left out.

#![allow(clippy::unwrap_used, clippy::panic)]

mod crates;
mod graph;
mod modules;
mod refusals;
mod uses;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use serde_json::Value;

use crates::Layer;
use modules::Modules;

/// Which crate of the workspace may use which others.
const LAYERS: &[Layer] = &[
    Layer::new("onload-test-needs", &[]),
    Layer::new("onload-test-tree", &[]),
    Layer::new("onload-cdi", &[]),
    Layer::new("onload-core", &["onload-cdi"]),
    Layer::new("onload-hooks", &["onload-cdi", "onload-core"]),
    Layer::new("onload-host", &["onload-cdi", "onload-core"]),
    Layer::new(
        "onload-ctk",
        &["onload-cdi", "onload-core", "onload-hooks", "onload-host"],
    ),
];
/// What a crate in `cluster/` may use. None uses another crate there, and nothing uses them.
const BELOW_CLUSTER: &[&str] = &["onload-cdi", "onload-core", "onload-hooks", "onload-host"];
/// What tests of a crate may use beyond that: crate, other crate, reason.
const FOR_TESTS: &[(&str, &str, &str)] = &[
    ("onload-core", "onload-test-needs", NEEDS),
    ("onload-core", "onload-test-tree", TREE),
    ("onload-hooks", "onload-test-needs", NEEDS),
    ("onload-hooks", "onload-test-tree", TREE),
    ("onload-host", "onload-test-tree", TREE),
    ("onload-ctk", "onload-test-needs", NEEDS),
    ("onload-ctk", "onload-test-tree", TREE),
    ("onload-kubernetes", "onload-test-needs", NEEDS),
    ("onload-kubernetes", "onload-test-tree", TREE),
    ("onload-nomad", "onload-test-needs", NEEDS),
    ("onload-nomad", "onload-test-tree", TREE),
    ("onload-nri", "onload-test-needs", NEEDS),
    ("onload-nri", "onload-test-tree", TREE),
];
const NEEDS: &str = "what a test needs of the machine, and what happens where it is missing";
const TREE: &str = "the hosts of tests, made up or captured";
/// The crates that stay synchronous and know no command line.
const SMALL: &[&str] = &[
    "onload-cdi",
    "onload-core",
    "onload-hooks",
    "onload-host",
    "onload-nri",
];

/// The top-level modules of a crate, each of which may use only those before it. Nothing uses
/// `lib.rs`, which is above them all.
const ORDERS: &[(&str, &[&str])] = &[
    (
        "cdi/src/lib.rs",
        &[
            "json",
            "name",
            "annotations",
            "spec",
            "wording",
            "yaml",
            "parse",
            "version",
            "validate",
            "oci",
            "registry",
        ],
    ),
    (
        "core/src/lib.rs",
        &[
            "text",
            "error",
            "timestamp",
            "onload",
            "cpu_list",
            "wanted",
            "elf",
            "mountinfo",
            "class",
            "bundle",
            "pci",
            "expect",
            "netlink",
            "container_id",
            "fs",
            "run_dir",
            "processes",
            "pool",
            "lease",
            "select",
            "host_settings",
            "netdev",
            "kubernetes_settings",
            "config",
            "hook_arguments",
            "request",
            "policy",
            "ticket",
        ],
    ),
    (
        "host/src/lib.rs",
        &[
            "netlink",
            "host",
            "bundles",
            "pci_link",
            "settings",
            "discover",
            "leases",
            "pools",
            "spec_name",
            "generate",
            "specdir",
            "drift",
            "boot",
            "offers",
            "watch",
            "status",
            "metrics",
            "doctor",
            "topology",
        ],
    ),
    (
        "hooks/src/lib.rs",
        &[
            "config_json",
            "host",
            "device",
            "decision",
            "cpuset",
            "process",
            "rootfs",
            "preload",
            "filter",
            "adjust",
            "run",
            "state",
            "bpf",
            "ethtool",
            "netlink",
            "netns",
            "giving",
            "returning",
            "netdev",
            "rdma",
            "live",
            "entry",
        ],
    ),
    (
        "cluster/kubernetes/src/lib.rs",
        &[
            "wire",
            "accept",
            "socket",
            "resources",
            "host_state",
            "observe",
            "spec_writer",
            "install",
            "surveyor",
            "plugin",
            "dra",
            "changes",
            "cli",
            "run",
        ],
    ),
    (
        "cluster/nomad/src/lib.rs",
        &[
            "wire",
            "log",
            "settings",
            "devices",
            "tickets",
            "host_state",
            "surveyor",
            "statistics",
            "plugin",
            "cli",
        ],
    ),
    (
        "cluster/nri/src/lib.rs",
        &[
            "wire",
            "journal",
            "runtime",
            "container",
            "answer",
            "create",
            "session",
            "connect",
            "cli",
        ],
    ),
    (
        "src/lib.rs",
        &[
            "exit",
            "rights",
            "printer",
            "layout",
            "config_file",
            "engine",
            "capture",
            "cli",
            "commands",
        ],
    ),
];

/// Uses that close a cycle today: from a file, to a file. An entry that closes none fails the test,
/// so the list only shrinks.
const KNOWN: &[(&str, &str)] = &[];

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn metadata(more: &[&str]) -> Value {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version=1", "--locked"]);
    let output = cargo.args(more).current_dir(package()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata: {stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn each_crate_uses_only_the_layers_below_it() {
    let packages = crates::packages(&metadata(&["--no-deps"]));
    assert!(packages.len() >= LAYERS.len(), "{packages:?}");
    none(&crates::upward(&packages, LAYERS, BELOW_CLUSTER, FOR_TESTS));
}

#[test]
fn small_crates_have_no_async_runtime_and_no_command_line_below_them() {
    let target = "--filter-platform=x86_64-unknown-linux-gnu";
    let whole = metadata(&["--all-features", target]);
    for name in SMALL {
        let below = crates::below(&whole, name);
        assert!(below.contains("serde"), "{name}: {below:?}");
        let large = below.iter().filter(|name| crates::is_large(name));
        let said = large.map(|large| format!("{name} has {large} below it"));
        none(&said.collect::<Vec<_>>());
    }
    // A large crate is found in the package that has one.
    let below = crates::below(&whole, "onload-ctk");
    assert!(below.contains("clap"), "{below:?}");
}

/// A target of a package: a library or a program, whose files are read starting at its root.
struct Target {
    root: String,
    modules: Modules,
}

static TARGETS: LazyLock<Vec<Target>> = LazyLock::new(|| {
    let read = |file: &str| fs::read_to_string(package().join(file)).ok();
    let roots = crates::roots(&metadata(&["--no-deps"]), package());
    let targets = roots.into_iter().map(|root| Target {
        modules: Modules::read(&root, &read).unwrap_or_else(|error| panic!("{error}")),
        root,
    });
    targets.collect()
});

#[test]
fn nothing_is_used_in_a_cycle() {
    let mut wrong = Vec::new();
    let mut unread: BTreeSet<_> = KNOWN.iter().copied().collect();
    for target in TARGETS.iter() {
        let files = target.modules.files();
        let arrows = target.modules.arrows();
        let known = KNOWN.iter().filter(|(from, _)| files.contains_key(*from));
        let known: Vec<_> = known.copied().collect();
        wrong.extend(graph::cycles(&arrows, &files, &known));
        wrong.extend(graph::stale(&arrows, &files, &known));
        unread.retain(|entry| !known.contains(entry));
    }
    let gone = |(from, _): &(&str, &str)| format!("KNOWN: there is no file {from}");
    wrong.extend(unread.iter().map(gone));
    none(&wrong);
}

#[test]
fn modules_use_only_those_before_them() {
    for (root, order) in ORDERS {
        let target = TARGETS.iter().find(|target| target.root == *root);
        let target = target.unwrap_or_else(|| panic!("ORDERS: there is no {root}"));
        let arrows = target.modules.arrows();
        let files = target.modules.files();
        none(&graph::backward(&arrows, &files, order, KNOWN));
    }
}

/// A file that belongs to no crate would be read by no test.
#[test]
fn every_source_file_is_read() {
    let mut read = BTreeSet::new();
    let mut sources = BTreeSet::new();
    for target in TARGETS.iter() {
        read.extend(target.modules.files().into_keys());
        read.extend(target.modules.test_files.iter().cloned());
        let source = target.root.split_inclusive("src/").next().unwrap();
        sources.insert(source.to_owned());
    }
    let mut files = BTreeSet::new();
    for source in &sources {
        below(&package().join(source), &mut files);
    }
    assert!(files.len() > 100, "{files:?}");
    let unread: Vec<_> = files.difference(&read).collect();
    assert!(unread.is_empty(), "{unread:?}");
}

fn below(directory: &Path, files: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path: PathBuf = entry.unwrap().path();
        if path.is_dir() {
            below(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let path = path.strip_prefix(package()).unwrap();
            files.insert(path.display().to_string());
        }
    }
}
