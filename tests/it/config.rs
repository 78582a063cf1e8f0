//! config.toml: what each key does to what is found and written, and what is said of a wrong one.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;

use crate::common::hosts::{hugepages, odd_names, opt_onload, rdma, vfio, vfio_cdev, x2, x3, x4};
use crate::common::{
    Commands, Pci, Tree, device, device_names, each, needs, on, package, reason, run, specs_in,
    texts,
};
use serde_json::{Value, json};

/// A host with a configuration.
fn with(tree: Tree, config: &str) -> Tree {
    tree.config(config);
    tree
}

fn mounts(spec: &Value) -> Vec<(String, String)> {
    let mounts = &spec["containerEdits"]["mounts"];
    let (from, to) = (each(mounts, "hostPath"), each(mounts, "containerPath"));
    from.into_iter().zip(to).collect()
}

#[test]
fn the_default_file_sets_nothing_and_its_examples_are_the_defaults() {
    let text = fs::read_to_string(package().join("packaging/config.toml")).unwrap();
    let tree = x2();
    let plain = tree.run(&["cdi", "generate", "--output", "-"]).done().stdout;
    tree.config(&text);
    assert_eq!(tree.run(&["cdi", "generate", "--output", "-"]).done().stdout, plain);
    // Each example with its comment sign taken off.
    let mut keys = BTreeSet::new();
    let mut active = String::new();
    for line in text.lines() {
        let example = line.strip_prefix('#').filter(|rest| !rest.starts_with([' ', ':']));
        if let Some((key, _)) = example.and_then(|example| example.split_once(" = ")) {
            keys.insert(key);
        }
        active.push_str(example.unwrap_or(line));
        active.push('\n');
    }
    assert_eq!(keys.len(), 6 + 21 + 4 + 1 + 1 + 2 + 4 + 7, "{keys:?}");
    tree.config(&active);
    assert_eq!(tree.run(&["cdi", "generate", "--output", "-"]).done().stdout, plain);
}

#[test]
fn ignored_interfaces_are_not_offered() {
    let tree = with(x3(), "[discover]\nignored-interfaces = [\"ens3\"]\n");
    let found = tree.discover();
    assert_eq!(found["nics"], json!([]));
    assert!(reason(&found, "nic", "ens3").starts_with("ignored: "));
    assert_eq!(device_names(&tree.spec("nic")), ["loopback"]);
    assert_eq!(found["tcpdirect"], json!(null));
    assert!(reason(&found, "zf", "tcpdirect").starts_with("no interface is offered"));
    assert!(!specs_in(&tree.specs()).contains(&"onload.dev-zf.json".to_owned()));
}

#[test]
fn an_ignored_interface_that_is_not_there_is_warned_of_once_and_changes_nothing_else() {
    let tree = x3();
    let plain = tree.discover();
    tree.config("[discover]\nignored-interfaces = [\"ens9\", \"ens3 \", \"ens9\"]\n");
    assert_eq!(tree.discover(), plain);
    for args in [&["discover"][..], &["cdi", "generate"]] {
        let run = tree.run(args).done();
        let warnings: Vec<String> = ["ens3 ", "ens9"]
            .iter()
            .map(|name| format!("[discover] ignored-interfaces names {name:?}, and this host has no interface of that name: correct it, or take it out"))
            .collect();
        assert_eq!(run.warnings(), warnings);
    }
    tree.config("[discover]\nignored-interfaces = [\"ens3\"]\n");
    assert_eq!(tree.run(&["discover"]).done().warnings(), [""; 0]);
}

#[test]
fn a_missing_interface_is_an_error_when_the_operator_says_so() {
    let config = "[discover]\nmissing-nic-is-error = true\n";
    let tree = with(Tree::with_onload(), config);
    for args in [&["discover"][..], &["cdi", "generate"]] {
        let refusal = tree.run(args).refused();
        assert!(refusal.contains("missing-nic-is-error is on"), "{refusal}");
    }
    assert_eq!(specs_in(&tree.specs()), [""; 0]);
    let tree = with(x3(), config);
    tree.run(&["discover"]).done();
    tree.generate();
}

#[test]
fn a_physical_function_with_virtual_ones_is_offered_when_the_operator_says_so() {
    let tree = with(vfio(), "[discover]\noffer-pf-with-vfs = true\n");
    assert!(device_names(&tree.spec("vfio")).contains(&"0000:81:00.0".to_owned()));
}

#[test]
fn each_of_umad_and_issm_is_offered_for_itself() {
    for (key, node, other) in [("offer-umad", "umad0", "issm0"), ("offer-issm", "issm0", "umad0")] {
        let tree = with(rdma(), &format!("[discover]\n{key} = true\n"));
        let spec = tree.spec("rdma");
        let nodes = each(&device(&spec, "mlx5_0")["containerEdits"]["deviceNodes"], "path");
        assert_eq!(nodes, ["/dev/infiniband/uverbs7", &format!("/dev/infiniband/{node}")]);
        assert_ne!(reason(&tree.discover(), "rdma", other), "");
    }
}

#[test]
fn kinds_name_what_is_written() {
    let tree = with(x2(), "[cdi]\nkinds = [\"zf\", \"nic\", \"zf\"]\n");
    tree.generate();
    assert_eq!(specs_in(&tree.specs()), ["onload.dev-nic.json", "onload.dev-zf.json"]);
    tree.config("[cdi]\nkinds = []\n");
    assert!(tree.run(&["cdi", "generate"]).refused().contains("the list of kinds is empty"));
}

#[test]
fn the_hook_stands_where_the_operator_says() {
    let tree = with(rdma(), "[cdi]\nhook-path = \"/opt/hook\"\n");
    let run = tree.generate();
    assert!(run.warnings()[0].starts_with("the hook /opt/hook is missing"), "{}", run.stderr);
    tree.program("/opt/hook", "");
    let spec = tree.spec("rdma");
    let hook = &device(&spec, "rxe0")["containerEdits"]["hooks"][0];
    assert_eq!((&hook["path"], &hook["args"][0]), (&json!("/opt/hook"), &json!("onload-hook")));
}

#[test]
fn the_preload_is_a_variable_a_file_or_nothing() {
    let env = |tree: &Tree| texts(&tree.spec("nic")["containerEdits"]["env"]);
    let file = "/usr/share/onload-ctk/ld.so.preload".to_owned();
    let tree = with(x3(), "[cdi]\npreload = \"off\"\n");
    assert_eq!(env(&tree), ["EF_FDTABLE_SIZE=524288"]);
    let tree = with(x3(), "[cdi]\npreload = \"env\"\n");
    assert_eq!(env(&tree), ["EF_FDTABLE_SIZE=524288", "LD_PRELOAD=libonload.so"]);
    let tree = with(x3(), "[cdi]\npreload = \"file\"\n");
    let refusal = tree.run(&["cdi", "generate"]).refused();
    assert!(refusal.contains(&format!("{file} is missing; install")), "{refusal}");
    assert_eq!(specs_in(&tree.specs()), [""; 0]);
    tree.file(&file, "libonload.so\n");
    let run = tree.generate();
    assert!(run.warnings()[0].contains("default-ulimits"), "{}", run.stderr);
    assert_eq!(env(&tree), ["EF_FDTABLE_SIZE=524288"]);
    let preload = (file, "/etc/ld.so.preload".to_owned());
    assert!(mounts(&tree.written("nic")).contains(&preload));
    assert!(!mounts(&tree.written("nic-plain")).contains(&preload));
}

#[test]
fn a_host_without_onload_needs_no_preload_file() {
    let tree = with(vfio(), "[cdi]\npreload = \"file\"\n");
    let run = tree.generate();
    assert!(!run.stderr.contains("preload"), "{}", run.stderr);
}

#[test]
fn the_table_of_descriptors_has_the_size_that_is_set() {
    let tree = with(x3(), "[cdi]\nfdtable-size = 65536\n");
    for class in ["nic", "nic-plain"] {
        assert_eq!(texts(&tree.spec(class)["containerEdits"]["env"])[0], "EF_FDTABLE_SIZE=65536");
    }
}

#[test]
fn memlock_is_a_number_of_bytes_or_unlimited() {
    for (text, argument) in [
        ("4294967296", "4294967296"),
        ("\"unlimited\"", "unlimited"),
        ("\"0\"", "0"),
        ("\"8G\"", "8589934592"),
        ("\"64Mi\"", "67108864"),
    ] {
        let tree = with(rdma(), &format!("[cdi]\nmemlock = {text}\n"));
        let spec = tree.spec("rdma");
        let hook = &device(&spec, "all")["containerEdits"]["hooks"][0];
        assert_eq!(hook["args"][3], argument);
    }
    for text in ["-1", "\"64MB\"", "\"1.5G\"", "\"16777216T\"", "true", "1.5"] {
        let tree = with(rdma(), &format!("[cdi]\nmemlock = {text}\n"));
        let refusal = tree.run(&["cdi", "generate"]).refused();
        let place = "config.toml: line 2: cdi.memlock: ";
        assert!(refusal.contains(place), "{refusal}");
    }
}

#[test]
fn the_socket_is_mounted_where_it_is_and_asked_for() {
    let socket = ("/run/onload".to_owned(), "/run/onload".to_owned());
    let tree = x3();
    tree.directory("/run/onload");
    for class in ["nic", "zf"] {
        assert!(!mounts(&tree.spec(class)).contains(&socket), "{class}");
    }
    tree.config("[cdi]\nonload-socket = true\n");
    for class in ["nic", "nic-plain", "zf"] {
        assert!(mounts(&tree.spec(class)).contains(&socket), "{class}");
    }
    assert!(!mounts(&tree.spec("nic-nodes")).contains(&socket));
    tree.remove("/run/onload");
    let run = tree.generate();
    assert!(run.warnings()[0].contains("/run/onload does not exist"), "{}", run.stderr);
    assert!(!mounts(&tree.written("nic")).contains(&socket));
    // TCPDirect alone needs it too.
    tree.remove("/usr/lib/x86_64-linux-gnu/libonload.so");
    let warnings = tree.generate().warnings().join("\n");
    assert!(warnings.contains("/run/onload does not exist"), "{warnings}");
}

#[test]
fn clocks_may_be_written_when_the_operator_says_so() {
    let tree = with(x2(), "[cdi]\nptp-write = true\n");
    for class in ["ptp", "pps"] {
        let spec = tree.spec(class);
        let node = &spec["devices"][0]["containerEdits"]["deviceNodes"][0];
        assert_eq!(node["permissions"], "rw", "{class}");
    }
}

/// The variables of each device but its ONLOAD_CTK_ ones, as `device VARIABLE=value`.
fn settings(spec: &Value) -> Vec<String> {
    let mut settings = Vec::new();
    for name in device_names(spec) {
        let env = texts(&device(spec, &name)["containerEdits"]["env"]);
        let own = env.iter().filter(|entry| !entry.starts_with("ONLOAD_CTK_"));
        settings.extend(own.map(|entry| format!("{name} {entry}")));
    }
    settings
}

#[test]
fn one_interface_by_name_is_the_one_that_programs_use_when_the_operator_says_so() {
    let tree = x4();
    for class in ["nic", "nic-plain", "nic-nodes", "zf"] {
        assert_eq!(settings(&tree.spec(class)), [""; 0], "{class}");
    }
    tree.config("[cdi]\nselect-interface = true\n");
    for class in ["nic", "nic-plain"] {
        let wanted =
            ["ens4f0 EF_INTERFACE_WHITELIST=ens4f0", "ens4f1 EF_INTERFACE_WHITELIST=ens4f1"];
        assert_eq!(settings(&tree.spec(class)), wanted, "{class}");
    }
    assert_eq!(settings(&tree.spec("nic-nodes")), [""; 0]);
    let wanted = ["ens4f0 ZF_ATTR=interface=ens4f0", "ens4f1 ZF_ATTR=interface=ens4f1"];
    assert_eq!(settings(&tree.spec("zf")), wanted);
    assert_eq!(tree.generate().warnings(), [""; 0]);
    tree.config("[cdi]\nselect-interface = \"ens4f0\"\n");
    let refusal = tree.run(&["cdi", "generate"]).refused();
    let place = "config.toml: line 2: cdi.select-interface: expected a boolean";
    assert!(refusal.contains(place), "{refusal}");
}

#[test]
fn an_interface_that_goes_by_its_address_is_used_by_its_name() {
    let tree = with(odd_names(), "[cdi]\nselect-interface = true\n");
    let nic = settings(&tree.spec("nic"));
    for wanted in [
        "10000:e1:00.0 EF_INTERFACE_WHITELIST=all",
        "10000:e1:02.0 EF_INTERFACE_WHITELIST=a+",
        "Eth-1.a_b EF_INTERFACE_WHITELIST=Eth-1.a_b",
    ] {
        assert!(nic.contains(&wanted.to_owned()), "{nic:?}");
    }
    let zf = settings(&tree.spec("zf"));
    assert!(zf.contains(&"10000:e1:02.0 ZF_ATTR=interface=a+".to_owned()));
}

#[test]
fn an_interface_whose_name_would_end_an_attribute_is_not_selected_with_a_warning() {
    let tree = x3();
    let function = tree.pci(Pci::network("0000:5e:00.0", "1924:0b03", "sfc"));
    tree.interface(&function, "a;b");
    tree.auxiliary(&function, "sfc.onload.7", "sfc_resource.ef10", Some("1"));
    tree.config("[cdi]\nselect-interface = true\n");
    assert_eq!(settings(&tree.spec("zf")), ["ens3 ZF_ATTR=interface=ens3"]);
    let wanted = ["0000:5e:00.0 EF_INTERFACE_WHITELIST=a;b", "ens3 EF_INTERFACE_WHITELIST=ens3"];
    assert_eq!(settings(&tree.spec("nic")), wanted);
    let run = tree.generate();
    assert!(run.warnings()[0].contains("zf 0000:5e:00.0 comes without ZF_ATTR"), "{}", run.stderr);
    assert_eq!(run.warnings().len(), 1, "{}", run.stderr);
}

#[test]
fn vfio_devices_come_with_vhost_and_tun_when_the_operator_says_so() {
    let paths = |spec: &Value| each(&spec["containerEdits"]["deviceNodes"], "path");
    for (tree, shared) in
        [(vfio(), vec!["/dev/vfio/vfio"]), (vfio_cdev(), vec!["/dev/vfio/vfio", "/dev/iommu"])]
    {
        tree.node("/dev/vhost-net", 10, 238).node("/dev/net/tun", 10, 200);
        let before = tree.spec("vfio");
        assert_eq!(paths(&before), shared);
        tree.config("[cdi]\nvhost-net = true\n");
        let spec = tree.spec("vfio");
        let mut wanted = shared.clone();
        wanted.extend(["/dev/vhost-net", "/dev/net/tun"]);
        assert_eq!(paths(&spec), wanted);
        let nodes = spec["containerEdits"]["deviceNodes"].as_array().unwrap();
        assert!(nodes.iter().all(|node| node["permissions"] == "rw"));
        // A pool has no nodes of its own.
        for name in device_names(&spec).into_iter().filter(|name| name != "any") {
            let hooks = &device(&spec, &name)["containerEdits"]["hooks"];
            for hook in hooks.as_array().unwrap() {
                let args = texts(&hook["args"]);
                for expect in
                    ["/dev/vhost-net=misc:vhost-net#10:238", "/dev/net/tun=misc:tun#10:200"]
                {
                    assert!(args.contains(&expect.to_owned()), "{name}: {args:?}");
                }
            }
        }
        let run = tree.generate();
        assert!(!run.stderr.contains("vhost"), "{}", run.stderr);
    }
}

#[test]
fn what_a_host_lacks_of_vhost_and_tun_is_left_out_with_a_warning() {
    let tree = with(vfio(), "[cdi]\nvhost-net = true\n");
    tree.node("/dev/net/tun", 10, 200);
    let warned = |reason: &str| {
        for arguments in [&["discover"][..], &["cdi", "generate"]] {
            let message = tree.run(arguments).done().stderr;
            let wanted = format!("vfio devices come without /dev/vhost-net: {reason}");
            assert!(message.contains(&wanted), "{message}");
        }
        let spec = tree.written("vfio");
        let wanted = ["/dev/vfio/vfio", "/dev/net/tun"];
        assert_eq!(each(&spec["containerEdits"]["deviceNodes"], "path"), wanted);
        assert!(!spec.to_string().contains("vhost"));
    };
    warned("/dev/vhost-net does not exist; load its driver");
    tree.node("/dev/vhost-net", 10, 241);
    warned("/dev/vhost-net is 10:241, but the device is 10:238; remove the stale node");
    tree.without_node("/dev/vhost-net").file("/dev/vhost-net", "");
    warned("/dev/vhost-net is no device node; remove it and reload its driver");
}

#[test]
fn a_host_without_vfio_devices_is_not_asked_for_vhost() {
    let tree = with(x2(), "[cdi]\nvhost-net = true\n");
    assert_eq!(tree.generate().warnings(), [""; 0]);
}

#[test]
fn hugetlbfs_is_mounted_below_the_directory_that_is_set() {
    let tree = with(hugepages(), "[cdi]\nhugepages-dir = \"/mnt\"\n");
    let spec = tree.spec("hugepages");
    let mount = &device(&spec, "2Mi")["containerEdits"]["mounts"][0];
    assert_eq!(mount["containerPath"], "/mnt/hugepages-2Mi");
}

#[test]
fn libraries_come_from_and_go_to_the_directories_that_are_set() {
    let config = "[cdi]\nhost-library-dirs = [\"/usr/lib/x86_64-linux-gnu\"]\n";
    let tree = with(opt_onload(), config);
    assert_eq!(tree.discover()["onload"]["library_matches"], false);
    tree.config(
        "[cdi]\nhost-library-dirs = [\"/opt/onload/usr/lib64\"]\n\
         container-library-dirs = [\"/lib/a\", \"/lib/b\"]\n",
    );
    let found = mounts(&tree.spec("nic"));
    for dir in ["/lib/a", "/lib/b"] {
        let pair = ("/opt/onload/usr/lib64/libonload.so".to_owned(), format!("{dir}/libonload.so"));
        assert!(found.contains(&pair), "{found:?}");
    }
    assert!(!found.iter().any(|(_, to)| to.starts_with("/usr/lib64")));
    assert!(mounts(&tree.spec("zf")).iter().any(|(_, to)| to == "/lib/b/libonload_zf.so.1"));
}

#[test]
fn tools_come_from_and_go_to_the_directories_that_are_set() {
    let tool = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    let tree = with(x3(), "[cdi]\ncontainer-tool-dir = \"/opt/bin\"\n");
    assert!(mounts(&tree.spec("nic")).contains(&tool("/usr/bin/onload", "/opt/bin/onload")));
    assert!(mounts(&tree.spec("zf")).contains(&tool("/usr/bin/zf_debug", "/opt/bin/zf_debug")));
    tree.program("/opt/tools/onload_fuser", "#!/bin/sh\n");
    tree.config("[cdi]\nhost-tool-dir = \"/opt/tools\"\n");
    assert_eq!(tree.discover()["onload"]["tools"], json!(["onload_fuser"]));
    let path = "/opt/tools/onload_fuser";
    assert!(mounts(&tree.spec("nic")).contains(&tool(path, path)));
    for key in ["host-tool-dir", "container-tool-dir"] {
        tree.config(&format!("[cdi]\n{key} = \"\"\n"));
        for class in ["nic", "zf"] {
            let found = mounts(&tree.spec(class));
            assert!(!found.iter().any(|(from, _)| from.contains("/bin/")), "{key} {found:?}");
        }
    }
}

#[test]
fn profiles_come_from_and_go_to_the_directories_that_are_set() {
    let usual = "/usr/libexec/onload/profiles".to_owned();
    let tree = with(x3(), "[cdi]\ncontainer-profile-dir = \"/opt/profiles\"\n");
    assert!(mounts(&tree.spec("nic")).contains(&(usual.clone(), "/opt/profiles".to_owned())));
    tree.config("[cdi]\ncontainer-profile-dir = \"\"\n");
    assert!(!mounts(&tree.spec("nic")).iter().any(|(from, _)| *from == usual));
    assert!(device_names(&tree.spec("profile")).contains(&"latency".to_owned()));
    tree.file("/etc/profiles/own.opf", "onload_set EF_A 1\n");
    tree.config("[cdi]\nhost-profile-dir = \"/etc/profiles\"\n");
    assert_eq!(device_names(&tree.spec("profile")), ["own"]);
    tree.config("[cdi]\nhost-profile-dir = \"\"\n");
    tree.generate();
    assert!(!specs_in(&tree.specs()).contains(&"onload.dev-profile.json".to_owned()));
}

#[test]
fn device_nodes_come_from_and_go_to_the_directories_that_are_set() {
    let tree = with(rdma(), "[cdi]\ncontainer-device-dir = \"/run/dev\"\n");
    let spec = tree.spec("rdma");
    let roce = &device(&spec, "mlx5_0")["containerEdits"];
    let node = json!({
        "path": "/run/dev/infiniband/uverbs7", "hostPath": "/dev/infiniband/uverbs7",
        "permissions": "rw",
    });
    assert_eq!(roce["deviceNodes"][0], node);
    assert_eq!(spec["cdiVersion"], "0.5.0");
    let expected = "/run/dev/infiniband/uverbs7=rdma:mlx5_0@0000:3b:00.0#231:199";
    assert_eq!(roce["hooks"][0]["args"][5], expected);
    tree.config("[cdi]\nhost-device-dir = \"/srv/dev\"\n");
    assert!(reason(&tree.discover(), "rdma", "mlx5_0").contains("does not exist"));
    tree.node("/srv/dev/infiniband/uverbs7", 231, 199);
    let spec = tree.spec("rdma");
    let node = &device(&spec, "mlx5_0")["containerEdits"]["deviceNodes"][0];
    assert_eq!(node["hostPath"], "/srv/dev/infiniband/uverbs7");
    assert_eq!(node["path"], "/dev/infiniband/uverbs7");
    // Both alike: the one path is enough.
    tree.config("[cdi]\nhost-device-dir = \"/srv/dev\"\ncontainer-device-dir = \"/srv/dev\"\n");
    let spec = tree.spec("rdma");
    let node = &device(&spec, "mlx5_0")["containerEdits"]["deviceNodes"][0];
    assert_eq!(node, &json!({"path": "/srv/dev/infiniband/uverbs7", "permissions": "rw"}));
}

#[test]
fn tools_of_an_incident_warn_of_wrong_lines_and_use_the_rest() {
    let tree = x3();
    tree.generate();
    tree.config(
        "[annotations]\nallows = []\n[cdi]\npreload = \"yes\"\n[pools.fast]\nclass = \"nic\"\n",
    );
    for args in [
        &["topology"][..],
        &["metrics"],
        &["lease", "list"],
        &["lease", "release", "vfio=0000:81:10.0"],
    ] {
        let run = tree.run(args).done();
        let warnings = run.warnings();
        for wanted in [
            "config.toml: line 2: unknown key \"annotations.allows\"; did you mean \"annotations.allow\"?",
            "config.toml: line 4: cdi.preload: unknown variant `yes`",
        ] {
            assert!(warnings.iter().any(|line| line.contains(wanted)), "{warnings:#?}");
        }
    }
    let checks = tree.run(&["doctor", "--format", "json"]).answered_no().json();
    let checks = checks["checks"].as_array().unwrap();
    let lines: Vec<String> = checks
        .iter()
        .filter(|check| check["name"] == "config")
        .map(|check| crate::common::text(&check["finding"]))
        .collect();
    assert!(lines[0].contains("line 2: ") && lines[1].contains("line 4: "), "{lines:?}");
    tree.run(&["cdi", "generate"]).refused();
    tree.config("not toml");
    assert!(tree.run(&["topology"]).done().warnings()[0].contains("config.toml: line 1: "));
}

/// udev starts it, and nobody else brings back what an ended container has left.
#[test]
fn what_containers_left_is_brought_back_whatever_is_wrong_with_the_configuration() {
    if !needs::mount_namespace("a /run without leases") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.toml");
    for (text, wanted) in [
        ("[cdi]\npreload = \"yes\"\n", "line 2: cdi.preload: unknown variant `yes`"),
        ("[cdi]\npreloads = 1\n", "line 2: unknown key \"cdi.preloads\""),
        ("not toml", "line 1: "),
    ] {
        fs::write(&config, text).unwrap();
        // It works on this machine alone, so it is shown a /run without leases.
        let script = "mount -t tmpfs none /run && exec \"$@\"";
        let mut unshare = std::process::Command::new("unshare");
        unshare.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
        unshare.arg(env!("CARGO_BIN_EXE_onload-ctk")).arg("--config").arg(&config);
        let restored = run(unshare.args(["lease", "restore"])).done();
        assert!(restored.stderr.contains(wanted), "{}", restored.stderr);
        assert!(restored.stderr.ends_with("nothing to restore\n"), "{}", restored.stderr);
    }
}

#[test]
fn a_wrong_key_is_refused_by_every_command_with_the_file_and_the_line() {
    let config = "[cdi]\nfdtable_size = 1\n";
    let wanted = "line 2: unknown key \"cdi.fdtable_size\"; did you mean \"cdi.fdtable-size\"?";
    let tree = x3();
    tree.config(config);
    let path = tree.path("/etc/onload-ctk/config.toml");
    let wanted = format!("reading configuration {}: {wanted}", path.display());
    for args in [&["discover"][..], &["cdi", "generate"], &["cdi", "check"], &["cdi", "list"]] {
        assert_eq!(tree.run(args).refused(), wanted);
    }
    assert_eq!(specs_in(&tree.specs()), [""; 0]);
}

#[test]
fn a_named_file_is_read_instead_of_the_hosts_own() {
    let tree = with(x3(), "[cdi]\nkinds = [\"nic\"]\n");
    let dir = tempfile::tempdir().unwrap();
    let named = dir.path().join("c.toml");
    fs::write(&named, "[cdi]\nkinds = [\"zf\"]\n").unwrap();
    run(on(tree.root(), &["cdi", "generate", "--config"]).arg(&named)).done();
    assert_eq!(specs_in(&tree.specs()), ["onload.dev-zf.json"]);
    fs::write(&named, "[cdi]\nkind = \"x\"\n").unwrap();
    let refusal = run(on(tree.root(), &["discover", "--config"]).arg(&named)).refused();
    assert!(
        refusal.starts_with(&format!("reading configuration {}: line 2", named.display())),
        "{refusal}"
    );
}

#[test]
fn a_configuration_that_is_no_text_or_no_file_is_refused() {
    let tree = x3();
    tree.file("/etc/onload-ctk/config.toml", [0xff, 0xfe]);
    assert!(tree.run(&["discover"]).refused().contains("config.toml: not UTF-8"));
    tree.remove("/etc/onload-ctk/config.toml").directory("/etc/onload-ctk/config.toml");
    assert!(tree.run(&["discover"]).refused().contains("config.toml: Is a directory"));
    tree.remove("/etc/onload-ctk/config.toml");
    tree.file("/etc/onload-ctk/config.toml", vec![b'#'; 8 << 20]);
    assert!(tree.run(&["discover"]).refused().contains("longer than"));
}
