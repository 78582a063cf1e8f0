//! packaging/config.toml says of each key what the doc comment of its field says. `UPDATE_GOLDEN=1` writes the comments anew.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;

use crate::common::{compare, package};

/// Where the types of the sections are: the file, the type, the section.
const TYPES: [(&str, &str, &str); 9] = [
    ("config/sections.rs", "Discover", "discover"),
    ("config/sections.rs", "Cdi", "cdi"),
    ("config/sections.rs", "Annotations", "annotations"),
    ("config/sections.rs", "Environment", "environment"),
    ("config/sections.rs", "Leases", "leases"),
    ("config/sections.rs", "Runtime", "runtime"),
    ("config/sections.rs", "Log", "log"),
    ("host_settings.rs", "HostSettings", "host"),
    ("kubernetes_settings.rs", "KubernetesSettings", "kubernetes"),
];
/// How many characters a line of a comment has at most, with its sign.
const WIDTH: usize = 110;

/// The doc comment of each field of a type, by the key of the field.
fn docs_of(source: &str, name: &str) -> BTreeMap<String, String> {
    let (_, behind) = source
        .split_once(&format!("pub struct {name} {{\n"))
        .unwrap();
    let (body, _) = behind.split_once("\n}").unwrap();
    let mut docs = BTreeMap::new();
    let mut doc = Vec::new();
    for line in body.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            doc.push(text);
        } else if let Some(field) = line.strip_prefix("pub ") {
            let (field, _) = field.split_once(':').unwrap();
            // rustdoc would take what is in brackets for a link.
            let text = std::mem::take(&mut doc).join(" ").replace("\\[", "[");
            docs.insert(field.replace('_', "-"), text);
        }
    }
    docs
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
    let docs = TYPES.map(|(path, name, section)| {
        let source = fs::read_to_string(package().join("core/src").join(path)).unwrap();
        (section, docs_of(&source, name))
    });
    let docs = BTreeMap::from(docs);
    let text = fs::read_to_string(&file).unwrap();
    let (mut made, mut above, mut section) = (String::new(), String::new(), "");
    let mut keys = 0;
    for line in text.lines() {
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'))
        {
            section = name;
        }
        let setting = line.strip_prefix('#').filter(|rest| !rest.starts_with(' '));
        if let Some((key, _)) = setting.and_then(|setting| setting.split_once(" = ")) {
            let doc = docs[section]
                .get(key)
                .unwrap_or_else(|| panic!("no field {section}.{key}"));
            // What is above an empty comment line is about the section.
            let about_section = above.rfind("#\n").map_or(0, |at| at + 2);
            made += &above[..about_section];
            made += &comment(doc);
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
