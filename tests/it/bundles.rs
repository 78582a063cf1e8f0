//! Bundles on a captured host. `tests/cases/bundle` shows which are left out.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::common::{Commands, Run, Tree, compare, on, package, run_with_stdin};
use serde_json::{Value, json};

/// It has the hook, as the package puts it.
const TWO_NODES: &str = "el10-2numa-onload-rxe-vfio";
const FILE: &str = "onload.dev-bundle.json";

const HFT: &str = "[bundles.hft]\ndevices = [\"nic=ens1\", \"rdma=all\", \"vfio=0000:81:10.0\", \"vfio=any\", \
                   \"hugepages=2Mi\", \"profile=latency\", \"ptp=ptp0\"]\ncpus = \"numa\"\n";

fn generate(to: &Path) -> Run {
    let host = Tree::sample(TWO_NODES);
    host.config(HFT);
    host.run(&["cdi", "generate", "--output-dir", to.to_str().unwrap()]).done()
}

#[test]
fn a_bundle_of_a_captured_host_is_what_its_golden_file_says() {
    let specs = tempfile::tempdir().unwrap();
    let run = generate(specs.path());
    assert!(!run.stderr.contains("bundle hft"), "{}", run.stderr);
    let found = fs::read_to_string(specs.path().join(FILE)).unwrap();
    let golden = package().join("tests/bundles").join(FILE);
    compare(&golden, &found);
}

/// What an engine makes of these names.
fn injected(specs: &Path, names: &[&str]) -> Value {
    let dir = specs.to_str().unwrap();
    let args = [&["cdi", "inject", "--spec-dir", dir], names].concat();
    let config = json!({"ociVersion": "1.0.2", "process": {"args": ["sh"], "env": [], "user": {"uid": 0, "gid": 0}},
        "root": {"path": "rootfs"}, "mounts": [], "linux": {}});
    let run = run_with_stdin(
        &mut on(Tree::sample(TWO_NODES).root(), &args),
        config.to_string().as_bytes(),
    );
    serde_json::from_str(&run.done().stdout).unwrap()
}

/// A list of a configuration as a set, and whether something is in it twice.
fn set(list: &Value) -> (BTreeSet<String>, bool) {
    let list = list.as_array().cloned().unwrap_or_default();
    let set: BTreeSet<String> = list.iter().map(ToString::to_string).collect();
    let is_twice = set.len() < list.len();
    (set, is_twice)
}

#[test]
fn a_bundle_gives_once_what_its_devices_give_one_by_one() {
    let specs = tempfile::tempdir().unwrap();
    generate(specs.path());
    let bundle = injected(specs.path(), &["onload.dev/bundle=hft"]);
    let devices = [
        "onload.dev/nic=ens1",
        "onload.dev/rdma=all",
        "onload.dev/vfio=0000:81:10.0",
        "onload.dev/vfio=any",
        "onload.dev/hugepages=2Mi",
        "onload.dev/profile=latency",
        "onload.dev/ptp=ptp0",
    ];
    let each = injected(specs.path(), &devices);
    for list in [
        "/process/env",
        "/mounts",
        "/linux/devices",
        "/linux/resources/devices",
        "/hooks/createRuntime",
        "/hooks/poststop",
    ] {
        let (of_bundle, is_twice) = set(bundle.pointer(list).unwrap());
        assert_eq!(of_bundle, set(each.pointer(list).unwrap()).0, "{list}");
        assert!(!is_twice && !of_bundle.is_empty(), "{list}: {of_bundle:?}");
    }
}
