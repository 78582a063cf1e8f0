//! `doctor`: every check passes where all is well, and says what is wrong and what to do where it is not.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use crate::common::hosts::{leased_interface, rdma, x2, x3, x4};
use crate::common::{
    Commands, Pci, Tree, each, every_host, hosts, is_root, on, package, run, run_unprivileged,
    skipped, text,
};
use onload_test_tree::MULTIARCH;
use onload_test_tree::elf::SharedLibrary;
use serde_json::Value;

const JSON: [&str; 3] = ["doctor", "--format", "json"];

/// All that was found of a check.
fn found(tree: &Tree, check: &str) -> Vec<Value> {
    let checks = tree.run(&JSON).json()["checks"].take();
    let checks = checks.as_array().unwrap().iter();
    let found = checks.filter(|each| each["name"] == check && each["verdict"] != "skipped");
    found.cloned().collect()
}

fn remedies(finding: &Value) -> Vec<String> {
    let remedies = finding["remedy"].as_array().unwrap().iter();
    let one = |remedy: &Value| match (remedy.get("run"), remedy.get("install")) {
        _ if remedy.get("kernel_line").is_some() => remedy.to_string(),
        (Some(run), _) => text(run),
        (_, Some(install)) => format!("{} from {}", text(install), text(&remedy["from"])),
        _ => format!("{}: {}", text(&remedy["file"]), text(&remedy["line"])),
    };
    remedies.map(one).collect()
}

/// A guest with a real Onload in which a command was run by hand, as doctor printed it.
const REAL: &str = "by hand with a real Onload";
/// Reasons why a command is run nowhere as printed.
const DISTRIBUTION: &str = "nowhere: another distribution";
const HARDWARE: &str = "nowhere: hardware that no guest has";
const NETWORK: &str = "nowhere: packages of the distribution, by the network";
const REBOOT: &str = "nowhere: it reboots, or matters only after a reboot";
const PERSON: &str = "nowhere: it shows a person something or starts an editor";

const UNTRIED: &str = "nowhere yet";

/// The beginnings of the commands that doctor prints, and where each is run as printed.
const PRINTED_COMMANDS: &[(&str, &str)] = &[
    ("${EDITOR:-vi} ", PERSON),
    ("apk add ", NETWORK),
    ("apt-get install ", NETWORK),
    ("cat /sys/class/infiniband/", HARDWARE),
    ("chmod ", REAL),
    ("chown ", REAL),
    ("containerd config dump", PERSON),
    ("cpupower frequency-set ", HARDWARE),
    ("crio config", PERSON),
    ("dnf install ", NETWORK),
    ("docker start ", REAL),
    ("docker stop ", UNTRIED),
    ("dockerd --validate", PERSON),
    ("driverctl ", HARDWARE),
    ("echo ", REAL),
    ("ethtool -K ", HARDWARE),
    ("ethtool -L ", REAL),
    ("ethtool -k ", PERSON),
    ("find / -xdev -name libonload.so", REAL),
    ("grub-mkconfig ", DISTRIBUTION),
    ("grub2-mkconfig ", DISTRIBUTION),
    ("grubby ", DISTRIBUTION),
    ("ip -statistics link show ", HARDWARE),
    ("ip link set dev ", REAL),
    ("journalctl ", PERSON),
    ("ln -s ", HARDWARE),
    ("lspci ", PERSON),
    ("mkdir -p ", DISTRIBUTION),
    ("mknod ", HARDWARE),
    ("modprobe ", UNTRIED),
    ("mv ", REAL),
    ("nomad config validate ", PERSON),
    ("od -c ", PERSON),
    ("onload-ctk ", REAL),
    ("onload_tool reload", REAL),
    ("pacman -S ", NETWORK),
    ("podman info", PERSON),
    ("podman stop ", UNTRIED),
    ("rc-service ", DISTRIBUTION),
    ("reboot", REBOOT),
    ("rm ", REAL),
    ("rpm-ostree ", DISTRIBUTION),
    ("sed -i ", REBOOT),
    ("setpci ", HARDWARE),
    ("setsebool ", DISTRIBUTION),
    ("sminfo ", HARDWARE),
    ("sudo onload-ctk doctor", PERSON),
    ("sysctl --system", DISTRIBUTION),
    ("systemctl enable ", REAL),
    ("systemctl reboot", REBOOT),
    ("systemctl reload ", REAL),
    ("systemctl restart ", REAL),
    ("systemctl start ", REAL),
    ("systemctl unmask ", REAL),
    ("touch ", REAL),
    ("transactional-update ", DISTRIBUTION),
    ("udevadm control --reload", REAL),
    ("update-grub", REBOOT),
    ("zgrep ", PERSON),
    ("zypper install ", NETWORK),
];

/// Asserts that each command of a finding is shell, and that the list above has it.
#[track_caller]
fn assert_listed(finding: &Value) {
    let remedies = finding["remedy"].as_array().unwrap().iter();
    for command in remedies.filter_map(|remedy| remedy["run"].as_str()) {
        let is_listed = PRINTED_COMMANDS.iter().any(|(start, _)| command.starts_with(start));
        assert!(is_listed || command.contains(" --version"), "{command:?} is not listed");
        let shell = Command::new("bash").args(["-n", "-c", command]).status().unwrap();
        assert!(shell.success(), "{command:?} is no shell");
    }
}

/// Asserts that a check passes on a host, and that it says otherwise after something happened to it.
#[track_caller]
fn assert_turns(
    check: &str,
    tree: &Tree,
    break_it: impl FnOnce(&Tree),
    verdict: &str,
    finding: &str,
    remedy: &str,
) {
    let before = found(tree, check);
    assert!(!before.is_empty(), "{check} says nothing of a good host");
    let is_good = |found: &Value| found["verdict"] == "pass" && remedies(found).is_empty();
    assert!(before.iter().all(is_good), "{before:#?}");
    break_it(tree);
    let after = found(tree, check);
    let wanted = after.iter().find(|found| found["verdict"] == verdict);
    let wanted = wanted.unwrap_or_else(|| panic!("no {verdict} in {after:#?}"));
    let actual = text(&wanted["finding"]);
    assert!(actual.contains(finding), "{finding:?} in {actual:?}");
    after.iter().for_each(assert_listed);
    let remedies = remedies(wanted);
    assert!(remedies.iter().any(|r| r.contains(remedy)), "{remedy:?} in {remedies:?}");
}

/// Makes a test of each line, and a list of the checks that have one.
macro_rules! checks {
    ($($test:ident: $check:literal, $tree:expr, $break_it:expr => $verdict:literal, $finding:literal, $remedy:literal;)*) => {
        $(
            #[test]
            fn $test() {
                assert_turns($check, &$tree, $break_it, $verdict, $finding, $remedy);
            }
        )*
        const COVERED: &[&str] = &[$($check),*];
    };
}

/// A host with libibverbs and the providers of its RDMA devices.
fn rdma_with_libraries() -> Tree {
    let tree = rdma();
    tree.file("/etc/ld.so.cache", "of another kind");
    let place = |name: &str, library: &SharedLibrary| {
        tree.file(&format!("{MULTIARCH}/{name}"), library.bytes());
    };
    let private = ["verbs_register_driver"];
    let verbs = SharedLibrary::new("libibverbs.so.1")
        .defines("IBVERBS_PRIVATE_34", &private)
        .says("/etc/libibverbs.d")
        .says(&format!("{MULTIARCH}/libibverbs/lib%s-rdmav34.so"));
    place("libibverbs.so.1", &verbs);
    place("librdmacm.so.1", &SharedLibrary::new("librdmacm.so.1"));
    for name in ["mlx4", "mlx5", "rxe"] {
        let file = format!("lib{name}-rdmav34.so");
        let provider =
            SharedLibrary::new(&file).needs("libibverbs.so.1", "IBVERBS_PRIVATE_34", &private);
        place(&format!("libibverbs/{file}"), &provider);
        tree.file(&format!("/etc/libibverbs.d/{name}.driver"), format!("driver {name}\n"));
    }
    tree
}

/// A physical function of Intel's with a virtual one, in groups.
fn sriov(driver: &str) -> Tree {
    let tree = Tree::new();
    tree.file("/etc/default/grub", "");
    tree.vfio().hook();
    let parent = tree.pci(Pci::network("0000:81:00.0", "8086:154c", "igb"));
    let child = tree.pci(Pci::network("0000:81:02.0", "8086:154c", driver));
    let other = tree.pci(Pci::network("0000:81:02.1", "8086:154c", driver));
    tree.virtual_function(&parent, 0, &child)
        .virtual_function(&parent, 1, &other)
        .group(&parent, 19)
        .group(&child, 20)
        .group(&other, 20)
        .group_node(20);
    tree.hugepages(2048, &[(0, 64, 64)]);
    tree
}

/// A host with an interface that Onload takes by AF_XDP, and what its driver says.
fn af_xdp(abilities: &str, parameter: &str) -> Tree {
    let tree = x3();
    let function = tree.pci(Pci::network("0000:41:00.0", "8086:10c9", "igb"));
    tree.interface(&function, "ens1");
    tree.file("/sys/module/sfc_resource/afxdp/register", "");
    let devtype = "/sys/kernel/debug/sfc_resource/nics/000_ens1/devtype";
    tree.attribute(devtype, "5:0:0 => AF_XDP");
    tree.file("/interfaces.table", abilities);
    tree.attribute(FLOW_FILTERS, parameter);
    tree
}

#[test]
fn no_command_is_printed_for_an_interface_by_af_xdp_that_is_in_a_container() {
    let tree = leased_interface(false);
    tree.config("[discover]\noffer-netdevs = [\"ens1v0\"]\n");
    let nic = "/sys/kernel/debug/sfc_resource/nics/000_ens1v0";
    tree.attribute(&format!("{nic}/devtype"), "5:0:0 => AF_XDP");
    tree.attribute(FLOW_FILTERS, "0");
    let nics = &tree.discover()["nics"];
    assert!(each(nics, "device").contains(&"ens1v0".to_owned()), "{nics}");
    assert_eq!(found(&tree, "af-xdp"), [] as [Value; 0]);
}

#[test]
fn an_interface_by_af_xdp_serves_a_stack_for_each_channel() {
    for (channels, text) in [(1, "1 stack,"), (4, "4 stacks,")] {
        let tree = af_xdp(&format!("ens1 xdp on {channels}\n"), "1");
        let findings = found(&tree, "af-xdp");
        let finding = findings[0]["finding"].as_str().unwrap();
        assert!(finding.contains(&format!("it serves {text} one for each channel")), "{finding}");
        let table = tree.run(&["discover"]).done().stdout;
        assert!(table.contains(&format!("af_xdp, {text} up")), "{table}");
        let nics = tree.discover()["nics"].clone();
        let stacks = nics.as_array().unwrap().iter().map(|nic| nic["stacks"].as_u64());
        assert_eq!(stacks.collect::<Vec<_>>(), [Some(channels), None]);
    }
}

const FLOW_FILTERS: &str = "/sys/module/sfc_resource/parameters/enable_af_xdp_flow_filters";

const FUNCTIONS: [&str; 3] = ["0000:81:00.0", "0000:81:02.0", "0000:81:02.1"];

/// On a machine of that architecture, as the kernel names it.
fn without_groups(tree: &Tree, arch: &str) {
    tree.attribute("/proc/sys/kernel/arch", arch);
    for function in FUNCTIONS {
        tree.remove(&format!("/sys/devices/pci0000:81/{function}/iommu_group"));
    }
}

fn rebind(tree: &Tree, function: &str, driver: &str) {
    unbind(tree, function);
    tree.bind(&format!("/sys/devices/pci0000:81/{function}"), driver);
}

fn unbind(tree: &Tree, function: &str) {
    tree.remove(&format!("/sys/devices/pci0000:81/{function}/driver"));
}

fn with_link(width: &str, slot: Option<&str>) -> Tree {
    let tree = x3();
    set_link(&tree, width);
    if let Some(slot) = slot {
        let attributes = [("max_link_speed", "16.0 GT/s PCIe"), ("max_link_width", slot)];
        tree.attributes("/sys/devices/pci0000:3b", &attributes);
    }
    tree
}

fn set_link(tree: &Tree, width: &str) {
    let attributes = [
        ("current_link_speed", "16.0 GT/s PCIe"),
        ("current_link_width", width),
        ("max_link_speed", "16.0 GT/s PCIe"),
        ("max_link_width", "8"),
    ];
    tree.attributes("/sys/devices/pci0000:3b/0000:3b:00.0", &attributes);
}

fn isolated() -> Tree {
    let tree = x3();
    tree.file("/etc/default/grub", "");
    tree.attribute("/sys/devices/system/cpu/isolated", "2-3");
    tree.attribute("/sys/devices/system/node/node0/cpulist", "0-3");
    tree
}

fn with_governor() -> Tree {
    let tree = x3();
    tree.attribute(&governor(0), "performance");
    tree.attribute(&governor(1), "performance");
    tree
}

fn governor(policy: u32) -> String {
    format!("/sys/devices/system/cpu/cpufreq/policy{policy}/scaling_governor")
}

/// A GPU beside its NIC, below ports that redirect nothing and in groups that nothing translates.
fn paired() -> Tree {
    let tree = Tree::new();
    tree.machine(
        "pci0000:10 0
  bridge 0000:10:01.0
    bridge 0000:11:00.0
      bridge 0000:12:00.0
        gpu 0000:13:00.0 10de:2330
      bridge 0000:12:01.0
        nic 0000:14:00.0 mlx5_0 400
",
    );
    tree.file("/etc/default/grub", "");
    tree.directory("/sys/module/nvidia").directory("/sys/module/nvidia_peermem");
    for port in ["0000:10:01.0", "0000:12:00.0", "0000:12:01.0"] {
        acs(&tree, port, 0x01, &[]);
    }
    acs(&tree, "0000:11:00.0", 0, &[]);
    tree.file(&config_space("0000:14:00.0"), [0; 4096]);
    grouped(&tree, &[("0000:13:00.0", 7), ("0000:14:00.0", 8)]);
    tree
}

/// The same by Data Direct.
fn data_direct() -> Tree {
    let tree = Tree::new();
    tree.machine(
        "pci0008:00 0
  bridge 0008:00:00.0
    bridge 0008:01:00.0
      bridge 0008:02:00.0
        dma 0008:03:00.0 V3=aa
      bridge 0008:02:01.0
        bridge 0008:04:00.0
          bridge 0008:05:00.0
            gpu 0008:06:00.0 10de:31c2
pci0000:00 0
  nic 0000:03:00.0 mlx5_0 400 V3=aa
",
    );
    tree.file("/etc/default/grub", "");
    for (port, control) in [
        ("0008:00:00.0", 0x1c),
        ("0008:02:00.0", 0x19),
        ("0008:02:01.0", 0x15),
        ("0008:05:00.0", 0x1d),
    ] {
        acs(&tree, port, control, &[]);
    }
    tree.file(&config_space("0000:03:00.0"), [0; 4096]);
    tree.directory("/sys/module/nvidia").file(NVIDIA, OPEN);
    tree.attribute("/proc/sys/kernel/osrelease", "6.14.0-1005-nvidia-64k");
    let of_one = [("0008:03:00.0", 9), ("0008:06:00.0", 9), ("0000:03:00.0", 10)];
    grouped(&tree, &of_one);
    tree.attribute("/sys/kernel/iommu_groups/9/type", "DMA-FQ");
    tree
}

const NVIDIA: &str = "/proc/driver/nvidia/version";
const OPEN: &str =
    "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.86.15  Release Build\n";
const CLOSED: &str = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n";

fn config_space(address: &str) -> String {
    format!("/sys/bus/pci/devices/{address}/config")
}

/// Puts a configuration space with this ACS control, and with these other extended capabilities.
fn acs(tree: &Tree, address: &str, control: u16, others: &[u16]) {
    let mut config = [0; 4096];
    let ids: Vec<u16> = others.iter().copied().chain([0x0d]).collect();
    for (at, id) in ids.iter().enumerate() {
        let next = if at + 1 < ids.len() { 0x100 + (at + 1) * 16 } else { 0 };
        let header = u32::from(*id) | 1 << 16 | u32::try_from(next).unwrap() << 20;
        config[0x100 + at * 16..][..4].copy_from_slice(&header.to_le_bytes());
    }
    for at in 0..others.len() {
        // What is enabled of the others (PCI_ATS_CTRL_ENABLE).
        config[0x100 + at * 16 + 7] = 0x80;
    }
    config[0x100 + others.len() * 16 + 6..][..2].copy_from_slice(&control.to_le_bytes());
    tree.file(&config_space(address), config);
}

fn grouped(tree: &Tree, groups: &[(&str, u32)]) {
    for (address, group) in groups {
        let function = fs::canonicalize(tree.path(&format!("/sys/bus/pci/devices/{address}")));
        let function = function.unwrap();
        let root = fs::canonicalize(tree.root()).unwrap();
        let function = format!("/{}", function.strip_prefix(root).unwrap().display());
        tree.group(&function, *group);
        tree.attribute(&format!("/sys/kernel/iommu_groups/{group}/type"), "identity");
    }
}

fn amd() -> Tree {
    let tree = Tree::new();
    tree.machine(
        "pci0000:10 0\n  gpu 0000:10:01.0 1002:74a1\npci0000:20 0\n  nic 0000:20:01.0 mlx5_0 400\n",
    );
    tree.directory("/sys/module/amdgpu");
    tree.attribute("/proc/sys/kernel/osrelease", "6.12.48+deb13-amd64");
    tree.file(AMD_CONFIG, "CONFIG_PCI_P2PDMA=y\nCONFIG_DMABUF_MOVE_NOTIFY=y\n");
    tree
}

const AMD_CONFIG: &str = "/boot/config-6.12.48+deb13-amd64";

fn written() -> Tree {
    let tree = x3();
    tree.generate();
    tree
}

fn packaged() -> Tree {
    let tree = x3();
    for (unit, target) in [
        ("onload-cdi.service", "multi-user"),
        ("onload-cdi.path", "multi-user"),
        ("onload-cdi.timer", "timers"),
        ("onload-host.service", ""),
    ] {
        let installed = format!("/usr/lib/systemd/system/{unit}");
        tree.file(&installed, "");
        if !target.is_empty() {
            let wanted = format!("/etc/systemd/system/{target}.target.wants/{unit}");
            tree.link(&wanted, &installed);
        }
    }
    tree.file("/usr/lib/udev/rules.d/90-onload-ctk.rules", "");
    tree.generate();
    tree
}

fn selinux() -> Tree {
    let tree = Tree::new();
    tree.file("/sys/fs/selinux/enforce", "1");
    tree.file("/sys/fs/selinux/booleans/container_use_devices", "1 1");
    tree
}

/// An engine as Debian packages it.
fn engine(tree: &Tree, program: &str, package: &str, version: &str) {
    tree.program(&format!("/usr/bin/{program}"), "");
    let entry = format!("Package: {package}\nStatus: install ok installed\nVersion: {version}\n\n");
    let before = fs::read_to_string(tree.path("/var/lib/dpkg/status")).unwrap_or_default();
    tree.file("/var/lib/dpkg/status", format!("{before}{entry}"));
}

fn docker(version: &str, json: &str) -> Tree {
    let tree = Tree::new();
    engine(&tree, "dockerd", "docker.io", version);
    tree.file("/etc/docker/daemon.json", json);
    tree
}

const CDI_ON: &str = r#"{"features":{"cdi":true}}"#;

fn upgraded(tree: &Tree, package: &str, version: &str) {
    let entry = format!("Package: {package}\nVersion: {version}\n");
    tree.file("/var/lib/dpkg/status", entry);
}

fn containerd(version: &str, config: &str) -> Tree {
    let tree = Tree::new();
    engine(&tree, "containerd", "containerd", version);
    engine(&tree, "kubelet", "kubelet", "1.31.0-1.1");
    tree.file("/etc/containerd/config.toml", config);
    tree
}

fn toml(tree: &Tree, config: &str) {
    tree.file("/etc/containerd/config.toml", config);
}

const CONTAINERD_1: &str =
    "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = true\n";
const CRI_1: &str = "[plugins.'io.containerd.grpc.v1.cri'.containerd";
const CONTAINERD_2: &str = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n";

fn k3s(config: &str) -> Tree {
    let tree = Tree::new();
    tree.program("/usr/local/bin/k3s", "");
    tree.file(K3S, config);
    tree
}

const K3S: &str = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml";
const K3S_TEMPLATES: [&str; 2] = [
    "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl",
];

fn kubelet(version: &str, config: &str) -> Tree {
    let tree = Tree::new();
    engine(&tree, "kubelet", "kubelet", version);
    tree.file("/var/lib/kubelet/config.yaml", config);
    tree
}

#[test]
fn crio_1_24_alone_needs_each_directory_of_specifications() {
    let is_missing = |tree: &Tree| {
        let found = found(tree, "engine-spec-dirs");
        found.iter().any(|found| text(&found["finding"]).contains("is missing"))
    };
    let tree = crio("");
    for (version, expected) in [("1.24.6-1", true), ("1.25.0-1", false), ("1.30.3-1", false)] {
        upgraded(&tree, "cri-o", version);
        assert_eq!(is_missing(&tree), expected, "{version}");
    }
    upgraded(&tree, "cri-o", "1.24.6-1");
    tree.directory("/etc/cdi").directory("/var/run/cdi");
    assert!(!is_missing(&tree));
    tree.file("/etc/crio/crio.conf.d/60.conf", "[crio.runtime]\ncdi_spec_dirs = ['/srv/cdi']\n");
    assert!(is_missing(&tree));
    assert!(!is_missing(&podman("4.3.1", "")));
}

fn crio(config: &str) -> Tree {
    let tree = Tree::new();
    engine(&tree, "crio", "cri-o", "1.33.0-1");
    tree.file("/etc/crio/crio.conf.d/50-dirs.conf", config);
    tree
}

fn podman(version: &str, config: &str) -> Tree {
    let tree = Tree::new();
    engine(&tree, "podman", "podman", version);
    tree.file("/etc/containers/containers.conf.d/50.conf", config);
    tree
}

/// A host whose vfio devices have a pool, with podman of a version.
fn podman_and_vfio(version: &str) -> Tree {
    let tree = sriov("vfio-pci");
    engine(&tree, "podman", "podman", version);
    tree.generate();
    tree
}

const WRAPPER: &str = "/usr/bin/onload-container-runtime";
const RUNC: &str = "/usr/bin/runc";

/// A host where annotations may ask for an interface.
fn allowing(tree: Tree) -> Tree {
    tree.program(WRAPPER, "").program(RUNC, "");
    tree.config("[annotations]\nallow = [\"nic\"]\n");
    tree
}

const DOCKER_RUNTIME: &str =
    r#"{"runtimes":{"onload":{"path":"/usr/bin/onload-container-runtime"}}}"#;

fn nomad() -> Tree {
    let tree = allowing(docker("28.3.0", DOCKER_RUNTIME));
    tree.program("/usr/bin/nomad", "");
    tree.file(
        "/etc/nomad.d/docker.hcl",
        "plugin \"docker\" {\n config {\n allow_runtimes = [\"runc\", \"onload\"] # ours\n }\n}\n",
    );
    tree
}

/// A daemon of that process and service, started 1000 seconds after the boot at 1,000,000, whose file is older.
fn running(tree: Tree, process: &str, service: &str, file: &str) -> Tree {
    tree.file("/proc/stat", "cpu 1 2 3\nbtime 1000000\n");
    tree.file("/proc/77/comm", format!("{process}\n"));
    tree.file("/proc/77/cgroup", format!("0::/system.slice/{service}.service\n"));
    let fields: Vec<String> = (4..22).map(|field| field.to_string()).collect();
    let stat = format!("77 ({process}) S {} 100000 0 0\n", fields.join(" "));
    tree.file("/proc/77/stat", stat);
    changed_at(&tree, file, 1_000_500);
    tree
}

fn changed_at(tree: &Tree, file: &str, seconds: u64) {
    let file = fs::File::open(tree.path(file)).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
}

fn running_docker() -> Tree {
    let tree = docker("28.3.0", "{}");
    running(tree, "dockerd", "docker", "/etc/docker/daemon.json")
}

/// A docker with a container that is started at boot.
fn restarting(version: &str, host_config: &str) -> Tree {
    let tree = docker(version, CDI_ON);
    tree.file(RESTARTED, host_config);
    tree
}

const RESTARTED: &str =
    "/var/lib/docker/containers/0123456789abcdef0123456789abcdef/hostconfig.json";
const STAYS_DOWN: &str = r#"{"RestartPolicy":{"Name":"always"},"Runtime":"runc","DeviceRequests":[{"Driver":"cdi","DeviceIDs":["onload.dev/nic=all"]}]}"#;

#[test]
fn a_flag_and_a_key_that_keep_dockerd_from_starting_are_named() {
    let unit = |flags: &str| format!("[Service]\nExecStart=/usr/bin/dockerd {flags}\n");
    let (moby, debian) = ("/usr/lib/systemd/system/docker.service", "/etc/default/docker");
    for (json, flags, options, wanted) in [
        (
            r#"{"default-runtime": "onload"}"#,
            "--default-runtime=nvidia",
            "",
            "\"default-runtime\" and --default-runtime=nvidia of /usr/lib/systemd/system/docker.service",
        ),
        (
            r#"{"features": {"cdi": true}}"#,
            "$DOCKER_OPTS",
            "--feature containerd-snapshotter",
            "\"features\" and --feature=containerd-snapshotter of /etc/default/docker",
        ),
        (r#"{"hosts": ["unix:///run/docker.sock"]}"#, "-H fd://", "", "\"hosts\" and -H=fd://"),
        (
            r#"{"cdi-spec-dirs": ["/etc/cdi", "/var/run/cdi"]}"#,
            "--cdi-spec-dir /etc/cdi",
            "",
            "\"cdi-spec-dirs\" and --cdi-spec-dir=/etc/cdi",
        ),
        (
            r#"{"insecure-registries": ["192.0.2.1"]}"#,
            "--insecure-registry=192.0.2.2",
            "",
            "\"insecure-registries\" and",
        ),
    ] {
        let tree = docker("28.2.0", json);
        let change = |tree: &Tree| {
            tree.file(moby, unit(flags) + "EnvironmentFile=-/etc/default/docker\n");
            tree.file(debian, format!("DOCKER_OPTS=\"{options}\"\n"));
        };
        assert_turns(
            "engine",
            &tree,
            change,
            "fail",
            wanted,
            "${EDITOR:-vi} /etc/docker/daemon.json",
        );
    }
    // dockerd joins runtimes.
    let tree = docker(
        "28.2.0",
        r#"{"runtimes": {"onload": {"path": "/usr/bin/onload-container-runtime"}}}"#,
    );
    tree.file(moby, unit("--add-runtime nvidia=/usr/bin/nvidia-container-runtime"));
    assert!(found(&tree, "engine").iter().all(|found| found["verdict"] == "pass"));
}

#[test]
fn the_containerd_of_a_distribution_of_kubernetes_is_an_engine() {
    let rke2 = |tree: &Tree, text: &str| {
        tree.file("/data/agent/etc/containerd/config.toml", text);
    };
    let tree = Tree::new();
    tree.file("/usr/local/bin/rke2", "");
    tree.file("/etc/rancher/rke2/config.yaml", "data-dir: /data\n");
    rke2(&tree, "version = 3\n");
    let off = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n";
    let remedy = "/data/agent/etc/containerd/config-v3.toml.tmpl: enable_cdi = true";
    assert_turns("engine-cdi", &tree, |tree| rke2(tree, off), "fail", "CDI is off", remedy);
    let tree = Tree::new();
    tree.file("/usr/local/bin/k0s", "");
    tree.file("/etc/k0s/containerd.toml", "# k0s_managed=true\nversion = 3\n");
    let old = "# k0s_managed=true\nimports = [\"/run/k0s/containerd-cri.toml\"]\nversion = 2\n";
    let change = |tree: &Tree| {
        tree.file("/etc/k0s/containerd.toml", old);
    };
    let remedy = "--runtime containerd --file /etc/k0s/containerd.d/99-onload-ctk.toml";
    assert_turns("engine-cdi", &tree, change, "fail", "CDI is off", remedy);
    let tree = Tree::new();
    tree.file("/snap/microk8s/current/bin/containerd", "");
    let (written, off) =
        ("/var/snap/microk8s/current/args/containerd.toml", "enable_cdi = false\n");
    let plugin = "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\n";
    tree.file(written, format!("{plugin}enable_cdi = true\n"));
    let change = |tree: &Tree| {
        tree.file(written, format!("{plugin}{off}"));
    };
    let remedy = "--file /var/snap/microk8s/current/args/containerd-template.toml";
    assert_turns("engine-cdi", &tree, change, "fail", "CDI is off", remedy);
}

#[test]
fn what_gives_gpu_memory_to_rdma_is_known_in_each_form() {
    let without = || {
        let tree = paired();
        tree.remove("/sys/module/nvidia_peermem");
        tree
    };
    let legacy = without();
    legacy.directory("/sys/module/nv_peer_mem");
    let open = without();
    open.file(NVIDIA, OPEN).attribute("/proc/sys/kernel/osrelease", "5.12.0");
    let peers = amd();
    peers.remove(AMD_CONFIG);
    peers.attribute("/sys/kernel/mm/memory_peers/amdkfd/version", "1.0");
    for tree in [legacy, open, peers] {
        let found = found(&tree, "peer-memory");
        assert_eq!(found[0]["verdict"], "pass", "{found:#?}");
    }
    let old = without();
    old.file(NVIDIA, OPEN).attribute("/proc/sys/kernel/osrelease", "5.4.0-216-generic");
    assert_eq!(found(&old, "peer-memory")[0]["verdict"], "warn");
}

const OF_GPUS: [&str; 5] = ["peer-memory", "gpu-acs", "gpu-iommu", "gpu-node", "data-direct"];

#[test]
fn a_host_without_gpus_or_without_rdma_has_no_check_of_both() {
    let nic = Tree::new();
    nic.machine("pci0000:10 0\n  dma 0000:10:00.0 V3=aa\n  nic 0000:10:01.0 mlx5_0 400 V3=aa\n");
    let gpu = Tree::new();
    gpu.machine("pci0000:10 0\n  gpu 0000:10:01.0 10de:2330\n");
    for tree in [nic, gpu] {
        tree.directory("/sys/module/nvidia");
        for check in OF_GPUS {
            assert!(found(&tree, check).is_empty(), "{check}");
        }
    }
}

#[test]
fn a_gpu_and_its_nic_without_a_switch_between_have_no_port_to_set() {
    let tree = amd();
    let found = found(&tree, "gpu-acs");
    assert_eq!(found[0]["verdict"], "pass", "{found:#?}");
    assert_eq!(found[0]["finding"], "no port between a GPU and its NIC has ACS");
}

#[test]
fn grubby_is_told_of_ports_too() {
    let tree = paired();
    acs(&tree, "0000:12:01.0", 0x1d, &[]);
    tree.program("/usr/sbin/grubby", "").program("/usr/bin/setpci", "");
    let expected = [
        "setpci -s 0000:12:01.0 ECAP_ACS+0x6.w=0001",
        "grubby --update-kernel=ALL --args=\"pci=disable_acs_redir=\\\"0000:12:00.0;0000:12:01.0\\\"\"",
    ];
    assert_eq!(remedies(&found(&tree, "gpu-acs")[0]), expected);
}

#[test]
fn a_containerd_that_no_kubelet_asks_may_have_cdi_off() {
    let tree = containerd("1.7.24", "version = 2\n");
    assert_eq!(found(&tree, "engine-cdi")[0]["verdict"], "fail");
    tree.remove("/usr/bin/kubelet");
    let checks = found(&tree, "engine-cdi");
    assert_eq!(checks[0]["verdict"], "pass", "{checks:#?}");
    let finding = text(&checks[0]["finding"]);
    assert!(finding.contains("there is no kubelet"), "{finding}");
}

#[test]
fn containers_that_docker_starts_itself_are_no_trouble() {
    let ours = STAYS_DOWN.replace("runc", "onload");
    let manual = STAYS_DOWN.replace("always", "no");
    for config in [ours.as_str(), &manual, "{}", "not json"] {
        let tree = restarting("26.1.5+dfsg1", config);
        let found = found(&tree, "engine-restarts");
        assert_eq!(found[0]["verdict"], "pass", "{config}: {found:#?}");
    }
    let tree = restarting("28.2.0", STAYS_DOWN);
    assert!(found(&tree, "engine-restarts").is_empty());
}

#[test]
fn an_engine_that_nobody_uses_is_named_and_left_alone() {
    let tree = docker("20.10.24", "{}");
    assert_eq!(found(&tree, "engine-version")[0]["verdict"], "fail");
    tree.file("/proc/stat", "cpu 1 2 3\nbtime 1000000\n");
    assert!(found(&tree, "engine-version").is_empty());
    assert!(found(&tree, "engine-cdi").is_empty());
    let engine = found(&tree, "engine");
    let finding = text(&engine[0]["finding"]);
    assert!(finding.contains("neither runs nor starts at boot"), "{finding}");
    assert_eq!(engine[0]["verdict"], "pass");
    for wanted in ["multi-user.target.wants/docker.service", "sockets.target.wants/docker.socket"] {
        let link = format!("/etc/systemd/system/{wanted}");
        tree.link(&link, "/usr/lib/systemd/system/docker.service");
        assert_eq!(found(&tree, "engine-version").len(), 1, "{wanted}");
        tree.remove(&link);
    }
}

const NRI_UNIT: &str = "/etc/systemd/system/onload-nri.service";
const NRI_WANTED: &str = "/etc/systemd/system/multi-user.target.wants/onload-nri.service";
const NRI_SOCKET: &str = "/proc/78/fd/3";
const CONTAINERD_2_NRI: &str =
    "version = 3\n[plugins.'io.containerd.nri.v1.nri']\ndisable = false\n";

/// A host whose annotations a plugin answers that runs as this service and has a socket of its own.
fn plugin(tree: Tree, service: &str) -> Tree {
    let tree = allowing(tree);
    tree.program("/usr/bin/onload-nri", "");
    tree.file("/proc/stat", "cpu 1 2 3\nbtime 1000000\n");
    for (pid, daemon) in [(79, "containerd"), (80, "crio"), (81, "dockerd")] {
        tree.file(&format!("/proc/{pid}/comm"), format!("{daemon}\n"));
        tree.file(&format!("/proc/{pid}/cgroup"), "0::/system.slice/x.service\n");
    }
    tree.file("/proc/78/comm", "onload-nri\n");
    let cgroup = format!("0::/system.slice/{service}.service\n");
    tree.file("/proc/78/cgroup", cgroup);
    tree.link("/proc/78/fd/2", "socket:[4]");
    tree.link(NRI_SOCKET, "socket:[5]");
    tree
}

fn nri(tree: Tree) -> Tree {
    let tree = plugin(tree, "onload-nri");
    tree.file("/usr/lib/systemd/system/onload-nri.service", "");
    tree.link(NRI_WANTED, "/usr/lib/systemd/system/onload-nri.service");
    tree
}

fn launched_nri() -> Tree {
    let tree = plugin(containerd("2.0.5", CONTAINERD_2), "containerd");
    tree.link("/opt/nri/plugins/50-onload-kernel-bypass", "/usr/bin/onload-nri");
    tree.file("/proc/78/comm", "50-onload-kerne\n");
    tree
}

fn with_hooks() -> Tree {
    let tree = podman("5.4.2", "");
    let hook = r#"{"version":"1.0.0","stages":["createRuntime"]}"#;
    tree.file("/usr/share/containers/oci/hooks.d/vendor.json", hook);
    tree
}

#[test]
fn larger_huge_pages_than_of_2_mib_are_for_vfio_alone() {
    const GIB: u64 = 1 << 20;
    let config = "[host]\nhugepages = { 1Gi = { 0 = 2 } }\n";
    let own = "node 0 has no huge pages of 2 MiB for ens3";
    let bare = x3();
    bare.remove("/usr/lib/x86_64-linux-gnu/libonload_zf.so");
    // Of Ef10, Onload itself takes none.
    let second = x4();
    second.remove("/usr/lib/x86_64-linux-gnu/libonload_zf.so");
    second.remove("/sys/bus/auxiliary/devices/sfc.llct.0");
    for (tree, finding) in [
        (x3(), Some(own)),
        (bare, Some(own)),
        (x4(), Some("node 0 has no huge pages of 2 MiB for ens4f0 and 1 more")),
        (second, None),
        (sriov("vfio-pci"), Some("node 0 has 4 huge pages for 0000:81:02.0")),
    ] {
        tree.hugepages(2048, &[(0, 0, 0)]);
        tree.hugepages(GIB, &[(0, 4, 4)]);
        tree.config(config);
        let found = found(&tree, "hugepages");
        let actual = found.first().map(|found| text(&found["finding"]));
        let actual = actual.as_deref();
        assert_eq!(actual, finding, "{found:#?}");
        if actual == Some(own) {
            let line =
                "/etc/onload-ctk/config.toml: hugepages = { 2Mi = { 0 = 64 }, 1Gi = { 0 = 2 } }";
            assert_eq!(remedies(&found[0])[1], line);
        }
    }
}

#[test]
fn a_physical_function_on_vfio_keeps_its_virtual_ones() {
    let tree = sriov("vfio-pci");
    rebind(&tree, "0000:81:00.0", "vfio-pci");
    let found = found(&tree, "physical-functions");
    assert_eq!(found[0]["verdict"], "pass", "{found:#?}");
    let text = found[0]["finding"].as_str().unwrap();
    assert!(
        text.contains(
            "it has 2 virtual functions and is bound to vfio-pci: a program that opens one of its"
        ),
        "{text}"
    );
    assert!(text.contains("must give its VF token"), "{text}");
}

/// A file takes no second line of a name: doctor's own remedy broke config.toml.
#[test]
fn what_is_configured_is_applied_and_not_written_a_second_time() {
    let filters = af_xdp("ens1 xdp none 4\n", "1");
    filters.config("[host]\naf-xdp-flow-filters = false\n");
    let pages = x3();
    pages.hugepages(2048, &[(0, 0, 0)]);
    pages.config("[host]\nhugepages = { 2Mi = { 0 = 8 } }\n");
    for (tree, check) in [(filters, "af-xdp"), (pages, "hugepages")] {
        let found = found(&tree, check);
        assert_eq!(remedies(&found[0]), ["onload-ctk host apply"], "{found:#?}");
    }
}

#[test]
fn an_ignored_interface_that_is_not_there_is_warned_of() {
    let tree = x3();
    tree.config("[discover]\nignored-interfaces = [\"ens4\", \"ens3\"]\n");
    let found = found(&tree, "config");
    assert_eq!(found.len(), 1, "{found:#?}");
    let text = found[0]["finding"].as_str().unwrap();
    assert!(text.contains("ignored-interfaces names \"ens4\""), "{text}");
    assert_eq!(found[0]["verdict"], "warn");
}

/// `onload_tool reload` of a real Onload fails while a stack lives.
#[test]
fn a_reload_comes_after_what_has_a_stack_was_stopped() {
    const ID: &str = "3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a";
    let tree = x3();
    tree.file(
        "/proc/driver/onload/version",
        "onload_product: Onload\nonload_version: 9.9\nuk_intf_ver: 00000000000000000000000000000000\n",
    );
    let steps = |tree: &Tree| {
        let found = found(tree, "onload-library");
        let steps: Vec<String> =
            remedies(&found[0]).iter().take(4).map(ToString::to_string).collect();
        (found[0]["finding"].as_str().unwrap().to_owned(), steps)
    };
    let [drain, reload, undrain] =
        ["onload-ctk drain nic", "onload_tool reload", "onload-ctk undrain nic"];
    assert_eq!(steps(&tree).1[..3], [drain, reload, undrain]);
    tree.file("/proc/driver/onload/stacks", "0: 77 0 1 2 3\n1: 901 0 1 2 3\n2: 0 0 1 2 3\n");
    tree.file("/proc/77/cgroup", format!("0::/system.slice/docker-{ID}.scope\n"));
    tree.file(&format!("/var/lib/docker/containers/{ID}/config.v2.json"), r#"{"Name":"/redis"}"#);
    let (text, steps) = steps(&tree);
    assert!(
        text.contains("stop first what has stacks of Onload: redis (docker), process 901, connections that ended programs left"),
        "{text}"
    );
    assert_eq!(steps, [drain, "docker stop redis", reload, undrain]);
}

/// A container with CAP_BPF can end Onload's XDP program, and only a reload makes another one.
#[test]
fn a_registration_that_a_container_ended_is_made_again_after_a_reload() {
    let tree = af_xdp("ens1 xdp on 4\n", "1");
    tree.config("[host]\naf-xdp = [\"ens1\"]\n");
    let lease = leased_interface(true)
        .read("run/onload-ctk/@leases/netdev=ens1v0#0")
        .replace("ens1v0", "ens1")
        .replace("0000:3b:02.7", "0000:41:00.0");
    tree.boot("a-boot").process(42, 7);
    tree.file("run/onload-ctk/@leases/netdev=ens1#0", &lease);
    let interfaces = || found(&tree, "onload-interface")[0]["finding"].clone();
    assert_eq!(interfaces(), "accelerated: ens1, ens3");
    let lease = lease.replace("its MTU", "its registration with Onload for AF_XDP");
    tree.file("run/onload-ctk/@leases/netdev=ens1#0", lease);
    let returning = &found(&tree, "returning")[0];
    assert_eq!(returning["verdict"], "warn");
    let finding = text(&returning["finding"]);
    assert!(
        finding.contains("no other container gets it, and Onload does not reach it"),
        "{finding}"
    );
    assert_eq!(
        remedies(returning),
        [
            "onload-ctk drain nic",
            "onload_tool reload",
            "onload-ctk host apply",
            "onload-ctk lease restore",
            "onload-ctk undrain nic"
        ]
    );
    assert_eq!(interfaces(), "accelerated: ens3");
    assert_eq!(found(&tree, "af-xdp"), [] as [Value; 0]);
}

checks! {
    a_module_that_is_not_loaded_is_named: "onload-modules", x3(),
        |tree| { tree.remove("/sys/class/sfc_char"); }
        => "fail", "not loaded: sfc_char", "modprobe --all sfc_char";
    a_library_of_another_build_than_the_driver_fails: "onload-library", x3(),
        |tree| { tree.file("/proc/driver/onload/version",
            "onload_product: Onload\nonload_version: 9.9\nuk_intf_ver: 00000000000000000000000000000000\n"); }
        => "fail", "built for another driver than the loaded driver 9.9", "onload_tool reload";
    a_reload_drops_registrations_for_af_xdp_which_the_unit_brings_back: "onload-library", packaged(),
        |tree| { tree.config("[host]\naf-xdp = [\"ens3\"]\n");
            tree.file("/proc/driver/onload/version",
            "onload_product: Onload\nonload_version: 9.9\nuk_intf_ver: 00000000000000000000000000000000\n"); }
        => "fail", "a reload drops the registrations for AF_XDP", "systemctl restart onload-host.service";
    a_library_of_another_build_leaves_programs_to_the_kernel: "onload-library", x3(),
        |tree| { tree.file("/proc/driver/onload/version",
            "onload_product: Onload\nonload_version: 9.9\nuk_intf_ver: 00000000000000000000000000000000\n"); }
        => "fail", "run on the kernel's sockets or, with EF_NO_FAIL=0, get no TCP or UDP socket", "onload_tool reload";
    a_driver_without_a_library_fails: "onload-library", x3(),
        |tree| { tree.remove("/usr/lib/x86_64-linux-gnu"); }
        => "fail", "libonload.so is in none of the library directories", "find / -xdev -name libonload.so";
    a_build_without_a_version_is_told_without_one: "onload-library", x3(),
        |tree| { tree.file("/proc/driver/onload/version",
            "onload_product: Onload\nonload_version: \nuk_intf_ver: 00000000000000000000000000000000\n");
            tree.attribute("/sys/module/onload/version", ""); }
        => "fail", "was built for another driver than the loaded driver: programs", "the modules and the library of one Onload from its release";
    a_control_plane_that_is_not_there_fails: "onload-control-plane", control_plane(),
        |tree| { tree.remove("/sbin/onload_cp_server"); }
        => "fail", "/sbin/onload_cp_server is missing: the driver cannot start it, and programs get no stack", "the user space of the same Onload";
    a_control_plane_that_cannot_be_executed_fails: "onload-control-plane", control_plane(),
        |tree| { tree.file("/sbin/onload_cp_server", "\x7fELF"); }
        => "fail", "is not an executable file", "chmod 755 /sbin/onload_cp_server";
    a_control_plane_of_another_path_is_set_to_the_installed_one: "onload-control-plane", control_plane(),
        |tree| { tree.attribute("/sys/module/onload/parameters/cplane_server_path", "/usr/bin/crictl"); }
        => "fail", "/usr/bin/crictl is missing", "echo /sbin/onload_cp_server > /sys/module/onload/parameters/cplane_server_path";
    a_member_that_onload_does_not_have_is_warned_of: "onload-bond", bonded("802.3ad 4", "ens3"),
        |tree| { tree.attribute("/sys/devices/virtual/net/bond0/bonding/slaves", "ens9 ens3"); }
        => "warn", "Onload does not accelerate its member ens9", "ip link set dev ens9 nomaster";
    onload_without_an_interface_is_warned_of: "onload-interface", x3(),
        |tree| { tree.config("[discover]\nignored-interfaces = [\"ens3\"]\n"); }
        => "warn", "no interface is accelerated", "onload-ctk discover --explain";
    an_interface_that_only_root_sees_is_not_missing: "onload-interface", af_xdp("", "1"),
        |tree| {
            tree.config("[discover]\nignored-interfaces = [\"ens3\"]\n[host]\naf-xdp = [\"ens1\"]\n");
            tree.remove("/sys/kernel/debug");
            tree.link("/sys/kernel/debug", "loop");
            tree.link("/sys/kernel/loop", "debug");
        }
        => "unknown", "which interfaces Onload accelerates is not known", "onload-ctk d";
    an_interface_that_is_down_is_warned_of: "interface-up", x3(),
        |tree| { tree.attribute("/sys/devices/pci0000:3b/0000:3b:00.0/net/ens3/operstate", "down"); }
        => "warn", "ens3 is down", "ip link set dev ens3 up";
    a_driver_without_flow_filters_fails_by_af_xdp: "af-xdp", af_xdp("ens1 xdp on 4\n", "1"),
        |tree| { tree.file("/interfaces.table", "ens1 xdp none 4\n"); }
        => "fail", "bind or listen of servers fails with \"Operation not supported\"", "/etc/onload-ctk/config.toml: af-xdp-flow-filters = false";
    flow_filters_that_are_off_are_warned_of: "af-xdp", af_xdp("ens1 xdp on 4\n", "1"),
        |tree| { tree.file("/interfaces.table", "ens1 xdp off 4\n"); }
        => "warn", "its flow filters are off", "ethtool -K ens1 ntuple on";
    modules_that_are_loaded_anew_are_set_anew: "onload-modules", packaged(),
        |tree| { tree.config("[host]\naf-xdp-flow-filters = false\n"); tree.remove("/sys/class/sfc_char"); }
        => "fail", "not loaded: sfc_char", "systemctl restart onload-host.service";
    a_registration_that_is_configured_is_made_again: "onload-interface", x3(),
        |tree| { tree.config("[discover]\nignored-interfaces = [\"ens3\"]\n[host]\naf-xdp = [\"ens3\"]\n"); }
        => "warn", "no interface is accelerated", "onload-ctk host apply";
    a_registration_that_is_configured_and_not_made_is_warned_of_beside_others: "onload-interface", af_xdp("", "1"),
        |tree| { tree.config("[host]\naf-xdp = [\"ens1\", \"eth9\"]\n");
            tree.attribute("/sys/devices/virtual/net/eth9/ifindex", "9");
            tree.link("/sys/class/net/eth9", "../../devices/virtual/net/eth9"); }
        => "warn", "[host] af-xdp names eth9, and it is not registered with Onload", "onload-ctk host apply";
    several_channels_without_flow_filters_are_warned_of: "af-xdp", af_xdp("ens1 xdp none 1\n", "0"),
        |tree| { tree.file("/interfaces.table", "ens1 xdp none 4\n"); }
        => "warn", "only connections whose hash meets", "ethtool -L ens1 combined 1";
    a_driver_that_does_not_say_leaves_it_unknown: "af-xdp", af_xdp("ens1 xdp on 4\n", "1"),
        |tree| { tree.remove("/interfaces.table"); }
        => "unknown", "is not known", "ethtool -k ens1";
    a_device_that_a_container_left_otherwise_is_warned_of: "returning", leased_interface(false),
        |tree| {
            let lease = "run/onload-ctk/@leases/netdev=ens1v0#0";
            tree.file(lease, leased_interface(true).read(lease));
        }
        => "warn", "it is not restored: its MTU is not as it was", "onload-ctk lease restore";
    containers_that_stay_down_after_a_boot_are_warned_of: "engine-restarts", restarting("26.1.5+dfsg1", "{}"),
        |tree| { tree.file(RESTARTED, STAYS_DOWN); }
        => "warn", "after each restart of docker without live-restore (moby issue 49989)", "docker start 0123456789ab";
    an_iommu_that_is_off_fails_where_a_function_is_bound_to_vfio: "iommu", sriov("vfio-pci"),
        |tree| without_groups(tree, "x86_64")
        => "fail", "the IOMMU is off", "update-grub";
    a_device_that_vfio_gives_away_without_an_iommu_fails: "iommu", sriov("vfio-pci"),
        |tree| {
            tree.attribute("/sys/kernel/iommu_groups/20/name", "vfio-noiommu");
            tree.attribute("/sys/class/vfio/noiommu-20/dev", "241:20");
            tree.node("/dev/vfio/noiommu-20", 241, 20);
        }
        => "fail", "vfio gives away 0000:81:02.0 without an IOMMU (noiommu)", "update-grub";
    an_iommu_that_is_off_is_warned_of_where_virtual_functions_are: "iommu", sriov("iavf"),
        |tree| without_groups(tree, "x86_64")
        => "warn", "the IOMMU is off", "echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX intel_iommu=on iommu=pt\"' >> /etc/default/grub";
    suse_makes_the_boot_loader_s_file_by_another_command: "iommu", sriov("vfio-pci"),
        |tree| { without_groups(tree, "x86_64"); tree.file("/etc/os-release", "ID=\"sles\"\nID_LIKE=\"suse\"\n"); }
        => "fail", "the IOMMU is off", "grub2-mkconfig -o /boot/grub2/grub.cfg";
    red_hats_boot_loader_is_told_by_grubby: "iommu", sriov("vfio-pci"),
        |tree| { without_groups(tree, "x86_64"); tree.program("/usr/sbin/grubby", ""); }
        => "fail", "the IOMMU is off", "grubby --update-kernel=ALL --args=\"intel_iommu=on iommu=pt\"";
    an_image_of_red_hats_takes_words_by_rpm_ostree: "iommu", sriov("vfio-pci"),
        |tree| {
            without_groups(tree, "x86_64");
            tree.file("/etc/os-release", "ID=fedora\nVARIANT_ID=coreos\n").file("/run/ostree-booted", "");
        }
        => "fail", "the IOMMU is off", "rpm-ostree kargs --append=\"intel_iommu=on\" --append=\"iommu=pt\"";
    a_snapshot_of_suses_gets_the_boot_loader_s_file: "iommu", sriov("vfio-pci"),
        |tree| {
            without_groups(tree, "x86_64");
            tree.file("/etc/os-release", "ID=\"sl-micro\"\nID_LIKE=\"suse\"\n");
            tree.program("/usr/sbin/transactional-update", "");
        }
        => "fail", "the IOMMU is off", "transactional-update grub.cfg";
    an_smmu_that_is_off_is_turned_on_in_the_firmware: "iommu", sriov("vfio-pci"),
        |tree| without_groups(tree, "aarch64")
        => "fail", "the IOMMU is off", "systemctl reboot --firmware-setup";
    a_program_that_is_not_there_is_installed_first: "physical-functions", sriov("iavf"),
        |tree| { unbind(tree, "0000:81:00.0"); tree.file("/etc/os-release", "ID=fedora\n"); }
        => "warn", "bound to no driver", "dnf install driverctl";
    a_read_only_image_gets_a_program_by_rpm_ostree: "physical-functions", sriov("iavf"),
        |tree| {
            unbind(tree, "0000:81:00.0");
            tree.file("/etc/os-release", "ID=\"rhel\"\nID_LIKE=\"fedora\"\n").file("/run/ostree-booted", "");
        }
        => "warn", "bound to no driver", "rpm-ostree install --apply-live driverctl";
    a_read_only_snapshot_gets_a_program_in_a_new_one: "physical-functions", sriov("iavf"),
        |tree| {
            unbind(tree, "0000:81:00.0");
            tree.file("/etc/os-release", "ID=\"opensuse-microos\"\nID_LIKE=\"suse opensuse\"\n");
            tree.program("/usr/sbin/transactional-update", "");
        }
        => "warn", "bound to no driver", "transactional-update pkg install driverctl";
    a_package_is_called_otherwise_than_its_program: "cpu-governor", with_governor(),
        |tree| { tree.attribute(&governor(1), "schedutil"); tree.file("/etc/os-release", "ID=debian\n"); }
        => "warn", "schedutil", "apt-get install linux-cpupower";
    ubuntu_has_a_package_of_such_a_program_for_each_kernel: "cpu-governor", with_governor(),
        |tree| { tree.attribute(&governor(1), "schedutil"); tree.file("/etc/os-release", "ID=ubuntu\nID_LIKE=debian\n"); }
        => "warn", "schedutil", "apt-get install linux-tools-$(uname -r)";
    a_group_with_another_driver_fails_and_names_the_function: "iommu-groups", sriov("vfio-pci"),
        |tree| rebind(tree, "0000:81:02.1", "iavf")
        => "fail", "IOMMU group 20 also holds 0000:81:02.1", "driverctl set-override 0000:81:02.1 vfio-pci";
    a_group_with_an_interface_of_the_host_says_what_that_costs: "iommu-groups", sriov("vfio-pci"),
        |tree| {
            rebind(tree, "0000:81:02.1", "iavf");
            tree.interface("/sys/devices/pci0000:81/0000:81:02.1", "ens1v1");
        }
        => "fail", "which another driver has: with vfio the host loses its interface", "driverctl set-override 0000:81:02.1 vfio-pci";
    a_group_with_its_physical_function_is_split_by_the_firmware: "iommu-groups", sriov("vfio-pci"),
        |tree| {
            tree.remove("/sys/devices/pci0000:81/0000:81:00.0/iommu_group");
            tree.group("/sys/devices/pci0000:81/0000:81:00.0", 20);
        }
        => "fail", "also holds 0000:81:00.0, which another driver has: put each function into its own group", "systemctl reboot --firmware-setup";
    a_physical_function_without_a_driver_is_warned_of: "physical-functions", sriov("iavf"),
        |tree| unbind(tree, "0000:81:00.0")
        => "warn", "bound to no driver: nobody can set these up", "driverctl unset-override 0000:81:00.0";
    a_port_that_is_down_below_functions_for_dpdk_is_warned_of: "physical-functions", sriov("vfio-pci"),
        |tree| {
            tree.interface("/sys/devices/pci0000:81/0000:81:00.0", "ens1");
            tree.attribute("/sys/class/net/ens1/flags", "0x1002");
        }
        => "warn", "its interface ens1 is down: its virtual functions have no link", "ip link set dev ens1 up";
    a_node_without_huge_pages_for_its_device_is_warned_of: "hugepages", x3(),
        |tree| { tree.hugepages(2048, &[(0, 0, 0)]); }
        => "warn", "node 0 has no huge pages of 2 MiB for ens3", "/etc/onload-ctk/config.toml: hugepages = { 2Mi = { 0 = 64 } }";
    pages_that_are_configured_for_another_node_stay_configured: "hugepages", x3(),
        |tree| { tree.config("[host]\nhugepages = { 2Mi = { 1 = 8 }, 1Gi = { 1 = 2 } }\n"); tree.hugepages(2048, &[(0, 0, 0)]); }
        => "warn", "node 0 has no huge pages", "hugepages = { 2Mi = { 0 = 64, 1 = 8 }, 1Gi = { 1 = 2 } }";
    a_link_below_what_card_and_slot_give_is_warned_of: "pcie-link", with_link("8", Some("16")),
        |tree| set_link(tree, "4")
        => "warn", "runs at 16.0 GT/s on 4 lanes, and card and slot give 16.0 GT/s on 8 lanes", "lspci -vv -s 0000:3b:00.0";
    a_link_as_fast_as_a_small_slot_passes: "pcie-link", with_link("4", Some("4")),
        |tree| { tree.attribute("/sys/devices/pci0000:3b/max_link_width", "8"); }
        => "warn", "on 4 lanes, and card and slot give", "lspci";
    a_governor_that_follows_the_load_is_warned_of: "cpu-governor", with_governor(),
        |tree| { tree.attribute(&governor(1), "schedutil"); }
        => "warn", "schedutil", "cpupower frequency-set --governor performance";
    isolated_cpus_on_another_node_are_warned_of: "isolated-cpus", isolated(),
        |tree| { tree.attribute("/sys/devices/system/node/node0/cpulist", "0-1,4"); }
        => "warn", "reach node 0 across the sockets", "isolcpus=1,4";
    a_hook_that_is_not_there_fails: "hook", rdma(),
        |tree| { tree.remove("/usr/bin/onload-hook"); }
        => "fail", "/usr/bin/onload-hook is not there", "again from its file: dpkg -i onload-ctk_*.deb";
    a_hook_at_another_place_is_configured: "hook", rdma(),
        |tree| { tree.remove("/usr/bin/onload-hook").program("/usr/local/bin/onload-hook", ""); }
        => "fail", "is not there", "config.toml: hook-path = \"/usr/local/bin/onload-hook\"";
    a_limit_that_no_program_can_work_with_is_warned_of: "memlock", rdma(),
        |tree| { tree.config("[cdi]\nmemlock = 65536\n"); }
        => "warn", "memlock is 65536", "config.toml: memlock = \"unlimited\"";
    rdma_devices_of_one_namespace_fail_where_they_are_to_be_shared: "rdma-netns", rdma(),
        |tree| {
            tree.attribute("/sys/module/ib_core/parameters/netns_mode", "N");
            tree.config("[host]\nrdma-netns = \"shared\"\n");
        }
        => "fail", "rdma-netns is shared", "options ib_core netns_mode=1";
    a_mode_that_is_not_the_configured_one_fails: "rdma-netns", rdma(),
        |tree| { tree.config("[host]\nrdma-netns = \"exclusive\"\n"); }
        => "fail", "rdma-netns is exclusive", "options ib_core netns_mode=0";
    a_guid_of_zeros_is_a_matter_of_the_firmware: "rdma-guid", rdma(),
        |tree| { tree.attribute("/sys/class/infiniband/mlx5_0/node_guid", "0000:0000:0000:0000"); }
        => "warn", "its node GUID is zero", "firmware that has a GUID";
    a_port_whose_interface_is_down_is_warned_of: "rdma-port", rdma(),
        |tree| {
            tree.attribute("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN");
            tree.attribute("/sys/class/net/ens1/flags", "0x1002");
        }
        => "warn", "none of its ports is active: port 1 is DOWN", "ip link set dev ens1 up";
    a_port_without_a_carrier_is_not_brought_up_a_second_time: "rdma-port", rdma(),
        |tree| {
            tree.attribute("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN");
            tree.attribute("/sys/class/net/ens1/flags", "0x1003");
        }
        => "warn", "port 1 is DOWN", "ip -statistics link show dev ens1";
    a_port_of_infiniband_without_a_subnet_manager_is_warned_of: "rdma-port", rdma(),
        |tree| {
            tree.attribute("/sys/class/infiniband/mlx4_0/ports/1/state", "2: INIT");
            tree.attribute("/sys/class/infiniband/mlx4_0/ports/2/state", "1: DOWN");
        }
        => "warn", "port 1 is INIT, port 2 is DOWN", "sminfo -C mlx4_0 -P 1";
    a_port_of_infiniband_without_a_link_is_warned_of: "rdma-port", rdma(),
        |tree| {
            tree.attribute("/sys/class/infiniband/mlx4_0/ports/1/state", "1: DOWN");
            tree.attribute("/sys/class/infiniband/mlx4_0/ports/2/state", "1: DOWN");
        }
        => "warn", "port 1 is DOWN, port 2 is DOWN", "cat /sys/class/infiniband/mlx4_0/ports/1/phys_state";
    a_node_without_a_link_by_its_number_is_warned_of: "device-links", gdrcopy(),
        |tree| { tree.remove("/dev/char"); }
        => "warn", "/dev/char/510:0, the link to /dev/gdrdrv, is missing", "ln -s /dev/gdrdrv /dev/char/510:0";
    rdma_without_its_connection_manager_fails: "rdma-cm", rdma(),
        |tree| { tree.remove("/sys/class/misc/rdma_cm").without_node("/dev/infiniband/rdma_cm"); }
        => "fail", "librdmacm", "modprobe rdma_ucm";
    rdma_devices_that_the_hosts_libraries_do_not_serve_are_warned_of: "rdma-libraries", rdma_with_libraries(),
        |tree| { tree.remove("/etc/libibverbs.d/mlx5.driver"); }
        => "warn", "the host does not name the driver mlx5: only images", "apt-get install ibverbs-providers";
    a_host_without_libibverbs_is_warned_of: "rdma-libraries", rdma_with_libraries(),
        |tree| { tree.remove(&format!("{MULTIARCH}/libibverbs.so.1")); }
        => "warn", "the host has no libibverbs.so.1: only images", "apt-get install ibverbs-providers";
    a_provider_of_another_driver_s_kernel_abi_is_not_answered_with_a_package: "rdma-libraries", rdma_with_libraries(),
        |tree| {
            tree.attribute("/sys/class/infiniband_verbs/uverbs7/abi_version", "6");
            let provider = SharedLibrary::new("libmlx5-rdmav34.so").record("mlx5", 1, 1);
            tree.file(&format!("{MULTIARCH}/libibverbs/libmlx5-rdmav34.so"), provider.bytes());
        }
        => "warn", "serves kernel ABI 1 to 1, and the driver has 6: only images",
           "the provider library that belongs to the driver mlx5_core from where the driver comes from";
    a_driver_whose_provider_is_not_known_is_not_said_to_be_served: "rdma-libraries", rdma_with_libraries(),
        |tree| {
            tree.remove("/sys/bus/pci/devices/0000:3b:00.0/driver");
            tree.bind("/sys/bus/pci/devices/0000:3b:00.0", "of_tomorrow");
        }
        => "unknown", "which provider library its driver needs is not known",
           "the provider library that belongs to the driver of_tomorrow in the images";
    a_host_without_librdmacm_is_warned_of: "rdma-libraries", rdma_with_libraries(),
        |tree| { tree.remove(&format!("{MULTIARCH}/librdmacm.so.1")); }
        => "warn", "those of the host, which has no librdmacm.so.1", "apt-get install rdmacm-utils";
    gpu_memory_that_rdma_does_not_reach_is_warned_of: "peer-memory", paired(),
        |tree| { tree.remove("/sys/module/nvidia_peermem"); }
        => "warn", "nvidia_peermem is not loaded", "modprobe nvidia-peermem";
    closed_modules_on_a_kernel_without_peer_memory_are_replaced: "peer-memory", paired(),
        |tree| {
            tree.remove("/sys/module/nvidia_peermem").file(NVIDIA, CLOSED);
            tree.file("/proc/kallsyms", "0000000000000000 T ib_register_client\t[ib_core]\n");
        }
        => "warn", "does not load with the ib_core of this kernel", "NVIDIA's open kernel modules, 515 or newer from https://";
    a_kernel_without_peer_to_peer_is_warned_of: "peer-memory", amd(),
        |tree| { tree.file(AMD_CONFIG, "CONFIG_PCI_P2PDMA=y\n# CONFIG_DMABUF_MOVE_NOTIFY is not set\n"); }
        => "warn", "built without CONFIG_DMABUF_MOVE_NOTIFY", "a kernel with CONFIG_PCI_P2PDMA=y";
    a_kernel_whose_configuration_is_not_there_is_unknown: "peer-memory", amd(),
        |tree| { tree.remove(AMD_CONFIG); }
        => "unknown", "its configuration is not in /boot", "zgrep";
    ports_that_redirect_are_set_at_once: "gpu-acs", paired(),
        |tree| acs(tree, "0000:12:01.0", 0x1d, &[])
        => "warn", "at 0000:12:01.0", "setpci -s 0000:12:01.0 ECAP_ACS+0x6.w=0001";
    ports_that_redirect_stay_set_after_a_boot: "gpu-acs", paired(),
        |tree| acs(tree, "0000:12:01.0", 0x1d, &[])
        => "warn", "slow or fails", "GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX pci=disable_acs_redir=\\\"0000:12:00.0;0000:12:01.0\\\"\"' >> /etc/default/grub";
    a_nic_that_translates_itself_passes_ports_that_redirect: "gpu-acs", paired(),
        |tree| {
            acs(tree, "0000:14:00.0", 0, &[0x01, 0x0f]);
            acs(tree, "0000:12:00.0", 0x1d, &[]);
            acs(tree, "0000:12:01.0", 0x1d, &[]);
        }
        => "warn", "at 0000:12:01.0", "setpci -s 0000:12:01.0 ECAP_ACS+0x6.w=005d";
    ports_of_data_direct_are_set_by_the_kernel: "gpu-acs", data_direct(),
        |tree| acs(tree, "0008:02:00.0", 0x1d, &[])
        => "warn", "at 0008:02:00.0", "pci=config_acs=\\\"xx111x0@0008:00:00.0;xx110x1@0008:02:00.0;xx101x1@0008:02:01.0\\\"";
    data_direct_on_a_kernel_without_config_acs_wants_a_newer_one: "gpu-acs", data_direct(),
        |tree| {
            acs(tree, "0008:02:00.0", 0x1d, &[]);
            tree.attribute("/proc/sys/kernel/osrelease", "6.8.0-51-generic");
        }
        => "warn", "at 0008:02:00.0", "Linux 6.11 or newer, which knows pci=config_acs";
    ports_of_which_a_user_sees_a_part_are_unknown: "gpu-acs", paired(),
        |tree| { tree.file(&config_space("0000:12:01.0"), [0; 64]); }
        => "unknown", "only root reads all of /sys/bus/pci/devices/0000:12:01.0/config", "sudo onload-ctk doctor";
    an_iommu_that_translates_is_warned_of: "gpu-iommu", paired(),
        |tree| { tree.attribute("/sys/kernel/iommu_groups/8/type", "DMA-FQ"); }
        => "warn", "translates (DMA-FQ) what 0000:14:00.0 does", "systemctl reboot";
    an_iommu_of_intel_or_amd_passes_on_by_its_word: "gpu-iommu", paired(),
        |tree| {
            tree.attribute("/sys/kernel/iommu_groups/8/type", "DMA-FQ");
            tree.attribute("/proc/sys/kernel/arch", "x86_64");
        }
        => "warn", "translates (DMA-FQ)", "$GRUB_CMDLINE_LINUX iommu=pt";
    an_smmu_passes_on_by_another_word: "gpu-iommu", paired(),
        |tree| {
            tree.attribute("/sys/kernel/iommu_groups/8/type", "DMA-FQ");
            tree.attribute("/proc/sys/kernel/arch", "aarch64");
        }
        => "warn", "translates (DMA-FQ)", "$GRUB_CMDLINE_LINUX iommu.passthrough=1";
    a_nic_on_the_other_node_is_warned_of: "gpu-node", paired(),
        |tree| {
            tree.machine("pci0000:80 1\n  bridge 0000:80:01.0\n    gpu 0000:81:00.0 10de:2330\n");
        }
        => "warn", "no RDMA device is on its NUMA node: what mlx5_0 sends", "onload-ctk topology --matrix";
    a_nic_that_is_down_leaves_the_other_node: "gpu-node", paired(),
        |tree| {
            let function = Pci { numa_node: 1, ..Pci::network("0000:81:00.0", "15b3:1021", "") };
            let function = tree.pci_below("pci0000:80/0000:80:01.0", function);
            tree.rdma(&function, "mlx5_1", 1);
            tree.attribute("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN");
        }
        => "warn", "mlx5_0 on its NUMA node cannot be used now", "onload-ctk discover --explain";
    a_nic_whose_link_is_down_is_brought_up: "gpu-node", paired(),
        |tree| {
            let function = Pci { numa_node: 1, ..Pci::network("0000:81:00.0", "15b3:1021", "") };
            let function = tree.pci_below("pci0000:80/0000:80:01.0", function);
            tree.rdma(&function, "mlx5_1", 1);
            tree.attribute("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN");
            tree.interface("/sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0", "ens1");
        }
        => "warn", "mlx5_0 on its NUMA node cannot be used now", "ip link set dev ens1 up";
    a_data_direct_function_without_a_driver_is_warned_of: "data-direct", data_direct(),
        |tree| { tree.remove("/sys/bus/pci/devices/0008:03:00.0/driver"); }
        => "warn", "no driver has the Data Direct function 0008:03:00.0", "modprobe mlx5_ib";
    a_data_direct_function_in_a_group_of_its_own_is_warned_of: "data-direct", data_direct(),
        |tree| grouped(tree, &[("0008:03:00.0", 11)])
        => "warn", "are not in one IOMMU group", "pci=config_acs=\\\"xx111x0@0008:00:00.0;xx110x1@0008:02:00.0;xx101x1@0008:02:01.0\\\"";
    data_direct_without_dma_buf_is_warned_of: "data-direct", data_direct(),
        |tree| { tree.file(NVIDIA, CLOSED); }
        => "warn", "takes memory of a GPU as dma-buf alone", "NVIDIA's open kernel modules";
    data_direct_that_cannot_be_paired_is_warned_of: "data-direct", data_direct(),
        |tree| { tree.file("/sys/bus/pci/devices/0000:03:00.0/vpd", [0xff; 32]); }
        => "warn", "the VPD of the NIC 0000:03:00.0", "onload-ctk discover --explain";
    what_is_drained_is_warned_of: "drained", written(),
        |tree| { tree.file("/etc/onload-ctk/drain.json", r#"{"version":1,"drained":[{"class":"nic","since":0,"reason":"an upgrade"}]}"#); }
        => "warn", "drained since 1970-01-01T00:00:00Z: an upgrade: no container gets it", "onload-ctk undrain nic";
    specifications_of_another_day_fail: "specs-fresh", written(),
        |tree| { tree.remove("/var/run/cdi/onload.dev-nic.json"); }
        => "fail", "1 file out of date", "onload-ctk cdi generate";
    specifications_are_written_by_the_packages_unit_where_it_is: "specs-fresh", packaged(),
        |tree| { tree.remove("/var/run/cdi/onload.dev-nic.json"); }
        => "fail", "1 file out of date", "systemctl start onload-cdi.service";
    a_file_that_somebody_changed_is_warned_of: "specs-fresh", written(),
        |tree| { tree.file("/var/run/cdi/onload.dev-nic.json", "{}"); }
        => "warn", "1 file changed by another program or user", "onload-ctk cdi generate --force";
    a_manifest_that_cannot_be_read_is_not_known: "specs-fresh", written(),
        |tree| { tree.file("/var/run/cdi/.onload-ctk-manifest", "{"); }
        => "unknown", "manifest", "onload-ctk cdi check";
    a_file_that_no_engine_reads_fails: "specs-valid", written(),
        |tree| { tree.file("/etc/cdi/vendor.json", "{"); }
        => "fail", "engines do not read it", "/etc/cdi/vendor.json";
    a_device_in_two_files_fails: "specs-conflict", written(),
        |tree| { fs::copy(tree.path("/var/run/cdi/onload.dev-nic.json"), tree.path("/var/run/cdi/copy.json")).unwrap(); }
        => "fail", "is in two files", ".off";
    a_file_that_another_hides_is_warned_of: "specs-conflict", written(),
        |tree| {
            tree.directory("/etc/cdi");
            fs::copy(tree.path("/var/run/cdi/onload.dev-nic.json"), tree.path("/etc/cdi/onload.dev-nic.json")).unwrap();
        }
        => "warn", "has no effect", "/etc/cdi/onload.dev-nic.json.off";
    a_file_that_rootless_engines_cannot_read_is_warned_of: "specs-readable", written(),
        |tree| { tree.chmod("/var/run/cdi/onload.dev-nic.json", 0o640); }
        => "warn", "rootless engines cannot read it", "chmod o+r";
    a_directory_that_they_cannot_search_is_warned_of: "specs-readable", written(),
        |tree| { tree.chmod("/var/run/cdi", 0o700); }
        => "warn", "rootless engines cannot read it", "chmod o+rx";
    a_program_that_others_can_change_fails: "trust", written(),
        |tree| { tree.chmod("/usr/bin/onload-hook", 0o775); }
        => "fail", "others can change it", "chmod go-w /usr/bin/onload-hook";
    a_directory_of_it_that_others_can_change_fails: "trust", written(),
        |tree| { tree.chmod("/usr/bin", 0o777); }
        => "fail", "others can change it", "chmod go-w /usr/bin";
    a_unit_that_is_not_enabled_fails: "units", packaged(),
        |tree| { tree.remove("/etc/systemd/system/timers.target.wants/onload-cdi.timer"); }
        => "fail", "does not start at boot", "systemctl enable --now onload-cdi.timer";
    a_unit_that_is_masked_fails: "units", packaged(),
        |tree| { tree.link("/etc/systemd/system/onload-cdi.service", "/dev/null"); }
        => "fail", "masked", "systemctl unmask onload-cdi.service";
    the_hosts_unit_is_wanted_where_the_configuration_asks_for_it: "units", packaged(),
        |tree| { tree.config("[host]\nhugepages = { 2Mi = { 0 = 128 } }\n"); }
        => "fail", "does not start at boot", "systemctl enable --now onload-host.service";
    rules_that_are_not_there_fail: "udev-rules", packaged(),
        |tree| { tree.remove("/usr/lib/udev/rules.d/90-onload-ctk.rules"); }
        => "fail", "is not there", "again from its file: dpkg -i onload-ctk_*.deb";
    rules_that_others_stand_in_for_are_warned_of: "udev-rules", packaged(),
        |tree| { tree.link("/etc/udev/rules.d/90-onload-ctk.rules", "/dev/null"); }
        => "warn", "in place of", "rm /etc/udev/rules.d/90-onload-ctk.rules";
    selinux_that_keeps_containers_from_devices_of_the_host_is_warned_of: "selinux", selinux(),
        |tree| { tree.file("/sys/fs/selinux/booleans/container_use_devices", "0 0"); }
        => "warn", "nodes that are mounted from the host", "setsebool -P container_use_devices=true";
    apparmor_that_keeps_podman_from_namespaces_is_warned_of: "apparmor",
        { let tree = podman("5.4.2", ""); tree.attribute("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "0"); tree },
        |tree| { tree.attribute("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"); }
        => "warn", "making namespaces", "kernel.apparmor_restrict_unprivileged_userns = 0";
    a_file_that_docker_does_not_understand_fails: "engine", docker("28.3.0", "{}"),
        |tree| { tree.file("/etc/docker/daemon.json", "{"); }
        => "fail", "/etc/docker/daemon.json is not understood", "dockerd --validate";
    a_file_that_containerd_does_not_understand_fails: "engine", containerd("1.7.24", CONTAINERD_1),
        |tree| toml(tree, "version = = 2")
        => "fail", "/etc/containerd/config.toml is not understood", "containerd config dump";
    a_file_that_crio_does_not_understand_fails: "engine", crio("[crio.runtime]\n"),
        |tree| { tree.file("/etc/crio/crio.conf.d/50-dirs.conf", "[crio"); }
        => "fail", "/etc/crio/crio.conf.d/50-dirs.conf is not understood", "crio config";
    a_file_that_podman_does_not_understand_fails: "engine", podman("5.4.2", ""),
        |tree| { tree.file("/etc/containers/containers.conf.d/50.conf", "[engine"); }
        => "fail", "/etc/containers/containers.conf.d/50.conf is not understood", "podman info";
    a_file_that_k3s_does_not_understand_fails: "engine", k3s(CONTAINERD_2),
        |tree| { tree.file(K3S, "version"); }
        => "fail", "config.toml is not understood", "journalctl -u k3s";
    a_host_without_an_engine_is_warned_of: "engine", docker("28.3.0", "{}"),
        |tree| { tree.remove("/usr/bin/dockerd"); }
        => "warn", "no container engine", "apt-get install podman";
    a_host_is_told_the_command_of_its_own_distribution: "engine", docker("28.3.0", "{}"),
        |tree| { tree.remove("/usr/bin/dockerd"); tree.file("/etc/os-release", "ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n"); }
        => "warn", "no container engine", "zypper install podman";
    a_host_of_arch_is_told_of_pacman: "engine", docker("28.3.0", "{}"),
        |tree| { tree.remove("/usr/bin/dockerd"); tree.file("/usr/lib/os-release", "ID=arch\n"); }
        => "warn", "no container engine", "pacman -S podman";
    a_host_of_alpine_is_told_of_apk: "engine", docker("28.3.0", "{}"),
        |tree| { tree.remove("/usr/bin/dockerd"); tree.file("/etc/os-release", "ID=alpine\n"); }
        => "warn", "no container engine", "apk add podman";
    a_host_of_fedora_is_told_of_dnf: "engine", docker("28.3.0", "{}"),
        |tree| { tree.remove("/usr/bin/dockerd"); tree.file("/etc/os-release", "ID=fedora\n"); }
        => "warn", "no container engine", "dnf install podman";
    a_program_of_the_package_comes_back_by_rpm_where_that_is: "hook", rdma(),
        |tree| { tree.remove("/usr/bin/onload-hook").file("/etc/os-release", "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"); }
        => "fail", "/usr/bin/onload-hook is not there", "its file: rpm -U --replacepkgs onload-ctk-[0-9]*.rpm";
    a_list_of_runtimes_without_the_default_one_fails: "engine-default-runtime", containerd("1.7.24", CONTAINERD_1),
        |tree| toml(tree, &format!("version = 2\n{CRI_1}.runtimes.onload]\n"))
        => "fail", "the default runtime \"runc\" is not registered: its plugin for Kubernetes does not load",
           "/etc/containerd/config.toml: runtime_type = \"io.containerd.runc.v2\"";
    a_default_runtime_that_no_file_of_containerd_2_registers_fails: "engine-default-runtime",
        containerd("2.1.9", &format!("version = 2\n{CRI_1}.runtimes.onload]\n")),
        |tree| toml(tree, &format!("version = 2\n{CRI_1}]\ndefault_runtime_name = 'gone'\n"))
        => "fail", "the default runtime \"gone\" is not registered", "/etc/containerd/config.toml: default_runtime_name = \"runc\"";
    a_drop_in_that_replaces_the_section_of_containerd_1_fails: "engine-default-runtime",
        containerd("1.7.24", &format!("version = 2\nimports = ['/etc/containerd/conf.d/*.toml']\n{CRI_1}.runtimes.runc]\n")),
        |tree| { tree.file("/etc/containerd/conf.d/9.toml", format!("version = 2\n{CRI_1}.runtimes.onload]\n")); }
        => "fail", "\"runc\" is not registered", "/etc/containerd/conf.d/9.toml: runtime_type";
    a_docker_without_cdi_fails: "engine-version", docker("26.1.5+dfsg1-9", CDI_ON),
        |tree| upgraded(tree, "docker.io", "20.10.24+dfsg1-1")
        => "fail", "20.10.24 is too old: CDI needs 25.0.0", "docker 25.0.0 or later from https://docs.docker.com/engine/install/";
    an_engine_whose_version_cannot_be_told_is_not_known: "engine-version", docker("26.1.5", CDI_ON),
        |tree| { tree.remove("/var/lib/dpkg/status"); }
        => "unknown", "its version is unknown", "/usr/bin/dockerd --version";
    an_old_podman_fails: "engine-version", podman("5.4.2+ds1-2", ""),
        |tree| upgraded(tree, "podman", "3.4.4+ds1-1")
        => "fail", "3.4.4 is too old: CDI needs 4.1.0", "podman 4.1.0 or later from https://podman.io/docs/installation";
    an_old_containerd_fails: "engine-version", containerd("1.7.24~ds1-6", CONTAINERD_1),
        |tree| upgraded(tree, "containerd.io", "1.6.33-1")
        => "fail", "1.6.33 is too old: CDI needs 1.7.0", "containerd 1.7.0 or later from https://github.com/containerd/containerd";
    an_old_crio_fails: "engine-version", crio(""),
        |tree| upgraded(tree, "cri-o", "1.23.5-1")
        => "fail", "1.23.5 is too old: CDI needs 1.24.0", "crio 1.24.0 or later from https://github.com/cri-o/packaging";
    an_old_kubelet_fails: "engine-version", kubelet("1.31.0-1.1", ""),
        |tree| upgraded(tree, "kubelet", "1.27.16-1.1")
        => "fail", "1.27.16 is too old: CDI in device plugins needs 1.28.0", "kubelet 1.28.0 or later from https://kubernetes.io/docs/";
    a_docker_26_needs_to_be_told_of_cdi: "engine-cdi", docker("26.1.5", CDI_ON),
        |tree| { tree.file("/etc/docker/daemon.json", "{}"); }
        => "fail", "CDI is off", "onload-ctk runtime configure --runtime docker --restart";
    a_docker_28_can_be_told_otherwise: "engine-cdi", docker("28.3.0", "{}"),
        |tree| { tree.file("/etc/docker/daemon.json", r#"{"features":{"cdi":false}}"#); }
        => "fail", "CDI is off", "--runtime docker";
    a_docker_of_unknown_version_that_is_not_told_is_not_known: "engine-cdi", docker("28.3.0", "{}"),
        |tree| { tree.remove("/var/lib/dpkg/status"); }
        => "unknown", "depends on its version", "/usr/bin/dockerd --version";
    a_containerd_1_needs_to_be_told_of_cdi: "engine-cdi", containerd("1.7.24", CONTAINERD_1),
        |tree| toml(tree, "version = 2\n")
        => "fail", "CDI is off", "--runtime containerd --restart";
    a_containerd_2_can_be_told_otherwise: "engine-cdi", containerd("2.0.5", CONTAINERD_2),
        |tree| toml(tree, "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n")
        => "fail", "CDI is off", "--runtime containerd --restart";
    a_file_that_containerd_imports_counts: "engine-cdi", containerd("1.7.24", CONTAINERD_1),
        |tree| {
            toml(tree, "imports = [\"/etc/containerd/conf.d/*.toml\"]\nversion = 2\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = true\n");
            tree.file("/etc/containerd/conf.d/9.toml", "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = false\n");
        }
        => "fail", "CDI is off", "--runtime containerd";
    a_k3s_of_containerd_1_needs_to_be_told: "engine-cdi", k3s(CONTAINERD_1),
        |tree| { tree.file(K3S, "version = 2\n"); }
        => "fail", "CDI is off", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl: enable_cdi = true";
    a_k3s_of_containerd_2_can_be_told_otherwise: "engine-cdi", k3s(CONTAINERD_2),
        |tree| { tree.file(K3S, "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n"); }
        => "fail", "CDI is off", "config-v3.toml.tmpl: enable_cdi = true";
    a_kubelet_whose_gate_is_closed_fails: "engine-cdi", kubelet("1.31.0-1.1", "kind: KubeletConfiguration\n"),
        |tree| { tree.file("/var/lib/kubelet/config.yaml", "featureGates:\n  DevicePluginCDIDevices: false\n"); }
        => "fail", "CDI is off", "/var/lib/kubelet/config.yaml: DevicePluginCDIDevices: true";
    a_kubelet_of_1_28_needs_to_be_told: "engine-cdi", kubelet("1.28.3-1.1", "featureGates:\n  DevicePluginCDIDevices: true\n"),
        |tree| { tree.file("/var/lib/kubelet/config.yaml", "featureGates: {}\n"); }
        => "fail", "CDI is off", "DevicePluginCDIDevices: true";
    docker_that_looks_elsewhere_fails: "engine-spec-dirs", docker("28.3.0", r#"{"cdi-spec-dirs":["/etc/cdi","/run/cdi/"]}"#),
        |tree| { tree.file("/etc/docker/daemon.json", r#"{"cdi-spec-dirs":["/srv/cdi"]}"#); }
        => "fail", "does not look into /var/run/cdi", "/etc/docker/daemon.json: \"cdi-spec-dirs\": [\"/srv/cdi\", \"/var/run/cdi\"]";
    docker_whose_flag_names_other_directories_fails: "engine-spec-dirs", docker("28.3.0", r#"{"cdi-spec-dirs":["/run/cdi"]}"#),
        |tree| {
            let start = "/usr/bin/dockerd -H fd:// --cdi-spec-dir=/srv/cdi";
            tree.file("/etc/systemd/system/docker.service", format!("[Service]\nExecStart={start}\n"));
        }
        => "fail", "add a flag beside --cdi-spec-dir", "/etc/systemd/system/docker.service: --cdi-spec-dir=/var/run/cdi";
    containerd_that_looks_elsewhere_fails: "engine-spec-dirs",
        containerd("2.0.5", "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\ncdi_spec_dirs = ['/var/run/cdi']\n"),
        |tree| toml(tree, "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\ncdi_spec_dirs = ['/etc/cdi']\n")
        => "fail", "does not look into", "/etc/containerd/config.toml: cdi_spec_dirs = [\"/etc/cdi\", \"/var/run/cdi\"]";
    crio_that_looks_elsewhere_fails: "engine-spec-dirs", crio("[crio.runtime]\ncdi_spec_dirs = ['/var/run/cdi']\n"),
        |tree| { tree.file("/etc/crio/crio.conf.d/50-dirs.conf", "[crio.runtime]\ncdi_spec_dirs = []\n"); }
        => "fail", "does not look into", "/etc/crio/crio.conf.d/50-dirs.conf: cdi_spec_dirs = [\"/var/run/cdi\"]";
    crio_1_24_without_etc_cdi_fails: "engine-spec-dirs", crio("[crio.runtime]\ncdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']\n"),
        |tree| upgraded(tree, "cri-o", "1.24.2~0")
        => "fail", "CRI-O 1.24.2 resolves no CDI name while /etc/cdi is missing", "mkdir -p /etc/cdi";
    podman_that_looks_elsewhere_fails: "engine-spec-dirs", podman("5.4.2", "[engine]\ncdi_spec_dirs = ['/var/run/cdi']\n"),
        |tree| { tree.file("/etc/containers/containers.conf.d/50.conf", "[engine]\ncdi_spec_dirs = ['/etc/cdi']\n"); }
        => "fail", "does not look into", "cdi_spec_dirs = [\"/etc/cdi\", \"/var/run/cdi\"]";
    pools_that_an_old_podman_does_not_read_are_warned_of: "engine-cdi-version", podman_and_vfio("5.4.2"),
        |tree| upgraded(tree, "podman", "4.3.1+ds1-8")
        => "warn", "supports CDI 0.5.0, which is too old for onload.dev-vfio-pools.json", "onload-ctk cdi generate --max-cdi-version 0.5.0";
    devices_that_an_older_one_does_not_read_fail: "engine-cdi-version", podman_and_vfio("5.4.2"),
        |tree| upgraded(tree, "podman", "4.1.0")
        => "fail", "onload.dev-vfio.json", "onload-ctk cdi generate --max-cdi-version 0.4.0";
    the_packages_unit_is_told_the_version_in_its_file: "engine-cdi-version", podman_and_vfio("5.4.2"),
        |tree| { upgraded(tree, "podman", "4.3.1"); tree.file("/usr/lib/systemd/system/onload-cdi.service", ""); }
        => "warn", "supports CDI 0.5.0", "ONLOAD_CTK_CDI_GENERATE_MAX_CDI_VERSION=0.5.0";
    docker_that_does_not_know_the_wrapper_is_warned_of: "engine-runtime", allowing(docker("28.3.0", DOCKER_RUNTIME)),
        |tree| { tree.file("/etc/docker/daemon.json", "{}"); }
        => "warn", "is not registered", "onload-ctk runtime configure --runtime docker";
    a_wrapper_that_is_registered_and_not_there_fails: "engine-runtime", allowing(docker("28.3.0", DOCKER_RUNTIME)),
        |tree| { tree.remove(WRAPPER); }
        => "fail", "onload-container-runtime is not there", "again from its file: dpkg -i onload-ctk_*.deb";
    docker_without_the_runtime_behind_ours_fails: "engine-runtime", allowing(docker("28.3.0", DOCKER_RUNTIME)),
        |tree| { tree.remove(RUNC); }
        => "fail", "the OCI runtime behind it was not found at /usr/bin/runc, ", "apt-get install runc";
    crio_without_the_runtime_that_is_configured_fails: "engine-runtime", allowing(crio("[crio.runtime.runtimes.onload]\n")),
        |tree| { tree.config("[annotations]\nallow = [\"nic\"]\n[runtime]\npath = \"/opt/runc\"\n"); }
        => "fail", "the OCI runtime behind it was not found at /opt/runc", "path = \"/usr/bin/runc\"";
    podman_without_the_runtime_behind_ours_fails: "engine-runtime", allowing(podman("5.4.2", "[engine.runtimes]\nonload = ['/usr/bin/onload-container-runtime']\n")),
        |tree| { tree.remove(RUNC); }
        => "fail", "the OCI runtime behind it was not found", "apt-get install runc";
    containerd_that_does_not_know_the_wrapper_is_warned_of: "engine-runtime",
        allowing(containerd("2.0.5", "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.onload]\n")),
        |tree| toml(tree, "version = 3\n")
        => "warn", "is not registered", "--runtime containerd";
    crio_that_does_not_know_the_wrapper_is_warned_of: "engine-runtime", allowing(crio("[crio.runtime.runtimes.onload]\n")),
        |tree| { tree.file("/etc/crio/crio.conf.d/50-dirs.conf", ""); }
        => "warn", "is not registered", "--runtime crio";
    podman_that_does_not_know_the_wrapper_is_warned_of: "engine-runtime", allowing(podman("5.4.2", "[engine.runtimes]\nonload = ['/usr/bin/onload-container-runtime']\n")),
        |tree| { tree.file("/etc/containers/containers.conf.d/50.conf", ""); }
        => "warn", "is not registered", "--runtime podman";
    nomad_that_may_not_use_the_wrapper_is_warned_of: "engine-runtime", nomad(),
        |tree| { tree.file("/etc/nomad.d/docker.hcl", "plugin \"docker\" {\n config {\n allow_runtimes = [\"runc\"] # \"onload\"\n }\n}\n"); }
        => "warn", "is not registered", "--runtime nomad";
    a_stage_that_other_readers_do_not_know_fails: "engine-hooks", with_hooks(),
        |tree| { tree.file("/usr/share/containers/oci/hooks.d/ours.json", r#"{"stages":["precreate"]}"#); }
        => "fail", "CRI-O does not start", "mv /usr/share/containers/oci/hooks.d/ours.json";
    hooks_that_podman_is_told_of_and_that_are_not_there_fail: "engine-hooks", with_hooks(),
        |tree| { tree.file("/etc/containers/containers.conf.d/50.conf", "[engine]\nhooks_dir = ['/usr/share/onload-ctk/hooks.d/podman']\n"); }
        => "fail", "is configured but missing", "again from its file: dpkg -i onload-ctk_*.deb";
    a_daemon_that_has_not_read_its_file_is_warned_of: "engine-restarted", running_docker(),
        |tree| changed_at(tree, "/etc/docker/daemon.json", 1_001_500)
        => "warn", "/etc/docker/daemon.json changed after it was started", "systemctl restart docker";
    a_file_from_the_future_may_have_been_read_or_not: "engine-restarted", running_docker(),
        |tree| changed_at(tree, "/etc/docker/daemon.json", 99_000_000_000)
        => "unknown", "whether it has read /etc/docker/daemon.json is unknown: its time lies in the future", "touch /etc/docker/daemon.json";
    a_plugin_that_no_runtime_has_taken_fails: "nri-plugin", nri(containerd("2.0.5", CONTAINERD_2)),
        |tree| { tree.remove(NRI_SOCKET); }
        => "fail", "no runtime has taken it: pods start without", "journalctl -u onload-nri.service";
    a_plugin_that_does_not_run_fails: "nri-plugin", nri(containerd("2.0.5", CONTAINERD_2)),
        |tree| { tree.remove("/proc/78"); }
        => "fail", "it does not run", "systemctl start onload-nri.service";
    a_plugin_whose_program_is_missing_fails: "nri-plugin", nri(containerd("2.0.5", CONTAINERD_2)),
        |tree| { tree.remove("/proc/78").remove("/usr/bin/onload-nri"); }
        => "fail", "/usr/bin/onload-nri is not there", "again from its file: dpkg -i onload-ctk_*.deb";
    a_plugin_that_does_not_start_at_boot_is_warned_of: "nri-plugin", nri(containerd("2.0.5", CONTAINERD_2)),
        |tree| { tree.remove(NRI_WANTED); }
        => "warn", "it does not start at boot", "systemctl enable --now onload-nri.service";
    a_plugin_that_is_masked_is_warned_of: "nri-plugin", nri(containerd("2.0.5", CONTAINERD_2_NRI)),
        |tree| { tree.remove("/proc/78").link(NRI_UNIT, "/dev/null"); }
        => "warn", "nothing starts the plugin", "systemctl unmask onload-nri.service";
    nri_that_is_turned_on_without_the_plugin_is_warned_of: "nri-plugin", nri(containerd("2.0.5", CONTAINERD_2_NRI)),
        |tree| { tree.remove("/proc/78").remove(NRI_WANTED); }
        => "warn", "nothing starts the plugin", "systemctl enable --now onload-nri.service";
    a_containerd_1_has_nri_off_unless_told: "nri-plugin",
        nri(containerd("1.7.24", "version = 2\n[plugins.'io.containerd.nri.v1.nri']\ndisable = false\n")),
        |tree| { tree.remove(NRI_SOCKET); toml(tree, CONTAINERD_1); }
        => "fail", "NRI is off in containerd", "onload-ctk runtime configure --runtime containerd --nri --restart";
    a_containerd_2_can_have_nri_off: "nri-plugin", nri(containerd("2.0.5", CONTAINERD_2)),
        |tree| { tree.remove(NRI_SOCKET); toml(tree, "disabled_plugins = ['io.containerd.nri.v1.nri']\nversion = 3\n"); }
        => "fail", "NRI is off in containerd", "--runtime containerd --nri";
    a_crio_can_have_nri_off: "nri-plugin", nri(crio("[crio.runtime]\n")),
        |tree| { tree.remove(NRI_SOCKET).file("/etc/crio/crio.conf.d/50-dirs.conf", "[crio.nri]\nenable_nri = false\n"); }
        => "fail", "NRI is off in crio", "--runtime crio --nri";
    a_plugin_that_the_runtime_has_lost_fails: "nri-plugin", launched_nri(),
        |tree| { tree.remove("/proc/78"); }
        => "fail", "has not launched it, or has lost it", "systemctl restart containerd";
}

#[test]
fn what_a_user_cannot_read_is_not_known() {
    if !is_root() {
        skipped("not root, so there is nobody with fewer rights to be");
        return;
    }
    let tree = x3();
    let discovery = found(&tree, "discovery");
    assert_eq!(discovery[0]["verdict"], "pass", "{discovery:?}");
    tree.chmod("/sys/bus/pci/devices", 0o700);
    let run = run_unprivileged(&tree, &JSON);
    let json = run.json();
    let checks = json["checks"].as_array().unwrap();
    let discovery = checks.iter().find(|c| c["name"] == "discovery").unwrap();
    assert_eq!(discovery["verdict"], "unknown", "{discovery}");
    assert_eq!(remedies(discovery), ["sudo onload-ctk doctor"]);
}

#[test]
fn root_is_told_what_discovery_says_and_not_to_be_root() {
    let tree = x3();
    tree.file("/etc/onload-ctk/drain.json", "{");
    let discovery = found(&tree, "discovery");
    assert_eq!(discovery[0]["verdict"], "unknown", "{discovery:?}");
    let remedy = if is_root() { "onload-ctk discover --explain" } else { "sudo onload-ctk doctor" };
    assert_eq!(remedies(&discovery[0]), [remedy]);
}

#[test]
fn each_daemon_is_known_by_its_own_process_service_and_files() {
    let containerd = containerd("2.0.5", CONTAINERD_2);
    let crio = crio("[crio.runtime]\n");
    let kubelet = kubelet("1.31.0-1.1", "featureGates: {}\n");
    let of_template = |at: usize| {
        let tree = k3s(CONTAINERD_2);
        tree.file(K3S_TEMPLATES[at], "{{ template \"base\" . }}\n");
        tree
    };
    for (tree, process, service, file) in [
        (containerd, "containerd", "containerd", "/etc/containerd/config.toml"),
        (crio, "crio", "crio", "/etc/crio/crio.conf.d/50-dirs.conf"),
        (nomad(), "nomad", "nomad", "/etc/nomad.d/docker.hcl"),
        (of_template(0), "k3s-server", "k3s", K3S_TEMPLATES[0]),
        (of_template(1), "k3s-agent", "k3s-agent", K3S_TEMPLATES[1]),
        (kubelet, "kubelet", "kubelet", "/var/lib/kubelet/config.yaml"),
    ] {
        let tree = running(tree, process, service, file);
        assert_turns(
            "engine-restarted",
            &tree,
            |tree| changed_at(tree, file, 1_001_500),
            "warn",
            &format!("{file} changed after it was started"),
            &format!("systemctl restart {service}"),
        );
    }
}

#[test]
fn k3s_with_another_data_directory_is_read_there() {
    let tree = Tree::new();
    tree.program("/usr/local/bin/k3s", "");
    // As the installer of k3s writes it.
    let unit = "[Service]\nExecStart=/usr/local/bin/k3s \\\n    server \\\n\t'--data-dir' \\\n\t'/srv/k3s' \\\n";
    tree.file("/etc/systemd/system/k3s.service", unit);
    tree.file("/srv/k3s/agent/etc/containerd/config.toml", "version = 2\n");
    // One that an earlier start left.
    tree.file(K3S, format!("{CONTAINERD_2}enable_cdi = true\n"));
    let found = found(&tree, "engine-cdi");
    assert_eq!(found[0]["verdict"], "fail", "{found:#?}");
    let template = "/srv/k3s/agent/etc/containerd/config.toml.tmpl";
    assert_eq!(found[0]["remedy"][0]["file"], template, "{found:#?}");
}

#[test]
fn what_k3s_writes_when_it_starts_asks_for_no_restart() {
    let drop_in = "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/9.toml";
    let tree = k3s(
        "imports = ['/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/*.toml']\nversion = 3\n",
    );
    tree.file(drop_in, "version = 3\n");
    let tree = running(tree, "k3s-server", "k3s", drop_in);
    // Some seconds after its process began, at boot and at each start.
    changed_at(&tree, K3S, 1_001_005);
    let check = "engine-restarted";
    let finding = format!("{drop_in} changed after it was started");
    let changed = |tree: &Tree| changed_at(tree, drop_in, 1_001_500);
    let restart = "systemctl restart k3s";
    assert_turns(check, &tree, changed, "warn", &finding, restart);
    let looked = found(&tree, check)[0]["looked_at"].take();
    let looked = looked.as_array().unwrap();
    for file in [K3S, drop_in, K3S_TEMPLATES[0], K3S_TEMPLATES[1]] {
        assert!(looked.contains(&file.into()), "{file}: {looked:?}");
    }
}

#[test]
fn every_check_has_a_test_and_stands_in_the_page() {
    let page = fs::read_to_string(package().join("docs/doctor.md")).unwrap();
    for name in onload_report::doctor::list_check_names() {
        assert!(
            COVERED.contains(&name) || ["config", "discovery"].contains(&name),
            "{name} has no test"
        );
        assert!(page.contains(&format!("| `{name}` |")), "{name} is not in docs/doctor.md");
    }
}

#[test]
fn the_exit_status_says_whether_a_check_fails_or_could_not_be_told() {
    let good = docker("28.3.0", "{}");
    let run = good.run(&["doctor"]).done();
    assert!(run.stdout.contains("0 failed, 0 unknown"), "{}", run.stdout);
    assert_eq!(run.stderr, "");
    good.remove("/var/lib/dpkg/status");
    let run = good.run(&JSON);
    assert_eq!((run.code, &run.json()["verdict"]), (Some(2), &"unknown".into()));
    good.file("/etc/docker/daemon.json", "{");
    let run = good.run(&JSON).answered_no();
    assert_eq!(run.json()["verdict"], "fail");
    // A warning is no failure.
    let run = Tree::new().run(&JSON).done();
    assert_eq!(run.json()["verdict"], "warn");
}

#[test]
fn what_does_not_pass_says_what_was_looked_at_and_what_to_do() {
    for (name, tree) in hosts::all() {
        let run = tree.run(&JSON);
        let json = run.json();
        for check in json["checks"].as_array().unwrap() {
            let is_skipped = check["verdict"] == "skipped";
            let is_good = is_skipped || check["verdict"] == "pass";
            assert_eq!(remedies(check).is_empty(), is_good, "{name}: {check}");
            assert_listed(check);
            assert!(
                is_skipped || !check["looked_at"].as_array().unwrap().is_empty(),
                "{name}: {check}"
            );
        }
    }
}

#[test]
fn a_command_stays_on_one_line_and_the_rest_keeps_to_the_terminal() {
    let tree = sriov("vfio-pci");
    without_groups(&tree, "x86_64");
    let shown = run(on(tree.root(), &["doctor"]).env("COLUMNS", "60")).answered_no().stdout;
    let wanted = "           run: echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX intel_iommu=on iommu=pt\"' >> /etc/default/grub\n";
    assert!(shown.contains(wanted), "{shown}");
    let is_remedy =
        |line: &&str| line.trim_start().starts_with("run: ") || line.contains("write to");
    for line in shown.lines().filter(|line| !is_remedy(line)) {
        assert!(line.chars().count() <= 60, "{line}");
    }
}

#[test]
fn verbose_shows_what_was_looked_at_where_all_is_well() {
    let tree = docker("28.3.0", "{}");
    let looked = "looked at /usr/bin/dockerd, /etc/docker/daemon.json";
    assert!(!tree.run(&["doctor"]).done().stdout.contains(looked));
    assert!(tree.run(&["doctor", "-v"]).done().stdout.contains(looked));
}

#[test]
fn a_name_with_escapes_does_not_steer_the_terminal() {
    let tree = written();
    tree.file("/etc/cdi/\u{1b}[31mred\n.json", "{");
    let shown = tree.run(&["doctor"]).answered_no().stdout;
    assert!(!shown.contains('\u{1b}'), "{shown}");
    assert!(shown.contains("\\u{1b}[31mred\\n.json"), "{shown}");
    let names = each(&tree.run(&JSON).json()["checks"], "name");
    assert!(names.contains(&"specs-valid".to_owned()), "{names:?}");
}

#[test]
fn a_containerd_whose_plugin_is_off_has_no_cdi_to_check() {
    let tree =
        containerd("1.7.24", "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n");
    let cdi = found(&tree, "engine-cdi");
    assert_eq!(cdi.len(), 1, "{cdi:?}");
    assert_eq!(cdi[0]["subject"], "kubelet");
}

#[test]
fn what_repairs_a_list_of_runtimes_is_written_where_containerd_reads_it() {
    let broken = format!("version = 2\n{CRI_1}.runtimes.onload]\n");
    let tree = containerd("1.7.24", &broken);
    let section = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]";
    let line = "runtime_type = \"io.containerd.runc.v2\"";
    let file = "/etc/containerd/config.toml";
    let check = "engine-default-runtime";
    assert_writes(&tree, check, file, Some(section), line);
    assert_eq!(remedies(&found(&tree, check)[0])[1], "systemctl restart containerd");
    toml(&tree, &format!("{broken}{section}\n{line}\n"));
    assert_eq!(found(&tree, check)[0]["verdict"], "pass");
    // Ours repairs it too, where it is configured.
    toml(&tree, &broken);
    tree.file("/etc/containerd/config.toml", "version = 2\n");
    tree.run(&["runtime", "configure", "--runtime", "containerd"]).done();
    assert_eq!(found(&tree, check)[0]["verdict"], "pass");
    // A plugin that is off has no default runtime.
    toml(&tree, &format!("disabled_plugins = ['cri']\n{broken}"));
    assert!(found(&tree, check).is_empty());
}

#[test]
fn a_host_without_onload_is_told_so() {
    let tree = docker("28.3.0", "{}");
    let run = tree.run(&["doctor", "--check", "onload-modules", "--format", "json"]).done();
    let checks = run.json()["checks"].take();
    assert_eq!(checks.as_array().unwrap().len(), 1);
    assert_eq!(checks[0]["verdict"], "skipped");
    assert_eq!(checks[0]["finding"], "Onload is not installed");
}

#[test]
fn problems_come_first_and_skipped_checks_last() {
    let tree = x2();
    let all = tree.run(&["doctor"]).answered_no().stdout;
    assert!(all.starts_with("Problems\n  fail "), "{all}");
    let order = ["\nHost\n", "\nSkipped\n", "skipped  ", " passed, "];
    let places: Vec<_> = order.iter().map(|part| all.find(part).unwrap()).collect();
    assert!(places.is_sorted(), "{all}");
    let problems = tree.run(&["doctor", "--problems"]).answered_no().stdout;
    assert!(all.starts_with(problems.split("\n\n").next().unwrap()), "{problems}");
    assert_eq!(problems.lines().last(), all.lines().last());
    for part in ["pass ", "skipped  "] {
        assert!(!problems.contains(part), "{problems}");
    }
}

#[test]
fn named_checks_alone_decide_the_exit_status() {
    let tree = x2();
    let run = tree.run(&["doctor", "--check", "interface-up,discovery"]).done();
    assert!(run.stdout.contains("interface-up ") && run.stdout.contains("discovery: "));
    assert!(!run.stdout.contains("specs-fresh"), "{}", run.stdout);
    let fresh = tree.run(&["doctor", "--check", "specs-fresh"]).answered_no();
    assert!(fresh.stdout.contains("files missing"), "{}", fresh.stdout);
    let refusal = tree.run(&["doctor", "--check", "hugepage"]).refused();
    assert!(refusal.contains("'hugepages'"), "{refusal}");
}

#[test]
fn every_check_has_a_verdict_on_every_host() {
    for (name, tree) in every_host() {
        let checks = tree.run(&JSON).json()["checks"].take();
        let checks = checks.as_array().unwrap();
        for check in onload_report::doctor::list_check_names() {
            let mut of_name = checks.iter().filter(|each| each["name"] == check);
            let finding = of_name.next().unwrap_or_else(|| panic!("{name}: no {check}"));
            assert!(!text(&finding["finding"]).is_empty(), "{name}: {check}");
        }
    }
}

/// Answers like dockerd, once for each text.
fn dockerd_says(tree: &Tree, info: &'static str) -> std::thread::JoinHandle<()> {
    use std::io::{Read, Write};
    let socket = tree.path("/run/docker.sock");
    fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let _ = fs::remove_file(&socket);
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 256];
        let length = stream.read(&mut request).unwrap();
        assert!(request[..length].starts_with(b"GET /info HTTP/1.0\r\n"));
        write!(stream, "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{info}").unwrap();
    })
}

#[test]
fn a_docker_that_was_told_to_read_its_file_again_is_asked_what_it_knows() {
    let tree = docker("28.3.0", DOCKER_RUNTIME);
    let file = "/etc/docker/daemon.json";
    let tree = running(tree, "dockerd", "docker", file);
    changed_at(&tree, file, 1_001_500);
    let asked = |info| {
        let dockerd = dockerd_says(&tree, info);
        let mut found = found(&tree, "engine-restarted");
        dockerd.join().unwrap();
        let found = found.remove(0);
        (text(&found["verdict"]), remedies(&found))
    };
    let none = Vec::<String>::new();
    let old = r#"{"Runtimes":{"runc":{}},"DefaultRuntime":"runc","CDISpecDirs":["/etc/cdi"]}"#;
    let reload = vec!["systemctl reload docker".to_owned()];
    assert_eq!(asked(old), ("warn".to_owned(), reload));
    let new = r#"{"Runtimes":{"runc":{},"onload":{}},"DefaultRuntime":"runc","CDISpecDirs":[]}"#;
    assert_eq!(asked(new), ("pass".to_owned(), none.clone()));
    // CDI is turned on when it starts.
    tree.file(file, CDI_ON);
    changed_at(&tree, file, 1_001_500);
    let restart = vec!["systemctl restart docker".to_owned()];
    let off = r#"{"Runtimes":{"runc":{}},"DefaultRuntime":"runc","CDISpecDirs":[]}"#;
    assert_eq!(asked(off), ("warn".to_owned(), restart.clone()));
    assert_eq!(asked(old), ("pass".to_owned(), none));
    assert_eq!(asked("what"), ("warn".to_owned(), restart));
}

#[test]
fn configuring_an_engine_again_says_that_it_has_not_read_its_file() {
    let tree = running_docker();
    let configure = ["runtime", "configure", "--runtime", "docker"];
    tree.run(&configure).done();
    let again = tree.run(&configure).done().stderr;
    assert!(again.contains("nothing to change"), "{again}");
    let unread = "docker: /etc/docker/daemon.json changed after it was started; run: systemctl restart docker";
    assert!(again.contains(unread), "{again}");
    changed_at(&tree, "/etc/docker/daemon.json", 1_000_500);
    let read = tree.run(&configure).done().stderr;
    assert!(!read.contains("restart"), "{read}");
}

#[test]
fn a_daemon_in_a_container_is_not_the_hosts() {
    let tree = running_docker();
    changed_at(&tree, "/etc/docker/daemon.json", 1_001_500);
    tree.file("/proc/77/cgroup", "0::/system.slice/docker-0123.scope\n");
    assert!(found(&tree, "engine-restarted").is_empty());
}

#[test]
fn a_host_that_answers_no_annotations_by_nri_has_no_plugin_to_check() {
    let none = |tree: &Tree| assert_eq!(found(tree, "nri-plugin"), Vec::<Value>::new());
    none(&allowing(containerd("2.0.5", CONTAINERD_2)));
    // Somebody else's plugins may be what NRI is on for.
    none(&containerd("2.0.5", CONTAINERD_2_NRI));
    let tree = nri(containerd("2.0.5", CONTAINERD_2));
    tree.file("/proc/78/cgroup", "0::/kubepods.slice/cri-containerd-01.scope\n");
    let checks = found(&tree, "nri-plugin");
    assert_eq!(checks[0]["finding"].as_str().unwrap().split(':').next(), Some("it does not run"));
    tree.remove(NRI_WANTED);
    none(&tree);
}

#[test]
fn a_tree_in_which_nothing_runs_is_asked_only_how_the_plugin_starts() {
    let tree = nri(containerd("2.0.5", CONTAINERD_2));
    tree.remove("/proc");
    assert_eq!(found(&tree, "nri-plugin")[0]["verdict"], "pass");
    toml(&tree, "version = 3\n[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n");
    assert_eq!(found(&tree, "nri-plugin")[0]["verdict"], "fail");
}

/// What is typed into a shell is shown in full.
#[track_caller]
fn assert_runs(tree: &Tree, check: &str, command: &str) {
    let found = found(tree, check);
    let commands: Vec<String> = found.iter().flat_map(remedies).collect();
    let is_it = |each: &String| each == command;
    assert!(commands.iter().any(is_it), "{command:?} in {commands:?}");
}

#[test]
fn a_name_of_the_host_runs_nothing_in_a_command_that_is_copied() {
    let tree = Tree::with_onload();
    let function = tree.pci(Pci::network("0000:3b:00.0", "10ee:5084", "xilinx_efct"));
    let efct = "sfc_resource.xilinx_efct";
    tree.auxiliary(&function, "xilinx_efct.efct.0", efct, Some("1"));
    let interface = tree.interface(&function, "$(reboot)");
    tree.attribute(&format!("{interface}/operstate"), "down");
    assert_runs(&tree, "interface-up", "ip link set dev '$(reboot)' up");

    let tree = written();
    let specs = tree.path("/var/run/cdi");
    let specs = specs.to_str().unwrap();
    fs::copy(format!("{specs}/onload.dev-nic.json"), format!("{specs}/onload.dev-nic;`id`.json"))
        .unwrap();
    tree.chmod("/var/run/cdi/onload.dev-nic;`id`.json", 0o662);
    tree.file("/var/run/cdi/a'b.json", "{");
    let dangerous = format!("{specs}/onload.dev-nic;`id`.json");
    let aside = format!("mv '{dangerous}' '{dangerous}.off'");
    assert_runs(&tree, "specs-conflict", &aside);
    let chmod = format!("chmod o+r '{dangerous}'");
    assert_runs(&tree, "specs-readable", &chmod);
    let chmod = "chmod go-w '/var/run/cdi/onload.dev-nic;`id`.json'";
    assert_runs(&tree, "trust", chmod);
    let validate = format!(r"onload-ctk cdi validate '{specs}/a'\''b.json'");
    assert_runs(&tree, "specs-valid", &validate);
}

#[test]
fn a_hook_whose_name_steers_the_terminal_is_moved_by_one_that_does_not() {
    let tree = with_hooks();
    let hooks = "/usr/share/containers/oci/hooks.d";
    let precreate = r#"{"stages":["precreate"]}"#;
    tree.file(&format!("{hooks}/\u{202e}a.json"), precreate);
    let command =
        format!(r"mv $'{hooks}/\342\200\256a.json' /usr/share/onload-ctk/hooks.d/podman/");
    assert_runs(&tree, "engine-hooks", &command);
    let shown = tree.run(&["doctor"]).answered_no().stdout;
    assert!(shown.contains(&command), "{shown}");
}

/// Asserts what a host's one finding of this kind tells to write.
#[track_caller]
fn assert_writes(tree: &Tree, check: &str, file: &str, section: Option<&str>, line: &str) {
    let found = found(tree, check);
    let remedy = &found[0]["remedy"][0];
    assert_eq!(remedy["file"], file, "{found:#?}");
    assert_eq!(remedy["section"].as_str(), section, "{found:#?}");
    assert_eq!(remedy["line"], line, "{found:#?}");
    let looked = found[0]["looked_at"].as_array().unwrap();
    assert!(looked.contains(&file.into()), "{found:#?}");
}

#[test]
fn the_file_that_said_where_to_look_is_the_one_to_change() {
    let dirs_line = "cdi_spec_dirs = ['/etc/cdi']\n";
    let line = "cdi_spec_dirs = [\"/etc/cdi\", \"/var/run/cdi\"]";
    let check = "engine-spec-dirs";

    let tree = podman("5.4.2", "[engine]\nenv = ['http_proxy=http://a']\n");
    let file = "/etc/containers/containers.conf";
    tree.file(file, format!("[engine]\n{dirs_line}"));
    assert_writes(&tree, check, file, Some("[engine]"), line);

    let tree = crio("[crio.metrics]\nenable_metrics = true\n");
    let file = "/etc/crio/crio.conf";
    tree.file(file, format!("[crio.runtime]\n{dirs_line}"));
    assert_writes(&tree, check, file, Some("[crio.runtime]"), line);

    for plugin in ["cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"] {
        let table = format!("[plugins.\"{plugin}\"]");
        let imports = "imports = ['/etc/containerd/conf.d/*.toml']\nversion = 3\n";
        let tree = containerd("2.0.5", &format!("{imports}{table}\n{dirs_line}"));
        tree.file("/etc/containerd/conf.d/99-proxy.toml", "version = 3\n");
        let file = "/etc/containerd/config.toml";
        assert_writes(&tree, check, file, Some(&table), line);
    }
}

#[test]
fn the_last_file_that_said_where_to_look_is_the_one_to_change() {
    let check = "engine-spec-dirs";
    let text = "[engine]\ncdi_spec_dirs = ['/etc/cdi']\n";
    let tree = podman("5.4.2", text);
    tree.file("/etc/containers/containers.conf", "[engine]\ncdi_spec_dirs = ['/var/run/cdi']\n");
    let line = "cdi_spec_dirs = [\"/etc/cdi\", \"/var/run/cdi\"]";
    let drop_in = "/etc/containers/containers.conf.d/50.conf";
    assert_writes(&tree, check, drop_in, Some("[engine]"), line);
    // What counts is good, whatever an earlier file said.
    tree.file("/etc/containers/containers.conf", text);
    tree.file(drop_in, "[engine]\ncdi_spec_dirs = ['/var/run/cdi']\n");
    let found = found(&tree, check);
    assert_eq!(found[0]["verdict"], "pass", "{found:#?}");
    assert_eq!(found[0]["looked_at"], serde_json::json!([drop_in]));
}

#[test]
fn a_file_without_sections_is_told_of_none() {
    let tree = docker("28.3.0", r#"{"cdi-spec-dirs":["/srv/\"cdi"]}"#);
    let line = r#""cdi-spec-dirs": ["/srv/\"cdi", "/var/run/cdi"]"#;
    let file = "/etc/docker/daemon.json";
    assert_writes(&tree, "engine-spec-dirs", file, None, line);
}

#[test]
fn what_k3s_writes_anew_at_each_start_is_changed_in_its_template() {
    let dirs_line = "cdi_spec_dirs = ['/etc/cdi']\n";
    let tree = k3s(&format!("{CONTAINERD_2}{dirs_line}"));
    let found = found(&tree, "engine-spec-dirs");
    let remedy = &found[0]["remedy"][0];
    let template = "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl";
    assert_eq!(remedy["file"], template);
}

/// `runtime configure` does not turn CDI on in a template, and restarts nothing that reads a file of another name.
#[test]
fn k3s_is_told_where_cdi_is_turned_on_and_restarted_by_its_own_service() {
    for (config, process, service, at, section) in [
        ("version = 2\n", "k3s-agent", "k3s-agent", 1, "grpc.v1.cri"),
        (
            "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n",
            "k3s-server",
            "k3s",
            0,
            "cri.v1.runtime",
        ),
    ] {
        let tree = running(k3s(config), process, service, K3S);
        let found = found(&tree, "engine-cdi");
        let remedy = found[0]["remedy"].as_array().unwrap();
        assert_eq!(remedy[0]["file"], K3S_TEMPLATES[at], "{found:#?}");
        let section = format!("[plugins.\"io.containerd.{section}\"]");
        assert_eq!(remedy[0]["section"], section, "{found:#?}");
        let restart = format!("systemctl restart {service}");
        assert_eq!(remedies(&found[0])[1..], [restart], "{found:#?}");
    }
}

const GRUB: &str = "/etc/default/grub";
const FIRMWARE: &str = "systemctl reboot --firmware-setup";
const ADDS: &str = "echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX intel_iommu=on";

#[test]
fn the_iommu_is_turned_on_where_this_host_has_it_off() {
    let first = |vendor: &str, line: &str, grub: &str| {
        let tree = sriov("vfio-pci");
        without_groups(&tree, "x86_64");
        tree.file("/proc/cpuinfo", format!("processor\t: 0\nvendor_id\t: {vendor}\n"));
        tree.file("/proc/cmdline", format!("{line}\n")).file(GRUB, grub);
        remedies(&found(&tree, "iommu")[0]).join("; ")
    };
    let empty = "GRUB_CMDLINE_LINUX=\"\"\n";
    for (vendor, line, grub, remedy) in [
        ("AuthenticAMD", "quiet", empty, FIRMWARE.to_owned()),
        ("HygonGenuine", "quiet iommu=pt", empty, FIRMWARE.to_owned()),
        ("GenuineIntel", "quiet intel_iommu=on,sm_on", empty, FIRMWARE.to_owned()),
        ("GenuineIntel", "intel_iommu=on iommu=pt", empty, FIRMWARE.to_owned()),
        ("GenuineIntel", "quiet", empty, format!("{ADDS} iommu=pt\"' >> {GRUB}")),
        ("GenuineIntel", "quiet iommu=pt", empty, format!("{ADDS}\"' >> {GRUB}")),
        // What is behind `--` is for init.
        ("GenuineIntel", "-- intel_iommu=on", empty, format!("{ADDS} iommu=pt\"' >> {GRUB}")),
        (
            "GenuineIntel",
            "intel_iommu=off",
            empty,
            format!("sed -i 's|intel_iommu=off|intel_iommu=on|' {GRUB}"),
        ),
        (
            "AuthenticAMD",
            "amd_iommu=off",
            empty,
            format!("sed -i 's|amd_iommu=off|iommu=pt|' {GRUB}"),
        ),
        ("AuthenticAMD", "iommu=off", empty, format!("sed -i 's|iommu=off|iommu=pt|' {GRUB}")),
        // It is written, and the host was not rebooted since.
        (
            "GenuineIntel",
            "quiet",
            "GRUB_CMDLINE_LINUX=\"intel_iommu=on iommu=pt\"\n",
            "update-grub".to_owned(),
        ),
        (
            "AuthenticAMD",
            "amd_iommu=off",
            "GRUB_CMDLINE_LINUX='iommu=pt'\n",
            "update-grub".to_owned(),
        ),
    ] {
        let rest = if remedy == FIRMWARE {
            ""
        } else if remedy == "update-grub" {
            "; systemctl reboot"
        } else {
            "; update-grub; systemctl reboot"
        };
        assert_eq!(first(vendor, line, grub), format!("{remedy}{rest}"), "{vendor} {line} {grub}");
    }
}

#[test]
fn an_iommu_that_translates_in_spite_of_its_word_is_not_told_it_again() {
    for (arch, word) in [("x86_64", "iommu=pt"), ("aarch64", "iommu.passthrough=1")] {
        let tree = paired();
        tree.attribute("/sys/kernel/iommu_groups/8/type", "DMA-FQ");
        tree.attribute("/proc/sys/kernel/arch", arch);
        tree.file("/proc/cmdline", format!("quiet {word}\n"));
        let steps = ["echo identity > /sys/kernel/iommu_groups/8/type"];
        assert_eq!(remedies(&found(&tree, "gpu-iommu")[0]), steps, "{arch}");
    }
}

#[test]
fn a_virtual_function_gets_its_guid_from_its_physical_one() {
    let rebind = [
        "echo 0000:3b:00.2 > /sys/bus/pci/drivers/mlx5_core/unbind",
        "echo 0000:3b:00.2 > /sys/bus/pci/drivers/mlx5_core/bind",
    ];
    for (layer, set) in [
        ("Ethernet", &["ip link set dev ens1 vf 3 mac MAC"][..]),
        (
            "InfiniBand",
            &[
                "ip link set dev ens1 vf 3 node_guid GUID",
                "ip link set dev ens1 vf 3 port_guid GUID",
            ],
        ),
    ] {
        let tree = rdma();
        let child = tree.pci(Pci::network("0000:3b:00.2", "15b3:101e", "mlx5_core"));
        tree.virtual_function("/sys/devices/pci0000:3b/0000:3b:00.0", 3, &child);
        let device = tree.rdma(&child, "mlx5_1", 9);
        tree.rdma_port(&device, 1, layer);
        tree.attribute(&format!("{device}/node_guid"), "0000:0000:0000:0000");
        // What sets it is no bond, and no subfunction's interface.
        let bond = tree.class_device("net", "/sys/devices/virtual", "bond0", &[]);
        tree.link(&format!("{bond}/lower_ens1"), "/sys/class/net/ens1");
        tree.attributes("/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs", &[("0", "bond0")]);
        let subfunction = "/sys/devices/pci0000:3b/0000:3b:00.0/mlx5_core.sf.4";
        tree.rdma(subfunction, "mlx5_00", 11);
        tree.interface(subfunction, "enp59s0f0s88");
        let found = found(&tree, "rdma-guid");
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(remedies(&found[0]), [set, &rebind].concat());
    }
}

/// A host whose driver starts its default control plane.
fn control_plane() -> Tree {
    let tree = x3();
    tree.attribute("/sys/module/onload/parameters/cplane_server_path", "");
    tree.program("/sbin/onload_cp_server", "\x7fELF");
    tree
}

#[test]
fn a_control_plane_that_the_driver_does_not_start_may_be_missing() {
    let tree = control_plane();
    tree.remove("/sbin/onload_cp_server");
    let warning = "control plane /sbin/onload_cp_server is missing";
    assert!(tree.run(&["discover"]).done().stderr.contains(warning));
    tree.attribute("/sys/module/onload/parameters/cplane_spawn_server", "N");
    assert!(found(&tree, "onload-control-plane").is_empty());
    assert!(!tree.run(&["discover"]).done().stderr.contains(warning));
}

/// A host with a bond, and one interface that Onload has, ens3.
fn bonded(mode: &str, members: &str) -> Tree {
    let tree = x3();
    let bond = tree.class_device("net", "/sys/devices/virtual", "bond0", &[]);
    tree.attribute(&format!("{bond}/bonding/slaves"), members);
    tree.attribute(&format!("{bond}/bonding/mode"), mode);
    tree
}

#[test]
fn a_bond_that_onload_does_not_accelerate_is_warned_of() {
    for (mode, members, expected) in [
        ("active-backup 1", "ens3", None),
        ("802.3ad 4", "ens3", None),
        ("active-backup 1", "ens8 ens9", None),
        (
            "802.3ad 4",
            "ens3 ens9",
            Some((
                "bond bond0 is not accelerated: Onload does not accelerate its member ens9",
                &["ip link set dev ens9 nomaster"][..],
            )),
        ),
        (
            "balance-rr 0",
            "ens3",
            Some((
                "bond bond0 is not accelerated: its mode is balance-rr, and Onload supports active-backup and 802.3ad",
                &[
                    "ip link set dev bond0 down",
                    "ip link set dev ens3 nomaster",
                    "ip link set dev bond0 type bond mode active-backup",
                    "ip link set dev ens3 master bond0",
                    "ip link set dev bond0 up",
                ],
            )),
        ),
    ] {
        let tree = bonded(mode, members);
        let found = found(&tree, "onload-bond");
        let stderr = tree.run(&["discover"]).done().stderr;
        match expected {
            Some((finding, commands)) => {
                assert_eq!(found[0]["finding"], finding);
                assert_eq!(remedies(&found[0]), commands);
                assert!(stderr.contains(finding), "{stderr}");
            }
            None => {
                assert!(found.iter().all(|one| one["verdict"] == "pass"), "{found:#?}");
                assert!(!stderr.contains("bond0"), "{stderr}");
            }
        }
    }
}

/// A host with GDRCopy, whose node a script made.
fn gdrcopy() -> Tree {
    let tree = Tree::new();
    tree.file("/proc/devices", "Character devices:\n510 gdrdrv\n\nBlock devices:\n254 virtblk\n");
    tree.node("/dev/gdrdrv", 510, 0);
    tree.link("/dev/char/510:0", "../gdrdrv");
    tree
}

#[test]
fn a_node_without_a_link_is_no_matter_to_a_newer_runc_or_without_systemd() {
    let verdicts = |tree: &Tree| {
        let found = found(tree, "device-links");
        found.iter().map(|found| text(&found["verdict"])).collect::<Vec<_>>()
    };
    let tree = gdrcopy();
    tree.remove("/dev/char");
    assert_eq!(verdicts(&tree), ["warn"]);
    tree.file("/etc/os-release", "ID=alpine\n");
    assert!(verdicts(&tree).is_empty());
    // Each other class has a device in sysfs, for which udev creates the link.
    assert!(found(&rdma(), "device-links").is_empty());
}

/// A host with an RDMA device of each of these node types, and without a connection manager.
fn without_rdma_cm(node_types: &[&str]) -> Tree {
    let tree = Tree::new();
    for (index, node_type) in (0..).zip(node_types) {
        let address = format!("0000:0{index}:00.0");
        let function = tree.pci(Pci::network(&address, "1d0f:efa1", "efa"));
        let device = tree.rdma(&function, &format!("device_{index}"), index);
        tree.attribute(&format!("{device}/node_type"), node_type);
    }
    tree
}

#[test]
fn the_connection_manager_is_asked_for_by_devices_that_can_use_it() {
    let nobody = ["7: unspecified", "5: usNIC", "6: usNIC UDP"];
    let tree = without_rdma_cm(&nobody);
    assert!(found(&tree, "rdma-cm").is_empty());
    let run = tree.run(&["discover"]).done();
    assert!(!run.stderr.contains("librdmacm"), "{}", run.stderr);
    for one in ["1: CA", "4: RNIC", "nobody knows"] {
        let tree = without_rdma_cm(&[nobody[0], one]);
        let load = ["modprobe rdma_ucm", "/etc/modules-load.d/onload-ctk.conf: rdma_ucm"];
        assert_eq!(remedies(&found(&tree, "rdma-cm")[0]), load, "{one}");
        tree.file("/etc/modules-load.d/onload-ctk.conf", "rdma_ucm\n");
        assert_eq!(remedies(&found(&tree, "rdma-cm")[0]), load[..1], "{one}");
        tree.attribute("/sys/class/misc/rdma_cm/dev", "10:122");
        let make = ["mknod -m 666 /dev/infiniband/rdma_cm c 10 122"];
        assert_eq!(remedies(&found(&tree, "rdma-cm")[0]), make, "{one}");
    }
}

#[test]
fn alpine_is_rebooted_without_systemd() {
    let tree = sriov("vfio-pci");
    without_groups(&tree, "x86_64");
    let last = |tree: &Tree| remedies(&found(tree, "iommu")[0]).pop();
    assert_eq!(last(&tree).as_deref(), Some("systemctl reboot"));
    tree.file("/etc/os-release", "ID=alpine\n");
    assert_eq!(last(&tree).as_deref(), Some("reboot"));
}

#[test]
fn without_systemd_the_units_of_the_archive_start_nothing() {
    let tree = packaged();
    tree.remove("/etc/systemd/system");
    tree.remove("/var/run/cdi/onload.dev-nic.json");
    let fresh = |tree: &Tree| remedies(&found(tree, "specs-fresh")[0]).pop();
    assert_eq!(fresh(&tree).as_deref(), Some("systemctl start onload-cdi.service"));
    assert!(!found(&tree, "units").is_empty());
    tree.file("/etc/os-release", "ID=alpine\n");
    assert_eq!(fresh(&tree).as_deref(), Some("onload-ctk cdi generate"));
    for check in ["units", "udev-rules"] {
        assert!(found(&tree, check).is_empty(), "{check}");
    }
}

#[test]
fn engines_of_alpine_are_restarted_by_openrc() {
    let tree = running(
        k3s("version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n"),
        "k3s-server",
        "k3s",
        K3S,
    );
    tree.file("/etc/os-release", "ID=alpine\n");
    let last = remedies(&found(&tree, "engine-cdi")[0]).pop();
    assert_eq!(last.as_deref(), Some("rc-service k3s restart"));
}

#[test]
fn a_boot_loader_that_is_not_grub_is_given_the_words() {
    let tree = sriov("vfio-pci");
    without_groups(&tree, "x86_64");
    tree.remove("/etc/default/grub");
    let steps = [r#"{"kernel_line":"intel_iommu=on iommu=pt"}"#, "systemctl reboot"];
    assert_eq!(remedies(&found(&tree, "iommu")[0]), steps);
    let shown = tree.run(&["doctor"]).answered_no().stdout;
    let line = "add to the kernel's line in the boot loader: intel_iommu=on iommu=pt\n";
    assert!(shown.contains(line), "{shown}");

    let tree = isolated();
    tree.remove("/etc/default/grub");
    tree.attribute("/sys/devices/system/node/node0/cpulist", "0-1,4");
    tree.file("/proc/cmdline", "quiet isolcpus=2-3\n");
    let steps = [r#"{"kernel_line":"isolcpus=1,4","replaces":"isolcpus=2-3"}"#, "systemctl reboot"];
    assert_eq!(remedies(&found(&tree, "isolated-cpus")[0]), steps);
    let shown = tree.run(&["doctor"]).stdout;
    let line = "in the kernel's line in the boot loader: isolcpus=2-3 by isolcpus=1,4\n";
    assert!(shown.contains(line), "{shown}");
}

#[test]
fn words_for_grub_stand_behind_those_that_are_there() {
    let off = sriov("vfio-pci");
    without_groups(&off, "x86_64");
    let redirecting = paired();
    acs(&redirecting, "0000:12:01.0", 0x1d, &[]);
    let ports = "pci=disable_acs_redir=\"0000:12:00.0;0000:12:01.0\"";
    for (tree, check, words) in
        [(off, "iommu", "intel_iommu=on iommu=pt"), (redirecting, "gpu-acs", ports)]
    {
        let file = "/etc/default/grub";
        tree.file(file, "GRUB_CMDLINE_LINUX=\"crashkernel=1G a=b\"\n");
        let steps = remedies(&found(&tree, check)[0]);
        let step = steps.iter().find(|step| step.contains(file)).unwrap();
        let path = tree.root().join("etc/default/grub");
        let step = step.replace(file, path.to_str().unwrap());
        let script = format!("{step}\n. {}\nprintf %s \"$GRUB_CMDLINE_LINUX\"", path.display());
        let mut sh = Command::new("sh");
        let read = run(sh.args(["-c", &script])).stdout;
        assert_eq!(read, format!("crashkernel=1G a=b {words}"));
    }
}

#[test]
fn quotes_of_a_word_are_for_grub_alone() {
    let ports = "0000:12:00.0;0000:12:01.0";
    for (grub, words) in [
        (None, format!("pci=disable_acs_redir={ports}")),
        (Some("/boot/grub2/grub.cfg"), format!("pci=disable_acs_redir=\"{ports}\"")),
        (Some("/boot/grub/grub.cfg"), format!("pci=disable_acs_redir=\"{ports}\"")),
    ] {
        let tree = paired();
        acs(&tree, "0000:12:01.0", 0x1d, &[]);
        tree.remove("/etc/default/grub");
        if let Some(grub) = grub {
            tree.file(grub, "");
        }
        let found = found(&tree, "gpu-acs");
        let last = found[0]["remedy"].as_array().unwrap().last().unwrap();
        assert_eq!(last["kernel_line"], words, "{found:#?}");
    }
}

#[test]
fn isolated_cpus_are_changed_in_the_word_that_isolates_them() {
    let tree = isolated();
    tree.attribute("/sys/devices/system/node/node0/cpulist", "0-1,4");
    let line = "BOOT_IMAGE=/vmlinuz quiet isolcpus=managed_irq,domain,2-3 -- isolcpus=7";
    tree.file("/proc/cmdline", format!("{line}\n"));
    let checks = found(&tree, "isolated-cpus");
    let steps = [
        "sed -i 's|isolcpus=managed_irq,domain,2-3|isolcpus=managed_irq,domain,1,4|' /etc/default/grub",
        "update-grub",
        "systemctl reboot",
    ];
    assert_eq!(remedies(&checks[0]), steps);
    assert_eq!(checks[0]["looked_at"][0], "/proc/cmdline");

    tree.program("/usr/sbin/grubby", "");
    let steps = [
        "grubby --update-kernel=ALL --remove-args=isolcpus=managed_irq,domain,2-3 --args=isolcpus=managed_irq,domain,1,4",
        "systemctl reboot",
    ];
    assert_eq!(remedies(&found(&tree, "isolated-cpus")[0]), steps);

    tree.file("/etc/os-release", "ID=fedora\n").file("/run/ostree-booted", "");
    let steps = [
        "rpm-ostree kargs --delete=isolcpus=managed_irq,domain,2-3 --append=isolcpus=managed_irq,domain,1,4",
        "systemctl reboot",
    ];
    assert_eq!(remedies(&found(&tree, "isolated-cpus")[0]), steps);
}

#[test]
fn cpus_that_no_word_isolates_get_one() {
    let tree = isolated();
    tree.attribute("/sys/devices/system/node/node0/cpulist", "0-1,4");
    for line in ["quiet\n", "nohz_full=2-3 xisolcpus=2\n", "quiet -- isolcpus=2\n"] {
        tree.file("/proc/cmdline", line);
        let first = &remedies(&found(&tree, "isolated-cpus")[0])[0];
        let wanted =
            "echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX isolcpus=1,4\"' >> /etc/default/grub";
        assert_eq!(first, wanted, "{line}");
    }
}

#[test]
fn the_only_cpu_of_a_node_is_not_isolated() {
    let tree = isolated();
    tree.attribute("/sys/devices/system/node/node0/cpulist", "0");
    tree.file("/proc/cmdline", "isolcpus=2-3\n");
    let checks = found(&tree, "isolated-cpus");
    assert_eq!(checks[0]["verdict"], "pass", "{checks:#?}");
    assert!(remedies(&checks[0]).is_empty());
    // Of a node without CPUs there is nothing to say.
    tree.attribute("/sys/devices/system/node/node0/cpulist", "");
    assert!(found(&tree, "isolated-cpus").is_empty());
}

#[test]
fn a_host_that_isolates_no_cpu_is_asked_for_none() {
    let tree = isolated();
    tree.attribute("/sys/devices/system/cpu/isolated", "");
    assert!(found(&tree, "isolated-cpus").is_empty());
}

#[test]
fn specifications_that_nobody_wrote_yet_are_not_called_stale() {
    let tree = x3();
    let checks = found(&tree, "specs-fresh");
    assert_eq!(checks[0]["verdict"], "fail");
    let finding = text(&checks[0]["finding"]);
    assert!(finding.ends_with(" files missing"), "{finding}");
    tree.generate();
    tree.remove("/var/run/cdi/onload.dev-nic.json");
    let check = &found(&tree, "specs-fresh")[0];
    assert_eq!(check["finding"], "1 file out of date");
    assert_eq!(check["looked_at"][1], "/var/run/cdi/onload.dev-nic.json");
}

#[test]
fn a_list_of_cpus_counts_whole_or_not_at_all() {
    let tree = isolated();
    let cpulist = "/sys/devices/system/node/node0/cpulist";
    // As Linux 5.16 wrote it.
    tree.file(cpulist, "0-1,4\n\0");
    let checks = found(&tree, "isolated-cpus");
    assert_eq!(checks[0]["verdict"], "warn", "{checks:#?}");
    assert!(remedies(&checks[0])[0].contains("isolcpus=1,4"));
    for list in ["0-1,4-", "0-1,x", "0-1\0,4"] {
        tree.file(cpulist, list);
        let checks = found(&tree, "isolated-cpus");
        assert_eq!(checks[0]["verdict"], "unknown", "{list}: {checks:#?}");
        assert_eq!(remedies(&checks[0]), [format!("od -c {cpulist}")]);
    }
    tree.file("/sys/devices/system/cpu/isolated", "2-3,4-");
    let checks = found(&tree, "isolated-cpus");
    assert_eq!(checks[0]["verdict"], "unknown", "{checks:#?}");
}

#[test]
fn what_is_no_file_among_hooks_is_no_hook() {
    let tree = with_hooks();
    let hooks = "/usr/share/containers/oci/hooks.d";
    let precreate = r#"{"stages":["precreate"]}"#;
    tree.directory(&format!("{hooks}/old"));
    tree.directory(&format!("{hooks}/old.json"));
    tree.file(&format!("{hooks}/old/ours.json"), precreate);
    tree.file(&format!("{hooks}/ours.json.bak"), precreate);
    tree.file(&format!("{hooks}/large.bak"), vec![b' '; 2 << 20]);
    tree.link(&format!("{hooks}/gone.json"), "/nowhere");
    let checks = found(&tree, "engine-hooks");
    assert_eq!(checks.len(), 1, "{checks:#?}");
    assert_eq!(checks[0]["verdict"], "pass", "{checks:#?}");
}

#[test]
fn a_link_to_a_hook_is_a_hook() {
    let tree = with_hooks();
    tree.file("/srv/hook", r#"{"stages":["precreate"]}"#);
    tree.link("/etc/containers/oci/hooks.d/ours.json", "/srv/hook");
    tree.link("/etc/containers/oci/hooks.d/.json", "/srv/hook");
    let checks = found(&tree, "engine-hooks");
    assert_eq!(each(&checks.into(), "verdict"), ["fail", "fail"]);
}

const PODMAN_HOOKS: &str = "/usr/share/onload-ctk/hooks.d/podman";

#[test]
fn annotations_that_podmans_hooks_answer_need_no_wrapper() {
    for dir in [PODMAN_HOOKS, "/usr/share/onload-ctk/hooks.d/podman/"] {
        let tree = allowing(podman("5.4.2", &format!("[engine]\nhooks_dir = ['{dir}']\n")));
        tree.directory(PODMAN_HOOKS);
        assert!(found(&tree, "engine-runtime").is_empty(), "{dir}");
        // Without them nothing answers.
        tree.remove(PODMAN_HOOKS);
        assert_eq!(found(&tree, "engine-runtime")[0]["verdict"], "warn");
        assert_eq!(found(&tree, "engine-hooks")[0]["verdict"], "fail");
    }
    let elsewhere = "[engine]\nhooks_dir = ['/usr/share/containers/oci/hooks.d']\n";
    let tree = allowing(podman("5.4.2", elsewhere));
    tree.directory(PODMAN_HOOKS);
    assert_eq!(found(&tree, "engine-runtime")[0]["verdict"], "warn");
}

#[test]
fn annotations_that_the_plugin_answers_need_no_wrapper() {
    for tree in
        [nri(containerd("2.0.5", CONTAINERD_2)), nri(crio("[crio.runtime]\n")), launched_nri()]
    {
        let runtime = found(&tree, "engine-runtime");
        assert!(runtime.is_empty(), "{runtime:#?}");
        // One that waits for a runtime answers nobody.
        tree.remove(NRI_SOCKET);
        let runtime = found(&tree, "engine-runtime");
        assert_eq!(runtime[0]["verdict"], "warn", "{runtime:#?}");
        // A tree in which nothing runs is asked what is started in it.
        tree.remove("/proc");
        assert!(found(&tree, "engine-runtime").is_empty());
    }
}

#[test]
fn the_plugin_answers_for_no_engine_that_has_no_plugins() {
    let off = "version = 3\n[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n";
    let tree = nri(containerd("2.0.5", off));
    engine(&tree, "dockerd", "docker.io", "28.3.0");
    engine(&tree, "crio", "cri-o", "1.33.0-1");
    let runtime = found(&tree, "engine-runtime");
    assert_eq!(each(&runtime.clone().into(), "subject"), ["docker", "containerd"]);
    assert!(runtime.iter().all(|found| found["verdict"] == "warn"));
}
