//! The specifications and the manifest of 0.1.0 under today's command, and today's under 0.1.0's reader.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use crate::common::{Run, captured, on, package, run, scratch};
use serde::Deserialize;

const MANIFEST: &str = ".onload-ctk-manifest";
const NIC: &str = "onload.dev-nic.json";
const RDMA: &str = "onload.dev-rdma.json";

/// A directory with what 0.1.0 wrote.
fn written_by_0_1_0() -> tempfile::TempDir {
    let dir = scratch();
    let from = package().join("tests/versions/0.1.0/specs");
    for name in [MANIFEST, NIC, RDMA] {
        fs::copy(from.join(name), dir.path().join(name)).unwrap();
    }
    dir
}

fn command(dir: &tempfile::TempDir, words: &[&str]) -> Run {
    let path = dir.path().to_str().unwrap();
    let words = [words, &["--output-dir", path]].concat();
    run(&mut on(&captured(), &words))
}

/// What 0.1.0 takes for a manifest (its `src/specdir/manifest.rs`).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[allow(dead_code, reason = "what is refused counts")]
struct ManifestOf010 {
    format: FormatOf010,
    #[serde(default)]
    max_cdi_version: Option<String>,
    kinds: Vec<String>,
    files: BTreeMap<String, WrittenOf010>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FormatOf010 {
    Json,
    Yaml,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "what is refused counts")]
struct WrittenOf010 {
    sha256: Vec<String>,
}

#[test]
fn specifications_of_0_1_0_are_ours_and_are_written_anew() {
    let dir = written_by_0_1_0();
    fs::write(dir.path().join(NIC), "{}").unwrap();
    let run = command(&dir, &["cdi", "generate"]).answered_no();
    let left = run
        .warnings()
        .into_iter()
        .find(|text| text.contains(": left "));
    let left = left.unwrap();
    assert!(left.contains(NIC) && !left.contains(RDMA), "{left}");
    let dir = written_by_0_1_0();
    command(&dir, &["cdi", "generate"]).done();
    command(&dir, &["cdi", "check"]).done();
    let listed = fs::read_dir(dir.path()).unwrap().count();
    assert!(listed > 3, "every kind is there now");
}

#[test]
fn what_0_1_0_asked_for_is_known() {
    let dir = written_by_0_1_0();
    let checked = command(&dir, &["cdi", "check"]);
    // Of the kinds that it was not asked for, none is missed.
    let others: Vec<&str> = checked
        .stdout
        .lines()
        .filter(|line| !line.contains(NIC) && !line.contains(RDMA))
        .collect();
    assert_eq!(others, [""; 0], "{}", checked.stderr);
}

#[test]
fn today_s_manifest_is_one_that_0_1_0_takes() {
    let dir = scratch();
    command(&dir, &["cdi", "generate", "--max-cdi-version", "0.5.0"]).done();
    let text = fs::read_to_string(dir.path().join(MANIFEST)).unwrap();
    let manifest: ManifestOf010 = serde_json::from_str(&text).unwrap();
    assert!(matches!(manifest.format, FormatOf010::Json));
    assert!(manifest.files.contains_key(NIC));
    let yaml = text.replace("\"json\"", "\"yaml\"");
    let yaml: ManifestOf010 = serde_json::from_str(&yaml).unwrap();
    assert!(matches!(yaml.format, FormatOf010::Yaml));
    let more = text.replacen('{', "{\"more\": 1,", 1);
    assert!(serde_json::from_str::<ManifestOf010>(&more).is_err());
}

#[test]
fn a_manifest_of_the_same_version_with_more_in_it_is_understood() {
    let dir = written_by_0_1_0();
    let path = dir.path().join(MANIFEST);
    let text = fs::read_to_string(&path).unwrap();
    let more = text
        .replacen('{', "{\"version\": 1, \"more\": [1],", 1)
        .replace("\"nic\",", "\"nic\", \"netdev\",");
    fs::write(&path, more).unwrap();
    let done = command(&dir, &["cdi", "generate"]);
    assert!(!done.stderr.contains("somebody else's"), "{}", done.stderr);
    done.done();
}

#[test]
fn a_newer_manifest_is_said_to_be_one_and_its_files_stay() {
    let dir = written_by_0_1_0();
    let path: PathBuf = dir.path().join(MANIFEST);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen('{', "{\"version\": 2,", 1)).unwrap();
    fs::write(dir.path().join(NIC), "{}").unwrap();
    let refusal = command(&dir, &["cdi", "check"]).refused();
    assert!(refusal.contains("it is of version 2"), "{refusal}");
    let run = command(&dir, &["cdi", "generate"]);
    assert!(run.stderr.contains("it is of version 2"), "{}", run.stderr);
    assert!(run.answered_no().stderr.contains(NIC));
    assert_eq!(fs::read(dir.path().join(NIC)).unwrap(), b"{}");
}

#[test]
fn the_configuration_of_0_1_0_is_taken_whole() {
    let config = package().join("tests/versions/0.1.0/config.toml");
    let words = ["--config", config.to_str().unwrap(), "discover"];
    run(&mut on(&captured(), &words)).done();
}
