//! The library with which engines are built, as Debian packages it (0.5.2 and 0.8.0), reads the same
//! specifications and injects them into the same configurations.

// Test helpers may panic, as tests do.
#![allow(clippy::expect_used, clippy::panic)]

#[path = "support/oracle.rs"]
mod oracle;

use std::fs;
use std::path::PathBuf;

use onload_cdi::{CdiVersion, Registry};
use oracle::{effective, inject};
use serde_json::Value;

/// Every kind of edit that this version of the library knows, on nodes that every Linux has.
const SPECS: [(&str, &str); 6] = [
    (
        "env.json",
        r#"{"cdiVersion": "0.3.0", "kind": "vendor.com/env",
        "containerEdits": {"env": ["SHARED=1", "LD_PRELOAD=libshared.so"]},
        "devices": [
            {"name": "new", "containerEdits": {"env": ["NEW=a=b", "EMPTY="]}},
            {"name": "preload", "containerEdits": {"env": ["LD_PRELOAD=libvendor.so", "PATH=/sbin"]}},
            {"name": "same", "containerEdits": {"env": ["TERM=xterm"]}}]}"#,
    ),
    (
        "nodes.json",
        r#"{"cdiVersion": "0.5.0", "kind": "vendor.com/nodes", "devices": [
            {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/null"}]}},
            {"name": "rw", "containerEdits": {"deviceNodes": [{"path": "/dev/zero", "permissions": "rw"}]}},
            {"name": "typed", "containerEdits": {"deviceNodes": [{"path": "/dev/full", "type": "c"}]}},
            {"name": "moved", "containerEdits": {"deviceNodes": [{"path": "/dev/moved", "hostPath": "/dev/null"}]}},
            {"name": "same-path", "containerEdits": {"deviceNodes": [{"path": "/dev/null", "hostPath": "/dev/zero"}]}},
            {"name": "owned", "containerEdits": {"deviceNodes": [{"path": "/dev/null", "uid": 0, "gid": 44, "fileMode": 416}]}},
            {"name": "written", "containerEdits": {"deviceNodes": [{"path": "/dev/absent", "type": "b", "major": 259, "minor": 7}]}},
            {"name": "major", "containerEdits": {"deviceNodes": [{"path": "/dev/null", "major": 9, "minor": 4}]}},
            {"name": "minor", "containerEdits": {"deviceNodes": [{"path": "/dev/null", "type": "c", "minor": 4}]}},
            {"name": "unbuffered", "containerEdits": {"deviceNodes": [{"path": "/dev/u", "type": "u", "major": 5, "minor": 6}]}},
            {"name": "pipe", "containerEdits": {"deviceNodes": [{"path": "/dev/absent-pipe", "type": "p"}]}},
            {"name": "several", "containerEdits": {"deviceNodes": [{"path": "/dev/zero"}, {"path": "/dev/null"}, {"path": "/dev/zero"}]}}]}"#,
    ),
    (
        "bad-nodes.json",
        r#"{"cdiVersion": "0.5.0", "kind": "vendor.com/bad", "devices": [
            {"name": "absent", "containerEdits": {"deviceNodes": [{"path": "/dev/absent"}]}},
            {"name": "absent-typed", "containerEdits": {"deviceNodes": [{"path": "/dev/absent", "type": "c"}]}},
            {"name": "absent-numbered", "containerEdits": {"deviceNodes": [{"path": "/dev/absent", "major": 1, "minor": 3}]}},
            {"name": "block", "containerEdits": {"deviceNodes": [{"path": "/dev/null", "type": "b"}]}},
            {"name": "unbuffered", "containerEdits": {"deviceNodes": [{"path": "/dev/null", "type": "u"}]}},
            {"name": "file", "containerEdits": {"deviceNodes": [{"path": "/etc/passwd"}]}},
            {"name": "directory", "containerEdits": {"deviceNodes": [{"path": "/dev"}]}},
            {"name": "link", "containerEdits": {"deviceNodes": [{"path": "/proc/self"}]}}]}"#,
    ),
    (
        "mounts.json",
        r#"{"cdiVersion": "0.4.0", "kind": "vendor.com/mounts",
        "containerEdits": {"mounts": [{"hostPath": "/usr/lib/a", "containerPath": "/usr/lib/x/y/a", "options": ["ro", "bind", "nosuid"]}]},
        "devices": [
            {"name": "shallow", "containerEdits": {"mounts": [{"hostPath": "/a", "containerPath": "/a"}]}},
            {"name": "typed", "containerEdits": {"mounts": [{"hostPath": "/a", "containerPath": "/a", "type": "bind"}]}},
            {"name": "same", "containerEdits": {"mounts": [{"hostPath": "/new", "containerPath": "/proc", "options": ["rbind"]}]}},
            {"name": "hugepages", "containerEdits": {"mounts": [{"hostPath": "none", "containerPath": "/dev/hugepages-2Mi", "type": "hugetlbfs", "options": ["nosuid", "nodev", "pagesize=2M", "mode=1777"]}]}},
            {"name": "odd-paths", "containerEdits": {"mounts": [
                {"hostPath": "/1", "containerPath": "/deep/er/../x//y/"}, {"hostPath": "/2", "containerPath": "/"},
                {"hostPath": "/3", "containerPath": "relative/path"}, {"hostPath": "/4", "containerPath": "/.."},
                {"hostPath": "/5", "containerPath": "../.."}, {"hostPath": "/6", "containerPath": "."},
                {"hostPath": "/7", "containerPath": "a/../../../b"}]}},
            {"name": "twice", "containerEdits": {"mounts": [{"hostPath": "/1", "containerPath": "/t"}, {"hostPath": "/2", "containerPath": "/t"}]}}]}"#,
    ),
    (
        "hooks.json",
        r#"{"cdiVersion": "0.3.0", "kind": "vendor.com/hooks",
        "containerEdits": {"hooks": [{"hookName": "createRuntime", "path": "/bin/first", "args": ["first", "--x"], "env": ["A=b"], "timeout": 10}]},
        "devices": [{"name": "all", "containerEdits": {"hooks": [
            {"hookName": "prestart", "path": "/bin/a"}, {"hookName": "createRuntime", "path": "/bin/b"},
            {"hookName": "createContainer", "path": "/bin/c", "timeout": 1}, {"hookName": "startContainer", "path": "/bin/d"},
            {"hookName": "poststart", "path": "/bin/e", "env": ["E=f"]}, {"hookName": "poststop", "path": "/bin/f", "args": []}]}}]}"#,
    ),
    (
        "mixed.json",
        r#"{"cdiVersion": "0.5.0", "kind": "vendor.com/nic",
        "containerEdits": {"deviceNodes": [{"path": "/dev/null", "permissions": "rw"}], "env": ["EF_FDTABLE_SIZE=1048576"],
            "mounts": [{"hostPath": "/usr/lib/libvendor.so", "containerPath": "/usr/lib/libvendor.so", "options": ["ro", "rbind"]}]},
        "devices": [{"name": "ens1", "containerEdits": {"env": ["VENDOR_NIC_ENS1=ens1"]}},
            {"name": "0000:3b:00.0", "containerEdits": {"env": ["VENDOR_NIC_0=0"]}}]}"#,
    ),
];

const CONFIGS: [&str; 5] = [
    r#"{"ociVersion": "1.0.2", "linux": {"namespaces": [{"type": "mount"}, {"type": "user"}],
        "uidMappings": [{"containerID": 0, "hostID": 100000, "size": 65536}],
        "gidMappings": [{"containerID": 0, "hostID": 100000, "size": 65536}]}}"#,
    r#"{"ociVersion": "1.0.2"}"#,
    r#"{"ociVersion": "1.0.2", "process": {"user": {"uid": 1000, "gid": 100, "additionalGids": [4]}, "cwd": "/",
        "args": ["sh"], "env": ["PATH=/bin", "TERM=xterm", "LD_PRELOAD=libimage.so"]},
        "root": {"path": "rootfs"}, "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid"]},
            {"destination": "/usr/lib/x", "source": "/deep", "options": ["rbind"]},
            {"destination": "/dev/pts", "type": "devpts", "source": "devpts"}],
        "linux": {"namespaces": [{"type": "mount"}], "resources": {"devices": [{"allow": false, "access": "rwm"}]}},
        "hooks": {"createRuntime": [{"path": "/bin/engine"}], "poststop": [{"path": "/bin/clean", "timeout": 2}]},
        "annotations": {"a": "b"}}"#,
    r#"{"ociVersion": "1.0.2", "process": {"user": {"uid": 0, "gid": 7}, "cwd": "/", "args": ["sh"], "env": []},
        "mounts": [], "linux": {"devices": [{"path": "/dev/null", "type": "c", "major": 9, "minor": 9},
            {"path": "/dev/zero", "type": "c", "major": 8, "minor": 8, "fileMode": 438, "uid": 3, "gid": 3}]}}"#,
    r#"{"ociVersion": "1.0.2", "mounts": [{"destination": "/t", "source": "/old"}, {"destination": "/proc/a/b"},
        {"destination": "/t", "source": "/older"}, {"destination": "/proc"}], "linux": {}, "hooks": {}}"#,
];

fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, spec) in SPECS {
        fs::write(dir.path().join(name), spec).expect("a file");
    }
    dir
}

#[test]
fn each_device_changes_each_configuration_as_the_library_does() {
    let Some(go) = oracle::go() else { return };
    let dir = directory();
    let dirs = [dir.path().to_owned()];
    let registry = Registry::scan(&dirs);
    assert_eq!(registry.errors().len(), 0, "{:?}", registry.errors());
    let names: Vec<String> = registry.devices().map(|device| device.name.to_string()).collect();
    assert_eq!(names.len(), 3 + 12 + 8 + 6 + 1 + 2);
    for config in CONFIGS {
        for name in &names {
            go.assert_same(&dirs, &[name], config.as_bytes());
        }
    }
}

#[test]
fn bind_mounts_are_mapped_in_a_user_namespace_and_the_librarys_release_maps_none() {
    let Some(go) = oracle::go() else { return };
    let dir = directory();
    let dirs = [dir.path().to_owned()];
    let names = ["vendor.com/mounts=typed"];
    let options = |config: &[u8]| {
        let config: Value = serde_json::from_slice(config).expect("JSON");
        let mount = config["mounts"]
            .as_array()
            .expect("mounts")
            .iter()
            .filter(|mount| mount["destination"] == "/a");
        mount.map(|mount| mount["options"].clone()).collect::<Vec<_>>()
    };
    let config = CONFIGS[0].as_bytes();
    let ours = inject(&dirs, &names, config).expect("ours");
    assert_eq!(options(&ours), [serde_json::json!(["idmap"])]);
    let theirs = go.inject(&dirs, &names, config).expect("theirs").to_string();
    assert_eq!(options(theirs.as_bytes()), [Value::Null]);
}

/// A YAML file with one device, with the name and node spelled as given.
#[cfg(feature = "yaml")]
fn yaml(name: &str, node: &str) -> tempfile::TempDir {
    let content = format!(
        "cdiVersion: 0.5.0\nkind: vendor.com/xx\ndevices:\n- name: {name}\n  containerEdits:\n    \
         deviceNodes:\n    - path: /dev/null\n      {node}\n"
    );
    tree(&[("a.yaml", &content)])
}

#[cfg(feature = "yaml")]
#[test]
fn scalars_of_yaml_are_read_as_the_library_reads_them() {
    let Some(go) = oracle::go() else { return };
    let names = [
        "010",
        "'010'",
        "on",
        "Off",
        "y",
        "'no'",
        "Yes",
        "1_000",
        "0x10",
        "0b11",
        "1.50",
        "089",
        "1e3",
        "12345678.0",
        "0.00001",
        "2001-01-01",
        "0000:3b:00.0",
        "ens1",
        "1.0",
        "-0",
        "~",
        "true",
        "0o17",
    ];
    for name in names {
        let dir = yaml(name, "permissions: rw");
        let dirs = [dir.path().to_owned()];
        let registry = Registry::scan(&dirs);
        let ours: Vec<String> = registry.devices().map(|found| found.name.to_string()).collect();
        let theirs: Vec<String> = go.list(&dirs).devices.into_keys().collect();
        assert_eq!(ours, theirs, "{name}");
    }
    let nodes = [
        "fileMode: 0666",
        "fileMode: 438",
        "fileMode: '438'",
        "fileMode: 0x1b6",
        "fileMode: 1e2",
        "fileMode: on",
        "fileMode: 089",
        "fileMode: 1.5",
        "uid: 010",
        "major: 1_0",
        "permissions: 1",
        "permissions: on",
    ];
    for node in nodes {
        let dir = yaml("d", &format!("{node}\n      type: c\n      minor: 4"));
        let dirs = [dir.path().to_owned()];
        let there = Registry::scan(&dirs).devices().count();
        assert_eq!(there, go.list(&dirs).devices.len(), "{node}");
        if there == 1 {
            go.assert_same(&dirs, &["vendor.com/xx=d"], CONFIGS[1].as_bytes());
        }
    }
}

#[test]
fn several_devices_change_each_configuration_as_the_library_does() {
    let Some(go) = oracle::go() else { return };
    let dir = directory();
    let dirs = [dir.path().to_owned()];
    let requests: [&[&str]; 7] = [
        &["vendor.com/nic=ens1", "vendor.com/nic=0000:3b:00.0"],
        &["vendor.com/env=new", "vendor.com/nic=ens1", "vendor.com/env=preload"],
        &["vendor.com/nodes=0", "vendor.com/nic=ens1", "vendor.com/nodes=same-path"],
        &["vendor.com/hooks=all", "vendor.com/hooks=all"],
        &["vendor.com/mounts=twice", "vendor.com/mounts=odd-paths"],
        &["vendor.com/mounts=same", "vendor.com/mounts=shallow"],
        &["vendor.com/env=new", "vendor.com/env=absent"],
    ];
    for config in CONFIGS {
        for request in requests {
            go.assert_same(&dirs, request, config.as_bytes());
        }
    }
}

/// Directory trees with the content of their files; `{}` represents a device with that name.
fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (path, content) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        let content = match content.strip_prefix("offers ") {
            Some(names) => {
                let devices: Vec<String> = names
                    .split(' ')
                    .map(|name| {
                        format!(r#"{{"name": "{name}", "containerEdits": {{"env": ["A=b"]}}}}"#)
                    })
                    .collect();
                let devices = devices.join(",");
                format!(
                    r#"{{"cdiVersion": "0.5.0", "kind": "vendor.com/xx", "devices": [{devices}]}}"#
                )
            }
            None => (*content).to_owned(),
        };
        fs::write(path, content).expect("a file");
    }
    dir
}

#[test]
fn directories_offer_the_devices_that_the_library_finds_there() {
    let Some(go) = oracle::go() else { return };
    let trees: [&[(&str, &str)]; 11] = [
        &[],
        &[("etc/a.json", "offers d1"), ("run/b.json", "offers d2")],
        &[("etc/a.json", "offers d1 d2"), ("run/a.json", "offers d1")],
        &[("run/a.json", "offers d1 d2"), ("run/b.json", "offers d1")],
        &[("etc/a.json", "offers d1"), ("etc/b.json", "offers d1"), ("run/c.json", "offers d1 d3")],
        &[("etc/a.json", "offers d1"), ("run/b.json", "offers d1"), ("run/c.json", "offers d1")],
        &[("run/a.json", "offers d1"), ("run/b.json", "offers d1"), ("run/c.json", "offers d1")],
        &[
            ("run/a.json", "offers d1"),
            ("run/b.json", "{"),
            ("run/c.json", ""),
            ("run/d.json", "null"),
        ],
        &[
            ("run/a.yml", "offers d1"),
            ("run/b.JSON", "offers d2"),
            ("run/sub/c.json", "offers d3"),
            ("run/d.json~", "offers d4"),
        ],
        &[
            ("run/a.json", "offers d1 d1"),
            ("run/b.json", "offers -d2"),
            ("run/c.json", "offers d3"),
        ],
        &[
            ("run/.hidden.json", "offers d1"),
            ("run/x.y.json", "offers d2"),
            ("run/.json", "offers d3"),
        ],
    ];
    for files in trees {
        let dir = tree(files);
        let dirs = ["etc", "run"].map(|name| dir.path().join(name));
        let theirs = go.list(&dirs);
        let registry = Registry::scan(&dirs);
        let ours: Vec<(String, PathBuf)> = registry
            .devices()
            .map(|found| (found.name.to_string(), found.path.to_owned()))
            .collect();
        assert_eq!(ours, theirs.devices.into_iter().collect::<Vec<_>>(), "{files:?}");
        let wrong: Vec<String> =
            registry.errors().keys().map(|path| path.display().to_string()).collect();
        let theirs: Vec<&String> = theirs.errors.as_object().expect("an object").keys().collect();
        assert_eq!(wrong.iter().collect::<Vec<_>>(), theirs, "{files:?}");
    }
}

#[test]
fn a_directory_that_is_a_link_offers_nothing_as_with_the_library() {
    let Some(go) = oracle::go() else { return };
    let dir = tree(&[("real/a.json", "offers d1")]);
    std::os::unix::fs::symlink("real", dir.path().join("link")).expect("a link");
    std::os::unix::fs::symlink(dir.path(), dir.path().join("way")).expect("a link");
    for (name, offered) in [("real", 1), ("link", 0), ("link/", 0), ("way/real", 1)] {
        let dirs = [dir.path().join(name)];
        assert_eq!(go.list(&dirs).devices.len(), offered, "{name}");
        assert_eq!(Registry::scan(&dirs).devices().count(), offered, "{name}");
    }
}

/// A specification of `version` whose only device has `edits`.
fn with_edits(version: &str, edits: &str) -> String {
    format!(
        r#"{{"cdiVersion": "{version}", "kind": "vendor.com/xx", "devices": [{{"name": "d", "containerEdits": {edits}}}]}}"#
    )
}

fn accepted_by(list: impl Fn(&[PathBuf]) -> usize, content: &str) -> bool {
    let dir = tree(&[("run/a.json", content)]);
    list(&[dir.path().join("run")]) == 1
}

#[test]
fn a_file_that_the_library_refuses_is_refused() {
    let Some(go) = oracle::go() else { return };
    let files = [
        with_edits("0.3.0", r#"{"env": ["A=b"]}"#),
        with_edits("0.5.0", r#"{"env": ["A=b"]}"#),
        with_edits("0.9.0", r#"{"env": ["A=b"]}"#),
        with_edits("", r#"{"env": ["A=b"]}"#),
        with_edits("0.3.0", r#"{"env": ["A"]}"#),
        with_edits("0.3.0", r#"{"env": ["=b"]}"#),
        with_edits("0.3.0", r#"{"unknown": []}"#),
        with_edits("0.3.0", "{}"),
        with_edits("0.3.0", "null"),
        with_edits("0.3.0", "[]"),
        with_edits("0.3.0", r#"{"env": null, "hooks": []}"#),
        with_edits("0.3.0", r#"{"env": null, "mounts": [{"hostPath": "/a", "containerPath": "/b"}]}"#),
        with_edits("0.4.0", r#"{"mounts": [{"hostPath": "/a", "containerPath": "/b", "type": "bind"}]}"#),
        with_edits("0.5.0", r#"{"deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/b"}]}"#),
        with_edits("0.3.0", r#"{"deviceNodes": [{"path": "/dev/a", "permissions": "rx"}]}"#),
        with_edits("0.3.0", r#"{"deviceNodes": [{"path": "/dev/a", "permissions": "rr"}]}"#),
        with_edits("0.3.0", r#"{"deviceNodes": [{"path": "/dev/a", "type": "x"}]}"#),
        with_edits("0.3.0", r#"{"deviceNodes": [{"path": "/dev/a", "type": "u"}]}"#),
        with_edits("0.3.0", r#"{"deviceNodes": [{"path": ""}]}"#),
        with_edits("0.3.0", r#"{"deviceNodes": [{"path": "/dev/a", "fileMode": -1}]}"#),
        with_edits("0.3.0", r#"{"deviceNodes": [{"path": "/dev/a", "uid": 4294967296}]}"#),
        with_edits("0.3.0", r#"{"deviceNodes": [{"path": "/dev/a", "major": "1"}]}"#),
        with_edits("0.3.0", r#"{"hooks": [{"hookName": "prestart", "path": ""}]}"#),
        with_edits("0.3.0", r#"{"hooks": [{"hookName": "precreate", "path": "/a"}]}"#),
        with_edits("0.3.0", r#"{"hooks": [{"hookName": "poststop", "path": "/a", "env": ["A"]}]}"#),
        with_edits("0.3.0", r#"{"hooks": [{"hookName": "poststop", "path": "relative"}]}"#),
        with_edits("0.3.0", r#"{"mounts": [{"hostPath": "", "containerPath": "/b"}]}"#),
        with_edits("0.3.0", r#"{"mounts": [{"hostPath": "/a"}]}"#),
        r#"{"cdiVersion": "0.3.0", "kind": "vendor.com/xx", "devices": []}"#.to_owned(),
        r#"{"cdiVersion": "0.3.0", "kind": "vendor.com/xx"}"#.to_owned(),
        r#"{"cdiVersion": "0.3.0", "kind": "x", "devices": [{"name": "d", "containerEdits": {"env": ["A=b"]}}]}"#.to_owned(),
        r#"{"cdiVersion": "0.3.0", "kind": "-v/xx", "devices": [{"name": "d", "containerEdits": {"env": ["A=b"]}}]}"#.to_owned(),
        r#"{"cdiVersion": "0.3.0", "kind": "vendor.com/xx", "devices": [{"name": "d+", "containerEdits": {"env": ["A=b"]}}]}"#.to_owned(),
        r#"{"cdiVersion": "0.3.0", "kind": "vendor.com/xx", "kind": "vendor.com/xx", "devices": [{"name": "d", "containerEdits": {"env": ["A=b"]}}]}"#.to_owned(),
    ];
    for content in files {
        let theirs = accepted_by(|dirs| go.list(dirs).devices.len(), &content);
        let ours = accepted_by(|dirs| Registry::scan(dirs).devices().count(), &content);
        assert_eq!(ours, theirs, "{content}");
    }
}

#[test]
fn deviation_the_library_repeats_a_key_of_the_environment_and_we_set_it_in_its_place() {
    let Some(go) = oracle::go() else { return };
    let dir = directory();
    let dirs = [dir.path().to_owned()];
    let config = br#"{"process": {"env": ["A=1", "LD_PRELOAD=libimage.so", "B=2"]}}"#;
    let request = ["vendor.com/env=preload"];
    let theirs =
        go.inject(&dirs, &request, config).expect("an injection")["process"]["env"].clone();
    let ours: Value =
        serde_json::from_slice(&inject(&dirs, &request, config).expect("an injection"))
            .expect("a configuration");
    let ours = ours["process"]["env"].clone();
    let preloads = |env: &Value| env.to_string().matches("LD_PRELOAD=").count();
    assert_eq!((preloads(&theirs), preloads(&ours)), (2, 1), "{theirs} {ours}");
    assert_eq!(effective(&theirs), effective(&ours));
    assert_eq!(ours[1], "LD_PRELOAD=libvendor.so");
}

#[test]
fn deviation_the_library_leaves_the_mode_open_and_we_take_that_of_the_host_as_1_1_does() {
    let Some(go) = oracle::go() else { return };
    let dir = directory();
    let dirs = [dir.path().to_owned()];
    let request = ["vendor.com/nodes=0"];
    let theirs = go.inject(&dirs, &request, b"{}").expect("an injection");
    assert_eq!(theirs.pointer("/linux/devices/0/fileMode"), None);
    let ours = inject(&dirs, &request, b"{}").expect("an injection");
    let ours: Value = serde_json::from_slice(&ours).expect("a configuration");
    assert!(ours.pointer("/linux/devices/0/fileMode").is_some_and(Value::is_u64), "{ours}");
}

#[test]
fn deviation_the_library_knows_fewer_versions_and_their_fields() {
    let Some(go) = oracle::go() else { return };
    let newest: CdiVersion = go.version().parse().expect("a version");
    for (version, edits) in [
        ("0.6.0", r#"{"env": ["A=b"]}"#),
        ("0.7.0", r#"{"additionalGids": [5]}"#),
        ("0.7.0", r#"{"intelRdt": {"closID": "x"}}"#),
        ("0.8.0", r#"{"env": ["A=b"]}"#),
        ("1.0.0", r#"{"env": ["A=b"]}"#),
        ("1.1.0", r#"{"netDevices": [{"hostInterfaceName": "eth0", "name": "net0"}]}"#),
    ] {
        let content = with_edits(version, edits);
        let known = version.parse::<CdiVersion>().expect("a version") <= newest;
        assert_eq!(accepted_by(|dirs| go.list(dirs).devices.len(), &content), known, "{content}");
        assert!(accepted_by(|dirs| Registry::scan(dirs).devices().count(), &content), "{content}");
    }
}

#[test]
fn deviation_the_library_reads_json_files_as_yaml_and_keys_in_any_case() {
    let Some(go) = oracle::go() else { return };
    let content = with_edits("0.3.0", r#"{"env": ["A=b"]}"#);
    for content in [
        content.replace('"', "'"),
        content.replace("}]}", "},]}"),
        content.replace("kind", "Kind"),
        format!("# a comment\n{content}"),
        "cdiVersion: 0.3.0\nkind: vendor.com/xx\ndevices:\n- name: d\n  containerEdits:\n    env: [A=b]\n".to_owned(),
    ] {
        assert!(accepted_by(|dirs| go.list(dirs).devices.len(), &content), "{content}");
        assert!(!accepted_by(|dirs| Registry::scan(dirs).devices().count(), &content), "{content}");
    }
}

#[test]
fn deviation_the_library_orders_mounts_of_one_depth_by_destination_and_we_keep_their_order() {
    let Some(go) = oracle::go() else { return };
    let dir = directory();
    let dirs = [dir.path().to_owned()];
    let config =
        br#"{"mounts": [{"destination": "/z"}, {"destination": "/b/c"}, {"destination": "/y"}]}"#;
    let request = ["vendor.com/mounts=shallow"];
    let destinations = |config: &Value| -> Vec<String> {
        config["mounts"]
            .as_array()
            .expect("mounts")
            .iter()
            .map(|mount| mount["destination"].as_str().expect("a text").to_owned())
            .collect()
    };
    let theirs = go.inject(&dirs, &request, config).expect("an injection");
    let ours = inject(&dirs, &request, config).expect("an injection");
    let ours = serde_json::from_slice(&ours).expect("a configuration");
    assert_eq!(destinations(&theirs), ["/a", "/y", "/z", "/b/c", "/usr/lib/x/y/a"]);
    assert_eq!(destinations(&ours), ["/z", "/y", "/a", "/b/c", "/usr/lib/x/y/a"]);
}

#[test]
fn deviation_the_library_crashes_on_a_class_of_one_character() {
    let Some(go) = oracle::go() else { return };
    let content =
        with_edits("0.3.0", r#"{"env": ["A=b"]}"#).replace("vendor.com/xx", "vendor.com/x");
    let dir = tree(&[("run/a.json", &content)]);
    let dirs = [dir.path().join("run")];
    let error = go.inject(&dirs, &["vendor.com/x=d"], b"{}").expect_err("a crash");
    assert!(error.contains("slice bounds out of range"), "{error}");
    assert_eq!(Registry::scan(&dirs).devices().count(), 1);
    let spec = onload_cdi::from_json(content.as_bytes()).expect("a specification");
    assert_eq!(onload_cdi::lint(&spec)[0].location, "kind");
}

/// Returns whether the library predates 0.6, which compares the version with the one that the fields require.
fn ignores_required_version(go: &oracle::Tool) -> bool {
    go.version().parse::<CdiVersion>().expect("a version") < "0.6.0".parse().expect("a version")
}

#[test]
fn deviation_the_library_refuses_a_v_before_the_version_and_we_take_it_as_1_1_does() {
    let Some(go) = oracle::go() else { return };
    let content = with_edits("v0.3.0", r#"{"env": ["A=b"]}"#);
    let accepted = accepted_by(|dirs| go.list(dirs).devices.len(), &content);
    assert_eq!(accepted, !ignores_required_version(go));
    assert!(accepted_by(|dirs| Registry::scan(dirs).devices().count(), &content));
}

#[test]
fn deviation_the_library_accepts_a_version_too_low_for_the_fields_and_we_refuse_it_as_1_1_does() {
    let Some(go) = oracle::go() else { return };
    for content in [
        with_edits(
            "0.3.0",
            r#"{"mounts": [{"hostPath": "/a", "containerPath": "/b", "type": "x"}]}"#,
        ),
        with_edits("0.4.0", r#"{"deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/b"}]}"#),
        with_edits("0.4.0", r#"{"env": ["A=b"]}"#).replace(r#""name": "d""#, r#""name": "0d""#),
        with_edits("0.1.0", r#"{"env": ["A=b"]}"#),
    ] {
        let accepted = accepted_by(|dirs| go.list(dirs).devices.len(), &content);
        assert_eq!(accepted, ignores_required_version(go), "{content}");
        assert!(!accepted_by(|dirs| Registry::scan(dirs).devices().count(), &content), "{content}");
    }
}
