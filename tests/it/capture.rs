//! `discover --capture`: what goes into a capture and what does not, and that discovery gives the
//! same answer for it as for the host.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::hosts::{rdma, vfio, x2};
use crate::common::{
    Commands, Pci, Run, Tree, every_host, names_in, needs, on, run, scratch, text,
};
use serde_json::Value;

/// A capture, and the host that it is when it is unpacked.
struct Capture {
    directory: tempfile::TempDir,
    run: Run,
}

impl Capture {
    #[track_caller]
    fn run(root: &Path, args: &[&str]) -> Capture {
        let directory = scratch();
        let file = directory.path().join("host.tar.zst");
        let mut command = on(root, &["discover", "--format", "json", "--capture"]);
        let run = run(command.arg(&file).args(args)).done();
        let capture = Capture { directory, run };
        tar::Archive::new(capture.tar().as_slice()).unpack(capture.root()).unwrap();
        capture
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("host.tar.zst")
    }

    fn packed(&self) -> Vec<u8> {
        fs::read(self.file()).unwrap()
    }

    fn tar(&self) -> Vec<u8> {
        let packed = self.packed();
        let mut decoder = ruzstd::decoding::StreamingDecoder::new(packed.as_slice()).unwrap();
        let mut tar = Vec::new();
        decoder.read_to_end(&mut tar).unwrap();
        tar
    }

    /// Its entries by name, with the content of files and the targets of links.
    fn entries(&self) -> BTreeMap<String, String> {
        let tar = self.tar();
        let mut archive = tar::Archive::new(tar.as_slice());
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().to_str().unwrap().to_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            let link = entry.link_name().unwrap();
            let content = link.map_or_else(
                || String::from_utf8_lossy(&content).into_owned(),
                |target| format!("-> {}", target.display()),
            );
            (name, content)
        });
        entries.collect()
    }

    fn holds(&self, text: &str) -> bool {
        memchr::memmem::find(&self.tar(), text.as_bytes()).is_some()
    }
}

/// What discovery says of a host: the object, and what it says to people.
#[track_caller]
fn answer(root: &Path) -> (Value, String) {
    let run = run(&mut on(root, &["discover", "--format", "json"])).done();
    (run.json(), run.stderr.replace(&*root.to_string_lossy(), "ROOT"))
}

/// The same without what masks change.
fn without_masked(mut object: Value) -> Value {
    for device in object["rdma"].as_array_mut().unwrap() {
        assert!(device["node_guid"].is_string() || device["node_guid"].is_null());
        device["node_guid"] = Value::Null;
    }
    for clock in object["ptp"].as_array_mut().unwrap() {
        let name = clock["clock_name"].as_str().unwrap_or_default();
        if name.len() == 12 && name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            clock["clock_name"] = Value::Null;
        }
    }
    object
}

/// Asserts that discovery says the same of both hosts.
#[track_caller]
fn assert_same(found: &Path, wanted: &Path, name: &str) {
    same(&answer(found), &answer(wanted), name);
}

#[track_caller]
fn same(found: &(Value, String), wanted: &(Value, String), name: &str) {
    let lines = |(object, warnings): &(Value, String)| format!("{object:#}\n{warnings}");
    assert_same_text(&lines(found), &lines(wanted), name);
}

#[track_caller]
fn assert_same_text(found: &str, wanted: &str, name: &str) {
    if found != wanted {
        let diff = similar::TextDiff::from_lines(wanted, found);
        panic!("{}", diff.unified_diff().header(name, "what came out"));
    }
}

/// The specifications that are made of a host.
#[track_caller]
fn specifications(root: &Path) -> String {
    run(&mut on(root, &["cdi", "generate", "--output", "-"])).done().stdout
}

#[test]
fn discovery_says_of_an_unmasked_capture_what_it_says_of_the_host() {
    for (name, tree) in every_host() {
        let root = tree.root();
        let capture = Capture::run(root, &["--no-mask"]);
        assert_eq!(capture.run.json(), answer(root).0, "{name}");
        assert_same(&capture.root(), root, name);
        let made = specifications(&capture.root());
        assert_same_text(&made, &specifications(root), name);
    }
}

#[test]
fn discovery_says_of_a_masked_capture_the_same_but_for_the_masks() {
    for (name, tree) in every_host() {
        let root = tree.root();
        let capture = Capture::run(root, &[]);
        let masked = |(object, warnings)| (without_masked(object), warnings);
        same(&masked(answer(&capture.root())), &masked(answer(root)), name);
        let made = specifications(&capture.root());
        assert_same_text(&made, &specifications(root), name);
    }
}

#[test]
fn a_capture_of_a_capture_is_the_capture() {
    for (name, tree) in every_host() {
        let root = tree.root();
        let first = Capture::run(root, &[]);
        let second = Capture::run(&first.root(), &[]);
        let lines = |capture: &Capture| format!("{:#?}", capture.entries());
        assert_same_text(&lines(&second), &lines(&first), name);
        assert_eq!(second.packed(), first.packed(), "{name}");
    }
}

#[test]
fn the_same_host_gives_the_same_bytes_whoever_takes_them_and_when() {
    let tree = x2();
    let capture = Capture::run(tree.root(), &[]);
    let ptp = tree.path("/sys/class/ptp");
    let time = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
    fs::File::open(ptp).unwrap().set_times(time).unwrap();
    assert_eq!(Capture::run(tree.root(), &[]).packed(), capture.packed());
    let tar = capture.tar();
    let mut archive = tar::Archive::new(tar.as_slice());
    let mut names = Vec::new();
    for entry in archive.entries().unwrap() {
        let entry = entry.unwrap();
        let header = entry.header();
        let facts = [header.uid(), header.gid(), header.mtime()];
        assert_eq!(facts.map(Result::unwrap), [0; 3]);
        names.push(entry.path().unwrap().into_owned());
    }
    assert_eq!(names[0], Path::new("dev.table"));
    assert!(names[1..].is_sorted(), "{names:?}");
}

#[test]
fn what_discovery_does_not_look_at_is_not_in_a_capture() {
    let tree = x2();
    tree.file("/etc/hostname", "db1.example\n");
    tree.file("/etc/hosts", "10.1.2.3 db2.example\n");
    tree.file("/etc/ssh/ssh_host_ed25519_key", "PRIVATE KEY\n");
    tree.file("/root/.ssh/id_ed25519", "PRIVATE KEY\n");
    tree.file("/proc/cmdline", "root=UUID=6e1a iscsi=10.1.2.3\n");
    tree.file(
        "/proc/mounts",
        "filer.example:/home /home nfs rw,addr=10.1.2.3 0 0\n\
         none /dev/hugepages hugetlbfs rw,gid=1234,pagesize=2M 0 0\n",
    );
    tree.attribute("/sys/class/dmi/id/product_serial", "SERIAL123");
    let function = "/sys/devices/pci0000:3b/0000:3b:00.0";
    tree.attribute(&format!("{function}/vpd"), "SERIAL456");
    tree.attribute(&format!("{function}/power/control"), "auto");
    tree.file("/usr/lib/x86_64-linux-gnu/libsecret.so.1", "SECRET");
    tree.file("/usr/libexec/onload/profiles/README", "SECRET");
    tree.program("/usr/bin/onload_private", "SECRET");
    tree.config("# PRIVATE remark\n[annotations]\nallow = [\"nic\"]\n");
    let capture = Capture::run(tree.root(), &[]);
    for secret in [
        "example",
        "PRIVATE",
        "10.1.2.3",
        "MemTotal",
        "SERIAL",
        "SECRET",
        "UUID",
        "libsecret",
        "annotations",
        "hostname",
        "vpd",
        "power",
        "onload_private",
        "README",
    ] {
        assert!(!capture.holds(secret), "{secret}");
    }
    let entries = capture.entries();
    assert_eq!(entries["proc/mounts"], "hugetlbfs /dev/hugepages hugetlbfs rw,pagesize=2M 0 0\n");
    assert!(!entries.contains_key("etc"), "{:?}", entries.keys());
}

#[test]
fn remarks_and_addresses_in_profiles_stay_at_home() {
    let tree = x2();
    let profile = "# asked for by Ann\nonload_set EF_X 10.1.2.3\nonload_set EF_Y $HOME\n";
    tree.file("/usr/libexec/onload/profiles/ours.opf", profile);
    let capture = Capture::run(tree.root(), &[]);
    let kept = "#\nonload_set EF_X 192.0.2.1\nonload_set EF_Y $HOME\n";
    let entries = capture.entries();
    assert_eq!(entries["usr/libexec/onload/profiles/ours.opf"], kept);
    let reason = crate::common::reason(&answer(&capture.root()).0, "profile", "ours");
    assert!(reason.starts_with("ours.opf line 3"), "{reason}");
}

#[test]
fn hardware_addresses_and_guids_are_masked_and_the_vendor_stays() {
    let tree = rdma();
    let capture = Capture::run(tree.root(), &[]);
    for own in ["aa:bb0c", "f9:bf", "f9bf", "00aa"] {
        assert!(!capture.holds(own), "{own}");
    }
    let (found, _) = answer(&capture.root());
    let guids: Vec<String> =
        found["rdma"].as_array().unwrap().iter().map(|d| text(&d["node_guid"])).collect();
    assert!(guids.iter().all(|guid| *guid == guids[0]), "{guids:?}");
    assert!(guids[0].starts_with("b8ce:f603:00"), "{guids:?}");
    let devices = found["rdma"].as_array().unwrap();
    let both = devices.iter().find(|d| d["name"] == "mlx4_0").unwrap();
    // By the GUIDs of the ports alone: either interface says that it is on the first port.
    assert_eq!(both["ports"][0]["netdevs"], serde_json::json!(["ib1"]));
    assert_eq!(both["ports"][1]["netdevs"], serde_json::json!(["ib0"]));
    let open = Capture::run(tree.root(), &["--no-mask"]);
    assert!(open.holds("00:02:c9:03:00:f9:bf:a1"));
}

#[test]
fn the_interfaces_of_rdma_ports_are_the_same_in_a_capture() {
    let interfaces = |root: &Path| {
        let (found, _) = answer(root);
        let devices = found["rdma"].as_array().unwrap();
        devices.iter().find(|device| device["name"] == "mlx5_0").unwrap()["netdevs"].clone()
    };
    let tree = rdma();
    let table = "mlx5_0 1 ens1\n";
    tree.file("/rdma.table", table);
    let capture = Capture::run(tree.root(), &[]);
    assert_eq!(capture.entries()["rdma.table"], table);
    assert_eq!(interfaces(&capture.root()), serde_json::json!(["ens1"]));
}

#[test]
fn an_interface_that_is_named_by_its_address_is_named_by_its_mask() {
    let tree = Tree::with_onload();
    for (index, name) in ["enx000f537a1121", "enx000f537a1120"].iter().enumerate() {
        let address = format!("0000:3b:00.{index}");
        let function = tree.pci(Pci::network(&address, "1924:0b03", "sfc"));
        let directory = tree.interface(&function, name);
        tree.attribute(&format!("{directory}/address"), &format!("00:0f:53:7a:11:2{}", 1 - index));
        tree.auxiliary(&function, &format!("sfc.onload.{index}"), "sfc_resource.ef10", Some("1"));
    }
    tree.config("[discover]\nignored-interfaces = [\"enx000f537a1121\"]\n");
    let capture = Capture::run(tree.root(), &[]);
    assert!(!capture.holds("7a11") && !capture.holds("7a:11"));
    let (found, _) = answer(&capture.root());
    assert_eq!(crate::common::each(&found["nics"], "name"), ["enx000f53000001"]);
    assert_eq!(
        crate::common::reason(&found, "nic", "enx000f53000002"),
        "ignored: it is in [discover] ignored-interfaces; remove it there to offer it"
    );
    let address = capture.root().join("sys/class/net/enx000f53000001/address");
    assert_eq!(fs::read_to_string(address).unwrap(), "00:0f:53:00:00:01\n");
}

#[test]
fn the_configuration_that_held_comes_along() {
    let tree = rdma();
    let (directory, config) = (tempfile::tempdir().unwrap(), "[discover]\noffer-umad = true\n");
    let named = directory.path().join("named.toml");
    fs::write(&named, config).unwrap();
    tree.config("[discover]\noffer-umad = false\noffer-issm = true\n");
    let capture = Capture::run(tree.root(), &["--config", named.to_str().unwrap()]);
    assert_eq!(capture.entries()["etc/onload-ctk/config.toml"], config);
    let (found, _) = answer(&capture.root());
    assert_eq!(without_masked(found), without_masked(capture.run.json()));
    assert!(capture.run.stdout.contains("/dev/infiniband/umad0"));
}

#[test]
fn a_library_of_any_size_is_captured_as_a_small_stand_in() {
    let tree = x2();
    let library = tree.path("/usr/lib/x86_64-linux-gnu/libonload.so");
    let mut content = fs::read(&library).unwrap();
    for round in 0..200_000_u64 {
        content.extend(round.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
    content.extend(b"PROPRIETARY");
    fs::write(&library, content).unwrap();
    let capture = Capture::run(tree.root(), &[]);
    assert!(!capture.holds("PROPRIETARY"));
    assert!(capture.packed().len() < 64 * 1024, "{}", capture.packed().len());
    let (found, _) = answer(&capture.root());
    assert_eq!(found, answer(tree.root()).0);
    assert_eq!(found["onload"]["library_matches"], true);
}

#[test]
fn files_that_are_not_what_they_should_be_are_captured_as_such() {
    let tree = x2();
    let function = "/sys/devices/pci0000:3b/0000:3b:00.0";
    tree.file(&format!("{function}/numa_node"), [0xff, b'S', b'X']);
    tree.file(&format!("{function}/class"), "y".repeat(5000));
    tree.program("/usr/bin/onload_helper", "neither\n");
    tree.program("/usr/bin/orm_json", "#!/usr/bin/perl -w\nsecret\n");
    tree.program("/usr/bin/onload_fuser", b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0");
    tree.remove("/usr/bin/zf_stackdump").directory("/usr/bin/zf_stackdump");
    tree.file("/usr/libexec/onload/profiles/b.opf", [0xff, 0xfe]);
    tree.link("/usr/lib/x86_64-linux-gnu/libonload_gone.so", "nowhere.so");
    tree.link("/sys/class/infiniband/gone", "/sys/devices/gone");
    tree.file("/dev/ptp9", "");
    tree.attribute("/sys/class/ptp/ptp9/dev", "247:9");
    let capture = Capture::run(tree.root(), &[]);
    assert_same(&capture.root(), tree.root(), "");
    assert!(!capture.holds("yyy") && !capture.holds("secret"));
}

#[test]
fn what_stands_below_an_interface_is_captured() {
    let tree = x2();
    let function = "/sys/devices/pci0000:3b/0000:3b:00.0";
    let state = [("operstate", "up")];
    tree.class_device("net", "/sys/devices/virtual", "bond0", &state);
    tree.link(
        "/sys/devices/virtual/net/bond0/lower_enp59s0f0np0",
        &format!("{function}/net/enp59s0f0np0"),
    );
    let (found, _) = answer(tree.root());
    assert!(crate::common::reason(&found, "nic", "bond0").ends_with("; request enp59s0f0np0"));
    let capture = Capture::run(tree.root(), &[]);
    assert_same(&capture.root(), tree.root(), "");
}

#[test]
fn a_capture_can_be_unpacked_anywhere_since_its_links_stay_in_it() {
    let tree = Tree::new();
    tree.driver(crate::common::CHECKSUM).libraries("/srv/onload/lib").tools("");
    tree.link("/usr/lib64", "/srv/onload/lib");
    tree.link("/usr/lib/x86_64-linux-gnu", "../../../../../../srv/onload/lib");
    let capture = Capture::run(tree.root(), &[]);
    assert_same(&capture.root(), tree.root(), "");
    let entries = capture.entries();
    assert_eq!(entries["usr/lib64"], "-> ../srv/onload/lib");
    assert_eq!(entries["usr/lib/x86_64-linux-gnu"], "-> ../../srv/onload/lib");
    for (name, content) in &entries {
        assert!(!name.starts_with('/') && !content.starts_with("-> /"), "{name} {content}");
    }
}

#[test]
fn the_tar_of_the_system_unpacks_it() {
    if !needs::programs(&["tar", "zstd"]) {
        return;
    }
    let tree = vfio();
    let capture = Capture::run(tree.root(), &[]);
    let root = capture.directory.path().join("by-tar");
    fs::create_dir(&root).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(&root).arg("-xf").arg(capture.file());
    let output = tar.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(answer(&root), answer(tree.root()));
}

#[test]
fn a_capture_replaces_an_older_one_whole_or_not_at_all() {
    let tree = rdma();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("host.tar.zst");
    fs::write(&file, "old").unwrap();
    let mut command = on(tree.root(), &["discover"]);
    let run_once = run(command.env("ONLOAD_CTK_DISCOVER_CAPTURE", &file)).done();
    assert!(run_once.stdout.contains("mlx4_0"), "{}", run_once.stdout);
    assert!(run_once.stderr.contains("GUIDs masked"), "{}", run_once.stderr);
    assert_eq!(fs::read(&file).unwrap(), Capture::run(tree.root(), &[]).packed());
    assert_eq!(names_in(directory.path()), ["host.tar.zst"]);
    let nowhere = directory.path().join("nowhere/host.tar.zst");
    let error = run(on(tree.root(), &["discover", "--capture"]).arg(&nowhere)).refused();
    assert!(error.contains("nowhere"), "{error}");
    assert_eq!(names_in(directory.path()), ["host.tar.zst"]);
}

#[test]
fn without_a_capture_nothing_is_noted_or_written() {
    let tree = rdma();
    let before = names_in(tree.root());
    run(&mut on(tree.root(), &["discover"])).done();
    let line = run(&mut on(tree.root(), &["discover", "--no-mask"])).refused();
    assert!(line.contains("--capture"), "{line}");
    assert_eq!(names_in(tree.root()), before);
}

/// Two GPUs with Data Direct functions beside them, and their cards elsewhere.
fn data_direct() -> Tree {
    let tree = Tree::new();
    let mut text = String::new();
    for (root, uuid) in [("0008", "bb"), ("0009", "aa")] {
        text += &format!(
            "pci{root}:00 0\n  bridge {root}:00:00.0\n    dma {root}:03:00.0 V3={uuid}\n    gpu {root}:06:00.0 10de:31c2\n"
        );
    }
    text += "pci0000:00 0\n  nic 0000:03:00.0 mlx5_0 400 V3=aa\npci0002:00 0\n  nic 0002:03:00.0 mlx5_1 400 V3=bb\n";
    tree.machine(&text);
    tree
}

#[test]
fn a_capture_of_a_host_with_gpus_has_no_secret_of_a_cdi_file() {
    let tree = data_direct();
    let spec = |kind: &str| {
        format!(
            "cdiVersion: 0.6.0\nkind: {kind}\ndevices:\n- name: \"0\"\n  containerEdits:\n    env: [TOKEN=SECRET]\n    deviceNodes: [{{path: /dev/nvidia0}}]\ncontainerEdits:\n  hooks:\n  - {{hookName: createContainer, path: /bin/hook, args: [hook, SECRET]}}\n"
        )
    };
    tree.file("/etc/cdi/nvidia.yaml", spec("nvidia.com/gpu"));
    tree.file("/etc/cdi/other.yaml", spec("vendor.com/device"));
    let information = "GPU UUID: GPU-SECRET\nDevice Minor: 0\n";
    tree.file("/proc/driver/nvidia/gpus/0008:06:00.0/information", information);
    for args in [&[][..], &["--no-mask"]] {
        let capture = Capture::run(tree.root(), args);
        assert!(!capture.holds("SECRET"), "{args:?}");
        let names = |root: &Path| answer(root).0["near_gpus"].clone();
        assert_eq!(names(&capture.root()), names(tree.root()), "{args:?}");
    }
}

#[test]
fn what_pairs_gpus_with_their_cards_is_captured_and_nothing_else_of_a_card() {
    let tree = data_direct();
    let near = |root: &Path| {
        let found = run(&mut on(root, &["discover", "--format", "json"])).done();
        found.json()["near_gpus"].clone()
    };
    let expected = near(tree.root());
    assert_eq!(expected[0]["rdma"], serde_json::json!(["mlx5_1"]));
    for args in [&[][..], &["--no-mask"]] {
        let capture = Capture::run(tree.root(), args);
        assert_eq!(near(&capture.root()), expected, "{args:?}");
        let tar = capture.tar();
        let has = |text: &[u8]| tar.windows(text.len()).any(|found| found == text);
        assert!(!has(b"MT2513600TWY"), "a serial number");
        assert_eq!(has(b"V3\x02aa"), !args.is_empty());
        assert!(args.is_empty() == has(b"V3\x2000000000000000000000000000000001"));
    }
    // What is not VPD is as little that of a capture.
    tree.file("/sys/bus/pci/devices/0000:03:00.0/vpd", b"MT2513600TWY");
    let capture = Capture::run(tree.root(), &[]);
    assert_eq!(answer(&capture.root()).0["not_offered"], answer(tree.root()).0["not_offered"]);
}
