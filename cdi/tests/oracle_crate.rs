//! The crate `container-device-interface` 1.1.1 reads the same specifications, including those of
//! 0.6.0 to 1.1.0, and injects them into the same configurations, except for the deviations named
//! here.

// Test helpers may panic, as tests do.
#![allow(clippy::expect_used, clippy::panic)]

#[path = "support/oracle.rs"]
mod oracle;

use std::fs;
use std::path::PathBuf;

use onload_cdi::Registry;
use oracle::{Tool, effective, inject};
use serde_json::{Value, json};

/// Every kind of edit of CDI 1.1.0.
const SPECS: [(&str, &str); 4] = [
    (
        "full.json",
        r#"{"cdiVersion": "1.1.0", "kind": "vendor.com/sub.class",
        "annotations": {"vendor.com/note": "x"},
        "containerEdits": {"env": ["SHARED=1"], "additionalGids": [44, 0, 44]},
        "devices": [
            {"name": "0", "annotations": {"a": "b"}, "containerEdits": {"deviceNodes": [{"path": "/dev/null", "permissions": "rw"}]}},
            {"name": "env", "containerEdits": {"env": ["NEW=a=b", "EMPTY="]}},
            {"name": "preload", "containerEdits": {"env": ["LD_PRELOAD=libvendor.so"]}},
            {"name": "groups", "containerEdits": {"additionalGids": [4, 5]}},
            {"name": "net", "containerEdits": {"netDevices": [{"hostInterfaceName": "eth0", "name": "net0"}]}},
            {"name": "rdt", "containerEdits": {"intelRdt": {"closID": "x", "l3CacheSchema": "L3:0=7f", "memBwSchema": "MB:0=70",
                "schemata": ["L3:0=ff"], "enableMonitoring": true}}}]}"#,
    ),
    (
        "nodes.json",
        r#"{"cdiVersion": "0.5.0", "kind": "vendor.com/nodes", "devices": [
            {"name": "moved", "containerEdits": {"deviceNodes": [{"path": "/dev/moved", "hostPath": "/dev/null"}]}},
            {"name": "owned", "containerEdits": {"deviceNodes": [{"path": "/dev/null", "uid": 0, "gid": 44, "fileMode": 416}]}},
            {"name": "written", "containerEdits": {"deviceNodes": [{"path": "/dev/absent", "type": "b", "major": 259, "minor": 7}]}},
            {"name": "absent", "containerEdits": {"deviceNodes": [{"path": "/dev/absent"}]}},
            {"name": "block", "containerEdits": {"deviceNodes": [{"path": "/dev/null", "type": "b"}]}},
            {"name": "directory", "containerEdits": {"deviceNodes": [{"path": "/dev"}]}}]}"#,
    ),
    (
        "mounts.json",
        r#"{"cdiVersion": "0.4.0", "kind": "vendor.com/mounts", "devices": [
            {"name": "library", "containerEdits": {"mounts": [{"hostPath": "/usr/lib/a", "containerPath": "/usr/lib/x/y/a", "options": ["ro", "bind"]}]}},
            {"name": "shallow", "containerEdits": {"mounts": [{"hostPath": "/a", "containerPath": "/a", "options": ["rbind"]}]}},
            {"name": "same", "containerEdits": {"mounts": [{"hostPath": "/new", "containerPath": "/proc", "options": ["rbind"]}]}},
            {"name": "hugepages", "containerEdits": {"mounts": [{"hostPath": "none", "containerPath": "/dev/hugepages-2Mi",
                "type": "hugetlbfs", "options": ["nosuid", "nodev", "pagesize=2M", "mode=1777"]}]}}]}"#,
    ),
    (
        "hooks.json",
        r#"{"cdiVersion": "0.3.0", "kind": "vendor.com/hooks", "devices": [{"name": "all", "containerEdits": {"hooks": [
            {"hookName": "prestart", "path": "/bin/a"}, {"hookName": "createRuntime", "path": "/bin/b", "args": ["b", "x"], "env": ["A=b"], "timeout": 10},
            {"hookName": "createContainer", "path": "/bin/c"}, {"hookName": "startContainer", "path": "/bin/d"},
            {"hookName": "poststart", "path": "/bin/e"}, {"hookName": "poststop", "path": "/bin/f"}]}}]}"#,
    ),
];

const CONFIGS: [&str; 2] = [
    r#"{"ociVersion": "1.0.2", "process": {"user": {"uid": 1000, "gid": 100, "additionalGids": [4]}, "cwd": "/",
        "args": ["sh"], "env": ["PATH=/bin", "TERM=xterm", "LD_PRELOAD=libimage.so"]},
        "root": {"path": "rootfs"}, "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/usr/lib/x", "source": "/deep", "options": ["rbind"]}],
        "linux": {"namespaces": [{"type": "mount"}], "resources": {"devices": [{"allow": false, "access": "rwm"}]}},
        "hooks": {"createRuntime": [{"path": "/bin/engine"}]}, "annotations": {"a": "b"}}"#,
    r#"{"ociVersion": "1.0.2", "process": {"user": {"uid": 0, "gid": 7}, "cwd": "/", "args": ["sh"], "env": []},
        "mounts": [], "hooks": {}, "linux": {"resources": {}, "devices": [{"path": "/dev/null", "type": "c", "major": 9, "minor": 9}]}}"#,
];

const PLAIN: &[u8] =
    br#"{"ociVersion": "1.0.2", "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/"}, "mounts": [], "linux": {}}"#;

fn directory(files: &[(&str, &str)]) -> (tempfile::TempDir, [PathBuf; 1]) {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, content) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, content).expect("a file");
    }
    let dirs = [dir.path().to_owned()];
    (dir, dirs)
}

fn with_edits(version: &str, name: &str, edits: &str) -> String {
    format!(
        r#"{{"cdiVersion": "{version}", "kind": "vendor.com/class", "devices": [{{"name": "{name}", "containerEdits": {edits}}}]}}"#
    )
}

fn offer(name: &str) -> String {
    with_edits("0.3.0", name, r#"{"env": ["A=b"]}"#)
}

fn theirs(tool: &Tool, dirs: &[PathBuf]) -> Vec<String> {
    tool.list(dirs).devices.into_keys().collect()
}

fn ours(dirs: &[PathBuf]) -> Vec<String> {
    Registry::scan(dirs).devices().map(|device| device.name.to_string()).collect()
}

fn injected(dirs: &[PathBuf], names: &[&str], config: &[u8]) -> Value {
    serde_json::from_slice(&inject(dirs, names, config).expect("an injection")).expect("JSON")
}

#[test]
fn each_device_changes_each_configuration_as_the_crate_does() {
    let Some(tool) = oracle::second_crate() else {
        return;
    };
    assert_eq!(tool.version(), "1.1.0");
    let (_dir, dirs) = directory(&SPECS);
    let names = ours(&dirs);
    assert_eq!(names.len(), 6 + 6 + 4 + 1);
    assert_eq!(theirs(tool, &dirs), names);
    for config in CONFIGS {
        for name in &names {
            tool.assert_same(&dirs, &[name], config.as_bytes());
        }
    }
}

#[test]
fn several_devices_change_each_configuration_as_the_crate_does() {
    let Some(tool) = oracle::second_crate() else {
        return;
    };
    let (_dir, dirs) = directory(&SPECS);
    let requests: [&[&str]; 4] = [
        &["vendor.com/sub.class=env", "vendor.com/hooks=all", "vendor.com/sub.class=preload"],
        &["vendor.com/mounts=same", "vendor.com/mounts=hugepages", "vendor.com/mounts=library"],
        &["vendor.com/nodes=moved", "vendor.com/nodes=owned", "vendor.com/sub.class=0"],
        &["vendor.com/nodes=moved", "vendor.com/nodes=missing"],
    ];
    for config in CONFIGS {
        for request in requests {
            tool.assert_same(&dirs, request, config.as_bytes());
        }
    }
}

#[test]
fn a_file_that_the_crate_refuses_is_refused() {
    let Some(tool) = oracle::second_crate() else {
        return;
    };
    for content in [
        offer("d"),
        offer("0"),
        offer("d+"),
        with_edits("v0.3.0", "d", r#"{"env": ["A=b"]}"#),
        with_edits("1.1.0", "d", r#"{"env": ["A=b"]}"#),
        with_edits("1.2.0", "d", r#"{"env": ["A=b"]}"#),
        with_edits("0.2.0", "d", r#"{"env": ["A=b"]}"#),
        with_edits("0.3.0", "d", "{}"),
        with_edits("0.3.0", "d", r#"{"unknown": 1}"#),
        with_edits("0.3.0", "d", r#"{"env": ["A"]}"#),
        with_edits("0.3.0", "d", r#"{"env": ["=A"]}"#),
        with_edits("0.6.0", "d", r#"{"additionalGids": [1]}"#),
        with_edits("0.7.0", "d", r#"{"additionalGids": [1]}"#),
        with_edits("1.0.0", "d", r#"{"netDevices": [{"hostInterfaceName": "a", "name": "b"}]}"#),
        with_edits("1.1.0", "d", r#"{"netDevices": [{"hostInterfaceName": "", "name": "b"}]}"#),
        with_edits("1.1.0", "d", r#"{"intelRdt": {"closID": ".."}}"#),
        with_edits("1.0.0", "d", r#"{"intelRdt": {"schemata": ["x"]}}"#),
        with_edits("0.3.0", "d", r#"{"deviceNodes": [{"path": "/dev/a", "permissions": "x"}]}"#),
        with_edits("0.3.0", "d", r#"{"deviceNodes": [{"path": "/dev/a", "type": "x"}]}"#),
        with_edits("0.3.0", "d", r#"{"deviceNodes": [{"path": ""}]}"#),
        with_edits("0.3.0", "d", r#"{"hooks": [{"hookName": "precreate", "path": "/a"}]}"#),
        with_edits("0.3.0", "d", r#"{"hooks": [{"hookName": "poststop", "path": ""}]}"#),
        with_edits("0.3.0", "d", r#"{"mounts": [{"hostPath": "", "containerPath": "/b"}]}"#),
        with_edits(
            "0.3.0",
            "d",
            r#"{"mounts": [{"hostPath": "/a", "containerPath": "/b", "type": "x"}]}"#,
        ),
        r#"{"cdiVersion": "0.3.0", "kind": "vendor.com/class", "devices": []}"#.to_owned(),
        r#"{"cdiVersion": "0.3.0", "kind": "vendor.com", "devices": []}"#.to_owned(),
        "{".to_owned(),
        String::new(),
    ] {
        let (_dir, dirs) = directory(&[("a.json", &content)]);
        assert_eq!(ours(&dirs), theirs(tool, &dirs), "{content}");
    }
}

#[test]
fn deviation_the_crate_reads_subdirectories() {
    let Some(tool) = oracle::second_crate() else {
        return;
    };
    let (_dir, dirs) = directory(&[("a.json", &offer("a")), ("sub/b.json", &offer("b"))]);
    assert_eq!(theirs(tool, &dirs), ["vendor.com/class=a", "vendor.com/class=b"]);
    assert_eq!(ours(&dirs), ["vendor.com/class=a"]);
}

#[test]
fn deviation_the_crate_loses_all_devices_to_one_bad_file() {
    let Some(tool) = oracle::second_crate() else {
        return;
    };
    let (_dir, dirs) = directory(&[("a.json", &offer("a")), ("b.json", "{")]);
    let listing = tool.list(&dirs);
    assert_eq!((listing.devices.len(), listing.scan.is_some()), (0, true));
    assert_eq!(ours(&dirs), ["vendor.com/class=a"]);
}

#[test]
fn deviation_the_crate_reports_no_error_of_a_file() {
    let Some(tool) = oracle::second_crate() else {
        return;
    };
    let (_dir, dirs) = directory(&[("a.json", &offer("a")), ("b.json", "{")]);
    assert_eq!(tool.list(&dirs).errors, json!([]));
    assert_eq!(Registry::scan(&dirs).errors().len(), 1);
}

#[test]
fn deviation_the_crate_gives_a_device_that_two_files_claim() {
    let Some(tool) = oracle::second_crate() else {
        return;
    };
    let (_dir, dirs) = directory(&[("a.json", &offer("a")), ("b.json", &offer("a"))]);
    assert_eq!(theirs(tool, &dirs), ["vendor.com/class=a"]);
    assert_eq!(ours(&dirs), [""; 0]);
}

#[test]
fn deviation_the_crate_does_not_sort_mounts() {
    let Some(tool) = oracle::second_crate() else {
        return;
    };
    let (_dir, dirs) = directory(&SPECS);
    let request = ["vendor.com/mounts=library", "vendor.com/mounts=shallow"];
    let destinations = |config: &Value| config.pointer("/mounts/0/destination").cloned();
    let theirs = tool.inject(&dirs, &request, PLAIN).expect("an injection");
    assert_eq!(destinations(&theirs), Some(json!("/usr/lib/x/y/a")));
    assert_eq!(destinations(&injected(&dirs, &request, PLAIN)), Some(json!("/a")));
}

#[test]
fn deviation_the_crate_leaves_the_mode_open() {
    let Some(tool) = oracle::second_crate() else {
        return;
    };
    let (_dir, dirs) = directory(&SPECS);
    let request = ["vendor.com/nodes=moved"];
    let theirs = tool.inject(&dirs, &request, PLAIN).expect("an injection");
    assert!(
        theirs.pointer("/linux/devices/0").is_some_and(|device| device.get("fileMode").is_none())
    );
    let ours = injected(&dirs, &request, PLAIN);
    assert!(ours.pointer("/linux/devices/0/fileMode").is_some_and(Value::is_u64));
}

#[test]
fn deviation_the_crate_follows_a_link_to_a_device() {
    let Some(tool) = oracle::second_crate() else {
        return;
    };
    let link = tempfile::tempdir().expect("a directory").path().join("null");
    fs::create_dir_all(link.parent().expect("a parent")).expect("a directory");
    std::os::unix::fs::symlink("/dev/null", &link).expect("a link");
    let edits = format!(r#"{{"deviceNodes": [{{"path": "{}"}}]}}"#, link.display());
    let (_dir, dirs) = directory(&[("a.json", &with_edits("0.3.0", "d", &edits))]);
    assert!(tool.inject(&dirs, &["vendor.com/class=d"], PLAIN).is_ok());
    let error = inject(&dirs, &["vendor.com/class=d"], PLAIN).expect_err("a link");
    assert!(error.contains("not a device node"), "{error}");
}

#[test]
fn deviation_the_crate_repeats_a_key_of_the_environment() {
    let Some(tool) = oracle::second_crate() else {
        return;
    };
    let (_dir, dirs) = directory(&SPECS);
    let request = ["vendor.com/sub.class=preload"];
    let theirs = tool.inject(&dirs, &request, CONFIGS[0].as_bytes()).expect("an injection");
    let ours = injected(&dirs, &request, CONFIGS[0].as_bytes());
    let env = |config: &Value| config["process"]["env"].clone();
    let preloads = |config: &Value| env(config).to_string().matches("LD_PRELOAD=").count();
    assert_eq!((preloads(&theirs), preloads(&ours)), (2, 1));
    assert_eq!(effective(&env(&theirs)), effective(&env(&ours)));
}

#[test]
fn deviation_the_crate_accepts_the_rdt_fields_that_1_1_removed() {
    let Some(tool) = oracle::second_crate() else {
        return;
    };
    for field in ["enableCMT", "enableMBM"] {
        let edits = format!(r#"{{"intelRdt": {{"closID": "x", "{field}": true}}}}"#);
        let (_dir, dirs) = directory(&[("a.json", &with_edits("0.7.0", "d", &edits))]);
        assert_eq!(theirs(tool, &dirs), ["vendor.com/class=d"]);
        assert_eq!(ours(&dirs), [""; 0]);
    }
}

#[test]
fn deviation_the_crate_invents_a_linux_section_with_namespaces_and_masked_paths() {
    let Some(tool) = oracle::second_crate() else {
        return;
    };
    let (_dir, dirs) = directory(&SPECS);
    let config =
        br#"{"ociVersion": "1.0.2", "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/"}}"#;
    let request = ["vendor.com/nodes=written"];
    let theirs = tool.inject(&dirs, &request, config).expect("an injection");
    assert!(theirs["linux"]["namespaces"].is_array() && theirs["linux"]["maskedPaths"].is_array());
    let ours = injected(&dirs, &request, config);
    let keys: Vec<_> = ours["linux"].as_object().expect("an object").keys().cloned().collect();
    assert_eq!(keys, ["devices", "resources"]);
}
