//! `discover`: what is found on hosts of many makes, and the reason for what is not offered.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::hosts::{odd_names, rdma, x3};
use crate::common::{
    Commands, Pci, Tree, captured, device_names, each, needs, reason, run, strace, text,
};
use crate::metrics::with_functions;
use serde_json::{Value, json};

/// Why a container that has the host's root mounted, and a network of its "own" or the "hosts", offers no interface.
fn not_movable_in_a_container(network: &str) -> String {
    let tree = Tree::sample("debian13-2numa-onload-rxe-vfio");
    let captured = tree.path("/captured");
    fs::rename(tree.path("/sys"), &captured).unwrap();
    fs::create_dir(tree.path("/sys")).unwrap();
    tree.config("[discover]\noffer-netdevs = [\"ens1v0\"]\n");
    let script =
        "set -e; mount -t sysfs sysfs \"$1/sys\"; [ \"$4\" = own ] || mount -t sysfs sysfs /sys
        for name in bus class devices; do mount --bind \"$2/$name\" \"$1/sys/$name\"; done
        exec \"$3\" --host-root \"$1\" discover --format json";
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--net", "--propagation", "private"]);
    unshare.args(["sh", "-c", script, "sh"]).arg(tree.root());
    unshare.arg(captured).arg(env!("CARGO_BIN_EXE_onload-ctk"));
    let done = run(unshare.arg(network)).done();
    let found: Value = serde_json::from_str(&done.stdout).unwrap();
    let mut reasons = found["not_offered"].as_array().unwrap().iter();
    let own = reasons.find(|entry| entry["kind"] == "netdev" && entry["name"] == "ens1v0");
    text(&own.unwrap()["reason"])
}

#[test]
fn only_a_container_in_the_hosts_network_asks_the_kernel_which_interfaces_may_move() {
    if !needs::mount_namespace("mounting sysfs") {
        return;
    }
    // The network of the test has no interface of the sample.
    let asked = "the kernel's netlink answer does not contain it";
    let not_asked = "the host's interfaces, addresses and routes are not recorded here";
    for (network, wanted) in [("hosts", asked), ("own", not_asked)] {
        let reason = not_movable_in_a_container(network);
        assert!(reason.contains(wanted), "{network}: {reason}");
    }
}

#[test]
fn a_host_of_512_functions_is_explained_in_a_few_rows() {
    let tree = Tree::with_onload();
    tree.vfio().hook();
    let parent = tree.pci(Pci::network("0000:41:00.0", "8086:1592", "ice"));
    tree.interface(&parent, "ens1");
    for index in 0..512_u32 {
        let (device, function) = (index / 8 % 32, index % 8);
        let bus = 0x42 + index / 256;
        let address = format!("0000:{bus:02x}:{device:02x}.{function}");
        let child = tree.pci(Pci::network(&address, "8086:1889", "iavf"));
        tree.virtual_function(&parent, index, &child);
        if index < 256 {
            tree.interface(&child, &format!("ens1v{index}"));
        }
    }
    let whole = tree.discover();
    let count = whole["not_offered"].as_array().unwrap().len();
    assert!(count >= 512 + 256, "{count}");
    let explained = tree.run(&["discover", "--explain"]).done();
    let (_, rows) = explained.stdout.split_once("Not offered").unwrap();
    assert!(rows.lines().count() < 15, "{rows}");
    // The half of them has an interface, which the host would lose.
    for range in [
        "ens1v0 … ens1v255 (256)",
        "0000:42:00.0 … 0000:42:1f.7 (256)",
        "0000:43:00.0 … 0000:43:1f.7 (256)",
    ] {
        assert!(rows.contains(range), "{rows}");
    }
    assert!(explained.warnings().len() < 5, "{}", explained.stderr);
}

#[test]
fn an_interface_whose_name_is_a_word_of_ours_goes_by_its_pci_address() {
    let tree = odd_names();
    let found = tree.discover();
    let offered: Vec<(String, String)> = found["nics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|nic| (text(&nic["name"]), text(&nic["device"])))
        .collect();
    let expected = [
        ("Eth-1.a_b", "Eth-1.a_b"),
        ("a+", "10000:e1:02.0"),
        ("all", "10000:e1:00.0"),
        ("b_", "10000:e1:03.0"),
        ("eth0:1", "eth0:1"),
        ("loopback", "10000:e1:01.0"),
        ("none", "10000:e1:05.0"),
    ];
    assert_eq!(offered, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    assert_eq!(found["nics"][0]["numa_node"], Value::Null);
    let members = device_names(&tree.spec("nic"));
    assert_eq!(members.iter().filter(|name| *name == "all").count(), 1);
    assert_eq!(members.iter().filter(|name| *name == "loopback").count(), 1);
    assert!(members.contains(&"10000:e1:00.0".to_owned()));
}

#[test]
fn a_library_behind_a_link_that_leaves_the_tree_is_skipped_with_a_warning() {
    let keep = tempfile::tempdir().unwrap();
    let outside = keep.path().join("libonload_ext.so.9");
    fs::write(&outside, "outside").unwrap();
    let tree = x3();
    let link = "/usr/lib/x86_64-linux-gnu/libonload_ext.so.9";
    tree.link(link, outside.to_str().unwrap());
    let run = tree.generate();
    let skipped = run.warnings().into_iter().find(|w| w.contains("libonload_ext.so.9"));
    assert!(skipped.unwrap().contains("leads to no regular file"), "{}", run.stderr);
    let nic = tree.written("nic");
    let mounted = each(&nic["containerEdits"]["mounts"], "hostPath");
    assert!(!mounted.contains(&link.to_owned()));
    assert!(mounted.contains(&"/usr/lib/x86_64-linux-gnu/libonload_ext.so.1.2.0".to_owned()));
}

#[test]
fn rdma_devices_of_every_make_are_told_apart() {
    let tree = rdma();
    let found = tree.discover();
    assert_eq!(each(&found["rdma"], "name"), ["mlx4_0", "mlx5_0", "rxe0"]);
    let [both, roce, soft] = [0, 1, 2].map(|index| &found["rdma"][index]);
    // By the port's GUID, which is not the node's.
    assert_eq!(both["ports"][0]["netdevs"], json!(["ib1"]));
    assert_eq!(both["ports"][1]["netdevs"], json!(["ib0"]));
    assert_eq!(both["netdevs"], json!(["ib0", "ib1"]));
    assert_eq!(both["numa_node"], 1);
    assert_eq!(roce["nodes"], json!(["/dev/infiniband/uverbs7", "/dev/infiniband/rdma_cm"]));
    assert_eq!(roce["netdevs"], json!(["ens1"]));
    assert_eq!(soft["pci_address"], Value::Null);
    assert_eq!(soft["numa_node"], Value::Null);
    assert_eq!(soft["netdevs"], json!(["ens1"]));
    assert!(reason(&found, "rdma", "smi1").contains("only issm9"));
    assert!(reason(&found, "rdma", "umad0").contains("offer-umad = true"));
    assert!(reason(&found, "rdma", "issm0").contains("offer-issm = true"));
}

/// The files of sysfs and procfs that a run opens for reading, as the descriptors lead to them.
fn opened(root: &Path) -> Vec<String> {
    let trace = tempfile::NamedTempFile::new().unwrap();
    let mut command = strace::traced(trace.path(), &["trace=openat,openat2"]);
    run(command.arg("--host-root").arg(root).args(["-q", "discover"])).done();
    let text = fs::read_to_string(trace.path()).unwrap();
    let paths = text
        .lines()
        .filter(|l| !l.contains("O_PATH") && !l.contains("O_DIRECTORY"))
        .filter_map(|line| line.strip_suffix('>')?.rsplit_once('<'));
    let below = format!("{}/", root.display());
    let paths = paths.filter_map(|(_, path)| path.strip_prefix(&below));
    let kernels = |path: &&str| path.starts_with("sys/") || path.starts_with("proc/");
    paths.filter(kernels).map(str::to_owned).collect()
}

#[test]
fn no_file_of_the_kernel_is_read_twice() {
    if !strace::can_trace() {
        return;
    }
    let trees = crate::common::hosts::all();
    let roots = trees.iter().map(|(_, tree)| tree.root().to_owned());
    for root in roots.chain([captured()]) {
        let mut paths = opened(&root);
        paths.sort();
        let twice: Vec<_> = paths.windows(2).filter(|pair| pair[0] == pair[1]).collect();
        assert!(twice.is_empty(), "{twice:?}");
    }
    assert!(opened(&captured()).len() > 100);
}

#[test]
fn more_than_eight_functions_of_a_card_share_a_row_and_an_entry_of_their_pool() {
    let few = with_functions(8).run(&["discover"]).done().stdout;
    assert_eq!(few.matches(", VF of 0000:81:00.0").count(), 8, "{few}");
    let many = with_functions(12).run(&["discover"]).done().stdout;
    let rows: Vec<&str> = many.lines().filter(|line| line.contains("0000:81:01.0")).collect();
    let range = "0000:81:01.0 … 0000:81:02.3 (12)";
    assert_eq!(rows.len(), 2, "{many}");
    assert!(
        rows[0].contains(range) && rows[0].ends_with("vfio-pci, VFs of 0000:81:00.0"),
        "{many}"
    );
    assert!(rows[1].ends_with(&format!("any   12 of 12  {range}")), "{many}");
}
