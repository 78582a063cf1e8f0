//! `container explain`: what the annotations of a bundle would change.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::common::hosts::rdma;
use crate::common::{Commands, Run, Tree, on, run};
use crate::schemas::check_output;
use onload_lease::run_dir::RunDir;
use onload_lease::tickets::{NewTicket, Tickets};
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
fn what_would_be_given_is_a_diff_and_why_goes_to_stderr() {
    let bundle = bundle("onload.dev/rdma", "mlx5_0");
    let run = explain(&host(ALLOWED), bundle.path()).done();
    assert!(run.stdout.contains("\"path\": \"/dev/infiniband/uverbs7\""), "{}", run.stdout);
    assert!(run.stdout.contains("\"ONLOAD_CTK_RDMA_MLX5_0=mlx5_0\""), "{}", run.stdout);
    assert!(run.stderr.contains("onload.dev/rdma: class rdma is allowed"), "{}", run.stderr);
}

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

#[test]
fn nothing_is_written() {
    let bundle = bundle("onload.dev/rdma", "mlx5_0");
    let path = bundle.path().join("config.json");
    let before = fs::read(&path).unwrap();
    explain(&host(ALLOWED), bundle.path()).done();
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_bundle_that_asks_for_nothing_is_left_alone() {
    let bundle = bundle("org.example/rdma", "mlx5_0");
    let run = explain(&host(ALLOWED), bundle.path()).done();
    assert_eq!(run.stdout, "");
    assert!(run.stderr.contains("nothing would be changed"), "{}", run.stderr);
}

#[test]
fn a_refusal_is_the_answer_no_with_the_line_to_add() {
    let bundle = bundle("onload.dev/rdma", "mlx5_0");
    let run = explain(&host(""), bundle.path()).answered_no();
    assert!(run.stderr.contains("allow = [\"rdma\"] under [annotations]"), "{}", run.stderr);
}

#[test]
fn an_unknown_name_is_refused_with_what_is_offered() {
    let bundle = bundle("onload.dev/rdma", "none");
    let run = explain(&host(ALLOWED), bundle.path()).answered_no();
    assert!(run.stderr.contains("there is no rdma \"none\"; offered: all"), "{}", run.stderr);
}

#[test]
fn a_bundle_that_is_not_there_cannot_be_explained() {
    let error = explain(&host(ALLOWED), Path::new("/nonexistent/bundle")).refused();
    assert!(error.contains("/nonexistent/bundle"), "{error}");
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

/// What a bundle's container would be told of libraries, which an engine gave a device by `--device`.
fn explain_device(setting: &str, config: &str) -> Run {
    explain_device_in(&bundle("org.example/rdma", "x"), setting, config)
}

fn explain_device_in(bundle: &tempfile::TempDir, setting: &str, config: &str) -> Run {
    let path = bundle.path().join("config.json");
    let hook = format!(
        r#""hooks": {{"createRuntime": [{{"path": "/usr/bin/onload-hook", "args": ["onload-hook", "createRuntime",
            "--expect", "/dev/infiniband/uverbs7=rdma:mlx5_0", "--rdma-libraries", "{setting}"]}}]}}, "linux"#
    );
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("\"linux", &hook, 1)).unwrap();
    explain(&looking_host(config), bundle.path()).done()
}

#[test]
fn why_the_hook_of_a_device_would_mount_no_library_is_told() {
    let run = explain_device("auto", "");
    let why = "onload.dev/rdma=mlx5_0: the image has no libibverbs.so.1, and the host has no libibverbs.so.1";
    assert!(run.stderr.contains(why), "{}", run.stderr);
    assert_eq!(run.stdout, "");
    let run = explain_device("off", "");
    assert!(!run.stderr.contains("libibverbs"), "{}", run.stderr);
}

#[test]
fn nothing_is_claimed_of_libraries_for_a_driver_that_is_not_known() {
    let tree = looking_host(ALLOWED);
    let function = "/sys/bus/pci/devices/0000:3b:00.0";
    tree.remove(&format!("{function}/driver"));
    tree.bind(function, "of_tomorrow");
    let bundle = bundle("onload.dev/rdma", "mlx5_0");
    let message = explain(&tree, bundle.path()).done().stderr;
    let why = "mlx5_0 is not examined: its driver \"of_tomorrow\" is unknown";
    assert!(message.contains(why), "{message}");
    assert!(!message.contains("own libraries can use"), "{message}");
}

#[test]
fn an_image_that_podman_mounts_later_is_not_said_to_have_nothing() {
    let bundle = bundle("org.example/rdma", "x");
    fs::remove_dir(bundle.path().join("rootfs/etc")).unwrap();
    let run = explain_device_in(&bundle, "auto", "");
    let why = "onload.dev/rdma=mlx5_0: whether the image has libraries is unknown: the container's root is empty";
    assert!(run.stderr.contains(why), "{}", run.stderr);
    assert!(!run.stderr.contains("libibverbs"), "{}", run.stderr);
}

#[test]
fn what_a_variable_would_give_is_told_as_for_an_annotation() {
    let bundle = bundle_with("rdma=mlx5_0");
    let host = host("[environment]\nallow = [\"rdma\"]\n");
    let run = explain(&host, bundle.path()).done();
    let node = "\"path\": \"/dev/infiniband/uverbs7\"";
    assert!(run.stdout.contains(node), "{}", run.stdout);
    let reason = "\"rdma\" of ONLOAD_CTK_REQUEST: class rdma is allowed";
    assert!(run.stderr.contains(reason), "{}", run.stderr);
}

#[test]
fn a_variable_that_gives_nothing_is_told_with_the_line_to_add() {
    let run = explain(&host(ALLOWED), bundle_with("rdma=mlx5_0").path()).done();
    assert_eq!(run.stdout, "");
    for part in ["allow = [\"rdma\"] under [environment] in ", "nothing would be changed"] {
        assert!(run.stderr.contains(part), "{}", run.stderr);
    }
}

#[test]
fn a_variable_for_what_others_may_not_ask_for_is_a_refusal() {
    let host = host("[annotations]\nallow = [\"rdma\"]\n[environment]\nallow = [\"nic\"]\n");
    let run = explain(&host, bundle_with("rdma=mlx5_0").path());
    let (status, stderr) = (run.code, &run.stderr);
    assert_eq!(status, Some(1), "{stderr}");
    assert!(stderr.contains("allow = [\"nic\", \"rdma\"] under [environment]"), "{stderr}");
}

#[test]
fn a_ticket_that_is_not_known_is_a_refusal() {
    let ticket = format!("ticket:{}", "ab".repeat(16));
    let run = explain(&host(ALLOWED), bundle_with(&ticket).path());
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(run.stderr.contains("ticket abababab… is not known"), "{}", run.stderr);
}

#[test]
fn a_ticket_is_explained_and_not_taken() {
    let host = host(ALLOWED);
    host.boot("this boot");
    let dir = host.root().join("run/onload-ctk");
    fs::create_dir_all(&dir).unwrap();
    let run_dir = RunDir::find(&dir).unwrap().unwrap();
    let tickets = Tickets::open(&run_dir, Processes::at_root(host.root())).unwrap();
    let new = NewTicket {
        request: "rdma=mlx5_0",
        exclusive: &["rdma:mlx5_0".parse().unwrap()],
        engine: "nomad",
        description: None,
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
    assert!(run.stderr.contains("rdma:mlx5_0: it is held by container other "), "{}", run.stderr);
    assert_eq!(fs::read_dir(leases).unwrap().count(), 1);
}

#[test]
fn why_an_image_cannot_use_an_rdma_device_is_told() {
    let bundle = bundle("onload.dev/rdma", "mlx5_0");
    let why = "the image has no libibverbs.so.1, and the host has no libibverbs.so.1";
    let refused = explain(&looking_host(ALLOWED), bundle.path());
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains(why), "{}", refused.stderr);
    let skips = format!("{ALLOWED}on-incompatible = \"skip\"\n");
    let run = explain(&looking_host(&skips), bundle.path());
    let warning = format!("warning: mlx5_0 may be of no use: {why}");
    assert!(run.stderr.contains(&warning), "{}", run.stderr);
}
