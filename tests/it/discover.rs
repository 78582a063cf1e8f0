//! `discover`: what is found on hosts of many makes, and the reason for what is not offered.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::hosts::{
    hugepages, odd_names, onload8, opt_onload, rdma, refused, vfio, vfio_cdev, x2, x3, x4,
};
use crate::common::{
    CHECKSUM, Commands, Pci, Tree, captured, device_names, each, needs, on, reason, run, strace,
    text,
};
use crate::metrics::with_functions;
use serde_json::{Value, json};

/// The keys of an object, in their order.
fn keys(object: &Value) -> Vec<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

#[track_caller]
fn assert_has(object: &Value, wanted: &[&str]) {
    let found = keys(object);
    let missing: Vec<_> = wanted.iter().filter(|key| !found.contains(key)).collect();
    assert!(missing.is_empty(), "{missing:?} not in {found:?}");
}

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
    let asked = "the kernel's answer by netlink does not have it";
    let not_asked = "the host's interfaces, addresses and routes are not recorded here";
    for (network, wanted) in [("hosts", asked), ("own", not_asked)] {
        let reason = not_movable_in_a_container(network);
        assert!(reason.contains(wanted), "{network}: {reason}");
    }
}

#[test]
fn an_interface_that_may_move_is_shown_and_written_and_one_that_the_host_uses_says_why() {
    let tree = Tree::new();
    for (index, name) in ["ens1v0", "ens1v1"].into_iter().enumerate() {
        let address = format!("0000:41:10.{index}");
        let function = tree.pci(Pci::network(&address, "8086:1520", "igbvf"));
        tree.interface(&function, name);
    }
    let network = "link 2 ens1v0 - - - -\nlink 3 ens1v1 - - - -\naddress 3 192.0.2.7/24\n";
    tree.file("/network.table", network).hook();
    tree.config("[discover]\noffer-netdevs = [\"ens1v*\"]\n[netdev.ens1v0]\naddresses = [\"192.0.2.10/24\"]\n");
    let found = tree.discover();
    let netdevs = found["netdevs"].as_array().unwrap();
    assert_eq!(netdevs.len(), 1);
    assert_has(
        &netdevs[0],
        &["name", "device", "pci_address", "numa_node", "driver", "state", "speed_mbps"],
    );
    let mut reasons = found["not_offered"].as_array().unwrap().iter();
    let used = reasons.find(|entry| entry["kind"] == "netdev").unwrap();
    let reason = used["reason"].as_str().unwrap();
    assert!(reason.starts_with("it has the address 192.0.2.7/24"), "{reason}");
    let table = tree.run(&["discover"]).done().stdout;
    assert!(table.contains("netdev  ens1v0  0000:41:10.0"), "{table}");
    let spec = tree.spec("netdev");
    let mut args = spec["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|device| &device["containerEdits"]["hooks"][0]["args"]);
    let args = args.find(|args| args[3] == "netdev:ens1v0").unwrap();
    assert_eq!(args[5], "ens1v0@0000:41:10.0");
    assert_eq!(args[7], "ens1v0=192.0.2.10/24");
}

#[test]
fn the_object_has_the_keys_that_programs_rely_on() {
    let found = run(&mut on(&captured(), &["discover", "--format", "json"])).done().json();
    let top = [
        "version",
        "onload",
        "tcpdirect",
        "nics",
        "rdma",
        "vfio",
        "hugepages",
        "netdevs",
        "ptp",
        "pps",
        "gdrcopy",
        "not_offered",
    ];
    assert_has(&found, &top);
    let onload = [
        "version",
        "library_version",
        "interface_checksum",
        "library_matches",
        "glibc_needed",
        "tools",
        "profiles",
    ];
    assert_eq!(keys(&found["onload"]).len(), onload.len());
    assert_has(&found["onload"], &onload);
    assert_eq!(keys(&x2().discover()["tcpdirect"]), ["tools"]);
    let place = ["pci_address", "numa_node"];
    let lists: [(&str, &[&str]); 5] = [
        ("nics", &["name", "driver", "datapath", "speed_mbps", "state", "virtual_functions"]),
        ("rdma", &["name", "node_guid", "firmware", "transport", "netdevs", "ports", "nodes"]),
        ("vfio", &["iommu_group", "group_members", "viable", "nodes", "aliases"]),
        ("ptp", &["name", "clock_name", "nic"]),
        ("hugepages", &["size_kib", "total", "free", "nodes", "mounts"]),
    ];
    for (list, wanted) in lists {
        for entry in found[list].as_array().unwrap() {
            assert_has(entry, wanted);
            if list != "hugepages" {
                assert_has(entry, &place);
            }
        }
    }
    let port = &found["rdma"][0]["ports"][0];
    assert_has(port, &["port", "state", "link_layer", "rate", "netdevs"]);
    assert_has(&found["hugepages"][0]["nodes"][0], &["node", "total", "free"]);
    for entry in found["not_offered"].as_array().unwrap() {
        assert_eq!(keys(entry), ["kind", "name", "reason"]);
        assert!(!text(&entry["kind"]).contains('/'));
    }
    let pps = x2().discover()["pps"][0].clone();
    assert_has(&pps, &["name", "clock_name", "nic", "pci_address", "numa_node"]);
}

#[test]
fn a_host_without_anything_is_told_so_and_is_no_error() {
    let tree = Tree::new();
    let found = tree.discover();
    assert_eq!(found["onload"], Value::Null);
    assert_eq!(found["tcpdirect"], Value::Null);
    for list in ["nics", "rdma", "vfio", "hugepages", "ptp", "pps", "gdrcopy"] {
        assert_eq!(found[list], json!([]), "{list}");
    }
    assert!(reason(&found, "nic", "onload").starts_with("not installed: no kernel module"));
}

#[test]
fn the_switch_of_each_port_is_looked_at() {
    let found = x2().discover();
    assert_eq!(each(&found["nics"], "name"), ["enp59s0f0np0"]);
    let nic = &found["nics"][0];
    assert_eq!(nic["datapath"], "ef10");
    assert_eq!(nic["driver"], "sfc");
    assert_eq!(nic["speed_mbps"], 25_000);
    assert_eq!(nic["numa_node"], 1);
    assert_eq!(nic["virtual_functions"], json!(["0000:3b:02.0", "0000:3b:02.1"]));
    let off = "acceleration is switched off; write 1 to \
               /sys/bus/auxiliary/devices/sfc.onload.1/sfc_resource/enable";
    assert_eq!(reason(&found, "nic", "enp59s0f1np1"), off);
    assert_eq!(found["pps"][0]["nic"], "enp59s0f0np0");
}

#[test]
fn virtual_functions_that_nobody_holds_are_named_with_what_would_help() {
    let found = x2().discover();
    for address in ["0000:3b:02.0", "0000:3b:03.1"] {
        let command = format!("driverctl set-override {address} vfio-pci");
        let advice = format!("bound to no driver; run \"{command}\"");
        assert_eq!(reason(&found, "vfio", address), advice);
    }
}

#[test]
fn each_series_has_its_datapath() {
    let datapaths = |found: &Value| each(&found["nics"], "datapath");
    assert_eq!(datapaths(&x4().discover()), ["ef10ct", "ef10"]);
    assert_eq!(datapaths(&x3().discover()), ["efct"]);
    let found = onload8().discover();
    assert_eq!(datapaths(&found), ["ef10"]);
    assert!(reason(&found, "nic", "eth1").starts_with("acceleration is switched off"));
}

#[test]
fn of_two_datapaths_the_one_that_is_not_switched_off_is_used() {
    let tree = x4();
    let switch = "/sys/devices/pci0000:3b/0000:3b:00.0/sfc.llct.0/sfc_resource/enable";
    tree.attribute(switch, "0");
    assert_eq!(each(&tree.discover()["nics"], "datapath"), ["ef10", "ef10"]);
}

#[test]
fn adapters_that_onload_refuses_are_told_from_those_that_it_could_have() {
    let found = refused().discover();
    assert_eq!(found["nics"], json!([]));
    let beginnings = [
        ("old0", "Onload supports no adapter before the 8000 series"),
        ("riverhead0", "Onload has no support for EF100"),
        ("x4ana0", "Onload accepts no function of this vendor id"),
        ("intree0", "driver sfc publishes nothing for Onload to attach to"),
        ("other0", "driver i40e is not one of Onload's, and it is not registered for AF_XDP"),
        ("unbound0", "its auxiliary device sfc.onload.0 is bound to no driver"),
        ("lo", "virtual interface"),
        ("0000:06:00.0", "it has no interface: no driver is bound to it"),
    ];
    for (name, beginning) in beginnings {
        let found = reason(&found, "nic", name);
        assert!(found.starts_with(beginning), "{name}: {found}");
    }
}

#[test]
fn a_virtual_interface_is_told_with_what_is_below_it() {
    let tree = Tree::with_onload();
    let function = tree.pci(Pci::network("0000:05:00.0", "8086:1572", "i40e"));
    tree.interface(&function, "ens1");
    let with_none = ["docker0", "ifb0", "lo", "podman0", "veth0"];
    for name in with_none.into_iter().chain(["bond0", "bond0.5"]) {
        let state = [("operstate", "unknown")];
        tree.class_device("net", "/sys/devices/virtual", name, &state);
    }
    let lower = "/sys/devices/virtual/net/bond0/lower_ens1";
    tree.link(lower, &format!("{function}/net/ens1"));
    for (upper, lower) in [("bond0.5", "bond0"), ("podman0", "veth0")] {
        let link = format!("/sys/devices/virtual/net/{upper}/lower_{lower}");
        tree.link(&link, &format!("/sys/devices/virtual/net/{lower}"));
    }
    let found = tree.discover();
    for name in with_none {
        let why = "virtual interface without a physical device: Onload cannot accelerate it; nothing can be done";
        assert_eq!(reason(&found, "nic", name), why);
    }
    let why = "virtual interface: Onload attaches to what is below it; ask for ens1";
    for name in ["bond0", "bond0.5"] {
        assert_eq!(reason(&found, "nic", name), why);
    }
}

#[test]
fn an_interface_of_another_vendor_is_told_its_way_to_af_xdp() {
    let tree = Tree::with_onload();
    let function = tree.pci(Pci::network("0000:05:00.0", "8086:1572", "i40e"));
    tree.interface(&function, "ens1");
    let why = || reason(&tree.discover(), "nic", "ens1");
    let register = "/sys/module/sfc_resource/afxdp/register";
    let start = "driver i40e is not one of Onload's";
    assert_eq!(
        why(),
        format!(
            "{start}, and it is not registered for AF_XDP; if i40e has XDP, write ens1 to {register}"
        )
    );
    tree.remove("/sys/module/sfc_resource/afxdp");
    assert_eq!(
        why(),
        format!(
            "{start}, and the loaded sfc_resource has no AF_XDP; install an Onload that has it"
        )
    );
    tree.remove("/sys/module/sfc_resource");
    assert_eq!(
        why(),
        format!(
            "{start}; if i40e has XDP, Onload takes it by AF_XDP: load sfc_resource, then write \
             ens1 to {register}"
        )
    );
}

#[test]
fn where_tcpdirect_is_not_installed_that_is_the_reason() {
    let tree = x3();
    let installed = |found: &Value| {
        let list = found["not_offered"].as_array().unwrap().clone();
        !list.iter().any(|entry| entry["name"] == "tcpdirect")
    };
    assert!(installed(&tree.discover()));
    tree.remove("/usr/lib/x86_64-linux-gnu/libonload_zf.so");
    assert_eq!(
        reason(&tree.discover(), "zf", "tcpdirect"),
        "libonload_zf.so is in none of the library directories; install TCPDirect"
    );
}

#[test]
fn a_function_that_dpdk_uses_with_its_own_driver_is_told_so() {
    let host = onload_test_tree::sample::whole("iommu-groups");
    let found = run(&mut on(&host, &["discover", "--format", "json"])).done().json();
    assert_eq!(
        reason(&found, "vfio", "0000:81:00.2"),
        "bound to mlx5_core, and DPDK uses it so, as an rdma device; run \"driverctl set-override \
         0000:81:00.2 vfio-pci\" for other programs (the host then loses its interface)"
    );
}

#[test]
fn an_interface_of_infiniband_is_not_told_to_try_af_xdp() {
    let tree = Tree::with_onload();
    let function = tree.pci(Pci::network("0000:05:00.0", "15b3:1003", "mlx4_core"));
    for name in ["ib0", "ens1"] {
        tree.interface(&function, name);
    }
    let address = ["80:00:02:08:fe:80"; 4].join(":");
    let bytes: Vec<&str> = address.split(':').take(20).collect();
    tree.attribute(&format!("{function}/net/ib0/address"), &bytes.join(":"));
    let found = tree.discover();
    let why = reason(&found, "nic", "ib0");
    assert_eq!(why, "IP over InfiniBand, which Onload does not accelerate; use rdma in its place");
    assert!(reason(&found, "nic", "ens1").contains("AF_XDP"));
}

#[test]
fn an_interface_without_a_link_to_its_device_is_not_called_virtual() {
    let tree = x3();
    tree.remove("/sys/devices/pci0000:3b/0000:3b:00.0/net/ens3/device");
    let found = tree.discover();
    assert_eq!(each(&found["nics"], "name"), ["ens3"]);
    assert_eq!(found["nics"][0]["pci_address"], "0000:3b:00.0");
    assert_eq!(found["nics"][0]["driver"], "xilinx_efct");
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
fn a_card_without_flow_filters_is_told_beside_what_is_offered() {
    let tree = x3();
    let function = tree.pci(Pci::network("0000:41:00.0", "8086:10c9", "igb"));
    tree.interface(&function, "ens1");
    tree.file("/sys/module/sfc_resource/afxdp/register", "");
    let devtype = "/sys/kernel/debug/sfc_resource/nics/000_ens1/devtype";
    tree.attribute(devtype, "5:0:0 => AF_XDP");
    let parameter = "/sys/module/sfc_resource/parameters/enable_af_xdp_flow_filters";
    tree.attribute(parameter, "1");
    tree.file("/interfaces.table", "ens1 xdp none 4\n");
    let run = tree.run(&["discover"]).done();
    let wanted = "ens1: its driver has no flow filters, which Onload sets by AF_XDP: bind or listen of servers fails with \"Operation not supported\"; set af-xdp-flow-filters = false under [host], and run \"onload-ctk host apply\"";
    assert!(run.warnings().contains(&wanted), "{}", run.stderr);
    tree.file("/interfaces.table", "ens1 none 4\n");
    let run = tree.run(&["discover"]).done();
    let wanted = "interfaces.table: line 1 is no interface with its XDP, flow filters and channels";
    assert!(run.stderr.contains(wanted), "{}", run.stderr);
}

#[test]
fn an_interface_whose_device_has_no_driver_is_not_called_virtual() {
    let tree = Tree::with_onload();
    let function = tree.pci(Pci::network("0000:05:00.0", "8086:1572", ""));
    tree.interface(&function, "ens1");
    let why = reason(&tree.discover(), "nic", "ens1");
    assert_eq!(
        why,
        "sysfs names no driver of its device, to which Onload would attach; look at /sys/class/net/ens1/device"
    );
}

#[test]
fn the_table_shows_each_port_of_an_hca_with_what_belongs_to_it() {
    let host = onload_test_tree::sample::whole("rdma-hcas");
    let shown = run(&mut on(&host, &["discover"])).done().stdout;
    let row = |name: &str| shown.lines().find(|line| line.contains(name)).unwrap().to_owned();
    let mlx4 = row("mlx4_0");
    let ports = [
        "port 1 InfiniBand ACTIVE 56 Gbit/s (4X FDR) on ib0",
        "port 2 Ethernet DOWN 10 Gbit/s (1X QDR) on ens4d1",
    ];
    assert!(mlx4.contains(&ports.join(", ")), "{mlx4}");
    let mlx5 = row("mlx5_0");
    assert!(!mlx5.contains("port 1") && mlx5.contains("InfiniBand ACTIVE "), "{mlx5}");
}

#[test]
fn what_a_class_lists_by_a_link_to_nothing_is_named() {
    let tree = rdma();
    tree.link("/sys/class/infiniband/scif0", "../../devices/gone");
    let found = tree.discover();
    assert!(reason(&found, "rdma", "scif0").contains("leads to nothing"));
    assert!(!each(&found["rdma"], "name").contains(&"scif0".to_owned()));
}

#[test]
fn a_refused_adapter_is_not_offered_even_where_something_is_attached() {
    let tree = Tree::with_onload();
    let function = tree.pci(Pci::network("0000:01:00.0", "1924:0903", "sfc"));
    tree.interface(&function, "old0");
    tree.auxiliary(&function, "sfc.onload.0", "sfc_resource.ef10", Some("1"));
    assert_eq!(tree.discover()["nics"], json!([]));
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
fn an_interface_without_a_legal_name_and_without_an_address_is_not_offered() {
    let tree = Tree::with_onload();
    tree.class_device("net", "/sys/devices/virtual", "xdp+", &[("operstate", "up")]);
    tree.attribute("/sys/kernel/debug/sfc_resource/nics/000_xdp+/devtype", "AF_XDP");
    let found = tree.discover();
    assert_eq!(found["nics"], json!([]));
    let reason = reason(&found, "nic", "xdp+");
    assert!(reason.contains("no legal name of a CDI device"), "{reason}");
}

#[test]
fn an_interface_that_onload_knows_and_this_namespace_lacks_is_named() {
    let tree = Tree::with_onload();
    tree.attribute("/sys/kernel/debug/sfc_resource/nics/003_far0/devtype", "AF_XDP");
    let reason = reason(&tree.discover(), "nic", "far0");
    assert!(reason.contains("no interface of this network namespace"), "{reason}");
}

/// Two interfaces of another vendor, and one that Onload lists: its first name, that of today, and its address.
fn renamed(kind: &str, [at_first, name, address]: [&str; 3]) -> Value {
    let tree = x3();
    for (function, name, address) in [
        ("0000:41:00.0", "eth0", "02:00:00:00:10:01"),
        ("0000:42:00.0", "ens1", "02:00:00:00:10:02"),
    ] {
        let function = tree.pci(Pci::network(function, "8086:10c9", "igb"));
        let interface = tree.interface(&function, name);
        tree.attribute(&format!("{interface}/address"), address);
    }
    let listed = format!("/sys/kernel/debug/sfc_resource/nics/000_{at_first}");
    let attributes = [("net_dev", name), ("mac_addr", address), ("devtype", kind)];
    tree.attributes(&listed, &attributes);
    tree.discover()
}

#[test]
fn an_interface_that_was_renamed_after_onload_attached_to_it_is_the_accelerated_one() {
    let kind = "5:0:0 => AF_XDP";
    let found = renamed(kind, ["eth0", "ens1", "02:00:00:00:10:02"]);
    assert_eq!(each(&found["nics"], "name"), ["ens1", "ens3"]);
    // The one that has the old name by now is not.
    let why = reason(&found, "nic", "eth0");
    assert!(why.starts_with("driver igb is not one of Onload's"), "{why}");
    // A bond gives it another address, and no other name.
    let found = renamed(kind, ["ens1", "ens1", "02:00:00:00:10:09"]);
    assert_eq!(each(&found["nics"], "name"), ["ens1", "ens3"]);
}

#[test]
fn an_interface_that_is_called_as_an_accelerated_one_in_a_container_is_not_that_one() {
    let away = ["ens1v0", "eth0", "02:00:00:00:10:09"];
    let found = renamed("5:0:0 => AF_XDP", away);
    assert_eq!(each(&found["nics"], "name"), ["ens3"]);
    let why = reason(&found, "nic", "ens1v0");
    assert!(why.contains("no interface of this network namespace"), "{why}");
    // One of a function is here by its name, whatever address a bond gave it.
    let found = renamed("1:41:2 => EF10", away);
    let rows = each(&found["not_offered"], "name");
    assert!(!rows.contains(&"ens1v0".to_owned()), "{rows:?}");
}

#[test]
fn a_library_of_another_driver_stops_onload_and_its_interfaces_but_not_tcpdirect() {
    let tree = x2();
    let other = "0123456789abcdef0123456789abcdef";
    tree.driver(other);
    let found = tree.discover();
    assert_eq!(found["onload"]["library_matches"], false);
    assert_eq!(found["onload"]["interface_checksum"], other);
    let reason = reason(&found, "nic", "onload");
    let wanted = format!("was not built for the loaded driver, whose interface is {other}");
    assert!(reason.contains(&wanted), "{reason}");
    assert_ne!(found["tcpdirect"], Value::Null);
    tree.generate();
    assert_eq!(
        crate::common::specs_in(&tree.specs()),
        [
            "onload.dev-hugepages.json",
            "onload.dev-pps.json",
            "onload.dev-ptp.json",
            "onload.dev-zf.json",
        ]
    );
}

#[test]
fn a_library_of_another_release_stops_onload_though_the_interface_is_the_same() {
    let tree = x2();
    let proc = "/proc/driver/onload/version";
    let library = "/usr/lib/x86_64-linux-gnu/libonload.so";
    let version = |version: &str| {
        let text = format!("onload_version: {version}\nuk_intf_ver: {CHECKSUM}\n");
        tree.file(proc, text);
    };
    let content = fs::read(tree.path(library)).unwrap();
    let release = [content.as_slice(), b"\0Onload 8.1.1.17\n"].concat();
    tree.file(library, release);
    version("8.1.1.17");
    assert_eq!(tree.discover()["onload"]["library_matches"], true);
    // The module is still that of before an upgrade.
    version("8.1.0.15");
    let found = tree.discover();
    assert_eq!(found["onload"]["library_matches"], false);
    assert_eq!(found["onload"]["library_version"], "8.1.1.17");
    let reason = reason(&found, "nic", "onload");
    assert!(reason.contains("whose version is 8.1.0.15"), "{reason}");
    // Which version a library has is not always to be read.
    tree.file(library, content);
    assert_eq!(tree.discover()["onload"]["library_matches"], true);
}

#[test]
fn onload_is_not_offered_without_any_of_its_pieces() {
    type Break = fn(&Tree);
    let cases: [(Break, &str); 8] = [
        (
            |t| {
                t.without_node("/dev/onload");
            },
            "/dev/onload is missing although the module",
        ),
        (
            |t| {
                t.without_node("/dev/onload_epoll");
            },
            "/dev/onload_epoll is missing",
        ),
        (
            |t| {
                t.without_node("/dev/onload").node("/dev/onload", 250, 0);
            },
            "/dev/onload is 250:0, but the device is 243:0; remove the stale node",
        ),
        (
            |t| {
                t.remove("/sys/class/onload");
            },
            "/dev/onload: there is no /sys/class/onload/onload/dev to compare its number with",
        ),
        (
            |t| {
                t.remove("/usr/lib/x86_64-linux-gnu/libonload.so");
            },
            "libonload.so is in none of the library directories",
        ),
        (
            |t| {
                t.remove("/proc/driver/onload/version");
            },
            "does not tell the driver's interface",
        ),
        (
            |t| {
                t.file("/usr/lib/x86_64-linux-gnu/libonload.so", "no ELF file");
            },
            "was not built for the loaded driver",
        ),
        (
            |t| {
                t.remove("/sys/module/onload").without_node("/dev/onload");
            },
            "/dev/onload is missing: the module onload is not loaded",
        ),
    ];
    for (break_it, wanted) in cases {
        let tree = x3();
        assert_eq!(each(&tree.discover()["nics"], "name"), ["ens3"]);
        break_it(&tree);
        tree.remove("/usr/lib/x86_64-linux-gnu/libonload_zf.so");
        let found = tree.discover();
        let onload = reason(&found, "nic", "onload");
        assert!(onload.contains(wanted), "{onload}");
        let nic = reason(&found, "nic", "ens3");
        assert_eq!(nic, format!("Onload is not offered: {onload}"));
        let run = tree.generate();
        let written = crate::common::specs_in(&tree.specs());
        assert_eq!(written, ["onload.dev-hugepages.json"], "{}", run.stderr);
    }
}

/// An interface of another vendor that Onload reaches by AF_XDP.
fn with_af_xdp(tree: &Tree) {
    let function = tree.pci(Pci::network("0000:41:00.0", "8086:10c9", "igb"));
    tree.interface(&function, "ens1");
    tree.attribute("/sys/kernel/debug/sfc_resource/nics/000_ens1/devtype", "5:0:0 => AF_XDP");
}

#[test]
fn tcpdirect_is_not_offered_on_an_interface_by_af_xdp() {
    let tree = x3();
    with_af_xdp(&tree);
    let found = tree.discover();
    assert_eq!(each(&found["nics"], "name"), ["ens1", "ens3"]);
    assert_ne!(found["tcpdirect"], Value::Null);
    let why = reason(&found, "zf", "ens1");
    assert!(why.contains("by AF_XDP") && why.contains("SIGSEGV"), "{why}");
    let zf = tree.spec("zf");
    assert_eq!(each(&zf["devices"], "name"), ["all", "ens3"]);
    let all = zf["devices"][0]["containerEdits"]["env"].clone();
    assert_eq!(all, json!(["ONLOAD_CTK_ZF_ENS3=ens3"]));
    let explained = tree.run(&["discover", "--explain"]).done().stdout;
    assert!(explained.contains("Onload reaches it by AF_XDP"), "{explained}");
}

#[test]
fn with_interfaces_by_af_xdp_alone_there_is_no_zf() {
    let tree = Tree::with_onload();
    with_af_xdp(&tree);
    let found = tree.discover();
    assert_eq!(each(&found["nics"], "name"), ["ens1"]);
    assert_eq!(found["tcpdirect"], Value::Null);
    assert!(reason(&found, "zf", "ens1").contains("use nic on it"));
    let run = tree.generate();
    assert!(!run.stderr.contains("TCPDirect needs"), "{}", run.stderr);
    let written = crate::common::specs_in(&tree.specs());
    assert!(written.contains(&"onload.dev-nic.json".to_owned()));
    assert!(!written.contains(&"onload.dev-zf.json".to_owned()), "{written:?}");
}

#[test]
fn without_onload_tcpdirect_alone_offers_no_interface_by_af_xdp() {
    let tree = x3();
    with_af_xdp(&tree);
    tree.driver("0123456789abcdef0123456789abcdef");
    let found = tree.discover();
    assert_eq!(each(&found["nics"], "name"), ["ens3"]);
    assert!(reason(&found, "nic", "ens1").starts_with("Onload is not offered: "));
}

#[test]
fn tcpdirect_is_not_offered_without_its_node_or_the_control_plane_library() {
    let tree = x3();
    tree.without_node("/dev/sfc_char");
    let found = tree.discover();
    assert_eq!(found["tcpdirect"], Value::Null);
    assert!(reason(&found, "zf", "tcpdirect").starts_with("/dev/sfc_char is missing"));
    let tree = x3();
    let zf = "/usr/lib/x86_64-linux-gnu/libonload_zf.so.1";
    let mut content = fs::read(tree.path(zf)).unwrap();
    content.extend(b"libefcp.so.1\0");
    tree.file(zf, content).remove("/usr/lib/x86_64-linux-gnu/libefcp.so.1");
    let found = tree.discover();
    assert_eq!(found["tcpdirect"], Value::Null);
    assert!(reason(&found, "zf", "tcpdirect").contains("opens libefcp.so.1"));
    assert_eq!(each(&found["nics"], "name"), ["ens3"]);
}

#[test]
fn tcpdirect_without_pages_of_2_mib_costs_a_warning() {
    let tree = x3();
    assert!(tree.run(&["discover"]).done().warnings().is_empty());
    tree.remove("/sys/kernel/mm/hugepages").remove("/sys/devices/system/node");
    let run = tree.run(&["discover"]).done();
    assert!(run.warnings()[0].starts_with("TCPDirect needs hugepages of 2 MiB"), "{}", run.stderr);
}

#[test]
fn an_interface_that_receives_into_pages_of_2_mib_costs_a_warning_without_them() {
    let zf = "/usr/lib/x86_64-linux-gnu/libonload_zf.so";
    for (tree, interface) in [(x3(), Some("ens3")), (x4(), Some("ens4f0")), (x2(), None)] {
        tree.remove(zf);
        assert!(tree.run(&["discover"]).done().warnings().is_empty());
        tree.hugepages(2048, &[(0, 0, 0)]);
        tree.hugepages(1 << 20, &[(0, 4, 4)]);
        let run = tree.run(&["discover"]).done();
        let warning = interface.map(|name| {
            format!("Onload needs hugepages of 2 MiB to receive by {name}, and this host has none: run \"echo N > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages\"")
        });
        assert_eq!(run.warnings(), Vec::from_iter(warning), "{}", run.stderr);
    }
}

#[test]
fn libraries_are_found_where_red_hat_has_them() {
    let tree = Tree::new();
    tree.driver(CHECKSUM).libraries("/usr/lib64").tools("");
    let found = tree.discover();
    assert_eq!(found["onload"]["library_matches"], true);
    assert_eq!(found["onload"]["profiles"], json!(["cloud", "latency", "redis-balanced"]));
}

#[test]
fn of_two_copies_the_one_that_fits_the_driver_is_used_with_all_that_belongs_to_it() {
    let tree = opt_onload();
    let found = tree.discover();
    assert_eq!(found["onload"]["library_matches"], true);
    let other = reason(&found, "nic", "/usr/lib/x86_64-linux-gnu/libonload.so");
    assert_eq!(
        other,
        "another copy is used, /opt/onload/usr/lib64/libonload.so; set host-library-dirs in [cdi] to choose"
    );
    // Both products bring libefcp.so.1, and one container may ask for both.
    assert_eq!(found["tcpdirect"]["tools"], json!(["zf_debug", "zf_stackdump"]));
    let other = reason(&found, "zf", "/usr/lib/x86_64-linux-gnu/libonload_zf.so");
    assert_eq!(
        other,
        "another copy is used, /opt/onload/usr/lib64/libonload_zf.so; set host-library-dirs in [cdi] to choose"
    );
    let from_opt = |mounts: &Value| {
        let sources = each(mounts, "hostPath");
        sources.iter().all(|path| path.starts_with("/opt/onload/usr/"))
    };
    for class in ["nic", "zf"] {
        assert!(from_opt(&tree.spec(class)["containerEdits"]["mounts"]), "{class}");
    }
}

#[test]
fn usr_lib64_that_is_a_link_to_the_other_directory_is_no_second_copy() {
    let tree = Tree::with_onload();
    tree.link("/usr/lib64", "lib/x86_64-linux-gnu");
    let found = tree.discover();
    let copies = found["not_offered"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| text(&entry["reason"]).starts_with("another copy"));
    assert_eq!(copies.count(), 0);
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

#[test]
fn rdma_without_the_connection_manager_is_offered_with_a_warning() {
    let tree = rdma();
    tree.without_node("/dev/infiniband/rdma_cm");
    let run = tree.run(&["discover", "--format", "json"]).done();
    assert!(
        run.warnings()[0].contains("its driver made the device")
            && !run.stderr.contains("load the module"),
        "{}",
        run.stderr
    );
    assert_eq!(run.json()["rdma"][1]["nodes"], json!(["/dev/infiniband/uverbs7"]));
    assert!(tree.spec("rdma")["containerEdits"].is_null());
}

#[test]
fn an_rdma_device_without_its_node_or_with_anothers_is_not_offered() {
    let tree = rdma();
    tree.without_node("/dev/infiniband/uverbs7");
    tree.without_node("/dev/infiniband/uverbs0").node("/dev/infiniband/uverbs0", 231, 250);
    let found = tree.discover();
    assert_eq!(each(&found["rdma"], "name"), ["rxe0"]);
    assert!(reason(&found, "rdma", "mlx5_0").contains("/dev/infiniband/uverbs7 does not exist"));
    let stale = reason(&found, "rdma", "mlx4_0");
    assert_eq!(
        stale,
        "/dev/infiniband/uverbs0 is 231:250, but the device is 231:192; remove the stale node"
    );
}

#[test]
fn vfio_groups_are_offered_only_when_the_kernel_would_give_them() {
    let found = vfio().discover();
    let devices = found["vfio"].as_array().unwrap();
    assert_eq!(
        each(&found["vfio"], "pci_address"),
        ["0000:81:02.0", "0000:81:03.0", "0000:81:04.0",]
    );
    let viable: Vec<&Value> = devices.iter().map(|device| &device["viable"]).collect();
    assert_eq!(viable, [true, false, true]);
    assert_eq!(devices[0]["aliases"], json!(["0000:81:02.1"]));
    let members = json!(["0000:81:00.3", "0000:81:02.0", "0000:81:02.1"]);
    assert_eq!(devices[0]["group_members"], members);
    assert_eq!(devices[1]["nodes"], json!([]));
    let blocked = "IOMMU group 21 also holds 0000:81:03.1, still bound to igb; bind the rest to \
                   vfio-pci too, or unbind it";
    assert_eq!(reason(&found, "vfio", "0000:81:03.0"), blocked);
    assert!(reason(&found, "vfio", "0000:81:00.0").contains("offer-pf-with-vfs = true"));
    assert_eq!(
        reason(&found, "vfio", "0000:81:04.1"),
        "bound to iavf, not to a vfio driver; run \"driverctl set-override 0000:81:04.1 vfio-pci\""
    );
    assert!(reason(&found, "vfio", "0000:82:00.0").starts_with("it has no IOMMU group"));
    let own = vfio_cdev().discover();
    let nodes = json!([
        "/dev/vfio/vfio",
        "/dev/vfio/20",
        "/dev/vfio/devices/vfio0",
        "/dev/vfio/devices/vfio1",
        "/dev/iommu",
    ]);
    assert_eq!(own["vfio"][0]["nodes"], nodes);
}

#[test]
fn hugepages_are_counted_by_node_with_gaps_between_the_nodes() {
    let found = hugepages().discover();
    let [two, one] = [0, 1].map(|index| &found["hugepages"][index]);
    assert_eq!((&two["total"], &two["free"]), (&json!(64), &json!(62)));
    assert_eq!(two["nodes"][1], json!({"node": 2, "total": 32, "free": 32}));
    assert_eq!(one["mounts"], json!(["/mnt/huge 1G"]));
    assert!(reason(&found, "hugepages", "64Ki").contains("nr_hugepages"));
}

#[test]
fn a_table_has_columns_under_their_headings() {
    let tree = x2();
    let table = tree.run(&["discover"]).done().stdout;
    let lines: Vec<&str> = table.lines().collect();
    let heading = lines.iter().position(|line| *line == "NUMA node 1").unwrap();
    let address = lines[heading + 1].find("PCI ADDRESS").unwrap();
    let row = lines[heading + 2];
    assert!(row[address..].starts_with("0000:3b:00.0  "), "{row}");
    assert!(!table.contains('\u{1b}'), "{table}");
    assert!(table.contains("\"onload-ctk discover --explain\" says why"));
    assert!(!table.contains("switched off"));
    let explained = tree.run(&["discover", "--explain"]).done().stdout;
    assert!(explained.contains("acceleration is switched off"));
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

#[test]
fn the_line_of_tcpdirect_has_the_reason() {
    let line = |tree: &Tree| {
        let shown = tree.run(&["discover"]).done().stdout;
        shown.lines().find(|line| line.starts_with("TCPDirect")).unwrap().to_owned()
    };
    assert_eq!(line(&Tree::new()), "TCPDirect  not offered: it needs Onload");
    let af_xdp = line(&Tree::sample("debian13-2numa-onload-rxe-vfio"));
    assert!(
        af_xdp.starts_with("TCPDirect  not offered: ens1: Onload reaches it by AF_XDP"),
        "{af_xdp}"
    );
}
