//! Mistakes that people make: what was typed or written, and the one line with the remedy that they read.

#![allow(clippy::unwrap_used, clippy::panic)]

use crate::common::hosts::x3;
use crate::common::{Commands, Tree};
use crate::status::process;

#[test]
fn a_host_root_that_holds_no_host_is_refused() {
    let empty = tempfile::tempdir().unwrap();
    let tree = Tree::at(empty.path());
    let root = tree.root().display().to_string();
    let found = tree.run(&["discover"]);
    let expected = format!("error: opening host root {root}: it contains none of sys, proc,");
    assert!(found.code == Some(2) && found.stderr.starts_with(&expected), "{}", found.stderr);
    tree.file("/overlay.table", "base other\n");
    let found = tree.run(&["discover"]);
    assert!(found.stderr.contains("only the differences from another host"), "{}", found.stderr);
}

#[test]
fn a_container_with_an_annotation_and_without_the_runtime_is_answered_with_the_option() {
    let tree = x3();
    tree.generate();
    tree.program("/usr/bin/onload-container-runtime", "");
    let id = "3f2a".repeat(16);
    process(&tree, 1, None, "systemd");
    process(&tree, 77, Some(&id), "redis");
    tree.file("/proc/77/maps", "");
    let docker = format!("/var/lib/docker/containers/{id}");
    tree.file(&format!("{docker}/config.v2.json"), "{\"Name\": \"/redis\"}");
    tree.file(&format!("{docker}/hostconfig.json"), "{\"Runtime\": \"runc\"}");
    let task = format!("/run/containerd/io.containerd.runtime.v2.task/moby/{id}/config.json");
    tree.file(&task, "{\"annotations\": {\"onload.dev/nic\": \"all\"}}");
    let found = tree.run(&["status", "redis"]).answered_no();
    let wanted = "it requests devices by annotation \"onload.dev/nic\", but its runtime is runc, which does not read that\n";
    assert!(found.stdout.contains(wanted), "{}", found.stdout);
    let remedy = "request by --device onload.dev/CLASS=NAME; or start it with the runtime onload \
        (docker run --runtime onload), which provides the classes in [annotations] allow";
    assert!(found.stdout.contains(remedy), "{}", found.stdout);
}
