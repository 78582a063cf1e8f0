//! `onload-ctk` alone: five lines on every host, of which the last says what to do.

#![allow(clippy::unwrap_used, clippy::panic)]

use crate::common::hosts::{leased_interface, x2};
use crate::common::{Commands, Tree, every_host};

/// The five lines, each without its label.
#[track_caller]
fn lines(tree: &Tree) -> [String; 5] {
    let stdout = tree.run(&[]).done().stdout;
    let labels = ["here", "offered", "written", "engines", "next"];
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), labels.len(), "{stdout}");
    let text = |index: usize| {
        let text = lines[index].strip_prefix(labels[index]);
        let text = text.unwrap_or_else(|| panic!("no {} in {stdout}", labels[index]));
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
        let [here, offered, _, _, next] = lines(&tree);
        assert!(!here.is_empty() && !offered.is_empty(), "{name}");
        assert!(next.contains("onload-ctk "), "{name}: {next}");
    }
}

#[test]
fn a_host_without_anything_is_told_where_the_reasons_are() {
    let [here, offered, written, engines, next] = lines(&Tree::new());
    assert_eq!(here, "no Onload");
    assert_eq!(offered, "nothing");
    assert_eq!(written, "nothing is offered, and there are no files");
    assert_eq!(engines, "no container engine is installed");
    assert_eq!(next, "onload-ctk discover --explain says why");
}

#[test]
fn a_sample_host_says_what_it_has() {
    let host = "debian13-2numa-onload-rxe-vfio";
    let mut hosts = every_host().into_iter();
    let (_, tree) = hosts.find(|(name, _)| *name == host).unwrap();
    let [here, offered, ..] = lines(&tree);
    assert_eq!(
        here,
        "Onload ef17681d 2026-07-22 master, 1 accelerated interface, 2 RDMA devices, 2 vfio functions"
    );
    assert!(offered.contains(", such as nic=ens1, rdma=rxe0, vfio=0000:"), "{offered}");
}

#[test]
fn what_comes_next_is_the_first_thing_that_is_missing() {
    let tree = x2();
    let next = |tree: &Tree| lines(tree)[4].clone();
    assert_eq!(next(&tree), "run: onload-ctk cdi generate");
    tree.generate();
    assert_eq!(lines(&tree)[2], "the files describe this host");
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
    let [_, _, written, _, next] = lines(&tree);
    assert!(written.starts_with("the files describe this host; "), "{written}");
    assert!(written.contains("line 2: unknown key \"annotations.allowed\""), "{written}");
    assert_eq!(next, "run: ${EDITOR:-vi} /etc/onload-ctk/config.toml");
}

#[test]
fn an_af_xdp_registration_that_is_configured_and_not_applied_comes_next() {
    let tree = x2();
    tree.config("[discover]\nignored-interfaces = [\"enp59s0f0np0\", \"enp59s0f1np1\"]\n[host]\naf-xdp = [\"enp59s0f0np0\"]\n");
    tree.generate();
    engine(&tree, "podman", "podman", "5.4.2");
    assert_eq!(lines(&tree)[4], "run: onload-ctk host apply");
}

#[test]
fn a_device_that_a_container_left_otherwise_is_shown_with_what_restores_it() {
    let [_, offered, ..] = lines(&leased_interface(true));
    let expected = "; not restored: netdev=ens1v0, run: onload-ctk lease restore";
    assert!(offered.ends_with(expected), "{offered}");
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
    let [here, _, _, _, next] = lines(&tree);
    assert!(
        here.starts_with("Onload, not offered: ")
            && here.contains("was not built for the loaded driver"),
        "{here}"
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
