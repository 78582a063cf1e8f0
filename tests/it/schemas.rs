//! Each JSON object that a command prints fits its definition in docs/output.schema.json.

#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::{Value, json};

use crate::common::hosts::{leased_interface, x2};
use crate::common::{Commands, Run, apply_below, can_have_namespaces, every_host, package, run};

fn definition(command: &str) -> Value {
    let path = package().join("docs/output.schema.json");
    let schemas: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let definition = &schemas["$defs"][command];
    assert!(definition.is_object(), "no definition of {command:?}");
    definition.clone()
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => panic!("type {name:?} is not supported here"),
    }
}

/// Fails unless a value fits a schema. Supports the keywords that the file uses.
#[track_caller]
fn check(schema: &Value, value: &Value, path: &str) {
    for (keyword, expected) in schema.as_object().unwrap() {
        match keyword.as_str() {
            "const" => assert_eq!(value, expected, "{path}"),
            "enum" => assert!(expected.as_array().unwrap().contains(value), "{path}: {value}"),
            "type" => {
                let names = expected.as_array().cloned().unwrap_or_else(|| vec![expected.clone()]);
                let fits = names.iter().any(|name| has_type(value, name.as_str().unwrap()));
                assert!(fits, "{path}: {value} is not of type {expected}");
            }
            "required" => {
                for name in expected.as_array().unwrap() {
                    assert!(value.get(name.as_str().unwrap()).is_some(), "{path}: no {name}");
                }
            }
            "properties" => {
                for (name, schema) in expected.as_object().unwrap() {
                    if let Some(value) = value.get(name) {
                        check(schema, value, &format!("{path}.{name}"));
                    }
                }
            }
            "additionalProperties" => {
                for (name, value) in value.as_object().unwrap() {
                    if schema["properties"].get(name).is_none() {
                        assert_ne!(expected, false, "{path}: {name} is not in the schema");
                        check(expected, value, &format!("{path}.{name}"));
                    }
                }
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(expected, item, &format!("{path}[{index}]"));
                }
            }
            _ => panic!("keyword {keyword:?} is not supported here"),
        }
    }
}

#[track_caller]
pub(crate) fn check_output(command: &str, run: &Run) {
    check(&definition(command), &run.json(), command);
}

#[test]
fn every_read_only_command_prints_what_its_schema_says_on_every_host() {
    for (_, tree) in every_host() {
        check_output("onload-ctk", &tree.run(&["--format", "json"]));
        for command in [
            "discover",
            "status",
            "doctor",
            "topology",
            "config show",
            "cdi list",
            "cdi check",
            "lease list",
            "host plan",
        ] {
            let words: Vec<&str> = command.split(' ').chain(["--format", "json"]).collect();
            check_output(command, &tree.run(&words));
        }
        let generate = ["cdi", "generate", "--dry-run", "--report", "json"];
        check_output("cdi generate", &tree.run(&generate));
        check_output("cdi validate", &tree.run(&["cdi", "validate", "--format", "json"]));
    }
}

#[test]
fn commands_that_change_something_report_it() {
    let tree = x2();
    let generate = tree.run(&["cdi", "generate", "--report", "json"]).done();
    check_output("cdi generate", &generate);
    assert_eq!(generate.json()["files"][0]["action"], "write");
    let check = tree.run(&["cdi", "check", "--format", "json"]).done();
    check_output("cdi check", &check);
    assert_eq!(check.json()["up_to_date"], true);
    check_output("cdi list", &tree.run(&["cdi", "list", "--format", "json"]).done());

    tree.boot("this boot");
    let drain = tree.run(&["drain", "nic", "--format", "json"]).done();
    check_output("drain", &drain);
    let undrain = tree.run(&["undrain", "nic", "--format", "json"]).done();
    check_output("undrain", &undrain);
    assert_eq!(undrain.json()["undrained"], json!(["nic"]));

    tree.file("/etc/cdi/vendor.json", "{");
    let vendor = tree.path("/etc/cdi/vendor.json");
    let validate = ["cdi", "validate", vendor.to_str().unwrap(), "--format", "json"];
    let validate = tree.run(&validate).answered_no();
    check_output("cdi validate", &validate);
    assert_eq!(validate.json()["valid"], false);
    check_output("lease list", &leased_interface(true).run(&["lease", "list", "--format", "json"]));
}

#[test]
fn host_apply_reports_what_it_did() {
    if !can_have_namespaces() {
        return;
    }
    let tree = x2();
    tree.config("[host]\nhugepages = { 2Mi = { 0 = 128 } }\n");
    let apply = || run(apply_below(&tree).env("ONLOAD_CTK_HOST_APPLY_FORMAT", "json")).done();
    let first = apply();
    check_output("host apply", &first);
    assert_eq!(first.json()["done"][0]["wanted"], "128");
    assert_eq!(apply().json()["done"], json!([]));
}

#[test]
fn the_format_of_a_command_stands_after_it() {
    let refusal = x2().run(&["--format", "json", "status"]).refused();
    assert_eq!(refusal, "write --format after the command: onload-ctk status --format json");
}
