//! Pools on every host, and for users who cannot read leases. `tests/cases/pools` has the rest.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;

use crate::common::hosts::x2;
use crate::common::{
    Commands, Run, Tree, device_names, each, every_host, on, run, run_unprivileged, specs_in, text,
};
use crate::status::process;
use serde_json::{Value, json};

/// A command on a host that has this configuration.
fn with_config(root: &Path, config: &str, args: &[&str]) -> Run {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), config).unwrap();
    let mut command = on(root, args);
    run(command.arg("--config").arg(file.path()))
}

const EVERY_CLASS: &str = "[leases]\nshare = { nic = 1, nic-plain = 1, nic-nodes = 1, zf = 1, profile = 1, rdma = 1, vfio = 1, hugepages = 1, ptp = 1, pps = 1 }\n";

/// A pool with a member that no specification has would give a container nothing.
#[test]
fn the_members_of_any_are_the_devices_of_the_specification() {
    let mut compared = 0;
    for (_, tree) in every_host() {
        let root = tree.root();
        let specs = tempfile::tempdir().unwrap();
        let to = specs.path().to_str().unwrap();
        with_config(root, EVERY_CLASS, &["cdi", "generate", "--output-dir", to]).done();
        let found = with_config(root, EVERY_CLASS, &["discover", "--format", "json"]).done().json();
        for pool in found["pools"].as_array().unwrap() {
            let class = text(&pool["class"]);
            let spec =
                crate::common::json_file(specs.path().join(format!("onload.dev-{class}.json")));
            let mut devices = device_names(&spec);
            devices.retain(|name| !["all", "any", "loopback"].contains(&name.as_str()));
            let mut members = each(&pool["members"], "name");
            members.sort();
            assert_eq!(members, devices, "{}: {class}", root.display());
            compared += 1;
        }
    }
    assert!(compared > 30, "{compared}");
}

#[test]
fn a_holder_is_shown_by_its_name_or_else_by_a_short_id() {
    let tree = x2();
    tree.boot("this-boot");
    let (redis, other) = ("3f2a".repeat(16), "5f0c".repeat(16));
    process(&tree, 1, None, "systemd");
    process(&tree, 77, Some(&redis), "redis");
    let docker = format!("/var/lib/docker/containers/{redis}");
    tree.file(&format!("{docker}/config.v2.json"), "{\"Name\": \"/redis\"}");
    for (slot, id) in [&redis, &other].into_iter().enumerate() {
        let lease = json!({
            "version": 1,
            "boot": "this-boot",
            "container": id,
            "bundle": "/b",
            "holder": {"init": {
                "process": {"pid": 77, "startTime": 700, "pidNamespace": 7},
                "cgroup": {"path": format!("/sys/fs/cgroup/docker-{id}.scope"), "inode": 3},
            }},
            "entryPoint": "createRuntime",
            "since": 1_700_000_000,
            "facts": {},
        });
        let file = format!("/run/onload-ctk/@leases/nic=enp59s0f0np0#{slot}");
        tree.file(&file, lease.to_string());
    }
    let list = tree.run(&["lease", "list"]).done().stdout;
    for shown in [" redis ", " 5f0c5f0c5f0c ", "/docker-3f2a3f2a3f2a….scope"] {
        assert!(list.contains(shown), "{list}");
    }
    assert!(!list.contains(&redis) && !list.contains(&other), "{list}");
    let found = with_config(tree.root(), "[leases]\nshare = { nic = 2 }\n", &["discover"]).stdout;
    assert!(found.contains("enp59s0f0np0 (redis, 5f0c5f0c5f0c)"), "{found}");
}

/// An old engine refuses a whole file, and must not lose devices by a pool.
#[test]
fn the_specification_of_a_class_is_the_same_with_pools_and_without() {
    let mut compared = 0;
    for (_, tree) in every_host() {
        let root = tree.root();
        let generated = |args: &[&str]| {
            let specs = tempfile::tempdir().unwrap();
            let to = specs.path().to_str().unwrap();
            let args = [&["cdi", "generate", "--output-dir", to], args].concat();
            with_config(root, EVERY_CLASS, &args).done();
            specs
        };
        let (with, without) = (generated(&[]), generated(&["--max-cdi-version", "0.5.0"]));
        let read = |dir: &Path, name: &str| fs::read_to_string(dir.join(name)).unwrap();
        let names = specs_in(without.path());
        for name in &names {
            assert!(!name.contains("-pools"), "{name}");
            let file = read(with.path(), name);
            assert_eq!(file, read(without.path(), name), "{}", root.display());
            compared += 1;
        }
        let mut pools = specs_in(with.path());
        pools.retain(|name| !names.contains(name));
        for name in pools {
            let spec: Value = serde_json::from_str(&read(with.path(), &name)).unwrap();
            assert_eq!(name, format!("{}-pools.json", text(&spec["kind"]).replace('/', "-")));
            assert_eq!(spec["cdiVersion"], "0.6.0");
            let devices = spec["devices"].as_array().unwrap();
            let is_pool = |device: &Value| device["annotations"]["onload.dev/pool-share"] == "1";
            assert!(!devices.is_empty() && devices.iter().all(is_pool), "{spec}");
        }
    }
    assert!(compared > 60, "{compared}");
}

const LEASES: &str = "/run/onload-ctk/@leases";

#[test]
fn who_may_not_read_leases_is_told_that_holders_are_not_known() {
    if !crate::common::is_root() {
        return crate::common::skipped("this test makes directories that only root may read");
    }
    let tree = Tree::described("leased-vfio");
    tree.generate();
    let run_dir = tree.path("/run/onload-ctk");
    for mode in [0o711, 0o755] {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&run_dir, fs::Permissions::from_mode(mode)).unwrap();
        let leases = tree.path(LEASES);
        fs::set_permissions(&leases, fs::Permissions::from_mode(0o700)).unwrap();
        let found = run_unprivileged(&tree, &["discover", "--format", "json"]).done();
        let pool = &found.json()["pools"][0];
        assert_eq!(pool["free"], Value::Null, "{mode:o}");
        assert_eq!(pool["members"][0]["holder"], Value::Null);
        let warning = "could not determine which pool members are free: reading leases";
        let warnings = found.warnings();
        let count = warnings.iter().filter(|line| line.starts_with(warning)).count();
        assert_eq!(count, 1, "{warnings:?}");
        assert!(found.stderr.contains("run as root"));
        let table = run_unprivileged(&tree, &["discover"]).done().stdout;
        assert!(table.contains("vfio   any   ? of 2  0000:81:02.0, 0000:81:04.0"), "{table}");
        // The list of leases itself is not empty because nobody may look.
        let refusal = run_unprivileged(&tree, &["lease", "list"]).refused();
        assert!(refusal.starts_with("reading leases"), "{refusal}");
    }
}
