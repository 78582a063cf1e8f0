//! `container explain`: what the annotations of a bundle would change.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::common::hosts::rdma;
use crate::common::{Commands, Run, Tree, on, run};
use crate::schemas::check_output;
use onload_lease::run_dir::RunDir;
use onload_lease::tickets::{Ticket, Tickets};
use onload_sys::processes::Processes;

/// A bundle whose container carries one annotation.
fn bundle(annotation: &str, value: &str) -> tempfile::TempDir {
    let bundle = tempfile::tempdir().unwrap();
    fs::create_dir_all(bundle.path().join("rootfs/etc")).unwrap();
    let config = format!(
        r#"{{"ociVersion": "1.0.2", "root": {{"path": "rootfs"}}, "process": {{"args": ["sh"], "env": [],
            "user": {{"uid": 0, "gid": 0}}}}, "linux": {{"resources": {{}}}}, "annotations": {{"{annotation}": "{value}"}}}}"#
    );
    fs::write(bundle.path().join("config.json"), config).unwrap();
    bundle
}

/// A host that does not look for libraries, since the images here have none.
fn host(config: &str) -> Tree {
    looking_host(&format!("{config}[cdi]\nrdma-libraries = \"off\"\n"))
}

fn looking_host(config: &str) -> Tree {
    let tree = rdma();
    tree.file("etc/onload-ctk/config.toml", config);
    tree.generate();
    tree
}

fn explain(host: &Tree, bundle: &Path) -> Run {
    let bundle = bundle.display().to_string();
    run(&mut on(host.root(), &["container", "explain", &bundle]))
}

const ALLOWED: &str = "[annotations]\nallow = [\"rdma\"]\n";

#[test]
fn programs_get_an_object() {
    let rdma = bundle("onload.dev/rdma", "mlx5_0");
    let path = rdma.path().display().to_string();
    let words = ["container", "explain", &path, "--format", "json"];
    let granted = host(ALLOWED).run(&words).done();
    check_output("container explain", &granted);
    assert_eq!(granted.json()["would_start"], true);
    assert!(granted.json()["diff"].as_str().unwrap().contains("/dev/infiniband/uverbs7"));
    let refused = host("").run(&words).answered_no();
    check_output("container explain", &refused);
    assert!(refused.json()["refusal"].as_str().unwrap().contains("rdma"));
}

/// A bundle whose container's environment holds a request.
fn bundle_with(value: &str) -> tempfile::TempDir {
    let bundle = bundle("org.example/rdma", "x");
    let path = bundle.path().join("config.json");
    let config = fs::read_to_string(&path).unwrap();
    let env = format!(r#""env": ["ONLOAD_CTK_REQUEST={value}"]"#);
    fs::write(&path, config.replacen(r#""env": []"#, &env, 1)).unwrap();
    bundle
}

#[test]
fn a_ticket_is_explained_and_not_taken() {
    let host = host(ALLOWED);
    host.boot("this boot");
    let dir = host.root().join("run/onload-ctk");
    fs::create_dir_all(&dir).unwrap();
    let run_dir = RunDir::find(&dir).unwrap().unwrap();
    let tickets = Tickets::open(&run_dir, Processes::at_root(host.root())).unwrap();
    let new = Ticket {
        request: "rdma=mlx5_0".to_owned(),
        exclusive: vec!["rdma:mlx5_0".parse().unwrap()],
        engine: "nomad".to_owned(),
        ..Ticket::default()
    };
    let id = tickets.write(new, Duration::from_secs(10)).unwrap();
    let before = tickets.read(&id).unwrap();
    let bundle = bundle_with(&format!("ticket:{}", id.as_str()));
    let run = explain(&host, bundle.path()).done();
    for part in ["\"path\": \"/dev/infiniband/uverbs7\"", "\"rdma:mlx5_0\""] {
        assert!(run.stdout.contains(part), "{}", run.stdout);
    }
    assert_eq!(tickets.read(&id).unwrap(), before);
    // Another container has the device by now, whose process nobody knows here, so that it may live.
    let lease = r#"{"version":1,"boot":"this boot","container":"other","bundle":"/b/other","holder":{"init":{"process":
            {"pid":7,"startTime":8,"pidNamespace":9}}},"entryPoint":"createRuntime","since":0}"#;
    let leases = dir.join("@leases");
    fs::create_dir(&leases).unwrap();
    fs::write(leases.join("rdma=mlx5_0#0"), lease).unwrap();
    host.file("proc/self/ns/pid", "");
    // Any number of containers may have an RDMA device, but what a ticket gives for itself.
    let run = explain(&host, bundle.path());
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(run.stderr.contains("rdma:mlx5_0: in use by container other "), "{}", run.stderr);
    assert_eq!(fs::read_dir(leases).unwrap().count(), 1);
}
