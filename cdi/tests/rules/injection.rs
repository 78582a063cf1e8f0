use std::collections::BTreeMap;
use std::io;

use onload_cdi::oci::{
    HostNode, HostNodes, InjectError, NodeKind, NodeLookup, OciConfig, apply, map_ids,
};
use serde_json::{Value, json};

use crate::{edits, error_chain};

/// A host with the nodes that a test defines.
struct Nodes(BTreeMap<&'static str, HostNode>);

impl NodeLookup for Nodes {
    fn node(&self, path: &str) -> io::Result<HostNode> {
        self.0.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn nodes() -> Nodes {
    let node = |kind, major, minor| HostNode { kind, major, minor, mode: 0o660 };
    Nodes(BTreeMap::from([
        ("/dev/null", node(NodeKind::Char, 1, 3)),
        ("/dev/zero", node(NodeKind::Char, 1, 5)),
        ("/dev/sda", node(NodeKind::Block, 8, 0)),
        ("/dev/fifo", node(NodeKind::Fifo, 0, 0)),
    ]))
}

fn try_inject(config: &Value, json: &str) -> Result<Value, InjectError> {
    let mut config = OciConfig::parse(config.to_string().as_bytes()).expect("a configuration");
    apply(&mut config, &edits(json), &nodes())?;
    Ok(serde_json::from_slice(&config.to_bytes()).expect("JSON"))
}

/// By value, so that the tables need no `&` before each `json!`.
#[expect(clippy::needless_pass_by_value)]
#[track_caller]
fn check(before: Value, edits: &str, after: Value) {
    let found = try_inject(&before, edits).unwrap_or_else(|error| panic!("{edits}: {error}"));
    assert_eq!(found, after, "{edits}");
}

fn rule(kind: &str, major: i64, minor: i64, access: &str) -> Value {
    json!({"allow": true, "type": kind, "major": major, "minor": minor, "access": access})
}

#[test]
fn no_edits_change_no_byte() {
    let bytes = b" { \"ociVersion\" : \"1.0.2\", \"mounts\": [ {\"destination\":\"/a/b\"}, {\"destination\":\"/a\"} ] }\n";
    let mut config = OciConfig::parse(bytes).expect("a configuration");
    apply(&mut config, &edits("{}"), &nodes()).expect("nothing to do");
    assert_eq!(config.to_bytes(), bytes.trim_ascii());
}

#[test]
fn variables_are_added_in_order() {
    check(json!({}), r#"{"env": ["B=2", "A=1"]}"#, json!({"process": {"env": ["B=2", "A=1"]}}));
    check(
        json!({"process": {"env": ["P=x"], "cwd": "/"}}),
        r#"{"env": ["A=1"]}"#,
        json!({"process": {"env": ["P=x", "A=1"], "cwd": "/"}}),
    );
}

#[test]
fn repeated_variables_are_merged() {
    check(
        json!({"process": {"env": ["A=old", "B=1", "A=older", "AA=2", "B=3"]}}),
        r#"{"env": ["A=new"]}"#,
        json!({"process": {"env": ["A=new", "B=1", "AA=2", "B=3"]}}),
    );
    check(
        json!({}),
        r#"{"env": ["A=1", "B=1", "A=2"]}"#,
        json!({"process": {"env": ["A=2", "B=1"]}}),
    );
    check(
        json!({"process": {"env": ["A"]}}),
        r#"{"env": ["A=1"]}"#,
        json!({"process": {"env": ["A", "A=1"]}}),
    );
}

#[test]
fn rejects_an_environment_entry_that_is_not_text() {
    // Go reads a lone surrogate as U+FFFD, and so sees a second LD_PRELOAD in the last one.
    for entry in ["{}", "1", "null", r#""LD_PRELOAD=\ud800""#] {
        let text = format!(r#"{{"process": {{"env": ["A=1", {entry}]}}}}"#);
        let mut config = OciConfig::parse(text.as_bytes()).expect("a configuration");
        let preload = edits(r#"{"env": ["LD_PRELOAD=libvendor.so"]}"#);
        let error = error_chain(&apply(&mut config, &preload, &nodes()).expect_err(entry));
        assert!(error.starts_with("changing config.json: process: env: [1]: "), "{error}");
        assert!(config.env_value("LD_PRELOAD").is_err(), "{entry}");
    }
}

#[test]
fn device_is_completed_from_the_host_node() {
    for edits in [
        r#"{"deviceNodes": [{"path": "/dev/null"}]}"#,
        r#"{"deviceNodes": [{"path": "/dev/null", "type": ""}]}"#,
        r#"{"deviceNodes": [{"path": "/dev/null", "type": "c"}]}"#,
        r#"{"deviceNodes": [{"path": "/dev/null", "type": "c", "major": 0, "minor": 77}]}"#,
        r#"{"deviceNodes": [{"path": "/dev/null", "permissions": ""}]}"#,
        r#"{"deviceNodes": [{"path": "/dev/null", "hostPath": ""}]}"#,
    ] {
        let device =
            json!({"path": "/dev/null", "type": "c", "major": 1, "minor": 3, "fileMode": 0o660});
        let after = json!({"linux":
            {"devices": [device], "resources": {"devices": [rule("c", 1, 3, "rwm")]}}});
        check(json!({}), edits, after);
    }
}

#[test]
fn edits_take_precedence_over_the_host_node() {
    let edits = r#"{"deviceNodes": [{"path": "/dev/disk", "hostPath": "/dev/sda", "type": "b", "major": 8,
        "minor": 1, "fileMode": 384, "permissions": "r", "uid": 5, "gid": 6}]}"#;
    let device = json!({"path": "/dev/disk", "type": "b", "major": 8, "minor": 1, "fileMode": 0o600,
        "uid": 5, "gid": 6});
    let after = json!({"linux":
        {"devices": [device], "resources": {"devices": [rule("b", 8, 1, "r")]}}});
    check(json!({}), edits, after);
}

#[test]
fn minor_number_defaults_to_0_if_major_is_set() {
    let edits = r#"{"deviceNodes": [{"path": "/dev/null", "major": 9}]}"#;
    let device =
        json!({"path": "/dev/null", "type": "c", "major": 9, "minor": 0, "fileMode": 0o660});
    let after = json!({"linux":
        {"devices": [device], "resources": {"devices": [rule("c", 9, 0, "rwm")]}}});
    check(json!({}), edits, after);
}

#[test]
fn complete_device_may_be_missing_on_the_host() {
    let edits =
        r#"{"deviceNodes": [{"path": "/dev/absent", "type": "c", "major": 10, "minor": 1}]}"#;
    let device = json!({"path": "/dev/absent", "type": "c", "major": 10, "minor": 1});
    let after = json!({"linux":
        {"devices": [device], "resources": {"devices": [rule("c", 10, 1, "rwm")]}}});
    check(json!({}), edits, after);
    let fifo = r#"{"deviceNodes": [{"path": "/dev/absent", "type": "p"}]}"#;
    let device = json!({"path": "/dev/absent", "type": "p", "major": 0, "minor": 0});
    check(json!({}), fifo, json!({"linux": {"devices": [device]}}));
}

#[test]
fn only_char_and_block_devices_get_a_cgroup_rule() {
    let fifo = json!({"path": "/dev/fifo", "type": "p", "major": 0, "minor": 0, "fileMode": 0o660});
    check(
        json!({}),
        r#"{"deviceNodes": [{"path": "/dev/fifo"}]}"#,
        json!({"linux": {"devices": [fifo]}}),
    );
    let device =
        json!({"path": "/dev/null", "type": "u", "major": 1, "minor": 3, "fileMode": 0o660});
    check(
        json!({}),
        r#"{"deviceNodes": [{"path": "/dev/null", "type": "u", "major": 1, "minor": 3}]}"#,
        json!({"linux": {"devices": [device]}}),
    );
}

#[test]
fn rejects_a_missing_or_different_device() {
    for (edits, message) in [
        (r#"{"deviceNodes": [{"path": "/dev/absent"}]}"#, "/dev/absent"),
        (r#"{"deviceNodes": [{"path": "/dev/absent", "type": "c"}]}"#, "/dev/absent"),
        (r#"{"deviceNodes": [{"path": "/dev/absent", "major": 1, "minor": 3}]}"#, "/dev/absent"),
        (r#"{"deviceNodes": [{"path": "/dev/null", "hostPath": "/dev/absent"}]}"#, "/dev/absent"),
        (r#"{"deviceNodes": [{"path": "/dev/null", "type": "b"}]}"#, "of type c, the edits say b"),
        (r#"{"deviceNodes": [{"path": "/dev/null", "type": "u"}]}"#, "of type c, the edits say u"),
    ] {
        let error = error_chain(&try_inject(&json!({}), edits).expect_err(edits));
        assert!(error.contains(message), "{edits}: {error}");
    }
}

#[test]
fn device_owner_defaults_to_the_process_user() {
    let edits = r#"{"deviceNodes": [{"path": "/dev/null"}]}"#;
    let found = |user: Value| {
        let after = try_inject(&json!({"process": {"user": user}}), edits).expect("an injection");
        let device = after["linux"]["devices"][0].clone();
        (device["uid"].clone(), device["gid"].clone())
    };
    assert_eq!(found(json!({"uid": 1000, "gid": 100})), (json!(1000), json!(100)));
    assert_eq!(found(json!({"uid": 0, "gid": 0})), (Value::Null, Value::Null));
    assert_eq!(found(json!({"uid": 0, "gid": 7})), (Value::Null, json!(7)));
    assert_eq!(found(json!(null)), (Value::Null, Value::Null));
    let own = r#"{"deviceNodes": [{"path": "/dev/null", "uid": 0, "gid": 5}]}"#;
    let user = json!({"process": {"user": {"uid": 1000, "gid": 100}}});
    let device = try_inject(&user, own).expect("an injection")["linux"]["devices"][0].clone();
    assert_eq!((device["uid"].clone(), device["gid"].clone()), (json!(0), json!(5)));
}

#[test]
fn a_device_replaces_the_one_at_its_path_and_moves_to_the_end() {
    let before = json!({"linux": {
        "devices": [{"path": "/dev/null", "type": "c", "major": 9, "minor": 9, "x": 1},
            {"path": "/dev/other", "type": "c", "major": 5, "minor": 5, "unknown": [1]}],
        "resources": {"devices": [{"allow": false, "access": "rwm"}], "memory": {"limit": 5}}}});
    let after = json!({"linux": {
        "devices": [{"path": "/dev/other", "type": "c", "major": 5, "minor": 5, "unknown": [1]},
            {"path": "/dev/null", "type": "c", "major": 1, "minor": 3, "fileMode": 0o660}],
        "resources": {"devices": [{"allow": false, "access": "rwm"}, rule("c", 1, 3, "rw")],
            "memory": {"limit": 5}}}});
    check(before, r#"{"deviceNodes": [{"path": "/dev/null", "permissions": "rw"}]}"#, after);
}

#[test]
fn repeated_device_is_added_once_with_two_rules() {
    let edits =
        r#"{"deviceNodes": [{"path": "/dev/null"}, {"path": "/dev/zero"}, {"path": "/dev/null"}]}"#;
    let after = try_inject(&json!({}), edits).expect("an injection");
    let paths: Vec<_> = after["linux"]["devices"]
        .as_array()
        .expect("devices")
        .iter()
        .map(|device| device["path"].clone())
        .collect();
    assert_eq!(paths, ["/dev/zero", "/dev/null"]);
    assert_eq!(after["linux"]["resources"]["devices"].as_array().map(Vec::len), Some(3));
}

fn destinations(config: &Value) -> Vec<&str> {
    config["mounts"]
        .as_array()
        .expect("mounts")
        .iter()
        .map(|mount| mount["destination"].as_str().unwrap_or_default())
        .collect()
}

#[test]
fn mounts_are_passed_on_unchanged() {
    check(
        json!({}),
        r#"{"mounts": [{"hostPath": "/dev/host", "containerPath": "/dev/container"}]}"#,
        json!({"mounts": [{"destination": "/dev/container", "source": "/dev/host"}]}),
    );
    check(
        json!({"mounts": []}),
        r#"{"mounts": [{"hostPath": "none", "containerPath": "/huge", "type": "hugetlbfs", "options": ["nosuid", "pagesize=2M"]}]}"#,
        json!({"mounts": [{"destination": "/huge", "type": "hugetlbfs", "source": "none",
            "options": ["nosuid", "pagesize=2M"]}]}),
    );
}

#[test]
fn mounts_are_sorted_stably_by_depth() {
    let before = json!({"mounts": [
        {"destination": "/b/c/d"}, {"destination": "/proc"}, {"destination": "/"},
        {"destination": "/x//y/"}, {"destination": "/a/../b"}, {"destination": "relative"},
        {"destination": "/../../up/./here"}, {"destination": "a/../../b"}]});
    let edits = r#"{"mounts": [{"hostPath": "/h", "containerPath": "/e/f"}, {"hostPath": "/h", "containerPath": "/g"}]}"#;
    let after = try_inject(&before, edits).expect("an injection");
    let want = [
        "relative",
        "/proc",
        "/",
        "/a/../b",
        "a/../../b",
        "/g",
        "/x//y/",
        "/../../up/./here",
        "/e/f",
        "/b/c/d",
    ];
    assert_eq!(destinations(&after), want);
}

#[test]
fn mounts_are_not_sorted_without_new_mounts() {
    let before = json!({"mounts": [{"destination": "/a/b"}, {"destination": "/a"}]});
    let after = try_inject(&before, r#"{"env": ["A=b"]}"#).expect("an injection");
    assert_eq!(destinations(&after), ["/a/b", "/a"]);
}

#[test]
fn a_mount_replaces_the_first_at_exactly_its_destination() {
    let before = json!({"mounts": [{"destination": "/a", "source": "old"}, {"destination": "/a/"},
        {"destination": "/b", "uidMappings": []}, {"destination": "/a", "source": "second"}]});
    let after = json!({"mounts": [{"destination": "/a/"}, {"destination": "/b", "uidMappings": []},
        {"destination": "/a", "source": "second"}, {"destination": "/a", "source": "/new"}]});
    check(before, r#"{"mounts": [{"hostPath": "/new", "containerPath": "/a"}]}"#, after);
}

#[test]
fn hooks_are_appended_to_their_stage() {
    let before =
        json!({"hooks": {"createRuntime": [{"path": "/first", "odd": 1}], "prestart": null}});
    let edits = r#"{"hooks": [
        {"hookName": "prestart", "path": "/a", "args": ["a", "b"], "env": ["E=1"], "timeout": 3},
        {"hookName": "createRuntime", "path": "/b"},
        {"hookName": "createContainer", "path": "/c"},
        {"hookName": "startContainer", "path": "/d"},
        {"hookName": "poststart", "path": "/e"},
        {"hookName": "poststop", "path": "/f", "timeout": 0},
        {"hookName": "createRuntime", "path": "/b"}]}"#;
    let after = json!({"hooks": {
        "createRuntime": [{"path": "/first", "odd": 1}, {"path": "/b"}, {"path": "/b"}],
        "prestart": [{"path": "/a", "args": ["a", "b"], "env": ["E=1"], "timeout": 3}],
        "createContainer": [{"path": "/c"}],
        "startContainer": [{"path": "/d"}],
        "poststart": [{"path": "/e"}],
        "poststop": [{"path": "/f", "timeout": 0}]}});
    check(before, edits, after);
}

#[test]
fn groups_are_added_once_without_group_0() {
    check(
        json!({"process": {"user": {"uid": 5, "gid": 5, "additionalGids": [10], "umask": 18}}}),
        r#"{"additionalGids": [0, 4, 10, 4, 11]}"#,
        json!({"process": {"user": {"uid": 5, "gid": 5, "additionalGids": [10, 4, 11], "umask": 18}}}),
    );
    check(
        json!({}),
        r#"{"additionalGids": [7]}"#,
        json!({"process": {"user": {"additionalGids": [7]}}}),
    );
    let none = try_inject(&json!({"a": 1}), r#"{"additionalGids": [0]}"#).expect("an injection");
    assert_eq!(none, json!({"a": 1}));
}

#[test]
fn network_devices_are_set_by_their_name_on_the_host() {
    check(
        json!({"linux": {"netDevices": {"eth0": {"name": "old", "odd": 1}, "eth9": {"name": "x"}}}}),
        r#"{"netDevices": [{"hostInterfaceName": "eth0", "name": "net0"}, {"hostInterfaceName": "eth1", "name": "net1"}]}"#,
        json!({"linux": {"netDevices": {"eth0": {"name": "net0"}, "eth9": {"name": "x"}, "eth1": {"name": "net1"}}}}),
    );
}

#[test]
fn rdt_class_is_replaced() {
    check(
        json!({"linux": {"intelRdt": {"closID": "old", "enableCMT": true}}}),
        r#"{"intelRdt": {"closID": "new", "l3CacheSchema": "L3:0=7f", "memBwSchema": "MB:0=70", "schemata": ["L3:0=ff"], "enableMonitoring": true}}"#,
        json!({"linux": {"intelRdt": {"closID": "new", "l3CacheSchema": "L3:0=7f",
            "memBwSchema": "MB:0=70", "schemata": ["L3:0=ff"], "enableMonitoring": true}}}),
    );
}

#[test]
fn invalid_edits_change_nothing() {
    let twice = r#"{"env": ["A=b"], "netDevices": [{"hostInterfaceName": "eth0", "name": "a"}, {"hostInterfaceName": "eth0", "name": "b"}]}"#;
    let mut config = OciConfig::parse(b"{}").expect("a configuration");
    let error = apply(&mut config, &edits(twice), &nodes()).expect_err("a duplicate");
    assert!(matches!(error, InjectError::Invalid(_)), "{error}");
    assert_eq!(config.to_bytes(), b"{}");
}

#[test]
fn wrong_types_are_reported_with_their_path() {
    for (before, edits, place) in [
        (r#"{"process": {"env": {}}}"#, r#"{"env": ["A=b"]}"#, "process: env"),
        (
            r#"{"linux": {"devices": [1]}}"#,
            r#"{"deviceNodes": [{"path": "/dev/null"}]}"#,
            "linux: devices: [0]",
        ),
        (
            r#"{"linux": {"resources": []}}"#,
            r#"{"deviceNodes": [{"path": "/dev/null"}]}"#,
            "linux: resources",
        ),
        (
            r#"{"hooks": {"poststop": {}}}"#,
            r#"{"hooks": [{"hookName": "poststop", "path": "/x"}]}"#,
            "hooks: poststop",
        ),
        (
            r#"{"process": {"user": {"uid": "root"}}}"#,
            r#"{"deviceNodes": [{"path": "/dev/null"}]}"#,
            "process: uid",
        ),
    ] {
        let mut config = OciConfig::parse(before.as_bytes()).expect("a configuration");
        let error = apply(&mut config, &super::edits(edits), &nodes()).expect_err(before);
        let error = error_chain(&error);
        assert!(error.contains(place), "{before}: {error}");
    }
}

#[test]
fn host_nodes_do_not_follow_links() {
    let null = HostNodes.node("/dev/null").expect("/dev/null");
    assert_eq!((null.kind, null.major, null.minor), (NodeKind::Char, 1, 3));
    let dir = tempfile::tempdir().expect("a directory");
    let link = dir.path().join("link");
    std::os::unix::fs::symlink("/dev/null", &link).expect("a link");
    let error = HostNodes.node(link.to_str().expect("a path")).expect_err("a link");
    assert_eq!(error.to_string(), "not a device node");
    let absent = HostNodes.node("/dev/absent/node").expect_err("nothing");
    assert_eq!(absent.kind(), io::ErrorKind::NotFound);
    assert!(HostNodes.node("/dev/nu\0ll").is_err());
    assert!(HostNodes.node("/").is_err());
}

/// The options that a mount with these options gets in a container with a user namespace.
fn mapped(kind: Option<&str>, options: &[&str]) -> Vec<String> {
    let mount = json!({"hostPath": "/a", "containerPath": "/b", "type": kind, "options": options});
    let mut edits = edits(&json!({"mounts": [mount]}).to_string());
    map_ids(&mut edits);
    edits.mounts.remove(0).options
}

#[test]
fn bind_mounts_are_id_mapped() {
    assert_eq!(mapped(Some("bind"), &[]), ["idmap"]);
    assert_eq!(mapped(Some("bind"), &["ro"]), ["ro", "idmap"]);
    assert_eq!(mapped(None, &["ro", "bind"]), ["ro", "bind", "idmap"]);
    assert_eq!(mapped(Some("bind"), &["rbind"]), ["rbind", "ridmap"]);
    // As in the library, the last one counts.
    assert_eq!(mapped(None, &["rbind", "bind"]), ["rbind", "bind", "idmap"]);
}

#[test]
fn other_and_already_mapped_mounts_are_unchanged() {
    assert_eq!(mapped(None, &["ro"]), ["ro"]);
    assert_eq!(mapped(Some("hugetlbfs"), &["pagesize=2M"]), ["pagesize=2M"]);
    assert_eq!(mapped(Some("bind"), &["ridmap"]), ["ridmap"]);
    assert_eq!(mapped(None, &["rbind", "idmap"]), ["rbind", "idmap"]);
}
