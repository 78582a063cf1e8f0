use onload_cdi::{CdiVersion, Spec, from_json, minimum_version, validate};

use crate::{edits, spec_with};

#[test]
fn minimum_version_names_the_newest_fields() {
    for (json, version, fields) in [
        ("{}", "0.3.0", ""),
        (r#"{"devices": [{"name": "0example"}]}"#, "0.5.0", "devices[0].name"),
        (r#"{"devices": [{"name": "a0"}]}"#, "0.3.0", ""),
        (r#"{"annotations": {"example.com/key": "value"}}"#, "0.6.0", "annotations"),
        (
            r#"{"devices": [{"name": "a", "annotations": {"example.com/key": "value"}}]}"#,
            "0.6.0",
            "devices[0].annotations",
        ),
        (r#"{"kind": "example.com/example.class"}"#, "0.6.0", "kind"),
        (r#"{"kind": "example.com/class"}"#, "0.3.0", ""),
        (
            r#"{"annotations": {"example.com/key": "value"},
                "containerEdits": {"additionalGids": [1], "netDevices": [{}]}}"#,
            "1.1.0",
            "containerEdits.netDevices",
        ),
    ] {
        let found = minimum_version(&from_json(json.as_bytes()).expect(json));
        let found = (found.version.as_str(), found.fields.join(" "));
        assert_eq!(found, (version, fields.to_owned()), "{json}");
    }
    // Edits of all devices, and of one.
    for (edits, version, field) in [
        (r#"{"mounts": [{}, {"type": "bind"}]}"#, "0.4.0", "mounts[1].type"),
        (r#"{"deviceNodes": [{"hostPath": "/dev/x"}]}"#, "0.5.0", "deviceNodes[0].hostPath"),
        (r#"{"additionalGids": [1]}"#, "0.7.0", "additionalGids"),
        (r#"{"intelRdt": {}}"#, "0.7.0", "intelRdt"),
        (r#"{"intelRdt": {"schemata": ["L3:0=ff"]}}"#, "1.1.0", "intelRdt.schemata"),
        (r#"{"intelRdt": {"enableMonitoring": true}}"#, "1.1.0", "intelRdt.enableMonitoring"),
        (r#"{"netDevices": [{}]}"#, "1.1.0", "netDevices"),
    ] {
        for (place, json) in [
            ("", format!(r#"{{"containerEdits": {edits}}}"#)),
            ("devices[1].", format!(r#"{{"devices": [{{}}, {{"containerEdits": {edits}}}]}}"#)),
        ] {
            let found = minimum_version(&from_json(json.as_bytes()).expect(&json));
            let field = format!("{place}containerEdits.{field}");
            assert_eq!((found.version.as_str(), found.fields), (version, vec![field]), "{json}");
        }
    }
}

#[test]
fn empty_fields_require_no_version() {
    let spec = spec_with(edits(
        r#"{"deviceNodes": [{"path": "/dev/a", "hostPath": ""}],
            "mounts": [{"hostPath": "/a", "containerPath": "/a", "type": ""}],
            "netDevices": [], "additionalGids": []}"#,
    ));
    assert_eq!(minimum_version(&spec).version, CdiVersion::EARLIEST);
}

#[test]
fn declared_version_must_be_known_and_sufficient() {
    let plain = || spec_with(edits(r#"{"env": ["A=b"]}"#));
    let groups = || spec_with(edits(r#"{"additionalGids": [1]}"#));
    for (version, spec, message) in [
        ("1.1.0", plain(), None),
        ("v1.1.0", plain(), None),
        ("0.3.0", plain(), None),
        ("0.8.0", plain(), None),
        ("1.0.0", plain(), None),
        ("0.1.0", plain(), Some("0.1.0 is too low, expected 0.3.0")),
        ("v0.2.0", plain(), Some("0.2.0 is too low, expected 0.3.0")),
        ("1.2.0", plain(), Some("unknown CDI version \"1.2.0\"")),
        ("0.5", plain(), Some("unknown CDI version \"0.5\"")),
        ("vv1.1.0", plain(), Some("unknown CDI version")),
        ("not-a-version", plain(), Some("unknown CDI version \"not-a-version\"")),
        ("", plain(), Some("unknown CDI version \"\"")),
        (
            "0.6.0",
            groups(),
            Some(
                "0.6.0 is too low, expected 0.7.0 because of \
                 devices[0].containerEdits.additionalGids",
            ),
        ),
        ("0.7.0", groups(), None),
        ("1.1.0", groups(), None),
    ] {
        let result = validate(&Spec { cdi_version: version.to_owned(), ..spec });
        match (result, message) {
            (Ok(()), None) => {}
            (Err(problems), Some(message)) => {
                assert_eq!(problems[0].location, "cdiVersion", "{version}");
                assert!(problems[0].fault.starts_with(message), "{version}: {}", problems[0]);
            }
            (result, message) => panic!("{version}: {result:?}, want {message:?}"),
        }
    }
}

#[test]
fn versions_are_ordered_by_release() {
    assert!(CdiVersion::ALL.is_sorted());
    assert_eq!(CdiVersion::ALL.last(), Some(&CdiVersion::CURRENT));
    for version in CdiVersion::ALL {
        assert_eq!(version.as_str().parse(), Ok(version));
        assert_eq!(format!("v{version}").parse(), Ok(version));
    }
    assert!(CdiVersion::V1_0_0 > CdiVersion::V0_8_0);
}
