//! `topology`: the text, the object and the picture of captured hosts. Run with `UPDATE_GOLDEN=1` to write the
//! texts and the pictures in `docs/` anew, and look at them.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::common::{
    CAPTURED, COMMITTED, Commands, Differences, Pci, Tree, captured, compare, is_root, names_in,
    on, package, run,
};

/// The hosts whose pictures stand in `docs/`.
const PICTURES: [&str; 5] =
    [CAPTURED, "debian13-2numa-stand-ins", "debian13-4numa-21vfs", "rdma-hcas", "x2-2port-sriov"];

/// The host of the README's picture, on which containers hold devices.
const HELD: &str = "x2-2port-sriov";

/// Adds leases of two containers.
fn hold(tree: &Tree) {
    for (name, container) in [("0000:65:00.3", "testpmd-a"), ("0000:65:00.6", "testpmd-b")] {
        let lease = json!({
            "version": 1, "class": "vfio", "name": name, "slot": 0, "boot": "this boot",
            "container": container, "bundle": format!("/b/{container}"), "entryPoint": "createRuntime",
            "since": 1_700_000_000, "facts": {},
            "holder": {"init": {"process": {"pid": 42, "startTime": 7, "pidNamespace": 1},
                "cgroup": {"path": format!("/sys/fs/cgroup/{container}"), "inode": 3}}},
        });
        tree.file(&format!("/run/onload-ctk/@leases/vfio={name}#0"), lease.to_string());
    }
    tree.boot("this boot");
}

#[test]
fn the_text_of_each_captured_host_is_what_people_have_read() {
    let mut differences = Differences::default();
    for name in COMMITTED {
        let tree = Tree::sample(name);
        let mut command = on(tree.root(), &["topology"]);
        let shown = run(command.env("COLUMNS", "80")).done().stdout;
        differences.compare(&package().join(format!("tests/topology/{name}.txt")), &shown);
        for line in shown.lines() {
            assert!(line.chars().count() <= 80, "{name}: {line}");
        }
    }
    differences.fail_if_any();
}

#[test]
fn no_text_is_left_of_a_host_that_is_gone() {
    let texts = COMMITTED.map(|name| format!("{name}.txt"));
    assert_eq!(names_in(&package().join("tests/topology")), texts);
    let pictures: Vec<String> = names_in(&package().join("docs"))
        .into_iter()
        .filter(|name| name.ends_with(".svg"))
        .collect();
    let mut expected = PICTURES.map(|name| format!("topology-{name}.svg")).to_vec();
    expected.insert(0, "topology-8-gpus.svg".to_owned());
    assert_eq!(pictures, expected);
}

#[test]
fn the_pictures_in_the_documentation_are_what_the_command_draws() {
    let mut differences = Differences::default();
    for name in PICTURES {
        let tree = Tree::sample(name);
        if name == HELD {
            hold(&tree);
        }
        let run = tree.run(&["topology", "--format", "svg"]).done();
        differences.compare(&package().join(format!("docs/topology-{name}.svg")), &run.stdout);
        let page = fs::read_to_string(package().join("docs/topology.md")).unwrap();
        assert!(page.contains(&format!("(topology-{name}.svg)")), "{name}");
    }
    differences.fail_if_any();
    let shown = fs::read_to_string(package().join("README.md")).unwrap();
    let first = shown.lines().take(40).any(|line| line.contains("(docs/topology-"));
    assert!(first, "the README's first screen has a picture");
}

#[test]
fn a_picture_is_the_same_each_time_and_names_no_version() {
    let root = captured();
    let draw = || run(&mut on(&root, &["topology", "--format", "svg"])).done().stdout;
    let picture = draw();
    assert_eq!(picture, draw());
    assert!(!picture.contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn names_of_a_host_steer_neither_a_terminal_nor_a_browser() {
    let tree = Tree::new();
    let address = "0000:03:00.0";
    let function = tree.pci(Pci::network(address, "8086:10c9", "igb"));
    tree.interface(&function, "a\u{1b}<b>&");
    for format in ["text", "svg"] {
        let shown = run(&mut on(tree.root(), &["topology", "--format", format])).done().stdout;
        assert!(shown.contains("\\u{1b}"), "{format}: {shown}");
        assert!(!shown.contains('\u{1b}'), "{format}: {shown}");
        assert_eq!(shown.contains("<b>"), format == "text", "{shown}");
        assert_eq!(shown.contains("&lt;b&gt;&amp;"), format == "svg", "{shown}");
    }
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
        warnings.iter().any(|text| text.starts_with("could not determine who holds devices: ")),
        "{warnings:?}"
    );
}

/// A made-up machine: on each of two nodes two switches, each with two GPUs and a NIC beside the first, and a second
/// NIC below a switch of its own.
fn eight_gpus() -> Tree {
    let tree = Tree::new();
    for node in 0..2 {
        let directory = format!("/sys/devices/system/node/node{node}");
        let cpus = format!("{}-{}", node * 32, node * 32 + 31);
        tree.attribute(&format!("{directory}/cpulist"), &cpus);
    }
    for switch in 0..4 {
        let node = switch / 2;
        let put = |above: &str, address: &str, class: &str, id: &str, driver: &str| {
            let function = Pci { address, id, class, numa_node: node, driver };
            let directory = tree.pci_below(above, function);
            let link = [("current_link_speed", "32.0 GT/s PCIe"), ("current_link_width", "16")];
            tree.attributes(&directory, &link);
            directory
        };
        let bus = |below: i32| format!("{:02x}", 0x10 + switch * 0x20 + below);
        let bridge = |above: &str, address: &str| {
            put(above, address, "0x060400", "1000:c030", "pcieport");
            format!("{above}/{address}")
        };
        let port = bridge(&format!("pci0000:{}", bus(0)), &format!("0000:{}:01.0", bus(0)));
        let upper = bridge(&port, &format!("0000:{}:00.0", bus(1)));
        let below = |number: i32| bridge(&upper, &format!("0000:{}:{number:02x}.0", bus(2)));
        for gpu in 0..2 {
            let address = format!("0000:{}:00.0", bus(3 + gpu));
            put(&below(gpu), &address, "0x030200", "10de:2330", "nvidia");
        }
        let nic = |above: &str, at: i32, number: i32| {
            let address = format!("0000:{}:00.0", bus(at));
            let directory = put(above, &address, "0x020700", "15b3:1021", "mlx5_core");
            tree.rdma(&directory, &format!("mlx5_{number}"), number.unsigned_abs());
        };
        nic(&below(2), 5, switch * 2);
        let upper = bridge(&below(3), &format!("0000:{}:00.0", bus(6)));
        let second = bridge(&upper, &format!("0000:{}:00.0", bus(7)));
        nic(&second, 8, switch * 2 + 1);
    }
    tree
}

#[test]
fn the_picture_of_a_machine_with_gpus_shows_the_nics_near_them() {
    let tree = eight_gpus();
    let picture = tree.run(&["topology", "--format", "svg"]).done().stdout;
    compare(&package().join("docs/topology-8-gpus.svg"), &picture);
    let text = tree.run(&["topology"]).done().stdout;
    let behind = |start: &str| -> Vec<&str> {
        text.lines().filter_map(|line| Some(line.split_once(start)?.1)).collect()
    };
    let expected = [0, 0, 2, 2, 4, 4, 6, 6].map(|nic| format!("mlx5_{nic} (PIX)"));
    assert_eq!(behind("nearest NIC: "), expected);
    let expected = [0, 0, 2, 2, 4, 4, 6, 6].map(|nic| format!("00.0: mlx5_{nic}"));
    assert_eq!(behind("rdma=gpu-").iter().map(|text| &text[8..]).collect::<Vec<_>>(), expected);
    assert!(text.contains("0000:13:00.0 GPU0 NVIDIA, nvidia, 32.0 GT/s on 16 lanes\n"), "{text}");
}

#[test]
fn a_matrix_has_the_distance_of_each_gpu_and_nic() {
    let shown = eight_gpus().run(&["topology", "--matrix"]).done();
    assert_eq!(shown.stderr, "");
    let lines: Vec<Vec<&str>> =
        shown.stdout.lines().map(|line| line.split('\t').collect()).collect();
    let names = (0..8).map(|at| format!("GPU{at}")).chain((0..8).map(|at| format!("NIC{at}")));
    let last = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"].map(str::to_owned);
    let header: Vec<String> = [String::new()].into_iter().chain(names).chain(last).collect();
    assert_eq!(lines[0], header);
    let gpu = "GPU0| X |PIX|NODE|NODE|SYS|SYS|SYS|SYS|PIX|PXB|NODE|NODE|SYS|SYS|SYS|SYS|0-31|0|N/A";
    assert_eq!(lines[1], gpu.split('|').collect::<Vec<_>>());
    assert_eq!(lines[9][0], "NIC0");
    assert_eq!(lines[9][1..3], ["PIX", "PIX"]);
    assert_eq!(lines[9].len(), 17, "a NIC has no affinity");
    for legend in ["  GPU7: 0000:74:00.0 NVIDIA", "  NIC7: mlx5_7"] {
        assert!(shown.stdout.lines().any(|line| line == legend), "{}", shown.stdout);
    }
}
