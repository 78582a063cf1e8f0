//! What CONTRIBUTING.md says of the recipes of the justfile, and the versions of Rust.

#![allow(clippy::unwrap_used)]

use std::fs;

use crate::common::package;

fn read(path: &str) -> String {
    fs::read_to_string(package().join(path)).unwrap()
}

/// The recipes that a person may name.
fn recipes() -> Vec<String> {
    let text = read("justfile");
    let mut before = "";
    let mut recipes = Vec::new();
    for line in text.lines() {
        let is_word = line.starts_with(char::is_alphabetic);
        let is_recipe = is_word && line.contains(':') && !line.contains(":=");
        if is_recipe && before != "[private]" {
            assert!(before.starts_with("# "), "{line} has no description");
            let name = line.split([' ', ':']).next().unwrap();
            recipes.push(name.to_owned());
        }
        before = line;
    }
    recipes
}

#[test]
fn contributing_names_every_recipe() {
    let page = read("CONTRIBUTING.md");
    let recipes = recipes();
    assert!(recipes.len() > 10, "{recipes:?}");
    let unnamed: Vec<String> =
        recipes.into_iter().filter(|recipe| !page.contains(&format!("`just {recipe}`"))).collect();
    assert_eq!(unnamed, [""; 0]);
}

fn version(text: &str) -> Vec<u32> {
    text.split('.').map(|part| part.parse().unwrap()).collect()
}

#[test]
fn the_compiler_of_the_checks_is_no_older_than_the_oldest_that_may_build() {
    let toolchain: toml_edit::DocumentMut = read("rust-toolchain.toml").parse().unwrap();
    let manifest: toml_edit::DocumentMut = read("Cargo.toml").parse().unwrap();
    let pinned = toolchain["toolchain"]["channel"].as_str().unwrap();
    let oldest = manifest["workspace"]["package"]["rust-version"].as_str();
    assert!(version(pinned) >= version(oldest.unwrap()), "{pinned}");
}
