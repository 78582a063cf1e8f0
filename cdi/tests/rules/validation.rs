use std::collections::BTreeMap;

use onload_cdi::{ContainerEdits, Spec, lint, validate, validate_edits};

use crate::{edits, spec_with};

fn locations(spec: &Spec) -> Vec<String> {
    match validate(spec) {
        Ok(()) => Vec::new(),
        Err(problems) => problems.iter().map(|problem| problem.location.clone()).collect(),
    }
}

#[test]
fn accepts_edits_that_engines_accept() {
    for json in [
        r#"{}"#,
        r#"{"env": ["BAR=BARVALUE1"]}"#,
        r#"{"env": ["EMPTY="]}"#,
        r#"{"env": ["A=b=c"]}"#,
        r#"{"deviceNodes": [{"path": "/dev/null"}]}"#,
        r#"{"deviceNodes": [{"path": "/dev/null", "type": "c"}]}"#,
        r#"{"deviceNodes": [{"path": "/dev/null", "type": "u"}]}"#,
        r#"{"deviceNodes": [{"path": "/dev/null", "type": "p"}]}"#,
        r#"{"deviceNodes": [{"path": "/dev/null", "type": ""}]}"#,
        r#"{"deviceNodes": [{"path": "/dev/null", "type": "b", "permissions": "rwm"}]}"#,
        r#"{"deviceNodes": [{"path": "/dev/null", "permissions": ""}]}"#,
        r#"{"deviceNodes": [{"path": "/dev/null", "permissions": "r"}]}"#,
        r#"{"netDevices": [{"hostInterfaceName": "eth0", "name": "c0"}, {"hostInterfaceName": "eth1", "name": "c1"}]}"#,
        r#"{"mounts": [{"hostPath": "/dev/vendorctl", "containerPath": "/dev/vendorctl"}]}"#,
        r#"{"hooks": [
            {"hookName": "prestart", "path": "/bin/a", "args": ["--verbose"], "env": ["E=1"]},
            {"hookName": "createRuntime", "path": "/bin/a", "args": ["--debug"], "env": ["E=2"]},
            {"hookName": "createContainer", "path": "/bin/a", "timeout": 5},
            {"hookName": "startContainer", "path": "/bin/a"},
            {"hookName": "poststart", "path": "/bin/a"},
            {"hookName": "poststop", "path": "/bin/a"}]}"#,
        r#"{"intelRdt": {}}"#,
        r#"{"intelRdt": {"closID": "/"}}"#,
        r#"{"intelRdt": {"closID": "guaranteed", "l3CacheSchema": "L3:0=7f", "memBwSchema": "MB:0=70"}}"#,
        r#"{"intelRdt": {"closID": "a.b..c"}}"#,
        r#"{"additionalGids": [0, 4, 4]}"#,
    ] {
        assert_eq!(validate_edits(&edits(json)), Ok(()), "{json}");
    }
}

#[test]
fn rejects_edits_that_engines_reject() {
    for (json, place) in [
        (r#"{"env": [""]}"#, "env[0]"),
        (r#"{"env": ["A=b", "=foo"]}"#, "env[1]"),
        (r#"{"env": ["FOOBAR"]}"#, "env[0]"),
        (r#"{"deviceNodes": [{"path": ""}]}"#, "deviceNodes[0].path"),
        (r#"{"deviceNodes": [{"path": "/dev/x", "type": "f"}]}"#, "deviceNodes[0].type"),
        (r#"{"deviceNodes": [{"path": "/dev/x", "type": "cc"}]}"#, "deviceNodes[0].type"),
        (
            r#"{"deviceNodes": [{"path": "/dev/x", "permissions": "to land"}]}"#,
            "deviceNodes[0].permissions",
        ),
        (
            r#"{"deviceNodes": [{"path": "/dev/x", "permissions": "r w"}]}"#,
            "deviceNodes[0].permissions",
        ),
        (
            r#"{"deviceNodes": [{"path": "/dev/x", "permissions": "none"}]}"#,
            "deviceNodes[0].permissions",
        ),
        (r#"{"deviceNodes": [{"path": "/dev/x", "major": -1}]}"#, "deviceNodes[0].major"),
        (r#"{"deviceNodes": [{"path": "/dev/x", "minor": -1}]}"#, "deviceNodes[0].minor"),
        (
            r#"{"netDevices": [{"hostInterfaceName": "", "name": "a"}]}"#,
            "netDevices[0].hostInterfaceName",
        ),
        (r#"{"netDevices": [{"hostInterfaceName": "a", "name": ""}]}"#, "netDevices[0].name"),
        (
            r#"{"netDevices": [{"hostInterfaceName": "a", "name": "b"}, {"hostInterfaceName": "a", "name": "c"}]}"#,
            "netDevices[1].hostInterfaceName",
        ),
        (
            r#"{"netDevices": [{"hostInterfaceName": "a", "name": "b"}, {"hostInterfaceName": "c", "name": "b"}]}"#,
            "netDevices[1].name",
        ),
        (r#"{"mounts": [{"hostPath": "", "containerPath": "/x"}]}"#, "mounts[0].hostPath"),
        (r#"{"mounts": [{"hostPath": "/x", "containerPath": ""}]}"#, "mounts[0].containerPath"),
        (r#"{"hooks": [{"hookName": "prestart", "path": ""}]}"#, "hooks[0].path"),
        (r#"{"hooks": [{"hookName": "misCreateRuntime", "path": "/x"}]}"#, "hooks[0].hookName"),
        (r#"{"hooks": [{"hookName": "createruntime", "path": "/x"}]}"#, "hooks[0].hookName"),
        (
            r#"{"hooks": [{"hookName": "poststart", "path": "/x", "env": ["=value2"]}]}"#,
            "hooks[0].env[0]",
        ),
        (r#"{"intelRdt": {"closID": "."}}"#, "intelRdt.closID"),
        (r#"{"intelRdt": {"closID": ".."}}"#, "intelRdt.closID"),
        (r#"{"intelRdt": {"closID": "a/b"}}"#, "intelRdt.closID"),
        (r#"{"intelRdt": {"closID": "a\nb"}}"#, "intelRdt.closID"),
    ] {
        let problems = validate_edits(&edits(json)).expect_err(json);
        let places: Vec<_> = problems.iter().map(|problem| problem.location.as_str()).collect();
        assert_eq!(places, [format!("containerEdits.{place}")], "{json}");
    }
    let long = format!(r#"{{"intelRdt": {{"closID": "{}"}}}}"#, "a".repeat(4096));
    assert!(validate_edits(&edits(&long)).is_err());
}

#[test]
fn all_invalid_locations_are_reported() {
    let good = || spec_with(edits(r#"{"env": ["A=b"]}"#));
    let change = |change: &dyn Fn(&mut Spec)| {
        let mut spec = good();
        change(&mut spec);
        locations(&spec)
    };
    assert_eq!(change(&|_| {}), [""; 0]);
    assert_eq!(change(&|spec| spec.cdi_version.clear()), ["cdiVersion"]);
    assert_eq!(change(&|spec| spec.kind = String::new()), ["kind"]);
    assert_eq!(change(&|spec| spec.kind = "vendor.com".into()), ["kind"]);
    assert_eq!(change(&|spec| spec.kind = "vendor.com-/device".into()), ["kind"]);
    assert_eq!(change(&|spec| spec.kind = "vendor.com/device=".into()), ["kind"]);
    assert_eq!(change(&|spec| spec.devices.clear()), ["devices"]);
    assert_eq!(change(&|spec| spec.devices[0].name = "-a".into()), ["devices[0].name"]);
    assert_eq!(
        change(&|spec| spec.devices[0].container_edits = ContainerEdits::default()),
        ["devices[0].containerEdits"]
    );
    assert_eq!(change(&|spec| spec.devices.push(spec.devices[0].clone())), ["devices[1].name"]);
    assert_eq!(
        change(&|spec| {
            spec.kind = String::new();
            spec.container_edits.env.push("x".to_owned());
            spec.devices[0].container_edits.env.push("y".to_owned());
        }),
        ["kind", "containerEdits.env[0]", "devices[0].containerEdits.env[1]"]
    );
}

#[test]
fn shared_edits_may_be_empty() {
    let spec = spec_with(edits(r#"{"env": ["A=b"]}"#));
    assert!(spec.container_edits.is_empty());
    assert_eq!(validate(&spec), Ok(()));
}

#[test]
fn empty_rdt_class_counts_as_an_edit() {
    assert_eq!(validate(&spec_with(edits(r#"{"intelRdt": {}}"#))), Ok(()));
}

#[test]
fn invalid_annotations_are_only_linted() {
    let annotated = |key: &str, value: &str| Spec {
        annotations: BTreeMap::from([(key.to_owned(), value.to_owned())]),
        ..spec_with(edits(r#"{"env": ["A=b"]}"#))
    };
    let long = "a".repeat(64);
    let wide = format!("{}a/b", "a.".repeat(127));
    for key in ["simple", "now-with-dashes", "UPPERCASE", "1/1", "example.com/Key_1.x-y", "123"] {
        assert_eq!(lint(&annotated(key, "")), [], "{key}");
    }
    for key in ["", "-a", "a-", "a b", "a/b/c", "/a", "a/", "a_b.com/x", &long, &wide, "é"] {
        let spec = annotated(key, "");
        assert_eq!(lint(&spec).len(), 1, "{key}");
        assert_eq!(validate(&spec), Ok(()), "{key}");
    }
    let heavy = annotated("a", &"x".repeat(256 * 1024));
    assert_eq!(lint(&heavy)[0].location, "annotations");
}

#[test]
fn unwise_edits_are_linted() {
    for (json, place) in [
        (
            r#"{"deviceNodes": [{"path": "/dev/x", "hostPath": "/dev/x"}]}"#,
            "deviceNodes[0].hostPath",
        ),
        (r#"{"deviceNodes": [{"path": "dev/x"}]}"#, "deviceNodes[0].path"),
        (
            r#"{"mounts": [{"hostPath": "/x", "containerPath": "/x", "options": ["ro"]}]}"#,
            "mounts[0].options",
        ),
        (r#"{"hooks": [{"hookName": "poststop", "path": "/x", "timeout": 1}]}"#, "hooks[0].env"),
        (
            r#"{"hooks": [{"hookName": "poststop", "path": "x", "env": ["A=b"], "timeout": 1}]}"#,
            "hooks[0].path",
        ),
        (
            r#"{"hooks": [{"hookName": "poststop", "path": "/x", "env": ["A=b"]}]}"#,
            "hooks[0].timeout",
        ),
    ] {
        let spec = spec_with(edits(json));
        let places: Vec<_> = lint(&spec).into_iter().map(|problem| problem.location).collect();
        assert_eq!(places, [format!("devices[0].containerEdits.{place}")], "{json}");
        assert_eq!(validate(&spec), Ok(()), "{json}");
    }
    let quiet = r#"{"mounts": [
        {"hostPath": "/x", "containerPath": "/x", "options": ["rbind", "ro"]},
        {"hostPath": "none", "containerPath": "/huge", "type": "hugetlbfs"}]}"#;
    assert_eq!(lint(&spec_with(edits(quiet))), []);
}
