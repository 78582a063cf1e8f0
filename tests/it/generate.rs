//! `cdi generate`: what holds for every host, and modes of files. `tests/cases/generate` has the rest.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::common::hosts::x3;
use crate::common::{
    CHECKSUM, Commands, Run, Tree, captured, device_names, json_file, names_in, on, run, specs_in,
    text, texts,
};

const MANIFEST: &str = ".onload-ctk-manifest";
const LOCK: &str = ".onload-ctk-lock";
const NIC: &str = "onload.dev-nic.json";

/// The specifications that a host gives, all of them.
fn all_specs(root: &Path) -> Vec<Value> {
    let printed = run(&mut on(root, &["cdi", "generate", "--output", "-"])).done();
    let specs = serde_json::Deserializer::from_str(&printed.stdout).into_iter();
    specs.map(|spec| spec.unwrap()).collect()
}

/// Every container edit of a specification, the common ones first.
fn edits(spec: &Value) -> Vec<&Value> {
    let own = spec["devices"].as_array().unwrap().iter();
    let own = own.map(|device| &device["containerEdits"]);
    [&spec["containerEdits"]].into_iter().chain(own).collect()
}

fn members<'v>(edits: &[&'v Value], list: &str) -> Vec<&'v Value> {
    edits.iter().filter_map(|edits| edits[list].as_array()).flatten().collect()
}

fn every_host() -> Vec<Tree> {
    crate::common::hosts::all().into_iter().map(|(_, tree)| tree).collect()
}

fn every_spec() -> Vec<Value> {
    let mut specs = all_specs(&captured());
    for tree in every_host() {
        specs.extend(all_specs(tree.root()));
    }
    assert!(specs.len() > 40);
    specs
}

#[test]
fn nodes_have_a_path_and_permissions_and_no_number() {
    for spec in every_spec() {
        for node in members(&edits(&spec), "deviceNodes") {
            let keys: Vec<&String> = node.as_object().unwrap().keys().collect();
            assert_eq!(keys, ["path", "permissions"], "{node}");
            let clock =
                ["onload.dev/ptp", "onload.dev/pps"].contains(&text(&spec["kind"]).as_str());
            assert_eq!(node["permissions"], if clock { "r" } else { "rw" }, "{node}");
        }
    }
}

#[test]
fn mounts_are_read_only_binds_and_only_hugetlbfs_has_a_type() {
    for spec in every_spec() {
        for mount in members(&edits(&spec), "mounts") {
            if spec["kind"] == "onload.dev/hugepages" {
                assert_eq!(mount["type"], "hugetlbfs");
                continue;
            }
            assert!(mount.get("type").is_none(), "{mount}");
            assert_eq!(mount["options"], json!(["ro", "nosuid", "nodev", "bind"]), "{mount}");
        }
    }
}

#[test]
fn each_specification_has_the_least_version_that_it_needs() {
    for spec in every_spec() {
        let digit = |name: &String| name.starts_with(|c: char| c.is_ascii_digit());
        let devices = spec["devices"].as_array().unwrap();
        let is_pool = |device: &Value| device.get("annotations").is_some();
        // Annotations came with 0.6.0, names that begin with a digit with 0.5.0, types of mounts with 0.4.0.
        let wanted = if devices.iter().any(is_pool) {
            "0.6.0"
        } else if device_names(&spec).iter().any(digit) {
            "0.5.0"
        } else {
            "0.3.0"
        };
        assert_eq!(spec["cdiVersion"], wanted, "{}", spec["kind"]);
    }
}

#[test]
fn devices_are_sorted_and_two_runs_give_the_same_bytes() {
    for tree in every_host() {
        let print = || tree.run(&["cdi", "generate", "--output", "-"]).done().stdout;
        assert_eq!(print(), print());
        for spec in all_specs(tree.root()) {
            let names = device_names(&spec);
            assert!(names.is_sorted(), "{names:?}");
        }
    }
}

#[test]
fn all_is_there_only_beside_another_name() {
    for spec in every_spec() {
        let names = device_names(&spec);
        let class = text(&spec["kind"]).replace("onload.dev/", "");
        let others =
            names.iter().filter(|name| !["all", "loopback", "any"].contains(&name.as_str()));
        let wanted = ["nic", "nic-plain", "nic-nodes", "zf", "rdma"].contains(&class.as_str());
        let has_all = names.contains(&"all".to_owned());
        assert_eq!(has_all, wanted && others.count() > 0, "{class}: {names:?}");
    }
}

/// Every node that a device of a specification brings, with the arguments of the hooks that come too.
fn nodes_and_arguments(spec: &Value) -> Vec<(String, Vec<String>)> {
    let of_device = |device: &Value| {
        let all = [&spec["containerEdits"], &device["containerEdits"]];
        let hooks = members(&all, "hooks").into_iter();
        let hooks = hooks.filter(|hook| hook["hookName"] == "createRuntime");
        // The program's name and the stage come first.
        let args = hooks.flat_map(|hook| texts(&hook["args"]).into_iter().skip(2));
        let args: Vec<String> = args.collect();
        let nodes = members(&all, "deviceNodes").into_iter();
        let nodes = nodes.map(|node| (text(&node["path"]), args.clone()));
        nodes.collect::<Vec<_>>()
    };
    let devices = spec["devices"].as_array().unwrap().iter();
    // What comes with a pool is checked by the hooks of its member, which the hook of the pool reads.
    let devices = devices.filter(|device| device.get("annotations").is_none());
    devices.flat_map(of_device).collect()
}

#[test]
fn every_node_of_every_host_is_expected_with_its_number_as_the_hook_reads_it() {
    let mut seen = 0;
    for tree in every_host() {
        tree.hook();
        for spec in all_specs(tree.root()) {
            for (node, args) in nodes_and_arguments(&spec) {
                let arguments = onload_core::hook_arguments::HookArguments::parse(&args).unwrap();
                let own = arguments.expect.iter().filter(|expect| expect.node == node);
                let numbers: Vec<String> =
                    own.map(|expect| expect.number.unwrap().to_string()).collect();
                assert!(!numbers.is_empty(), "{node} is not in {args:?}");
                let there = tree.number(&node);
                assert!(numbers.iter().all(|number| *number == there), "{numbers:?}");
                seen += 1;
            }
        }
    }
    assert!(seen > 50, "{seen}");
}

#[test]
fn files_have_mode_0644_and_the_lock_0600_whatever_the_umask_and_neither_lock_nor_manifest_is_a_specification()
 {
    let tree = x3();
    let program = env!("CARGO_BIN_EXE_onload-ctk");
    let root = tree.root().display();
    let line = format!("umask 077; exec {program} --host-root {root} cdi generate -q");
    let status = std::process::Command::new("/bin/sh").args(["-c", &line]).env_clear().status();
    assert!(status.unwrap().success());
    for name in names_in(&tree.specs()) {
        let mode = fs::metadata(tree.specs().join(&name)).unwrap().permissions().mode();
        let wanted = if name == LOCK { 0o600 } else { 0o644 };
        assert_eq!(mode & 0o7777, wanted, "{name}");
    }
    let names = names_in(&tree.specs());
    assert_eq!(names[..2], [LOCK, MANIFEST]);
    assert!(names[2..].iter().all(|name| name.starts_with("onload.dev-")), "{names:?}");
}

#[test]
fn directories_have_mode_0755_whatever_the_umask_and_one_that_is_there_keeps_its_own() {
    let tree = x3();
    tree.directory("/etc/containers");
    for program in ["podman", "onload-container-runtime"] {
        tree.file(&format!("/usr/bin/{program}"), "");
    }
    let mode = |path: &str| fs::metadata(tree.path(path)).unwrap().permissions().mode() & 0o7777;
    let private = fs::Permissions::from_mode(0o750);
    fs::set_permissions(tree.path("/etc/containers"), private).unwrap();
    let ctk =
        format!("{} --host-root {} -q", env!("CARGO_BIN_EXE_onload-ctk"), tree.root().display());
    let line = format!(
        "umask 077; {ctk} cdi generate && {ctk} runtime configure --runtime podman --allow nic"
    );
    let status = std::process::Command::new("/bin/sh").args(["-c", &line]).env_clear().status();
    assert!(status.unwrap().success());
    for made in ["/var/run/cdi", "/etc/containers/containers.conf.d", "/etc/onload-ctk"] {
        assert_eq!(mode(made), 0o755, "{made}");
    }
    assert_eq!(mode("/etc/containers"), 0o750);
    assert_eq!(mode("/run/onload-ctk/@locks"), 0o700);
}

#[test]
fn the_manifest_holds_names_hashes_and_what_was_asked_for() {
    let tree = x3();
    tree.run(&["cdi", "generate", "--max-cdi-version", "0.5.0"]).done();
    let manifest = json_file(tree.specs().join(MANIFEST));
    assert_eq!(manifest["format"], "json");
    assert_eq!(manifest["maxCdiVersion"], "0.5.0");
    assert_eq!(manifest["kinds"].as_array().unwrap().len(), 13);
    let files = manifest["files"].as_object().unwrap();
    let names: Vec<&String> = files.keys().collect();
    assert_eq!(names, specs_in(&tree.specs()).iter().collect::<Vec<_>>());
    assert_eq!(files[NIC]["sha256"].as_array().unwrap().len(), 1);
    let text = fs::read_to_string(tree.specs().join(MANIFEST)).unwrap();
    assert!(!text.contains(&*tree.root().to_string_lossy()));
}

#[test]
fn a_diff_can_be_applied_by_patch_and_gives_what_a_run_writes() {
    if !crate::common::needs::programs(&["patch"]) {
        return;
    }
    let tree = x3();
    let dir = tempfile::tempdir().unwrap();
    let specs = dir.path().to_str().unwrap();
    tree.run(&["cdi", "generate", "--output-dir", specs]).done();
    tree.config("[cdi]\nfdtable-size = 4096\npreload = \"off\"\n");
    let diff = tree.run(&["cdi", "generate", "--output-dir", specs, "--diff"]).done().stdout;
    let patch = dir.path().join("patch");
    fs::write(&patch, diff).unwrap();
    let mut command = std::process::Command::new("patch");
    let status = command.args(["-s", "-p0", "-d", "/", "-i"]).arg(&patch).status();
    assert!(status.unwrap().success());
    let patched = json_file(dir.path().join(NIC));
    assert_eq!(patched, tree.spec("nic"));
}

/// Everything below a directory, with what a write would change.
fn snapshot(dir: &Path) -> Vec<(String, SystemTime)> {
    let mut found = Vec::new();
    for name in names_in(dir) {
        let path = dir.join(name);
        let metadata = fs::symlink_metadata(&path).unwrap();
        found.push((path.display().to_string(), metadata.modified().unwrap()));
        if metadata.is_dir() {
            found.extend(snapshot(&path));
        }
    }
    found
}

#[test]
fn with_another_root_nothing_is_written_above_it() {
    let keep = tempfile::tempdir().unwrap();
    let root = keep.path().join("root");
    let tree = x3();
    let status = std::process::Command::new("cp").arg("-a").arg(tree.root()).arg(&root).status();
    assert!(status.unwrap().success());
    fs::remove_dir(root.join("var/run")).unwrap();
    // As on every distribution, but absolute: followed outside, it would be this machine's /run.
    fs::create_dir(keep.path().join("run")).unwrap();
    symlink("/run", root.join("var/run")).unwrap();
    let here = || fs::symlink_metadata("/run/cdi").and_then(|metadata| metadata.modified()).ok();
    let before = here();
    run(&mut on(&root, &["cdi", "generate"])).done();
    assert!(root.join("run/cdi").join(NIC).exists());
    assert_eq!(names_in(&keep.path().join("run")), [""; 0]);
    assert_eq!(names_in(keep.path()), ["root", "run"]);
    assert_eq!(here(), before);
    run(&mut on(&root, &["cdi", "check"])).done();
}

#[test]
fn with_an_output_directory_nothing_else_is_written() {
    let tree = x3();
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("a/b");
    let before = snapshot(tree.root());
    let _: Run = tree.run(&["cdi", "generate", "--output-dir", deep.to_str().unwrap()]).done();
    assert!(deep.join(NIC).exists());
    assert_eq!(snapshot(tree.root()), before);
    assert_eq!(CHECKSUM.len(), 32);
}
