//! `drain` and `undrain` beside other programs. `tests/cases/drain` shows what they print.

use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use onload_test_needs as needs;
use serde_json::json;

use crate::common::{Commands, Tree, device_names, each, fuse, hosts, on, run_unprivileged};
use crate::status::{self, ID};

const CAPTURED: &str = "debian13-2numa-onload-rxe-vfio";
const FILE: &str = "/etc/onload-ctk/drain.json";
const LEASE: &str = "/run/onload-ctk/@leases/vfio=0000:81:02.0#0";

fn captured() -> Tree {
    let tree = Tree::sample(CAPTURED);
    tree.boot("this boot");
    tree.generate();
    tree
}

/// Two vfio devices, of which a container has the first.
pub(crate) fn held() -> Tree {
    let tree = Tree::described("held-vfio");
    tree.generate();
    tree
}

fn drained(tree: &Tree) -> Vec<String> {
    let shown = tree.run(&["drain", "--format", "json"]);
    each(&shown.json()["drained"], "device")
}

fn drain(tree: &Tree, args: &[&str]) -> crate::common::Run {
    tree.run(&[&["drain"], args].concat())
}

/// The lock is free once it has been drained, so that whoever waited for it finds it drained.
#[test]
fn generate_that_waited_for_its_directory_does_not_offer_what_was_drained_meanwhile() {
    let tree = captured();
    let lock = fs::File::open(tree.path("/var/run/cdi/.onload-ctk-lock")).unwrap();
    lock.lock().unwrap();
    let mut generate = on(tree.root(), &["cdi", "generate"]);
    let mut generate = generate.stderr(Stdio::null()).spawn().unwrap();
    let stat = format!("/proc/{}/stat", generate.id());
    while !fs::read_to_string(&stat).unwrap().contains(") S ") {
        thread::sleep(Duration::from_millis(10));
    }
    let entry = json!({"version": 1, "drained": [{"class": "rdma", "name": "rxe0", "since": 0}]});
    tree.file(FILE, entry.to_string());
    lock.unlock().unwrap();
    assert!(generate.wait().unwrap().success());
    assert_eq!(device_names(&tree.written("rdma")), ["all", "rxe1"]);
}

/// A container of docker that has nothing open, and whose root never answers. `None` if this machine cannot mount one.
fn stuck() -> Option<(Tree, fuse::SilentOverlay)> {
    if !fuse::can_mount() {
        return None;
    }
    let tree = hosts::x3();
    tree.boot("this boot");
    tree.generate();
    status::process(&tree, 1, None, "systemd");
    status::process(&tree, 77, Some(ID), "app");
    tree.file("/proc/77/maps", "");
    tree.remove("/proc/77/root");
    let root = tree.path("/proc/77/root");
    let silent = fuse::SilentOverlay::mount_at(tempfile::tempdir().unwrap(), &root);
    silent.fall_silent();
    Some((tree, silent))
}

#[test]
fn who_has_a_drained_node_open_holds_it_though_it_does_not_answer() {
    let Some((tree, _silent)) = stuck() else {
        return;
    };
    tree.link("/proc/77/fd/3", "/dev/onload");
    let holders = || drain(&tree, &["nic", "--format", "json"]).answered_no();
    assert_eq!(
        holders().json()["holders"],
        json!([{"engine": "docker", "container": null, "id": ID, "devices": ["/dev/onload"]}])
    );
    // Nothing else of it would be of interest.
    let open = "/dev/sfc_char";
    tree.remove("/proc/77/fd/3");
    tree.link("/proc/77/fd/4", open);
    assert_eq!(holders().json()["holders"][0]["devices"], json!([open]));
}

#[test]
fn a_container_that_does_not_answer_may_have_it_and_is_waited_for_by_name() {
    let Some((tree, _silent)) = stuck() else {
        return;
    };
    let run = drain(&tree, &["nic"]).answered_no();
    assert!(run.stdout.contains("not known: it did not answer in time"), "{}", run.stdout);
    // Its user may hide what it has, and keeps nobody waiting who is not told.
    let cgroup =
        format!("0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope\n");
    tree.file("/proc/77/cgroup", cgroup);
    let waited = drain(&tree, &["nic", "--wait", "--timeout", "0"]).answered_no();
    let line = "waiting for container 3f2a3f2a3f2a (podman), which may use it: of user 1000; ";
    assert!(waited.stderr.contains(line), "{}", waited.stderr);
    assert!(waited.stderr.contains("findmnt --task 77"), "{}", waited.stderr);
    // What root's engine gave is known by the configuration that it made the container with.
    tree.file("/proc/77/cgroup", format!("0::/system.slice/docker-{ID}.scope\n"));
    let bundle = format!("/run/containerd/io.containerd.runtime.v2.task/moby/{ID}/config.json");
    tree.file(&bundle, "{}");
    drain(&tree, &["nic"]).done();
}

#[test]
fn waiting_ends_when_the_last_holder_goes() {
    let tree = held();
    let mut command = on(tree.root(), &["drain", "vfio", "--wait"]);
    let waiting = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let waiting = waiting.spawn().unwrap();
    while !tree.path(FILE).exists() {
        thread::sleep(Duration::from_millis(10));
    }
    tree.remove(LEASE);
    let output = waiting.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(tree.path(FILE).exists());
}

#[test]
fn a_signal_ends_the_waiting_and_leaves_what_is_drained() {
    let tree = held();
    let mut command = on(tree.root(), &["drain", "vfio", "--wait"]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut message = String::new();
    while !message.contains("waiting for ") {
        let read = std::io::BufRead::read_line(&mut stderr, &mut message).unwrap();
        assert!(read > 0, "{message}");
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    std::io::Read::read_to_string(&mut stderr, &mut message).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(2), "{message}");
    assert!(
        message.contains(
            "error: waiting for containers; the devices stay drained, and \"onload-ctk drain\" \
             shows it: interrupted by a signal"
        ),
        "{message}"
    );
    assert_eq!(drained(&tree), ["vfio"]);
}

#[test]
fn while_the_daemon_for_kubernetes_writes_the_specifications_are_left_to_it() {
    let tree = captured();
    tree.file("/run/onload-ctk/@locks/spec-writer", "");
    let lock = fs::File::open(tree.path("/run/onload-ctk/@locks/spec-writer")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let message = drain(&tree, &["rdma=rxe0"]).done().stderr;
    assert!(message.contains("the daemon for Kubernetes updates the specifications"), "{message}");
    assert_eq!(device_names(&tree.written("rdma")), ["all", "rxe0", "rxe1"]);
    // The package, while its service runs, comes first.
    tree.file("/run/onload-cdi/last-run", "");
    tree.run(&["undrain", "--all"]).done();
    drain(&tree, &["rdma=rxe0"]).done();
    assert_eq!(device_names(&tree.written("rdma")), ["all", "rxe1"]);
}

#[test]
fn only_root_drains_and_everybody_sees_it() {
    if !needs::root("whom a directory of root stops") {
        return;
    }
    let tree = captured();
    let line = run_unprivileged(&tree, &["drain", "rdma"]).refused();
    assert!(line.ends_with("; run as root"), "{line}");
    drain(&tree, &["rdma=rxe0"]).done();
    let found = run_unprivileged(&tree, &["discover", "--format", "json"]).done().json();
    assert_eq!(each(&found["rdma"], "name"), ["rxe1"]);
}
