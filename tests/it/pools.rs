//! Pools: what selectors choose on captured hosts of several vendors, what of them is written, and how
//! they are shown beside leases.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;

use crate::common::{
    Commands, Pci, Run, Tree, device, device_names, each, every_host, hosts, on, reason, run,
    run_unprivileged, specs_in, text, texts,
};
use serde_json::{Value, json};

/// A command on a host that has this configuration.
fn with_config(root: &Path, config: &str, args: &[&str]) -> Run {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), config).unwrap();
    let mut command = on(root, args);
    run(command.arg("--config").arg(file.path()))
}

fn discover(root: &Path, config: &str) -> (Value, Vec<String>) {
    let run = with_config(root, config, &["discover", "--format", "json"]).done();
    let warnings = run.warnings().into_iter().map(str::to_owned).collect();
    (run.json(), warnings)
}

fn pool<'f>(found: &'f Value, name: &str) -> Option<&'f Value> {
    let pools = found["pools"].as_array().unwrap();
    pools.iter().find(|pool| pool["name"] == name)
}

/// The members of the pool p, and the warnings about it.
#[track_caller]
fn members(host_name: &str, class: &str, select: &str) -> (Vec<String>, Vec<String>) {
    let config = format!("[pools.p]\nclass = \"{class}\"\nselect = {{ {select} }}\n");
    let (found, mut warnings) = discover(Tree::sample(host_name).root(), &config);
    warnings.retain(|warning| warning.contains(&format!("{class}=p")));
    let pool = pool(&found, "p").unwrap_or_else(|| panic!("{select}: {warnings:?}"));
    assert_eq!(pool["class"], class);
    (each(&pool["members"], "name"), warnings)
}

const X2: &str = "x2-2port-sriov";
const IGB: &str = "debian12-stand-ins";
const GROUPS: &str = "iommu-groups";
const HCAS: &str = "rdma-hcas";
const GAPS: &str = "vmd-numa-gaps";

#[test]
fn each_selector_chooses_the_devices_that_match_it() {
    const F0: &str = "0000:65:00.3";
    const F1: &str = "0000:65:00.6";
    let x2: &[(&str, &[&str])] = &[
        ("", &[F0, F1]),
        ("vendor = \"1924\"", &[F0, F1]),
        ("device = \"0x1B03\"", &[F0, F1]),
        ("driver = \"vfio-pci\"", &[F0, F1]),
        ("pf = \"enp101s0f0np0\"", &[F0]),
        ("pf = \"0000:65:00.1\"", &[F1]),
        ("pf = [\"enp101s0f1np1\", \"0000:65:00.0\"]", &[F0, F1]),
        ("vf = \"1\"", &[F0]),
        ("vf = \"0\"", &[F1]),
        ("vf = \"0-1\"", &[F0, F1]),
        ("vf = \"0,1\", pf = \"enp101s0f0np0\"", &[F0]),
        ("numa = 1", &[F0, F1]),
        ("numa = 1, vendor = \"1924\", vf = \"1\"", &[F0]),
        ("addresses = [\"0000:65:00.6\", \"0000:65:00.3\"]", &[F0, F1]),
        ("addresses = \"0000:65:00.6\"", &[F1]),
    ];
    let igb: &[(&str, &[&str])] = &[
        ("pf = \"ens1\"", &["0000:41:10.0"]),
        ("pf = [\"ens1\", \"ens2\"], vf = \"0\"", &["0000:41:10.0", "0000:81:10.0"]),
        ("numa = 0", &["0000:41:10.0"]),
        ("numa = [0, 1]", &["0000:41:10.0", "0000:81:10.0"]),
        ("vendor = \"8086\", device = \"10ca\", numa = 1", &["0000:81:10.0"]),
    ];
    let groups: &[(&str, &[&str])] = &[
        ("driver = \"mlx5_vfio_pci\"", &["0000:81:00.1"]),
        ("vendor = [\"15b3\", \"1af4\"]", &["0000:81:00.1", "0000:83:00.0"]),
        ("pf = \"0000:81:00.0\", vf = \"0\"", &["0000:81:00.1"]),
        // One member, by whichever function of its IOMMU group.
        ("addresses = \"0000:05:00.1\"", &["0000:05:00.0"]),
        ("addresses = [\"0000:05:00.0\", \"0000:05:00.1\"]", &["0000:05:00.0"]),
    ];
    for (name, selections) in [(X2, x2), (IGB, igb), (GROUPS, groups)] {
        for (select, wanted) in selections {
            let (found, warnings) = members(name, "vfio", select);
            assert_eq!(found, *wanted, "{name}: {select}");
            assert_eq!(warnings, [""; 0], "{name}: {select}");
        }
    }
}

#[test]
fn rdma_devices_are_chosen_by_port_and_interface_too() {
    let hcas: &[(&str, &[&str])] = &[
        ("link-layer = \"infiniband\"", &["mlx4_0", "mlx5_0", "qib0"]),
        // mlx4 has a port of each.
        ("link-layer = \"Ethernet\"", &["mlx4_0", "rocep193s0f0", "siw_lo"]),
        ("link-layer = [\"ethernet\", \"infiniband\"], vendor = \"15b3\"", &["mlx4_0", "mlx5_0"]),
        ("interfaces = \"ib*\"", &["mlx4_0", "mlx5_0"]),
        ("interfaces = [\"ens4d1\", \"enp193*\"]", &["mlx4_0", "rocep193s0f0"]),
        ("vendor = \"14e4\"", &["rocep193s0f0"]),
        ("numa = [0, 1]", &["mlx4_0", "mlx5_0", "qib0"]),
        ("addresses = \"0000:05:00.0\"", &["qib0"]),
    ];
    for (select, wanted) in hcas {
        let (found, warnings) = members(HCAS, "rdma", select);
        assert_eq!(
            (found, warnings),
            (wanted.iter().map(ToString::to_string).collect(), Vec::new()),
            "{select}"
        );
    }
    // By their names in CDI, which are addresses where the kernel's are not legal.
    let (found, _) = members(GAPS, "rdma", "interfaces = \"*\"");
    assert_eq!(found, ["0101:00:02.0", "10000:01:00.0"]);
    let (found, _) = members(X2, "nic", "link-layer = \"ethernet\", pf = \"0000:65:00.0\"");
    assert_eq!(found, ["enp101s0f0v0"]);
    let (found, _) = members(X2, "ptp", "interfaces = \"*f1*\"");
    assert_eq!(found, ["ptp1"]);
}

#[test]
fn a_device_without_a_numa_node_is_a_member_and_matches_no_node() {
    let (found, _) =
        discover(Tree::sample(HCAS).root(), "[pools.p]\nclass = \"rdma\"\nshare = 3\n");
    let pool = pool(&found, "p").unwrap();
    let nodes: Vec<(String, Value)> = pool["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|member| (text(&member["name"]), member["numa_node"].clone()))
        .collect();
    let wanted = [
        ("mlx4_0", json!(0)),
        ("mlx5_0", json!(1)),
        ("qib0", json!(0)),
        ("rocep193s0f0", Value::Null),
        ("siw_lo", Value::Null),
    ]
    .map(|(name, node)| (name.to_owned(), node));
    assert_eq!(nodes, wanted);
    assert_eq!(pool["share"], 3);
}

#[test]
fn a_pool_of_interfaces_takes_no_rdma_device_by_a_name_that_a_pod_chose() {
    let tree = Tree::sample(HCAS);
    let roce = "/sys/class/infiniband/rocep193s0f0/ports/1/gid_attrs/ndevs";
    tree.attributes(roce, &[("3", "ens4d1"), ("4", "net1")]);
    for (select, wanted) in [("ens4*", "mlx4_0"), ("vlan*", "rocep193s0f0")] {
        let config = "[pools.p]\nclass = \"rdma\"\nselect = { interfaces = ";
        let (found, _) = discover(tree.root(), &format!("{config}\"{select}\" }}\n"));
        let pool = pool(&found, "p").unwrap();
        assert_eq!(each(&pool["members"], "name"), [wanted], "{select}");
    }
}

#[test]
fn a_pool_without_members_is_not_offered_and_the_reason_names_the_selector() {
    for (name, class, select, says) in [
        (
            X2,
            "vfio",
            "vendor = \"15b3\"",
            "no vfio device matches select.vendor = \"15b3\"; change [pools.p] in /etc/onload-ctk/config.toml",
        ),
        (X2, "vfio", "device = \"0b03\"", "no vfio device matches select.device = \"0b03\"; "),
        (X2, "vfio", "driver = \"sfc\"", "no vfio device matches select.driver = \"sfc\"; "),
        (X2, "vfio", "pf = \"ens9\"", "no vfio device matches select.pf = \"ens9\"; "),
        (
            X2,
            "vfio",
            "pf = \"0000:65:00.3\"",
            "no vfio device matches select.pf = \"0000:65:00.3\"; ",
        ),
        (
            X2,
            "vfio",
            "vf = \"2-7,9\"",
            "no vfio device matches select.vf = \"2-7\", select.vf = \"9\"; ",
        ),
        (X2, "vfio", "numa = 0", "no vfio device matches select.numa = 0; "),
        (
            X2,
            "vfio",
            "interfaces = \"enp*\"",
            "no vfio device matches select.interfaces = \"enp*\"; ",
        ),
        (
            X2,
            "vfio",
            "link-layer = \"ethernet\"",
            "no vfio device matches select.link-layer = \"ethernet\"; ",
        ),
        (
            X2,
            "vfio",
            "addresses = \"0000:65:00.7\"",
            "no vfio device matches select.addresses = \"0000:65:00.7\"; ",
        ),
        // Each matches some device, and no device matches both.
        (
            X2,
            "vfio",
            "pf = \"enp101s0f0np0\", vf = \"0\"",
            "no vfio device matches all of its selectors; ",
        ),
        (
            X2,
            "vfio",
            "pf = \"enp101s0f0np0\", vf = \"0,5\"",
            "no vfio device matches select.vf = \"5\"; ",
        ),
        // A function that comes with a group, and one whose group is not viable.
        (
            GROUPS,
            "vfio",
            "addresses = \"0000:05:00.2\"",
            "no vfio device matches select.addresses = \"0000:05:00.2\"; ",
        ),
        (
            GROUPS,
            "vfio",
            "addresses = \"0000:03:00.0\"",
            "no vfio device matches select.addresses = \"0000:03:00.0\"; ",
        ),
        (HCAS, "rdma", "numa = 4294967295", "no rdma device matches select.numa = 4294967295; "),
        (
            HCAS,
            "rdma",
            "interfaces = \"rxe*\"",
            "no rdma device matches select.interfaces = \"rxe*\"; ",
        ),
        (
            HCAS,
            "vfio",
            "",
            "this host offers no vfio device; \"onload-ctk discover --explain\" says why",
        ),
        (HCAS, "hugepages", "vendor = \"15b3\"", "this host offers no hugepages device; "),
    ] {
        let config = format!("[pools.p]\nclass = \"{class}\"\nselect = {{ {select} }}\n");
        let (found, warnings) = discover(Tree::sample(name).root(), &config);
        assert_eq!(pool(&found, "p"), None, "{select}");
        let why = reason(&found, class, "p");
        assert!(why.starts_with(says), "{select}: {why}");
        let warning = format!("pool {class}=p is not offered: {why}");
        assert!(warnings.contains(&warning), "{select}: {warnings:?}");
    }
}

#[test]
fn a_word_that_matches_nothing_draws_a_warning_where_others_do() {
    for (select, word) in [
        ("vendor = [\"1924\", \"15b3\"]", "select.vendor = \"15b3\""),
        ("pf = [\"enp101s0f0np0\", \"ens9\"]", "select.pf = \"ens9\""),
        ("vf = \"0-1,6-7\"", "select.vf = \"6-7\""),
        ("numa = [0, 1]", "select.numa = 0"),
        ("numa = [0, 1, 2], vf = \"0-1,9\"", "select.vf = \"9\", select.numa = 0, select.numa = 2"),
        ("addresses = [\"0000:65:00.3\", \"0000:65:00.4\"]", "select.addresses = \"0000:65:00.4\""),
    ] {
        let (_, warnings) = members(X2, "vfio", select);
        assert_eq!(warnings, [format!("pool vfio=p: no vfio device matches {word} in [pools.p]")]);
    }
}

#[test]
fn a_pool_does_not_take_the_name_of_something_else() {
    for (name, class, says) in [
        ("any", "vfio", "\"any\" is a reserved word; name the pool otherwise"),
        ("all", "vfio", "\"all\" is a reserved word"),
        ("loopback", "nic", "\"loopback\" is a reserved word"),
        ("none", "vfio", "\"none\" is a reserved word"),
        ("\"a b\"", "vfio", "\"a b\" is no legal name of a CDI device; name the pool otherwise"),
        ("\"\"", "vfio", "\"\" is no legal name of a CDI device"),
        ("\"fast*2\"", "vfio", "\"fast*2\" is no legal name of a CDI device"),
        ("fast-", "vfio", "\"fast-\" is no legal name of a CDI device"),
        ("\"é\"", "vfio", "\"é\" is no legal name of a CDI device"),
        (
            "\"0000:65:00.3\"",
            "vfio",
            "\"0000:65:00.3\" is the name of a device; name the pool otherwise",
        ),
        // Not bound to vfio today.
        ("\"0000:65:00.7\"", "vfio", "\"0000:65:00.7\" is the name of a device"),
        ("enp101s0f0np0", "nic", "\"enp101s0f0np0\" is the name of a device"),
        ("eno1", "nic", "\"eno1\" is the name of a device"),
        ("ptp0", "ptp", "\"ptp0\" is the name of a device"),
    ] {
        let config = format!("[pools.{name}]\nclass = \"{class}\"\n");
        let (found, warnings) = discover(Tree::sample(X2).root(), &config);
        let plain = name.trim_matches('"');
        let why = reason(&found, class, plain);
        assert!(why.starts_with(says), "{name}: {why}");
        let warning = format!("pool {class}={plain} is not offered: {why}");
        assert!(warnings.contains(&warning), "{name}: {warnings:?}");
    }
    // The same names are free in another class.
    for (name, class) in [("ptp0", "vfio"), ("fast", "nic"), ("a:b.c_d-e", "vfio"), ("1", "vfio")] {
        let (found, _) = discover(
            Tree::sample(X2).root(),
            &format!("[pools.\"{name}\"]\nclass = \"{class}\"\n"),
        );
        assert!(pool(&found, name).is_some(), "{name}");
    }
}

#[test]
fn pools_that_take_from_each_other_draw_a_warning_unless_they_share() {
    let pools = |share: &str| {
        format!(
            "[pools.a]\nclass = \"vfio\"\n[pools.b]\nclass = \"vfio\"\nselect = {{ numa = 1, vf = \"1\" }}\n{share}\n\
             [pools.c]\nclass = \"ptp\"\n"
        )
    };
    let (found, warnings) = discover(Tree::sample(X2).root(), &pools(""));
    let message = "pools vfio=a and vfio=b have 0000:65:00.3 in common: a container of one takes it from the other";
    assert!(warnings.contains(&message.to_owned()), "{warnings:?}");
    let names = [("vfio", "a"), ("vfio", "any"), ("vfio", "b"), ("ptp", "c")]
        .map(|(class, name)| (class.to_owned(), name.to_owned()));
    let offered: Vec<(String, String)> =
        each(&found["pools"], "class").into_iter().zip(each(&found["pools"], "name")).collect();
    assert_eq!(offered, names);
    let (_, warnings) = discover(Tree::sample(X2).root(), &pools("share = 2"));
    assert!(!warnings.iter().any(|warning| warning.contains("in common")), "{warnings:?}");
}

#[test]
fn every_class_with_a_number_of_holders_has_the_pool_any() {
    let any = |config: &str| {
        let (found, _) = discover(Tree::sample(X2).root(), config);
        found["pools"]
            .as_array()
            .unwrap()
            .clone()
            .iter()
            .map(|pool| (text(&pool["class"]), pool["share"].clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(any(""), [("vfio".to_owned(), json!(1))]);
    let shares = "[leases]\nshare = { nic = 10, vfio = 2, rdma = 5 }\n";
    // There is no RDMA device on this host.
    assert_eq!(any(shares), [("nic".to_owned(), json!(10)), ("vfio".to_owned(), json!(2))]);
    // A pool without a share has that of its class, or none.
    let (found, _) = discover(
        Tree::sample(X2).root(),
        "[leases]\nshare.vfio = 3\n[pools.p]\nclass = \"vfio\"\n[pools.q]\nclass = \"ptp\"\n",
    );
    assert_eq!(pool(&found, "p").unwrap()["share"], 3);
    assert_eq!(pool(&found, "q").unwrap()["share"], Value::Null);
}

const EVERY_CLASS: &str = "[leases]\nshare = { nic = 1, nic-plain = 1, nic-nodes = 1, zf = 1, profile = 1, rdma = 1, vfio = 1, hugepages = 1, ptp = 1, pps = 1 }\n";

/// A pool with a member that no specification has would give a container nothing.
#[test]
fn the_members_of_any_are_the_devices_of_the_specification() {
    let mut compared = 0;
    for (_, tree) in every_host() {
        let root = tree.root();
        let specs = tempfile::tempdir().unwrap();
        let to = specs.path().to_str().unwrap();
        with_config(root, EVERY_CLASS, &["cdi", "generate", "--output-dir", to]).done();
        let (found, _) = discover(root, EVERY_CLASS);
        for pool in found["pools"].as_array().unwrap() {
            let class = text(&pool["class"]);
            let spec =
                crate::common::json_file(specs.path().join(format!("onload.dev-{class}.json")));
            let mut devices = device_names(&spec);
            devices.retain(|name| !["all", "any", "loopback"].contains(&name.as_str()));
            let mut members = each(&pool["members"], "name");
            members.sort();
            assert_eq!(members, devices, "{}: {class}", root.display());
            compared += 1;
        }
    }
    assert!(compared > 30, "{compared}");
}

#[test]
fn what_is_no_nic_among_what_vfio_holds_draws_a_warning_until_it_is_set_apart() {
    let tree = hosts::vfio_without_groups();
    tree.boot("this boot");
    let warnings = |config: &str| {
        let (_, mut warnings) = discover(tree.root(), config);
        warnings.retain(|warning| warning.contains("that are not NICs"));
        warnings
    };
    assert_eq!(warnings(""), [""; 0]);
    let disk = tree
        .pci(Pci { class: "0x010802", ..Pci::network("0000:82:00.0", "144d:a808", "vfio-pci") });
    tree.group(&disk, 30).vfio_device(&disk, 7);
    assert_eq!(
        warnings(""),
        [
            "vfio=any includes functions that are not NICs: 0000:82:00.0; request them by a separate pool, or run \"onload-ctk drain vfio=0000:82:00.0\""
        ]
    );
    let pool = |select: &str| format!("[pools.p]\nclass = \"vfio\"\nselect = {{ {select} }}\n");
    // Either kind in a pool is set apart.
    for address in ["0000:82:00.0", "0000:81:02.0"] {
        let config = pool(&format!("addresses = \"{address}\""));
        assert_eq!(warnings(&config), [""; 0], "{address}");
    }
    tree.run(&["drain", "vfio=0000:82:00.0"]).done();
    assert_eq!(warnings(""), [""; 0]);
}

/// Two functions of one IOMMU group, each with a node of its own, on a kernel without nodes of groups.
#[test]
fn two_members_of_one_iommu_group_are_one() {
    let tree = hosts::vfio_without_groups();
    let found = tree.discover();
    assert_eq!(each(&found["vfio"], "pci_address"), ["0000:81:02.0", "0000:81:02.1"]);
    let any = pool(&found, "any").unwrap();
    assert_eq!(each(&any["members"], "name"), ["0000:81:02.0"]);
    tree.config("[pools.p]\nclass = \"vfio\"\nselect.addresses = \"0000:81:02.1\"\n");
    let found = tree.discover();
    assert_eq!(each(&pool(&found, "p").unwrap()["members"], "name"), ["0000:81:02.0"]);
}

/// The words of a hook of a device.
fn hook(device: &Value, stage: &str) -> Vec<String> {
    let hooks = device["containerEdits"]["hooks"].as_array().unwrap();
    let found = hooks.iter().find(|hook| hook["hookName"] == stage);
    texts(&found.unwrap()["args"])
}

#[test]
fn a_pool_is_written_as_a_device_with_its_members_and_two_hooks() {
    let tree = hosts::vfio();
    tree.config("[pools.fast]\nclass = \"vfio\"\nshare = 2\nselect = { numa = 0 }\n");
    let spec = tree.spec("vfio");
    assert_eq!(spec["cdiVersion"], "0.5.0");
    let pools = tree.written_pools("vfio");
    assert_eq!(pools["cdiVersion"], "0.6.0");
    assert_eq!(pools["kind"], "onload.dev/vfio");
    assert_eq!(device_names(&pools), ["any", "fast"]);
    // What every device of the class has comes with a pool too.
    assert_eq!(pools["containerEdits"], spec["containerEdits"]);
    let fast = device(&pools, "fast");
    let annotations = json!({
        "onload.dev/pool-members": "0000:81:02.0@0 0000:81:04.0@0",
        "onload.dev/pool-share": "2",
    });
    assert_eq!(fast["annotations"], annotations);
    let edits = fast["containerEdits"].as_object().unwrap();
    assert_eq!(edits.keys().collect::<Vec<_>>(), ["hooks"]);
    assert_eq!(edits["hooks"].as_array().unwrap().len(), 2);
    for stage in ["createRuntime", "poststop"] {
        assert_eq!(hook(fast, stage), ["onload-hook", stage, "--take", "vfio:fast"]);
    }
    let member = device(&spec, "0000:81:02.0");
    assert_eq!(member["annotations"], Value::Null);
    assert!(hook(member, "poststop").contains(&"vfio:0000:81:02.0".to_owned()));
    tree.run(&["cdi", "check"]).done();
    tree.run(&["cdi", "validate"]).done();
}

/// An old engine refuses a whole file, and must not lose devices by a pool.
#[test]
fn the_specification_of_a_class_is_the_same_with_pools_and_without() {
    let mut compared = 0;
    for (_, tree) in every_host() {
        let root = tree.root();
        let generated = |args: &[&str]| {
            let specs = tempfile::tempdir().unwrap();
            let to = specs.path().to_str().unwrap();
            let args = [&["cdi", "generate", "--output-dir", to], args].concat();
            with_config(root, EVERY_CLASS, &args).done();
            specs
        };
        let (with, without) = (generated(&[]), generated(&["--max-cdi-version", "0.5.0"]));
        let read = |dir: &Path, name: &str| fs::read_to_string(dir.join(name)).unwrap();
        let names = specs_in(without.path());
        for name in &names {
            assert!(!name.contains("-pools"), "{name}");
            let file = read(with.path(), name);
            assert_eq!(file, read(without.path(), name), "{}", root.display());
            compared += 1;
        }
        let mut pools = specs_in(with.path());
        pools.retain(|name| !names.contains(name));
        for name in pools {
            let spec: Value = serde_json::from_str(&read(with.path(), &name)).unwrap();
            assert_eq!(name, format!("{}-pools.json", text(&spec["kind"]).replace('/', "-")));
            assert_eq!(spec["cdiVersion"], "0.6.0");
            let devices = spec["devices"].as_array().unwrap();
            let is_pool = |device: &Value| device["annotations"]["onload.dev/pool-share"] == "1";
            assert!(!devices.is_empty() && devices.iter().all(is_pool), "{spec}");
        }
    }
    assert!(compared > 60, "{compared}");
}

#[test]
fn the_file_of_pools_goes_with_the_last_pool() {
    const POOLS: &str = "onload.dev-rdma-pools.json";
    const ONE: &str = "[pools.fast]\nclass = \"rdma\"\n";
    let tree = hosts::rdma();
    let files = || {
        let mut files = specs_in(&tree.specs());
        files.retain(|name| name.contains("rdma"));
        files
    };
    tree.config(ONE).generate();
    assert_eq!(files(), [POOLS, "onload.dev-rdma.json"]);
    let class = fs::read(tree.specs().join("onload.dev-rdma.json")).unwrap();
    tree.config("");
    let check = tree.run(&["cdi", "check"]);
    assert_eq!(check.code, Some(1));
    let path = tree.specs().join(POOLS);
    assert_eq!(check.stdout, format!("{}: to be removed\n", path.display()));
    tree.run(&["cdi", "generate", "--kind", "nic,vfio"]).done();
    assert_eq!(files(), [POOLS, "onload.dev-rdma.json"]);
    let run = tree.run(&["cdi", "generate", "--kind", "rdma"]).done();
    assert!(run.stderr.contains(&format!("removed {}", path.display())));
    assert_eq!(files(), ["onload.dev-rdma.json"]);
    assert_eq!(fs::read(tree.specs().join("onload.dev-rdma.json")).unwrap(), class);
    let manifest = fs::read_to_string(tree.specs().join(".onload-ctk-manifest")).unwrap();
    assert!(!manifest.contains(POOLS), "{manifest}");
    tree.run(&["cdi", "check"]).done();
    // They come back with the pool, in the format of the others.
    tree.config(ONE);
    tree.run(&["cdi", "generate", "--format", "yaml"]).done();
    assert_eq!(files(), ["onload.dev-rdma-pools.yaml", "onload.dev-rdma.yaml"]);
    tree.generate();
    assert_eq!(files(), [POOLS, "onload.dev-rdma.json"]);
    // A class that is not wanted any more loses both of its files.
    tree.config(&format!("[cdi]\nkinds = [\"vfio\"]\n{ONE}")).generate();
    assert_eq!(files(), [""; 0]);
}

#[test]
fn a_class_with_a_number_of_holders_is_leased_by_name_too() {
    let tree = hosts::rdma();
    tree.generate();
    let leases = |name: &str| {
        let words = hook(device(&tree.written("rdma"), name), "createRuntime");
        let at = words.iter().enumerate().filter(|(_, word)| *word == "--lease");
        at.map(|(at, _)| words[at + 1].clone()).collect::<Vec<_>>()
    };
    assert_eq!(leases("mlx5_0"), [""; 0]);
    tree.config("[leases]\nshare = { rdma = 500 }\n").generate();
    assert_eq!(leases("mlx5_0"), ["rdma:mlx5_0"]);
    assert_eq!(leases("all"), ["rdma:mlx4_0", "rdma:mlx5_0", "rdma:rxe0"]);
    let spec = tree.written("rdma");
    assert_eq!(hook(device(&spec, "rxe0"), "poststop")[1], "poststop");
    assert_eq!(
        hook(device(&tree.written_pools("rdma"), "any"), "poststop"),
        ["onload-hook", "poststop", "--take", "rdma:any"]
    );
    let x2 = hosts::x2();
    x2.hook();
    x2.config(EVERY_CLASS).generate();
    for (class, name) in
        [("nic", "enp59s0f0np0"), ("zf", "enp59s0f0np0"), ("ptp", "ptp0"), ("profile", "latency")]
    {
        let spec = x2.written(class);
        let words = hook(device(&spec, name), "poststop");
        assert_eq!(words.last(), Some(&format!("{class}:{name}")), "{words:?}");
    }
    let nic = x2.written("nic");
    assert_eq!(device(&nic, "loopback")["containerEdits"].get("hooks"), None);
}

#[test]
fn readers_of_old_versions_get_the_devices_without_pools_and_the_operator_is_told() {
    let tree = hosts::vfio();
    tree.config("[pools.fast]\nclass = \"vfio\"\n");
    let run = tree.run(&["cdi", "generate", "--max-cdi-version", "0.5.0"]).done();
    let message = "pools are left out (vfio=any, vfio=fast): readers of CDI 0.5.0 know no annotations of a device, which list the members of a pool; raise --max-cdi-version to 0.6.0";
    assert!(run.warnings().contains(&message), "{}", run.stderr);
    assert_eq!(specs_in(&tree.specs()), ["onload.dev-vfio.json"]);
    // The check compares with what such readers get.
    tree.run(&["cdi", "check"]).done();
    let run = tree.run(&["cdi", "generate", "--max-cdi-version", "0.6.0"]).done();
    assert!(!run.stderr.contains("left out"), "{}", run.stderr);
    assert_eq!(device_names(&tree.written_pools("vfio")), ["any", "fast"]);
    // Nothing is said of pools of a kind that is not written.
    let run = tree.run(&["cdi", "generate", "--max-cdi-version", "0.5.0", "--kind", "nic"]).done();
    assert!(!run.stderr.contains("left out"), "{}", run.stderr);
}

#[test]
fn a_pool_that_is_left_out_is_not_called_free() {
    let tree = hosts::vfio();
    let args = ["cdi", "generate", "--max-cdi-version", "0.5.0"];
    tree.run(&args).done();
    let found = tree.discover();
    assert_eq!(found["pools"][0]["free"], 0);
    assert!(reason(&found, "vfio", "any").starts_with("readers of CDI 0.5.0 know no"));
    let table = tree.run(&["discover"]).done().stdout;
    let row = "vfio   any   left out  0000:81:02.0, 0000:81:04.0";
    assert!(table.contains(row), "{table}");
    tree.generate();
    let table = tree.run(&["discover"]).done().stdout;
    assert!(table.contains("2 of 2"), "{table}");
    tree.remove("/usr/bin/onload-hook");
    let table = tree.run(&["discover"]).done().stdout;
    assert!(table.contains(row), "{table}");
    let message = reason(&tree.discover(), "vfio", "any");
    let wanted = "pools are left out: the hook /usr/bin/onload-hook, which takes a member for a container, is not there; ";
    assert!(message.starts_with(wanted), "{message}");
}

#[test]
fn without_the_hook_a_host_has_no_pools_and_says_so() {
    let tree = hosts::vfio();
    tree.remove("/usr/bin/onload-hook");
    let run = tree.generate();
    assert!(run.stderr.contains(", pools are left out; install"), "{}", run.stderr);
    assert_eq!(specs_in(&tree.specs()), ["onload.dev-vfio.json"]);
}

const LEASES: &str = "/run/onload-ctk/@leases";

/// A host whose first vfio device a container of this boot has.
fn leased() -> Tree {
    let tree = hosts::vfio();
    tree.boot("this boot");
    for (name, boot) in
        [("vfio=0000:81:02.0#0", "this boot"), ("vfio=0000:81:04.0#0", "another boot")]
    {
        let lease = json!({
            "version": 1, "class": "vfio", "name": "x", "slot": 0, "boot": boot, "container": "web",
            "bundle": "/b/web", "entryPoint": "createRuntime", "since": 1_700_000_000, "facts": {},
            "holder": {"init": {"process": {"pid": 42, "startTime": 7, "pidNamespace": 1}, "cgroup": {"path": "/sys/fs/cgroup/web", "inode": 3}}},
        });
        tree.file(&format!("{LEASES}/{name}"), lease.to_string());
    }
    tree
}

#[test]
fn discover_and_the_lists_show_what_is_free_and_who_has_the_rest() {
    let tree = leased();
    tree.generate();
    let found = tree.discover();
    let any = json!({
        "class": "vfio", "name": "any", "share": 1, "free": 1,
        "members": [
            {"name": "0000:81:02.0", "numa_node": 0, "holder": "web"},
            {"name": "0000:81:04.0", "numa_node": 0, "holder": null},
        ],
    });
    assert_eq!(found["pools"], json!([any]));
    let table = tree.run(&["discover"]).done().stdout;
    let row = "vfio   any   1 of 2  0000:81:02.0 (web), 0000:81:04.0";
    assert!(table.contains(row), "{table}");

    let list = tree.run(&["cdi", "list"]).done().stdout;
    let line = "onload.dev/vfio=any  pool, 1 of 2 free: 0000:81:02.0 (web), 0000:81:04.0\n";
    assert!(list.contains(line), "{list}");
    let list = tree.run(&["cdi", "list", "--format", "json"]).done().json();
    for device in list["devices"].as_array().unwrap() {
        let wanted = if device["name"] == "onload.dev/vfio=any" { &any } else { &Value::Null };
        assert_eq!(device["pool"], *wanted, "{device}");
    }

    let leases = tree.run(&["lease", "list"]).done().stdout;
    assert!(leases.contains(row), "{leases}");
    let leases = tree.run(&["lease", "list", "--format", "json"]).done().json();
    assert_eq!(leases["pools"], json!([any]));
    assert_eq!(each(&leases["leases"], "state"), ["held", "ended"]);
}

#[test]
fn a_member_that_is_shared_is_free_until_all_its_holders_are_there() {
    let tree = leased();
    tree.config("[leases]\nshare.vfio = 2\n");
    let found = tree.discover();
    assert_eq!(found["pools"][0]["free"], 2);
    let lease = fs::read(tree.path(&format!("{LEASES}/vfio=0000:81:02.0#0"))).unwrap();
    let other = String::from_utf8(lease).unwrap().replace("web", "db");
    tree.file(&format!("{LEASES}/vfio=0000:81:02.0#1"), other);
    let found = tree.discover();
    assert_eq!(found["pools"][0]["free"], 1);
    assert_eq!(found["pools"][0]["members"][0]["holder"], "web, db");
    tree.file(&format!("{LEASES}/vfio=0000:81:04.0#0"), "{");
    let found = tree.discover();
    assert_eq!(found["pools"][0]["members"][1]["holder"], "unknown");
    let table = tree.run(&["discover"]).done().stdout;
    assert!(
        table.contains(
            "1 of 2  0000:81:02.0 (web, db), 0000:81:04.0 (unknown); each for 2 containers"
        ),
        "{table}"
    );
}

#[test]
fn who_may_not_read_leases_is_told_that_holders_are_not_known() {
    if !crate::common::is_root() {
        return crate::common::skipped("this test makes directories that only root may read");
    }
    let tree = leased();
    tree.generate();
    let run_dir = tree.path("/run/onload-ctk");
    for mode in [0o711, 0o755] {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&run_dir, fs::Permissions::from_mode(mode)).unwrap();
        let leases = tree.path(LEASES);
        fs::set_permissions(&leases, fs::Permissions::from_mode(0o700)).unwrap();
        let found = run_unprivileged(&tree, &["discover", "--format", "json"]).done();
        let pool = &found.json()["pools"][0];
        assert_eq!(pool["free"], Value::Null, "{mode:o}");
        assert_eq!(pool["members"][0]["holder"], Value::Null);
        let warning = "which members of pools are free is not known: reading leases";
        let warnings = found.warnings();
        let count = warnings.iter().filter(|line| line.starts_with(warning)).count();
        assert_eq!(count, 1, "{warnings:?}");
        assert!(found.stderr.contains("run as root"));
        let table = run_unprivileged(&tree, &["discover"]).done().stdout;
        assert!(table.contains("vfio   any   ? of 2  0000:81:02.0, 0000:81:04.0"), "{table}");
        // The list of leases itself is not empty because nobody may look.
        let refusal = run_unprivileged(&tree, &["lease", "list"]).refused();
        assert!(refusal.starts_with("reading leases"), "{refusal}");
    }
}

#[test]
fn a_device_with_the_annotations_of_no_pool_is_told_of() {
    let tree = Tree::new();
    tree.file(
        "/etc/cdi/onload.dev-vfio.json",
        r#"{"cdiVersion": "0.6.0", "kind": "onload.dev/vfio", "devices": [
            {"name": "odd", "annotations": {"onload.dev/pool-members": "a b/c", "onload.dev/pool-share": "1"},
             "containerEdits": {"env": ["A=b"]}},
            {"name": "plain", "annotations": {"example.com/x": "y"}, "containerEdits": {"env": ["A=b"]}}]}"#,
    );
    let run = tree.run(&["cdi", "list"]).done();
    let messages: Vec<&str> = run.warnings();
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(
        messages[0].contains(
            "onload.dev/vfio=odd is no pool: word 2 of onload.dev/pool-members is \"b/c\": "
        ),
        "{messages:?}"
    );
    assert!(run.stdout.contains("onload.dev/vfio=plain\n"));
}
