//! `topology`: the text, the object and the picture of captured hosts. Run with `UPDATE_GOLDEN=1` to write the
//! texts and the pictures in `docs/` anew, and look at them.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::common::{
    CAPTURED, COMMITTED, Commands, Pci, Tree, captured, compare, is_root, names_in, on, package,
    run,
};

/// The hosts whose pictures stand in `docs/`.
const PICTURES: [&str; 5] = [
    CAPTURED,
    "debian13-2numa-stand-ins",
    "debian13-4numa-21vfs",
    "rdma-hcas",
    "x2-2port-sriov",
];

#[test]
fn the_text_of_each_captured_host_is_what_people_have_read() {
    for name in COMMITTED {
        let tree = Tree::sample(name);
        let mut command = on(tree.root(), &["topology"]);
        let shown = run(command.env("COLUMNS", "80")).done().stdout;
        compare(
            &package().join(format!("tests/topology/{name}.txt")),
            &shown,
        );
        for line in shown.lines() {
            assert!(line.chars().count() <= 80, "{name}: {line}");
        }
    }
}

#[test]
fn no_text_is_left_of_a_host_that_is_gone() {
    let texts = COMMITTED.map(|name| format!("{name}.txt"));
    assert_eq!(names_in(&package().join("tests/topology")), texts);
    let pictures = names_in(&package().join("docs")).into_iter();
    let pictures: Vec<String> = pictures.filter(|name| name.ends_with(".svg")).collect();
    assert_eq!(
        pictures,
        PICTURES.map(|name| format!("topology-{name}.svg"))
    );
}

#[test]
fn the_pictures_in_the_documentation_are_what_the_command_draws() {
    for name in PICTURES {
        let run = run(&mut on(
            Tree::sample(name).root(),
            &["topology", "--format", "svg"],
        ))
        .done();
        compare(
            &package().join(format!("docs/topology-{name}.svg")),
            &run.stdout,
        );
        let page = fs::read_to_string(package().join("docs/topology.md")).unwrap();
        assert!(page.contains(&format!("(topology-{name}.svg)")), "{name}");
    }
    let shown = fs::read_to_string(package().join("README.md")).unwrap();
    let first = shown
        .lines()
        .take(40)
        .any(|line| line.contains("(docs/topology-"));
    assert!(first, "the README's first screen has a picture");
}

#[test]
fn a_picture_is_the_same_each_time_and_names_no_version() {
    let root = captured();
    let draw = || {
        run(&mut on(&root, &["topology", "--format", "svg"]))
            .done()
            .stdout
    };
    let picture = draw();
    assert_eq!(picture, draw());
    assert!(!picture.contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_object_has_each_function_with_its_virtual_ones() {
    let run = run(&mut on(&captured(), &["topology", "--format", "json"])).done();
    let object = run.json();
    assert_eq!(object["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(object["holders_known"], true);
    let node = &object["nodes"][1];
    assert_eq!(node["number"], 1);
    assert_eq!(node["hugepages"][1]["name"], "1Gi");
    let root = &node["roots"][0];
    assert_eq!(root["name"], "pci0000:80");
    let function = &root["bridges"][0]["functions"][0];
    assert_eq!(function["address"], "0000:81:00.0");
    assert_eq!(function["interfaces"][0]["name"], "ens2");
    let children = function["virtual_functions"].as_array().unwrap();
    let states: Vec<_> = children
        .iter()
        .map(|child| &child["devices"][0]["state"])
        .collect();
    assert_eq!(children.len(), 3);
    assert_eq!(states, ["free", "free", "not_offered"]);
    assert_eq!(children[0]["devices"][0]["class"], "vfio");
}

#[test]
fn names_of_a_host_steer_neither_a_terminal_nor_a_browser() {
    let tree = Tree::new();
    let address = "0000:03:00.0";
    let function = tree.pci(Pci::network(address, "8086:10c9", "igb"));
    tree.interface(&function, "a\u{1b}<b>&");
    for format in ["text", "svg"] {
        let shown = run(&mut on(tree.root(), &["topology", "--format", format]))
            .done()
            .stdout;
        assert!(shown.contains("\\u{1b}"), "{format}: {shown}");
        assert!(!shown.contains('\u{1b}'), "{format}: {shown}");
        assert_eq!(shown.contains("<b>"), format == "text", "{shown}");
        assert_eq!(shown.contains("&lt;b&gt;&amp;"), format == "svg", "{shown}");
    }
}

#[test]
fn a_host_with_nothing_on_its_nodes_says_so() {
    let tree = Tree::new();
    let shown = tree.run(&["topology"]).done();
    assert_eq!(shown.stdout, "");
    let note = "nothing to show: this host lists no NUMA node, no network and no device\n";
    assert_eq!(shown.stderr, note);
    tree.attribute("/sys/devices/system/node/node0/cpulist", "0-3");
    let shown = tree.run(&["topology"]).done();
    let lines = "NUMA node 0\n  CPUs 0-3\n  no network or accelerator is on this node\n";
    assert_eq!((shown.stdout.as_str(), shown.stderr.as_str()), (lines, ""));
}

#[test]
fn huge_pages_of_a_kernel_without_numa_are_shown() {
    let tree = Tree::new();
    let pages = [
        ("nr_hugepages", "8"),
        ("free_hugepages", "5"),
        ("nr_overcommit_hugepages", "0"),
    ];
    tree.attributes("/sys/kernel/mm/hugepages/hugepages-2048kB", &pages);
    let shown = tree.run(&["topology"]).done().stdout;
    assert!(
        shown.starts_with("No NUMA node\n  huge pages 2Mi: 5 of 8 free\n"),
        "{shown}"
    );
}

#[test]
fn what_is_not_offered_stands_on_its_function_or_on_no_node() {
    let tree = Tree::new();
    let function = tree.pci(Pci::network("0000:03:00.0", "15b3:1021", "mlx5_core"));
    // Neither has a node below /dev, and the HCA no uverbs device.
    tree.class_device("infiniband", &function, "mlx5_0", &[]);
    tree.class_device("ptp", &function, "ptp0", &[]);
    tree.class_device("pps", "/sys/devices/virtual", "pps0", &[]);
    tree.hugepages(2048, &[(0, 0, 0)]);
    let object = tree.run(&["topology", "--format", "json"]).done().json();
    let nodes = object["nodes"].as_array().unwrap();
    let on_function = &nodes[0]["roots"][0]["functions"][0]["devices"];
    let names = |devices: &serde_json::Value| -> Vec<String> {
        let devices = devices.as_array().unwrap().iter();
        devices
            .map(|device| {
                assert_eq!(device["state"], "not_offered", "{device}");
                let class = device["class"].as_str().unwrap();
                format!("{class} {}", device["name"].as_str().unwrap())
            })
            .collect()
    };
    assert_eq!(names(on_function), ["rdma mlx5_0", "ptp ptp0"]);
    let nowhere = &nodes.last().unwrap()["devices"];
    assert_eq!(names(nowhere), ["hugepages 2Mi", "pps pps0"]);
}

#[test]
fn cpus_are_shown_as_they_are_understood_or_not_at_all() {
    let tree = Tree::new();
    let node = "/sys/devices/system/node/node0";
    tree.file(&format!("{node}/cpulist"), "0-3,8\n\0");
    tree.file("/sys/devices/system/cpu/isolated", "2-3\n\0");
    let shown = tree.run(&["topology"]).done().stdout;
    assert!(shown.contains("CPUs 0-3,8 (isolated 2-3)\n"), "{shown}");
    tree.file(&format!("{node}/cpulist"), "0-3,8-\n");
    let shown = tree.run(&["topology", "--format", "json"]).done().json();
    let node = &shown["nodes"][0];
    assert!(node["cpus"].is_null() && node["isolated_cpus"].is_null());
}

#[test]
fn who_is_not_root_is_told_that_holders_are_not_known() {
    if !is_root() {
        crate::common::skipped("only root can hide the leases");
        return;
    }
    let tree = Tree::new();
    tree.directory("/run/onload-ctk/@leases");
    let root_only = fs::Permissions::from_mode(0o700);
    fs::set_permissions(tree.path("/run/onload-ctk"), root_only).unwrap();
    let run = crate::common::run_unprivileged(&tree, &["topology", "--format", "json"]).done();
    assert_eq!(run.json()["holders_known"], false);
    let warnings = run.warnings();
    assert!(
        warnings
            .iter()
            .any(|text| text.starts_with("who holds devices is not known: ")),
        "{warnings:?}"
    );
}
