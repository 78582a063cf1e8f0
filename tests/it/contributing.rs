//! What CONTRIBUTING.md says of the recipes of the justfile, the versions of Rust, and the summary of `just test`.

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
fn readme_clones_the_repository_of_the_manifest() {
    let manifest: toml_edit::DocumentMut = read("Cargo.toml").parse().unwrap();
    let repository = manifest["workspace"]["package"]["repository"].as_str().unwrap();
    assert!(read("README.md").contains(&format!("git clone {repository} onload-ctk")));
}

#[test]
fn pages_require_the_oldest_compiler_that_may_build() {
    let manifest: toml_edit::DocumentMut = read("Cargo.toml").parse().unwrap();
    let oldest = manifest["workspace"]["package"]["rust-version"].as_str().unwrap();
    for page in ["README.md", "docs/install.md"] {
        assert!(read(page).contains(&format!("Rust {oldest} or later")), "{page}");
    }
}

#[test]
fn the_compiler_of_the_checks_is_no_older_than_the_oldest_that_may_build() {
    let toolchain: toml_edit::DocumentMut = read("rust-toolchain.toml").parse().unwrap();
    let manifest: toml_edit::DocumentMut = read("Cargo.toml").parse().unwrap();
    let pinned = toolchain["toolchain"]["channel"].as_str().unwrap();
    let oldest = manifest["workspace"]["package"]["rust-version"].as_str();
    assert!(version(pinned) >= version(oldest.unwrap()), "{pinned}");
}

/// What `just test` prints at its end about a log.
fn summary(log: &str) -> String {
    let mut script = std::process::Command::new(package().join("scripts/summarize-skips"));
    let (is_done, message) = crate::common::needs::asked(&mut script, log);
    assert!(is_done, "{message}");
    message
}

#[test]
fn skipped_tests_are_summed_up_by_reason_with_what_to_install() {
    let log = "test a ... skipped: runc::a: runc is not installed\nok\nskipped: runc is not installed\n\
        skipped: live::b: entering a sandbox needs root\ntest result: ok. 3 passed\n";
    let message = summary(log);
    for line in [
        "Skipped tests or parts of tests: 3",
        "      2 runc is not installed",
        "      1 entering a sandbox needs root",
        "To run the tests that need root, run as root: just test",
    ] {
        assert!(message.lines().any(|found| found == line), "no {line:?} in {message}");
    }
    assert!(message.contains("To install what is missing"), "{message}");
    assert!(message.contains(".ci/install-packages"), "{message}");
}

#[test]
fn what_no_package_brings_is_counted_and_nothing_is_to_be_installed() {
    let message = summary("skipped: rps: the kernel has no RPS\n");
    assert_eq!(message, "\nSkipped tests or parts of tests: 1\n      1 the kernel has no RPS\n");
    assert_eq!(summary("test a ... ok\n"), "");
}

#[test]
fn many_reasons_take_few_lines() {
    let log: String = (10..40).map(|n| format!("skipped: a: the kernel has no x{n}\n")).collect();
    let message = summary(&log);
    let rest = "     20 for 20 other reasons, each in a line \"skipped:\" above";
    assert_eq!(message.lines().count(), 13, "{message}");
    assert_eq!(message.lines().last(), Some(rest), "{message}");
}
