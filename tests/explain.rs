//! `container explain`: what the annotations of a bundle would change.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::path::Path;

use common::hosts::rdma;
use common::{Run, Tree, on, run};

/// A bundle whose container carries one annotation.
fn bundle(annotation: &str, value: &str) -> tempfile::TempDir {
    let bundle = tempfile::tempdir().unwrap();
    fs::create_dir(bundle.path().join("rootfs")).unwrap();
    let config = format!(
        r#"{{"ociVersion": "1.0.2", "root": {{"path": "rootfs"}}, "process": {{"args": ["sh"], "env": [],
            "user": {{"uid": 0, "gid": 0}}}}, "linux": {{"resources": {{}}}}, "annotations": {{"{annotation}": "{value}"}}}}"#
    );
    fs::write(bundle.path().join("config.json"), config).unwrap();
    bundle
}

fn host(config: &str) -> Tree {
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
    assert!(
        run.stdout.contains("\"path\": \"/dev/infiniband/uverbs7\""),
        "{}",
        run.stdout
    );
    assert!(
        run.stdout.contains("\"ONLOAD_CTK_RDMA_MLX5_0=mlx5_0\""),
        "{}",
        run.stdout
    );
    assert!(
        run.stderr
            .contains("onload.dev/rdma: class rdma is allowed"),
        "{}",
        run.stderr
    );
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
    assert!(
        run.stderr.contains("nothing would be changed"),
        "{}",
        run.stderr
    );
}

#[test]
fn a_refusal_is_the_answer_no_with_the_line_to_add() {
    let bundle = bundle("onload.dev/rdma", "mlx5_0");
    let run = explain(&host(""), bundle.path()).answered_no();
    assert!(
        run.stderr
            .contains("allow = [\"rdma\"] under [annotations]"),
        "{}",
        run.stderr
    );
}

#[test]
fn an_unknown_name_is_refused_with_what_is_offered() {
    let bundle = bundle("onload.dev/rdma", "none");
    let run = explain(&host(ALLOWED), bundle.path()).answered_no();
    assert!(
        run.stderr
            .contains("there is no rdma \"none\"; offered: all"),
        "{}",
        run.stderr
    );
}

#[test]
fn a_bundle_that_is_not_there_cannot_be_explained() {
    let error = explain(&host(ALLOWED), Path::new("/nonexistent/bundle")).refused();
    assert!(error.contains("/nonexistent/bundle"), "{error}");
}
