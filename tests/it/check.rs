//! `cdi check`: whether what was written still describes the host.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;

use crate::common::hosts::{vfio, x2, x3};
use crate::common::{Commands, Tree, names_in};

const NIC: &str = "onload.dev-nic.json";

/// The lines of stdout without the directory.
#[track_caller]
fn drift(tree: &Tree) -> Vec<String> {
    let answer = tree.run(&["cdi", "check"]).answered_no();
    let directory = format!("{}/", tree.specs().display());
    answer.stdout.lines().map(|line| line.strip_prefix(&directory).unwrap().to_owned()).collect()
}

#[test]
fn what_was_just_written_describes_the_host() {
    for tree in [x2(), vfio(), Tree::new()] {
        tree.generate();
        let answer = tree.run(&["cdi", "check"]).done();
        assert_eq!(answer.stdout, "");
        assert!(answer.stderr.contains("describes this host"), "{}", answer.stderr);
    }
}

#[test]
fn a_host_with_something_to_offer_and_no_specifications_has_drifted() {
    let tree = x3();
    let lines = drift(&tree);
    assert!(lines.contains(&format!("{NIC}: missing")), "{lines:?}");
    tree.directory("/var/run/cdi");
    assert_eq!(drift(&tree), lines);
    assert_eq!(names_in(&tree.specs()), [""; 0]);
}

#[test]
fn a_host_with_nothing_to_offer_and_no_specifications_has_not() {
    let tree = Tree::new();
    let answer = tree.run(&["cdi", "check"]).done();
    let wanted = "no devices, no CDI specifications: ";
    assert!(answer.stderr.contains(wanted), "{}", answer.stderr);
    assert!(!answer.stderr.contains("describes"), "{}", answer.stderr);
}

#[test]
fn a_missing_a_different_and_a_superfluous_file_are_named() {
    let tree = x2();
    tree.generate();
    tree.remove(&format!("/var/run/cdi/{NIC}"));
    assert_eq!(drift(&tree), [format!("{NIC}: missing")]);
    tree.generate();
    tree.remove("/sys/class/pps").remove("/sys/devices/virtual/pps");
    assert_eq!(drift(&tree), ["onload.dev-pps.json: to be removed"]);
    tree.generate();
    tree.attribute("/sys/devices/pci0000:3b/0000:3b:00.1/sfc.onload.1/sfc_resource/enable", "1");
    assert_eq!(
        drift(&tree),
        [
            "onload.dev-nic-nodes.json: different",
            "onload.dev-nic-plain.json: different",
            "onload.dev-nic.json: different",
            "onload.dev-zf.json: different",
        ]
    );
}

/// What a driver has after its module was loaded anew.
fn renumber(tree: &Tree, name: &str, major: u32) {
    tree.attribute(&format!("/sys/class/{name}/{name}/dev"), &format!("{major}:0"));
    let node = format!("/dev/{name}");
    tree.without_node(&node).node(&node, major, 0);
}

#[test]
fn nodes_that_were_renumbered_are_named_with_what_to_do() {
    for format in ["json", "yaml"] {
        let tree = x3();
        tree.run(&["cdi", "generate", "--format", format]).done();
        renumber(&tree, "onload", 239);
        let message = "renumbered: /dev/onload was 243:0 and is 239:0; engines keep the old numbers until you run `systemctl start onload-cdi.service`";
        let files = ["nic-nodes", "nic-plain", "nic", "zf"];
        let wanted = files.map(|class| format!("onload.dev-{class}.{format}: {message}"));
        assert_eq!(drift(&tree), wanted);
        tree.run(&["cdi", "generate", "--format", format]).done();
        tree.run(&["cdi", "check"]).done();
    }
}

#[test]
fn every_node_of_a_file_that_was_renumbered_is_named() {
    let tree = x3();
    tree.generate();
    renumber(&tree, "onload", 239);
    renumber(&tree, "sfc_char", 238);
    let lines = drift(&tree);
    assert!(
        lines[3].starts_with(
            "onload.dev-zf.json: renumbered: /dev/onload was 243:0 and is 239:0, \
             /dev/sfc_char was 244:0 and is 238:0; "
        ),
        "{lines:?}"
    );
}

#[test]
fn a_file_that_differs_in_more_than_numbers_is_different() {
    let tree = x3();
    tree.generate();
    renumber(&tree, "onload", 239);
    tree.config("[cdi]\nfdtable-size = 65536\n");
    let lines = drift(&tree);
    assert_eq!(lines[1], "onload.dev-nic-plain.json: different");
    assert!(lines[0].starts_with("onload.dev-nic-nodes.json: renumbered: "), "{lines:?}");
}

#[test]
fn vfio_groups_that_changed_places_are_renumbered() {
    let tree = vfio();
    tree.generate();
    let number = |group: &str, minor: u32| {
        let node = format!("/dev/vfio/{group}");
        tree.attribute(&format!("/sys/class/vfio/{group}/dev"), &format!("241:{minor}"));
        tree.without_node(&node).node(&node, 241, minor);
    };
    number("20", 23);
    number("23", 20);
    let lines = drift(&tree);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].starts_with("onload.dev-vfio.json: renumbered: /dev/vfio/20 was 241:20 and is 241:23, /dev/vfio/23 was 241:23 and is 241:20; "),
        "{lines:?}"
    );
    tree.generate();
    tree.run(&["cdi", "check"]).done();
}

#[test]
fn a_shared_node_that_was_renumbered_changes_the_specification_too() {
    let tree = crate::common::hosts::rdma();
    tree.generate();
    let node = "/dev/infiniband/rdma_cm";
    tree.attribute("/sys/class/misc/rdma_cm/dev", "10:99");
    tree.without_node(node).node(node, 10, 99);
    let lines = drift(&tree);
    assert!(
        lines[0].contains("renumbered: /dev/infiniband/rdma_cm was 10:")
            && lines[0].contains("and is 10:99"),
        "{lines:?}"
    );
}

#[test]
fn an_edited_file_is_named_as_such() {
    let tree = x3();
    tree.generate();
    let nic = tree.specs().join(NIC);
    fs::write(&nic, "{}").unwrap();
    assert_eq!(drift(&tree), [format!("{NIC}: changed by another program")]);
    assert_eq!(fs::read(&nic).unwrap(), b"{}");
}

#[test]
fn the_kinds_and_the_format_are_those_that_were_asked_for() {
    let tree = x2();
    tree.run(&["cdi", "generate", "--kind", "nic,ptp", "--format", "yaml"]).done();
    tree.run(&["cdi", "check"]).done();
    tree.remove("/sys/class/pps").remove("/sys/devices/virtual/pps");
    tree.run(&["cdi", "check"]).done();
    tree.remove("/var/run/cdi/onload.dev-nic.yaml");
    assert_eq!(drift(&tree), ["onload.dev-nic.yaml: missing"]);
}

#[test]
fn kinds_that_were_asked_for_one_after_the_other_are_all_checked() {
    let tree = x2();
    for kind in ["nic", "ptp"] {
        tree.run(&["cdi", "generate", "--kind", kind]).done();
    }
    tree.run(&["cdi", "check"]).done();
    for kind in ["nic", "ptp"] {
        tree.remove(&format!("/var/run/cdi/onload.dev-{kind}.json"));
    }
    assert_eq!(drift(&tree), ["onload.dev-nic.json: missing", "onload.dev-ptp.json: missing"]);
}

#[test]
fn another_directory_is_looked_at_when_it_is_named() {
    let tree = x3();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    tree.run(&["cdi", "generate", "--output-dir", path]).done();
    tree.run(&["cdi", "check", "--output-dir", path]).done();
    tree.run(&["cdi", "check"]).answered_no();
    fs::remove_file(dir.path().join(NIC)).unwrap();
    let answer = tree.run(&["cdi", "check", "--output-dir", path]).answered_no();
    assert_eq!(answer.stdout, format!("{path}/{NIC}: missing\n"));
}

#[test]
fn what_cannot_be_told_is_no_answer() {
    let tree = x3();
    tree.generate();
    tree.file("/var/run/cdi/.onload-ctk-manifest", "garbage");
    let refusal = tree.run(&["cdi", "check"]).refused();
    assert!(refusal.contains(".onload-ctk-manifest: "), "{refusal}");
    tree.remove("/var/run/cdi").file("/var/run/cdi", "a file");
    let refusal = tree.run(&["cdi", "check"]).refused();
    assert!(refusal.contains("/var/run/cdi: Not a directory"), "{refusal}");
}
