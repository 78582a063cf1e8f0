//! The files that engines read, read here as strictly as they do.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use onload_core::config::Config;
use serde::Deserialize;

/// oci-hooks(5), schema 1.0.0.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HooksFile {
    version: String,
    hook: Hook,
    when: When,
    stages: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Hook {
    path: PathBuf,
    args: Vec<String>,
    env: Vec<String>,
    timeout: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct When {
    annotations: BTreeMap<String, String>,
}

fn read(path: &str) -> HooksFile {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    serde_json::from_slice(&std::fs::read(root.join("packaging/hooks.d").join(path)).unwrap())
        .unwrap()
}

#[test]
fn podman_s_file_calls_the_installed_hook_for_our_annotations_only() {
    let file = read("podman/onload.json");
    assert_eq!(file.version, "1.0.0");
    assert_eq!(file.hook.path, Config::default().cdi.hook_path);
    assert_eq!(file.hook.args, ["onload-hook", "precreate"]);
    // An empty environment would be replaced by the caller's (CVE-2025-23266).
    assert_eq!(file.hook.env, ["PATH=/usr/sbin:/usr/bin"]);
    assert_eq!(file.hook.timeout, 10);
    assert_eq!(file.stages, ["precreate", "poststop"]);
    // Go's expressions are not anchored by themselves.
    assert_eq!(
        file.when.annotations,
        BTreeMap::from([(r"^onload\.dev(/|$)".to_owned(), ".*".to_owned())])
    );
}

#[test]
fn the_file_for_every_engine_has_stages_of_the_runtime_specification_only() {
    let file = read("oci/onload.json");
    assert_eq!(file.version, "1.0.0");
    assert_eq!(file.hook.path, Config::default().cdi.hook_path);
    // At poststop the state says that the container has stopped, and the same words clean up.
    assert_eq!(file.hook.args, ["onload-hook", "createRuntime"]);
    assert_eq!(file.hook.env, ["PATH=/usr/sbin:/usr/bin"]);
    // systemd may take its time, and is waited for longer than once.
    assert_eq!(file.hook.timeout, 20);
    // An unknown stage in a shared directory stops CRI-O and buildah.
    assert_eq!(file.stages, ["createRuntime", "poststop"]);
    assert_eq!(
        file.when.annotations,
        BTreeMap::from([(r"^onload\.dev(/|$)".to_owned(), ".*".to_owned())])
    );
}
