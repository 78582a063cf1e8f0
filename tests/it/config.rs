//! config.toml: the default file, and a wrong one at the end of a container. `tests/cases/config` shows each key.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;

use crate::common::hosts::x2;
use crate::common::{Commands, needs, package, run};

#[test]
fn the_default_file_sets_nothing_and_its_examples_are_the_defaults() {
    let text = fs::read_to_string(package().join("packaging/config.toml")).unwrap();
    let tree = x2();
    let plain = tree.run(&["cdi", "generate", "--output", "-"]).done().stdout;
    tree.config(&text);
    assert_eq!(tree.run(&["cdi", "generate", "--output", "-"]).done().stdout, plain);
    // Each example with its comment sign taken off.
    let mut keys = BTreeSet::new();
    let mut active = String::new();
    for line in text.lines() {
        let example = line.strip_prefix('#').filter(|rest| !rest.starts_with([' ', ':']));
        if let Some((key, _)) = example.and_then(|example| example.split_once(" = ")) {
            keys.insert(key);
        }
        active.push_str(example.unwrap_or(line));
        active.push('\n');
    }
    assert_eq!(keys.len(), 6 + 21 + 4 + 1 + 1 + 2 + 4 + 7, "{keys:?}");
    tree.config(&active);
    assert_eq!(tree.run(&["cdi", "generate", "--output", "-"]).done().stdout, plain);
}

/// udev starts it, and nobody else brings back what an ended container has left.
#[test]
fn what_containers_left_is_brought_back_whatever_is_wrong_with_the_configuration() {
    if !needs::mount_namespace("a /run without leases") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.toml");
    for (text, wanted) in [
        ("[cdi]\npreload = \"yes\"\n", "line 2: cdi.preload: unknown variant `yes`"),
        ("[cdi]\npreloads = 1\n", "line 2: unknown key \"cdi.preloads\""),
        ("not toml", "line 1: "),
    ] {
        fs::write(&config, text).unwrap();
        // It works on this machine alone, so it is shown a /run without leases.
        let script = "mount -t tmpfs none /run && exec \"$@\"";
        let mut unshare = std::process::Command::new("unshare");
        unshare.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
        unshare.arg(env!("CARGO_BIN_EXE_onload-ctk")).arg("--config").arg(&config);
        let restored = run(unshare.args(["lease", "restore"])).done();
        assert!(restored.stderr.contains(wanted), "{}", restored.stderr);
        assert!(restored.stderr.ends_with("nothing to restore\n"), "{}", restored.stderr);
    }
}
