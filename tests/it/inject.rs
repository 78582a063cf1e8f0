//! `cdi inject`: devices of a host in an OCI configuration.

#![allow(clippy::unwrap_used, clippy::panic)]

use crate::common::hosts::{hugepages, rdma, vfio, x2, x3, x4};
use crate::common::{Commands, Run, Tree, captured, each, on, program, run_with_stdin, texts};
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
fn an_interface_brings_nodes_rules_mounts_and_the_preload() {
    let tree = generated(x3());
    let config = inject(&tree, &["onload.dev/nic=ens3"]).done().json();
    let env = texts(&config["process"]["env"]);
    let wanted = [
        "PATH=/bin",
        "LD_PRELOAD=libonload.so",
        "EF_POLL_USEC=1",
        "EF_FDTABLE_SIZE=524288",
        "ONLOAD_CTK_NIC_ENS3=ens3",
    ];
    for variable in wanted {
        assert!(env.contains(&variable.to_owned()), "{variable} in {env:?}");
    }
    assert_eq!(env.len(), wanted.len());
    let nodes = &config["linux"]["devices"];
    assert_eq!(each(nodes, "path"), ["/dev/onload", "/dev/onload_epoll"]);
    assert_eq!((&nodes[0]["type"], &nodes[0]["major"]), (&json!("c"), &json!(243)));
    let rules = config["linux"]["resources"]["devices"].as_array().unwrap();
    assert_eq!(rules.len(), 3);
    assert_eq!(
        rules[1],
        json!({"allow": true, "type": "c", "major": 243, "minor": 0, "access": "rw"})
    );
    let library = "/usr/lib64/libonload.so".to_owned();
    assert!(each(&config["mounts"], "destination").contains(&library));
}

#[test]
fn what_is_not_ours_is_kept_byte_for_byte() {
    let out = inject(&generated(x3()), &["onload.dev/nic-nodes=all"]).done().stdout;
    assert!(out.contains("\"custom\": 1.50,") || out.contains("\"custom\":1.50,"), "{out}");
}

#[test]
fn a_profile_replaces_what_the_image_set() {
    let tree = generated(Tree::with_onload());
    let config = inject(&tree, &["onload.dev/profile=latency"]).done().json();
    let env = texts(&config["process"]["env"]);
    assert!(env.contains(&"EF_POLL_USEC=100000".to_owned()), "{env:?}");
    assert!(env.contains(&"LD_PRELOAD=libimage.so".to_owned()), "{env:?}");
}

#[test]
fn of_several_interfaces_by_cdi_the_last_is_the_one_that_programs_use() {
    let tree = x4();
    tree.config("[cdi]\nselect-interface = true\n");
    let tree = generated(tree);
    let chosen = |devices: &[&str]| {
        let config = inject(&tree, devices).done().json();
        let mut env = texts(&config["process"]["env"]);
        env.retain(|entry| entry.starts_with("EF_INTERFACE_WHITELIST="));
        env
    };
    let (first, second) = ("onload.dev/nic=ens4f0", "onload.dev/nic=ens4f1");
    let whitelist = |name: &str| vec![format!("EF_INTERFACE_WHITELIST={name}")];
    assert_eq!(chosen(&[first]), whitelist("ens4f0"));
    assert_eq!(chosen(&[first, second]), whitelist("ens4f1"));
    assert_eq!(chosen(&[second, first]), whitelist("ens4f0"));
    assert_eq!(chosen(&["onload.dev/nic=all"]), [""; 0]);
    // CDI cannot know that the other one is every interface.
    assert_eq!(chosen(&[first, "onload.dev/nic=all"]), whitelist("ens4f0"));
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
fn the_hook_comes_with_its_arguments() {
    let tree = generated(rdma());
    let config = inject(&tree, &["onload.dev/rdma=mlx5_0"]).done().json();
    let hook = &config["hooks"]["createRuntime"][0];
    assert_eq!(hook["path"], "/usr/bin/onload-hook");
    assert_eq!(hook["args"][4], "--expect");
    assert_eq!(hook["timeout"], 10);
    let vfio = inject(&generated(vfio()), &["onload.dev/vfio=0000:81:02.0"]).done().json();
    let nodes = each(&vfio["linux"]["devices"], "path");
    assert_eq!(nodes, ["/dev/vfio/vfio", "/dev/vfio/20"]);
}

#[test]
fn a_clock_may_only_be_read() {
    let config = inject(&generated(x2()), &["onload.dev/ptp=ptp1"]).done().json();
    let rule = &config["linux"]["resources"]["devices"][1];
    assert_eq!(rule, &json!({"allow": true, "type": "c", "major": 247, "minor": 1, "access": "r"}));
}

#[test]
fn a_device_that_nobody_specified_is_refused_by_name() {
    let tree = generated(hugepages());
    for device in ["onload.dev/nic=ens9", "onload.dev/hugepages=all", "other.com/x=y"] {
        let run = inject(&tree, &["onload.dev/hugepages=2Mi", device]);
        assert_eq!(run.stdout, "");
        let refusal = run.refused();
        assert!(refusal.contains(device), "{refusal}");
    }
    let refusal = inject(&tree, &["ens9"]).refused();
    assert!(refusal.starts_with("reading device \"ens9\": "), "{refusal}");
}

#[test]
fn a_node_that_went_is_refused_with_its_path() {
    let tree = generated(rdma());
    tree.without_node("/dev/infiniband/uverbs7");
    let refusal = inject(&tree, &["onload.dev/rdma=mlx5_0"]).refused();
    assert!(refusal.contains("/dev/infiniband/uverbs7"), "{refusal}");
}

#[test]
fn stdin_that_is_no_configuration_is_refused() {
    let tree = generated(x3());
    for bytes in [&b""[..], b"{", b"[]", b"\xff", b"{\"process\": 1}", b"{\"a\":1,\"a\":2}"] {
        let mut command = on(tree.root(), &["cdi", "inject", "onload.dev/nic=all"]);
        let run = run_with_stdin(&mut command, bytes);
        assert_eq!(run.stdout, "");
        run.refused();
    }
}

#[test]
fn specifications_of_named_directories_are_used() {
    let specs = tempfile::tempdir().unwrap();
    let dir = specs.path().to_str().unwrap();
    let mut generate = on(&captured(), &["cdi", "generate", "--output-dir", dir]);
    crate::common::run(&mut generate).done();
    let args = ["cdi", "inject", "onload.dev/vfio=0000:81:10.0", "--spec-dir", dir];
    let config = run_with_stdin(&mut on(&captured(), &args), CONFIG.as_bytes()).done().json();
    assert_eq!(config["linux"]["devices"][1]["major"], 241);
    let refusal = run_with_stdin(program().args(["cdi", "inject"]), b"").code;
    assert_eq!(refusal, Some(2));
}

#[test]
fn a_device_that_no_specification_offers_is_answered_with_who_knows_why() {
    let tree = Tree::new();
    let message = inject(&tree, &["onload.dev/nic=all"]).refused();
    assert!(message.contains("onload.dev/nic=all"), "{message}");
    assert!(message.contains("\"onload-ctk discover --explain\""), "{message}");
}

#[test]
fn a_node_that_is_gone_is_told_with_its_cause_once() {
    let tree = generated(rdma());
    tree.without_node("/dev/infiniband/uverbs7");
    let refusal = inject(&tree, &["onload.dev/rdma=mlx5_0"]).refused();
    let path = tree.path("/dev/infiniband/uverbs7");
    let wanted = format!(
        "giving devices to the container: looking at the device node /dev/infiniband/uverbs7: there is \
         no device node {}; its specification may be out of date: \"onload-ctk cdi check\" tells",
        path.display()
    );
    assert_eq!(refusal, wanted);
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
