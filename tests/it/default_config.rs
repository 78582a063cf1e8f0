//! packaging/config.toml, onload-ctk.toml(5), docs/config.schema.json and docs/settings.md say of each key what the doc
//! comment of its field says. `UPDATE_GOLDEN=1` writes them anew.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::common::{compare, package, program, run};

/// The sections of which the file shows every key.
const SECTIONS: [&str; 9] = [
    "discover",
    "cdi",
    "annotations",
    "environment",
    "leases",
    "runtime",
    "log",
    "host",
    "kubernetes",
];
/// Those that it shows as examples.
const EXAMPLES: [&str; 6] =
    ["pools.NAME", "pools.NAME.select", "bundles.NAME", "netdev.NAME", "netdev.NAME.vf", "[sriov]"];
/// How many characters a line of a comment has at most, with its sign.
const WIDTH: usize = 110;

/// The schema of each key, by section.
type Sections = BTreeMap<String, BTreeMap<String, Value>>;

fn sections(names: &[&str]) -> Sections {
    let mut sections = Sections::new();
    add_sections("", &schema(), &mut sections);
    sections.retain(|name, _| names.contains(&&**name));
    assert_eq!(sections.len(), names.len());
    sections
}

fn schema() -> Value {
    run(program().args(["config", "schema"])).done().json()
}

fn add_sections(name: &str, schema: &Value, sections: &mut Sections) {
    let join = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
    if let Some(keys) = schema["properties"].as_object() {
        // The keys of a map, such as the classes of leases.share, have no description.
        if keys.values().all(|schema| schema["description"].is_string()) {
            let entries = keys.iter().map(|(key, schema)| (key.clone(), schema.clone()));
            sections.insert(name.to_owned(), entries.collect());
        }
        for (key, schema) in keys {
            add_sections(&join(key), schema, sections);
        }
    }
    add_sections_of(&join("NAME"), &schema["additionalProperties"], sections);
    add_sections_of(&format!("[{name}]"), &schema["items"], sections);
}

/// Adds what one of several sections is, if it is one.
fn add_sections_of(name: &str, schema: &Value, sections: &mut Sections) {
    if schema.is_object() {
        add_sections(name, schema, sections);
    }
}

fn text(schema: &Value) -> &str {
    schema["description"].as_str().unwrap()
}

/// A text as lines of a comment.
fn comment(text: &str) -> String {
    let mut lines = String::new();
    let mut line = "#".to_owned();
    for word in text.split(' ') {
        if line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines += &line;
            lines.push('\n');
            "#".clone_into(&mut line);
        }
        line = line + " " + word;
    }
    lines + &line + "\n"
}

#[test]
fn the_default_file_says_of_each_key_what_its_type_says() {
    let file = package().join("packaging/config.toml");
    let docs = sections(&SECTIONS);
    let old = fs::read_to_string(&file).unwrap();
    let (mut made, mut above, mut section) = (String::new(), String::new(), "");
    let mut keys = 0;
    for line in old.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
        }
        let setting = line.strip_prefix('#').filter(|rest| !rest.starts_with(' '));
        if let Some((key, _)) = setting.and_then(|setting| setting.split_once(" = ")) {
            let doc = docs[section].get(key).unwrap_or_else(|| panic!("no key {section}.{key}"));
            // What is above an empty comment line is about the section.
            let about_section = above.rfind("#\n").map_or(0, |at| at + 2);
            made += &above[..about_section];
            made += &comment(text(doc));
            above.clear();
            keys += 1;
        }
        if line.starts_with("# ") || line == "#" {
            above = above + line + "\n";
        } else {
            made = made + &above + line + "\n";
            above.clear();
        }
    }
    made += &above;
    let known: usize = docs.values().map(BTreeMap::len).sum();
    assert_eq!(keys, known, "packaging/config.toml has not every key");
    compare(&file, &made);
}

/// A text as lines of a manual page, one for a sentence.
fn manual(text: &str) -> String {
    let mut lines = String::new();
    for sentence in text.replace('\\', "\\e").replace('-', "\\-").split_inclusive(". ") {
        if sentence.starts_with(['.', '\'']) {
            lines += "\\&";
        }
        lines = lines + sentence.trim_end() + "\n";
    }
    lines
}

/// The default of each key, as packaging/config.toml has it, by section.
fn defaults() -> BTreeMap<(String, String), String> {
    let text = fs::read_to_string(package().join("packaging/config.toml")).unwrap();
    let (mut defaults, mut section) = (BTreeMap::new(), "");
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
        } else if let Some(setting) = line.strip_prefix('#')
            && !setting.starts_with(' ')
            && let Some((key, value)) = setting.split_once(" = ")
        {
            defaults.insert((section.to_owned(), key.to_owned()), value.to_owned());
        }
    }
    defaults
}

#[test]
fn the_manual_page_says_of_each_key_what_its_type_says() {
    let file = package().join("packaging/man/onload-ctk.toml.5");
    let docs = sections(&[&SECTIONS[..], &EXAMPLES[..]].concat());
    let defaults = defaults();
    let old = fs::read_to_string(&file).unwrap();
    let (mut made, mut section, mut keys, mut of_a_key) = (String::new(), "", 0, false);
    for line in old.lines() {
        if let Some(name) = line.strip_prefix(".SS [").and_then(|line| line.strip_suffix(']')) {
            section = name;
        } else if line.starts_with(".SH") {
            section = "";
        }
        of_a_key &= ![".TP", ".SS", ".SH"].iter().any(|macro_| line.starts_with(macro_));
        let setting = line.strip_prefix(".B ").and_then(|line| line.split_once(" = "));
        if let Some((key, example)) = setting.filter(|_| docs.contains_key(section)) {
            let key = key.replace("\\-", "-");
            let doc = docs[section].get(&key).unwrap_or_else(|| panic!("no key {section}.{key}"));
            let default = defaults.get(&(section.to_owned(), key.clone()));
            let value = default.map_or_else(
                || example.to_owned(),
                |value| value.replace('-', "\\-").replace('"', "\\(dq"),
            );
            made = made
                + ".B "
                + &key.replace('-', "\\-")
                + " = "
                + &value
                + "\n"
                + &manual(text(doc));
            keys += 1;
            of_a_key = true;
        } else if !of_a_key {
            made = made + line + "\n";
        }
    }
    let known: usize = docs.values().map(BTreeMap::len).sum();
    assert_eq!(keys, known, "onload-ctk.toml(5) has not every key");
    compare(&file, &made);
}

#[test]
fn the_schema_is_that_of_the_program() {
    let found = run(program().args(["config", "schema"])).done().stdout;
    compare(&package().join("docs/config.schema.json"), &found);
}

#[test]
fn the_default_file_has_the_defaults_of_the_schema_and_names_it() {
    let file = fs::read_to_string(package().join("packaging/config.toml")).unwrap();
    assert!(file.starts_with("#:schema /usr/share/onload-ctk/config.schema.json\n"));
    let mut known = 0;
    for ((section, key), value) in defaults() {
        let default = &sections(&[section.as_str()])[&section][&key]["default"];
        if !default.is_null() {
            assert_eq!(serde_json::from_str::<Value>(&value).unwrap(), *default, "{section}.{key}");
            known += 1;
        }
    }
    assert_eq!(known, 40);
}

/// The default of a key as TOML.
fn default_cell(schema: &Value) -> String {
    match &schema["default"] {
        Value::Null => String::new(),
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(Value::to_string).collect();
            format!("`[{}]`", values.join(", "))
        }
        value => format!("`{value}`"),
    }
}

#[test]
fn the_page_of_settings_has_every_key() {
    let mut page = "\
# Settings

This page lists every setting of `/etc/onload-ctk/config.toml` with its default and its purpose; `man onload-ctk.toml` describes each in
full. `onload-ctk config show` prints the values in effect, and `onload-ctk config validate FILE` checks a file. Editors that use
taplo complete and check the file by [config.schema.json](config.schema.json). The page and the schema are generated from the types
that parse the file.

NAME is a name that you choose.
"
    .to_owned();
    let mut all = Sections::new();
    add_sections("", &schema(), &mut all);
    for (section, keys) in all {
        page += &format!("\n## `[{section}]`\n\n| setting | default | purpose |\n|---|---|---|\n");
        for (key, schema) in keys {
            let purpose = text(&schema).split_inclusive(". ").next().unwrap().trim_end();
            page += &format!("| `{key}` | {} | {purpose} |\n", default_cell(&schema));
        }
    }
    compare(&package().join("docs/settings.md"), &page);
}
