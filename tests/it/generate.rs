//! `cdi generate`: what stands in a specification, and which files are touched.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::common::hosts::{hugepages, rdma, vfio, vfio_cdev, vfio_without_groups, x2, x3};
use crate::common::{
    CHECKSUM, Commands, Pci, Run, Tree, captured, device, device_names, each, json_file, names_in,
    on, run, specs_in, text, texts,
};

const MANIFEST: &str = ".onload-ctk-manifest";
const LOCK: &str = ".onload-ctk-lock";
const NIC: &str = "onload.dev-nic.json";
/// What is said where a run finds everything as it should be.
const NOTHING: &str = "nothing to change";

/// The specifications that a host gives, all of them.
fn all_specs(root: &Path) -> Vec<Value> {
    let printed = run(&mut on(root, &["cdi", "generate", "--output", "-"])).done();
    let specs = serde_json::Deserializer::from_str(&printed.stdout).into_iter();
    specs.map(|spec| spec.unwrap()).collect()
}

/// Every container edit of a specification, the common ones first.
fn edits(spec: &Value) -> Vec<&Value> {
    let own = spec["devices"].as_array().unwrap().iter();
    let own = own.map(|device| &device["containerEdits"]);
    [&spec["containerEdits"]].into_iter().chain(own).collect()
}

fn members<'v>(edits: &[&'v Value], list: &str) -> Vec<&'v Value> {
    edits.iter().filter_map(|edits| edits[list].as_array()).flatten().collect()
}

fn every_host() -> Vec<Tree> {
    crate::common::hosts::all().into_iter().map(|(_, tree)| tree).collect()
}

fn every_spec() -> Vec<Value> {
    let mut specs = all_specs(&captured());
    for tree in every_host() {
        specs.extend(all_specs(tree.root()));
    }
    assert!(specs.len() > 40);
    specs
}

#[test]
fn nodes_have_a_path_and_permissions_and_no_number() {
    for spec in every_spec() {
        for node in members(&edits(&spec), "deviceNodes") {
            let keys: Vec<&String> = node.as_object().unwrap().keys().collect();
            assert_eq!(keys, ["path", "permissions"], "{node}");
            let clock =
                ["onload.dev/ptp", "onload.dev/pps"].contains(&text(&spec["kind"]).as_str());
            assert_eq!(node["permissions"], if clock { "r" } else { "rw" }, "{node}");
        }
    }
}

#[test]
fn mounts_are_read_only_binds_and_only_hugetlbfs_has_a_type() {
    for spec in every_spec() {
        for mount in members(&edits(&spec), "mounts") {
            if spec["kind"] == "onload.dev/hugepages" {
                assert_eq!(mount["type"], "hugetlbfs");
                continue;
            }
            assert!(mount.get("type").is_none(), "{mount}");
            assert_eq!(mount["options"], json!(["ro", "nosuid", "nodev", "bind"]), "{mount}");
        }
    }
}

#[test]
fn each_specification_has_the_least_version_that_it_needs() {
    for spec in every_spec() {
        let digit = |name: &String| name.starts_with(|c: char| c.is_ascii_digit());
        let devices = spec["devices"].as_array().unwrap();
        let is_pool = |device: &Value| device.get("annotations").is_some();
        // Annotations came with 0.6.0, names that begin with a digit with 0.5.0, types of mounts with 0.4.0.
        let wanted = if devices.iter().any(is_pool) {
            "0.6.0"
        } else if device_names(&spec).iter().any(digit) {
            "0.5.0"
        } else {
            "0.3.0"
        };
        assert_eq!(spec["cdiVersion"], wanted, "{}", spec["kind"]);
    }
}

#[test]
fn devices_are_sorted_and_two_runs_give_the_same_bytes() {
    for tree in every_host() {
        let print = || tree.run(&["cdi", "generate", "--output", "-"]).done().stdout;
        assert_eq!(print(), print());
        for spec in all_specs(tree.root()) {
            let names = device_names(&spec);
            assert!(names.is_sorted(), "{names:?}");
        }
    }
}

#[test]
fn all_is_there_only_beside_another_name() {
    for spec in every_spec() {
        let names = device_names(&spec);
        let class = text(&spec["kind"]).replace("onload.dev/", "");
        let others =
            names.iter().filter(|name| !["all", "loopback", "any"].contains(&name.as_str()));
        let wanted = ["nic", "nic-plain", "nic-nodes", "zf", "rdma"].contains(&class.as_str());
        let has_all = names.contains(&"all".to_owned());
        assert_eq!(has_all, wanted && others.count() > 0, "{class}: {names:?}");
    }
}

#[test]
fn loopback_is_onload_without_an_interface() {
    let tree = Tree::with_onload();
    for class in ["nic", "nic-plain", "nic-nodes"] {
        assert_eq!(device_names(&tree.spec(class)), ["loopback"], "{class}");
    }
    assert!(!specs_in(&tree.specs()).contains(&"onload.dev-zf.json".to_owned()));
    let nic = x3().spec("nic");
    assert_eq!(device_names(&nic), ["all", "ens3", "loopback"]);
    let env = |name| texts(&device(&nic, name)["containerEdits"]["env"]);
    assert_eq!(env("loopback"), ["ONLOAD_CTK_NIC_LOOPBACK=loopback"]);
    assert_eq!(env("all"), ["ONLOAD_CTK_NIC_ENS3=ens3"]);
}

#[test]
fn the_classes_of_onload_differ_in_what_they_bring() {
    let tree = x3();
    let [nic, plain, nodes, zf] = ["nic", "nic-plain", "nic-nodes", "zf"].map(|c| tree.spec(c));
    let common = |spec: &Value| spec["containerEdits"].clone();
    let paths = |spec: &Value| each(&spec["containerEdits"]["deviceNodes"], "path");
    for spec in [&nic, &plain, &nodes] {
        assert_eq!(paths(spec), ["/dev/onload", "/dev/onload_epoll"]);
    }
    assert_eq!(paths(&zf), ["/dev/onload", "/dev/sfc_char"]);
    let preload = ["EF_FDTABLE_SIZE=524288", "LD_PRELOAD=libonload.so"];
    assert_eq!(texts(&common(&nic)["env"]), preload);
    assert_eq!(texts(&common(&plain)["env"]), [preload[0]]);
    assert_eq!(common(&nic)["mounts"], common(&plain)["mounts"]);
    for spec in [&nodes, &zf] {
        assert_eq!(texts(&common(spec)["env"]), [""; 0]);
    }
    assert!(common(&nodes)["mounts"].is_null());
}

#[test]
fn libraries_appear_where_both_loaders_look_and_sockets_only_by_configuration() {
    let mounts = x3().spec("nic")["containerEdits"]["mounts"].clone();
    let places = each(&mounts, "containerPath");
    for name in ["libonload.so", "libonload_ext.so.1", "libefcp.so.1.0.0"] {
        for dir in ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"] {
            assert!(places.contains(&format!("{dir}/{name}")), "{dir}/{name}");
        }
    }
    for path in ["/usr/bin/onload", "/usr/libexec/onload/profiles"] {
        assert!(places.contains(&path.to_owned()), "{path}");
    }
    for path in ["/run/onload", "/usr/bin/onload_stackdump", "/usr/sbin/onload_tool"] {
        assert!(!places.contains(&path.to_owned()), "{path}");
    }
    assert!(!places.iter().any(|path| path.contains("libonload_zf")));
}

#[test]
fn interfaces_whose_variables_would_be_one_have_two() {
    let tree = Tree::with_onload();
    for (index, name) in ["eth.1", "eth-1", "eth2"].iter().enumerate() {
        let address = format!("0000:3b:00.{index}");
        let function = tree.pci(Pci::network(&address, "1924:0b03", "sfc"));
        tree.interface(&function, name);
        tree.auxiliary(&function, &format!("sfc.onload.{index}"), "sfc_resource.ef10", None);
    }
    let spec = tree.spec("nic");
    let variable = |name: &str| texts(&device(&spec, name)["containerEdits"]["env"]).concat();
    assert_eq!(variable("eth2"), "ONLOAD_CTK_NIC_ETH2=eth2");
    let [one, other] = ["eth.1", "eth-1"].map(variable);
    let name = |assignment: &str| assignment.split('=').next().unwrap().to_owned();
    assert_ne!(name(&one), name(&other));
    for (assignment, value) in [(&one, "eth.1"), (&other, "eth-1")] {
        assert!(assignment.starts_with("ONLOAD_CTK_NIC_ETH_1_"), "{assignment}");
        assert!(assignment.ends_with(&format!("={value}")), "{assignment}");
    }
    let mut both = vec![one, other, "ONLOAD_CTK_NIC_ETH2=eth2".to_owned()];
    both.sort();
    assert_eq!(texts(&device(&spec, "all")["containerEdits"]["env"]), both);
}

#[test]
fn a_variable_does_not_change_when_another_device_comes_unless_they_collide() {
    let tree = x3();
    let before = device(&tree.spec("nic"), "ens3").clone();
    let function = tree.pci(Pci::network("0000:3c:00.0", "1924:0b03", "sfc"));
    tree.interface(&function, "ens4");
    tree.auxiliary(&function, "sfc.onload.7", "sfc_resource.ef10", None);
    assert_eq!(device(&tree.spec("nic"), "ens3"), &before);
}

/// The arguments of the one hook of a device, whose other fields are as they should be.
#[track_caller]
fn hook_arguments(device: &Value) -> Vec<String> {
    let hooks = device["containerEdits"]["hooks"].as_array().unwrap();
    assert_eq!(hooks.len(), 1);
    arguments_of(&hooks[0], "createRuntime")
}

/// The arguments of the two hooks of a device of which something stays to be ended, which differ in the stage alone.
#[track_caller]
fn leasing_arguments(device: &Value) -> Vec<String> {
    let hooks = device["containerEdits"]["hooks"].as_array().unwrap();
    assert_eq!(hooks.len(), 2);
    let args = arguments_of(&hooks[0], "createRuntime");
    let at_the_end = arguments_of(&hooks[1], "poststop");
    assert_eq!(at_the_end[1], "poststop");
    assert_eq!(at_the_end[2..], args[2..]);
    args
}

#[track_caller]
fn arguments_of(hook: &Value, stage: &str) -> Vec<String> {
    assert_eq!(hook["hookName"], stage);
    assert_eq!(hook["path"], "/usr/bin/onload-hook");
    assert_eq!(hook["env"], json!(["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]));
    assert_eq!(hook["timeout"], 10);
    texts(&hook["args"])
}

/// The arguments of a hook that checks nodes and leases a device.
fn leasing(memlock: &str, expectations: &[&str], device: &str) -> Vec<String> {
    let mut args = expecting(memlock, expectations);
    args.extend(["--lease", device].map(str::to_owned));
    args
}

/// The arguments of a hook that also looks for provider libraries.
fn of_rdma(libraries: &str, expectations: &[&str]) -> Vec<String> {
    let mut args = expecting("unlimited", expectations);
    args.extend(["--rdma-libraries", libraries].map(str::to_owned));
    args
}

fn expecting(memlock: &str, expectations: &[&str]) -> Vec<String> {
    let mut args = vec!["onload-hook", "createRuntime", "--memlock", memlock];
    args.extend(expectations.iter().flat_map(|expected| ["--expect", expected]));
    args.iter().map(|&arg| arg.to_owned()).collect()
}

#[test]
fn the_hook_of_rdma_expects_each_node_of_its_device() {
    let tree = rdma();
    let spec = tree.spec("rdma");
    let args = |name| leasing_arguments(device(&spec, name));
    let [both, roce, soft] = [
        "/dev/infiniband/uverbs0=rdma:mlx4_0@0000:af:00.0#231:192",
        "/dev/infiniband/uverbs7=rdma:mlx5_0@0000:3b:00.0#231:199",
        "/dev/infiniband/uverbs1=rdma:rxe0#231:193",
    ];
    let shared = "/dev/infiniband/rdma_cm=misc:rdma_cm#10:260";
    assert_eq!(args("mlx4_0"), of_rdma("auto", &[both, shared]));
    assert_eq!(args("mlx5_0"), of_rdma("auto", &[roce, shared]));
    assert_eq!(args("rxe0"), of_rdma("auto", &[soft, shared]));
    assert_eq!(args("all"), of_rdma("auto", &[both, roce, soft, shared]));
    let common = &spec["containerEdits"];
    assert_eq!(each(&common["deviceNodes"], "path"), ["/dev/infiniband/rdma_cm"]);
    assert!(common["hooks"].is_null());
}

#[test]
fn the_hook_of_rdma_looks_for_libraries_as_it_is_configured() {
    let tree = rdma();
    let nodes = [
        "/dev/infiniband/uverbs1=rdma:rxe0#231:193",
        "/dev/infiniband/rdma_cm=misc:rdma_cm#10:260",
    ];
    // Nothing is mounted then that would have to be removed.
    tree.config("[cdi]\nrdma-libraries = \"image\"\n");
    let spec = tree.spec("rdma");
    let args = hook_arguments(device(&spec, "rxe0"));
    assert_eq!(args, of_rdma("image", &nodes));
    tree.config("[cdi]\nrdma-libraries = \"off\"\n");
    let spec = tree.spec("rdma");
    let args = hook_arguments(device(&spec, "rxe0"));
    assert_eq!(args, expecting("unlimited", &nodes));
}

#[test]
fn umad_and_issm_come_by_configuration_and_are_expected_too() {
    let tree = rdma();
    tree.config("[discover]\noffer-umad = true\noffer-issm = true\n");
    let spec = tree.spec("rdma");
    let roce = device(&spec, "mlx5_0");
    let nodes = each(&roce["containerEdits"]["deviceNodes"], "path");
    let names = ["uverbs7", "umad0", "issm0"].map(|name| format!("/dev/infiniband/{name}"));
    assert_eq!(nodes, names);
    let expected = names.map(|name| format!("{name}=rdma:mlx5_0@0000:3b:00.0"));
    let [verbs, umad, issm] = expected;
    let expected = [
        &format!("{verbs}#231:199"),
        &format!("{umad}#231:0"),
        &format!("{issm}#231:64"),
        "/dev/infiniband/rdma_cm=misc:rdma_cm#10:260",
    ];
    assert_eq!(leasing_arguments(roce), of_rdma("auto", &expected));
}

#[test]
fn umad_of_a_companion_is_expected_under_the_companions_own_name() {
    let tree = rdma();
    let function = "/sys/devices/pci0000:3b/0000:3b:00.0";
    let directory = tree.character("infiniband_mad", function, "umad9", "smi1", 9);
    tree.attribute(&format!("{directory}/port"), "1");
    let spec = |config: &str| {
        tree.config(config);
        let spec = tree.spec("rdma");
        (
            each(&device(&spec, "mlx5_0")["containerEdits"]["deviceNodes"], "path"),
            leasing_arguments(device(&spec, "mlx5_0")),
            each(&device(&spec, "all")["containerEdits"]["deviceNodes"], "path"),
        )
    };
    let (nodes, hook, all) = spec("[discover]\noffer-umad = true\n");
    let names = ["uverbs7", "umad0", "umad9"].map(|name| format!("/dev/infiniband/{name}"));
    assert_eq!(nodes, names);
    let expected = "/dev/infiniband/umad9=rdma:smi1@0000:3b:00.0#231:9".to_owned();
    assert!(hook.contains(&expected), "{hook:?}");
    let umad9 = |nodes: &[String]| nodes.iter().filter(|path| **path == names[2]).count();
    assert_eq!(umad9(&all), 1);
    let (nodes, hook, all) = spec("[discover]\noffer-issm = true\n");
    assert_eq!(umad9(&nodes) + umad9(&all), 0);
    assert!(!hook.contains(&expected), "{hook:?}");
}

#[test]
fn the_hook_of_vfio_expects_every_function_that_comes_with_the_group() {
    let spec = vfio().spec("vfio");
    assert_eq!(device_names(&spec), ["0000:81:02.0", "0000:81:04.0"]);
    let expected = [
        "/dev/vfio/20=vfio:0000:81:02.0#241:20",
        "/dev/vfio/20=vfio:0000:81:02.1#241:20",
        "/dev/vfio/vfio=misc:vfio#10:196",
    ];
    let first = device(&spec, "0000:81:02.0");
    let args = leasing("unlimited", &expected, "vfio:0000:81:02.0");
    assert_eq!(leasing_arguments(first), args);
    assert_eq!(each(&first["containerEdits"]["deviceNodes"], "path"), ["/dev/vfio/20"]);
    assert_eq!(each(&spec["containerEdits"]["deviceNodes"], "path"), ["/dev/vfio/vfio"]);
    let spec = vfio_cdev().spec("vfio");
    let expected = [
        "/dev/vfio/20=vfio:0000:81:02.0#241:20",
        "/dev/vfio/20=vfio:0000:81:02.1#241:20",
        "/dev/vfio/devices/vfio0=vfio:0000:81:02.0#509:0",
        "/dev/vfio/devices/vfio1=vfio:0000:81:02.1#509:1",
        "/dev/vfio/vfio=misc:vfio#10:196",
        "/dev/iommu=misc:iommu#10:124",
    ];
    let args = leasing_arguments(device(&spec, "0000:81:02.0"));
    assert_eq!(args, leasing("unlimited", &expected, "vfio:0000:81:02.0"));
    let common = each(&spec["containerEdits"]["deviceNodes"], "path");
    assert_eq!(common, ["/dev/vfio/vfio", "/dev/iommu"]);
}

#[test]
fn without_group_nodes_each_function_goes_by_its_own_node() {
    let spec = vfio_without_groups().spec("vfio");
    assert_eq!(device_names(&spec), ["0000:81:02.0", "0000:81:02.1"]);
    let second = device(&spec, "0000:81:02.1");
    let own = "/dev/vfio/devices/vfio1";
    assert_eq!(each(&second["containerEdits"]["deviceNodes"], "path"), [own]);
    let expected = [&format!("{own}=vfio:0000:81:02.1#509:1"), "/dev/iommu=misc:iommu#10:124"];
    let args = leasing("unlimited", &expected, "vfio:0000:81:02.1");
    assert_eq!(leasing_arguments(second), args);
    let common = each(&spec["containerEdits"]["deviceNodes"], "path");
    assert_eq!(common, ["/dev/iommu"]);
}

/// The arguments of a hook that checks and raises no limit.
fn checking(expectations: &[&str]) -> Vec<String> {
    let mut args = expecting("", expectations);
    args.drain(2..4);
    args
}

#[test]
fn the_nodes_of_onload_and_tcpdirect_are_expected_in_what_their_devices_share() {
    let tree = x2();
    let onload = "/dev/onload=nic:onload#243:0";
    let nic = checking(&[onload, "/dev/onload_epoll=nic:onload_epoll#242:0"]);
    for class in ["nic", "nic-plain", "nic-nodes"] {
        let spec = tree.spec(class);
        assert_eq!(hook_arguments(&spec), nic, "{class}");
        assert!(device(&spec, "all")["containerEdits"]["hooks"].is_null());
    }
    let zf = tree.spec("zf");
    let char = "/dev/sfc_char=zf:sfc_char#244:0";
    assert_eq!(hook_arguments(&zf), checking(&[onload, char]));
}

#[test]
fn a_clock_is_expected_on_the_function_that_it_sits_on() {
    let tree = x2();
    let args = |class, name| hook_arguments(device(&tree.spec(class), name));
    let ptp = "/dev/ptp1=ptp:ptp1@0000:3b:00.1#247:1";
    assert_eq!(args("ptp", "ptp1"), checking(&[ptp]));
    // The kernel gives the pulses of a clock no parent; the function is that of the clock they name.
    let pps = "/dev/pps0=pps:pps0@0000:3b:00.0#248:0";
    assert_eq!(args("pps", "pps0"), checking(&[pps]));
    tree.pps("/sys/devices/virtual", 1, "serial0");
    assert_eq!(args("pps", "pps1"), checking(&["/dev/pps1=pps:pps1#248:1"]));
}

#[test]
fn the_node_of_gdrcopy_has_the_number_that_the_list_of_drivers_says() {
    let tree = x2();
    tree.file(
        "/proc/devices",
        "Character devices:\n  1 mem\n510 gdrdrv\n\nBlock devices:\n  7 loop\n",
    );
    let missing = "/dev/gdrdrv does not exist, though its driver made the device 510:0; run \"mknod -m 666 /dev/gdrdrv c 510 0\"";
    let found = tree.discover();
    assert_eq!(crate::common::reason(&found, "gdrcopy", "gdrdrv"), missing);
    tree.node("/dev/gdrdrv", 510, 0);
    tree.file("/sys/module/gdrdrv/version", "2.6\n");
    let found = tree.discover();
    assert_eq!(found["gdrcopy"], json!([{"name": "gdrdrv", "version": "2.6"}]));
    let table = tree.run(&["discover"]).done().stdout;
    assert!(table.contains("gdrcopy  gdrdrv  -            driver 2.6"), "{table}");
    let spec = tree.spec("gdrcopy");
    let given = device(&spec, "gdrdrv");
    let edits = &given["containerEdits"];
    assert_eq!(edits["deviceNodes"], json!([{"path": "/dev/gdrdrv", "permissions": "rw"}]));
    assert_eq!(edits["env"], json!(["ONLOAD_CTK_GDRCOPY_GDRDRV=gdrdrv"]));
    let expected = "/dev/gdrdrv=gdrcopy:gdrdrv#510:0";
    assert_eq!(hook_arguments(given), checking(&[expected]));
    assert_eq!(device_names(&spec), ["gdrdrv"]);
}

#[test]
fn an_expectation_names_the_place_in_the_container_and_the_node_says_no_number() {
    let tree = x2();
    tree.config("[cdi]\ncontainer-device-dir = \"/host/dev\"\n");
    let spec = tree.spec("nic");
    let args = hook_arguments(&spec);
    assert_eq!(args[3], "/host/dev/onload=nic:onload#243:0");
    let node = &spec["containerEdits"]["deviceNodes"][0];
    assert_eq!(
        node,
        &json!({"path": "/host/dev/onload", "hostPath": "/dev/onload", "permissions": "rw"})
    );
}

/// Every node that a device of a specification brings, with the arguments of the hooks that come too.
fn nodes_and_arguments(spec: &Value) -> Vec<(String, Vec<String>)> {
    let of_device = |device: &Value| {
        let all = [&spec["containerEdits"], &device["containerEdits"]];
        let hooks = members(&all, "hooks").into_iter();
        let hooks = hooks.filter(|hook| hook["hookName"] == "createRuntime");
        // The program's name and the stage come first.
        let args = hooks.flat_map(|hook| texts(&hook["args"]).into_iter().skip(2));
        let args: Vec<String> = args.collect();
        let nodes = members(&all, "deviceNodes").into_iter();
        let nodes = nodes.map(|node| (text(&node["path"]), args.clone()));
        nodes.collect::<Vec<_>>()
    };
    let devices = spec["devices"].as_array().unwrap().iter();
    // What comes with a pool is checked by the hooks of its member, which the hook of the pool reads.
    let devices = devices.filter(|device| device.get("annotations").is_none());
    devices.flat_map(of_device).collect()
}

#[test]
fn every_node_of_every_host_is_expected_with_its_number_as_the_hook_reads_it() {
    let mut seen = 0;
    for tree in every_host() {
        tree.hook();
        for spec in all_specs(tree.root()) {
            for (node, args) in nodes_and_arguments(&spec) {
                let arguments = onload_core::hook_arguments::HookArguments::parse(&args).unwrap();
                let own = arguments.expect.iter().filter(|expect| expect.node == node);
                let numbers: Vec<String> =
                    own.map(|expect| expect.number.unwrap().to_string()).collect();
                assert!(!numbers.is_empty(), "{node} is not in {args:?}");
                let there = tree.number(&node);
                assert!(numbers.iter().all(|number| *number == there), "{numbers:?}");
                seen += 1;
            }
        }
    }
    assert!(seen > 50, "{seen}");
}

#[test]
fn without_the_hook_a_warning_says_what_is_lost() {
    let tree = rdma();
    assert_eq!(tree.generate().warnings(), [""; 0]);
    tree.remove("/usr/bin/onload-hook");
    let run = tree.generate();
    assert!(
        run.warnings()[0].contains("device numbers are not checked when a container starts")
            && run.warnings()[0].contains("RLIMIT_MEMLOCK is not raised for rdma and vfio"),
        "{}",
        run.stderr
    );
    assert!(members(&edits(&tree.written("rdma")), "hooks").is_empty());
}

#[test]
fn a_hugetlbfs_is_mounted_for_every_size() {
    let spec = hugepages().spec("hugepages");
    assert_eq!(device_names(&spec), ["1Gi", "2Mi"]);
    let mounts = &device(&spec, "1Gi")["containerEdits"]["mounts"];
    let wanted = json!([{
        "hostPath": "hugetlbfs", "containerPath": "/dev/hugepages-1Gi", "type": "hugetlbfs",
        "options": ["nosuid", "nodev", "pagesize=1G", "mode=1777"],
    }]);
    assert_eq!(mounts, &wanted);
}

#[test]
fn a_profile_sets_what_it_and_its_imports_set() {
    let tree = Tree::with_onload();
    let profiles = "/usr/libexec/onload/profiles";
    tree.file(&format!("{profiles}/mine.opf"), "onload_import base\nonload_set EF_A '1 2'\n");
    tree.file(&format!("{profiles}/base.opf-fragment"), "onload_set EF_A 9\nonload_set EF_B=3\n");
    tree.file(&format!("{profiles}/all.opf"), "onload_set EF_A 1\n");
    tree.file(&format!("{profiles}/shell.opf"), "onload_set EF_A $(id)\n");
    let spec = tree.spec("profile");
    let env = texts(&device(&spec, "mine")["containerEdits"]["env"]);
    assert_eq!(env, ["ONLOAD_CTK_PROFILE_MINE=mine", "EF_A=9", "EF_B=3"]);
    let found = tree.discover();
    let reason = |name| crate::common::reason(&found, "profile", name);
    assert_eq!(reason("all"), "\"all\" is a reserved word; rename its file");
    assert!(reason("shell").starts_with("shell.opf line 1: only a shell can tell"));
    assert_eq!(device_names(&spec), ["cloud", "latency", "mine", "redis-balanced"]);
}

// Which files are touched.

#[test]
fn files_have_mode_0644_and_the_lock_0600_whatever_the_umask_and_neither_lock_nor_manifest_is_a_specification()
 {
    let tree = x3();
    let program = env!("CARGO_BIN_EXE_onload-ctk");
    let root = tree.root().display();
    let line = format!("umask 077; exec {program} --host-root {root} cdi generate -q");
    let status = std::process::Command::new("/bin/sh").args(["-c", &line]).env_clear().status();
    assert!(status.unwrap().success());
    for name in names_in(&tree.specs()) {
        let mode = fs::metadata(tree.specs().join(&name)).unwrap().permissions().mode();
        let wanted = if name == LOCK { 0o600 } else { 0o644 };
        assert_eq!(mode & 0o7777, wanted, "{name}");
    }
    let names = names_in(&tree.specs());
    assert_eq!(names[..2], [LOCK, MANIFEST]);
    assert!(names[2..].iter().all(|name| name.starts_with("onload.dev-")), "{names:?}");
}

#[test]
fn directories_have_mode_0755_whatever_the_umask_and_one_that_is_there_keeps_its_own() {
    let tree = x3();
    tree.directory("/etc/containers");
    for program in ["podman", "onload-container-runtime"] {
        tree.file(&format!("/usr/bin/{program}"), "");
    }
    let mode = |path: &str| fs::metadata(tree.path(path)).unwrap().permissions().mode() & 0o7777;
    let private = fs::Permissions::from_mode(0o750);
    fs::set_permissions(tree.path("/etc/containers"), private).unwrap();
    let ctk =
        format!("{} --host-root {} -q", env!("CARGO_BIN_EXE_onload-ctk"), tree.root().display());
    let line = format!(
        "umask 077; {ctk} cdi generate && {ctk} runtime configure --runtime podman --allow nic"
    );
    let status = std::process::Command::new("/bin/sh").args(["-c", &line]).env_clear().status();
    assert!(status.unwrap().success());
    for made in ["/var/run/cdi", "/etc/containers/containers.conf.d", "/etc/onload-ctk"] {
        assert_eq!(mode(made), 0o755, "{made}");
    }
    assert_eq!(mode("/etc/containers"), 0o750);
    assert_eq!(mode("/run/onload-ctk/@locks"), 0o700);
}

#[test]
fn the_manifest_holds_names_hashes_and_what_was_asked_for() {
    let tree = x3();
    tree.run(&["cdi", "generate", "--max-cdi-version", "0.5.0"]).done();
    let manifest = json_file(tree.specs().join(MANIFEST));
    assert_eq!(manifest["format"], "json");
    assert_eq!(manifest["maxCdiVersion"], "0.5.0");
    assert_eq!(manifest["kinds"].as_array().unwrap().len(), 13);
    let files = manifest["files"].as_object().unwrap();
    let names: Vec<&String> = files.keys().collect();
    assert_eq!(names, specs_in(&tree.specs()).iter().collect::<Vec<_>>());
    assert_eq!(files[NIC]["sha256"].as_array().unwrap().len(), 1);
    let text = fs::read_to_string(tree.specs().join(MANIFEST)).unwrap();
    assert!(!text.contains(&*tree.root().to_string_lossy()));
}

/// What a later run could have changed of a file: inode, time, content.
type Identity = (u64, SystemTime, Vec<u8>);

fn identity(path: &Path) -> Identity {
    let metadata = fs::metadata(path).unwrap();
    (metadata.ino(), metadata.modified().unwrap(), fs::read(path).unwrap())
}

fn identities(dir: &Path) -> Vec<(String, Identity)> {
    let names = names_in(dir).into_iter();
    names.map(|name| (name.clone(), identity(&dir.join(name)))).collect()
}

/// Makes everything in a directory, and itself, look old.
fn age(dir: &Path) {
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for name in names_in(dir) {
        fs::File::open(dir.join(name)).unwrap().set_modified(old).unwrap();
    }
    fs::File::open(dir).unwrap().set_modified(old).unwrap();
}

#[test]
fn a_run_that_changes_nothing_writes_nothing() {
    let tree = x3();
    tree.generate();
    age(&tree.specs());
    let (before, directory) = (identities(&tree.specs()), fs::metadata(tree.specs()).unwrap());
    let message = tree.generate().stderr;
    assert!(message.contains("nothing to change"), "{message}");
    assert_eq!(identities(&tree.specs()), before);
    let after = fs::metadata(tree.specs()).unwrap();
    assert_eq!(after.modified().unwrap(), directory.modified().unwrap());
}

#[test]
fn dry_run_and_diff_write_nothing_and_say_what_would_change() {
    let tree = x3();
    let dry = tree.run(&["cdi", "generate", "--dry-run"]).done();
    assert!(dry.stdout.starts_with("write "), "{}", dry.stdout);
    assert!(!dry.stderr.contains(NOTHING), "{}", dry.stderr);
    let diff = tree.run(&["cdi", "generate", "--diff"]).done().stdout;
    assert!(diff.starts_with("--- /dev/null\n+++ "), "{diff}");
    assert_eq!(names_in(&tree.path("/var/run")), [""; 0]);
    tree.generate();
    age(&tree.specs());
    let before = identities(&tree.specs());
    for option in ["--diff", "--dry-run"] {
        let idle = tree.run(&["cdi", "generate", option]).done();
        let wanted = format!("{NOTHING} in {}\n", tree.specs().display());
        assert!(idle.stderr.ends_with(&wanted), "{option}: {}", idle.stderr);
        let is_kept = idle.stdout.lines().all(|line| line.starts_with("keep "));
        assert!(is_kept, "{option}: {}", idle.stdout);
    }
    tree.config("[cdi]\nfdtable-size = 4096\n");
    let run = tree.run(&["cdi", "generate", "--diff"]).done();
    assert!(!run.stderr.contains(NOTHING), "{}", run.stderr);
    let diff = run.stdout;
    assert!(diff.contains("\n-      \"EF_FDTABLE_SIZE=524288\",\n"), "{diff}");
    assert!(diff.contains("\n+      \"EF_FDTABLE_SIZE=4096\",\n"), "{diff}");
    assert!(!diff.contains("onload.dev-zf"), "{diff}");
    let dry = tree.run(&["cdi", "generate", "--dry-run"]).done().stdout;
    assert!(dry.contains(&format!("write  {}", tree.specs().join(NIC).display())), "{dry}");
    assert!(dry.contains("keep   "), "{dry}");
    assert_eq!(identities(&tree.specs()), before);
}

#[test]
fn a_look_at_one_file_that_is_as_it_should_be_says_so() {
    let tree = x3();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nic.json").display().to_string();
    let args = ["cdi", "generate", "--kind", "nic", "--output", &file];
    let preview = |preview| tree.run(&[&args[..], &[preview]].concat()).done();
    assert_eq!(preview("--dry-run").stdout, format!("write  {file}\n"));
    assert!(preview("--diff").stdout.starts_with("--- /dev/null\n"));
    tree.run(&args).done();
    let message = format!("{NOTHING} in {file}\n");
    for (option, shown) in [("--dry-run", format!("keep   {file}\n")), ("--diff", String::new())] {
        let run = preview(option);
        assert_eq!((run.stdout, run.stderr.ends_with(&message)), (shown, true));
    }
    assert!(tree.run(&args).done().stderr.ends_with(&message));
    fs::write(&file, "{}").unwrap();
    assert_eq!(preview("--dry-run").stdout, format!("write  {file}\n"));
    assert!(!preview("--diff").stderr.contains(NOTHING));
}

#[test]
fn a_look_at_a_host_that_offers_nothing_says_so() {
    for option in ["--diff", "--dry-run"] {
        let run = Tree::new().run(&["cdi", "generate", option]).done();
        assert_eq!(run.stdout, "");
        assert!(run.stderr.starts_with("nothing to offer: "), "{}", run.stderr);
    }
}

#[test]
fn a_diff_can_be_applied_by_patch_and_gives_what_a_run_writes() {
    if !crate::common::needs::programs(&["patch"]) {
        return;
    }
    let tree = x3();
    let dir = tempfile::tempdir().unwrap();
    let specs = dir.path().to_str().unwrap();
    tree.run(&["cdi", "generate", "--output-dir", specs]).done();
    tree.config("[cdi]\nfdtable-size = 4096\npreload = \"off\"\n");
    let diff = tree.run(&["cdi", "generate", "--output-dir", specs, "--diff"]).done().stdout;
    let patch = dir.path().join("patch");
    fs::write(&patch, diff).unwrap();
    let mut command = std::process::Command::new("patch");
    let status = command.args(["-s", "-p0", "-d", "/", "-i"]).arg(&patch).status();
    assert!(status.unwrap().success());
    let patched = json_file(dir.path().join(NIC));
    assert_eq!(patched, tree.spec("nic"));
}

#[test]
fn what_is_gone_has_its_file_removed() {
    let tree = x2();
    tree.generate();
    assert!(specs_in(&tree.specs()).contains(&"onload.dev-pps.json".to_owned()));
    tree.remove("/sys/class/pps").remove("/sys/devices/virtual/pps");
    let message = tree.generate().stderr;
    assert!(message.contains("removed "), "{message}");
    assert!(!specs_in(&tree.specs()).contains(&"onload.dev-pps.json".to_owned()));
    tree.remove("/sys").remove("/proc").remove("/usr");
    tree.generate();
    assert_eq!(names_in(&tree.specs()), [LOCK, MANIFEST]);
}

#[test]
fn kinds_that_the_configuration_leaves_out_are_removed_too() {
    let tree = x2();
    tree.generate();
    tree.config("[cdi]\nkinds = [\"nic\", \"ptp\"]\n");
    tree.generate();
    assert_eq!(specs_in(&tree.specs()), [NIC, "onload.dev-ptp.json"]);
}

#[test]
fn naming_kinds_touches_no_others() {
    let tree = x2();
    tree.generate();
    let before = identities(&tree.specs());
    tree.config("[cdi]\nfdtable-size = 4096\n").remove("/sys/class/pps");
    tree.remove("/sys/devices/virtual/pps");
    tree.run(&["cdi", "generate", "--kind", "nic-plain"]).done();
    let after = identities(&tree.specs());
    assert_eq!(before.len(), after.len());
    let changed = before.iter().zip(&after).filter(|(old, new)| old != new);
    let changed: Vec<&str> = changed.map(|(old, _)| old.0.as_str()).collect();
    assert_eq!(changed, [MANIFEST, "onload.dev-nic-plain.json"]);
    tree.run(&["cdi", "generate", "--kind", "pps,nic"]).done();
    assert!(!specs_in(&tree.specs()).contains(&"onload.dev-pps.json".to_owned()));
    let unknown = tree.run(&["cdi", "generate", "--kind", "nik"]).refused();
    assert!(unknown.contains("unknown class \"nik\"; did you mean nic?"), "{unknown}");
}

#[test]
fn files_of_others_are_never_touched() {
    let tree = x3();
    let others = ["nvidia.com-gpu.json", "onload.dev-other.json", "onload.dev-nic.yml", "README"];
    for name in others {
        tree.file(&format!("/var/run/cdi/{name}"), "somebody's");
    }
    tree.generate();
    tree.remove("/sys").remove("/usr").remove("/proc");
    tree.run(&["cdi", "generate", "--force"]).done();
    // The lock and the manifest.
    assert_eq!(names_in(&tree.specs()).len(), others.len() + 2);
    for name in others {
        assert_eq!(fs::read(tree.specs().join(name)).unwrap(), b"somebody's", "{name}");
    }
}

#[test]
fn an_edited_file_is_left_alone_until_somebody_insists() {
    let tree = x3();
    tree.generate();
    let nic = tree.specs().join(NIC);
    let written = fs::read(&nic).unwrap();
    let mut edited = written.clone();
    edited.push(b'\n');
    fs::write(&nic, &edited).unwrap();
    tree.config("[cdi]\nfdtable-size = 4096\n");
    let run = tree.run(&["cdi", "generate"]).answered_no();
    let warnings = run.warnings();
    let [warning] = warnings.as_slice() else {
        panic!("{}", run.stderr);
    };
    assert!(warning.contains(&format!("left {NIC} alone")), "{warning}");
    assert!(warning.contains("--force alone replaces it"), "{warning}");
    assert_eq!(fs::read(&nic).unwrap(), edited);
    // The others were written all the same.
    let plain = texts(&tree.written("nic-plain")["containerEdits"]["env"]);
    assert_eq!(plain, ["EF_FDTABLE_SIZE=4096"]);
    // Put back as we wrote it, it is ours again.
    fs::write(&nic, &written).unwrap();
    tree.generate();
    fs::write(&nic, &edited).unwrap();
    tree.run(&["cdi", "generate", "--force"]).done();
    assert!(fs::read_to_string(&nic).unwrap().contains("EF_FDTABLE_SIZE=4096"));
    tree.run(&["cdi", "check"]).done();
}

#[test]
fn an_edited_file_of_a_kind_that_is_gone_stays() {
    let tree = x2();
    tree.generate();
    let pps = tree.specs().join("onload.dev-pps.json");
    fs::write(&pps, "{}").unwrap();
    tree.remove("/sys/class/pps").remove("/sys/devices/virtual/pps");
    let run = tree.run(&["cdi", "generate"]).answered_no();
    assert!(run.warnings()[0].contains("left onload.dev-pps.json alone"), "{}", run.stderr);
    assert_eq!(fs::read(&pps).unwrap(), b"{}");
    tree.run(&["cdi", "generate", "--force"]).done();
    assert!(!pps.exists());
}

#[test]
fn without_a_manifest_a_file_is_ours_if_it_is_what_we_would_write() {
    let tree = x3();
    tree.generate();
    tree.remove(&format!("/var/run/cdi/{MANIFEST}"));
    age(&tree.specs());
    let before = identity(&tree.specs().join(NIC));
    tree.generate();
    assert_eq!(identity(&tree.specs().join(NIC)), before);
    assert!(tree.specs().join(MANIFEST).exists());
    tree.remove(&format!("/var/run/cdi/{MANIFEST}"));
    tree.file(&format!("/var/run/cdi/{NIC}"), "{}");
    let run = tree.run(&["cdi", "generate"]).answered_no();
    assert!(run.warnings()[0].contains(NIC), "{}", run.stderr);
    assert_eq!(fs::read(tree.specs().join(NIC)).unwrap(), b"{}");
}

#[test]
fn a_manifest_that_is_not_understood_makes_nothing_ours() {
    let tree = x3();
    tree.generate();
    tree.file(&format!("/var/run/cdi/{MANIFEST}"), "garbage");
    tree.config("[cdi]\nfdtable-size = 4096\n");
    let run = tree.run(&["cdi", "generate"]);
    assert!(run.warnings()[0].contains("files there count as somebody else's"), "{}", run.stderr);
    assert!(run.answered_no().warnings()[1].contains(NIC));
}

#[test]
fn a_newer_manifest_is_said_to_be_one_and_its_files_stay() {
    let dir = tempfile::tempdir().unwrap();
    let at = ["--output-dir", dir.path().to_str().unwrap()];
    let cdi = |command: &str| run(&mut on(&captured(), &[&["cdi", command], &at[..]].concat()));
    cdi("generate").done();
    let path = dir.path().join(MANIFEST);
    let newer = fs::read_to_string(&path).unwrap().replacen('{', "{\"version\": 2,", 1);
    fs::write(&path, newer).unwrap();
    fs::write(dir.path().join(NIC), "{}").unwrap();
    let refusal = cdi("check").refused();
    assert!(refusal.contains("it is of version 2"), "{refusal}");
    let run = cdi("generate");
    assert!(run.stderr.contains("it is of version 2"), "{}", run.stderr);
    assert!(run.answered_no().stderr.contains(NIC));
    assert_eq!(fs::read(dir.path().join(NIC)).unwrap(), b"{}");
}

#[test]
fn a_link_of_our_name_is_not_followed() {
    let tree = x3();
    let target = tree.path("/victim");
    fs::write(&target, "victim").unwrap();
    tree.directory("/var/run/cdi");
    for name in [NIC, MANIFEST] {
        symlink(&target, tree.specs().join(name)).unwrap();
    }
    let run = tree.run(&["cdi", "generate"]).answered_no();
    assert!(run.warnings()[0].contains(NIC), "{}", run.stderr);
    tree.run(&["cdi", "generate", "--force"]).done();
    assert_eq!(fs::read(&target).unwrap(), b"victim");
    assert!(!tree.specs().join(NIC).is_symlink());
}

#[test]
fn our_file_of_the_other_format_is_removed_and_yaml_costs_a_warning() {
    let tree = x3();
    tree.generate();
    let run = tree.run(&["cdi", "generate", "--format", "yaml"]).done();
    assert!(run.warnings()[0].contains("read JSON only"), "{}", run.stderr);
    let names = specs_in(&tree.specs());
    assert!(names.iter().all(|name| name.ends_with(".yaml")), "{names:?}");
    assert_eq!(json_file(tree.specs().join(MANIFEST))["format"], "yaml");
    let yaml = tree.specs().join("onload.dev-nic.yaml");
    tree.run(&["cdi", "validate", yaml.to_str().unwrap()]).done();
    tree.generate();
    let names = specs_in(&tree.specs());
    assert!(names.iter().all(|name| name.ends_with(".json")), "{names:?}");
    fs::write(&yaml, "somebody's").unwrap();
    let run = tree.run(&["cdi", "generate"]).answered_no();
    assert!(run.warnings()[0].contains("onload.dev-nic.yaml"), "{}", run.stderr);
}

#[test]
fn what_an_older_engine_cannot_read_is_refused_with_the_field() {
    let refused = |tree: &Tree, version| {
        let refusal = tree.run(&["cdi", "generate", "--max-cdi-version", version]).refused();
        assert_eq!(names_in(&tree.specs()), [""; 0]);
        refusal
    };
    // Names that begin with a digit.
    let refusal = refused(&vfio(), "0.4.0");
    let wanted = "writing onload.dev/vfio for readers of CDI 0.4.0: it needs 0.5.0, because of \
                  devices[0].name, devices[1].name; leave the kind out with --kind";
    assert!(refusal.starts_with(wanted), "{refusal}");
    // Another path than the host's.
    let tree = rdma();
    tree.config("[cdi]\ncontainer-device-dir = \"/run/dev\"\n");
    let refusal = refused(&tree, "0.4.0");
    assert!(refusal.contains("deviceNodes[0].hostPath"), "{refusal}");
    let refusal = refused(&tree, "latest");
    assert!(refusal.contains("\"latest\""), "{refusal}");
    let args = ["cdi", "generate", "--max-cdi-version", "0.5.0"];
    vfio().run(&args).done();
    x3().run(&["cdi", "generate", "--max-cdi-version", "0.3.0", "--kind", "nic"]).done();
}

#[test]
fn one_kind_can_be_written_to_a_file_and_all_to_stdout() {
    let tree = x2();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mine.json");
    let path = file.to_str().unwrap();
    tree.run(&["cdi", "generate", "--kind", "nic", "--output", path]).done();
    assert_eq!(json_file(&file)["kind"], "onload.dev/nic");
    assert_eq!(names_in(dir.path()), ["mine.json"]);
    for kinds in [&["--kind", "nic,zf"][..], &["--kind", "all"], &[]] {
        let args = [&["cdi", "generate", "--output", path], kinds].concat();
        assert!(tree.run(&args).refused().contains("one file holds one kind"));
    }
    let gone = tree.run(&["cdi", "generate", "--kind", "vfio", "--output", path]).refused();
    assert!(gone.contains("offers no vfio"), "{gone}");
    assert_eq!(json_file(&file)["kind"], "onload.dev/nic");
    assert_eq!(names_in(&tree.path("/var/run")), [""; 0]);
    let yaml = tree.run(&["cdi", "generate", "--output", "-", "--format", "yaml"]).done().stdout;
    assert_eq!(yaml.matches("\n---\n").count(), 7, "{yaml}");
    let file = dir.path().join("none/mine.json");
    let path = file.to_str().unwrap();
    let missing = tree.run(&["cdi", "generate", "--kind", "nic", "--output", path]).refused();
    assert!(missing.contains(path), "{missing}");
}

#[test]
fn pools_are_a_document_of_their_own_on_stdout_and_not_in_a_file_of_one_kind() {
    let tree = vfio();
    let base = ["cdi", "generate", "--kind", "vfio", "--output"];
    let run = tree.run(&[&base[..], &["-"]].concat()).done();
    assert!(!run.stderr.contains("pools"), "{}", run.stderr);
    let documents = serde_json::Deserializer::from_str(&run.stdout).into_iter::<Value>();
    let documents: Vec<Value> = documents.map(|spec| spec.unwrap()).collect();
    let names: Vec<Vec<String>> = documents.iter().map(device_names).collect();
    assert_eq!(names, [vec!["0000:81:02.0", "0000:81:04.0"], vec!["any"]]);
    let yaml = tree.run(&[&base[..], &["-", "--format", "yaml"]].concat());
    assert_eq!(yaml.done().stdout.matches("\n---\n").count(), 1);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.json");
    let path = path.to_str().unwrap();
    let run = tree.run(&[&base[..], &[path]].concat()).done();
    let message = format!(
        "pools are not in {path} (vfio=any): they have a file of their own, which --output-dir writes beside it"
    );
    assert!(run.warnings().contains(&message.as_str()), "{}", run.stderr);
    assert_eq!(json_file(path), documents[0]);
    assert_eq!(names_in(dir.path()), ["mine.json"]);
}

#[test]
fn a_file_that_is_written_by_name_is_replaced_whole() {
    let tree = x3();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mine.json");
    fs::write(&file, "old").unwrap();
    let path = file.to_str().unwrap();
    let base = ["cdi", "generate", "--kind", "zf", "--output", path];
    for option in ["--dry-run", "--diff"] {
        let run = tree.run(&[&base[..], &[option]].concat()).done();
        assert!(run.stdout.contains(path), "{}", run.stdout);
        assert_eq!(fs::read(&file).unwrap(), b"old");
    }
    let inode = fs::metadata(&file).unwrap().ino();
    tree.run(&base).done();
    assert_ne!(fs::metadata(&file).unwrap().ino(), inode);
    let before = identity(&file);
    tree.run(&base).done();
    assert_eq!(identity(&file), before);
}

/// Everything below a directory, with what a write would change.
fn snapshot(dir: &Path) -> Vec<(String, SystemTime)> {
    let mut found = Vec::new();
    for name in names_in(dir) {
        let path = dir.join(name);
        let metadata = fs::symlink_metadata(&path).unwrap();
        found.push((path.display().to_string(), metadata.modified().unwrap()));
        if metadata.is_dir() {
            found.extend(snapshot(&path));
        }
    }
    found
}

#[test]
fn with_another_root_nothing_is_written_above_it() {
    let keep = tempfile::tempdir().unwrap();
    let root = keep.path().join("root");
    let tree = x3();
    let status = std::process::Command::new("cp").arg("-a").arg(tree.root()).arg(&root).status();
    assert!(status.unwrap().success());
    fs::remove_dir(root.join("var/run")).unwrap();
    // As on every distribution, but absolute: followed outside, it would be this machine's /run.
    fs::create_dir(keep.path().join("run")).unwrap();
    symlink("/run", root.join("var/run")).unwrap();
    let here = || fs::symlink_metadata("/run/cdi").and_then(|metadata| metadata.modified()).ok();
    let before = here();
    run(&mut on(&root, &["cdi", "generate"])).done();
    assert!(root.join("run/cdi").join(NIC).exists());
    assert_eq!(names_in(&keep.path().join("run")), [""; 0]);
    assert_eq!(names_in(keep.path()), ["root", "run"]);
    assert_eq!(here(), before);
    run(&mut on(&root, &["cdi", "check"])).done();
}

#[test]
fn with_an_output_directory_nothing_else_is_written() {
    let tree = x3();
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("a/b");
    let before = snapshot(tree.root());
    let _: Run = tree.run(&["cdi", "generate", "--output-dir", deep.to_str().unwrap()]).done();
    assert!(deep.join(NIC).exists());
    assert_eq!(snapshot(tree.root()), before);
    assert_eq!(CHECKSUM.len(), 32);
}
