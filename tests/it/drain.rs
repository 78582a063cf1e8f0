//! `drain` and `undrain`: what is offered no more, and who has it.

use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use onload_test_needs as needs;
use serde_json::{Value, json};

use crate::common::{
    Commands, Tree, device_names, each, fuse, hosts, on, reason, run_unprivileged,
};
use crate::status::{self, ID};

const CAPTURED: &str = "debian13-2numa-onload-rxe-vfio";
const FILE: &str = "/etc/onload-ctk/drain.json";
const FIRST: &str = "0000:81:02.0";
const SECOND: &str = "0000:81:04.0";

fn captured() -> Tree {
    let tree = Tree::sample(CAPTURED);
    tree.boot("this boot");
    tree.generate();
    tree
}

/// Two vfio devices, of which a container has the first.
pub(crate) fn held() -> Tree {
    let tree = hosts::vfio();
    tree.boot("this boot");
    let lease = json!({
        "version": 1, "class": "vfio", "name": FIRST, "slot": 0, "boot": "this boot", "container": "web",
        "bundle": "/b/web", "entryPoint": "createRuntime", "since": 1_700_000_000, "facts": {},
        "holder": {"init": {"process": {"pid": 42, "startTime": 7, "pidNamespace": 1}, "cgroup": {"path": "/sys/fs/cgroup/web", "inode": 3}}},
    });
    tree.file(&lease_of(FIRST), lease.to_string());
    tree.generate();
    tree
}

fn lease_of(name: &str) -> String {
    format!("/run/onload-ctk/@leases/vfio={name}#0")
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

#[test]
fn a_drained_device_is_in_no_specification_and_discover_says_why() {
    let tree = captured();
    assert_eq!(device_names(&tree.written("rdma")), ["all", "rxe0", "rxe1"]);
    drain(&tree, &["onload.dev/rdma=rxe0", "--reason", "firmware upgrade"]).done();
    assert_eq!(device_names(&tree.written("rdma")), ["all", "rxe1"]);
    let env = &tree.written("rdma")["devices"][0]["containerEdits"]["env"];
    assert!(!env.to_string().contains("rxe0"), "{env}");
    tree.run(&["cdi", "check"]).done();
    let found = tree.discover();
    assert_eq!(each(&found["rdma"], "name"), ["rxe1"]);
    let why = reason(&found, "rdma", "rxe0");
    assert!(why.starts_with("drained since 20"), "{why}");
    assert!(
        why.ends_with(": firmware upgrade; \"onload-ctk undrain rdma=rxe0\" offers it again"),
        "{why}"
    );
    let table = tree.run(&["discover", "--explain"]).done().stdout;
    assert!(table.contains("firmware upgrade"), "{table}");

    tree.run(&["undrain", "rdma=rxe0"]).done();
    assert_eq!(device_names(&tree.written("rdma")), ["all", "rxe0", "rxe1"]);
    assert!(!tree.path(FILE).exists(), "nothing is drained");
}

#[test]
fn an_interface_is_drained_for_every_class_of_onload() {
    let tree = captured();
    assert!(device_names(&tree.written("nic-nodes")).contains(&"ens1".to_owned()));
    let message = drain(&tree, &["nic-plain=ens1"]).done().stderr;
    assert!(message.contains("nic-plain=ens1 stands for nic=ens1"), "{message}");
    for class in ["nic", "nic-plain", "nic-nodes"] {
        assert_eq!(device_names(&tree.written(class)), ["loopback"], "{class}");
    }
    tree.run(&["undrain", "zf=ens1"]).done();
    assert!(device_names(&tree.written("nic")).contains(&"ens1".to_owned()));
}

#[test]
fn a_class_is_drained_with_what_comes_later_and_all_is_every_class() {
    let tree = held();
    drain(&tree, &["vfio"]).answered_no();
    assert!(!tree.path("/var/run/cdi/onload.dev-vfio.json").exists());
    let line = tree.run(&["undrain", &format!("vfio={FIRST}")]).refused();
    assert_eq!(
        line,
        format!(
            "undraining vfio={FIRST}: vfio={FIRST} is drained with its class; \"onload-ctk undrain vfio\" offers all of it again"
        )
    );
    drain(&tree, &["--all"]).answered_no();
    let all = drained(&tree);
    assert_eq!(
        all,
        ["nic", "profile", "rdma", "vfio", "hugepages", "netdev", "ptp", "pps", "gdrcopy"]
    );
    tree.run(&["undrain", "--all"]).done();
    assert_eq!(drained(&tree), [""; 0]);
    assert_eq!(device_names(&tree.written("vfio")), [FIRST, SECOND]);
}

#[test]
fn a_pool_and_a_function_stand_for_the_devices_that_they_have_now() {
    let tree = hosts::vfio();
    tree.boot("this boot");
    let pool = format!(
        "[pools.fast]\nclass = \"vfio\"\nselect = {{ addresses = \"{SECOND}\" }}\n[bundles.b]\ndevices = [\"vfio={SECOND}\"]\n"
    );
    tree.config(&pool).generate();
    let message = drain(&tree, &["vfio=fast"]).done().stderr;
    assert!(message.contains(&format!("vfio=fast stands for vfio={SECOND}")), "{message}");
    assert_eq!(drained(&tree), [format!("vfio={SECOND}")]);
    // `any` goes on with the other, and what has none left says why.
    let pools = tree.written_pools("vfio");
    assert_eq!(device_names(&pools), ["any"]);
    let members = pools["devices"][0]["annotations"].to_string();
    assert!(members.contains(FIRST) && !members.contains(SECOND), "{members}");
    let found = tree.discover();
    let why = reason(&found, "vfio", "fast");
    assert!(
        why.starts_with(&format!("all of its devices are drained; {SECOND} is drained since ")),
        "{why}"
    );
    let why = reason(&found, "bundle", "b");
    assert!(why.starts_with(&format!("vfio {SECOND} is drained since ")), "{why}");
    // A pool that is drained is still known by its name.
    tree.run(&["undrain", "vfio=fast"]).done();
    drain(&tree, &[FIRST]).done();
    assert_eq!(drained(&tree), [format!("vfio={FIRST}")]);
    tree.run(&["undrain", FIRST]).done();
    assert_eq!(drained(&tree), [""; 0]);
}

#[test]
fn what_is_not_there_is_refused_with_what_is_like_it() {
    let tree = captured();
    for (word, message) in [
        ("rdma=rxe9", "this host has no rdma \"rxe9\"; did you mean rdma=rxe0?"),
        ("warp", "unknown class \"warp\"; known are "),
        ("0000:ff:00.0", "no device of onload.dev is on that function"),
        ("bundle=hft", "a bundle is devices of other classes"),
    ] {
        for command in ["drain", "undrain"] {
            let line = tree.run(&[command, word]).refused();
            assert!(line.contains(message), "{command} {word}: {line}");
        }
    }
    let line = drain(&tree, &["rxe0"]).refused();
    assert_eq!(line, "reading \"rxe0\": write CLASS=NAME, as in rdma=rxe0");
    let line = drain(&tree, &["rdma", "--reason", "a\nb"]).refused();
    assert!(line.starts_with("reading --reason: want one line"), "{line}");
    assert!(!tree.path(FILE).exists());
}

#[test]
fn nothing_is_written_in_a_dry_run() {
    let tree = held();
    let shown = drain(&tree, &["vfio", "--dry-run", "--format", "json"]).done().json();
    assert_eq!(each(&shown["drained"], "device"), ["vfio"]);
    assert_eq!(each(&shown["holders"], "id"), ["web"]);
    assert!(!tree.path(FILE).exists());
    assert_eq!(device_names(&tree.written("vfio")), [FIRST, SECOND]);
    drain(&tree, &[&format!("vfio={SECOND}")]).done();
    tree.run(&["undrain", "--all", "--dry-run"]).done();
    assert!(tree.path(FILE).exists());
}

#[test]
fn who_has_a_drained_device_is_shown_and_the_answer_is_no_until_it_is_gone() {
    let tree = held();
    let name = format!("vfio={FIRST}");
    let shown = drain(&tree, &[&name, "--format", "json"]).answered_no().json();
    assert_eq!(
        shown["holders"],
        json!([{"engine": "unknown", "container": null, "id": "web", "devices": [name]}])
    );
    let table = drain(&tree, &[]).answered_no().stdout;
    assert!(table.contains("HELD BY") && table.contains("web"), "{table}");
    drain(&tree, &["--wait", "--timeout", "0"]).answered_no();
    let listed = tree.run(&["lease", "list"]).done().stdout;
    assert!(listed.contains("held, drained"), "{listed}");
    // The device of another is nobody's.
    tree.run(&["undrain", "--all"]).done();
    drain(&tree, &[&format!("vfio={SECOND}")]).done();
    fs::remove_file(tree.path(&lease_of(FIRST))).unwrap();
    drain(&tree, &["vfio", "--wait"]).done();
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
    let line =
        "waiting for container 3f2a3f2a3f2a (podman), which may have any of it: of user 1000; ";
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
    fs::remove_file(tree.path(&lease_of(FIRST))).unwrap();
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
        message.contains("error: waiting for containers; what is drained stays drained, and \"onload-ctk drain\" shows it: interrupted by a signal"),
        "{message}"
    );
    assert_eq!(drained(&tree), ["vfio"]);
}

#[test]
fn it_stays_over_a_reboot_unless_it_was_to_end_with_it() {
    let tree = captured();
    drain(&tree, &["rdma=rxe0"]).done();
    drain(&tree, &["rdma=rxe1", "--until-reboot"]).done();
    let why = reason(&tree.discover(), "rdma", "rxe1");
    assert!(why.contains("Z until the next boot; "), "{why}");
    tree.boot("the next boot");
    assert_eq!(drained(&tree), ["rdma=rxe0"]);
    assert_eq!(each(&tree.discover()["rdma"], "name"), ["rxe1"]);
    tree.generate();
    assert_eq!(device_names(&tree.written("rdma")), ["all", "rxe1"]);
    // Said again, it stays since when it was, and for the reason that it had.
    let before: Value = serde_json::from_str(&tree.read(FILE)).unwrap();
    drain(&tree, &["rdma=rxe0", "--reason", "more"]).done();
    drain(&tree, &["rdma=rxe0"]).done();
    let after: Value = serde_json::from_str(&tree.read(FILE)).unwrap();
    assert_eq!(after["drained"][0]["since"], before["drained"][0]["since"]);
    assert_eq!(after["drained"][0]["reason"], "more");
}

#[test]
fn a_file_that_is_not_understood_removes_nothing_and_offers_nothing_anew() {
    let tree = captured();
    drain(&tree, &["rdma=rxe0"]).done();
    tree.file(FILE, r#"{"version":2}"#);
    let found = tree.run(&["discover"]).done();
    assert!(found.stderr.contains("what is drained is not known: reading "), "{}", found.stderr);
    let line = tree.run(&["cdi", "generate"]).refused();
    assert!(line.contains("it is of version 2, and this program understands 1"), "{line}");
    // Another user would find the same in it.
    assert!(!line.contains("as root"), "{line}");
    assert_eq!(device_names(&tree.written("rdma")), ["all", "rxe1"]);
    for command in ["drain", "undrain"] {
        let line = tree.run(&[command, "rdma"]).refused();
        assert!(line.contains("correct it, or remove it"), "{line}");
    }
}

#[test]
fn what_somebody_else_changed_stays_with_a_warning() {
    let tree = captured();
    let path = tree.path("/var/run/cdi/onload.dev-rdma.json");
    fs::write(&path, fs::read_to_string(&path).unwrap() + " ").unwrap();
    let run = drain(&tree, &["rdma=rxe0"]).done();
    assert!(run.warnings().iter().any(|warning| {
        warning.contains("onload.dev-rdma.json stays as it was, and may offer what is drained")
    }));
}

#[test]
fn the_options_that_specifications_were_written_with_stay() {
    let tree = Tree::sample(CAPTURED);
    tree.boot("this boot");
    tree.run(&["cdi", "generate", "--kind", "rdma", "--format", "yaml"]).done();
    drain(&tree, &["rdma=rxe0"]).done();
    let names: Vec<String> = tree.names("/var/run/cdi");
    let ours: Vec<&String> = names.iter().filter(|name| name.starts_with("onload.dev-")).collect();
    assert_eq!(ours, ["onload.dev-rdma.yaml"]);
    assert!(!tree.read("/var/run/cdi/onload.dev-rdma.yaml").contains("rxe0"));
    // Where nothing is written, nothing begins to be.
    let tree = Tree::sample(CAPTURED);
    tree.boot("this boot");
    drain(&tree, &["rdma=rxe0"]).done();
    assert!(!tree.path("/var/run/cdi").exists());
}

#[test]
fn while_the_daemon_for_kubernetes_writes_the_specifications_are_left_to_it() {
    let tree = captured();
    tree.file("/run/onload-ctk/@locks/spec-writer", "");
    let lock = fs::File::open(tree.path("/run/onload-ctk/@locks/spec-writer")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let message = drain(&tree, &["rdma=rxe0"]).done().stderr;
    assert!(
        message.contains("the daemon for Kubernetes writes the specifications anew"),
        "{message}"
    );
    assert_eq!(device_names(&tree.written("rdma")), ["all", "rxe0", "rxe1"]);
    // The package, while its service runs, comes first.
    tree.file("/run/onload-cdi/last-run", "");
    tree.run(&["undrain", "--all"]).done();
    drain(&tree, &["rdma=rxe0"]).done();
    assert_eq!(device_names(&tree.written("rdma")), ["all", "rxe1"]);
}

#[test]
fn status_doctor_topology_metrics_and_the_overview_show_it() {
    let tree = held();
    drain(&tree, &[&format!("vfio={FIRST}"), "--reason", "firmware"]).answered_no();
    let status = tree.run(&["status"]).done().stdout;
    assert!(status.contains(&format!("drained vfio={FIRST}: since 20")), "{status}");
    let status = tree.run(&["status", "--format", "json"]).done().json();
    assert_eq!(status["drained"][0]["reason"], "firmware");
    let overview = tree.run(&[]).done().stdout.replace('\n', " ");
    let overview: Vec<&str> = overview.split_whitespace().collect();
    let overview = overview.join(" ");
    assert!(overview.contains(", 1 drained since 20"), "{overview}");
    let doctor = tree.run(&["doctor", "--format", "json"]).json();
    let checks = doctor["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == "drained").unwrap();
    assert_eq!(check["verdict"], "warn");
    assert_eq!(check["subject"], format!("vfio={FIRST}"));
    assert_eq!(check["remedy"][0]["run"], format!("onload-ctk undrain vfio={FIRST}"));
    let topology = tree.run(&["topology"]).done().stdout;
    assert!(topology.contains(&format!("vfio {FIRST}: drained, held by web")), "{topology}");
    let object = tree.run(&["topology", "--format", "json"]).done().stdout;
    assert!(object.contains("\"state\": \"drained\""), "{object}");
    let picture = tree.run(&["topology", "--format", "svg"]).done().stdout;
    assert!(picture.contains(&format!("vfio {FIRST}: drained, held by web")), "{picture}");
    let metrics = tree.run(&["metrics"]).done().stdout;
    for line in [
        "onload_ctk_devices_drained{class=\"vfio\"} 1",
        "onload_ctk_devices{class=\"vfio\",health=\"unhealthy\"} 1",
        "onload_ctk_drained_since_timestamp_seconds{class=\"vfio\"} ",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let tree = captured();
    let metrics = tree.run(&["metrics"]).done().stdout;
    assert!(!metrics.contains("drained"), "{metrics}");
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
