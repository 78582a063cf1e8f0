//! `onload-ctk` without a command: five lines on every host, the last of which is the next step.

#![allow(clippy::unwrap_used, clippy::panic)]

use onload_test_tree::Pci;

use crate::common::hosts::{leased_interface, x2};
use crate::common::{Commands, Tree, every_host};

/// The five lines, each without its label.
#[track_caller]
fn lines(tree: &Tree) -> [String; 5] {
    let stdout = tree.run(&[]).done().stdout;
    let labels = ["Host", "Devices", "CDI specs", "Engines", "Next step"];
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), labels.len(), "{stdout}");
    let text = |index: usize| {
        let text = lines[index]
            .strip_prefix(labels[index])
            .unwrap_or_else(|| panic!("no {} in {stdout}", labels[index]));
        text.trim_start().to_owned()
    };
    std::array::from_fn(text)
}

fn engine(tree: &Tree, program: &str, package: &str, version: &str) {
    tree.file(&format!("/usr/bin/{program}"), "");
    let text = format!("Package: {package}\nStatus: install ok installed\nVersion: {version}\n");
    tree.file("/var/lib/dpkg/status", &text);
}

#[test]
fn every_host_has_five_lines() {
    for (name, tree) in every_host() {
        let lines = lines(&tree);
        assert!(lines.iter().all(|line| !line.is_empty()), "{name}: {lines:?}");
        assert!(lines[4].contains("onload-ctk "), "{name}: {}", lines[4]);
        // Counts, not lists.
        let lists = lines[..4].iter().filter(|line| line.contains(".json"));
        assert_eq!(lists.count(), 0, "{name}: {lines:?}");
    }
}

#[test]
fn a_host_without_anything_is_told_where_the_reasons_are() {
    let [host, devices, specs, engines, next] = lines(&Tree::new());
    assert_eq!(host, "no Onload");
    assert_eq!(devices, "none");
    assert_eq!(specs, "no devices, no CDI specifications");
    assert_eq!(engines, "no container engine is installed");
    assert_eq!(next, "run: onload-ctk discover --explain");
}

#[test]
fn a_sample_host_says_what_it_has() {
    let host = "debian13-2numa-onload-rxe-vfio";
    let mut hosts = every_host().into_iter();
    let (_, tree) = hosts.find(|(name, _)| *name == host).unwrap();
    let [host, devices, specs, ..] = lines(&tree);
    assert_eq!(host, "Onload ef17681d 2026-07-22 master");
    assert_eq!(devices, "1 nic, 2 rdma, 2 vfio, 2 hugepages, 3 ptp");
    assert_eq!(specs, "8 files missing");
}

#[test]
fn what_comes_next_is_the_first_thing_that_is_missing() {
    let tree = x2();
    let next = |tree: &Tree| lines(tree)[4].clone();
    assert_eq!(next(&tree), "run: onload-ctk cdi generate");
    tree.generate();
    assert_eq!(lines(&tree)[2], "8 files, up to date");
    assert!(next(&tree).contains("install podman"), "{}", next(&tree));

    engine(&tree, "podman", "podman", "3.4.4");
    let [_, _, _, engines, refused] = lines(&tree);
    let old = "podman (3.4.4 is too old: CDI needs 4.1.0; install podman 4.1.0 or later";
    assert!(engines.starts_with(old), "{engines}");
    assert!(refused.contains("install podman 4.1.0 or later"), "{refused}");

    engine(&tree, "podman", "podman", "5.4.2");
    assert_eq!(lines(&tree)[3], "podman");
    assert_eq!(next(&tree), "run: onload-ctk try nic=enp59s0f0np0 --engine podman");
}

#[test]
fn a_configuration_that_stops_the_service_comes_before_all_else() {
    let tree = x2();
    tree.generate();
    engine(&tree, "podman", "podman", "5.4.2");
    tree.file("/etc/onload-ctk/config.toml", "[annotations]\nallowed = []\n");
    let [_, _, specs, _, next] = lines(&tree);
    assert!(specs.starts_with("8 files, up to date; "), "{specs}");
    assert!(specs.contains("line 2: unknown key \"annotations.allowed\""), "{specs}");
    assert_eq!(next, "run: ${EDITOR:-vi} /etc/onload-ctk/config.toml");
}

#[test]
fn an_af_xdp_registration_that_is_configured_and_not_applied_comes_next() {
    let tree = x2();
    tree.config("[discover]\nignored-interfaces = [\"enp59s0f0np0\", \"enp59s0f1np1\"]\n[host]\naf-xdp = [\"enp59s0f0np0\"]\n");
    tree.generate();
    engine(&tree, "podman", "podman", "5.4.2");
    let [here, _, _, _, next] = lines(&tree);
    assert!(here.ends_with("; Onload works, and no interface is accelerated"), "{here}");
    assert_eq!(next, "run: onload-ctk host apply");
    // Onload has other interfaces.
    let function = tree.pci(Pci::network("0000:01:00.0", "8086:1521", "igb"));
    tree.interface(&function, "eno1");
    tree.config("[host]\naf-xdp = [\"eno1\"]\n");
    tree.generate();
    let [here, _, _, _, next] = lines(&tree);
    assert!(
        here.contains("[host] af-xdp names eno1, and it is not registered with Onload"),
        "{here}"
    );
    assert_eq!(next, "run: onload-ctk host apply");
}

#[test]
fn a_device_that_a_container_left_otherwise_is_shown_with_what_restores_it() {
    let tree = leased_interface(true);
    let assert_names = |command: &str| {
        let [_, devices, ..] = lines(&tree);
        let expected = format!(", 1 not restored (run: onload-ctk {command})");
        assert!(devices.ends_with(&expected), "{devices}");
    };
    assert_names("lease restore");
    let lease = "run/onload-ctk/@leases/netdev=ens1v0#0";
    let registration = "its registration with Onload for AF_XDP";
    tree.file(lease, tree.read(lease).replace("its MTU", registration));
    assert_names("doctor");
}

#[test]
fn an_onload_that_is_not_offered_is_shown_with_its_reason() {
    let tree = x2();
    tree.file(
        "/proc/driver/onload/version",
        "onload_product: Onload\nonload_version: 9.9\nuk_intf_ver: 00000000000000000000000000000000\n",
    );
    tree.generate();
    engine(&tree, "podman", "podman", "5.4.2");
    let [host, _, _, _, next] = lines(&tree);
    assert!(
        host.starts_with("Onload, not offered: ")
            && host.contains("was not built for the loaded driver"),
        "{host}"
    );
    assert_eq!(next, "run: onload-ctk doctor");
}

#[test]
fn an_engine_that_cannot_be_tried_is_left_to_doctor() {
    let tree = x2();
    tree.generate();
    engine(&tree, "crio", "cri-o", "1.31.0");
    let [_, _, _, engines, next] = lines(&tree);
    assert_eq!(engines, "crio");
    assert_eq!(next, "run: onload-ctk doctor");
}
