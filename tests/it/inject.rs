//! `cdi inject`, read by types that are not ours. `tests/cases/inject` shows what it prints.

#![allow(clippy::unwrap_used, clippy::panic)]

use crate::common::hosts::x3;
use crate::common::{Commands, Run, Tree, each, on, run_with_stdin, texts};
use serde_json::{Value, json};

const CONFIG: &str = r#"{"ociVersion": "1.0.2", "custom": 1.50,
    "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["sh"],
    "env": ["PATH=/bin", "LD_PRELOAD=libimage.so", "EF_POLL_USEC=1"]}, "mounts": [],
    "linux": {"resources": {"devices": [{"allow": false, "access": "rwm"}]}}}"#;

fn inject(tree: &Tree, devices: &[&str]) -> Run {
    let args = [&["cdi", "inject"], devices].concat();
    let run = run_with_stdin(&mut on(tree.root(), &args), CONFIG.as_bytes());
    if run.code == Some(0) {
        crate::common::oci(&run.stdout);
    }
    run
}

/// A host with its specifications.
fn generated(tree: Tree) -> Tree {
    tree.generate();
    tree
}

#[test]
fn what_is_not_ours_is_kept_byte_for_byte() {
    let out = inject(&generated(x3()), &["onload.dev/nic-nodes=all"]).done().stdout;
    assert!(out.contains("\"custom\": 1.50,") || out.contains("\"custom\":1.50,"), "{out}");
}

#[test]
fn devices_of_several_kinds_come_together_and_shared_nodes_once() {
    let tree = generated(x3());
    let devices = ["onload.dev/nic=all", "onload.dev/zf=all", "onload.dev/hugepages=2Mi"];
    let config = inject(&tree, &devices).done().json();
    let mut nodes = each(&config["linux"]["devices"], "path");
    nodes.sort();
    assert_eq!(nodes, ["/dev/onload", "/dev/onload_epoll", "/dev/sfc_char"]);
    let mut mounts = each(&config["mounts"], "destination");
    let count = mounts.len();
    mounts.sort();
    mounts.dedup();
    assert_eq!(mounts.len(), count);
    assert!(mounts.contains(&"/dev/hugepages-2Mi".to_owned()));
    let huge: Vec<&Value> = config["mounts"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|mount| mount["type"] == "hugetlbfs")
        .collect();
    assert_eq!(huge[0]["source"], "hugetlbfs");
}

#[test]
fn mounts_keep_their_owners_in_a_container_with_a_user_namespace() {
    let tree = generated(x3());
    let options = |namespaces: Value| {
        let mut config: Value = serde_json::from_str(CONFIG).unwrap();
        config["linux"]["namespaces"] = namespaces;
        config["linux"]["uidMappings"] =
            json!([{"containerID": 0, "hostID": 100_000, "size": 65_536}]);
        let mut command = on(tree.root(), &["cdi", "inject", "onload.dev/nic=ens3"]);
        let run = run_with_stdin(&mut command, config.to_string().as_bytes()).done();
        crate::common::oci(&run.stdout);
        run.json()["mounts"]
            .clone()
            .as_array()
            .unwrap()
            .iter()
            .map(|mount| texts(&mount["options"]))
            .collect::<Vec<_>>()
    };
    let mapped = options(json!([{"type": "mount"}, {"type": "user"}]));
    assert!(!mapped.is_empty());
    for options in mapped {
        assert!(options.contains(&"idmap".to_owned()) != options.contains(&"ridmap".to_owned()));
    }
    for options in options(json!([{"type": "mount"}])) {
        assert!(options.iter().all(|option| !option.ends_with("idmap")), "{options:?}");
    }
}
