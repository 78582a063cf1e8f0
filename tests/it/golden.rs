//! What is discovered and written on whole hosts, against files that people have read. Run with
//! `UPDATE_GOLDEN=1` to write them anew, and read the difference.
//!
//! Two readers that are not ours read every specification of these hosts, and inject what `cdi
//! inject` injects.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../cdi/tests/support/oracle.rs"]
mod oracle;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{
    Differences, Tree, every_host, names_in, needs, on, package, program, run, run_with_stdin,
    specs_in,
};
use onload_cdi::{CdiVersion, Spec, from_json};
use serde_json::Value;
use walkdir::WalkDir;

fn without_version(text: &str) -> String {
    let version = format!("\"version\": \"{}\",\n  \"onload\"", env!("CARGO_PKG_VERSION"));
    text.replacen(&version, "\"version\": \"0.0.0\",\n  \"onload\"", 1)
}

#[test]
fn each_host_gives_what_its_golden_files_say() {
    let mut differences = Differences::default();
    for (name, tree) in every_host() {
        let root = tree.root();
        let golden = package().join("tests/golden").join(name);
        let specs = tempfile::tempdir().unwrap();
        let json = run(&mut on(root, &["discover", "--format", "json"])).done();
        differences.compare(&golden.join("discover.json"), &without_version(&json.stdout));
        let table = run(&mut on(root, &["discover", "--explain"])).done();
        differences.compare(&golden.join("discover.txt"), &table.stdout);
        let mut generate = on(root, &["cdi", "generate", "--output-dir"]);
        let generated = run(generate.arg(specs.path())).done();
        let message = generated.stderr.replace(&*root.to_string_lossy(), "ROOT");
        let message = message.replace(&*specs.path().to_string_lossy(), "SPECS");
        differences.compare(&golden.join("generate.txt"), &message);
        let mut written = specs_in(specs.path());
        for file in &written {
            let content = fs::read_to_string(specs.path().join(file)).unwrap();
            differences.compare(&golden.join(file), &content);
        }
        for (file, shown) in on_terminals(name, root, specs.path()) {
            differences.compare(&golden.join(&file), &shown);
            written.push(file);
        }
        for (file, shown) in plans(name, root) {
            differences.compare(&golden.join(&file), &shown);
            written.push(file);
        }
        written.extend(["discover.json", "discover.txt", "generate.txt"].map(str::to_owned));
        differences.expect_only(&golden, &written);
    }
    differences.fail_if_any();
}

#[test]
fn a_failure_names_every_file_and_the_command_that_accepts_them() {
    let files = ["tests/golden/x2/discover.txt", "docs/topology-8-gpus.svg"];
    let differing = files.map(|file| (package().join(file), "-old\n+new\n".to_owned()));
    let message = Differences(differing.to_vec()).to_string();
    let ending = "2 golden files differ:\n  tests/golden/x2/discover.txt\n  docs/topology-8-gpus.svg\n\
        to accept all of them, run: UPDATE_GOLDEN=1 cargo test --test it";
    assert!(message.contains(ending), "{message}");
    assert_eq!(message.matches("\n-old\n+new\n").count(), 2, "{message}");
}

/// Hosts whose tables are also compared as terminals show them: between them they have every class, and
/// many things that are not offered.
const ON_TERMINALS: [&str; 5] = [
    crate::common::CAPTURED,
    "debian13-no-hardware",
    "iommu-groups",
    "rdma-hcas",
    "x2-2port-sriov",
];
/// What a container may ask of the captured host.
const ASKED: [&str; 5] = [
    "onload.dev/nic=ens1",
    "onload.dev/rdma=all",
    "onload.dev/vfio=0000:81:10.0",
    "onload.dev/hugepages=2Mi",
    "onload.dev/profile=latency",
];

/// The tables of a host by the name of their golden file.
fn on_terminals(name: &str, root: &Path, specs: &Path) -> Vec<(String, String)> {
    if !ON_TERMINALS.contains(&name) {
        return Vec::new();
    }
    let mut shown = Vec::new();
    for columns in ["80", "40"] {
        let mut discover = on(root, &["discover", "--explain"]);
        let table = run(discover.env("COLUMNS", columns)).done().stdout;
        shown.push((format!("discover-{columns}.txt"), table));
    }
    if name == crate::common::CAPTURED {
        for columns in ["", "80", "40"] {
            let mut show = on(root, &["cdi", "show", "--spec-dir"]);
            let show = show.arg(specs).args(ASKED).env("COLUMNS", columns);
            let table = run(show).done().stdout;
            let table = table.replace(&*specs.to_string_lossy(), "SPECS");
            let dash = if columns.is_empty() { "" } else { "-" };
            shown.push((format!("show{dash}{columns}.txt"), table));
        }
    }
    shown
}

/// What is wanted of some hosts at boot: what they are already, what they can become, and what they
/// cannot.
const WANTED: [(&str, &str); 5] = [
    (
        crate::common::CAPTURED,
        r#"
[host]
af-xdp = ["ens1", "ens2"]
rdma-netns = "exclusive"
hugepages = { "2Mi" = { 0 = 32, 1 = 512 }, "1Gi" = { 0 = 2, 1 = 2 } }
[[sriov]]
pf = "ens1"
vfs = 3
driver = "vfio-pci"
[[sriov]]
pf = "0000:81:00.0"
vfs = 3
driver = "vfio-pci"
"#,
    ),
    (
        "x2-2port-sriov",
        r#"
[[sriov]]
pf = "enp101s0f0np0"
vfs = 4
driver = "vfio-pci"
vlan = 100
mac = "02:00:00:00:10:00"
spoof-check = false
[[sriov]]
pf = "enp101s0f1np1"
vfs = 2
driver = "kernel"
trust = true
[[sriov]]
pf = "eno1"
vfs = 1
driver = "kernel"
"#,
    ),
    (
        "iommu-groups",
        r#"
[[sriov]]
pf = "0000:84:00.0"
vfs = 64
driver = "vfio-pci"
spoof-check = true
[[sriov]]
pf = "0000:81:00.0"
vfs = 9
driver = "vfio-pci"
"#,
    ),
    (
        "vmd-numa-gaps",
        r#"
[host]
rdma-netns = "shared"
hugepages = { "64Ki" = { 8 = 1 }, "16Gi" = { 252 = 1 }, "1Gi" = { 1 = 4 } }
"#,
    ),
    (
        "debian13-no-hardware",
        r#"
[host]
af-xdp = ["enp0s3"]
rdma-netns = "exclusive"
hugepages = { "2Mi" = { 0 = 16 } }
[[sriov]]
pf = "ens1f0"
vfs = 4
driver = "vfio-pci"
"#,
    ),
];

/// What `host plan` says of a host, by the name of the golden file.
fn plans(name: &str, root: &Path) -> Vec<(String, String)> {
    let Some((_, config)) = WANTED.iter().find(|(host, _)| *host == name) else {
        return Vec::new();
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    fs::write(&file, config).unwrap();
    let mut plan = on(root, &["host", "plan", "--config"]);
    let table = run(plan.arg(&file));
    let message = table.stderr.replace(&*root.to_string_lossy(), "ROOT");
    let shown = format!("{}{message}exit status {}\n", table.stdout, table.code.unwrap());
    let mut plan = on(root, &["host", "plan", "--format", "json", "--config"]);
    let json = run(plan.arg(&file));
    assert_eq!(json.code, table.code);
    vec![("host-plan.txt".to_owned(), shown), ("host-plan.json".to_owned(), json.stdout)]
}

#[test]
fn every_host_that_comes_with_the_sources_has_golden_files() {
    let hosts = package().join("tests/hosts");
    let mut names = names_in(&hosts);
    names.retain(|name| hosts.join(name).is_dir() && name != "make-standins");
    assert_eq!(names, crate::common::COMMITTED);
}

fn empty_directories(directory: &Path) -> Vec<PathBuf> {
    let entries = WalkDir::new(directory).into_iter();
    let entries = entries.map(|entry| entry.unwrap());
    entries
        .filter(|entry| entry.file_type().is_dir())
        .map(walkdir::DirEntry::into_path)
        .filter(|path| fs::read_dir(path).unwrap().next().is_none())
        .collect()
}

/// Git does not keep them, so what they change is not there in the next checkout.
#[test]
fn no_host_that_comes_with_the_sources_has_an_empty_directory() {
    for name in crate::common::COMMITTED {
        let host = package().join("tests/hosts").join(name);
        assert_eq!(empty_directories(&host), [""; 0].map(PathBuf::from));
    }
}

/// What stands below some places of a host: each file with its bytes, each link with its target.
fn contents(host: &Path, places: &[&str]) -> Vec<(PathBuf, String)> {
    let below = places.iter().flat_map(|place| WalkDir::new(host.join(place)));
    let entries = below.map(|entry| entry.unwrap());
    let described = entries.map(|entry| {
        let name = entry.path().strip_prefix(host).unwrap().to_owned();
        let kind = entry.file_type();
        let content = if kind.is_symlink() {
            format!("-> {}", fs::read_link(entry.path()).unwrap().display())
        } else if kind.is_dir() {
            "a directory".to_owned()
        } else {
            String::from_utf8_lossy(&fs::read(entry.path()).unwrap()).into_owned()
        };
        (name, content)
    });
    let mut described: Vec<_> = described.collect();
    described.sort();
    described
}

#[test]
fn an_overlay_is_what_the_script_makes_of_its_host() {
    if !needs::programs(&["python3"]) {
        return;
    }
    let hosts = package().join("tests/hosts");
    for name in crate::common::COMMITTED {
        let Ok(table) = fs::read_to_string(hosts.join(name).join("overlay.table")) else {
            continue;
        };
        let base = table.lines().next().unwrap().strip_prefix("base ").unwrap();
        let (base, host) = (Tree::sample(base), Tree::sample(name));
        let mut script = Command::new(hosts.join("make-overlay"));
        let made = script.arg(base.root()).arg(host.root()).status();
        assert!(made.unwrap().success());
        let committed = contents(&hosts.join(name), &[""]);
        assert_eq!(contents(host.root(), &[""]), committed, "{name}");
    }
}

/// A host whose files only stand elsewhere: what is found on it says where, and else the same.
#[test]
fn the_host_of_red_hat_is_the_captured_one_in_other_directories() {
    let red_hat = Tree::sample("el10-2numa-onload-rxe-vfio");
    let red_hat = red_hat.root();
    let debian = crate::common::captured();
    let places = ["sys", "proc", "dev.table"];
    assert_eq!(contents(red_hat, &places), contents(&debian, &places));
    assert!(!red_hat.join("usr/lib").exists());
    let found = |root: &Path| run(&mut on(root, &["discover", "--format", "json"])).done();
    let there = found(red_hat).stdout;
    assert!(there.contains("libpcap.so.1,"));
    let as_debian = there.replace("libpcap.so.1,", "libpcap.so.0.8,");
    // Only the one of Red Hat has the hook, without which pools are left out.
    let without_pools = |text: &str| {
        let mut found: Value = serde_json::from_str(text).unwrap();
        found["pools"] = Value::Null;
        let entries = found["not_offered"].as_array_mut().unwrap();
        entries.retain(|entry| entry["name"] != "any");
        found
    };
    assert_eq!(without_pools(&as_debian), without_pools(&found(&debian).stdout));
    let sources = |root: &Path| -> Vec<String> {
        let specs = specifications(generated(root).path());
        let mounts = specs.iter().flat_map(|spec| &spec.container_edits.mounts);
        let sources = mounts.map(|mount| mount.host_path.clone());
        sources.filter(|path| path.contains(".so")).collect()
    };
    let moved = |path: &String| path.replace("/usr/lib/x86_64-linux-gnu", "/usr/lib64");
    let expected: Vec<String> = sources(&debian).iter().map(moved).collect();
    assert!(expected.len() > 10, "{expected:?}");
    assert_eq!(sources(red_hat), expected);
}

#[test]
fn no_golden_files_are_left_of_a_host_that_is_gone() {
    let known: Vec<&str> = every_host().iter().map(|(name, _)| *name).collect();
    for name in names_in(&package().join("tests/golden")) {
        assert!(known.contains(&name.as_str()), "{name}");
    }
}

/// A run's specifications, in a directory of their own.
fn generated(root: &Path) -> tempfile::TempDir {
    generated_for(root, CdiVersion::CURRENT)
}

/// The same, for readers of that version.
fn generated_for(root: &Path, newest: CdiVersion) -> tempfile::TempDir {
    let specs = tempfile::tempdir().unwrap();
    let mut generate = on(root, &["cdi", "generate", "--max-cdi-version"]);
    generate.arg(newest.as_str()).arg("--output-dir");
    run(generate.arg(specs.path())).done();
    specs
}

fn specifications(dir: &Path) -> Vec<Spec> {
    let files = specs_in(dir).into_iter();
    files.map(|name| from_json(&fs::read(dir.join(name)).unwrap()).unwrap()).collect()
}

/// The names of the devices that `cdi list` finds.
fn listed(dir: &Path) -> Vec<String> {
    let nowhere = Tree::new();
    let mut list = on(nowhere.root(), &["cdi", "list", "--format", "json", "--spec-dir"]);
    let listing = run(list.arg(dir)).done().json();
    assert_eq!(listing["errors"], Value::Array(Vec::new()));
    let mut names = crate::common::each(&listing["devices"], "name");
    names.sort();
    names
}

const CONFIG: &str = r#"{"ociVersion": "1.0.2",
    "process": {"user": {"uid": 1000, "gid": 100}, "cwd": "/", "args": ["sh"],
        "env": ["PATH=/bin", "LD_PRELOAD=libimage.so", "EF_POLL_USEC=1"]},
    "root": {"path": "rootfs"},
    "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid"]}],
    "linux": {"resources": {"devices": [{"allow": false, "access": "rwm"}]}}}"#;

/// Every device of every host by itself, then all of a host together.
fn ask(tool: &oracle::Tool) {
    let newest: CdiVersion = tool.version().parse().unwrap();
    let mut asked = 0;
    for (host, tree) in every_host() {
        let root = tree.root();
        let specs = generated_for(root, newest);
        let names = listed(specs.path());
        let theirs = tool.list(&[specs.path().to_owned()]);
        let known: Vec<&String> = theirs.devices.keys().collect();
        assert_eq!(known, names.iter().collect::<Vec<_>>(), "{host}: {:?}", theirs.errors);
        assert!(theirs.scan.is_none(), "{host}: {:?}", theirs.scan);
        let staged = oracle::stage(&specifications(specs.path()));
        let dirs = [staged.path().to_owned()];
        let each = names.iter().map(|name| vec![name.as_str()]);
        let together = names.iter().map(String::as_str).collect();
        for devices in each.chain([together]).filter(|devices: &Vec<&str>| !devices.is_empty()) {
            let ours = inject(&dirs, &devices);
            tool.assert_same_as(&dirs, &devices, CONFIG.as_bytes(), Ok(ours));
            asked += 1;
        }
    }
    assert!(asked > 100, "{asked}");
}

/// What `cdi inject` makes of [`CONFIG`].
fn inject(dirs: &[PathBuf], devices: &[&str]) -> Vec<u8> {
    let nowhere = Tree::new();
    let mut inject = program();
    inject.arg("--host-root").arg(nowhere.root()).args(["cdi", "inject"]).args(devices);
    for dir in dirs {
        inject.arg("--spec-dir").arg(dir);
    }
    let config = run_with_stdin(&mut inject, CONFIG.as_bytes()).done().stdout;
    crate::common::oci(&config);
    config.into_bytes()
}

#[test]
fn the_engines_library_reads_every_specification_and_injects_the_same() {
    if let Some(go) = oracle::go() {
        ask(go);
    }
}

/// Podman 4.3 has this library, which knows CDI up to 0.5.0.
#[test]
fn an_old_library_loses_only_the_pools_of_a_host() {
    let Some(go) = oracle::go() else {
        return;
    };
    let version = go.version();
    let missing = format!("the CDI library of this Debian supports {version}, not 0.5.0 alone");
    if !needs::on_this_machine(version == "0.5.0", &missing) {
        return;
    }
    let mut hosts_with_pools = 0;
    for (host, tree) in every_host() {
        let root = tree.root();
        let specs = generated(root);
        let theirs = go.list(&[specs.path().to_owned()]);
        let refused: Vec<PathBuf> =
            theirs.errors.as_object().unwrap().keys().map(PathBuf::from).collect();
        let mut pools = specs_in(specs.path());
        pools.retain(|name| name.ends_with("-pools.json"));
        let pools: Vec<PathBuf> = pools.iter().map(|name| specs.path().join(name)).collect();
        assert_eq!(refused, pools, "{host}: {:?}", theirs.errors);
        let known: Vec<&String> = theirs.devices.keys().collect();
        let old = generated_for(root, go.version().parse().unwrap());
        assert_eq!(known, listed(old.path()).iter().collect::<Vec<_>>(), "{host}");
        // It injects them beside the file that it refuses.
        let staged = oracle::stage(&specifications(old.path()));
        for path in &pools {
            fs::copy(path, staged.path().join(path.file_name().unwrap())).unwrap();
        }
        let (dirs, names) = ([staged.path().to_owned()], listed(old.path()));
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        if !names.is_empty() {
            let ours = inject(&dirs, &names);
            go.assert_same_as(&dirs, &names, CONFIG.as_bytes(), Ok(ours));
        }
        hosts_with_pools += usize::from(!pools.is_empty());
    }
    assert!(hosts_with_pools > 4, "{hosts_with_pools}");
}

#[test]
fn the_second_crate_reads_every_specification_and_injects_the_same() {
    if let Some(second) = oracle::second_crate() {
        ask(second);
    }
}
