//! Names of GPUs in place of RDMA devices: which device they stand for, and what a container gets.

use serde_json::{Value, json};

use crate::common::{Commands, Tree, device, device_names, json_file, texts};

/// Two GPUs beside a fast NIC each, on one node, with a slow NIC beside the first.
const TWO: &str = "
pci0000:10 0
  bridge 0000:10:01.0 32.0 x 16
    bridge 0000:11:00.0 32.0 x 16
      bridge 0000:12:00.0 32.0 x 16
        gpu 0000:13:00.0 10de:2330 32.0 x 16
      bridge 0000:12:01.0 32.0 x 16
        nic 0000:14:00.0 mlx5_0 400 32.0 x 16
      bridge 0000:12:02.0 8.0 x 8
        nic 0000:15:00.0 mlx5_1 25 8.0 x 8
pci0000:20 0
  bridge 0000:20:01.0 32.0 x 16
    bridge 0000:21:00.0 32.0 x 16
      bridge 0000:22:00.0 32.0 x 16
        gpu 0000:23:00.0 10de:2330 32.0 x 16
      bridge 0000:22:01.0 32.0 x 16
        nic 0000:24:00.0 mlx5_2 400 32.0 x 16
";

fn two() -> Tree {
    let tree = Tree::new();
    tree.rdma_cm().hook();
    tree.attribute("/sys/module/ib_core/parameters/netns_mode", "Y");
    tree.machine(TWO);
    tree
}

/// The specification of RDMA devices under this configuration.
fn rdma(tree: &Tree, config: &str) -> Value {
    tree.file("/etc/onload-ctk/config.toml", config);
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path().to_str().unwrap();
    tree.run(&["cdi", "generate", "--output-dir", to]).done();
    json_file(directory.path().join("onload.dev-rdma.json"))
}

fn near(tree: &Tree) -> Vec<(String, Vec<String>)> {
    let found = tree.run(&["discover", "--format", "json"]).done().json();
    let near = found["near_gpus"].as_array().cloned().unwrap_or_default();
    let near = near.iter();
    near.map(|near| {
        let name = near["name"].as_str().unwrap().to_owned();
        (name, texts(&near["rdma"]))
    })
    .collect()
}

/// Why a name is not offered.
fn reason(tree: &Tree, name: &str) -> Option<String> {
    let found = tree.run(&["discover", "--format", "json"]).done().json();
    let entries = found["not_offered"].as_array().unwrap().clone();
    let entry = entries.into_iter().find(|entry| entry["name"] == name)?;
    assert_eq!(entry["kind"], "rdma");
    Some(entry["reason"].as_str().unwrap().to_owned())
}

#[test]
fn a_gpu_s_name_gives_what_its_nearest_device_gives() {
    for (mode, config) in [("Y", ""), ("Y", "[leases]\nshare = { rdma = 1 }\n"), ("N", "")] {
        let tree = two();
        tree.attribute("/sys/module/ib_core/parameters/netns_mode", mode);
        let spec = rdma(&tree, config);
        let expected =
            ["all", "gpu-0000:13:00.0", "gpu-0000:23:00.0", "mlx5_0", "mlx5_1", "mlx5_2"];
        assert_eq!(device_names(&spec), expected);
        for (gpu, own) in [("gpu-0000:13:00.0", "mlx5_0"), ("gpu-0000:23:00.0", "mlx5_2")] {
            let edits = |name| device(&spec, name)["containerEdits"].clone();
            assert_eq!(edits(gpu), edits(own));
            assert!(edits(own)["hooks"].to_string().contains(own), "{spec}");
        }
    }
}

#[test]
fn a_lease_names_the_device_and_never_the_gpu() {
    let spec = rdma(&two(), "[leases]\nshare = { rdma = 1 }\n");
    let text = device(&spec, "gpu-0000:13:00.0").to_string();
    assert!(text.contains(r#""--lease","rdma:mlx5_0""#), "{text}");
    assert_eq!(text.matches("gpu").count(), 1, "{text}");
}

#[test]
fn all_devices_and_pools_have_no_gpu_for_a_member() {
    let tree = two();
    let spec = rdma(&tree, "");
    let all = device(&spec, "all").to_string();
    assert!(all.contains("mlx5_2") && !all.contains("gpu"), "{all}");
    let config = "[leases]\nshare = { rdma = 1 }\n[pools.gpu-pool]\nclass = \"rdma\"\n";
    tree.file("/etc/onload-ctk/config.toml", config);
    let found = tree.run(&["discover", "--format", "json"]).done().json();
    let pools = found["pools"].to_string();
    assert!(pools.contains("mlx5_2") && !pools.contains("gpu-0"), "{pools}");
}

#[test]
fn a_device_or_a_pool_of_that_name_takes_precedence() {
    let tree = two();
    let name = "gpu-0000:13:00.0";
    tree.rdma(&tree.pci(crate::common::Pci::network("0000:40:00.0", "15b3:1021", "")), name, 9);
    let spec = rdma(&tree, "");
    assert!(device(&spec, name).to_string().contains("uverbs9"));
    assert!(device_names(&spec).contains(&"gpu-0000:23:00.0".to_owned()));
}

#[test]
fn what_has_no_active_port_is_nearest_only_where_nothing_has_one() {
    let near_of = |text: &str| {
        let tree = Tree::new();
        tree.machine(text);
        near(&tree)
    };
    let first = "gpu-0000:13:00.0".to_owned();
    let down = TWO.replace("mlx5_0 400", "mlx5_0 down400");
    assert_eq!(near_of(&down)[0], (first.clone(), vec!["mlx5_2".to_owned()]));
    let all = down.replace("mlx5_1 25", "mlx5_1 down25").replace("mlx5_2 400", "mlx5_2 down400");
    assert_eq!(near_of(&all)[0], (first, vec!["mlx5_0".to_owned()]));
}

#[test]
fn a_virtual_function_is_never_nearest() {
    let tree = two();
    let below = "/sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0";
    let child = tree.pci_below(
        "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0",
        crate::common::Pci::network("0000:14:00.1", "15b3:1022", ""),
    );
    tree.rdma(&child, "mlx5_9", 9);
    tree.virtual_function(&format!("{below}/0000:14:00.0"), 0, &child);
    assert_eq!(near(&tree)[0].1, ["mlx5_0"]);
}

/// The function of the first GPU's nearest NIC, without its RDMA device.
fn first_nic(tree: &Tree) -> &'static str {
    let function = "/sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0";
    tree.remove("/sys/class/infiniband/mlx5_0");
    tree.remove("/sys/class/infiniband_verbs/uverbs0");
    for class in ["infiniband", "infiniband_verbs"] {
        tree.remove(&format!("{function}/{class}"));
    }
    function
}

/// An RDMA device of 400 Gbit/s.
fn device_below(tree: &Tree, parent: &str, name: &str, number: u32, state: &str) {
    let device = tree.rdma(parent, name, number);
    let attributes = [("state", state), ("rate", "400 Gb/sec (4X NDR)")];
    tree.attributes(&format!("{device}/ports/1"), &attributes);
}

#[test]
fn a_nic_goes_by_its_own_device_and_never_by_one_of_its_subfunctions() {
    const ACTIVE: &str = "4: ACTIVE";
    const DOWN: &str = "1: DOWN";
    for (own, state, subfunction, of_subfunction, nearest) in [
        ("rocep1s0", ACTIVE, "mlx5_8", DOWN, "rocep1s0"),
        ("rocep1s0", ACTIVE, "mlx5_8", ACTIVE, "rocep1s0"),
        ("mlx5_4", ACTIVE, "mlx5_10", ACTIVE, "mlx5_4"),
        ("rocep1s0", DOWN, "mlx5_8", ACTIVE, "mlx5_2"),
    ] {
        let tree = two();
        let function = first_nic(&tree);
        device_below(&tree, function, own, 10, state);
        let below = format!("{function}/mlx5_core.sf.4");
        device_below(&tree, &below, subfunction, 11, of_subfunction);
        assert_eq!(near(&tree)[0].1, [nearest], "{own} {state}");
        let topology = tree.run(&["topology", "--matrix"]).done().stdout;
        assert!(topology.contains(own), "{topology}");
        assert!(!topology.contains(subfunction), "{topology}");
    }
}

#[test]
fn a_subfunction_does_not_stand_in_for_the_drained_device_of_its_nic() {
    let tree = two();
    let function = first_nic(&tree);
    device_below(&tree, function, "rocep1s0", 10, "4: ACTIVE");
    let below = format!("{function}/mlx5_core.sf.4");
    device_below(&tree, &below, "mlx5_8", 11, "4: ACTIVE");
    tree.boot("this boot");
    tree.run(&["drain", "rdma=rocep1s0"]).done();
    assert_eq!(near(&tree)[0].1, ["mlx5_2"]);
}

#[test]
fn of_two_devices_on_one_function_the_one_that_works_stands_for_it_else_the_lowest_number() {
    for (state, nearest) in [("4: ACTIVE", "mlx5_9"), ("1: DOWN", "mlx5_10")] {
        let tree = two();
        let function = first_nic(&tree);
        device_below(&tree, function, "mlx5_9", 10, state);
        device_below(&tree, function, "mlx5_10", 11, "4: ACTIVE");
        assert_eq!(near(&tree)[0].1, [nearest]);
    }
}

#[test]
fn where_nothing_says_what_is_nearest_there_is_no_name_and_the_reason_is_told() {
    let tree = Tree::new();
    tree.machine("pci0000:00 0\n  gpu 0000:00:05.0 10de:20b0\n  nic 0000:00:06.0 mlx5_0 200\n");
    assert_eq!(near(&tree), []);
    assert_eq!(
        reason(&tree, "gpu-0000:00:05.0").unwrap(),
        "which RDMA device is nearest to that GPU is not known: the hypervisor shows one flat PCI bus; ask for a device by its own name"
    );
    let spec = rdma(&tree, "");
    assert_eq!(device_names(&spec), ["all", "mlx5_0"]);
}

#[test]
fn on_a_host_with_one_numa_node_what_has_none_is_on_it() {
    const ROOTS: &str = "
pci0000:10 -1
  gpu 0000:10:05.0 10de:20b0
pci0000:20 -1
  nic 0000:20:05.0 mlx5_0 200
";
    let online = "/sys/devices/system/node/online";
    let tree = Tree::new();
    tree.machine(ROOTS);
    let why = "which RDMA device is nearest to that GPU is not known: the kernel does not say the NUMA node of the GPU or of a NIC; ask for a device by its own name";
    for nodes in ["0-1", "0,2", "1", "0"] {
        tree.attribute(online, nodes);
        let expected = ("gpu-0000:10:05.0".to_owned(), vec!["mlx5_0".to_owned()]);
        let is_one = nodes.len() == 1;
        assert_eq!(near(&tree), is_one.then_some(expected).into_iter().collect::<Vec<_>>());
        let reason = reason(&tree, "gpu-0000:10:05.0");
        assert_eq!(reason, (!is_one).then(|| why.to_owned()), "{nodes}");
    }
    // What is published is what the kernel says of the device.
    let found = tree.run(&["discover", "--format", "json"]).done().json();
    assert_eq!(found["rdma"][0]["numa_node"], Value::Null);
}

#[test]
fn a_host_without_gpus_or_without_rdma_says_nothing_of_them() {
    for text in [
        "pci0000:10 0\n  nic 0000:10:05.0 mlx5_0 200\n",
        "pci0000:10 0\n  gpu 0000:10:05.0 10de:20b0\n",
    ] {
        let tree = Tree::new();
        tree.machine(text);
        let found = tree.run(&["discover", "--format", "json"]).done().stdout;
        assert!(!found.contains("gpu"), "{found}");
    }
}

#[test]
fn discover_shows_the_name_beside_the_gpu_and_topology_no_device_of_that_name() {
    let tree = two();
    let shown = tree.run(&["discover"]).done().stdout;
    let words: Vec<Vec<&str>> =
        shown.lines().map(|line| line.split_whitespace().collect()).collect();
    let row = "rdma gpu-0000:13:00.0 0000:13:00.0 nearest to this GPU: mlx5_0";
    assert!(words.contains(&row.split(' ').collect()), "{shown}");
    let topology = tree.run(&["topology"]).done().stdout;
    assert!(!topology.contains("rdma gpu-"), "{topology}");
    assert!(topology.contains("rdma=gpu-0000:13:00.0: mlx5_0\n"), "{topology}");
}

/// The specification of a vendor that has these devices, each with its nodes.
fn vendor(kind: &str, devices: &[(&str, &[&str])]) -> String {
    let devices = devices.iter().map(|(name, nodes)| {
        let nodes = nodes.iter().map(|path| json!({"path": path}));
        let nodes: Vec<Value> = nodes.collect();
        json!({"name": name, "containerEdits": {"deviceNodes": nodes}})
    });
    let devices: Vec<Value> = devices.collect();
    json!({"cdiVersion": "0.5.0", "kind": kind, "devices": devices}).to_string()
}

/// Two GPUs of NVIDIA, whose driver gave the second address the first minor.
fn two_with_driver() -> Tree {
    let tree = two();
    for (gpu, minor) in [("0000:13:00.0", 1), ("0000:23:00.0", 0)] {
        let text = format!("Model: \t\t NVIDIA H100\nDevice Minor: \t {minor}\n");
        tree.file(&format!("/proc/driver/nvidia/gpus/{gpu}/information"), text);
    }
    tree
}

const NVIDIA: &str = "/etc/cdi/nvidia.yaml";

#[test]
fn a_gpu_goes_by_the_number_of_its_vendor_s_own_name() {
    let tree = two_with_driver();
    let devices: &[(&str, &[&str])] = &[
        ("0", &["/dev/nvidia0", "/dev/nvidiactl"]),
        ("1", &["/dev/nvidia1", "/dev/nvidiactl"]),
        ("GPU-4f2b", &["/dev/nvidia0"]),
        ("0:1", &["/dev/nvidia0"]),
        ("all", &["/dev/nvidia0", "/dev/nvidia1"]),
    ];
    tree.file(NVIDIA, vendor("nvidia.com/gpu", devices));
    let found = near(&tree);
    let numbered: Vec<_> = found[2..].to_vec();
    let expected = [("gpu0", "mlx5_2"), ("gpu1", "mlx5_0")];
    let expected = expected.map(|(name, device)| (name.to_owned(), vec![device.to_owned()]));
    assert_eq!(numbered, expected);
    let spec = rdma(&tree, "");
    let edits = |name| device(&spec, name)["containerEdits"].clone();
    assert_eq!(edits("gpu0"), edits("mlx5_2"));
    // The next run follows the vendor's file.
    tree.file(NVIDIA, vendor("nvidia.com/gpu", &[("0", &["/dev/nvidia1"])]));
    let spec = rdma(&tree, "");
    let edits = |name| device(&spec, name)["containerEdits"].clone();
    assert_eq!(edits("gpu0"), edits("mlx5_0"));
    assert!(!device_names(&spec).contains(&"gpu1".to_owned()));
    tree.remove(NVIDIA);
    assert!(!device_names(&rdma(&tree, "")).contains(&"gpu0".to_owned()));
}

/// The vendor's own names where GPU 0 is divided (`getDeviceSpecGeneratorsForAllDevices` of nvidia-container-toolkit).
const ONE_DIVIDED: [(&str, &[&str]); 3] = [
    ("0:0", &["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21"]),
    ("0:1", &["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap30"]),
    ("1", &["/dev/nvidia1"]),
];

#[test]
fn a_gpu_that_only_its_slices_name_has_their_number() {
    let tree = two_with_driver();
    tree.file(NVIDIA, vendor("nvidia.com/gpu", &ONE_DIVIDED));
    let names = near(&tree).into_iter().map(|(name, _)| name);
    assert_eq!(names.collect::<Vec<_>>()[2..], ["gpu0", "gpu1"]);
    let near = json!({"onload.dev/rdma": "any", "onload.dev/near": "gpu"});
    for (gpu, given) in [("0", "mlx5_2"), ("0:0", "mlx5_2"), ("0:1", "mlx5_2"), ("1", "mlx5_0")] {
        let variable = format!("NVIDIA_VISIBLE_DEVICES={gpu}");
        let shown = explained(&tree, &near, &variable).done().stdout;
        assert!(shown.contains(&format!("={given}\"")), "{gpu}: {shown}");
    }
}

#[test]
fn a_gpu_of_amd_goes_by_its_render_node() {
    let tree = Tree::new();
    tree.machine(&TWO.replace("10de:2330", "1002:74a1"));
    let below = "/sys/devices/pci0000:20/0000:20:01.0/0000:21:00.0/0000:22:00.0/0000:23:00.0";
    tree.directory(&format!("{below}/drm/renderD128"));
    let nodes: &[&str] = &["/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD128"];
    let partition: &[&str] = &["/dev/kfd", "/dev/dri/card2", "/dev/dri/renderD129"];
    let spec = vendor("amd.com/gpu", &[("0", nodes), ("1", partition)]);
    tree.file("/var/run/cdi/amd.json", spec);
    let found = near(&tree);
    let nearest = |name: &str| (name.to_owned(), vec!["mlx5_2".to_owned()]);
    assert_eq!(found[2..], [nearest("gpu0")]);
    assert_eq!(
        reason(&tree, "gpu1").unwrap(),
        "the nodes of amd.com/gpu=1 belong to no GPU on PCI; ask by the address, as gpu-0000:1b:00.0"
    );
    // What amdkfd says of a CPU, the GPU and its partition.
    for (node, location, minor) in [(0, 0, 0), (1, 0x2300, 128), (2, 0x1000_2300_u32, 129)] {
        let path = format!("/sys/class/kfd/kfd/topology/nodes/{node}/properties");
        let text = format!("location_id {location}\ndomain 0\ndrm_render_minor {minor}\n");
        tree.file(&path, text);
    }
    assert_eq!(near(&tree)[2..], [nearest("gpu0"), nearest("gpu1")]);
}

#[test]
fn without_one_vendor_s_numbers_there_are_none_and_the_reason_is_told() {
    let advice = "ask by the address, as gpu-0000:1b:00.0";
    let tree = two_with_driver();
    let none = "no CDI specification of nvidia.com/gpu or amd.com/gpu on this host numbers GPUs";
    let by_number = || near(&tree).iter().any(|(name, _)| name == "gpu0");
    let is_refused = |why: &str| {
        assert!(!by_number());
        assert_eq!(reason(&tree, "gpu0").unwrap(), format!("{why}; {advice}"));
    };
    is_refused(none);
    tree.file(NVIDIA, vendor("nvidia.com/gpu", &[("GPU-4f2b", &["/dev/nvidia0"])]));
    is_refused(none);
    tree.file(NVIDIA, "nvidia.com/gpu: [");
    is_refused(none);
    let both: &[&str] = &["/dev/nvidia0", "/dev/nvidia1"];
    tree.file(NVIDIA, vendor("nvidia.com/gpu", &[("0", both)]));
    is_refused("the nodes of nvidia.com/gpu=0 belong to several GPUs on PCI");
    let one: &[&str] = &["/dev/nvidia0"];
    tree.file(NVIDIA, vendor("nvidia.com/gpu", &[("0", one)]));
    assert!(by_number());
    let amd = vendor("amd.com/gpu", &[("0", &["/dev/dri/renderD128"])]);
    tree.file("/etc/cdi/amd.json", amd);
    is_refused("both nvidia.com/gpu and amd.com/gpu number GPUs");
    // Two files claim the name, so engines give it to nobody.
    tree.remove("/etc/cdi/amd.json");
    tree.file("/etc/cdi/second.json", vendor("nvidia.com/gpu", &[("0", one)]));
    is_refused(none);
    assert!(!tree.run(&["topology"]).done().stdout.contains("gpu0"));
}

/// What the specification says of a pool of RDMA devices, beside its members.
fn said_of_pool(tree: &Tree, config: &str, pool: &str) -> Value {
    tree.file("/etc/onload-ctk/config.toml", config);
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path().to_str().unwrap();
    tree.run(&["cdi", "generate", "--output-dir", to]).done();
    let spec = json_file(directory.path().join("onload.dev-rdma-pools.json"));
    device(&spec, pool)["annotations"].clone()
}

#[test]
fn a_pool_says_which_members_are_near_each_gpu_best_first() {
    let tree = two();
    let message = said_of_pool(&tree, "", "any");
    assert_eq!(message["onload.dev/pool-members"], "mlx5_0@0 mlx5_1@0 mlx5_2@0");
    assert_eq!(message["onload.dev/pool-nics"], "0 1 2");
    let near = "0000:13:00.0=0:0,2:1,1:2 0000:23:00.0=2:0,0:1,1:3";
    assert_eq!(message["onload.dev/pool-near"], near);
    assert!(message.get("onload.dev/pool-near-unknown").is_none());
    // A pool of the operator's has its own places.
    let config = "[pools.roce]\nclass = \"rdma\"\nselect = { addresses = [\"0000:15:00.0\", \"0000:24:00.0\"] }\n";
    let message = said_of_pool(&tree, config, "roce");
    let near = "0000:13:00.0=1:1,0:2 0000:23:00.0=1:0,0:3";
    assert_eq!(message["onload.dev/pool-near"], near);
}

#[test]
fn a_pool_has_the_numbers_of_the_vendor_s_own_names() {
    let tree = two_with_driver();
    let devices: &[(&str, &[&str])] = &[("0", &["/dev/nvidia0"]), ("1", &["/dev/nvidia1"])];
    tree.file(NVIDIA, vendor("nvidia.com/gpu", devices));
    let message = said_of_pool(&tree, "", "any");
    let near = message["onload.dev/pool-near"].as_str().unwrap();
    assert!(near.starts_with("0000:13:00.0#1="), "{near}");
    assert!(near.contains(" 0000:23:00.0#0="), "{near}");
}

#[test]
fn a_member_without_an_active_port_is_the_last_to_be_given() {
    let tree = Tree::new();
    tree.rdma_cm().hook();
    tree.machine(&TWO.replace("mlx5_0 400", "mlx5_0 down400"));
    let message = said_of_pool(&tree, "", "any");
    let near = message["onload.dev/pool-near"].as_str().unwrap();
    assert!(near.starts_with("0000:13:00.0=2:"), "{near}");
    let last = near.split(' ').next().unwrap().rsplit(',').next();
    assert!(last.unwrap().starts_with("0:"), "{near}");
}

#[test]
fn a_virtual_function_is_where_its_physical_one_is() {
    let tree = two();
    let above = "pci0000:20/0000:20:01.0/0000:21:00.0/0000:22:01.0";
    let network = crate::common::Pci::network("0000:24:00.1", "15b3:1022", "");
    let child = tree.pci_below(above, network);
    tree.rdma(&child, "mlx5_9", 9);
    tree.virtual_function(&format!("/sys/devices/{above}/0000:24:00.0"), 0, &child);
    let message = said_of_pool(&tree, "", "any");
    assert_eq!(message["onload.dev/pool-nics"], "0 1 2-3");
}

#[test]
fn a_nic_s_own_device_comes_before_its_virtual_ones_and_those_that_are_down_after_all_others() {
    let second = |state: &str| {
        let tree = two();
        let above = "pci0000:20/0000:20:01.0/0000:21:00.0/0000:22:01.0";
        let network = crate::common::Pci::network("0000:24:00.1", "15b3:1022", "");
        let child = tree.pci_below(above, network);
        device_below(&tree, &child, "mlx5_10", 10, state);
        tree.virtual_function(&format!("/sys/devices/{above}/0000:24:00.0"), 0, &child);
        let message = said_of_pool(&tree, "", "any");
        let members = "mlx5_0@0 mlx5_1@0 mlx5_10@0 mlx5_2@0";
        assert_eq!(message["onload.dev/pool-members"], members);
        let near = message["onload.dev/pool-near"].as_str().unwrap().split_once(' ');
        let nics = message["onload.dev/pool-nics"].as_str().unwrap().to_owned();
        (nics, near.unwrap().1.to_owned())
    };
    let (nics, near) = second("4: ACTIVE");
    assert_eq!(nics, "0 1 3,2");
    assert_eq!(near, "0000:23:00.0=2:0,0:1,1:3");
    let (nics, near) = second("1: DOWN");
    assert_eq!(nics, "0 1 3 2");
    assert_eq!(near, "0000:23:00.0=2:0,0:1,1:3,3:4");
}

#[test]
fn where_nothing_is_known_a_pool_says_why_and_without_gpus_it_says_nothing() {
    let tree = Tree::new();
    tree.rdma_cm().hook();
    tree.machine("pci0000:00 0\n  gpu 0000:00:05.0 10de:20b0\n  nic 0000:00:06.0 mlx5_0 200\n");
    let message = said_of_pool(&tree, "", "any");
    assert_eq!(message["onload.dev/pool-near"], "0000:00:05.0=");
    assert_eq!(message["onload.dev/pool-near-unknown"], "the hypervisor shows one flat PCI bus");
    let tree = Tree::new();
    tree.rdma_cm().hook();
    tree.machine("pci0000:10 0\n  nic 0000:10:05.0 mlx5_0 200\n");
    let message = said_of_pool(&tree, "[leases]\nshare = { rdma = 1 }\n", "any");
    let keys: Vec<&String> = message.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["onload.dev/pool-members", "onload.dev/pool-share"]);
    let pools = tree.run(&["discover", "--format", "json"]).done().json();
    assert!(!pools["pools"].to_string().contains("4294967295"));
}

#[test]
fn beside_gpus_rdma_has_a_pool_that_any_number_of_containers_may_use() {
    let tree = two();
    let found = tree.run(&["discover", "--format", "json"]).done().json();
    let any = &found["pools"].as_array().unwrap()[0];
    assert_eq!((&any["class"], &any["name"]), (&json!("rdma"), &json!("any")));
    assert_eq!(any["share"], Value::Null);
}

/// What `container explain` says of a container with this variable.
fn explained(tree: &Tree, annotations: &Value, variable: &str) -> crate::common::Run {
    tree.file(
        "/etc/onload-ctk/config.toml",
        "[annotations]\nallow = [\"rdma\"]\n[cdi]\nrdma-libraries = \"off\"\n",
    );
    tree.generate();
    let bundle = tempfile::tempdir().unwrap();
    std::fs::create_dir(bundle.path().join("rootfs")).unwrap();
    let config = json!({
        "ociVersion": "1.0.2", "root": {"path": "rootfs"}, "linux": {"resources": {}}, "annotations": annotations,
        "process": {"args": ["sh"], "env": [variable], "user": {"uid": 0, "gid": 0}},
    });
    std::fs::write(bundle.path().join("config.json"), config.to_string()).unwrap();
    let path = bundle.path().to_str().unwrap();
    crate::common::run(&mut crate::common::on(tree.root(), &["container", "explain", path]))
}

#[test]
fn explain_shows_the_member_that_is_near_or_why_there_is_none() {
    let tree = two_with_driver();
    let near = json!({"onload.dev/rdma": "any", "onload.dev/near": "gpu"});
    for (gpu, given) in [("0", "mlx5_0"), ("1", "mlx5_2"), ("all", "mlx5_0")] {
        let variable = format!("NVIDIA_VISIBLE_DEVICES={gpu}");
        let shown = explained(&tree, &near, &variable).done().stdout;
        assert!(shown.contains(&format!("={given}\"")), "{gpu}: {shown}");
    }
    let refused = explained(&tree, &near, "NVIDIA_VISIBLE_DEVICES=2").answered_no();
    assert!(refused.stderr.contains("\"2\" is no GPU of this host"), "{}", refused.stderr);
    let refused = explained(&tree, &json!({"onload.dev/near": "gpu"}), "A=1").answered_no();
    assert!(refused.stderr.contains("no effect without a pool"), "{}", refused.stderr);
}
