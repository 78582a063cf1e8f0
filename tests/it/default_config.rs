//! packaging/config.toml and onload-ctk.toml(5) say of each key what the doc comment of its field says. `UPDATE_GOLDEN=1`
//! writes both anew.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;

use crate::common::{compare, package};

/// Where the types of the sections are: the file, the type, the section.
const TYPES: [(&str, &str, &str); 9] = [
    ("config/sections.rs", "DiscoverConfig", "discover"),
    ("config/sections.rs", "CdiConfig", "cdi"),
    ("config/sections.rs", "AnnotationsConfig", "annotations"),
    ("config/sections.rs", "EnvironmentConfig", "environment"),
    ("config/sections.rs", "LeasesConfig", "leases"),
    ("config/sections.rs", "RuntimeConfig", "runtime"),
    ("config/sections.rs", "LogConfig", "log"),
    ("host_settings.rs", "HostSettings", "host"),
    ("kubernetes_settings.rs", "KubernetesSettings", "kubernetes"),
];
/// Those of sections that the file shows as examples.
const EXAMPLES: [(&str, &str, &str); 6] = [
    ("config/sections.rs", "PoolConfig", "pools.NAME"),
    ("select.rs", "PoolSelector", "pools.NAME.select"),
    ("bundle.rs", "Bundle", "bundles.NAME"),
    ("netdev/settings.rs", "NetdevSettings", "netdev.NAME"),
    ("vf_config.rs", "VfConfig", "netdev.NAME.vf"),
    ("host_settings.rs", "SriovConfig", "[sriov]"),
];
/// How many characters a line of a comment has at most, with its sign.
const WIDTH: usize = 110;

/// The doc comment of each field of a type, by the key of the field.
fn docs_of(source: &str, name: &str) -> BTreeMap<String, String> {
    let (_, behind) = source.split_once(&format!("pub struct {name} {{\n")).unwrap();
    let (body, _) = behind.split_once("\n}").unwrap();
    let mut docs = BTreeMap::new();
    let (mut doc, mut key) = (Vec::new(), None);
    for line in body.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            doc.push(text);
        } else if let Some((_, renamed)) = line.split_once("rename = \"") {
            key = renamed.split_once('"').map(|(key, _)| key.to_owned());
        } else if let Some(field) = line.strip_prefix("pub ") {
            let (field, _) = field.split_once(':').unwrap();
            // rustdoc would take what is in brackets for a link.
            let text = std::mem::take(&mut doc).join(" ").replace("\\[", "[");
            let key = key.take().unwrap_or_else(|| field.replace('_', "-"));
            docs.insert(key, text);
        }
    }
    docs
}

/// What the types say of their keys, by section.
fn docs_by_section(
    types: &[(&str, &str, &'static str)],
) -> BTreeMap<&'static str, BTreeMap<String, String>> {
    let docs = types.iter().map(|&(path, name, section)| {
        let source = fs::read_to_string(package().join("core/src").join(path)).unwrap();
        (section, docs_of(&source, name))
    });
    docs.collect()
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
    let docs = docs_by_section(&TYPES);
    let text = fs::read_to_string(&file).unwrap();
    let (mut made, mut above, mut section) = (String::new(), String::new(), "");
    let mut keys = 0;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
        }
        let setting = line.strip_prefix('#').filter(|rest| !rest.starts_with(' '));
        if let Some((key, _)) = setting.and_then(|setting| setting.split_once(" = ")) {
            let doc = docs[section].get(key).unwrap_or_else(|| panic!("no field {section}.{key}"));
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
        } else if let Some((key, value)) =
            line.strip_prefix('#').and_then(|line| line.split_once(" = "))
            && !key.starts_with(' ')
        {
            defaults.insert((section.to_owned(), key.to_owned()), value.to_owned());
        }
    }
    defaults
}

#[test]
fn the_manual_page_says_of_each_key_what_its_type_says() {
    let file = package().join("packaging/man/onload-ctk.toml.5");
    let docs = docs_by_section(&[&TYPES[..], &EXAMPLES[..]].concat());
    let defaults = defaults();
    let text = fs::read_to_string(&file).unwrap();
    let (mut made, mut section, mut keys, mut of_a_key) = (String::new(), "", 0, false);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix(".SS [").and_then(|line| line.strip_suffix(']')) {
            section = name;
        } else if line.starts_with(".SH") {
            section = "";
        }
        of_a_key &= ![".TP", ".SS", ".SH"].iter().any(|macro_| line.starts_with(macro_));
        let setting = line.strip_prefix(".B ").and_then(|line| line.split_once(" = "));
        if let Some((key, example)) = setting.filter(|_| docs.contains_key(section)) {
            let key = key.replace("\\-", "-");
            let doc = docs[section].get(&key).unwrap_or_else(|| panic!("no field {section}.{key}"));
            let default = defaults.get(&(section.to_owned(), key.clone()));
            let value = default.map_or_else(
                || example.to_owned(),
                |value| value.replace('-', "\\-").replace('"', "\\(dq"),
            );
            made = made + ".B " + &key.replace('-', "\\-") + " = " + &value + "\n" + &manual(doc);
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
