use onload_cdi::{Spec, from_json, to_json};

use crate::error_chain;

const FULL: &str = r#"{
  "cdiVersion": "1.1.0",
  "kind": "vendor.com/device",
  "annotations": {
    "a": "1",
    "b": "2"
  },
  "containerEdits": {
    "env": [
      "A=b"
    ]
  },
  "devices": [
    {
      "name": "dev1",
      "annotations": {
        "c": "3"
      },
      "containerEdits": {
        "env": [
          "C=d"
        ],
        "deviceNodes": [
          {
            "path": "/dev/a",
            "hostPath": "/dev/b",
            "type": "c",
            "major": 10,
            "minor": 0,
            "fileMode": 432,
            "permissions": "rw",
            "uid": 0,
            "gid": 4294967295
          }
        ],
        "netDevices": [
          {
            "hostInterfaceName": "eth0",
            "name": "net0"
          }
        ],
        "mounts": [
          {
            "hostPath": "/a",
            "containerPath": "/b",
            "type": "bind",
            "options": [
              "ro",
              "rbind"
            ]
          }
        ],
        "hooks": [
          {
            "hookName": "createRuntime",
            "path": "/bin/hook",
            "args": [
              "hook",
              "now"
            ],
            "env": [
              "E=f"
            ],
            "timeout": 10
          }
        ],
        "intelRdt": {
          "closID": "class",
          "l3CacheSchema": "L3:0=7f",
          "memBwSchema": "MB:0=70",
          "schemata": [
            "L3:0=ff"
          ],
          "enableMonitoring": true
        },
        "additionalGids": [
          4,
          5
        ]
      }
    }
  ]
}
"#;

#[test]
fn every_field_round_trips() {
    let spec = from_json(FULL.as_bytes()).expect("a specification with every field");
    assert_eq!(to_json(&spec), FULL);
    let node = &spec.devices[0].container_edits.device_nodes[0];
    assert_eq!((node.major, node.minor, node.file_mode), (Some(10), Some(0), Some(0o660)));
    assert_eq!((node.uid, node.gid), (Some(0), Some(u32::MAX)));
}

#[test]
fn null_is_absent_and_empty_values_are_not_written() {
    let nulls = r#"{"cdiVersion": "0.3.0", "kind": "a.b/c", "annotations": null, "containerEdits": null,
        "devices": [{"name": "d", "annotations": null, "containerEdits": {"env": null, "deviceNodes": null,
        "netDevices": null, "mounts": null, "hooks": null, "intelRdt": null, "additionalGids": null}}]}"#;
    let spec = from_json(nulls.as_bytes()).expect("nulls");
    let bare =
        r#"{"cdiVersion":"0.3.0","kind":"a.b/c","devices":[{"name":"d","containerEdits":{}}]}"#;
    assert_eq!(serde_json::to_string(&spec).expect("JSON"), bare);
}

#[test]
fn a_false_enable_monitoring_is_not_written() {
    let json = r#"{"containerEdits": {"intelRdt": {"closID": "a", "enableMonitoring": false}}}"#;
    let spec = from_json(json.as_bytes()).expect("a specification");
    assert!(!to_json(&spec).contains("enableMonitoring"));
}

#[test]
fn unknown_fields_are_rejected() {
    for (json, field) in [
        (r#"{"version": "0.3.0"}"#, "version"),
        (r#"{"CDIVersion": "0.3.0"}"#, "CDIVersion"),
        (r#"{"containerEdits": {"Env": []}}"#, "Env"),
        (r#"{"containerEdits": {"deviceCgroupRules": []}}"#, "deviceCgroupRules"),
        (r#"{"devices": [{"id": "x"}]}"#, "id"),
        (r#"{"devices": [{"containerEdits": {"deviceNodes": [{"hostpath": "x"}]}}]}"#, "hostpath"),
        (r#"{"devices": [{"containerEdits": {"netDevices": [{"hostName": "x"}]}}]}"#, "hostName"),
        (r#"{"devices": [{"containerEdits": {"mounts": [{"source": "x"}]}}]}"#, "source"),
        (r#"{"devices": [{"containerEdits": {"hooks": [{"stage": "x"}]}}]}"#, "stage"),
        (r#"{"containerEdits": {"intelRdt": {"enableCMT": true}}}"#, "enableCMT"),
        (r#"{"containerEdits": {"intelRdt": {"enableMBM": true}}}"#, "enableMBM"),
    ] {
        let error = error_chain(&from_json(json.as_bytes()).expect_err(json));
        assert!(error.contains(&format!("unknown field `{field}`")), "{json}: {error}");
        assert!(error.starts_with("parsing JSON: "), "{error}");
    }
}

#[test]
fn duplicate_keys_are_rejected() {
    for json in [
        r#"{"kind": "a/b", "kind": "a/c"}"#,
        r#"{"annotations": {"a": "1", "a": "2"}}"#,
        r#"{"annotations": {"a": "1", "\u0061": "2"}}"#,
        r#"{"devices": [{"annotations": {"a": "1", "a": "1"}}]}"#,
        r#"{"devices": [{"name": "a", "name": "b"}]}"#,
    ] {
        let error = error_chain(&from_json(json.as_bytes()).expect_err(json));
        assert!(error.contains("duplicate"), "{json}: {error}");
    }
}

#[test]
fn wrong_types_and_malformed_json_are_rejected() {
    for json in [
        "",
        "null",
        "[]",
        "\"text\"",
        "{",
        "{} {}",
        "{},",
        r#"{"cdiVersion": 0.3}"#,
        r#"{"devices": {}}"#,
        r#"{"devices": [null]}"#,
        r#"{"containerEdits": []}"#,
        r#"{"containerEdits": {"env": [1]}}"#,
        r#"{"containerEdits": {"env": "A=b"}}"#,
        r#"{"containerEdits": {"additionalGids": [-1]}}"#,
        r#"{"containerEdits": {"additionalGids": [4294967296]}}"#,
        r#"{"containerEdits": {"deviceNodes": [{"major": 1.5}]}}"#,
        r#"{"containerEdits": {"deviceNodes": [{"fileMode": "0660"}]}}"#,
        r#"{"annotations": {"a": 1}}"#,
        r#"{"annotations": []}"#,
        "cdiVersion: 0.3.0",
    ] {
        assert!(from_json(json.as_bytes()).is_err(), "{json}");
    }
    assert!(from_json(b"{\"kind\": \"\xff\"}").is_err());
}

#[test]
fn nesting_does_not_overflow_the_stack() {
    let deep = "[".repeat(1_000_000);
    assert!(from_json(deep.as_bytes()).is_err());
    assert!(from_json(format!("{{\"devices\": {deep}").as_bytes()).is_err());
}

#[test]
fn the_same_specification_gives_the_same_bytes() {
    let spec = from_json(FULL.as_bytes()).expect("a specification");
    assert_eq!(to_json(&spec), to_json(&spec.clone()));
    assert!(to_json(&Spec::default()).ends_with("}\n"));
}

/// A value of a wrong type, the key that it stands at, and what is said of it.
const WRONG_TYPES: [(&str, &str, &str); 9] = [
    (r#"{"kind": []}"#, "kind", "a string"),
    (r#"{"devices": [{"name": "a"}, {"name": {}}]}"#, "devices[1].name", "a string"),
    (r#"{"devices": {}}"#, "devices", "a list"),
    (r#"{"devices": [[]]}"#, "devices[0]", "a map"),
    (r#"{"containerEdits": {"env": ["A=b", []]}}"#, "containerEdits.env[1]", "a string"),
    (
        r#"{"devices": [{"containerEdits": {"deviceNodes": [{"path": "}]"}, {"fileMode": "x"}]}}]}"#,
        "devices[0].containerEdits.deviceNodes[1].fileMode",
        "a whole number from 0 to 4294967295",
    ),
    (
        r#"{"containerEdits": {"hooks": [{"timeout": "x"}]}}"#,
        "containerEdits.hooks[0].timeout",
        "a whole number",
    ),
    (
        r#"{"containerEdits": {"intelRdt": {"enableMonitoring": "x"}}}"#,
        "containerEdits.intelRdt.enableMonitoring",
        "true or false",
    ),
    (r#"{"annotations": {"a": "b", "c": []}}"#, "annotations.c", "a string"),
];

#[test]
fn wrong_types_are_reported_with_their_path() {
    for (json, key, wanted) in WRONG_TYPES {
        let error = error_chain(&from_json(json.as_bytes()).expect_err(json));
        let start = format!("parsing JSON: {key}: invalid ");
        assert!(error.starts_with(&start), "{json}: {error}");
        let end = error.split(", expected ").last().unwrap_or_default();
        assert!(end.starts_with(&format!("{wanted} at line 1 column ")), "{error}");
    }
    let lines = "{\n \"devices\": [\n  {\"name\": \"a\",\n   \"containerEdits\": 1}]}";
    assert_eq!(
        error_chain(&from_json(lines.as_bytes()).expect_err(lines)),
        "parsing JSON: devices[0].containerEdits: invalid type: integer `1`, expected a map at line 4 column 22"
    );
}

#[test]
fn unknown_fields_are_reported_with_their_path() {
    let json = r#"{"devices": [{"containerEdits": {"deviceNodes": [{"hostpath": "x"}]}}]}"#;
    let error = error_chain(&from_json(json.as_bytes()).expect_err(json));
    let start = "parsing JSON: devices[0].containerEdits.deviceNodes[0]: unknown field `hostpath`, expected one of `path`, ";
    assert!(error.starts_with(start), "{error}");
    let error = error_chain(&from_json(br#"{"devises": []}"#).expect_err("a field"));
    assert!(error.starts_with("parsing JSON: unknown field `devises`, "), "{error}");
    let twice = br#"{"devices": [{"name": "a", "name": "b"}]}"#;
    let error = error_chain(&from_json(twice).expect_err("a field"));
    assert!(
        error.starts_with("parsing JSON: devices[0]: duplicate field `name` at line 1"),
        "{error}"
    );
}

#[test]
fn empty_text_and_byte_order_mark_are_reported() {
    for text in ["", " \n"] {
        let error = error_chain(&from_json(text.as_bytes()).expect_err("nothing"));
        assert_eq!(error, "parsing JSON: there is nothing in it");
    }
    let marked = error_chain(&from_json(b"\xef\xbb\xbf{}").expect_err("a mark"));
    assert!(marked.contains("it begins with a byte order mark"), "{marked}");
}

#[test]
fn syntax_errors_name_line_and_column_only() {
    let error = error_chain(&from_json(b"{\"devices\": [{\"name\": }").expect_err("no JSON"));
    assert_eq!(error, "parsing JSON: expected value at line 1 column 23");
}

#[cfg(feature = "yaml")]
mod yaml {
    use onload_cdi::{from_json, from_yaml, to_yaml};

    #[test]
    fn syntax_errors_omit_advice_for_programmers() {
        for (text, wanted) in [
            ("a: [", "parsing YAML: line 1 column 4: unclosed bracket '['"),
            ("a: 1\na: 2\n", "parsing YAML: line 2 column 1: duplicate mapping key: a"),
            (
                "a: 1\n---\nb: 1\n",
                "parsing YAML: line 3 column 1: multiple YAML documents detected",
            ),
        ] {
            assert_eq!(error_chain(&from_yaml(text.as_bytes()).expect_err(text)), wanted);
        }
    }

    #[test]
    fn a_value_of_a_wrong_type_is_named_by_its_key_as_in_json() {
        for (json, key, wanted) in super::WRONG_TYPES {
            let error = error_chain(&from_yaml(json.as_bytes()).expect_err(json));
            let start = format!("parsing YAML: {key}: invalid ");
            assert!(error.starts_with(&start), "{json}: {error}");
            assert!(error.ends_with(&format!(", expected {wanted}")), "{error}");
        }
        let field = "devices:\n- containerEdits:\n    Env: []\n";
        let error = error_chain(&from_yaml(field.as_bytes()).expect_err(field));
        let start =
            "parsing YAML: devices[0].containerEdits: unknown field `Env`, expected one of ";
        assert!(error.starts_with(start), "{error}");
    }

    use crate::error_chain;

    #[test]
    fn yaml_and_json_are_equivalent() {
        let spec = from_json(super::FULL.as_bytes()).expect("JSON");
        let yaml = to_yaml(&spec);
        assert_eq!(from_yaml(yaml.as_bytes()).expect("what we wrote"), spec, "{yaml}");
        assert_eq!(to_yaml(&spec), yaml);
        assert_eq!(from_yaml(super::FULL.as_bytes()).expect("JSON is YAML"), spec);
    }

    #[test]
    fn key_without_value_is_absent() {
        let yaml = "cdiVersion: 0.3.0\nkind: a.b/c\ncontainerEdits:\ndevices:\n- name: d\n  containerEdits:\n    env:\n    hooks:\n";
        let spec = from_yaml(yaml.as_bytes()).expect("YAML");
        assert!(spec.container_edits.is_empty() && spec.devices[0].container_edits.is_empty());
    }

    #[test]
    fn strings_that_look_like_other_types_round_trip() {
        for text in [
            "yes",
            "no",
            "null",
            "~",
            "1",
            "0x10",
            "1e3",
            "0000:3b:00.0",
            "1:2",
            "",
            " a ",
            "#x",
            "a: b",
            "- a",
            "é",
            "a\nb",
            "&a",
            "*a",
            "!x",
            "%x",
            "@x",
            "`x`",
            "'",
            "\"",
        ] {
            let mut spec = from_json(super::FULL.as_bytes()).expect("JSON");
            spec.devices[0].name = text.into();
            spec.annotations.insert(text.to_owned(), text.to_owned());
            let yaml = to_yaml(&spec);
            assert_eq!(from_yaml(yaml.as_bytes()).expect(&yaml), spec, "{yaml}");
        }
    }

    #[test]
    fn malformed_yaml_is_rejected_in_one_line() {
        for yaml in [
            "",
            "null",
            "kind: a\nkind: b\n",
            "annotations:\n  a: x\n  a: y\n",
            "version: 0.3.0\n",
            "devices: {}\n",
            "[0.3.0]\n",
            "on\n",
            "devices:\n- name: [a]\n",
            "kind: 'a\n",
            "kind: a\n---\nkind: b\n",
            "a: &a [*a]\n",
            "containerEdits: {intelRdt: {enableCMT: true}}\n",
        ] {
            let error = error_chain(&from_yaml(yaml.as_bytes()).expect_err(yaml));
            assert!(error.starts_with("parsing YAML: ") && !error.contains('\n'), "{error:?}");
        }
        assert!(from_yaml(b"kind: \xff").is_err());
    }

    /// A specification whose only device has this name and node.
    fn with(name: &str, node: &str) -> String {
        format!(
            "cdiVersion: 0.5.0\nkind: a.b/cc\ndevices:\n- name: {name}\n  containerEdits:\n    \
             deviceNodes:\n    - path: /dev/null\n      {node}\n"
        )
    }

    #[test]
    fn numbers_follow_yaml_1_1() {
        for (written, mode) in [
            ("0666", 0o666),
            ("0o666", 0o666),
            ("438", 438),
            ("0x1b6", 438),
            ("4_3_8", 438),
            ("089", 89),
            ("1e2", 100),
        ] {
            let spec = from_yaml(with("d", &format!("fileMode: {written}")).as_bytes())
                .unwrap_or_else(|error| panic!("{written}: {}", error_chain(&error)));
            let nodes = &spec.devices[0].container_edits.device_nodes;
            assert_eq!(nodes[0].file_mode, Some(mode), "{written}");
        }
    }

    #[test]
    fn scalars_are_converted_to_text_like_engines_do() {
        for (written, name) in [
            ("010", "8"),
            ("\"010\"", "010"),
            ("on", "true"),
            ("Off", "false"),
            ("y", "true"),
            ("'no'", "no"),
            ("1_000", "1000"),
            ("0x10", "16"),
            ("1.50", "1.5"),
            ("089", "89"),
            ("1e3", "1000"),
            ("12345678.0", "1.2345678e+07"),
            ("0.00001", "1e-05"),
            ("2001-01-01", "2001-01-01"),
            ("0000:3b:00.0", "0000:3b:00.0"),
        ] {
            let spec = from_yaml(with(written, "permissions: rw").as_bytes()).expect(written);
            assert_eq!(spec.devices[0].name.as_str(), name, "{written}");
        }
    }

    #[test]
    fn errors_name_the_key() {
        for (node, beginning) in [
            ("major: on", "devices[0].containerEdits.deviceNodes[0].major: invalid type: boolean"),
            ("major: '1'", "devices[0].containerEdits.deviceNodes[0].major: invalid type: string"),
            ("uid: -1", "devices[0].containerEdits.deviceNodes[0].uid: invalid value"),
            (
                "permissions: [r]",
                "devices[0].containerEdits.deviceNodes[0].permissions: invalid type",
            ),
            ("mode: 1", "devices[0].containerEdits.deviceNodes[0]: unknown field `mode`"),
        ] {
            let error = from_yaml(with("d", node).as_bytes()).expect_err(node);
            let error = error_chain(&error);
            assert!(error.starts_with(&format!("parsing YAML: {beginning}")), "{error}");
        }
    }

    #[test]
    fn written_yaml_quotes_yaml_1_1_scalars() {
        for name in ["010", "on", "y", "No", "1_000", "0x10", "1e3", "null", "0b1", "0o7", "1.50"] {
            let mut spec = from_yaml(with("d", "permissions: rw").as_bytes()).expect("YAML");
            spec.devices[0].name = name.into();
            spec.devices[0].container_edits.env = vec![format!("A={name}")];
            let text = to_yaml(&spec);
            assert_eq!(from_yaml(text.as_bytes()).expect(&text), spec, "{text}");
        }
    }

    #[test]
    fn nesting_and_aliases_are_bounded() {
        assert!(from_yaml("[".repeat(100_000).as_bytes()).is_err());
        let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..12 {
            let inner = format!("*a{}", level - 1);
            bomb.push_str(&format!("a{level}: &a{level} [{}]\n", vec![inner; 9].join(",")));
        }
        assert!(from_yaml(bomb.as_bytes()).is_err());
    }
}
