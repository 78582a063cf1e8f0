//! What a contributor runs: the recipes of the justfile, the steps of `.ci/run`, the rule for subjects of
//! commits, and the versions of Rust.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::common::{needs, package};

fn read(path: &str) -> String {
    fs::read_to_string(package().join(path)).unwrap()
}

/// The recipes that a person may name.
fn recipes() -> Vec<String> {
    let text = read("justfile");
    let mut before = "";
    let mut recipes = Vec::new();
    for line in text.lines() {
        let is_recipe = line.starts_with(char::is_alphabetic) && line.ends_with(':');
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
fn ci_runs_every_recipe_and_no_other() {
    let run = read(".ci/run");
    let steps = run.lines().filter_map(|line| line.strip_prefix("step "));
    let mut steps: Vec<&str> = steps.collect();
    let mut recipes = recipes();
    assert!(recipes.len() > 10, "{recipes:?}");
    steps.sort_unstable();
    recipes.sort_unstable();
    assert_eq!(steps, recipes);
}

#[test]
fn contributing_names_every_recipe() {
    let page = read("CONTRIBUTING.md");
    let unnamed: Vec<String> = recipes()
        .into_iter()
        .filter(|recipe| !page.contains(&format!("`just {recipe}`")))
        .collect();
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

fn check_subjects(subjects: &str) -> Output {
    let mut check = Command::new(package().join("scripts/check-subjects"));
    check.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = check.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(subjects.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

#[test]
fn subjects_that_name_a_component_and_have_72_characters_are_taken() {
    if !needs::programs(&["bash"]) {
        return;
    }
    let longest = format!("hooks: {}", "y".repeat(65));
    assert_eq!(longest.len(), 72);
    for subject in [
        "ci: read the documentation of what is private too",
        "cdi, host: name the path that cannot be read",
        "tests/machine: install the rpm",
        "Revert \"Say what nobody wants to hear, at more length than anybody would want to read\"",
        &longest,
    ] {
        let output = check_subjects(&format!("{subject}\n"));
        assert!(output.status.success(), "{subject}: {output:?}");
        assert_eq!(output.stdout, b"", "{subject}");
    }
    assert!(check_subjects("").status.success());
}

#[test]
fn subjects_without_a_component_or_with_more_characters_are_refused_with_the_reason() {
    if !needs::programs(&["bash"]) {
        return;
    }
    let long = format!("hooks: {}", "y".repeat(66));
    for (subject, reason) in [
        ("Mend it", "no \"component: \" at its beginning: Mend it\n"),
        ("hooks:mend it", "no \"component: \" at its beginning: "),
        ("hooks: ", "no \"component: \" at its beginning: "),
        ("Hooks: mend it", "no \"component: \" at its beginning: "),
        (&long, "73 characters, at most 72: hooks: y"),
    ] {
        // A good one behind it hides nothing.
        let output = check_subjects(&format!("{subject}\nhooks: mend it\n"));
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{subject}: {said}");
        assert!(said.starts_with(reason), "{subject}: {said}");
        assert_eq!(said.lines().count(), 1, "{subject}: {said}");
    }
}
