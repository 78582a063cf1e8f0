//! Bundles on captured hosts: what is written of them, what is left out and why, and what a container gets.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::common::{
    Run, Tree, compare, device, device_names, json_file, names_in, on, package, run, run_with_stdin,
};
use serde_json::{Value, json};

const X2: &str = "x2-2port-sriov";
/// It has the hook, as the package puts it.
const TWO_NODES: &str = "el10-2numa-onload-rxe-vfio";
const FILE: &str = "onload.dev-bundle.json";

const HFT: &str = "[bundles.hft]\ndevices = [\"nic=ens1\", \"rdma=all\", \"vfio=0000:81:10.0\", \"vfio=any\", \
                   \"hugepages=2Mi\", \"profile=latency\", \"ptp=ptp0\"]\ncpus = \"numa\"\n";

/// A command on a host that has this configuration.
fn with_config(name: &str, config: &str, args: &[&str]) -> Run {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), config).unwrap();
    let host = Tree::sample(name);
    let mut command = on(host.root(), args);
    run(command.arg("--config").arg(file.path()))
}

fn generate(name: &str, config: &str, to: &Path, more: &[&str]) -> Run {
    let to = to.to_str().unwrap();
    let args = [&["cdi", "generate", "--output-dir", to], more].concat();
    with_config(name, config, &args).done()
}

#[test]
fn a_bundle_of_a_captured_host_is_what_its_golden_file_says() {
    let specs = tempfile::tempdir().unwrap();
    let run = generate(TWO_NODES, HFT, specs.path(), &[]);
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
    generate(TWO_NODES, HFT, specs.path(), &[]);
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

#[test]
fn a_bundle_without_one_of_its_devices_is_left_out_and_says_why() {
    let config = "[bundles.whole]\ndevices = [\"hugepages=2Mi\"]\n\
                  [bundles.part]\ndevices = [\"hugepages=2Mi\", \"nic=ens9\", \"profile=none-such\"]\n\
                  [bundles.all]\ndevices = [\"hugepages=2Mi\"]\n\
                  [bundles.count]\ndevices = [\"hugepages=2Mi*2\"]\n";
    let specs = tempfile::tempdir().unwrap();
    let run = generate(X2, config, specs.path(), &[]);
    assert_eq!(device_names(&json_file(specs.path().join(FILE))), ["whole"]);
    let part = "there is no nic ens9, there is no profile none-such; \"onload-ctk discover --explain\" says why, or change [bundles.part]";
    let reasons = [
        ("all", "\"all\" is a reserved word; name the bundle otherwise"),
        ("count", "hugepages 2Mi is no pool, of which *2 takes members"),
        ("part", part),
    ];
    for (name, reason) in reasons {
        let message = format!("bundle {name} is not offered: {reason}");
        assert!(run.stderr.contains(&message), "{message}: {}", run.stderr);
    }
    let found = with_config(X2, config, &["discover", "--format", "json"]).done();
    let not_offered = found.json()["not_offered"].clone();
    for (name, reason) in reasons {
        let is_bundle = |entry: &&Value| entry["kind"] == "bundle" && entry["name"] == name;
        let entries: Vec<&Value> =
            not_offered.as_array().unwrap().iter().filter(is_bundle).collect();
        assert_eq!(entries.len(), 1, "{name}");
        let text = entries[0]["reason"].as_str().unwrap();
        assert!(text.starts_with(reason), "{text}");
    }
    let explained = with_config(X2, config, &["discover", "--explain"]).done();
    assert!(explained.stdout.contains("ens9"), "{}", explained.stdout);
}

#[test]
fn a_bundle_takes_as_many_members_of_a_pool_as_it_says() {
    let config = "[pools.fast]\nclass = \"vfio\"\n[bundles.two]\ndevices = [\"vfio=fast*2\"]\n";
    let specs = tempfile::tempdir().unwrap();
    generate(TWO_NODES, config, specs.path(), &[]);
    let spec = json_file(specs.path().join(FILE));
    let hooks = device(&spec, "two")["containerEdits"]["hooks"].clone();
    let args: Vec<Value> =
        hooks.as_array().unwrap().iter().map(|hook| hook["args"].clone()).collect();
    assert_eq!(
        args,
        [
            json!(["onload-hook", "createRuntime", "--take", "vfio:fast*2"]),
            json!(["onload-hook", "poststop", "--take", "vfio:fast*2"])
        ]
    );
    // Old readers know no pools, so they get no member either.
    let old = tempfile::tempdir().unwrap();
    let run = generate(TWO_NODES, config, old.path(), &["--max-cdi-version", "0.5.0"]);
    assert!(
        run.stderr.contains("bundle two is not offered: there is no vfio fast"),
        "{}",
        run.stderr
    );
    assert!(!names_in(old.path()).contains(&FILE.to_owned()));
}

#[test]
fn a_bundle_of_two_interfaces_chooses_none_and_one_of_one_chooses_that() {
    let config = "[cdi]\nselect-interface = true\n\
                  [bundles.one]\ndevices = [\"nic=enp101s0f0np0\", \"nic-plain=loopback\", \"zf=enp101s0f0v0\"]\n\
                  [bundles.two]\ndevices = [\"nic=enp101s0f0np0\", \"nic-nodes=enp101s0f0v0\"]\n";
    let specs = tempfile::tempdir().unwrap();
    generate(X2, config, specs.path(), &[]);
    let spec = json_file(specs.path().join(FILE));
    let env = |name: &str| device(&spec, name)["containerEdits"]["env"].to_string();
    assert!(env("one").contains("EF_INTERFACE_WHITELIST=enp101s0f0np0"), "{}", env("one"));
    assert!(env("one").contains("ZF_ATTR=interface=enp101s0f0v0"), "{}", env("one"));
    assert!(!env("two").contains("EF_INTERFACE_WHITELIST"), "{}", env("two"));
}

#[test]
fn the_file_goes_with_the_last_bundle_and_check_and_list_know_it() {
    let specs = tempfile::tempdir().unwrap();
    let to = specs.path().to_str().unwrap();
    generate(TWO_NODES, HFT, specs.path(), &[]);
    let check = with_config(TWO_NODES, HFT, &["cdi", "check", "--output-dir", to]);
    check.done();
    let list = with_config(TWO_NODES, HFT, &["cdi", "list", "--spec-dir", to]).done();
    assert!(list.stdout.contains("onload.dev/bundle=hft"), "{}", list.stdout);
    let check = with_config(TWO_NODES, "", &["cdi", "check", "--output-dir", to]).answered_no();
    assert!(check.stdout.contains(FILE) || check.stderr.contains(FILE), "{}", check.stderr);
    generate(TWO_NODES, "", specs.path(), &[]);
    assert!(!names_in(specs.path()).contains(&FILE.to_owned()));
}
