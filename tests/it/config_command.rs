//! `config`: the settings in effect, and whether a file is valid.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;

use serde_json::{Value, json};

use crate::common::hosts::x2;
use crate::common::{Commands, Run, Tree, on, run};
use crate::schemas::check_output;

fn configured(text: &str) -> Tree {
    let tree = x2();
    tree.config(text);
    tree
}

fn setting(show: &Run, name: &str) -> Value {
    let settings = show.json()["settings"].as_array().unwrap().clone();
    settings.into_iter().find(|setting| setting["name"] == name).unwrap()
}

#[test]
fn each_value_has_its_origin() {
    let tree = configured(
        "[cdi]\npreload = \"file\"\n[leases]\nshare = { rdma = 500 }\n[pools.fast]\nclass = \"vfio\"\n",
    );
    let show =
        || run(on(tree.root(), &["config", "show", "--format", "json"]).env_remove(KIND)).done();
    check_output("config show", &show());
    for (name, value, origin) in [
        ("cdi.preload", json!("file"), "file"),
        ("cdi.fdtable-size", json!(524_288), "default"),
        ("cdi.kinds", json!(["all"]), "default"),
        ("cdi.host-tool-dir", json!(null), "default"),
        ("leases.share", json!({"rdma": 500}), "file"),
        ("pools.fast", json!({"class": "vfio"}), "file"),
        ("kubernetes.mtu", json!(1500), "default"),
    ] {
        let expected = json!({"name": name, "value": value, "origin": origin});
        assert_eq!(setting(&show(), name), expected);
    }
    let mut show = on(tree.root(), &["config", "show", "--format", "json"]);
    let show = run(show.env(KIND, "nic,rdma")).done();
    assert_eq!(
        setting(&show, "cdi.kinds"),
        json!({"name": "cdi.kinds", "value": ["nic", "rdma"], "origin": "variable"})
    );
}

const KIND: &str = "ONLOAD_CTK_CDI_GENERATE_KIND";

#[test]
fn the_table_shows_values_as_toml() {
    let tree = configured(
        "[leases]\nshare = { rdma = 500 }\n[host]\nhugepages = { \"2Mi\" = { 0 = 4 } }\n[[sriov]]\npf = \"ens1\"\nvfs = 2\ndriver = \"kernel\"\n",
    );
    let table = tree.run(&["config", "show"]).done().stdout;
    let rows: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    for row in [
        "SETTING ORIGIN VALUE",
        "cdi.kinds default [\"all\"]",
        "cdi.host-tool-dir default not set",
        "leases.share file { rdma = 500 }",
        "host.hugepages file { 2Mi = { 0 = 4 } }",
        "sriov file [{ driver = \"kernel\", pf = \"ens1\", vfs = 2 }]",
    ] {
        assert!(rows.contains(&row.split(' ').collect()), "{row}: {table}");
    }
}

#[test]
fn without_a_file_every_setting_has_its_default() {
    let show = x2().run(&["config", "show", "--format", "json"]).done().json();
    assert_eq!(show["file"], json!(null));
    let settings = show["settings"].as_array().unwrap();
    assert!(settings.iter().all(|setting| setting["origin"] == "default"));
    assert!(x2().run(&["config", "show"]).done().stderr.ends_with("config.toml does not exist\n"));
}

#[test]
fn a_wrong_file_is_rejected_as_other_commands_reject_it() {
    let tree = configured("[cdi]\nfdtable_size = 1\n");
    let refusal = tree.run(&["discover"]).refused();
    assert!(refusal.contains("line 2: unknown key"), "{refusal}");
    for args in [&["config", "show"], &["config", "validate"]] {
        assert_eq!(tree.run(args).refused(), refusal);
    }
}

#[test]
fn a_named_file_is_validated() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("new.toml");
    let name = file.to_str().unwrap();
    let tree = configured("[cdi]\npreload = \"yes\"\n");
    fs::write(&file, "[cdi]\npreload = \"off\"\n").unwrap();
    let valid = tree.run(&["config", "validate", name]).done();
    assert_eq!((valid.stdout.as_str(), valid.stderr), ("", format!("{name} is valid\n")));
    fs::write(&file, "[cdi]\npreload = \"yes\"\n").unwrap();
    let refusal = tree.run(&["config", "validate", name]).refused();
    let expected = format!("reading configuration {name}: line 2: cdi.preload: unknown variant");
    assert!(refusal.starts_with(&expected), "{refusal}");
    assert!(
        tree.run(&["config", "validate", "/nonexistent.toml"]).refused().contains("No such file")
    );
    let none = x2().run(&["config", "validate"]).done();
    assert!(none.stderr.ends_with("config.toml does not exist\n"), "{}", none.stderr);
}
