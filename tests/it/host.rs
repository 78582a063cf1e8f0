//! `host plan` and `host apply` with rights and namespaces of their own. `tests/cases/host` shows what they print.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::hosts::x2;
use crate::common::{Commands, Tree, on, package, run};

const PF: &str = "/sys/devices/pci0000:3b/0000:3b:00.0";

fn wanted(vfs: u32, driver: &str) -> String {
    format!("[[sriov]]\npf = \"enp59s0f0np0\"\nvfs = {vfs}\ndriver = \"{driver}\"\n")
}

/// Binds both virtual functions of the first port.
fn bound(tree: &Tree, driver: &str) {
    let driver = format!("/sys/bus/pci/drivers/{driver}");
    tree.directory(&driver);
    for index in 0..2 {
        let function = format!("/sys/devices/pci0000:3b/0000:3b:02.{index}");
        tree.link(&format!("{function}/driver"), &driver);
    }
}

#[test]
fn functions_stay_where_leases_are_hidden_from_the_user() {
    if !crate::common::needs::root("hiding leases from a user") {
        return;
    }
    let tree = x2();
    bound(&tree, "vfio-pci");
    tree.config(&wanted(4, "vfio-pci"));
    fs::create_dir_all(tree.path("/run/onload-ctk/@leases")).unwrap();
    for (closed, mode) in [("/run/onload-ctk/@leases", 0o700), ("/run/onload-ctk", 0o711)] {
        let path = tree.path(closed);
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let line = crate::common::run_unprivileged(&tree, &["host", "plan"]).refused();
        let why = format!("{closed}\" is readable only for root; run as root");
        assert!(
            line.contains("is used by a container, perhaps (reading leases: ")
                && line.contains(&why),
            "{line}"
        );
    }
}

#[test]
fn only_root_changes_a_host() {
    if !crate::common::is_root() {
        return crate::common::skipped("needs root, to become somebody else");
    }
    use std::os::unix::process::CommandExt;
    let tree = Tree::new();
    tree.config("[host]\nhugepages = { 2Mi = { 0 = 0 } }\n");
    fs::set_permissions(tree.root(), PermissionsExt::from_mode(0o755)).unwrap();
    let copy = tree.path("/onload-ctk-under-test");
    let mut cp = std::process::Command::new("cp");
    let done = cp.arg(env!("CARGO_BIN_EXE_onload-ctk")).arg(&copy).status();
    assert!(done.unwrap().success());
    let mut apply = std::process::Command::new(&copy);
    apply.env_clear().uid(crate::common::NOBODY).gid(crate::common::NOBODY);
    apply.arg("--config").arg(tree.path("/etc/onload-ctk/config.toml"));
    let line = run(apply.args(["host", "apply"])).refused();
    assert_eq!(line, "changing this host: permission denied; run as root");
}

#[test]
fn a_capture_holds_what_a_plan_needs() {
    let tree = x2();
    tree.config(&(wanted(4, "vfio-pci") + "[host]\nhugepages = { 2Mi = { 0 = 128 } }\n"));
    tree.file(
        "/proc/net/route",
        "Iface x\nenp59s0f0np0\t00000000\t0101A8C0\t3\t0\t0\t0\t00000000\t0\t0\t0\n",
    );
    let here = crate::common::scratch();
    let packed = here.path().join("host.tar.zst");
    run(on(tree.root(), &["discover", "--capture"]).arg(&packed)).done();
    let unpacked = here.path().join("host");
    fs::create_dir(&unpacked).unwrap();
    let mut tar = std::process::Command::new("sh");
    let script = format!("zstd -dcq {} | tar xf - -C {}", packed.display(), unpacked.display());
    if !crate::common::has_program("zstd") {
        return crate::common::skipped("zstd is not installed");
    }
    assert!(tar.args(["-c", &script]).status().unwrap().success());
    // Where packets go is nobody's business.
    let table = fs::read(unpacked.join("proc/net/route")).unwrap_or_default();
    assert!(table.is_empty());
    // A capture has no settings but those of discovery.
    let config = tree.path("/etc/onload-ctk/config.toml");
    let plan = |root: &Path| run(on(root, &["host", "plan", "--config"]).arg(&config));
    tree.remove("/proc/net/route");
    let (there, here) = (plan(&unpacked), plan(tree.root()));
    assert_eq!(there.code, Some(1));
    assert_eq!((there.stdout, there.code), (here.stdout, here.code));
}

#[test]
fn the_unit_runs_before_the_specifications_are_written() {
    let text = fs::read_to_string(package().join("packaging/systemd/onload-host.service")).unwrap();
    let value = |key: &str| -> Vec<&str> {
        text.lines()
            .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .flat_map(str::split_whitespace)
            .collect()
    };
    for unit in ["onload-cdi.service", "docker.service", "containerd.service", "network-pre.target"]
    {
        assert!(value("Before").contains(&unit), "{unit}");
    }
    assert_eq!(value("ExecStart"), ["/usr/bin/onload-ctk", "host", "apply"]);
    // Nodes of vfio have to be opened to tell who has them, and attributes of sysfs to be written.
    for key in ["PrivateDevices", "ProtectKernelTunables", "ProtectClock", "PrivateNetwork"] {
        assert_eq!(value(key), [""; 0], "{key}");
    }
}

/// Changes the machine that the tree is, as far as the kernel of this one takes it.
fn apply_below(tree: &Tree) -> crate::common::Run {
    run(&mut crate::common::apply_below(tree))
}

#[test]
fn what_the_kernel_takes_is_done_and_told_and_done_once() {
    if !crate::common::can_have_namespaces() {
        return;
    }
    let tree = x2();
    tree.config("[host]\nhugepages = { 2Mi = { 0 = 128 } }\n");
    let first = apply_below(&tree).done();
    assert_eq!(first.stdout, "");
    assert_eq!(first.stderr, "hugepages 2Mi on node 0: pages: 64 -> 128\n");
    let file = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
    assert_eq!(fs::read_to_string(tree.path(file)).unwrap(), "128\n");
    let second = apply_below(&tree).done();
    assert_eq!(second.stderr, "nothing to change on this host\n");
}

#[test]
fn functions_that_the_kernel_does_not_make_are_an_error_and_the_rest_is_done() {
    if !crate::common::can_have_namespaces() {
        return;
    }
    let tree = x2();
    let count = format!("{PF}/sriov_numvfs");
    for index in 0..2 {
        tree.remove(&format!("{PF}/virtfn{index}"));
    }
    tree.attribute(&count, "0");
    // By its address: the kernel of this machine has no interface of that name to be asked about.
    let config = wanted(4, "vfio-pci").replace("enp59s0f0np0", "0000:3b:00.0");
    tree.remove(&format!("{PF}/net"));
    tree.config(&(config + "[host]\nhugepages = { 2Mi = { 0 = 128 } }\n"));
    let run = apply_below(&tree);
    assert_eq!(fs::read_to_string(tree.path(&count)).unwrap(), "4\n");
    assert!(
        run.stderr.contains("sriov 0000:3b:00.0: virtual functions: 0 -> 4\n"),
        "{}",
        run.stderr
    );
    assert!(run.stderr.contains("2Mi on node 0: pages: 64 -> 128\n"), "{}", run.stderr);
    assert_eq!(
        run.refused(),
        "sriov 0000:3b:00.0: 0 of its 4 virtual functions are there; see dmesg"
    );
}
