use std::fs;
use std::io;

use onload_cdi::json::RawObject;
use onload_cdi::oci::{HostNode, HostNodes, NodeLookup, OciConfig, OciConfigError, apply};
use onload_cdi::{
    HookName, LoadError, ParseError, QualifiedName, Registry, RegistryError, SpecSource, from_json,
    to_json, validate,
};

use crate::{edits, error_chain};

/// A file in which every name is wrong.
const WRONG_NAMES: &str = r#"{
  "cdiVersion": "0.5.0",
  "kind": "vendor.com",
  "containerEdits": {
    "hooks": [
      {
        "hookName": "precreate",
        "path": "/h"
      }
    ]
  },
  "devices": [
    {
      "name": "-a",
      "containerEdits": {
        "env": [
          "A=b"
        ]
      }
    },
    {
      "name": "-a",
      "containerEdits": {
        "env": [
          "A=b"
        ]
      }
    }
  ]
}
"#;

const WRONG_NAMES_PROBLEMS: &str = "kind: invalid kind \"vendor.com\": expected vendor/class; \
    containerEdits.hooks[0].hookName: no stage is called \"precreate\": expected one of prestart, \
    createRuntime, createContainer, startContainer, poststart, poststop; devices[0].name: invalid \
    device name \"-a\": it starts with '-', expected a letter or a digit; devices[1].name: invalid \
    device name \"-a\": it starts with '-', expected a letter or a digit; devices[1].name: \"-a\" \
    appears twice";

#[test]
fn invalid_names_are_all_reported_and_written_back_unchanged() {
    let spec = from_json(WRONG_NAMES.as_bytes()).expect("a file of somebody else");
    assert_eq!(to_json(&spec), WRONG_NAMES);
    let problems = validate(&spec).expect_err("wrong names");
    assert_eq!(problems.to_string(), WRONG_NAMES_PROBLEMS);
}

#[test]
fn names_have_to_be_strings() {
    assert!(from_json(br#"{"kind": 1}"#).is_err());
    assert!(from_json(br#"{"devices": [{"name": []}]}"#).is_err());
}

#[test]
fn hook_stages_are_parsed_by_exact_name() {
    for name in HookName::ALL {
        assert_eq!(name.as_str().parse(), Ok(name));
    }
    for text in ["", "Prestart", "createruntime", "precreate", "prestart ", "stop"] {
        let message = text.parse::<HookName>().expect_err(text).to_string();
        assert!(message.starts_with(&format!("no stage is called {text:?}")));
    }
}

/// A host without device nodes.
struct NoNodes;

impl NodeLookup for NoNodes {
    fn node(&self, _: &str) -> io::Result<HostNode> {
        Err(io::ErrorKind::NotFound.into())
    }
}

fn apply_error(config: &str, wanted: &str) -> Box<dyn std::error::Error> {
    let mut config = OciConfig::parse(config.as_bytes()).expect("a configuration");
    apply(&mut config, &edits(wanted), &NoNodes).expect_err(wanted).into()
}

#[test]
fn error_chain_contains_every_cause_once() {
    let errors: [(Box<dyn std::error::Error>, &str, &str); 6] = [
        (
            from_json(b"{").expect_err("half of an object").into(),
            "parsing JSON",
            "parsing JSON: EOF while parsing an object at line 1 column 1",
        ),
        (
            OciConfig::parse(br#"{"mounts": [{"type": 1}]}"#).expect_err("a number").into(),
            "reading config.json",
            "reading config.json: mounts: [0]: type: invalid type: integer `1`, expected a string at line 1 column 1",
        ),
        (
            RawObject::parse(b"[]").expect_err("an array").into(),
            "invalid type: sequence, expected an object at line 1 column 0",
            "invalid type: sequence, expected an object at line 1 column 0",
        ),
        (
            apply_error(r#"{"process": {"env": {}}}"#, r#"{"env": ["A=b"]}"#),
            "changing config.json",
            "changing config.json: process: env: invalid type: map, expected an array at line 1 column 0",
        ),
        (
            apply_error("{}", r#"{"deviceNodes": [{"path": "/dev/x"}]}"#),
            "looking at the device node /dev/x",
            "looking at the device node /dev/x: entity not found",
        ),
        (
            apply_error("{}", r#"{"env": ["A", "=b"]}"#),
            "checking the edits",
            "checking the edits: containerEdits.env[0]: expected NAME=value, found \"A\"; \
             containerEdits.env[1]: expected NAME=value, found \"=b\"",
        ),
    ];
    for (error, alone, whole) in errors {
        assert_eq!(error.to_string(), alone);
        assert_eq!(error_chain(&*error), whole);
    }
}

#[test]
fn registry_errors_are_typed() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    let good = WRONG_NAMES
        .replace("\"vendor.com\"", "\"vendor.com/nic\"")
        .replace("precreate", "poststop")
        .replacen("\"-a\"", "\"a\"", 1)
        .replace("\"-a\"", "\"b\"");
    for (name, text) in [
        ("names.json", WRONG_NAMES),
        ("one.json", &good),
        ("two.json", &good),
        ("broken.json", "{"),
    ] {
        fs::write(path(name), text).expect("a file");
    }
    fs::create_dir(path("other")).expect("a directory");
    std::os::unix::fs::symlink("nowhere", path("gone.json")).expect("a link");
    std::os::unix::fs::symlink("other", path("link")).expect("a link");
    let registry = Registry::scan(&[dir.path().to_owned(), path("link")]);
    let errors_in = |name: &str| &registry.errors()[&path(name)];
    let one = |name: &str| match errors_in(name).as_slice() {
        [error] => error,
        other => panic!("{name}: {other:?}"),
    };
    assert!(matches!(one("names.json"), RegistryError::Invalid(problems) if problems.len() == 5));
    assert_eq!(error_chain(one("names.json")), WRONG_NAMES_PROBLEMS);
    let broken = one("broken.json");
    assert!(matches!(broken, RegistryError::Load(LoadError::Parse(ParseError::Json(_)))));
    assert_eq!(error_chain(broken), "parsing JSON: EOF while parsing an object at line 1 column 1");
    let gone = one("gone.json");
    assert!(
        matches!(gone, RegistryError::Load(LoadError::Read(e)) if e.kind() == io::ErrorKind::NotFound)
    );
    assert_eq!(error_chain(gone), "reading the file: No such file or directory (os error 2)");
    let link = one("link");
    assert!(matches!(link, RegistryError::Directory(_)));
    assert_eq!(
        error_chain(link),
        "reading the directory: a symbolic link, which engines do not follow here"
    );
    let [first, second] = errors_in("one.json").as_slice() else {
        panic!("{:?}", errors_in("one.json"))
    };
    for (error, device) in [(first, "a"), (second, "b")] {
        let asked: QualifiedName = format!("vendor.com/nic={device}").parse().expect("a name");
        assert!(
            matches!(error, RegistryError::Conflict { name, others } if *name == asked && *others == [path("two.json")])
        );
        let two = path("two.json");
        let want =
            format!("device {asked} is also in {}, so engines do not resolve it", two.display());
        assert_eq!(error_chain(error), want);
    }
}

#[test]
fn caller_supplied_load_error_is_passed_on() {
    let registry = Registry::from_sources(vec![SpecSource {
        path: "/a.json".into(),
        priority: 0,
        content: Err(LoadError::Other("the disk does not exist".into())),
    }]);
    let errors: Vec<String> =
        registry.errors().values().flatten().map(|e| error_chain(e)).collect();
    assert_eq!(errors, ["the disk does not exist"]);
}

#[test]
fn errors_are_send_and_sync() {
    fn is_sent<T: Send + Sync + std::error::Error + 'static>() {}
    is_sent::<OciConfigError>();
    is_sent::<RegistryError>();
    assert!(HostNodes.node("/").is_err());
}
