//! `lease list` and `lease release`, on hosts of which only leases and processes are there.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::process::{Command, Output};

use onload_test_tree::Tree;

const LEASES: &str = "run/onload-ctk/@leases";

/// A host with a boot and the leases of these texts, by file name.
fn host(leases: &[(&str, &str)]) -> Tree {
    let host = Tree::new();
    host.boot("this boot");
    for (name, text) in leases {
        host.file(&format!("{LEASES}/{name}"), text);
    }
    host
}

fn lease(boot: &str) -> String {
    format!(
        r#"{{"version":1,"class":"vfio","name":"0000:81:10.0","slot":0,"boot":"{boot}","container":"web","bundle":"/b/web",
            "holder":{{"init":{{"process":{{"pid":42,"startTime":7,"pidNamespace":1}},"cgroup":{{"path":"/sys/fs/cgroup/web","inode":3}}}}}},
            "entryPoint":"createRuntime","since":1700000000,"facts":{{}}}}"#
    )
}

fn run(host: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_onload-ctk"))
        .arg("--host-root")
        .arg(host)
        .arg("lease")
        .args(args)
        .env_clear()
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_host_without_leases_says_so() {
    for host in [host(&[]), {
        let host = host(&[]);
        host.directory(LEASES);
        host
    }] {
        let output = run(host.root(), &["list"]);
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(text(&output.stdout), "");
        assert_eq!(text(&output.stderr), "no device is leased\n");
    }
}

#[test]
fn each_lease_is_listed_with_its_holder() {
    let host = host(&[
        ("vfio=0000:81:10.0#0", &lease("this boot")),
        ("vfio=0000:81:10.1#0", &lease("another boot")),
        ("vfio=0000:81:10.2#0", "{"),
    ]);
    let output = run(host.root(), &["list", "--format", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let states: Vec<_> = listed["leases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|lease| (lease["device"].as_str().unwrap(), lease["state"].as_str().unwrap()))
        .collect();
    assert_eq!(
        states,
        [
            ("vfio=0000:81:10.0", "held"),
            ("vfio=0000:81:10.1", "ended"),
            ("vfio=0000:81:10.2", "unknown")
        ]
    );
    assert_eq!(listed["leases"][0]["container"], "web");
    assert_eq!(listed["leases"][0]["pid"], 42);
    assert_eq!(listed["leases"][0]["claim"], serde_json::Value::Null);
    let stderr = text(&output.stderr);
    assert!(stderr.contains("vfio=0000:81:10.2 counts as held"), "{stderr}");

    let table = run(host.root(), &["list"]);
    let table = text(&table.stdout);
    let row = table.lines().find(|line| line.contains("10.0")).unwrap();
    for word in ["vfio=0000:81:10.0", "held", "web", " d ago", "42", "/sys/fs/cgroup/web"] {
        assert!(row.contains(word), "{word}: {row}");
    }
}

#[test]
fn a_lease_of_a_claim_names_it() {
    let uid = "0d7e3c1a-5c0f-4c57-9a4e-2b1f8f0f8f11";
    let of_claim = lease("this boot").replacen('{', &format!("{{\"claim\":\"{uid}\","), 1);
    let host = host(&[("vfio=0000:81:10.0#0", &of_claim)]);
    let output = run(host.root(), &["list", "--format", "json"]);
    let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(listed["leases"][0]["claim"], uid);
    assert_eq!(listed["leases"][0]["state"], "held");
}

/// Who reads the list is not to start a container with a ticket from it.
#[test]
fn a_lease_of_a_task_shows_the_beginning_of_its_ticket_and_no_more() {
    let ticket = "0123456789abcdef0123456789abcdef";
    let of_task = lease("this boot").replacen('{', &format!("{{\"ticket\":\"{ticket}\","), 1);
    let host =
        host(&[("vfio=0000:81:10.0#0", &of_task), ("vfio=0000:81:10.1#0", &lease("this boot"))]);
    let output = run(host.root(), &["list", "--format", "json"]);
    assert!(!text(&output.stdout).contains(ticket));
    let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(listed["leases"][0]["ticket"], "01234567");
    assert_eq!(listed["leases"][1]["ticket"], serde_json::Value::Null);
    let output = run(host.root(), &["list"]);
    let table = text(&output.stdout);
    assert!(!table.contains(ticket));
    let row = |device| table.lines().find(|line| line.contains(device)).unwrap().trim_end();
    assert!(row("10.0").ends_with("01234567"), "{table}");
    assert!(row("10.1").ends_with('-'), "{table}");
}

#[test]
fn the_lease_of_a_container_that_may_run_is_not_released() {
    let host = host(&[("vfio=0000:81:10.0#0", &lease("this boot"))]);
    let output = run(host.root(), &["release", "vfio=0000:81:10.0", "--force"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("in use by container web"), "{stderr}");
    assert!(host.root().join(LEASES).join("vfio=0000:81:10.0#0").exists());
}

#[test]
fn a_lease_that_is_over_or_not_understood_is_released_at_the_operator_s_word() {
    for lease in [lease("another boot"), "{".to_owned()] {
        let host = host(&[("vfio=0000:81:10.0#0", &lease)]);
        let without = run(host.root(), &["release", "vfio=0000:81:10.0"]);
        assert_eq!(without.status.code(), Some(2));
        assert!(text(&without.stderr).contains("use --force"));
        let output = run(host.root(), &["release", "vfio=0000:81:10.0", "--force"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "vfio=0000:81:10.0 is free\n");
        let again = run(host.root(), &["release", "vfio=0000:81:10.0", "--force"]);
        assert!(text(&again.stderr).starts_with("vfio=0000:81:10.0 is not leased"));
    }
}

#[test]
fn what_is_no_device_is_refused() {
    let host = host(&[]);
    for name in ["vfio", "vfio=", "disk=a", "vfio=../x"] {
        let output = run(host.root(), &["release", name, "--force"]);
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert!(text(&output.stderr).contains("want CLASS=NAME"), "{name}");
    }
}

#[test]
fn what_of_an_interface_is_not_restored_is_named() {
    let lease = |left: &str, queues: &str| {
        format!(
            r#"{{"version":1,"class":"netdev","name":"ens1v0","slot":0,"boot":"this boot","container":"web","bundle":"/b/web",
                "holder":{{"init":{{"process":{{"pid":42,"startTime":7,"pidNamespace":1}}}}}},"entryPoint":"createRuntime",
                "since":1700000000,"facts":{{}},"moved":{{"interface":{{"name":"ens1v0","mac":"02:00:00:00:10:01","mtu":1500,
                "queueLength":1000,"flags":3,{queues}"pci":"0000:3b:02.7"}},"namespace":7,{left}"returning":true}}}}"#
        )
    };
    let left = lease(r#""left":"its MTU, its threaded","#, "");
    let unkept = lease("", r#""queues":{"unkept":["its ntuple rules"]},"#);
    for (lease, says) in [
        (
            left,
            "netdev=ens1v0 is back, and not as it was: its MTU, its threaded; \"onload-ctk lease restore\" tries again and says more",
        ),
        (
            unkept,
            "netdev=ens1v0 will not be restored as a whole, since there is too much of its ntuple rules",
        ),
        (lease("", ""), ""),
    ] {
        let host = host(&[("netdev=ens1v0#0", &lease)]);
        let output = run(host.root(), &["list"]);
        let stderr = text(&output.stderr);
        assert!(stderr.contains(says) && stderr.is_empty() == says.is_empty(), "{stderr}");
        let output = run(host.root(), &["list", "--format", "json"]);
        let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let is_named = !listed["leases"][0]["not_restored"].is_null();
        assert_eq!(is_named, says.contains("not as it was"));
    }
}
