//! Machines that others describe, and the RDMA devices that NCCL's rule takes for each of their GPUs: held against
//! ours. What NCCL takes was worked out by its source (5067397c: src/graph/topo.cc, src/graph/paths.cc) without NVLink, with
//! GPUs numbered by address. Roots and bridges that a description leaves out
//! are made up. What `rdma_topo` puts into one complex stands beside it (rdma-core 691953d8d: kernel-boot/rdma_topo).

use std::collections::BTreeMap;

use crate::common::{Commands, Tree, texts};

/// A machine's tree, as `Tree::machine` reads it, and a line for each GPU: its address, what NCCL takes, behind `|` what
/// we take where that differs, and behind `~` the NICs of the GPU's complex, where rdma_topo knows the machine.
struct Held {
    machine: String,
    answers: &'static str,
}

fn held(machine: impl Into<String>, answers: &'static str) -> Held {
    let machine = machine.into();
    Held { machine, answers }
}

fn ours(tree: &Tree) -> BTreeMap<String, Vec<String>> {
    let found = tree.run(&["discover", "--format", "json"]).done().json();
    let near = found["near_gpus"].as_array().cloned().unwrap_or_default();
    let near = near.iter();
    near.map(|near| {
        let gpu = near["gpu"].as_str().unwrap().to_owned();
        (gpu, texts(&near["rdma"]))
    })
    .collect()
}

#[track_caller]
fn check(held: &Held) {
    let tree = Tree::new();
    tree.machine(&held.machine);
    compare(&tree, held.answers, &held.machine);
}

#[track_caller]
fn compare(tree: &Tree, answers: &str, machine: &str) {
    let found = ours(tree);
    let mut known = 0;
    for line in answers.lines().filter(|line| !line.trim().is_empty()) {
        let (line, complex) = line.split_once('~').unwrap_or((line, ""));
        let (nccl, differing) = line.split_once('|').unwrap_or((line, ""));
        let mut words = nccl.split_whitespace();
        let gpu = words.next().unwrap();
        let nccl: Vec<&str> = words.collect();
        let differing: Vec<&str> = differing.split_whitespace().collect();
        let expected = match differing[..] {
            [] => nccl,
            ["nothing"] => Vec::new(),
            _ => differing,
        };
        let found = found.get(gpu).cloned().unwrap_or_default();
        assert_eq!(found, expected, "{gpu}\n{machine}");
        let complex: Vec<&str> = complex.split_whitespace().collect();
        let is_in = |name: &String| complex.is_empty() || complex.contains(&name.as_str());
        assert!(found.iter().all(is_in), "{gpu}: {found:?} of {complex:?}");
        known += usize::from(!expected.is_empty());
    }
    assert_eq!(found.len(), known, "{found:?}");
}

/// A root port with a switch that has a NIC, and GPUs behind two more switches each.
fn behind_a_switch(node: u32, switch: &str, nic: &str, gpus: &[[&str; 3]], link: &str) -> String {
    let mut text = format!("pci00{switch}:00 {node}\n  bridge 00{switch}:00:01.0 {link}\n");
    text += &format!("    bridge 0000:{switch}:00.0 {link}\n");
    text += &format!("      bridge 0000:{switch}:1f.0 {link}\n        nic {nic} {link}\n");
    for (at, [first, second, gpu]) in gpus.iter().enumerate() {
        let bridges = [
            format!("{switch}:0{at}.1"),
            format!("{first}:00.0"),
            format!("{first}:01.0"),
            format!("{second}:00.0"),
            format!("{second}:01.0"),
        ];
        for (depth, bridge) in bridges.iter().enumerate() {
            text += &format!("{}bridge 0000:{bridge} {link}\n", "  ".repeat(depth + 3));
        }
        text += &format!("{}gpu 0000:{gpu}:00.0 1002:74a1 {link}\n", "  ".repeat(8));
    }
    text
}

/// A function below a root port of its own, on a root of its own.
fn alone(root: u32, node: u32, function: &str) -> String {
    let root = format!("{root:04x}");
    format!("pci{root}:00 {node}\n  bridge {root}:00:01.0 16.0 x 16\n    {function} 16.0 x 16\n")
}

#[test]
fn mi300x_with_a_nic_for_each_gpu() {
    // rccl tools/topo_expl/models/topo_8p_940.xml
    let link = "32.0 x 16";
    let groups = [
        (0, "05", "07", ["08", "0a", "0c"]),
        (0, "0e", "10", ["11", "13", "15"]),
        (0, "17", "19", ["1a", "1c", "1e"]),
        (0, "62", "64", ["65", "67", "69"]),
        (1, "98", "9a", ["9b", "9d", "9f"]),
        (1, "a8", "aa", ["ab", "ad", "af"]),
        (1, "b8", "ba", ["bb", "bd", "bf"]),
        (1, "d8", "da", ["db", "dd", "df"]),
    ];
    let groups = groups.iter().enumerate().map(|(at, (node, switch, nic, gpu))| {
        let nic = format!("0000:{nic}:00.0 mlx5_{at} 400");
        behind_a_switch(*node, switch, &nic, &[*gpu], link)
    });
    let answers = "
        0000:0c:00.0 mlx5_0
        0000:15:00.0 mlx5_1
        0000:1e:00.0 mlx5_2
        0000:69:00.0 mlx5_3
        0000:9f:00.0 mlx5_4
        0000:af:00.0 mlx5_5
        0000:bf:00.0 mlx5_6
        0000:df:00.0 mlx5_7";
    check(&held(groups.collect::<String>(), answers));
}

#[test]
fn mi100_with_a_nic_for_two_gpus() {
    // rccl tools/topo_expl/models/topo_8p_rome_4nics.xml
    let groups = [
        (0, "43", "0000:45:00.0 mlx5_1 200", [["46", "48", "4a"], ["4c", "4e", "50"]]),
        (1, "03", "0000:13:00.0 mlx5_3 200", [["05", "08", "0a"], ["0b", "0d", "0f"]]),
        (2, "c4", "0000:c6:00.0 mlx5_5 200", [["c7", "c9", "cb"], ["cd", "cf", "d1"]]),
        (3, "83", "0000:85:00.0 mlx5_7 200", [["86", "88", "8a"], ["8c", "8e", "90"]]),
    ];
    let groups = groups.iter();
    let groups = groups
        .map(|(node, switch, nic, gpus)| behind_a_switch(*node, switch, nic, gpus, "16.0 x 16"));
    let answers = "
        0000:4a:00.0 mlx5_1
        0000:50:00.0 mlx5_1
        0000:0a:00.0 mlx5_3
        0000:0f:00.0 mlx5_3
        0000:cb:00.0 mlx5_5
        0000:d1:00.0 mlx5_5
        0000:8a:00.0 mlx5_7
        0000:90:00.0 mlx5_7";
    check(&held(groups.collect::<String>(), answers));
}

/// Functions on roots of their own, by their nodes.
fn apart(functions: &[(u32, &str)]) -> String {
    let functions = functions.iter().zip(1..);
    functions.map(|((node, function), root)| alone(root, *node, function)).collect()
}

#[test]
fn three_nics_of_a_node_for_four_gpus() {
    // rccl tools/topo_expl/models/topo_8p6l_6nic.xml
    let machine = apart(&[
        (0, "gpu 0000:63:00.0 1002:74a1"),
        (0, "gpu 0000:43:00.0 1002:74a1"),
        (0, "gpu 0000:24:00.0 1002:74a1"),
        (0, "gpu 0000:03:00.0 1002:74a1"),
        (0, "nic 0000:1a:00.0 mlx5_0 200"),
        (0, "nic 0000:2a:00.0 mlx5_1 200"),
        (0, "nic 0000:3a:00.0 mlx5_2 200"),
        (1, "gpu 0000:e3:00.0 1002:74a1"),
        (1, "gpu 0000:c3:00.0 1002:74a1"),
        (1, "gpu 0000:a3:00.0 1002:74a1"),
        (1, "gpu 0000:83:00.0 1002:74a1"),
        (1, "nic 0000:9a:00.0 mlx5_3 200"),
        (1, "nic 0000:ba:00.0 mlx5_4 200"),
        (1, "nic 0000:da:00.0 mlx5_5 200"),
    ]);
    let answers = "
        0000:03:00.0 mlx5_0
        0000:24:00.0 mlx5_1
        0000:43:00.0 mlx5_2
        0000:63:00.0 mlx5_0
        0000:83:00.0 mlx5_3
        0000:a3:00.0 mlx5_4
        0000:c3:00.0 mlx5_5
        0000:e3:00.0 mlx5_3";
    check(&held(machine, answers));
}

#[test]
fn two_nics_on_nodes_without_a_gpu() {
    // rccl tools/topo_expl/models/topo_8p_ts1_n4.xml
    let machine = apart(&[
        (1, "gpu 0000:43:00.0 1002:74a1"),
        (2, "gpu 0000:23:00.0 1002:74a1"),
        (2, "gpu 0000:26:00.0 1002:74a1"),
        (3, "gpu 0000:03:00.0 1002:74a1"),
        (4, "gpu 0000:e3:00.0 1002:74a1"),
        (5, "gpu 0000:c3:00.0 1002:74a1"),
        (5, "gpu 0000:c6:00.0 1002:74a1"),
        (7, "gpu 0000:83:00.0 1002:74a1"),
        (0, "nic 0000:61:00.0 mlx5_0 200"),
        (6, "nic 0000:a1:00.0 mlx5_2 200"),
    ]);
    let answers = "
        0000:03:00.0 mlx5_0
        0000:23:00.0 mlx5_2
        0000:26:00.0 mlx5_0
        0000:43:00.0 mlx5_2
        0000:83:00.0 mlx5_0
        0000:c3:00.0 mlx5_2
        0000:c6:00.0 mlx5_0
        0000:e3:00.0 mlx5_2";
    check(&held(machine, answers));
}

#[test]
fn p4d_with_a_flat_bus_for_each_root() {
    // dranet examples/aws_eks_examples/gpu-efa/README.md
    let roots = [("10", 0, 16), ("20", 0, 32), ("90", 1, 144), ("a0", 1, 160)];
    let roots = roots.map(|(bus, node, number)| {
        format!(
            "pci0000:{bus} {node}\n  gpu 0000:{bus}:1c.0 10de:20b0\n  gpu 0000:{bus}:1d.0 10de:20b0\n  nic 0000:{bus}:1b.0 rdmap{number}s27 400\n"
        )
    });
    let answers = "
        0000:10:1c.0 rdmap16s27
        0000:10:1d.0 rdmap16s27
        0000:20:1c.0 rdmap32s27
        0000:20:1d.0 rdmap32s27
        0000:90:1c.0 rdmap144s27
        0000:90:1d.0 rdmap144s27
        0000:a0:1c.0 rdmap160s27
        0000:a0:1d.0 rdmap160s27";
    check(&held(roots.concat(), answers));
}

#[test]
fn gb300_of_azure_by_numa_node() {
    // dranet examples/azure_aks_examples/gb300/README.md
    let mut machine = String::new();
    for (domain, node) in [("0008", 0), ("0009", 0), ("0018", 1), ("0019", 1)] {
        machine += &format!(
            "pci{domain}:00 {node}\n  bridge {domain}:00:00.0\n    gpu {domain}:06:00.0 10de:31c2\n"
        );
    }
    for (at, node) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
        let domain = format!("010{}", at + 1);
        machine += &format!("pci{domain}:00 {node}\n  nic {domain}:00:00.0 mlx5_{at} 800\n");
    }
    let answers = "
        0008:06:00.0 mlx5_0
        0009:06:00.0 mlx5_1
        0018:06:00.0 mlx5_2
        0019:06:00.0 mlx5_3";
    check(&held(machine, answers));
}

#[test]
fn gb200_of_oracle_has_two_nics_for_each_gpu() {
    // dranet examples/oci_oke_examples/BM.GPU.GB200-v3.4/README.md
    let mut machine = String::new();
    for (domain, node) in [("0008", 0), ("0009", 0), ("0018", 1), ("0019", 1)] {
        machine += &format!(
            "pci{domain}:00 {node}\n  bridge {domain}:00:00.0\n    gpu {domain}:06:00.0 10de:2941\n"
        );
    }
    let cards =
        [("0000", 0, [0, 1]), ("0002", 0, [2, 3]), ("0010", 1, [5, 6]), ("0012", 1, [7, 8])];
    for (domain, node, [one, other]) in cards {
        machine += &format!(
            "pci{domain}:00 {node}\n  bridge {domain}:00:00.0\n    nic {domain}:03:00.0 mlx5_{one} 400\n    nic {domain}:03:00.1 mlx5_{other} 400\n"
        );
    }
    let answers = "
        0008:06:00.0 mlx5_0 mlx5_1 ~ mlx5_0 mlx5_1 mlx5_2 mlx5_3
        0009:06:00.0 mlx5_2 mlx5_3 ~ mlx5_0 mlx5_1 mlx5_2 mlx5_3
        0018:06:00.0 mlx5_5 mlx5_6 ~ mlx5_5 mlx5_6 mlx5_7 mlx5_8
        0019:06:00.0 mlx5_7 mlx5_8 ~ mlx5_5 mlx5_6 mlx5_7 mlx5_8";
    check(&held(machine, answers));
}

/// rdma-core kernel-boot/rdma_topo, INLINE: a root port with a switch, below which are a NIC and a switch with a GPU.
fn inline(root: &str, nic: &str) -> String {
    format!(
        "pci{root}:00 0\n  bridge {root}:00:00.0\n    bridge {root}:01:00.0\n      bridge {root}:02:00.0\n        nic {root}:03:00.0 {nic} 400\n      bridge {root}:02:01.0\n        bridge {root}:04:00.0\n          bridge {root}:05:00.0\n            gpu {root}:06:00.0 10de:2941\n"
    )
}

#[test]
fn the_inline_and_numa_shapes_of_rdma_topo() {
    let machine = inline("0000", "mlx5_0") + &inline("0002", "mlx5_1");
    check(&held(machine, "0000:06:00.0 mlx5_0 ~ mlx5_0\n0002:06:00.0 mlx5_1 ~ mlx5_1"));
    let machine = apart(&[
        (0, "gpu 0001:01:00.0 10de:2941"),
        (0, "gpu 0002:01:00.0 10de:2941"),
        (0, "nic 0003:01:00.0 mlx5_0 400"),
        (0, "nic 0004:01:00.0 mlx5_1 400"),
    ]);
    check(&held(
        machine,
        "0001:01:00.0 mlx5_0 ~ mlx5_0 mlx5_1\n0002:01:00.0 mlx5_1 ~ mlx5_0 mlx5_1",
    ));
}

/// rdma_topo, DMA: a root port with a switch, below which are a Data Direct function and a switch with a GPU.
fn data_direct(root: &str, node: u32, uuid: &str) -> String {
    format!(
        "pci{root}:00 {node}\n  bridge {root}:00:00.0 32.0 x 16\n    bridge {root}:01:00.0 32.0 x 16\n      bridge {root}:02:00.0 32.0 x 16\n        dma {root}:03:00.0 32.0 x 16 V3={uuid}\n      bridge {root}:02:01.0 32.0 x 16\n        bridge {root}:04:00.0 32.0 x 16\n          bridge {root}:05:00.0 32.0 x 16\n            gpu {root}:06:00.0 10de:31c2 32.0 x 16\n"
    )
}

/// A NIC on a root of its own, of one function or two.
fn nic(root: &str, node: u32, functions: &[(&str, &str)]) -> String {
    let mut text = format!("pci{root}:00 {node}\n  bridge {root}:00:00.0 64.0 x 16\n");
    for (at, (name, uuid)) in functions.iter().enumerate() {
        text += &format!("    nic {root}:03:00.{at} {name} 400 64.0 x 16 V3={uuid}\n");
    }
    text
}

/// The UUID of a card, as its VPD has it.
fn uuid(card: u32) -> String {
    format!("6bbbab98e1e3ec118000b83fd29d{card:04x}")
}

#[test]
fn the_data_direct_shape_of_rdma_topo() {
    // Neither order nor NUMA node says which card has which function.
    let [one, two, three, four] = [1, 2, 3, 4].map(uuid);
    let gpus = [
        data_direct("0008", 0, &two),
        data_direct("0009", 0, &one),
        data_direct("0018", 1, &three),
        data_direct("0019", 1, &four),
    ];
    let nics = [
        nic("0000", 0, &[("mlx5_0", &one)]),
        nic("0002", 0, &[("mlx5_1", &two)]),
        nic("0010", 0, &[("mlx5_2", &four)]),
        nic("0012", 1, &[("mlx5_3", &three)]),
    ];
    let answers = "
        0008:06:00.0 mlx5_1 ~ mlx5_1
        0009:06:00.0 mlx5_0 ~ mlx5_0
        0018:06:00.0 mlx5_3 ~ mlx5_3
        0019:06:00.0 mlx5_2 ~ mlx5_2";
    check(&held(gpus.concat() + &nics.concat(), answers));
}

#[test]
fn a_data_direct_card_of_two_functions_goes_whole_to_its_gpu() {
    let [one, two] = [1, 2].map(uuid);
    let machine = [
        data_direct("0008", 0, &one),
        data_direct("0009", 0, &two),
        nic("0000", 0, &[("mlx5_0", &two), ("mlx5_1", &two)]),
        nic("0002", 0, &[("mlx5_2", &one), ("mlx5_3", &one)]),
        // A card of another generation, which has no such function.
        "pci0004:00 0\n  bridge 0004:00:00.0\n    nic 0004:03:00.0 mlx5_4 400\n".to_owned(),
    ];
    let tree = Tree::new();
    let answers = "
        0008:06:00.0 mlx5_2 mlx5_3 ~ mlx5_2 mlx5_3
        0009:06:00.0 mlx5_0 mlx5_1 ~ mlx5_0 mlx5_1";
    tree.machine(&machine.concat()).vpd("0004:03:00.0", &uuid(3));
    compare(&tree, answers, &machine.concat());
}

#[test]
fn a_data_direct_card_whose_vpd_says_nothing_leaves_all_unknown() {
    let card = uuid(1);
    let tree = Tree::new();
    tree.machine(&(data_direct("0008", 0, &card) + &nic("0000", 0, &[("mlx5_0", &card)])));
    tree.file("/sys/bus/pci/devices/0000:03:00.0/vpd", [0xff; 64]);
    assert!(ours(&tree).is_empty());
    let found = tree.run(&["discover", "--format", "json"]).done();
    let found = found.json()["not_offered"].to_string();
    let why = "the VPD of the NIC 0000:03:00.0, which identifies the parts of Data Direct, \
        could not be read: it is not valid VPD";
    assert!(found.contains(why), "{found}");
}

#[test]
fn where_we_differ_from_nccl() {
    // Intel's newest CPUs carry 40 GB/s between nodes, as NCCL has it: more than the NIC of the GPU's own node.
    let far = apart(&[
        (0, "gpu 0001:01:00.0 10de:2330"),
        (0, "nic 0002:01:00.0 mlx5_0 100"),
        (1, "nic 0003:01:00.0 mlx5_1 400"),
    ]);
    check(&held(far, "0001:01:00.0 mlx5_1 | mlx5_0"));
    // NCCL knows a NUMA node and no roots in it.
    let roots = "pci0000:10 0
  bridge 0000:10:01.0
    gpu 0000:11:00.0 10de:2330
  bridge 0000:10:02.0
    nic 0000:12:00.0 mlx5_0 400
pci0000:20 0
  bridge 0000:20:01.0
    nic 0000:21:00.0 mlx5_1 400
";
    check(&held(roots, "0000:11:00.0 mlx5_0 mlx5_1 | mlx5_0"));
    // A flat bus, of which NCCL takes what it sees.
    let flat = "pci0000:00 0
  gpu 0000:00:05.0 10de:20b0
  nic 0000:00:06.0 mlx5_0 200
";
    check(&held(flat, "0000:00:05.0 mlx5_0 | nothing"));
}
